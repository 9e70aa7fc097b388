"""What a node says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from rdzv_core.machine.rules import Rules

__all__ = ["Claim", "Record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The round that a node says it is in, when it has to announce again while in a round."""

    round: int
    round_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One node's announcement. Identity is ``node_id``, fresh per handler; never a rank or an address."""

    node_id: str
    seq: int
    """Grows with each announcement of this node."""
    addr: str
    pid: int
    local_id: int
    left: int = 0
    """The highest round that this node has returned from the end of, or given up."""
    claim: Claim | None = None
    steady: bool = False
    """This newcomer has been at the barrier for the scale-up delay, on its own clock."""
    done: bool = False
    """This node's workers have succeeded; it will not take part in another round."""
    rank_hint: int | None = None
    domain: str = ""
    attrs: dict[str, str] = field(default_factory=dict)
    min_nodes: int
    max_nodes: int

    def plays_by(self, rules: Rules) -> bool:
        """Whether this node was told the same numbers of nodes."""
        return self.min_nodes == rules.min_nodes and self.max_nodes == rules.max_nodes

    @property
    def who(self) -> str:
        """How people recognise this node: its id, host and process."""
        return f"{self.node_id} ({self.addr}, pid {self.pid})"
