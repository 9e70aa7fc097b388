"""What a rendezvous tells the world: frozen values, each with one sentence for people.

The runtime hands every event to one sink. Logging, hooks, the journal, metrics and torch's event recorder are
sinks; :func:`fan_out` makes one sink of several, and none of them can disturb the others or the rendezvous.
Events carry no time: a sink that wants one reads its own clock.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from rdzv_core.machine.attendance import some

__all__ = [
    "EVENTS",
    "Event",
    "EventSink",
    "HintShared",
    "JoinVetoed",
    "LeaderChanged",
    "MembersLost",
    "NodeJoining",
    "NodeLeft",
    "NodeSpare",
    "NodeSuperseded",
    "NodesWaiting",
    "PlacementFailed",
    "RegisterRepublished",
    "RoundCompleted",
    "RoundDecided",
    "RoundDisturbed",
    "RoundGivenUp",
    "RunClosed",
    "StoreBack",
    "StoreLost",
    "fan_out",
    "log_events",
]

log = logging.getLogger(__name__)

_MANY_NODES = 8  # more names than this are no help in a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something happened to a run, as one node saw it."""

    level: ClassVar[int] = logging.INFO
    """How loudly to say it: a level of :mod:`logging`."""

    run_id: str
    node_id: str
    """The node that tells it."""
    backend: str

    @property
    def name(self) -> str:
        """The kind of event in small letters, for machines: ``round_completed``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The event as plain values that JSON can hold."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        plain = {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}
        return {"event": self.name, "level": logging.getLevelName(self.level), **plain, "sentence": self.sentence}


EventSink: TypeAlias = Callable[[Event], None]
"""Takes an event; returns soon, and raises nothing that anybody would act on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoining(Event):
    """This node came to the barrier."""

    addr: str
    """The address that it tells the others."""
    left: int
    """The last round that it has left; 0 if none."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        since = f"after round {self.left}" if self.left else "for the first time"
        return f"Node {self.node_id} ({self.addr}) joins run '{self.run_id}' {since}."


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged(Event):
    """This node began or ceased to lead."""

    level: ClassVar[int] = logging.DEBUG

    leads: bool

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        verb = "leads" if self.leads else "no longer leads"
        return f"Node {self.node_id} {verb} run '{self.run_id}'."


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDecided(Event):
    """This node, leading, wrote who is in a new round."""

    round: int
    round_id: str
    world: int
    """The number of its members."""
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Round {self.round} of run '{self.run_id}' is decided with {_nodes(self.world)}{_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted(Event):
    """This node is a member of a completed round and goes to work."""

    round: int
    round_id: str
    rank: int
    world: int
    waited: float
    """Seconds that this node spent at the barrier."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return (
            f"Round {self.round} of run '{self.run_id}' is complete: node {self.node_id} has rank {self.rank} "
            f"of {self.world} after {self.waited:.2f} s."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundGivenUp(Event):
    """This node was placed in a round that did not come about."""

    level: ClassVar[int] = logging.WARNING

    round: int
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Node {self.node_id} gives up round {self.round} of run '{self.run_id}'{_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersLost(Event):
    """Members of the present round stopped giving signs of life."""

    level: ClassVar[int] = logging.WARNING

    round: int
    lost: int
    """How many."""
    node_ids: tuple[str, ...] = ()
    """Which, as far as they are known."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Round {self.round} of run '{self.run_id}' lost {_nodes(self.lost)}{_names(self.node_ids)}."


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesWaiting(Event):
    """Nodes wait for the present round to make room for them."""

    round: int
    waiting: int

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        verb = "waits" if self.waiting == 1 else "wait"
        return f"{_nodes(self.waiting)} {verb} to join run '{self.run_id}' after round {self.round}."


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundDisturbed(Event):
    """This node, at work, learnt that its round is to make way for the next."""

    round: int
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Node {self.node_id} is to leave round {self.round} of run '{self.run_id}'{_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSuperseded(Event):
    """The others went on without this node, while it was in a round."""

    level: ClassVar[int] = logging.WARNING

    round: int
    """The round that it was in."""
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Run '{self.run_id}' went on without node {self.node_id} of round {self.round}{_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpare(Event):
    """A round is at work that needs no more nodes; this node stands by."""

    round: int

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Node {self.node_id} is a spare of run '{self.run_id}' while round {self.round} is at work."


@dataclass(frozen=True, slots=True, kw_only=True)
class RunClosed(Event):
    """The run is closed: no further round will complete."""

    by: str
    """The node that closed it."""
    outcome: str
    """How the job ended, in a word."""
    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Run '{self.run_id}' was closed by node {self.by} ({self.outcome}){_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft(Event):
    """This node withdrew from the run; the others may go on."""

    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Node {self.node_id} leaves run '{self.run_id}'{_because(self.reason)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreLost(Event):
    """The backend's store does not answer; told again each minute for as long as that lasts."""

    level: ClassVar[int] = logging.WARNING

    error: str
    """What the last attempt met, without secrets."""
    at_work: bool
    """The node is in a round, whose workers go on."""
    patience: float
    """Seconds for which it goes on trying before it gives up; 0.0 if that cannot help."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        lost = f"Node {self.node_id} cannot reach the {self.backend} store of run '{self.run_id}'{_because(self.error)}"
        undisturbed = " Running workers are not disturbed." if self.at_work else ""
        goes_on = f" It goes on trying for {self.patience:.0f} s." if self.patience > 0 else ""
        return lost + undisturbed + goes_on


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBack(Event):
    """The backend's store answers again."""

    level: ClassVar[int] = logging.WARNING

    outage: float
    """Seconds since it last answered."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return (
            f"Node {self.node_id} reaches the {self.backend} store of run '{self.run_id}' again after "
            f"{self.outage:.1f} s."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRepublished(Event):
    """The store had lost the run's register, and this node wrote it back."""

    level: ClassVar[int] = logging.WARNING

    revision: int

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return (
            f"The {self.backend} store had lost the register of run '{self.run_id}'; node {self.node_id} wrote "
            f"revision {self.revision} back."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementFailed(Event):
    """The placement hook gave no usable order; the round is ordered by address instead."""

    level: ClassVar[int] = logging.WARNING

    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"The placement hook failed for run '{self.run_id}'; ranks follow addresses. {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HintShared(Event):
    """Several members of a round wish for the same rank, and only one can have it."""

    level: ClassVar[int] = logging.WARNING

    round: int
    rank_hint: int
    node_ids: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return (
            f"{_nodes(len(self.node_ids))}{_names(self.node_ids)} wish for rank {self.rank_hint} in round {self.round} "
            f"of run '{self.run_id}' and were ordered by address: give each a rank_hint of its own."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinVetoed(Event):
    """A hook forbade this node to join."""

    level: ClassVar[int] = logging.ERROR

    reason: str
    """A sentence."""

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        return f"Node {self.node_id} may not join run '{self.run_id}'. {self.reason}"


EVENTS: tuple[type[Event], ...] = (
    NodeJoining,
    LeaderChanged,
    RoundDecided,
    RoundCompleted,
    RoundGivenUp,
    MembersLost,
    NodesWaiting,
    RoundDisturbed,
    NodeSuperseded,
    NodeSpare,
    RunClosed,
    NodeLeft,
    StoreLost,
    StoreBack,
    RegisterRepublished,
    PlacementFailed,
    HintShared,
    JoinVetoed,
)
"""Every kind of event."""


def _nodes(number: int) -> str:
    return f"{number} node" if number == 1 else f"{number} nodes"


def _names(node_ids: tuple[str, ...]) -> str:
    if not node_ids:
        return ""
    return f" ({some(node_ids, _MANY_NODES)})"


def _because(reason: str) -> str:
    if not reason:
        return "."
    return f": {reason}" if reason[-1] in ".?!" else f": {reason}."


def fan_out(*sinks: EventSink) -> EventSink:
    """One sink that feeds all ``sinks``; one that raises is named in the log once, and goes on being fed."""
    guarded = tuple(_guard(sink) for sink in sinks)

    def feed(event: Event) -> None:
        for sink in guarded:
            sink(event)

    return feed


def _guard(sink: EventSink) -> EventSink:
    told = threading.Event()

    def guarded(event: Event) -> None:
        try:
            sink(event)
        except Exception:
            if not told.is_set():
                told.set()
                log.exception("The event sink %r failed on %s; later failures of it are not told.", sink, event.name)

    return guarded


def log_events(logger: logging.Logger) -> EventSink:
    """A sink that logs each event's sentence at its level, and its values as ``record.rdzv_event``."""

    def write(event: Event) -> None:
        if logger.isEnabledFor(event.level):
            logger.log(event.level, "%s", event.sentence, extra={"rdzv_event": event.to_dict()})

    return write
