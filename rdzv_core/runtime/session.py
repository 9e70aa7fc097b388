"""One node's part in a run: the loop that waits, pulses, follows and, when it leads, decides.

The loop is a reconciler. Users and watchers only change what is *wanted* or *known*; each turn of the loop then
does what is due, in one fixed order: say who we are, say that we live, read what may have changed, follow it, do
what users asked for, lead. A step that meets a connection error is simply due again after a moment, so there is no
half-done state to come back to. Nothing here blocks, sleeps, or knows a thread: see :mod:`rdzv_core.runtime.orders`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from rdzv_core.backend import Pulse, Token
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv_core.events import (
    EventSink,
    LeaderChanged,
    NodeJoining,
    NodeLeft,
    NodeSpare,
    NodeSuperseded,
    RegisterRepublished,
    RoundCompleted,
    RoundGivenUp,
    RunClosed,
    StoreBack,
    StoreLost,
)
from rdzv_core.machine.follow import (
    PAGE_PATIENCE,
    Answer,
    Completed,
    Ended,
    GiveUp,
    Me,
    Mismatch,
    PageLookup,
    PageState,
    ReadPage,
    Republish,
    Seat,
    Seated,
    Stay,
    Superseded,
    Wait,
    follow,
)
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import Bootstrap, Closed, Register, page_count, page_index
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.runtime.clock import Clock
from rdzv_core.runtime.journal import Journal
from rdzv_core.runtime.leading import Leading, Members, Steps, Written, publish, rewritten, word
from rdzv_core.runtime.orders import (
    Call,
    Close,
    Connect,
    Connected,
    Finish,
    Host,
    Hosted,
    Join,
    Joined,
    Leave,
    Look,
    Message,
    Nudge,
    Order,
    RosterSeen,
    Sleep,
    StateSeen,
)
from rdzv_core.wire import decode_page, decode_register, encode_record, encode_register

__all__ = ["Identity", "Session", "SessionSettings"]

GRACE = 0.2
"""Seconds that a pushed register may lag behind the token that a pulse reported before it is read."""

PAGE_RETRY = 0.2
"""Seconds between two tries to read a page that the register names and the store does not show yet."""

SLOWEST_RETRY = 1.0
"""Seconds; a failed call is tried again within this time (rule 3)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this node is; fresh per handler."""

    node_id: str
    addr: str
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
class _Joining:
    """A join under way."""

    join: Join
    since: float
    deadline: float
    spare_since: float | None = None

    def due(self, now: float) -> float:
        """The deadline, not counting the time as a spare."""
        return self.deadline if self.spare_since is None else self.deadline + (now - self.spare_since)


class Session:
    """One node in one run. Put messages into :attr:`inbox`; drive :meth:`run`.

    Attributes:
        inbox: Messages, oldest first. Appending is atomic; the driver is to be woken after it.
        waiting: What ``num_nodes_waiting()`` answers now.
        released: Why a node whose workers have finished need not wait for others any longer; None if it must.
        left_behind: Why this node, finished, is out of a round that others re-form; it must not close their run.
        failure: The error that the next call of a user is to raise, if the store was away for too long.
    """

    def __init__(
        self, identity: Identity, settings: SessionSettings, *, clock: Clock, chance: Random, emit: EventSink
    ) -> None:
        self.inbox: deque[Message] = deque()
        self.waiting = 0
        self.released: str | None = None
        self.left_behind: str | None = None
        self.failure: RendezvousError | None = None
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
        self._joining: _Joining | None = None
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
        self._attempts = 0
        self._retry_at = 0.0
        self._last_cause = ""

    @property
    def node_id(self) -> str:
        """The id of this node."""
        return self._identity.node_id

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Say more of this node in its record, from its next announcement on."""
        self._identity = replace(self._identity, attrs={**self._identity.attrs, **attributes})

    # --- the loop ----------------------------------------------------------------------------------------

    def run(self) -> Generator[Order, Any, None]:
        """Yield orders until the node has left. The driver sends back what each order answers, or its error."""
        while not self._stopped:
            try:
                self._take_messages()
                if self._clock.monotonic() >= self._retry_at:
                    yield from self._turn()
            except RendezvousConnectionError as error:
                self._lost_store(error)
            except RendezvousStateError as error:
                self._refuse(error)
            self._check_deadlines()
            if not self._stopped and not self.inbox:
                yield Sleep(self._wake_at())
        self._reject_all()

    def _turn(self) -> Steps:
        if self._leave is not None:
            yield from self._say_goodbye(self._leave)
            return
        if self._parting:
            yield from self._part()
        if self._must_announce:
            yield from self._announce()
        if self._announced and self._clock.monotonic() >= self._pulse_at:
            yield from self._pulse()
        if self._read_at is not None and self._clock.monotonic() >= self._read_at:
            yield from self._read()
        yield from self._react()
        while self._looks:
            yield from self._look()
        while self._closes:
            yield from self._close(self._closes[0][0])
            self._closes.popleft()
        joining, now = self._joining, self._clock.monotonic()
        # With a seat it is bootstrap_timeout that counts.
        if joining is not None and self._pending is None and now >= joining.due(now):
            yield from self._run_out(joining)
        if self._leading is not None and self._lead_is_due():
            yield from self._lead(self._leading)

    def _wake_at(self) -> float | None:
        now = self._clock.monotonic()
        if now < self._retry_at:
            return self._retry_at
        if self._must_announce or self._parting:
            return now  # found out in this turn; the next one begins with it
        times: list[float | None] = [self._read_at]
        if self._announced:
            times.append(self._pulse_at)
        if self._joining is not None:
            if self._joining.spare_since is None and self._pending is None:
                times.append(self._joining.deadline)
            times.append(self._page_wake_at())
            times.append(self._steady_at())
        if self._leading is not None and self._token_read:
            times.append(self._lead_pause_until if self._lead_due else self._leading.wake_at)
        if self._leave is not None:
            times.append(self._leave_by)
        return min((t for t in times if t is not None), default=None)

    def _page_wake_at(self) -> float | None:
        if self._stored is None or self._stored.round <= self._left:
            return None
        if self._page.state is PageState.MISSING:
            return self._page_retry_at
        if self._pending is not None and not self._connecting:
            return self._page_since + self._settings.bootstrap_timeout
        return None

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

    # --- messages ----------------------------------------------------------------------------------------

    def _take_messages(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            now = self._clock.monotonic()
            match message:
                case Join():
                    self._start_join(message, now)
                case Leave():
                    self._leave = self._leave or message
                    self._leave_by = now + message.timeout
                    self._retry_at = min(self._retry_at, now)
                case Close():
                    self._closes.append((message, now + message.timeout))
                case Look():
                    self._looks.append((message, now + message.timeout))
                case Finish():
                    self._done = self._must_announce = True
                case StateSeen():
                    self._saw_state(message)
                case Nudge():
                    # A leader may have gone; or the register was lost. A pulse finds out either.
                    self._pulse_at = min(self._pulse_at, now + self._chance.random() * GRACE)
                case RosterSeen():
                    if self._leading is not None:
                        self._leading.saw_roster(message.roster, message.at)
                        self._lead_due = True
                case Hosted():
                    self._took_host(message)
                case Connected():
                    self._took_store(message)

    def _saw_state(self, seen: StateSeen) -> None:
        register, stored = decode_register(seen.data), self._stored
        if stored is not None and register.life == stored.life and register.revision < stored.revision:
            self._read_soon(0.0)  # a wake-up that came late, or a store that fell back: only a read can tell
        else:
            self._adopt(seen.data, seen.token)

    def _start_join(self, join: Join, now: float) -> None:
        if self.seat is not None:
            self._left = max(self._left, self.seat.round)
            self._last_round_id = self.seat.round_id
        self.seat = None
        self._pending = None
        self._hosting = self._connecting = ""
        self._claiming = self._steady = self._done = False
        self.released = self.left_behind = None
        self.waiting = 0
        self._parting = False
        self._joining = _Joining(join=join, since=now, deadline=now + join.timeout)
        self._must_announce = True
        self.emit(NodeJoining(addr=self._identity.addr, left=self._left, **self._about))

    # --- saying who we are, and that we live -------------------------------------------------------------

    def _record(self) -> Record:
        identity, seat = self._identity, self.seat or self._pending
        claim = Claim(round=seat.round, round_id=seat.round_id) if seat is not None and self._claiming else None
        return Record(
            node_id=identity.node_id,
            seq=self._seq,
            addr=identity.addr,
            pid=identity.pid,
            local_id=identity.local_id,
            left=self._left,
            claim=claim,
            steady=self._steady,
            done=self._done,
            rank_hint=identity.rank_hint,
            domain=identity.domain,
            attrs=identity.attrs,
            min_nodes=self._rules.min_nodes,
            max_nodes=self._rules.max_nodes,
        )

    def _announce(self) -> Steps:
        self._seq += 1
        data = encode_record(self._record())
        args = (self._identity.node_id, self._seq, data, self._rules.ttl)
        sent = self._clock.monotonic()
        answer = yield from self._call(Call("announce", args, {"lead": self._may_lead(sent)}))
        self._must_announce = not answer.known
        self._announced = self._announced or answer.known
        if not answer.known:
            self._retry_at = sent + GRACE
        yield from self._took_pulse(answer, sent)

    def _pulse(self) -> Steps:
        sent = self._clock.monotonic()
        group = self._stored.round_id if self._stored is not None else ""
        if self._leading is not None and self._leading.roster_age > 2 * self._rules.interval:
            self._abstain("its roster is old")
        args = (self._identity.node_id, self._seq, self._rules.ttl)
        kwargs = {"lead": self._may_lead(sent), "keep": self._settings.keep, "group": group}
        answer = yield from self._call(Call("pulse", args, kwargs))
        if not answer.known:
            self.journal.note("the store does not know this node any more; announcing again")
            self._pulses.clear()
            self._must_announce = True
            self._claiming = (self.seat or self._pending) is not None
            self._read_soon(0.0)
        yield from self._took_pulse(answer, sent)
        if self._leading is not None and self._leading.roster_age > self._rules.interval:
            yield from self._leading.refresh()

    def _took_pulse(self, answer: Pulse, sent: float) -> Steps:
        if answer.known:
            self._pulses.append(sent)
            while len(self._pulses) > 2 and self._pulses[1] <= sent - self._rules.ttl:
                self._pulses.popleft()
        self._pulse_at = sent + self._rules.interval
        if not answer.leads and answer.lease_left > 0:
            self._pulse_at = min(self._pulse_at, self._clock.monotonic() + answer.lease_left + 0.01)
        if answer.token != self._token:
            self._read_soon(GRACE)
        elif answer.token is None:
            self._token_read = True
        if answer.leads and self._leading is None:
            self._begin_to_lead()
        elif not answer.leads and self._leading is not None:
            yield from self._cease_to_lead("the lease has passed on")
        self._lead_due = True

    def _fit(self, now: float) -> bool:
        """In unbroken contact for a whole TTL: fit to take silence for death (rule 3)."""
        pulses, longest = self._pulses, 1.5 * self._rules.interval
        if not pulses or pulses[0] > now - self._rules.ttl or now - pulses[-1] > longest:
            return False
        return all(b - a <= longest for a, b in zip(pulses, list(pulses)[1:], strict=False))

    # --- leading -----------------------------------------------------------------------------------------

    def _may_lead(self, now: float) -> bool:
        return now >= self._abstain_until

    def _abstain(self, why: str) -> None:
        self._abstain_until = self._clock.monotonic() + self._rules.ttl
        self.journal.note(f"does not lead for {self._rules.ttl:g} s: {why}")

    def _begin_to_lead(self) -> None:
        self.journal.note("leads the run now")
        self.emit(LeaderChanged(leads=True, **self._about))
        self._leading = Leading(
            node_id=self._identity.node_id,
            rules=self._rules,
            policy=self._settings.policy,
            keep=self._settings.keep,
            clock=self._clock,
            chance=self._chance,
            journal=self.journal,
            emit=self.emit,
            about=self._about,
            call=self._call,
            held=self._held,
        )

    def _cease_to_lead(self, why: str) -> Steps:
        assert self._leading is not None
        yield from self._leading.stop()
        self._held = self._leading.held
        self._leading = None
        self.journal.note(f"leads no more: {why}")
        self.emit(LeaderChanged(leads=False, **self._about))

    def _lead_is_due(self) -> bool:
        assert self._leading is not None
        wake_at = self._leading.wake_at
        return self._token_read and (self._lead_due or (wake_at is not None and self._clock.monotonic() >= wake_at))

    def _lead(self, leading: Leading, *, leaving: bool = False) -> Steps:
        self._lead_due = False
        began = self._clock.monotonic()
        fit = self._fit(began)
        try:
            written: Written | None = yield from leading.lead(self._stored, self._token, fit, leaving=leaving)
        except RendezvousConnectionError as error:
            self._abstain(f"a decision could not be written: {error.message}")
            raise
        ended = self._clock.monotonic()
        self._lead_pause_until = ended + (ended - began)  # in a storm of joins, each look then finds more
        if leading.outvoted and not leaving:
            self._abstain("most nodes play by other rules")
            self._pulse_at = ended
        if written is None:
            return
        if written.data is None:
            self._found_nothing()
            return
        self._adopt(written.data, written.token)
        if written.did and self._identity.node_id in written.seats:
            rank = written.seats.index(self._identity.node_id)
            self._page = replace(self._page, state=PageState.READ, rank=rank)

    # --- reading and following the register --------------------------------------------------------------

    def _read_soon(self, delay: float) -> None:
        at = self._clock.monotonic() + delay
        self._read_at = at if self._read_at is None else min(self._read_at, at)

    def _read(self) -> Steps:
        found = yield from self._call(Call("get_state"))
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
        self._read_at = None
        if self._token_read and token == self._token:
            return
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

    def _react(self) -> Steps:
        """Follow the register until it asks for nothing more."""
        for _ in range(16):
            if self._joining is not None:
                self._page = replace(self._page, waited=self._clock.monotonic() - self._page_since)
            me = Me(
                node_id=self._identity.node_id,
                rules=self._rules,
                left=self._left,
                last_round_id=self._last_round_id,
                seat=self.seat,
                joining=self._joining is not None,
            )
            answer = follow(me, self._stored, self._known, self._page)
            if not isinstance(answer, Republish) and self._stored is not None:
                self._known = self._stored
            if not (yield from self._act(answer)):
                return

    def _act(self, answer: Answer) -> Steps:
        """Do what the register asks for; returns True if it is to be followed again at once."""
        if not isinstance(answer, Wait) or not answer.spare:
            self._spare_no_more()
        match answer:
            case Wait():
                self._passed_over(answer)
            case ReadPage():
                return (yield from self._read_page(answer))
            case Seated():
                yield from self._take_seat(answer)
            case Completed():
                yield from self._connect(answer)
            case GiveUp():
                return (yield from self._give_up(answer))
            case Stay() | Superseded():
                self._in_round(answer)
                yield from self._bring_pages()
            case Ended():
                self._ended(answer)
            case Republish():
                return (yield from self._republish(answer))
            case Mismatch():
                raise RendezvousStateError(
                    f"Run '{self._settings.run_id}' is played by other rules ({answer.theirs}) than this node was "
                    f"given ({answer.ours}). Start every node with the same --nnodes and keep-alive options, or use "
                    f"another run id."
                )
        return False

    def _passed_over(self, answer: Wait) -> None:
        now = self._clock.monotonic()
        if answer.spare and self._joining is not None and self._joining.spare_since is None:
            self._joining.spare_since = now
            assert self._stored is not None
            self.emit(NodeSpare(round=self._stored.round, **self._about))
        self.journal.note(answer.why)
        steady_at = self._steady_at()
        if steady_at is not None and now >= steady_at:
            self._steady = self._must_announce = True

    def _spare_no_more(self) -> None:
        joining = self._joining
        if joining is not None and joining.spare_since is not None:
            joining.deadline += self._clock.monotonic() - joining.spare_since
            joining.spare_since = None

    def _steady_at(self) -> float | None:
        """When this newcomer says that it has come to stay; None if that would change nothing."""
        register, joining = self._stored, self._joining
        if register is None or joining is None or self._steady or self._must_announce:
            return None
        if register.round_id in ("", self._last_round_id) or register.world >= self._rules.max_nodes:
            return None  # no round to disturb, or a member of it, who counts at once, or no room
        if register.round > self._left and (self._page.state is not PageState.READ or self._page.rank is not None):
            return None  # it may be a member yet
        return joining.since + self._settings.scale_up_delay

    def _read_page(self, answer: ReadPage) -> Steps:
        now = self._clock.monotonic()
        register = self._stored
        assert register is not None
        if self._page.state is PageState.MISSING and now < self._page_retry_at:
            return False
        self.journal.note(answer.why)
        index = page_index(self._identity.node_id, page_count(register.world))
        data = yield from self._call(Call("page", (answer.round_id, index)))
        if data is None:
            missing = self._page.state is PageState.MISSING
            self._page = replace(self._page, state=PageState.MISSING)
            self._page_retry_at = (
                min(now + PAGE_RETRY, self._page_since + PAGE_PATIENCE) if missing else now + PAGE_RETRY
            )
            self._read_soon(0.0)
            return False
        page = decode_page(data)
        rank = page.ranks.get(self._identity.node_id) if page.round_id == answer.round_id else None
        self._page = replace(self._page, state=PageState.READ, rank=rank)
        if rank is not None and register.bootstrap is not None:
            # The store may have moved on while the page was read. Without a bootstrap a newer one comes by itself.
            yield from self._read()
        return True

    def _take_seat(self, answer: Seated) -> Steps:
        self._pending = answer.seat
        self.journal.note(answer.why)
        self._answer_rollcall()
        if answer.seat.rank == 0 and self._hosting != answer.seat.round_id:
            self._hosting = answer.seat.round_id
            self._hosted = None
            yield Host(answer.seat)
        elif answer.seat.rank == 0 and self._hosted is not None:
            yield from self._publish_bootstrap(self._hosted)

    def _publish_bootstrap(self, address: Bootstrap) -> Steps:
        assert self._stored is not None
        register = rewritten(self._stored, self._word(), bootstrap=address)
        yield from self._write(register)
        self.journal.note(f"as rank 0 published the store at {address.addr}:{address.port}")
        self._read_soon(GRACE)

    def _connect(self, answer: Completed) -> Steps:
        self._pending = answer.seat
        if self._connecting != answer.seat.round_id:
            self._connecting = answer.seat.round_id
            self.journal.note(answer.why)
            self._address = answer.bootstrap
            yield Connect(answer.seat, answer.bootstrap)

    def _took_host(self, message: Hosted) -> None:
        if message.round_id != self._hosting or self._joining is None:
            return
        if message.error is not None:
            self._fail_join(_as_rendezvous_error(message.error))
            return
        self._hosted = message.address

    def _took_store(self, message: Connected) -> None:
        joining, seat = self._joining, self._pending
        if joining is None or seat is None or not message.round_id == self._connecting == seat.round_id:
            return
        self._connecting = ""
        if message.error is not None:
            self._leave_round(seat.round, f"the store of round {seat.round} could not be reached: {message.error}")
            return
        now = self._clock.monotonic()
        assert self._address is not None
        self.seat, self._pending, self._joining = seat, None, None
        self.emit(
            RoundCompleted(
                round=seat.round,
                round_id=seat.round_id,
                rank=seat.rank,
                world=seat.world,
                waited=now - joining.since,
                **self._about,
            )
        )
        _resolve(joining.join.promise, Joined(seat, self._address, message.store))

    def _give_up(self, answer: GiveUp) -> Steps:
        self._leave_round(answer.round, answer.why)
        yield from self._announce()
        return True

    def _leave_round(self, number: int, why: str) -> None:
        self._left = max(self._left, number)
        if self._pending is not None:
            self._last_round_id = self._pending.round_id
        self._pending = self._address = None
        self._hosting = self._connecting = ""
        self._claiming = False
        self._must_announce = True
        self.journal.note(f"gives up round {number}: {why}")
        self.emit(RoundGivenUp(round=number, reason=why, **self._about))

    def _in_round(self, answer: Stay | Superseded) -> None:
        assert self.seat is not None
        if isinstance(answer, Stay):
            self.waiting = answer.waiting
            self._answer_rollcall()
        else:
            if self.waiting == 0 or not self._claiming:
                self.emit(NodeSuperseded(round=self.seat.round, reason=answer.why, **self._about))
            self.waiting = max(1, self.waiting)
            self._must_announce = self._must_announce or not self._claiming
            self._claiming = True
        self.journal.note(answer.why)
        if self._done and self.waiting:
            self._release(answer.why)

    def _bring_pages(self) -> Steps:
        """Publish the pages once more if the leader misses them and this node, which once led, holds them."""
        register, held = self._stored, self._held
        if register is None or held is None or not register.rollcall or held.round_id != register.round_id:
            return
        yield from self._call(publish(held.round_id, held.seats, self._settings.keep))
        self._held = None  # once: the roll stays called for as long as the round stands
        self.journal.note(f"published the members of round {register.round} once more: it has led, and holds them")

    def _answer_rollcall(self) -> None:
        if self._stored is not None and self._stored.rollcall and not self._claiming:
            self._claiming = self._must_announce = True

    def _release(self, why: str) -> None:
        """The workers here have finished and others re-form: this node is out of it, and must not end their run."""
        if self.left_behind is None:
            self.left_behind = why
            self.released = self.released or why
            self.journal.note(f"need not wait for the others any longer: {why}")

    def _ended(self, answer: Ended) -> None:
        if self.journal.note(answer.why):
            closed = answer.closed
            self.emit(RunClosed(by=closed.by, outcome=closed.outcome, reason=closed.reason, **self._about))
        self.waiting = 0
        if self._done:
            self.released = self.released or answer.why
        if self._joining is None:
            return
        run = self._settings.run_id
        if answer.spare:
            self._fail_join(
                RendezvousGracefulExitError(
                    f"This node was a spare of run '{run}', which has ended without it: {answer.why}."
                )
            )
        else:
            self._fail_join(
                RendezvousClosedError(
                    f"Run '{run}' is {answer.why}. A closed run takes no more nodes: use another run id, or wait; "
                    f"the id becomes free {self._settings.closed_ttl:g} s after the last node has left."
                )
            )

    def _republish(self, answer: Republish) -> Steps:
        known = self._known
        assert known is not None
        held = self._leading.held if self._leading is not None else self._held
        if held is not None and held.round_id == known.round_id:
            yield from self._call(publish(held.round_id, held.seats, self._settings.keep))
        self.journal.note(f"{answer.why}; writing it again")
        did = yield from self._write(replace(known, write_id=self._word()))
        if did:
            self.emit(RegisterRepublished(revision=known.revision, **self._about))
        return True

    def _write(self, register: Register) -> Steps:
        """Write the register if it is as last read; returns whether that succeeded."""
        written = yield from self._call(Call("set_state", (encode_register(register), self._token)))
        if written is None:
            self._found_nothing()
            return False
        data, token, did = written
        self._adopt(data, token)
        return did

    # --- what users ask for ------------------------------------------------------------------------------

    def _look(self) -> Steps:
        yield from self._read()
        look, _ = self._looks.popleft()
        _resolve(look.promise, self._stored is not None and self._stored.closed is not None)

    def _close(self, close: Close) -> Steps:
        """Close the run, by compare-and-set from what is stored at each attempt (rule 9)."""
        while True:
            if not self._token_read:
                yield from self._read()
            register = self._stored
            if close.only_own and not self._owns(register):
                self.journal.note("does not close the run: it is in another round, or another life, by now")
                _resolve(close.promise, False)
                return
            if register is not None and register.closed is not None:
                yield from self._react()  # before this node goes, it tells its own watchers too
                _resolve(close.promise, True)
                return
            yield from self._write(self._closed(register, close))

    def _owns(self, register: Register | None) -> bool:
        seat = self.seat
        return seat is not None and register is not None and register.round_id == seat.round_id

    def _closed(self, register: Register | None, close: Close) -> Register:
        closed = Closed(by=self._identity.node_id, outcome=close.outcome, reason=close.reason, at=self._clock.wall())
        if register is None:
            register = self._known or Register(life=self._word(), revision=0, write_id="", rules=self._rules)
        return rewritten(register, self._word(), closed=closed, reason=close.reason)

    def _say_goodbye(self, leave: Leave) -> Steps:
        """Withdraw, and stop. A leader decides once without itself before it goes (rule 9)."""
        if self._announced and self._leading is not None and self._token_read:
            leading, self._leading = self._leading, None
            try:
                yield from self._lead(leading, leaving=True)
            except RendezvousError as error:
                self.journal.note(f"left without a last decision: {error.message}")
            yield from leading.stop()
        if self._announced:
            yield from self._withdraw()
        self.emit(NodeLeft(reason=leave.reason, **self._about))
        self._stopped = True
        _resolve(leave.promise, None)

    def _withdraw(self) -> Steps:
        self._seq += 1
        closed = self._stored is not None and self._stored.closed is not None
        keep = self._settings.closed_ttl if closed else None
        yield from self._call(Call("withdraw", (self._identity.node_id, self._seq, self._rules.ttl), {"keep": keep}))
        self._announced = self._must_announce = self._parting = False
        self._pulses.clear()

    def _part(self) -> Steps:
        """Take back the record of a join that has failed."""
        if self._leading is not None:
            yield from self._cease_to_lead("its join has failed")
        if self._announced:
            yield from self._withdraw()
        self._parting = self._must_announce = False

    def _run_out(self, joining: _Joining) -> Steps:
        """The join has run out of time: look, withdraw, look once more, and only then give up (rule 9).

        The first look spares the others a member that seems to leave; only the second one can be relied on.
        """
        records = yield from self._who_is_there()
        if (yield from self._find_seat(joining)):
            return
        yield from self._part()
        if (yield from self._find_seat(joining)):
            self._must_announce = True
            return
        self._fail_join(RendezvousTimeoutError(self._timeout_text(joining, records)))

    def _find_seat(self, joining: _Joining) -> Steps:
        """Look whether a round lists this node by now; if so, give it the time to go into it."""
        yield from self._read()
        register = self._stored
        if register is None or register.round <= self._left or register.closed is not None or register.lost:
            return False
        index = page_index(self._identity.node_id, page_count(register.world))
        data = yield from self._call(Call("page", (register.round_id, index)))
        if data is None or self._identity.node_id not in decode_page(data).ranks:
            return False
        self.journal.note("was seated at the last moment; goes on")
        joining.deadline = self._clock.monotonic() + self._settings.bootstrap_timeout
        yield from self._react()
        return True

    def _who_is_there(self) -> Steps:
        if self._leading is not None:
            return self._leading.records
        roster = yield from self._call(Call("roster", (None, 0.0)))
        return tuple(entry.node_id for entry in roster.records) if roster is not None else ()

    def _timeout_text(self, joining: _Joining, present: tuple[Any, ...]) -> str:
        rules, settings, register = self._rules, self._settings, self._stored
        number = 1 + max(self._left, register.round if register is not None else 0)
        names = [p.who if isinstance(p, Record) else str(p) for p in present]
        listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        waited = self._clock.monotonic() - joining.since
        return (
            f"Round {number} of run '{settings.run_id}' did not complete in {waited:.0f} s: {len(names)} of at least "
            f"{rules.min_nodes} nodes are there ({listed or 'nobody'}). Nodes that are missing have not reached the "
            f"backend '{settings.backend}': check that every node uses this run id and endpoint, or raise "
            f"join_timeout."
        )

    # --- when things go wrong ----------------------------------------------------------------------------

    def _lost_store(self, error: RendezvousConnectionError) -> None:
        now = self._clock.monotonic()
        self._attempts += 1
        self._last_cause = error.message
        if self._outage_since is None:
            self._outage_since = now
            self.journal.note(f"the store does not answer: {error.message}")
            self.emit(StoreLost(error=error.message, **self._about))
        self._retry_at = now + self._chance.uniform(0.5, 1.0) * min(SLOWEST_RETRY, 0.05 * 2**self._attempts)
        self._read_soon(0.0)
        if error.permanent:
            self._fail_join(error)
            self._fail_requests(error)
        elif now - self._outage_since > self._settings.store_outage_timeout:
            self._give_up_on_store(now - self._outage_since)

    def _give_up_on_store(self, outage: float) -> None:
        error = RendezvousConnectionError(
            f"The store of run '{self._settings.run_id}' (backend '{self._settings.backend}') has not answered for "
            f"{outage:.0f} s, longer than store_outage_timeout; the last cause: {self._last_cause}"
        )
        self.failure = self._told(error)
        self._fail_join(error)
        self._fail_requests(error)

    def _refuse(self, error: RendezvousStateError) -> None:
        """What is stored is unreadable or contradicts us: whoever waits for an answer is told."""
        self.journal.note(error.message)
        self._fail_join(error)
        self._fail_requests(error)
        if self._leave is not None:
            self._stopped = True
        self._retry_at = self._clock.monotonic() + self._chance.uniform(0.5, 1.0) * SLOWEST_RETRY

    def _check_deadlines(self) -> None:
        now = self._clock.monotonic()
        if self._outage_since is not None:
            if self._joining is not None and now >= self._joining.due(now):
                self._fail_join(self._unreachable(now - self._joining.since))
            while self._closes and now >= self._closes[0][1]:
                _reject(self._closes.popleft()[0].promise, self._told(self._unreachable(now - self._outage_since)))
            while self._looks and now >= self._looks[0][1]:
                _reject(self._looks.popleft()[0].promise, self._told(self._unreachable(now - self._outage_since)))
        if self._leave is not None and now >= self._leave_by and not self._stopped:
            self.journal.note("left without being able to say so: the store does not answer")
            self._stopped = True

    def _unreachable(self, waited: float) -> RendezvousConnectionError:
        settings = self._settings
        return RendezvousConnectionError(
            f"The store of run '{settings.run_id}' (backend '{settings.backend}') could not be reached in "
            f"{waited:.0f} s and {self._attempts} attempts; the last cause: {self._last_cause}"
        )

    def _fail_join(self, error: RendezvousError) -> None:
        joining, self._joining = self._joining, None
        self._pending = None
        if joining is None:
            return
        self._parting = True
        self.journal.note(f"the join ends: {error.message}")
        _reject(joining.join.promise, self._told(error))

    def _fail_requests(self, error: RendezvousError) -> None:
        told = self._told(error)
        for close, _ in self._closes:
            _reject(close.promise, told)
        for look, _ in self._looks:
            _reject(look.promise, told)
        self._closes.clear()
        self._looks.clear()

    def _told(self, error: RendezvousError) -> RendezvousError:
        error.run_id, error.node_id = self._settings.run_id, self._identity.node_id
        error.backend, error.story = self._settings.backend, self.journal.story()
        return error

    def fail(self, error: Exception) -> None:
        """Tell everybody who waits, now or later, that the session has ended by a fault of its own."""
        fault = RendezvousError(
            f"The session of run '{self._settings.run_id}' ended by a fault of rdzv-core: {type(error).__name__}: "
            f"{error}. Please report it with the trace in the log."
        )
        self.failure = self._told(fault)
        self._fail_join(fault)
        self._fail_requests(fault)
        self._reject_all()

    def refuse_mail(self) -> None:
        """Refuse the messages that came too late: the session is over."""
        gone = self._told(
            self.failure
            or RendezvousClosedError(
                f"This node has left run '{self._settings.run_id}'; make a new handler to join again."
            )
        )
        with suppress(IndexError):
            while True:
                message = self.inbox.popleft()
                if isinstance(message, Join | Close | Look):
                    _reject(message.promise, gone)
                elif isinstance(message, Leave):
                    _resolve(message.promise, None)

    def _reject_all(self) -> None:
        gone = RendezvousClosedError(f"This node has left run '{self._settings.run_id}'.")
        self._fail_join(gone)
        self._fail_requests(gone)
        if self._leave is not None:
            _resolve(self._leave.promise, None)

    def _word(self) -> str:
        return word(self._chance)


def _as_rendezvous_error(error: Exception) -> RendezvousError:
    if isinstance(error, RendezvousError):
        return error
    return RendezvousConnectionError(f"{type(error).__name__}: {error}")


def _resolve(promise: Future[Any], value: Any) -> None:
    if not promise.done():
        promise.set_result(value)


def _reject(promise: Future[Any], error: Exception) -> None:
    if not promise.done():
        promise.set_exception(error)
