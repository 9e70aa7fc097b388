"""A node's presence: it says who it is, gives signs of life, and leads while it holds the lease.

Owns rule 11 and one half of rule 3: who is fit to judge others is known from one's own pulses.
"""

from __future__ import annotations

from dataclasses import replace

from rdzv_core.backend import Pulse
from rdzv_core.errors import (
    RendezvousConnectionError,
)
from rdzv_core.events import (
    LeaderChanged,
    NodeJoining,
)
from rdzv_core.machine.follow import (
    PageState,
)
from rdzv_core.machine.record import Claim, Record
from rdzv_core.runtime.knowledge import GRACE, Knowledge
from rdzv_core.runtime.leading import Leading, Steps, Written
from rdzv_core.runtime.orders import (
    Call,
    Locate,
)
from rdzv_core.wire import encode_record

__all__ = ["Presence"]


class Presence(Knowledge):
    """Announces, pulses, leads, withdraws."""

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

    def _locate(self) -> Steps:
        """Find out where others reach this node. The store's name may not be known to DNS yet: it is tried again."""
        self._identity = replace(self._identity, addr=(yield Locate()))
        self._tell_joining()

    def _tell_joining(self) -> None:
        self.emit(NodeJoining(addr=self._identity.addr, left=self._left, **self._about))

    def _announce(self) -> Steps:
        if not self._identity.addr:
            yield from self._locate()
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
