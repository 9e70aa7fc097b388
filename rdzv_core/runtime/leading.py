"""The part of a session that leads: read the roster, decide, publish, write.

It owns what only a leader remembers (the roster, the members of the present round, timers) and forgets all of it
when the lease goes. It knows the rules only through :func:`rdzv_core.machine.decide.decide`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from rdzv_core.api import Placed
from rdzv_core.backend import Roster, Token
from rdzv_core.errors import RendezvousStateError
from rdzv_core.events import EventSink, HintShared, MembersLost, NodesWaiting, PlacementFailed, RoundDecided
from rdzv_core.machine.decide import Decision, Fresh, Timers, decide
from rdzv_core.machine.placement import place, shared_hints
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Page, Register, page_count, paginate
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.machine.standing import View
from rdzv_core.runtime.clock import Clock
from rdzv_core.runtime.journal import Journal
from rdzv_core.runtime.orders import Call, Order, Place, WatchRoster
from rdzv_core.wire import decode_page, decode_record, encode_page, encode_register

__all__ = ["Leading", "Members", "Steps", "Written", "publish", "read_members", "readable_record", "rewritten", "word"]

FRESH_ENOUGH = 1.0
"""Seconds; a roster older than this is read again before anything is written from it."""

STALE = 2.0
"""Seconds; a decision whose roster is older than this when it is to be written is dropped (rule 3)."""


@dataclass(frozen=True, slots=True)
class Written:
    """What the register holds after an attempt to write it."""

    data: bytes | None
    """None: the register was not written, and is empty."""
    token: Token
    did: bool
    seats: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Members:
    """The members of a round and their ranks, as a leader holds them."""

    round_id: str
    ranks: Mapping[str, int]

    @property
    def seats(self) -> tuple[str, ...]:
        """The members in order of rank."""
        return tuple(sorted(self.ranks, key=self.ranks.__getitem__))


def publish(round_id: str, seats: Sequence[str], keep: float) -> Call:
    """The call that stores the pages of a round."""
    return Call("publish", (round_id, [encode_page(page) for page in paginate(round_id, seats)], keep))


Steps = Generator[Order, Any, Any]


class Leading:
    """A leader's memory and work, for one tenure of the lease."""

    def __init__(
        self,
        *,
        node_id: str,
        rules: Rules,
        policy: Policy,
        keep: float,
        clock: Clock,
        chance: Random,
        journal: Journal,
        emit: EventSink,
        about: Mapping[str, str],
        call: Callable[[Call], Steps],
        held: Members | None,
    ) -> None:
        self._node_id = node_id
        self._rules = rules
        self._policy = policy
        self._keep = keep
        self._clock = clock
        self._chance = chance
        self._journal = journal
        self._emit = emit
        self._about = about
        self._call = call
        self._roster: Roster | None = None
        self._roster_at = 0.0
        self._decoded: dict[str, tuple[bytes, Record | None]] = {}
        self.held = held
        self._members_of = held.round_id if held is not None else ""
        self._members_retry_at = 0.0
        self._timers = Timers()
        self.wake_at: float | None = None
        """When to decide again even if nothing has changed."""
        self.why = ""
        """Why the last decision was what it was."""
        self.outvoted = False
        """This leader's rules are not those of most nodes, and no register binds them yet: another should lead."""

    @property
    def roster_age(self) -> float:
        """Seconds since the roster was last known to be current."""
        return self._clock.monotonic() - self._roster_at if self._roster is not None else 0.0

    @property
    def sees_itself(self) -> bool:
        """The roster shows this leader."""
        return self._roster is None or any(entry.node_id == self._node_id for entry in self._roster.records)

    @property
    def records(self) -> tuple[Record, ...]:
        """The live nodes, in order of arrival, each by the newest record seen: a store may fall back to older ones."""
        entries = self._roster.records if self._roster is not None else ()
        decoded: dict[str, tuple[bytes, Record | None]] = {}
        for entry in entries:
            known = self._decoded.get(entry.node_id)
            if known is None or known[0] != entry.record:
                record, newest = self._read_record(entry.node_id, entry.record), known[1] if known is not None else None
                if record is not None and newest is not None and record.seq < newest.seq:
                    record = newest
                known = entry.record, record
            decoded[entry.node_id] = known
        self._decoded = decoded
        return tuple(record for _, record in decoded.values() if record is not None)

    def saw_roster(self, roster: Roster, at: float) -> None:
        """Take in a complete roster, unless a newer one is known."""
        if self._roster is not None and at < self._roster_at:
            return
        self._roster = roster
        self._roster_at = at

    def refresh(self) -> Steps:
        """Read what has changed in the roster; returns True if anything has."""
        seen = self._roster.version if self._roster is not None else None
        asked_at = self._clock.monotonic()
        changed = yield from self._call(Call("roster", (seen, 0.0)))
        if changed is None:
            self._roster_at = asked_at
            return False
        self.saw_roster(changed.onto(self._roster), asked_at)
        if seen is None:
            yield WatchRoster(on=True, roster=self._roster)
        return True

    def lead(self, register: Register | None, token: Token | None, fit: bool, *, leaving: bool = False) -> Steps:
        """Decide once and write what was decided; returns :class:`Written`, or None if nothing was written.

        Args:
            register: The register as last read.
            token: Its token.
            fit: Whether this node may take silence for death.
            leaving: Decide as if this node had already withdrawn.
        """
        if self._roster is None:
            yield from self.refresh()
        yield from self._read_members(register)
        for _ in range(8):  # the roster may change under us; a quiet moment comes, or the next wake-up does
            now = self._clock.monotonic()
            view = self._view(register, fit, leaving)
            decision = self._decide(view, now)
            if decision.register is None:
                return None
            if self.roster_age > FRESH_ENOUGH and (yield from self.refresh()):
                continue
            return (yield from self._write(decision, view, token))
        return None

    def stop(self) -> Steps:
        """Give up what a leader does between decisions."""
        yield WatchRoster(on=False)

    # --- seeing ------------------------------------------------------------------------------------------

    def _read_record(self, node_id: str, data: bytes) -> Record | None:
        try:
            return readable_record(node_id, data)
        except RendezvousStateError as error:
            self._journal.note(f"the record of node '{node_id}' is passed over: {error.message}")
            return None

    def _read_members(self, register: Register | None) -> Steps:
        if register is None or not register.round_id:
            return
        now = self._clock.monotonic()
        known = self._members_of == register.round_id
        if known and (self._members(register) is not None or now < self._members_retry_at):
            return
        self._members_of = register.round_id
        self._members_retry_at = now + self._rules.interval
        ranks = yield from read_members(register, self._call)
        if ranks is not None:
            self.held = Members(register.round_id, ranks)

    def _members(self, register: Register | None) -> Mapping[str, int] | None:
        if register is None or self.held is None or self.held.round_id != register.round_id:
            return None
        return self.held.ranks

    def _view(self, register: Register | None, fit: bool, leaving: bool) -> View:
        records = self.records
        withdrawn = self._roster.withdrawn if self._roster is not None else frozenset()
        if leaving:
            records = tuple(r for r in records if r.node_id != self._node_id)
            withdrawn |= {self._node_id}
        elif not self.sees_itself:
            fit = False  # the store has lost our record, and may have lost those of others
        members = self._members(register)
        return View(register=register, records=records, withdrawn=withdrawn, members=members, fit=fit)

    # --- deciding and writing ----------------------------------------------------------------------------

    def _word(self) -> str:
        return word(self._chance)

    def _decide(self, view: View, now: float) -> Decision:
        fresh = Fresh(life=self._word(), round_id=self._word(), write_id=self._word())
        decision = decide(
            view,
            self._rules,
            self._policy,
            self._timers,
            now,
            fresh,
            by=self._node_id,
            at=self._clock.wall(),
        )
        self._timers = decision.timers
        self.outvoted = decision.outvoted
        self.why = decision.why
        self.wake_at = decision.wake_at
        if view.register is not None and view.register.round_id and view.members is None:
            self.wake_at = min(self.wake_at or self._members_retry_at, self._members_retry_at)
        return decision

    def _write(self, decision: Decision, view: View, token: Token | None) -> Steps:
        register = decision.register
        assert register is not None
        seats = decision.seats
        if seats:
            seats = yield from self._placed(seats, view)
            yield from self._publish(register.round_id, seats)
        if self.roster_age > STALE:
            self.wake_at = self._clock.monotonic()
            return None
        data = encode_register(register)
        answer = yield from self._call(Call("set_state", (data, token)))
        if answer is None:
            return Written(data=None, token=None, did=False, seats=())
        stored, stored_token, did = answer
        if did:
            self._journal.note(f"as leader wrote revision {register.revision}: {decision.why}")
            if seats:
                self.held = Members(register.round_id, {node_id: rank for rank, node_id in enumerate(seats)})
                self._members_of = register.round_id
            self._report(register, view.register)
            if seats and seats == decision.seats and self._policy.placement == "hint":
                self._report_shared_hints(register, seats)
        return Written(data=stored, token=stored_token, did=did, seats=seats)

    def _placed(self, seats: tuple[str, ...], view: View) -> Steps:
        chosen = set(seats)
        members = {r.node_id: r for r in view.records if r.node_id in chosen}
        ordered = tuple(members[node_id] for node_id in seats)
        placed: Placed = yield Place(members=ordered, previous=dict(view.members or {}))
        if placed.failure is not None:
            self._emit(PlacementFailed(reason=placed.failure, **self._about))
            return place("sorted", ordered, {})
        return placed.order or seats

    def _publish(self, round_id: str, seats: tuple[str, ...]) -> Steps:
        yield from self._call(publish(round_id, seats, self._keep))

    def _report(self, register: Register, before: Register | None) -> None:
        if before is None or register.round_id != before.round_id:
            if register.round_id:
                self._emit(
                    RoundDecided(
                        round=register.round,
                        round_id=register.round_id,
                        world=register.world,
                        reason=register.reason,
                        **self._about,
                    )
                )
            return
        if register.lost and not before.lost:
            live = {r.node_id for r in self.records}
            lost = tuple(sorted(n for n in self._members(register) or () if n not in live))
            self._emit(MembersLost(round=register.round, lost=register.lost, node_ids=lost, **self._about))
        if register.waiting and not before.waiting:
            self._emit(NodesWaiting(round=register.round, waiting=register.waiting, **self._about))

    def _report_shared_hints(self, register: Register, seats: tuple[str, ...]) -> None:
        chosen = set(seats)
        for hint, node_ids in shared_hints([r for r in self.records if r.node_id in chosen]).items():
            self._emit(HintShared(round=register.round, rank_hint=hint, node_ids=node_ids, **self._about))


