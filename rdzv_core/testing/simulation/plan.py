"""What is to happen in one schedule: the nodes, their rules, and the faults. A value that can be written down."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar

__all__ = [
    "CALL_SECONDS",
    "FAULTS",
    "ClockStep",
    "Crash",
    "CrashHost",
    "Deaf",
    "FailHost",
    "FailWorkers",
    "Fault",
    "ForgetPages",
    "ForgetRound",
    "HangHost",
    "Leave",
    "LoseLease",
    "LosePages",
    "LoseRegister",
    "NodePlan",
    "Partition",
    "Pause",
    "PauseDecider",
    "Plan",
    "Rival",
    "Rollback",
    "SlowShutdown",
    "Stall",
    "Weather",
    "Wipe",
]


CALL_SECONDS = 2.0
"""Seconds after which a client gives up on an answer: well below the keep-alive interval, as the contract asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that goes wrong at a time. ``node`` is the number of a place, whoever runs there then."""

    tail: ClassVar[float] = 0.0
    """Seconds after its end for which it may still be felt: requests that are under way."""

    at: float
    seconds: float = 0.0

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + self.seconds + self.tail


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash(Fault):
    """SIGKILL. With ``orphans`` the workers live on. ``back_after`` seconds later a new node starts there."""

    node: int
    orphans: bool = False
    back_after: float | None = None

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + (self.back_after or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave(Fault):
    """SIGTERM: the node withdraws at once and is gone soon after."""

    node: int
    back_after: float | None = None

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + (self.back_after or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause(Fault):
    """SIGSTOP, and SIGCONT ``seconds`` later."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseDecider(Fault):
    """The next leader that is about to write a round is stopped for ``seconds`` just then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deaf(Fault):
    """The launcher's main thread is stuck: it does not ask whether nodes are waiting."""

    node: int

    @property
    def end(self) -> float:
        """When it is over for the others: they need not wait for the node (rule 16)."""
        return self.at


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition(Fault):
    """Nodes are cut off. ``way``: ``both``, ``requests`` or ``replies`` are swallowed, or connects are ``refused``."""

    tail: ClassVar[float] = 2.0

    nodes: tuple[int, ...]
    way: str = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather(Fault):
    """The network of some nodes is bad: each number is the chance that one message suffers so."""

    tail: ClassVar[float] = 12.0

    nodes: tuple[int, ...]
    lose_request: float = 0.0
    lose_reply: float = 0.0
    duplicate: float = 0.0
    """Applied once more, up to :data:`tail` seconds later."""
    late: float = 0.0
    """The sender gives up, and the request is applied up to :data:`tail` seconds later all the same."""
    slow: float = 0.0
    """Takes up to two seconds, one way."""
    lose_push: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall(Fault):
    """The store answers nobody, while its clock goes on. Requests wait for it, or are dropped."""

    tail: ClassVar[float] = 2.0

    drop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wipe(Fault):
    """The store restarts empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback(Fault):
    """A failover drops what was written in the ``lost`` seconds before."""

    lost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseRegister(Fault):
    """The register is evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LosePages(Fault):
    """The pages of members are evicted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRound(Fault):
    """A failover drops the next round: ``after`` seconds after it got its store, the store is as it was before it."""

    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetPages(Fault):
    """The pages of the next round are evicted as soon as it is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseLease(Fault):
    """The leader lease is evicted: soon two nodes lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival(Fault):
    """Somebody else writes the register, as another leader might."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWorkers(Fault):
    """A worker on the node fails."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashHost(Fault):
    """The next rank 0 dies before it has published its store."""

    back_after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailHost(Fault):
    """The next rank 0 cannot open its store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HangHost(Fault):
    """The next rank 0 tries to open its store for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowShutdown(Fault):
    """The node's next ``shutdown()`` comes ``seconds`` late."""

    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockStep(Fault):
    """The node's wall clock jumps by ``by`` seconds."""

    node: int
    by: float


FAULTS: dict[str, type[Fault]] = {
    kind.__name__: kind
    for kind in (
        ClockStep,
        Crash,
        CrashHost,
        Deaf,
        FailHost,
        FailWorkers,
        ForgetPages,
        ForgetRound,
        HangHost,
        Leave,
        LoseLease,
        LosePages,
        LoseRegister,
        Partition,
        Pause,
        PauseDecider,
        Rival,
        Rollback,
        SlowShutdown,
        Stall,
        Weather,
        Wipe,
    )
}
"""The kinds of fault, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One place where a node runs."""

    start: float = 0.0
    min_nodes: int | None = None
    """Its own rule, if it was started with other rules than the rest."""
    flaps: int = 0
    """So many nodes in a row crash here, a few seconds after each started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One schedule. With the same plan the same things happen, in the same order. All times in seconds."""

    seed: int
    nodes: tuple[NodePlan, ...]
    min_nodes: int
    max_nodes: int
    interval: float = 5.0
    ttl: float = 15.0
    last_call: float = 6.0
    regroup: float = 0.5
    leave_timeout: float = 60.0
    join_timeout: float = 120.0
    bootstrap_timeout: float = 60.0
    scale_up_delay: float = 15.0
    store_outage_timeout: float = 60.0
    closed_ttl: float = 20.0
    close_timeout: float = 10.0
    placement: str = "sorted"
    restart_on_node_loss: str = "always"
    work: float = 20.0
    """How long the workers of a round must run, in all, for the job to be done."""
    uneven: float = 0.0
    """How much earlier than the others the workers of one node may end."""
    collective: str = "fail"
    """What a broken round does to the workers of others: they ``fail`` soon, ``hang``, or are ``independent``."""
    max_restarts: int = 100
    faults: tuple[Fault, ...] = ()

    @property
    def last_fault(self) -> float:
        """When the last fault, and the last start of a node, is over."""
        starts = [n.start + 12.0 * n.flaps for n in self.nodes]
        return max([*starts, *(f.end for f in self.faults)])

    def to_json(self) -> str:
        """The plan as one line of text."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("nodes", "faults")}
        nodes = [_short(n) for n in self.nodes]
        faults = [{"kind": type(f).__name__, **_short(f)} for f in self.faults]
        return json.dumps({**values, "nodes": nodes, "faults": faults})

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what :meth:`to_json` wrote."""
        values = json.loads(text)
        nodes = tuple(NodePlan(**n) for n in values.pop("nodes"))
        faults = tuple(_fault(f) for f in values.pop("faults"))
        return cls(nodes=nodes, faults=faults, **values)


def _short(value: Any) -> dict[str, Any]:
    defaults = {f.name: f.default for f in fields(value)}
    return {name: v for name, v in asdict(value).items() if v != defaults[name]}


def _fault(values: dict[str, Any]) -> Fault:
    given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k != "kind"}
    return FAULTS[values["kind"]](**given)
