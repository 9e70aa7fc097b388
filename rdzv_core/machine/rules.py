"""What a run is played by: the rules that bind a life, and the policy that each leader decides by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PLACEMENTS", "RESTARTS", "Policy", "Rules"]

PLACEMENTS = ("sorted", "natural", "stable", "hint")
"""Built-in orders of members into ranks; see :mod:`rdzv_core.machine.placement`."""

RESTARTS = ("always", "if_possible", "never")
"""When survivors of a lost member are told to re-form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What every node of a life must agree on; written into the register with its first write.

    Raises:
        ValueError: A number is out of range; the text names it.
    """

    min_nodes: int
    max_nodes: int
    interval: float
    """Seconds between two pulses of a node."""
    ttl: float
    """Seconds without a pulse after which a node counts as dead; at least three intervals."""

    def __post_init__(self) -> None:
        if self.min_nodes < 1:
            raise ValueError(f"The minimum number of nodes ({self.min_nodes}) must be greater than zero.")
        if self.max_nodes < self.min_nodes:
            raise ValueError(
                f"The maximum number of nodes ({self.max_nodes}) must be greater than or equal to the "
                f"minimum number of nodes ({self.min_nodes})."
            )
        if self.interval <= 0:
            raise ValueError(f"The keep-alive interval ({self.interval} s) must be positive.")
        if self.ttl < 3 * self.interval - 1e-9:
            raise ValueError(
                f"The TTL ({self.ttl} s) must be at least three keep-alive intervals ({3 * self.interval} s)."
            )

    def __str__(self) -> str:
        return (
            f"nodes {self.min_nodes}:{self.max_nodes}, keep-alive every {self.interval:g} s, dead after {self.ttl:g} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a leader times and places a round. Nodes may differ; the leader's own policy decides."""

    last_call: float = 30.0
    """Seconds to wait for more nodes once there are ``min_nodes``."""
    regroup: float = 0.5
    """The same, if every live member of the last round is back at the barrier."""
    leave_timeout: float = 300.0
    """Seconds that a member may stay in a round after it was told to re-form."""
    restart_on_node_loss: str = "always"
    placement: str = "sorted"

    def __post_init__(self) -> None:
        if self.restart_on_node_loss not in RESTARTS:
            raise ValueError(
                f"restart_on_node_loss is '{self.restart_on_node_loss}'; expected one of {', '.join(RESTARTS)}."
            )
        if self.placement not in PLACEMENTS:
            raise ValueError(f"placement is '{self.placement}'; expected one of {', '.join(PLACEMENTS)}.")
