"""One node's part in a run: the loop that waits, pulses, follows and, when it leads, decides.

The loop is a reconciler. Users and watchers only change what is *wanted* or *known*; each turn of the loop then
does what is due, in one fixed order: say who we are, say that we live, read what may have changed, follow it, do
what users asked for, lead. A step that meets a connection error is simply due again after a moment, so there is no
half-done state to come back to. Nothing here blocks, sleeps, or knows a thread: see :mod:`rdzv_core.runtime.orders`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

from rdzv_core.backend import Roster
from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv_core.events import (
    NodeLeft,
    StoreLost,
)
from rdzv_core.machine.attendance import attendance
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Closed, Register, page_count, page_index
from rdzv_core.machine.standing import View
from rdzv_core.runtime.following import Following
from rdzv_core.runtime.knowledge import GRACE, Joining, reject, resolve
from rdzv_core.runtime.leading import Steps, read_members, readable_record, rewritten
from rdzv_core.runtime.orders import (
    Abandon,
    Call,
    Close,
    Connected,
    Finish,
    Hosted,
    Join,
    Leave,
    Look,
    Nudge,
    Order,
    RosterSeen,
    Sleep,
    StateSeen,
)
from rdzv_core.wire import decode_page

__all__ = ["Session"]

FIRST_RETRY = 0.05
"""Seconds, about, until a failed call is tried again; twice as many each time."""

SLOWEST_RETRY = 1.0
"""Seconds; a failed call is tried again within this time (rule 3)."""

REMINDER = 60.0
"""Seconds after which an outage that goes on is told of again."""

NAMED_WORLD = 256
"""Members up to which a node that has run out of time reads who they were: each may do so, all at the same moment."""


class Session(Following):
    """One node in one run. Put messages into ``inbox``; drive :meth:`run`."""

    def run(self) -> Generator[Order, Any, None]:
        """Yield orders until the node has left. The driver sends back what each order answers, or its error."""
        while not self._stopped:
            try:
                self._take_messages()
                if self._clock.monotonic() >= self._retry_at:
                    yield from self._turn()
                    self._faulty_since = None
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

    def _take_messages(self) -> None:
        while self.inbox:
            message = self.inbox.popleft()
            now = self._clock.monotonic()
            match message:
                case Join():
                    self._start_join(message, now)
                case Abandon():
                    self._abandon()
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
                        if self._announced and not self._leading.sees_itself:
                            self._pulse_at = min(self._pulse_at, now)  # the store has lost our record
                case Hosted():
                    self._took_host(message)
                case Connected():
                    self._took_store(message)

    def _start_join(self, join: Join, now: float) -> None:
        self._fail_join(RendezvousError("Another next_rendezvous() of this handler has begun, and takes its place."))
        self._leave_seat()
        self._pending = None
        self._hosting = self._connecting = ""
        self._steady = self._done = False
        self.released = self.left_behind = None
        self.waiting, self.closed = 0, False
        self._parting = False
        self._joining = Joining(join=join, since=now, deadline=now + join.timeout)
        self._must_announce = True
        if self._identity.addr:
            self._tell_joining()

    def _leave_seat(self) -> None:
        if self.seat is not None:
            self._left, self._last_round_id = max(self._left, self.seat.round), self.seat.round_id
        self.seat, self._claiming = None, False

    def _abandon(self) -> None:
        """Nobody will take the seat: the others are to see this node go, and not to wait for it in its round."""
        self._leave_seat()
        self._fail_join(RendezvousError("The wait for a round was interrupted."))
        self._parting = True
        self.journal.note("its user was interrupted and does not wait for a round any more")

    def _look(self) -> Steps:
        yield from self._read()
        look, _ = self._looks.popleft()
        resolve(look.promise, self._stored is not None and self._stored.closed is not None)

    def _close(self, close: Close) -> Steps:
        """Close the run, by compare-and-set from what is stored at each attempt (rule 9)."""
        while True:
            if not self._token_read:
                yield from self._read()
            register = self._stored
            if close.only_own and not self._owns(register):
                self.journal.note("does not close the run: it is in another round, or another life, by now")
                resolve(close.promise, False)
                return
            if register is not None and register.closed is not None:
                yield from self._react()  # before this node goes, it tells its own watchers too
                resolve(close.promise, True)
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
        self._stopped = self.took_leave = True

    def _run_out(self, joining: Joining) -> Steps:
        """The join has run out of time: look, withdraw, look once more, and only then give up (rule 9).

        The first look spares the others a member that seems to leave; only the second one can be relied on.
        """
        view = yield from self._who_is_there()
        if (yield from self._find_seat(joining)):
            return
        yield from self._part()
        if (yield from self._find_seat(joining)):
            self._must_announce = True
            return
        self._fail_join(RendezvousTimeoutError(self._timeout_text(joining, view)))

    def _find_seat(self, joining: Joining) -> Steps:
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
        """What a leader would see; answers a :class:`View`."""
        if self._leading is not None:
            records: tuple[Record, ...] = self._leading.records
        else:
            roster = yield from self._call(Call("roster", (None, 0.0)))
            records = tuple(_readable_records(roster)) if roster is not None else ()
        register, members = self._stored, None
        if register is not None and register.round_id and register.world <= NAMED_WORLD:
            members = yield from read_members(register, self._call)
        return View(register=register, records=records, members=members)

    def _timeout_text(self, joining: Joining, view: View) -> str:
        settings, register = self._settings, view.register
        number = 1 + max(self._left, register.round if register is not None else 0)
        waited = self._clock.monotonic() - joining.since
        return (
            f"Round {number} of run '{settings.run_id}' (backend '{settings.backend}') did not complete in "
            f"{waited:.0f} s: {attendance(view, self._rules)}"
        )

    def _lost_store(self, error: RendezvousConnectionError) -> None:
        now = self._clock.monotonic()
        self._attempts += 1
        self._last_cause = error.message
        if self._outage_since is None:
            self._outage_since = now
            self._remind_at = now
            self.journal.note(f"the store does not answer: {error.message}")
        if now >= self._remind_at:
            self._remind_at = now + REMINDER
            self._tell_outage(error, now)
        self._retry_within(min(SLOWEST_RETRY, FIRST_RETRY * 2 ** min(self._attempts, 10)))
        self._read_soon(0.0)
        if error.permanent:
            self._fail_join(error)
            self._fail_requests(error)
        elif now - self._outage_since > self._settings.store_outage_timeout:
            self._give_up_on_store(now - self._outage_since)

    def _tell_outage(self, error: RendezvousConnectionError, now: float) -> None:
        assert self._outage_since is not None
        patience = self._outage_since + self._settings.store_outage_timeout - now
        if self._joining is not None:
            patience = 0.0 if error.permanent else min(patience, self._joining.due(now) - now)
        at_work = self.seat is not None and self._joining is None
        self.emit(StoreLost(error=error.message, at_work=at_work, patience=max(0.0, patience), **self._about))

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
        if self._leave is not None and not self._announced:
            self._stopped = True
        self._retry_within(SLOWEST_RETRY if self._leave is None else FIRST_RETRY)

    def _retry_within(self, seconds: float) -> None:
        self._retry_at = self._clock.monotonic() + self._chance.uniform(0.5, 1.0) * seconds

    def _check_deadlines(self) -> None:
        now = self._clock.monotonic()
        if self._outage_since is not None:
            if self._joining is not None and now >= self._joining.due(now):
                self._fail_join(self._unreachable(now - self._joining.since))
            while self._closes and now >= self._closes[0][1]:
                reject(self._closes.popleft()[0].promise, self._told(self._unreachable(now - self._outage_since)))
            while self._looks and now >= self._looks[0][1]:
                reject(self._looks.popleft()[0].promise, self._told(self._unreachable(now - self._outage_since)))
        if self._leave is not None and now >= self._leave_by and not self._stopped:
            self.journal.note("left without being able to say so: the store does not answer")
            self._stopped = True

    def _unreachable(self, waited: float) -> RendezvousConnectionError:
        settings = self._settings
        return RendezvousConnectionError(
            f"The store of run '{settings.run_id}' (backend '{settings.backend}') could not be reached in "
            f"{waited:.0f} s and {self._attempts} attempts; the last cause: {self._last_cause}"
        )

    def _fail_requests(self, error: RendezvousError) -> None:
        told = self._told(error)
        for close, _ in self._closes:
            reject(close.promise, told)
        for look, _ in self._looks:
            reject(look.promise, told)
        self._closes.clear()
        self._looks.clear()

    def bear_fault(self, error: Exception) -> None:
        """Tell everybody who waits of a fault of ours; :meth:`run` may be begun anew after a while.

        Running workers are left alone, and the node stays known if it can. It leads no more; and if no turn has gone
        well for a TTL, it ends, so that the others can do without it.
        """
        now = self._clock.monotonic()
        fault = RendezvousError(
            f"The session of run '{self._settings.run_id}' met a fault of rdzv-core: {type(error).__name__}: "
            f"{error}. Please report it with the trace in the log."
        )
        self._fail_join(fault)
        self._fail_requests(fault)
        self._abstain("it met a fault of its own")
        self._faulty_since = self._faulty_since or now
        if now - self._faulty_since > self._rules.ttl:
            self.failure, self._stopped = self._told(fault), True

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
                    reject(message.promise, gone)

    def _reject_all(self) -> None:
        gone = RendezvousClosedError(f"This node has left run '{self._settings.run_id}'.")
        self._fail_join(gone)
        self._fail_requests(gone)


def _readable_records(roster: Roster) -> Iterator[Record]:
    for entry in roster.records:
        with suppress(RendezvousStateError):
            yield readable_record(entry.node_id, entry.record)
