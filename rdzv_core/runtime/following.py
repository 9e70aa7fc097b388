"""What the register asks of a node, step by step: its page, its seat, its store; or to stay, to go back, to end.

:func:`rdzv_core.machine.follow.follow` says what the register means; each of its answers has a method here that acts
on it.
"""

from __future__ import annotations

from dataclasses import replace

from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
)
from rdzv_core.events import (
    NodeSpare,
    NodeSuperseded,
    RegisterRepublished,
    RoundCompleted,
    RoundDisturbed,
    RoundGivenUp,
    RunClosed,
)
from rdzv_core.machine.follow import (
    PAGE_PATIENCE,
    Answer,
    Completed,
    Ended,
    GiveUp,
    Me,
    Mismatch,
    PageState,
    ReadPage,
    Republish,
    Seated,
    Stay,
    Superseded,
    Wait,
    follow,
)
from rdzv_core.machine.register import Bootstrap, page_count, page_index
from rdzv_core.runtime.knowledge import GRACE, reject, resolve
from rdzv_core.runtime.leading import Steps, publish, rewritten
from rdzv_core.runtime.orders import (
    Call,
    Connect,
    Connected,
    Host,
    Hosted,
    Joined,
)
from rdzv_core.runtime.presence import Presence
from rdzv_core.wire import decode_page

__all__ = ["Following"]

PAGE_RETRY = 0.2
"""Seconds between two tries to read a page that the register names and the store does not show yet."""


class Following(Presence):
    """Acts on each answer of ``follow``."""

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

    def _page_wake_at(self) -> float | None:
        if self._stored is None or self._stored.round <= self._left:
            return None
        if self._page.state is PageState.MISSING:
            return self._page_retry_at
        if self._pending is not None and not self._connecting:
            return self._page_since + self._settings.bootstrap_timeout
        return None

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
            if isinstance(message.error, RendezvousStateError) or getattr(message.error, "permanent", False):
                self._fail_join(_as_rendezvous_error(message.error))
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
        resolve(joining.join.promise, Joined(seat, message.address or self._address, message.store))

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
            if answer.waiting and not self.waiting:
                self.emit(RoundDisturbed(round=self.seat.round, reason=answer.why, **self._about))
            self.waiting = answer.waiting
            self._answer_rollcall()
        else:
            if self.waiting == 0 or not self._claiming:
                self.emit(NodeSuperseded(round=self.seat.round, reason=answer.why, **self._about))
            self.waiting = max(1, self.waiting)
            self._must_announce = self._must_announce or not self._claiming
            self._claiming = True
            if self._done:
                self._release(answer.why)
        self.journal.note(answer.why)

    def _answer_rollcall(self) -> None:
        if self._stored is not None and self._stored.rollcall and not self._claiming:
            self._claiming = self._must_announce = True

    def _release(self, why: str) -> None:
        """The workers here have finished and others have re-formed: this node must not end their run."""
        if self.left_behind is None:
            self.left_behind = why
            self.released = self.released or why
            self.journal.note(f"need not wait for the others any longer: {why}")

    def _ended(self, answer: Ended) -> None:
        self.journal.note(answer.why)
        if not self.closed:
            closed = answer.closed
            self.emit(RunClosed(by=closed.by, outcome=closed.outcome, reason=closed.reason, **self._about))
        self.waiting = 0
        self.closed = True
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

    def _bring_pages(self) -> Steps:
        """Publish the pages once more if the leader misses them and this node, which once led, holds them."""
        register, held = self._stored, self._held
        if register is None or held is None or not register.rollcall or held.round_id != register.round_id:
            return
        yield from self._call(publish(held.round_id, held.seats, self._settings.keep))
        self._held = None  # once: the roll stays called for as long as the round stands
        self.journal.note(f"published the members of round {register.round} once more: it has led, and holds them")

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

    def _fail_join(self, error: RendezvousError) -> None:
        joining, self._joining = self._joining, None
        self._pending = None
        if joining is None:
            return
        self._parting = True
        self.journal.note(f"the join ends: {error.message}")
        reject(joining.join.promise, self._told(error))


def _as_rendezvous_error(error: Exception) -> RendezvousError:
    if isinstance(error, RendezvousError):
        return error
    return RendezvousConnectionError(f"{type(error).__name__}: {error}")
