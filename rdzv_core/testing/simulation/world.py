"""One world: nodes, store, network and workers, played through a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from rdzv_core.machine.register import Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.runtime.knowledge import SessionSettings
from rdzv_core.runtime.orders import Call
from rdzv_core.testing.memory import Change, MemoryBackend, MemoryStore, Snapshot
from rdzv_core.testing.simulation.agenda import Agenda
from rdzv_core.testing.simulation.agent import Agent
from rdzv_core.testing.simulation.faults import pause, schedule
from rdzv_core.testing.simulation.job import Job
from rdzv_core.testing.simulation.laws import TICK, Broken, Laws
from rdzv_core.testing.simulation.network import Network
from rdzv_core.testing.simulation.node import BootstrapWorld, Node
from rdzv_core.testing.simulation.plan import Plan, Rollback
from rdzv_core.testing.simulation.transcript import Transcript
from rdzv_core.wire import decode_register

__all__ = ["Outcome", "World", "play"]

LONGEST = 900.0
"""Seconds after the last fault by which every node must have ended."""

MOST_EVENTS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a plan went."""

    plan: Plan
    law: str | None
    """The invariant that broke; None if none did."""
    sentence: str
    rounds: int
    returns: int
    seconds: float
    """Virtual seconds that passed."""
    events: int
    calls: dict[str, int]
    """Calls on the store by name, of all nodes."""
    endings: tuple[str, ...]
    """How each node ended."""
    closed: str | None
    """With what outcome the run was closed; None if it was not."""
    transcript: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """No invariant broke."""
        return self.law is None


