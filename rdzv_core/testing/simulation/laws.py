"""The invariants of the protocol, checked on what the store was told, what sessions returned, and how long it took.

The names are those of the design: I1 agreement, I2 validity, I3 monotone, I4 no overlap, I5 final, I6 no zombies,
I7 progress, I8 economy. Two more watch the simulator's own subject: ``calm`` (restarts come to an end when the faults
do), and ``sound`` (a session neither breaks nor spins).
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdzv_core.machine.decide import HOLD_INTERVALS
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Register
from rdzv_core.runtime.orders import Call, Joined
from rdzv_core.wire import decode_page, decode_record, decode_register

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node
    from rdzv_core.testing.simulation.world import World

__all__ = ["Broken", "Laws"]

SLACK = 2.0
"""Seconds allowed for latencies beyond what a law allows."""

MOST_COMMANDS = 6
"""Commands per node and round (I8)."""


class Broken(Exception):
    """An invariant does not hold. ``law`` is its name."""

    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(f"{law}: {sentence}")
        self.law = law
        self.sentence = sentence


@dataclass(slots=True)
class _Asked:
    """What a node knew when it asked for a write of the register."""

    closes_own: str | None
    """It closes because a user asked it to, if the register names this round."""
    live: tuple[str, ...]
    """The ids that it believed to be live."""


@dataclass(slots=True)
class _Round:
    """A round that was decided."""

    register: Register
    at: float
    told_at: float | None = None
    """When its members were first told to re-form."""
    returned: dict[str, Joined] = field(default_factory=dict)
    left_alive: frozenset[str] = frozenset()
    """Ids that the next decision took for live: none of them may return from this round any more."""


class Laws:
    """The watch over one world. Each method is told of one thing, and raises :class:`Broken`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.plan = world.plan
        self.quiet_since = 0.0
        """When the last fault, or the last coming or going of a node, was over."""
        self.rounds: dict[str, _Round] = {}
        self.latest: _Round | None = None
        self.closed: dict[str, Register] = {}
        """By life."""
        self._seats: dict[str, dict[str, int]] = {}
        self._records: dict[str, Record] = {}
        """By id, the last record that made a node a candidate."""
        self._returned: dict[str, int] = {}
        self._unaware_since: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._rounds_since_quiet = 0
        self._commands: dict[str, tuple[int, int]] = {}
        """How many rounds there had been, and how many commands, when a node went to the barrier."""

    @property
    def bound(self) -> float:
        """Seconds after the last fault within which a round must complete (I7); rule 13 adds its hold."""
        plan = self.plan
        hold = HOLD_INTERVALS * plan.interval if self.world.data_lost_at is not None else 0.0
        return plan.last_call + plan.ttl + plan.interval + 1.0 + SLACK + hold

    def disturb(self, until: float | None = None) -> None:
        """Something happened, or goes on until then, that restarts the time within which all must be well."""
        self.quiet_since = max(self.quiet_since, self.world.agenda.now if until is None else until)
        self._rounds_since_quiet = 0

    # --- the store ---------------------------------------------------------------------------------------

    def asked(self, node: Node, call: Call) -> _Asked:
        """A node asks for a write of the register."""
        session = node.session
        closes_own = None
        if session._closes and session._closes[0][0].only_own:
            closes_own = session.seat.round_id if session.seat is not None else ""
        register = decode_register(call.args[0])
        new_round = register.round_id and register.round_id not in self.rounds
        return _Asked(closes_own=closes_own, live=node.believed_live if new_round else ())

    def applied(self, node: Node, call: Call, asked: Any, before: Register | None, answer: Any) -> None:
        """The store did what a node asked for."""
        match call.name:
            case "set_state" if answer is not None and answer[2]:
                self._wrote(node, decode_register(call.args[0]), before, asked)
            case "announce" if answer.known:
                record = decode_record(call.args[2])
                if record.claim is None and not record.done:
                    self._records[node.node_id] = record
            case "publish":
                group, pages, _ = call.args
                seats: dict[str, int] = {}
                for page in pages:
                    seats.update(decode_page(page).ranks)
                self._seats.setdefault(group, seats)

    def _wrote(self, node: Node, after: Register, before: Register | None, asked: _Asked) -> None:
        if before is not None:
            if before.life != after.life:
                raise Broken("I3", f"{node} overwrote life {before.life} with life {after.life}")
            if after.revision <= before.revision:
                raise Broken("I3", f"{node} wrote revision {after.revision} over revision {before.revision}")
            if before.closed is not None and after.closed != before.closed:
                raise Broken("I5", f"{node} wrote revision {after.revision} over a closed register")
        if after.closed is not None:
            if before is None or before.closed is None:
                self._closed(node, after, before, asked)
            self.closed.setdefault(after.life, after)
        if after.round_id and after.round_id not in self.rounds:
            self._decided(node, after, before, asked)
        known = self.rounds.get(after.round_id)
        if known is not None and after.disturbed and known.told_at is None:
            known.told_at = self.world.agenda.now

    def _closed(self, node: Node, after: Register, before: Register | None, asked: _Asked) -> None:
        if asked.closes_own is None:
            return
        named = before.round_id if before is not None else after.round_id
        if named != asked.closes_own:
            raise Broken(
                "I5", f"{node} of round {asked.closes_own or 'none'} closed the run while it was in round {named}"
            )

    def _decided(self, node: Node, after: Register, before: Register | None, asked: _Asked) -> None:
        rules, seats = after.rules, self._seats.get(after.round_id)
        if seats is None:
            raise Broken("I2", f"{node} wrote round {after.round} before its pages")
        if sorted(seats.values()) != list(range(after.world)):
            raise Broken("I1", f"round {after.round} of {after.world} has the ranks {sorted(seats.values())}")
        if not rules.min_nodes <= after.world <= rules.max_nodes:
            raise Broken("I2", f"round {after.round} has {after.world} members; rules: {rules}")
        for member in seats:
            record = self._records.get(member)
            if record is None or record.left >= after.round:
                raise Broken("I2", f"{member} is in round {after.round} and had not announced for it")
            if (record.min_nodes, record.max_nodes) != (rules.min_nodes, rules.max_nodes):
                raise Broken("I2", f"{member} is in round {after.round} and plays by other rules")
        if before is not None and before.closed is not None:
            raise Broken("I5", f"{node} formed round {after.round} in a closed run")
        self._no_overlap(node, after, asked)
        self._rounds_since_quiet += 1
        most = 4 + 2 * len(self.plan.nodes)
        if self._rounds_since_quiet > most and self.world.agenda.now > self.plan.last_fault:
            raise Broken("calm", f"{self._rounds_since_quiet} rounds were formed since the last fault")
        self.latest = self.rounds[after.round_id] = _Round(register=after, at=self.world.agenda.now)

    def _no_overlap(self, node: Node, after: Register, asked: _Asked) -> None:
        previous = self.latest
        if previous is None:
            return
        number, round_id = previous.register.round, previous.register.round_id
        members = self._seats[round_id]
        live = [n for n in asked.live if n in members and n != node.node_id]
        overstayed = previous.told_at is not None and (
            self.world.agenda.now - previous.told_at >= self.plan.leave_timeout - SLACK
        )
        if overstayed:
            return
        for node_id in live:
            other = self.world.by_id[node_id]
            session = other.session
            gone = session._left >= number or (session.seat is not None and session.seat.round_id != round_id)
            if not other.alive or gone or session._done or self._excused(other):
                continue
            raise Broken(
                "I4", f"{node} formed round {after.round} with {node_id} live, which had not left round {number}"
            )
        previous.left_alive = frozenset(live)

    def _excused(self, node: Node) -> bool:
        """After a loss of data, a node that could not be asked within the hold counts as silent."""
        lost_at = self.world.data_lost_at
        if lost_at is None:
            return False
        return node.fine_since is None or self.world.agenda.now - node.fine_since < self.plan.ttl

    # --- the nodes ---------------------------------------------------------------------------------------

    def joins(self, node: Node) -> None:
        """A node goes to the barrier."""
        self._commands[node.node_id] = len(self.rounds), _commands(node)

    def returned(self, node: Node, joined: Joined) -> None:
        """A node returns from a round."""
        seat = joined.seat
        formed = self.rounds.get(seat.round_id)
        if formed is None:
            raise Broken("I1", f"{node} returned from round {seat.round} ({seat.round_id}), which nobody formed")
        members = self._seats[seat.round_id]
        if members.get(node.node_id) != seat.rank or seat.world != len(members):
            raise Broken("I1", f"{node} returned as {seat.rank} of {seat.world}; the pages say {members}")
        for other_id, other in formed.returned.items():
            same = (other.seat.world, other.seat.round, other.address) == (seat.world, seat.round, joined.address)
            if not same or other.seat.rank == seat.rank:
                raise Broken("I1", f"{node} returned {joined}, {other_id} {other}")
        formed.returned[node.node_id] = joined
        if seat.round <= self._returned.get(node.node_id, 0):
            raise Broken("I3", f"{node} returned from round {seat.round} after round {self._returned[node.node_id]}")
        self._returned[node.node_id] = seat.round
        if node.node_id in formed.left_alive and self.latest is not formed:
            raise Broken("I4", f"{node} returned from round {seat.round} after the next was formed with it alive")
        stored = node.session._stored
        if stored is not None and stored.closed is not None and stored.life == seat.life:
            raise Broken("I5", f"{node} returned from round {seat.round} and knew that the run was closed")
        self._count_commands(node)

    def _count_commands(self, node: Node) -> None:
        if self.plan.faults or node.leading is not None:
            return
        since, before = self._commands[node.node_id]
        used = _commands(node) - before
        if used > MOST_COMMANDS * max(1, len(self.rounds) - since):
            raise Broken("I8", f"{node} used {used} commands for one round: {node.calls}")

    def join_failed(self, node: Node, error: BaseException) -> None:
        """A node's join raised."""
        self.world.failures.append(f"{node}: {type(error).__name__}: {error}")

    def ended(self, node: Node) -> None:
        """A node is gone, one way or another."""
        self._ended_at[node.node_id] = self.world.agenda.now
        self.disturb()

    def session_fault(self, node: Node, fault: Exception) -> None:
        """A session raised what it must not."""
        trace = "".join(traceback.format_exception(fault))
        raise Broken("sound", f"the session of {node} broke: {trace}")

    def spins(self, node: Node) -> None:
        """A session gives orders without end while no time passes."""
        raise Broken("sound", f"the session of {node} spins; its story: {'; '.join(node.session.journal.story())}")

    # --- time --------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Look at all who wait, once in a while."""
        for node in self.world.nodes:
            self._knows_its_place(node)
            self._is_known(node)
            self._waits_no_longer_than_told(node)
        self._progress()

    def _knows_its_place(self, node: Node) -> None:
        """I6: a superseded node knows it."""
        register, seat = self.world.register, node.session.seat
        unaware = (
            seat is not None
            and node.agent.state == "running"
            and register is not None
            and register.closed is None
            and register.round_id != seat.round_id
            and node.session.waiting == 0
        )
        if self._lasts(self._unaware_since, node, holds=unaware) > self.plan.interval + SLACK:
            raise Broken("I6", f"{node} runs round {seat and seat.round} and has not learned that it was superseded")

    def _is_known(self, node: Node) -> None:
        """I6: a node that the store takes for dead says that it lives."""
        missing = node.agent.state in ("joining", "running", "barrier") and node.node_id not in self.world.live_ids
        if self._lasts(self._unknown_since, node, holds=missing) > self.plan.interval + SLACK:
            raise Broken("I6", f"{node} is {node.agent.state}, and the store has no record of it")

    def _lasts(self, since: dict[str, float], node: Node, *, holds: bool) -> float:
        """For how long something has held for a node that nothing keeps from the store."""
        now = self.world.agenda.now
        if not holds or node.fine_since is None:
            since.pop(node.node_id, None)
            return 0.0
        return now - max(since.setdefault(node.node_id, now), node.fine_since)

    def _waits_no_longer_than_told(self, node: Node) -> None:
        """I7: every wait has a deadline."""
        now, session = node.clock.monotonic(), node.session
        if node.paused:
            return
        joining = session._joining
        if joining is not None:
            grace = self.plan.bootstrap_timeout + self.plan.close_timeout
            self._not_past(node, "waits for a round", joining.due(now) + grace)
        if session._leave is not None:
            self._not_past(node, "tries to leave", session._leave_by + SLACK)
        if session._closes:
            self._not_past(node, "tries to close", session._closes[0][1] + SLACK)

    def _not_past(self, node: Node, what: str, deadline: float) -> None:
        late = node.clock.monotonic() - max(deadline, node.resumed_at + SLACK)
        if late > SLACK:
            raise Broken("I7", f"{node} still {what}, {late:.1f} s after its deadline")

    def _progress(self) -> None:
        now, plan = self.world.agenda.now, self.plan
        quiet = max(self.quiet_since, plan.last_fault)
        if now <= quiet + self.bound:
            return
        nodes = [n for n in self.world.nodes if n.fine_since is not None and self.world.plays_by_the_rules(n)]
        joining = [n for n in nodes if n.agent.state == "joining"]
        active = [n for n in nodes if n.agent.state in ("joining", "running", "stopping")]
        register = self.world.register
        closed = register is not None and register.closed is not None
        if closed or len(active) >= plan.min_nodes:
            for node in joining:
                wait = now - max(node.agent.since, quiet)
                if node.session._joining is not None and node.session._joining.spare_since is not None and not closed:
                    continue
                if wait > self.bound:
                    raise Broken(
                        "I7", f"{node} has been at the barrier for {wait:.1f} s; {len(active)} nodes are there"
                    )
        for node in nodes:
            self._was_told(node, quiet)

    def _was_told(self, node: Node, quiet: float) -> None:
        """I7: the survivors of a lost member are told."""
        seat, now = node.session.seat, self.world.agenda.now
        if seat is None or node.agent.state != "running" or node.session.waiting or self.world.is_closed:
            return
        since = max(quiet, node.agent.since)
        for member in self._seats[seat.round_id]:
            ended = self._ended_at.get(member)
            if ended is not None and now - max(ended, since) > self.bound:
                raise Broken("I7", f"{node} was not told in {now - max(ended, since):.1f} s that {member} is gone")

    def barrier_timed_out(self, node: Node) -> None:
        """A node waited in the exit barrier until its timeout."""
        raise Broken("I7", f"{node} was silently kept in the exit barrier until it timed out")

    def never_ended(self) -> None:
        """The world is as it was long ago."""
        states = ", ".join(f"{n} {n.agent.state} since {n.agent.since:.1f}" for n in self.world.nodes)
        raise Broken("I7", f"the run does not end: {states}")


def _commands(node: Node) -> int:
    """Commands so far, but for the keep-alive."""
    return sum(count for name, count in node.calls.items() if name != "pulse")
