"""The words between a session and whoever drives it.

A session is a generator. What it *yields* is an order: a call on the backend, a sleep, a task for the side. What
it is *told* lies in its inbox: what users want, what the watchers saw, how side tasks ended. A thread drives it in
production (:mod:`rdzv_core.runtime.runner`), a virtual clock in the simulator; the session cannot tell which.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rdzv_core.backend import Roster, Token
from rdzv_core.machine.follow import Seat
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Bootstrap

__all__ = [
    "Abandon",
    "Call",
    "Close",
    "Connect",
    "Connected",
    "Finish",
    "Host",
    "Hosted",
    "Join",
    "Joined",
    "Leave",
    "Locate",
    "Look",
    "Message",
    "Nudge",
    "Order",
    "Place",
    "RosterSeen",
    "Sleep",
    "StateSeen",
    "WatchRoster",
]


@dataclass(frozen=True, slots=True)
class Call:
    """Call a member of the backend; the answer, or its error, comes back from the yield."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sleep:
    """Do nothing until there is a message, or until this monotonic time; None: only a message ends it."""

    until: float | None


@dataclass(frozen=True, slots=True)
class WatchRoster:
    """Watch the roster from the given one on and post each change, complete; with ``on=False`` stop."""

    on: bool
    roster: Roster | None = None


@dataclass(frozen=True, slots=True)
class Locate:
    """Find the address by which other nodes reach this one; the answer, or the error, comes back from the yield."""


@dataclass(frozen=True, slots=True)
class Host:
    """Open the store of this round as its rank 0, aside; :class:`Hosted` tells how it went."""

    seat: Seat


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the store of this round, aside; :class:`Connected` tells how it went."""

    seat: Seat
    address: Bootstrap


@dataclass(frozen=True, slots=True)
class Place:
    """Ask the placement hook for an order of these members; answered with :class:`rdzv_core.api.Placed`."""

    members: tuple[Record, ...]
    previous: Mapping[str, int]


Order: TypeAlias = Call | Sleep | WatchRoster | Locate | Host | Connect | Place


@dataclass(frozen=True, slots=True)
class Joined:
    """What a completed join hands to the caller."""

    seat: Seat
    address: Bootstrap
    store: Any


@dataclass(frozen=True, slots=True)
class Join:
    """A user wants the next round; ``timeout`` is in seconds."""

    timeout: float
    promise: Future[Joined]


@dataclass(frozen=True, slots=True)
class Abandon:
    """The user who waited for a round was interrupted, and will not take the seat that comes of it."""


@dataclass(frozen=True, slots=True)
class Leave:
    """A user, or the end of the process, wants this node out; tried for ``timeout`` seconds."""

    reason: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Close:
    """A user wants the run closed. With ``only_own`` only if the register still names this node's round."""

    outcome: str
    reason: str
    only_own: bool
    timeout: float
    promise: Future[bool]


@dataclass(frozen=True, slots=True)
class Finish:
    """This node's workers have succeeded."""


@dataclass(frozen=True, slots=True)
class Look:
    """A user wants the register read now; the promise answers whether the run is closed."""

    timeout: float
    promise: Future[bool]


@dataclass(frozen=True, slots=True)
class StateSeen:
    """A watcher saw the register."""

    data: bytes
    token: Token


@dataclass(frozen=True, slots=True)
class Nudge:
    """A watcher was woken without a new register: a leader may have gone, or the register is lost."""


@dataclass(frozen=True, slots=True)
class RosterSeen:
    """A watcher saw the roster, complete; ``at`` is when the answer came, on the monotonic clock."""

    roster: Roster
    at: float


@dataclass(frozen=True, slots=True)
class Hosted:
    """The store of ``round_id`` is open at ``address``, or could not be opened."""

    round_id: str
    address: Bootstrap | None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """The store of ``round_id`` is connected, or could not be."""

    round_id: str
    store: Any
    error: Exception | None = None
    address: Bootstrap | None = None
    """Where workers meet, if not in that store."""


Message: TypeAlias = (
    Join | Abandon | Leave | Close | Finish | Look | StateSeen | Nudge | RosterSeen | Hosted | Connected
)