def read_members(register: Register, call: Callable[[Call], Steps]) -> Steps:
    """Read all pages of the register's round; returns ids and ranks, or None if one cannot be read."""
    ranks: dict[str, int] = {}
    for index in range(page_count(register.world)):
        data = yield from call(Call("page", (register.round_id, index)))
        page = _readable(data, register.round_id)
        if page is None:
            return None
        ranks.update(page.ranks)
    return ranks if len(ranks) == register.world else None


def readable_record(node_id: str, data: bytes) -> Record:
    """The record that is stored under an id.

    Raises:
        RendezvousStateError: It cannot be read, or says another id.
    """
    record = decode_record(data)
    if record.node_id != node_id:
        raise RendezvousStateError(f"it says '{record.node_id}'")
    return record


def _readable(data: bytes | None, round_id: str) -> Page | None:
    if data is None:
        return None
    try:
        page = decode_page(data)
    except RendezvousStateError:
        return None
    return page if page.round_id == round_id else None


def word(chance: Random) -> str:
    """A random word of 48 bits; names a life, a round or a write among the few of one run."""
    return f"{chance.getrandbits(48):012x}"


def rewritten(register: Register, write_id: str, **changes: Any) -> Register:
    """The register with ``changes``, as one more write of the same life."""
    return replace(register, revision=register.revision + 1, write_id=write_id, **changes)
