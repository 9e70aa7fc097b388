"""The invariants of the protocol, checked on what the store was told, what sessions returned, and how long it took.

The names are those of the design: I1 agreement, I2 validity, I3 monotone, I4 no overlap, I5 final, I6 no zombies,
I7 progress, I8 economy. Two more watch the simulator's own subject: ``calm`` (restarts come to an end when the faults
do), and ``sound`` (a session neither breaks nor spins).
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rdzv_core.errors import RendezvousTimeoutError
from rdzv_core.machine.decide import HOLD_INTERVALS
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Register
from rdzv_core.runtime.leading import STALE
from rdzv_core.runtime.orders import Call, Joined
from rdzv_core.testing.simulation.plan import CALL_SECONDS, Deaf, Rollback, Weather
from rdzv_core.wire import decode_page, decode_record, decode_register

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node
    from rdzv_core.testing.simulation.world import World

__all__ = ["Broken", "Laws"]

TICK = 1.0
"""Seconds between two looks at what only time can break."""

SLACK = 2.0
"""Seconds allowed for latencies beyond what a law allows."""

AT_ONCE = 0.2
"""Seconds within which survivors are told of a member that left."""

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

    at: float
    closes_own: str | None
    """It closes because a user asked it to, if the register names this round."""
    live: tuple[str, ...]
    """The ids that it believed to be live."""


@dataclass(slots=True)
class _Round:
    """A round that was decided."""

    register: Register
    by: str
    """The leader that formed it."""
    at: float
    told_at: float | None = None
    """When its members were first told to re-form."""
    returned: dict[str, Joined] = field(default_factory=dict)
    ranks: set[int] = field(default_factory=set)
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
        self._elsewhere_since: dict[str, float] = {}
        """Since when the record of a node says that it is in a round, or done: no candidate."""
        self._returned: dict[str, int] = {}
        self._unaware_since: dict[str, float] = {}
        self._unknown_since: dict[str, float] = {}
        self._kept_since: dict[str, float] = {}
        self._ended_at: dict[str, float] = {}
        self._rounds_since_quiet = 0
        self._spare_for: dict[str, float] = {}
        """Seconds that a node at the barrier has been a spare, to the tick."""
        self._withdrawn_at: dict[str, float] = {}
        self._live_since: dict[str, float] = {}
        """Since when the store has held a record of a node without a break."""
        self._commands: dict[str, tuple[int, int]] = {}
        """How many rounds there had been, and how many commands, when a node went to the barrier."""

    @property
    def bound(self) -> float:
        """Seconds after the last fault within which a round must complete (I7).

        Rule 13 adds its hold, and rule 16 the time that an overstayer is given.
        """
        plan = self.plan
        hold = HOLD_INTERVALS * plan.interval if self.world.data_lost_at is not None else 0.0
        stay = plan.leave_timeout if any(isinstance(f, Deaf) for f in plan.faults) else 0.0
        if any(isinstance(f, Weather) and f.lose_push for f in plan.faults):
            stay += plan.interval  # a leader that hears nothing of the roster reads it at every other pulse
        if plan.restart_on_node_loss != "always":
            stay += plan.bootstrap_timeout  # nobody is told that rank 0 is dead
        return plan.last_call + plan.ttl + plan.interval + 1.0 + SLACK + hold + stay

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
        return _Asked(at=self.world.agenda.now, closes_own=closes_own, live=node.believed_live if new_round else ())

    def applied(self, node: Node, call: Call, asked: Any, before: Register | None, answer: Any) -> None:
        """The store did what a node asked for."""
        match call.name:
            case "set_state" if answer is not None and answer[2]:
                self._wrote(node, decode_register(call.args[0]), before, asked)
            case "announce" if answer.known:
                record = decode_record(call.args[2])
                self._live_since.setdefault(node.node_id, self.world.agenda.now)
                if record.claim is None and not record.done:
                    self._records[node.node_id] = record
                    self._elsewhere_since.pop(node.node_id, None)
                else:
                    self._elsewhere_since.setdefault(node.node_id, self.world.agenda.now)
            case "withdraw":
                self._withdrew(node)
            case "publish":
                group, pages, _ = call.args
                seats: dict[str, int] = {}
                for page in pages:
                    seats.update(decode_page(page).ranks)
                self._seats.setdefault(group, seats)

    def _withdrew(self, node: Node) -> None:
        """I7: the others know at once that a member has left, if nothing keeps anybody from the store."""
        self._withdrawn_at[node.node_id] = self.world.agenda.now
        register = self.world.register
        if (
            register is None
            or register.closed is not None
            or node.node_id not in self._seats.get(register.round_id, ())
        ):
            return
        if node.session.seat is None or node.session.seat.round_id != register.round_id:
            return
        leader = self.world.by_id.get(self.world.led_by)
        absent = node.unwell_at > self.world.agenda.now - self.plan.ttl
        if leader is None or not leader.alive or register.rollcall or absent:
            return
        self.world.agenda.after(AT_ONCE, self._know_at_once, node, register.round_id, self.world.agenda.now)

    def _know_at_once(self, node: Node, round_id: str, at: float) -> None:
        register = self.world.register
        nodes = [n for n in self.world.nodes if self.world.plays_by_the_rules(n)]
        long_ago = at - self.plan.interval
        calm = all(n.fine_since is not None and n.fine_since < long_ago for n in nodes)
        calm = calm and all(n.unwell_at < at - 2 * self.plan.ttl for n in nodes)
        if not nodes or not calm or self.world.data_lost_at is not None or self.plan.restart_on_node_loss != "always":
            return
        if (
            register is not None
            and register.round_id == round_id
            and not register.disturbed
            and not self.world.is_closed
        ):
            raise Broken("I7", f"{node} left at {at:.3f}, and {AT_ONCE} s later nobody has told the others")

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
        if before is not None and before.round_id == after.round_id and not before.disturbed and after.waiting:
            self._for_good_reason(node, after)
        if before is not None and before.round_id == after.round_id and not before.lost and after.lost:
            self._told_of_lost(node, after)
        known = self.rounds.get(after.round_id)
        if known is not None and after.disturbed and known.told_at is None:
            known.told_at = self.world.agenda.now

    def _for_good_reason(self, node: Node, after: Register) -> None:
        """A round that stands is re-formed only for a newcomer that has come to stay (rule 7)."""
        members = [self.world.by_id[n] for n in self._seats.get(after.round_id, ())]
        silent_for = 2 * self.plan.ttl
        if after.lost or any(m.session._left >= after.round or m.agent.state in ("leaving", "gone") for m in members):
            return
        if any(m.fine_since is None or m.unwell_at > self.world.agenda.now - silent_for for m in members):
            return
        formed, live = self.rounds.get(after.round_id), self.world.live_ids
        if formed is not None and formed.told_at is not None:
            return  # a store that fell back is only told once more
        if formed is None or formed.by != node.node_id:
            records = [self._records[n] for n in live if n in self._records]
            if any(r.steady and r.left < after.round - 1 for r in records):
                return  # it may have overstayed in the round before; only the leader that formed this one knows
        since = self.world.agenda.now - self.plan.scale_up_delay
        waiting = [self.world.by_id[n] for n in live]  # also those that died since they said so
        if not any(n.agent.since <= since + SLACK and n.session.seat is None for n in waiting):
            raise Broken("calm", f"{node} disturbs round {after.round}, which stands, for newcomers of a moment")

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
            elsewhere = self.world.agenda.now - self._elsewhere_since.get(member, self.world.agenda.now)
            if elsewhere > STALE + 1.0 and self.world.agenda.now - asked.at <= CALL_SECONDS:
                raise Broken(
                    "I2", f"{member} is in round {after.round}; its record has said for {elsewhere:.1f} s: in another"
                )
            if (record.min_nodes, record.max_nodes) != (rules.min_nodes, rules.max_nodes):
                raise Broken("I2", f"{member} is in round {after.round} and plays by other rules")
        self._is_open(node, after, before)
        self._is_unfinished(node, after, before)
        unreadable = before is None or before.rollcall
        self._no_overlap(node, after, asked, unreadable=unreadable)
        self._rounds_since_quiet += 1
        most = 4 + 2 * len(self.plan.nodes)
        if self._rounds_since_quiet > most and self.world.agenda.now > self.world.last_fault:
            raise Broken("calm", f"{self._rounds_since_quiet} rounds were formed since the last fault")
        self.latest = self.rounds[after.round_id] = _Round(register=after, by=node.node_id, at=self.world.agenda.now)

    def _is_unfinished(self, node: Node, after: Register, before: Register | None) -> None:
        """I5: when all members of a round have finished, the job is done, and nobody begins it again."""
        previous = self.latest
        if previous is None or before is None or before.round_id != previous.register.round_id:
            return
        if self.world.data_lost_at is not None or after.life in self.closed:
            return  # also if an old node has brought a life back whose end nobody remembers
        members = [self.world.by_id[n] for n in self._seats[previous.register.round_id]]
        if all(m.agent.finished == previous.register.round_id and self._could_say_so(m) for m in members):
            raise Broken("I5", f"{node} formed round {after.round}; all members of the one before had finished the job")

    def _could_say_so(self, node: Node) -> bool:
        """Nothing kept a node from telling the others that it has finished, and from closing the run."""
        if not node.alive:
            return node.agent.outcome == "success" and node.agent.could_close
        return node.fine_since is not None and node.unwell_at < self.world.agenda.now - 2 * self.plan.ttl

    def _is_open(self, node: Node, after: Register, before: Register | None) -> None:
        """I5: no round is formed after the end, nor after a loss of data if somebody still knew better."""
        if before is not None and before.closed is not None:
            raise Broken("I5", f"{node} formed round {after.round} in a closed run")
        if after.life not in self.closed:
            return
        since = self.world.agenda.now - self.plan.interval - SLACK
        for other in self.world.nodes:
            known = other.session._known
            knew = known is not None and known.life == after.life and known.closed is not None
            if knew and other.fine_since is not None and other.fine_since < since:
                raise Broken("I5", f"{node} formed round {after.round}, though {other} knew that the run was closed")

    def _no_overlap(self, node: Node, after: Register, asked: _Asked, *, unreadable: bool) -> None:
        """I4: whoever is in the last round and could be known to be there has left it."""
        previous, now = self.latest, self.world.agenda.now
        if previous is None:
            return
        told_at = previous.told_at
        if told_at is not None and now - told_at >= self.plan.leave_timeout - SLACK:
            return
        in_time = now - asked.at <= CALL_SECONDS
        seen = set(asked.live)
        for node_id in self._seats[previous.register.round_id]:
            other = self.world.by_id[node_id]
            if other is node or not self._is_in(other, previous, unreadable=unreadable):
                continue
            round_is = f"{node} formed round {after.round} while {node_id} is in round {previous.register.round}"
            if node_id in seen and not self._excused(other):
                raise Broken("I4", f"{round_is}, and the decision's roster shows it live")
            held_for = now - self._live_since.get(node_id, now)
            if in_time and held_for > STALE + CALL_SECONDS + 1.0 and not self._excused(other):
                raise Broken("I4", f"{round_is}, and the store has shown it live for {held_for:.1f} s")
            lost_at = self.world.data_lost_at
            had_time = other.fine_since is not None and other.fine_since < now - self.plan.interval - SLACK
            if lost_at is not None and had_time and other.unwell_at < lost_at - self.plan.ttl:
                raise Broken("I4", f"{round_is}, {now - lost_at:.1f} s after a loss of data, and nothing kept it away")
        previous.left_alive = frozenset(seen - {node.node_id})

    def _is_in(self, node: Node, formed: _Round, *, unreadable: bool) -> bool:
        """The node is in this round, as it sees it itself; or may still learn from its page that it is."""
        session, register = node.session, formed.register
        if not node.alive or session._done or session._left >= register.round:
            return False
        seat = session.seat or session._pending
        return not unreadable if seat is None else seat.round_id == register.round_id

    def _excused(self, node: Node) -> bool:
        """After a loss of data, a node that could not be asked within the hold counts as silent."""
        if self.world.data_lost_at is None:
            return False
        return node.fine_since is None or self.world.agenda.now - node.fine_since < self.plan.ttl

    def _told_of_lost(self, node: Node, after: Register) -> None:
        """Calm: no member is called lost that lives, and that nothing but the store itself kept away."""
        now, plan = self.world.agenda.now, self.plan
        for fault in plan.faults:
            if (
                isinstance(fault, Rollback)
                and fault.lost > plan.ttl - 2 * plan.interval
                and 0 <= now - fault.at < plan.ttl
            ):
                return  # the records are so old that some expire before their nodes pulse again
        healthy = 0
        for node_id in self._seats.get(after.round_id, ()):
            other = self.world.by_id[node_id]
            seat = other.session.seat
            here = other.alive and seat is not None and seat.round_id == after.round_id and other.agent.is_in_round
            withdrew = self._withdrawn_at.get(node_id, -self.plan.ttl) > now - self.plan.ttl
            healthy += (
                here and not withdrew and other.fine_since is not None and other.unwell_at < now - 2 * self.plan.ttl
            )
        if after.lost > after.world - healthy:
            raise Broken(
                "calm",
                f"{node} calls {after.lost} of {after.world} members of round {after.round} lost; {healthy} are well",
            )

    def records_changed(self) -> None:
        """The roster has changed: forget who is gone."""
        live = self.world.live_ids
        if len(self._live_since) <= len(live):
            return
        for node_id in [n for n in self._live_since if n not in live]:
            del self._live_since[node_id]

    # --- the nodes ---------------------------------------------------------------------------------------

    def joins(self, node: Node) -> None:
        """A node goes to the barrier."""
        self._spare_for[node.node_id] = 0.0
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
        first_id, first = next(iter(formed.returned.items()), (node.node_id, joined))
        if (first.seat.world, first.seat.round, first.address) != (seat.world, seat.round, joined.address):
            raise Broken("I1", f"{node} returned {joined}, {first_id} {first}")
        if seat.rank in formed.ranks:
            raise Broken("I1", f"{node} returned as rank {seat.rank} of round {seat.round}, as another did before it")
        formed.ranks.add(seat.rank)
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
        in_time = self.world.agenda.now - node.agent.since < self.plan.join_timeout
        if self.plan.faults or node.leading is not None or not in_time:
            return
        since, before = self._commands[node.node_id]
        used = _commands(node) - before
        if used > MOST_COMMANDS * max(1, len(self.rounds) - since):
            raise Broken("I8", f"{node} used {used} commands for one round: {node.calls}")

    def join_failed(self, node: Node, error: BaseException) -> None:
        """A node's join raised."""
        if isinstance(error, RendezvousTimeoutError):
            self._timed_out(node)

    def _timed_out(self, node: Node) -> None:
        """I7: a node gives up only after its whole time at the barrier, and only if it has no seat."""
        now = self.world.agenda.now
        waited = now - node.agent.since - self._spare_for.pop(node.node_id, 0.0)
        if waited < self.plan.join_timeout / 2:
            raise Broken(
                "I7", f"{node} timed out after {waited:.1f} s at the barrier, not counting its time as a spare"
            )
        register, formed = self.world.register, self.latest
        if register is None or formed is None or register.round_id != formed.register.round_id:
            return
        seated = node.node_id in self._seats[register.round_id] and register.round > node.session._left
        withdrawn_at = self._withdrawn_at.get(node.node_id, 0.0)
        if (
            seated
            and not register.lost
            and self.world.has_pages(register)
            and formed.at < withdrawn_at
            and node.fine_since is not None
        ):
            raise Broken("I7", f"{node} timed out with a seat in round {register.round}")

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
            self._is_released(node)
            self._waits_no_longer_than_told(node)
            self._count_as_spare(node)
        self._progress()

    def _count_as_spare(self, node: Node) -> None:
        register = self.world.register
        if (
            node.agent.state == "joining"
            and node.fine_since is not None
            and register is not None
            and register.round_id
            and not register.disturbed
            and register.closed is None
            and node.node_id not in self._seats[register.round_id]
        ):
            self._spare_for[node.node_id] += TICK

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

    def _is_released(self, node: Node) -> None:
        """I7: nobody is kept in the exit barrier of a round that others have re-formed."""
        register, seat = self.world.register, node.session.seat
        kept = (
            node.agent.state == "barrier"
            and register is not None
            and seat is not None
            and register.round_id != seat.round_id
            and node.agent.deaf_until < self.world.agenda.now
        )
        if self._lasts(self._kept_since, node, holds=kept) > self.plan.interval + SLACK:
            raise Broken("I7", f"{node} is kept in the exit barrier, though others have re-formed")

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
            self._not_past(node, "waits for a round", max(joining.due(now), node.resumed_at) + grace)
        if session._leave is not None:
            self._not_past(node, "tries to leave", session._leave_by + SLACK)
        if session._closes:
            self._not_past(node, "tries to close", session._closes[0][1] + 4 * SLACK)

    def _not_past(self, node: Node, what: str, deadline: float) -> None:
        late = node.clock.monotonic() - max(deadline, node.resumed_at + SLACK)
        if late > SLACK:
            raise Broken("I7", f"{node} still {what}, {late:.1f} s after its deadline")

    def _progress(self) -> None:
        now, plan = self.world.agenda.now, self.plan
        quiet = max(self.quiet_since, self.world.last_fault)
        if now <= quiet + self.bound:
            return
        nodes = [n for n in self.world.nodes if n.fine_since is not None and self.world.plays_by_the_rules(n)]
        joining = [n for n in nodes if n.agent.state == "joining"]
        there = [n for n in nodes if n.agent.state in ("joining", "running", "stopping")]
        active = [n for n in there if n.agent.deaf_until <= now - self.bound]
        register = self.world.register
        closed = register is not None and register.closed is not None
        if register is None and 2 * len(nodes) <= len(self.world.nodes):
            return  # most of those who are there want other rules
        if closed or len(active) >= plan.min_nodes:
            for node in joining:
                wait = now - max(node.agent.since, quiet)
                if not closed and self._may_be_spare(node, wait):
                    continue
                if wait > self.bound:
                    raise Broken(
                        "I7", f"{node} has been at the barrier for {wait:.1f} s; {len(active)} nodes are there"
                    )
        for node in nodes:
            self._was_told(node, quiet)

    def _may_be_spare(self, node: Node, wait: float) -> bool:
        """A node may be passed over for as long as the round is whole and full, or near its end, or it is new."""
        joining, register = node.session._joining, self.world.register
        if joining is None or joining.spare_since is None or register is None:
            return False
        members = [self.world.by_id[n] for n in self._seats.get(register.round_id, ())]
        inside = [m for m in members if m.alive and m.agent.is_in_round]
        if any(m.agent.state in ("barrier", "closing") for m in inside) or len(inside) >= self.plan.max_nodes:
            return True
        return len(inside) == len(members) and wait <= self.plan.scale_up_delay + self.bound

    def _was_told(self, node: Node, quiet: float) -> None:
        """I7: the survivors of a lost member are told."""
        seat, now = node.session.seat, self.world.agenda.now
        if seat is None or node.agent.state != "running" or node.session.waiting or self.world.is_closed:
            return
        if self.plan.restart_on_node_loss != "always":
            return
        since = max(quiet, node.agent.since)
        for member in self._seats[seat.round_id]:
            ended = self._ended_at.get(member)
            if ended is not None and now - max(ended, since) > self.bound:
                raise Broken("I7", f"{node} was not told in {now - max(ended, since):.1f} s that {member} is gone")

    def barrier_timed_out(self, node: Node) -> None:
        """A node waited in the exit barrier until its timeout."""
        raise Broken("I7", f"{node} was silently kept in the exit barrier until it timed out")

    def everybody_ended(self) -> None:
        """I5: a round of which all members have finished closes the run, if the store could be told."""
        last = self.latest
        if last is None or self.world.data_lost_at is not None or last.register.life in self.closed:
            return
        members = [self.world.by_id[n].agent for n in self._seats[last.register.round_id]]
        if all(m.outcome == "success" and m.could_close for m in members):
            raise Broken("I5", f"all {len(members)} members of round {last.register.round} finished, and nobody closed")

    def never_ended(self) -> None:
        """The world is as it was long ago."""
        states = ", ".join(f"{n} {n.agent.state} since {n.agent.since:.1f}" for n in self.world.nodes)
        raise Broken("I7", f"the run does not end: {states}")


def _commands(node: Node) -> int:
    """Commands so far, but for the keep-alive."""
    return sum(count for name, count in node.calls.items() if name != "pulse")
