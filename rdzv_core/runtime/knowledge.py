"""What one node knows of a run, and how it reads and writes the register.

The lowest of the four layers of a session. Here is all of its state, so that each piece has one home; what the node
does with it is told in the layers above: :mod:`presence <rdzv_core.runtime.presence>` (it lives, it leads),
:mod:`following <rdzv_core.runtime.following>` (what the register asks of it) and
:mod:`session <rdzv_core.runtime.session>` (what users ask of it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rdzv_core.backend import Token
from rdzv_core.errors import (
    RendezvousError,
)
from rdzv_core.events import (
    EventSink,
    StoreBack,
)
from rdzv_core.machine.follow import (
    PageLookup,
    Seat,
)
from rdzv_core.machine.register import Bootstrap, Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.runtime.clock import Clock
from rdzv_core.runtime.journal import Journal
from rdzv_core.runtime.leading import Leading, Members, Steps, word
from rdzv_core.runtime.orders import (
    Call,
    Close,
    Join,
    Leave,
    Look,
    Message,
    StateSeen,
)
from rdzv_core.wire import decode_register, encode_register

__all__ = ["GRACE", "Identity", "Joining", "Knowledge", "SessionSettings", "reject", "resolve"]

GRACE = 0.2
"""Seconds that a pushed register may lag behind the token that a pulse reported before it is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is; fresh per handler."""

    node_id: str
    addr: str
    """Empty as long as it has not been found out."""
    pid: int
    local_id: int
    rank_hint: int | None = None
    domain: str = ""
    attrs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """What a session is told to do; all times in seconds."""

    run_id: str
    backend: str
    rules: Rules
    policy: Policy
    bootstrap_timeout: float = 60.0
    scale_up_delay: float = 15.0
    store_outage_timeout: float = 300.0
    closed_ttl: float = 60.0

    @property
    def keep(self) -> float:
        """How long register and pages outlive the last pulse of a leader: longer than any outage that we survive."""
        return self.store_outage_timeout + 2 * self.rules.ttl


@dataclass(slots=True)
class Joining:
    """A join under way."""

    join: Join
    since: float
    deadline: float
    spare_since: float | None = None

    def due(self, now: float) -> float:
        """The deadline, not counting the time as a spare."""
        return self.deadline if self.spare_since is None else self.deadline + (now - self.spare_since)


class Knowledge:
    """The state of a session, and the calls that read and write the register.

    Attributes:
        inbox: Messages, oldest first. Appending is atomic; the driver is to be woken after it.
        waiting: What ``num_nodes_waiting()`` answers now.
        released: Why a node whose workers have finished need not wait for others any longer; None if it must.
        closed: The run is closed, as far as this node knows.
        left_behind: Why this node, finished, is out of a run in which others have re-formed; it must not close it.
        failure: The error that the next call of a user is to raise: the store was away for too long, or this session
            has ended by a fault of its own.
        took_leave: This node has withdrawn, and the store knows.
    """

    def __init__(
        self, identity: Identity, settings: SessionSettings, *, clock: Clock, chance: Random, emit: EventSink
    ) -> None:
        self.inbox: deque[Message] = deque()
        self.waiting = 0
        self.released: str | None = None
        self.left_behind: str | None = None
        self.closed = False
        self.failure: RendezvousError | None = None
        self.took_leave = False
        self.journal = Journal(clock)
        self.seat: Seat | None = None
        self._identity = identity
        self._settings = settings
        self._rules = settings.rules
        self._clock = clock
        self._chance = chance
        self.emit = emit
        self._about = {"run_id": settings.run_id, "node_id": identity.node_id, "backend": settings.backend}

        self._seq = 0
        self._left = 0
        self._last_round_id = ""
        self._claiming = False
        self._steady = False
        self._done = False
        self._announced = False
        self._must_announce = False
        self._parting = False
        self._joining: Joining | None = None
        self._pending: Seat | None = None
        self._hosting = ""
        self._hosted: Bootstrap | None = None
        self._connecting = ""
        self._address: Bootstrap | None = None
        self._leave: Leave | None = None
        self._leave_by = 0.0
        self._closes: deque[tuple[Close, float]] = deque()
        self._looks: deque[tuple[Look, float]] = deque()
        self._stopped = False

        self._stored: Register | None = None
        self._known: Register | None = None
        self._token: Token | None = None
        self._token_read = False
        self._read_at: float | None = None
        self._page = PageLookup()
        self._page_of = ""
        self._page_since = 0.0
        self._page_retry_at = 0.0

        self._pulse_at = 0.0
        self._pulses: deque[float] = deque()
        self._abstain_until = 0.0
        self._leading: Leading | None = None
        self._held: Members | None = None
        self._lead_due = False
        self._lead_pause_until = 0.0

        self._outage_since: float | None = None
        self._remind_at = 0.0
        self._attempts = 0
        self._retry_at = 0.0
        self._last_cause = ""
        self._faulty_since: float | None = None

    @property
    def node_id(self) -> str:
        """The id of this node."""
        return self._identity.node_id

    @property
    def addr(self) -> str:
        """The address by which other nodes reach this one; empty until it was found out."""
        return self._identity.addr

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Say more of this node in its record, from its next announcement on."""
        self._identity = replace(self._identity, attrs={**self._identity.attrs, **attributes})

    def _call(self, call: Call) -> Steps:
        """Make a call; note that the store answers."""
        answer = yield call
        if self._outage_since is not None:
            outage = self._clock.monotonic() - self._outage_since
            self._outage_since = self.failure = None
            self._read_soon(0.0)
            self.journal.note(f"the store answers again after {outage:.1f} s")
            self.emit(StoreBack(outage=outage, **self._about))
        self._attempts = 0
        return answer

    def _word(self) -> str:
        return word(self._chance)

    def _told(self, error: RendezvousError) -> RendezvousError:
        error.run_id, error.node_id = self._settings.run_id, self._identity.node_id
        error.backend, error.story = self._settings.backend, self.journal.story()
        return error

    def _read_soon(self, delay: float) -> None:
        at = self._clock.monotonic() + delay
        self._read_at = at if self._read_at is None else min(self._read_at, at)

    def _read(self) -> Steps:
        found = yield from self._call(Call("get_state"))
        self._read_at = None
        if found is None:
            self._found_nothing()
        else:
            self._adopt(*found)

    def _found_nothing(self) -> None:
        """The store holds no register. If it has lost one, it may have lost records too."""
        self._stored, self._token, self._token_read, self._read_at = None, None, True, None
        self._lead_due = True
        if self._known is not None:
            self._doubt_silence()

    def _doubt_silence(self) -> None:
        """The store has lost data: for a TTL, the silence of others is no proof that they are dead."""
        self._pulses.clear()

    def _adopt(self, data: bytes, token: Token) -> None:
        if self._token_read and token == self._token:
            return  # nothing new; a read that is due for a newer one stays due
        self._read_at = None
        register, known = decode_register(data), self._known
        self._stored, self._token, self._token_read = register, token, True
        self._lead_due = True
        if (
            known is not None
            and register.life == known.life
            and register.revision <= known.revision
            and register.write_id != known.write_id
        ):
            self._doubt_silence()  # it fell back, or somebody had to write it again
        if register.round_id != self._page_of:
            self._page, self._page_of = (
                PageLookup(bootstrap_timeout=self._settings.bootstrap_timeout),
                register.round_id,
            )
            self._page_since = self._clock.monotonic()
            # If the store falls back and the round comes back, its store is still open, but must be reached anew.
            self._pending = self._address = None
            self._connecting = ""

    def _saw_state(self, seen: StateSeen) -> None:
        register, stored = decode_register(seen.data), self._stored
        if stored is not None and register.life == stored.life and register.revision < stored.revision:
            self._read_soon(0.0)  # a wake-up that came late, or a store that fell back: only a read can tell
        else:
            self._adopt(seen.data, seen.token)

    def _write(self, register: Register) -> Steps:
        """Write the register if it is as last read; returns whether that succeeded."""
        written = yield from self._call(Call("set_state", (encode_register(register), self._token)))
        if written is None:
            self._found_nothing()
            return False
        data, token, did = written
        self._adopt(data, token)
        return did

    def _fit(self, now: float) -> bool:
        """In unbroken contact for a whole TTL: fit to take silence for death (rule 3)."""
        pulses, longest = self._pulses, 1.5 * self._rules.interval
        if not pulses or pulses[0] > now - self._rules.ttl or now - pulses[-1] > longest:
            return False
        return all(b - a <= longest for a, b in zip(pulses, list(pulses)[1:], strict=False))


def resolve(promise: Future[Any], value: Any) -> None:
    """Keep a promise, unless it was kept or broken before."""
    if not promise.done():
        promise.set_result(value)


def reject(promise: Future[Any], error: Exception) -> None:
    """Break a promise with an error, unless it was kept or broken before."""
    if not promise.done():
        promise.set_exception(error)