class World:
    """Everything. Made for one plan, and played once."""

    broken = Broken
    run_id = "run"

    def __init__(
        self,
        plan: Plan,
        *,
        transcript: Transcript | None = None,
        make_backend: Callable[[MemoryStore, str], MemoryBackend] = MemoryBackend,
    ) -> None:
        self.plan = plan
        self.last_fault = plan.last_fault
        self.transcript = transcript
        self.agenda = Agenda()
        if transcript is not None:
            transcript.agenda = self.agenda
        self.chance = Random(f"{plan.seed}/world")
        self.store = MemoryStore(now=lambda: self.agenda.now, rng=Random(f"{plan.seed}/store"))
        self.backend = make_backend(self.store, self.run_id)
        self.snapshots: dict[Rollback, Snapshot] = {}
        self.data_lost_at: float | None = None
        self.forget_round: float | None = None
        self.forget_pages = False
        self._before_round: Snapshot | None = None
        self.laws = Laws(self)
        self.network = Network(self, Random(f"{plan.seed}/network"))
        self.bootstrap = BootstrapWorld(self)
        self.job = Job(
            self.agenda,
            Random(f"{plan.seed}/job"),
            work=plan.work,
            uneven=plan.uneven,
            collective=plan.collective,
        )
        self.nodes: list[Node] = []
        """Those that are alive."""
        self.by_id: dict[str, Node] = {}
        self.watching_roster: dict[str, None] = {}
        """The ids of those that watch the roster, in order."""
        self._at_place: dict[int, Node] = {}
        self._started_at: dict[int, int] = {}
        self._caught: list[Exception] = []
        self.register: Register | None = None
        self.register_now: tuple[bytes | None, Any] = (None, None)
        self.led_by = ""
        """Who held the lease just before the last call."""
        self._changes: set[Change] = set()
        self._sweep_at: float | None = None
        self._to_start = 0
        self._addresses = self.chance.sample(range(10, 10 + 10 * len(plan.nodes)), len(plan.nodes))
        self._rules = Rules(min_nodes=plan.min_nodes, max_nodes=plan.max_nodes, interval=plan.interval, ttl=plan.ttl)
        self._settings = self._make_settings(self._rules)
        self.store.on_change(lambda _, change: self._changes.add(change))

    # --- playing -----------------------------------------------------------------------------------------

    def play(self) -> Outcome:
        """Play the plan to its end, or to the first broken law."""
        law, sentence = None, "every invariant held"
        try:
            self._begin()
            end = self.last_fault + LONGEST
            while self.nodes or self._to_start:
                if self._caught:
                    raise self._caught[0]
                if not self.agenda.step() or self.agenda.now > end or self.agenda.done > MOST_EVENTS:
                    self.laws.never_ended()
            self.laws.everybody_ended()
        except Broken as broken:
            law, sentence = broken.law, broken.sentence
        return self._outcome(law, sentence)

    def guarded(self, do: Callable[[Any], None]) -> Callable[[Any], None]:
        """For callbacks of futures, which swallow what they raise: keep it, and raise it from :meth:`play`."""

        def call(argument: Any) -> None:
            try:
                do(argument)
            except Exception as error:
                self._caught.append(error)

        return call

    def _begin(self) -> None:
        for place, planned in enumerate(self.plan.nodes):
            self._to_start += 1
            self.agenda.at(planned.start, self._first, place, planned.flaps)
        for fault in self.plan.faults:
            schedule(self, fault)
        self.agenda.at(TICK, self._tick)

    def _tick(self) -> None:
        self.laws.tick()
        self.agenda.after(TICK, self._tick)

    def _first(self, place: int, flaps: int) -> None:
        self._to_start -= 1
        node = self._start(place)
        if flaps > 0:
            self._to_start += 1
            self.agenda.after(self.chance.uniform(0.5, 9.0), self._flap, node, flaps)

    def _flap(self, node: Node, flaps: int) -> None:
        node.kill()
        node.agent.died(orphans=False)
        self.agenda.after(self.chance.uniform(0.1, 3.0), self._first, node.place, flaps - 1)

    def spawn(self, place: int) -> None:
        """Start a new node at a place, unless one runs there, or the job is over."""
        if self.at_place(place) is None and self.nodes:
            self._start(place)

    def _start(self, place: int) -> Node:
        number = self._started_at.get(place, 0)
        self._started_at[place] = number + 1
        node = Node(self, place, number)
        self._at_place[place] = node
        node.agent = Agent(node)
        self.nodes.append(node)
        self.by_id[node.node_id] = node
        self.laws.disturb()
        node.unwell = not self.network.fair(node)
        if node.unwell or self.network.stalled:
            node.fine_since = None
        node.start()
        node.agent.join()
        return node

    def pause(self, node: Node, seconds: float) -> None:
        """Stop a node for a time."""
        pause(self, node, seconds)

    def forget(self, node: Node) -> None:
        """A node is no more."""
        self.nodes.remove(node)
        self.laws.ended(node)
        crew = node.agent.crew
        if crew is not None and node.agent.joined is not None and node.agent.joined.seat.rank == 0:
            crew.host_died()

    # --- the store ---------------------------------------------------------------------------------------

    def apply(self, node: Node, call: Call, context: Any) -> Any:
        """Do a call at the store."""
        before = self.register
        snapshot = self.store.snapshot() if self.forget_round is not None and call.name == "set_state" else None
        run = self.store._runs.get(self.run_id)
        self.led_by = run.lease.owner if run is not None and run.lease is not None else ""
        answer = getattr(self.backend, call.name)(*call.args, **call.kwargs)
        self.laws.applied(node, call, context, before, answer)
        if snapshot is not None or self.forget_pages:
            self._forget(call, before, snapshot)
        return answer

    def _forget(self, call: Call, before: Register | None, snapshot: Snapshot | None) -> None:
        """Lose a round that has just been written, or its pages."""
        held = self.backend.get_state()
        after = decode_register(held[0]) if held is not None else None
        if call.name != "set_state" or after is None or after == before:
            return
        if before is None or before.round_id != after.round_id:
            self._before_round = snapshot
            if self.forget_pages:
                self.forget_pages = False
                self.store._runs[self.run_id].pages.clear()
                self.data_lost_at = self.agenda.now
                self.laws.disturb()
        elif after.bootstrap is not None and self._before_round is not None and self.forget_round is not None:
            self.agenda.after(self.forget_round, self._fall_back, self._before_round)
            self.forget_round = self._before_round = None

    def _fall_back(self, snapshot: Snapshot) -> None:
        self.store.restore(snapshot)
        self.data_lost_at = self.agenda.now
        self.laws.disturb()
        if self.transcript is not None:
            self.transcript.says("the store is as it was before the round")
        self.store_changed()

    def store_changed(self) -> None:
        """Tell whoever watches what has changed, and look again when the next thing expires."""
        changes = self._changes
        if changes:
            self._changes = set()
            if Change.REGISTER in changes:
                self._register_changed()
            if Change.LEASE in changes:
                self._nudge()
            if Change.ROSTER in changes:
                self.laws.records_changed()
                for node_id in list(self.watching_roster):
                    self.by_id[node_id].roster_watcher.check()
        if self._sweep_at is None or self._sweep_at < self.agenda.now:
            self._sweep_at = self.store.next_expiry(self.run_id)
            if self._sweep_at is not None:
                self.agenda.at(self._sweep_at, self._sweep)

    def _sweep(self) -> None:
        self._sweep_at = None
        self.store.sweep()
        self.store_changed()

    def _register_changed(self) -> None:
        held = self.backend.get_state()
        lost = held is None and self.register_now[0] is not None
        self.register_now = (None, None) if held is None else held
        self.register = None if held is None else decode_register(held[0])
        if lost:
            self._nudge()
        for node in self.nodes:
            if node.state_watcher.blocked:
                node.state_watcher.check()

    def _nudge(self) -> None:
        for node in self.nodes:
            if node.state_watcher.blocked:
                node.state_watcher.nudge = True
                node.state_watcher.check()

    @property
    def live_ids(self) -> Any:
        """The ids of which the store holds a live record."""
        run = self.store._runs.get(self.run_id)
        return run.records if run is not None else {}

    def has_pages(self, register: Register) -> bool:
        """The store holds the pages of the register's round."""
        run = self.store._runs.get(self.run_id)
        return run is not None and register.round_id in run.pages

    @property
    def is_closed(self) -> bool:
        """The register says that the run is closed."""
        return self.register is not None and self.register.closed is not None

    # --- who and where -----------------------------------------------------------------------------------

    def at_place(self, place: int) -> Node | None:
        """The node that runs at a place."""
        node = self._at_place.get(place)
        return node if node is not None and node.alive else None

    def address(self, place: int) -> str:
        """The address of a place; in another order than the places."""
        return f"10.0.0.{self._addresses[place]}"

    def refresh_fine(self) -> None:
        """Note for each node whether anything keeps it from the store."""
        for node in self.nodes:
            if node.fine_since is None and node.unwell:
                node.unwell_at = self.agenda.now
            node.unwell = node.paused or not self.network.fair(node)
            if node.unwell or self.network.stalled:
                node.fine_since = None
            elif node.fine_since is None:
                node.fine_since = self.agenda.now
            if node.unwell:
                node.unwell_at = self.agenda.now

    def plays_by_the_rules(self, node: Node) -> bool:
        """The node was started with the rules of the rest."""
        return self.plan.nodes[node.place].min_nodes is None

    def settings_of(self, place: int) -> SessionSettings:
        """What a node at this place is told."""
        own = self.plan.nodes[place].min_nodes
        if own is None:
            return self._settings
        return self._make_settings(
            Rules(
                min_nodes=own,
                max_nodes=max(own, self._rules.max_nodes),
                interval=self._rules.interval,
                ttl=self._rules.ttl,
            )
        )

    def _make_settings(self, rules: Rules) -> SessionSettings:
        plan = self.plan
        return SessionSettings(
            run_id=self.run_id,
            backend="memory",
            rules=rules,
            policy=Policy(
                last_call=plan.last_call,
                regroup=plan.regroup,
                leave_timeout=plan.leave_timeout,
                placement=plan.placement,
                restart_on_node_loss=plan.restart_on_node_loss,
            ),
            bootstrap_timeout=plan.bootstrap_timeout,
            scale_up_delay=plan.scale_up_delay,
            store_outage_timeout=plan.store_outage_timeout,
            closed_ttl=plan.closed_ttl,
        )

    def _outcome(self, law: str | None, sentence: str) -> Outcome:
        calls: dict[str, int] = {}
        for node in self.by_id.values():
            for name, count in node.calls.items():
                calls[name] = calls.get(name, 0) + count
        closed = next((r.closed.outcome for r in reversed(self.laws.closed.values()) if r.closed is not None), None)
        return Outcome(
            plan=self.plan,
            law=law,
            sentence=sentence,
            rounds=len(self.laws.rounds),
            returns=sum(len(r.returned) for r in self.laws.rounds.values()),
            seconds=self.agenda.now,
            events=self.agenda.done,
            calls=calls,
            endings=tuple(f"{n}: {n.agent.outcome or n.agent.state}" for n in self.by_id.values()),
            closed=closed,
            transcript=tuple(self.transcript.lines) if self.transcript is not None else (),
        )


def play(plan: Plan, *, transcript: bool = False, **kwargs: Any) -> Outcome:
    """Play a plan.

    Args:
        plan: What is to happen.
        transcript: Write down everything that happens.
        kwargs: ``make_backend``: the client of the memory store that the nodes talk to.
    """
    return World(plan, transcript=Transcript() if transcript else None, **kwargs).play()
