"""The level-1 adapter beyond the laws: what it costs, whose clock it believes, and what it does in doubt.

Time is owned: no test here waits for real.
"""

from __future__ import annotations

import heapq
import itertools
import pickle
import random
import threading
from collections.abc import Callable

import msgspec
import pytest

from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.runtime.register_coordination.value import EMPTY, WRITES_KEPT, decode, encode
from rdzv_core.testing.memory import MemoryRegister, MemoryStore

RUN = "job-7"
TTL = 15.0


class Clock:
    """One machine's clock; waiting moves it."""

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self.waited: list[float] = []

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.now += seconds


class Machine:
    """A node with its own clock, over a register of the shared store."""

    made = itertools.count()

    def __init__(self, store: MemoryStore, start: float = 0.0, register: MemoryRegister | None = None) -> None:
        self.clock = Clock(start)
        self.register = register or MemoryRegister(store, RUN)
        self.backend = RegisterCoordination(
            self.register,
            run_id=RUN,
            monotonic=self.clock,
            wait=self.clock.wait,
            chance=random.Random(next(self.made)),
        )

    def ids(self) -> list[str]:
        return [e.node_id for e in self.backend.roster().records]

    def announce(self, node_id: str, seq: int = 1) -> bool:
        return self.backend.announce(node_id, seq, b"", TTL).known

    def pulse(self, node_id: str, seq: int = 1) -> bool:
        return self.backend.pulse(node_id, seq, TTL).known


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(now=lambda: 0.0, rng=random.Random(1))


# --- what it costs


class Stage:
    """Threads on one virtual clock, of which one runs at a time: the one whose sleep ends first."""

    def __init__(self) -> None:
        self.now = 0.0
        self._sleepers: list[tuple[float, int, threading.Event]] = []
        self._turns = 0

    def sleep(self, seconds: float) -> None:
        mine = self._enlist(seconds)
        self._wake_next()
        mine.wait()

    def play(self, parts: list[Callable[[], None]]) -> None:
        def perform(cue: threading.Event, part: Callable[[], None]) -> None:
            cue.wait()
            try:
                part()
            finally:
                self._wake_next()

        threads = [threading.Thread(target=perform, args=(self._enlist(0.0), part)) for part in parts]
        for thread in threads:
            thread.start()
        self._wake_next()
        for thread in threads:
            thread.join()

    def _enlist(self, seconds: float) -> threading.Event:
        self._turns += 1
        cue = threading.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, self._turns, cue))
        return cue

    def _wake_next(self) -> None:
        if self._sleepers:
            self.now, _, cue = heapq.heappop(self._sleepers)
            cue.set()


@pytest.mark.parametrize(("nodes", "writes_at_most", "mean_at_most"), [(1, 1, 1), (8, 6, 3.5), (128, 8, 5)])
def test_nodes_that_join_at_once_need_few_writes(nodes: int, writes_at_most: int, mean_at_most: float):
    """All start at the same moment, with 1 ms to the store and 1 ms back."""
    stage = Stage()
    store = MemoryStore(now=lambda: stage.now)
    registers = [MemoryRegister(store, RUN, latency=0.001, sleep=stage.sleep) for _ in range(nodes)]
    answers = []

    def join(n: int) -> None:
        backend = RegisterCoordination(
            registers[n], monotonic=lambda: stage.now, wait=stage.sleep, chance=random.Random(n)
        )
        answers.append(backend.announce(f"n{n}", 1, b"{}" * 100, TTL))

    stage.play([lambda n=n: join(n) for n in range(nodes)])
    assert len(answers) == nodes
    assert all(answer.known for answer in answers)
    assert sum(answer.leads for answer in answers) == 1
    assert len(decode(store.peek(RUN)).nodes) == nodes
    assert max(r.writes for r in registers) <= writes_at_most
    assert sum(r.writes for r in registers) / nodes <= mean_at_most
    assert max(r.reads for r in registers) <= writes_at_most
    assert stage.now < 3.0


def test_a_call_that_says_something_is_one_read_and_one_write(store: MemoryStore):
    machine = Machine(store)
    machine.backend.publish("g", [b"page"], 60.0)
    machine.backend.set_state(b"state")
    for call in (
        lambda: machine.backend.announce("n1", 1, b"", TTL),  # takes the lease too
        lambda: machine.backend.pulse("n1", 1, TTL, keep=600.0, group="g"),  # prolongs three other things
        lambda: machine.backend.withdraw("n1", 2, TTL, keep=60.0),  # gives the lease up too
    ):
        before = machine.register.reads, machine.register.writes
        call()
        assert (machine.register.reads - before[0], machine.register.writes - before[1]) == (1, 1)


def test_a_refused_call_writes_nothing(store: MemoryStore):
    machine = Machine(store)
    machine.announce("n1", 5)
    machine.backend.publish("g", [b"page"], 60.0)
    before = machine.register.writes
    assert not machine.announce("n1", 4)
    assert not machine.pulse("n1", 4)
    machine.backend.withdraw("n1", 4, TTL)
    machine.backend.publish("g", [b"page"], 60.0)
    machine.backend.set_state(b"state", "stale")
    assert machine.register.writes == before


def test_a_wait_looks_often_at_first_and_then_less(store: MemoryStore):
    machine = Machine(store)
    machine.backend.announce("n1", 1, b"", 1000.0)
    version = machine.backend.roster().version
    before = machine.register.reads
    assert machine.backend.roster(version, 60.0) is None
    assert machine.clock.now == pytest.approx(60.0)
    assert machine.clock.waited[0] <= 0.05
    assert max(machine.clock.waited) <= 0.5
    assert machine.register.reads - before <= 60.0 / 0.3 + 10


# --- whose clock


def test_no_two_clocks_are_compared(store: MemoryStore):
    """Machines whose clocks are years apart see each other live and die all the same."""
    early, late = Machine(store, start=0.0), Machine(store, start=1e9)
    early.announce("early")
    late.announce("late")
    for _ in range(4):
        early.clock.now += TTL / 2
        late.clock.now += TTL / 2
        assert early.pulse("early")
        assert late.pulse("late")
        assert early.ids() == late.ids() == ["early", "late"]
    for _ in range(2):
        early.clock.now += TTL / 2
        assert early.pulse("early")
    assert early.ids() == ["early"]


def test_silence_counts_from_when_i_began_to_watch(store: MemoryStore):
    """A record that I see for the first time may be a second old or a year: it has its whole TTL."""
    Machine(store).announce("n1")
    reader = Machine(store, start=5000.0)
    assert reader.ids() == ["n1"]
    reader.clock.now += TTL - 0.1
    assert reader.ids() == ["n1"]
    reader.clock.now += 0.1
    assert reader.ids() == []


def test_a_gap_between_my_reads_is_held_against_nobody(store: MemoryStore):
    """I slept for an hour; whoever said something in that hour is alive, however long ago it was for me."""
    node, reader = Machine(store), Machine(store)
    node.announce("n1")
    assert reader.ids() == ["n1"]
    node.clock.now += 10
    node.pulse("n1")
    reader.clock.now += 3600
    assert reader.ids() == ["n1"]


def test_only_who_watched_may_bury(store: MemoryStore):
    """A newcomer's write leaves the silent in their place; that of one who watched for a TTL drops them."""
    Machine(store).announce("silent")
    watcher = Machine(store)
    watcher.announce("watcher")
    watcher.clock.now += TTL / 2
    watcher.pulse("watcher")
    watcher.clock.now += TTL / 2
    newcomer = Machine(store, start=77.0)
    newcomer.announce("newcomer")
    assert {n.id for n in decode(store.peek(RUN)).nodes} == {"silent", "watcher", "newcomer"}
    assert watcher.pulse("watcher")
    assert {n.id for n in decode(store.peek(RUN)).nodes} == {"watcher", "newcomer"}


def test_who_is_dead_for_me_stays_dead_and_learns_it(store: MemoryStore):
    """A machine that was frozen pulses on, since no time has passed for it; who had held it dead does not relent."""
    frozen, judge = Machine(store), Machine(store)
    frozen.announce("frozen")
    judge.announce("judge")
    judge.clock.now += TTL / 2
    judge.pulse("judge")
    judge.clock.now += TTL / 2
    assert judge.ids() == ["judge"]
    assert frozen.pulse("frozen"), "its own clock stood still, and nobody has written since"
    assert judge.ids() == ["judge"]
    assert judge.pulse("judge")
    assert not frozen.pulse("frozen")
    assert frozen.announce("frozen", 2)
    assert judge.ids() == ["judge", "frozen"]


def test_i_hold_myself_dead_first(store: MemoryStore):
    """By my own clock my time is over: I do not renew, though nobody else has looked."""
    machine = Machine(store)
    machine.announce("n1")
    machine.clock.now += TTL
    before = machine.register.writes
    assert not machine.pulse("n1")
    assert machine.register.writes == before


def test_the_lease_of_a_dead_node_is_vacant(store: MemoryStore):
    leader, heir = Machine(store), Machine(store)
    assert leader.backend.announce("leader", 1, b"", TTL).leads
    assert heir.backend.announce("heir", 1, b"", 100 * TTL).lease_left == TTL
    heir.clock.now += TTL - 1
    assert heir.backend.pulse("heir", 1, 100 * TTL).lease_left == pytest.approx(1.0)
    heir.clock.now += 1
    assert heir.backend.pulse("heir", 1, 100 * TTL).leads


def test_pages_that_nobody_renews_are_pruned_by_the_next_write(store: MemoryStore):
    machine = Machine(store)
    machine.backend.publish("old", [b"page" * 100], 20.0)
    machine.backend.publish("new", [b"page"], 20.0)
    machine.backend.announce("n1", 1, b"", 100.0)
    machine.backend.pulse("n1", 1, 100.0, keep=60.0, group="new")
    machine.clock.now += 20
    assert machine.backend.page("old", 0) is None
    assert machine.backend.page("new", 0) == b"page"
    machine.backend.pulse("n1", 1, 100.0)
    assert [g.name for g in decode(store.peek(RUN)).groups] == ["new"]


# --- in doubt


class Doubtful(MemoryRegister):
    """A register whose next writes go the way of a script: ``lost`` on the way there, ``unanswered``, or ``late``.

    A late write reaches the store when the next write is made, and before it.
    """

    def __init__(self, store: MemoryStore, script: list[str]) -> None:
        super().__init__(store, RUN)
        self.script = script
        self.under_way: list[Callable[[], object]] = []

    def set_state(self, state, token=None):
        fate = self.script.pop(0) if self.script else ""
        if not fate:
            for write in self.under_way:
                write()
            self.under_way.clear()
            return super().set_state(state, token)
        if fate == "unanswered":
            super().set_state(state, token)
        else:
            self.writes += 1
        if fate == "late":
            self.under_way.append(lambda: MemoryRegister.set_state(self, state, token))
        raise RendezvousConnectionError("no answer", maybe_applied=True)


@pytest.mark.parametrize(
    ("fate", "writes"), [("lost", 2), ("unanswered", 1), ("late", 3)], ids=["lost", "unanswered", "late"]
)
def test_an_unsure_write_is_looked_up_by_its_word(store: MemoryStore, fate: str, writes: int):
    """Applied once, told truly, whatever became of it; the late one was written twice and won once."""
    register = Doubtful(store, [fate])
    machine = Machine(store, register=register)
    state, token, did_set = machine.backend.set_state(b"mine")
    assert (state, did_set) == (b"mine", True)
    assert (register.writes, register.wins) == (writes, 1)
    assert machine.backend.get_state() == (b"mine", token)


@pytest.mark.parametrize("fate", ["lost", "unanswered", "late"])
def test_an_unsure_announce_is_made_once(store: MemoryStore, fate: str):
    register = Doubtful(store, [fate])
    machine = Machine(store, register=register)
    answer = machine.backend.announce("n1", 1, b"record", TTL)
    assert (answer.known, answer.leads) == (True, True)
    assert register.wins == 1
    assert [(e.node_id, e.arrival) for e in machine.backend.roster().records] == [("n1", 1)]


def test_an_unsure_write_that_was_overwritten_is_not_made_again(store: MemoryStore):
    """It was applied, and someone has built on it since: the answer is what is there now."""
    rival = Machine(store)

    class Overwritten(Doubtful):
        def get_state(self):
            held = super().get_state()
            if self.writes == 1 and rival.register.writes == 0:
                rival.backend.set_state(b"theirs", rival.backend.get_state()[1])
                held = super().get_state()
            return held

    register = Overwritten(store, ["unanswered"])
    state, _, did_set = Machine(store, register=register).backend.set_state(b"mine")
    assert (state, did_set) == (b"theirs", False)
    assert register.writes == 1


def test_doubt_that_does_not_end_is_told(store: MemoryStore):
    machine = Machine(store, register=Doubtful(store, ["lost", "lost"]))
    with pytest.raises(RendezvousConnectionError) as caught:
        machine.backend.set_state(b"mine")
    assert caught.value.maybe_applied


def test_doubt_is_told_when_the_look_fails_too(store: MemoryStore):
    class CutAfterwards(Doubtful):
        def get_state(self):
            if self.writes:
                raise RendezvousConnectionError("still no answer")
            return super().get_state()

    machine = Machine(store, register=CutAfterwards(store, ["unanswered"]))
    with pytest.raises(RendezvousConnectionError) as caught:
        machine.backend.announce("n1", 1, b"", TTL)
    assert caught.value.maybe_applied


def test_a_crowd_ends_in_a_sentence_not_in_a_hang(store: MemoryStore):
    class AlwaysOvertaken(MemoryRegister):
        def set_state(self, state, token=None):
            self._store.poke(RUN, encode(msgspec.structs.replace(EMPTY, writes=("another",))))
            return super().set_state(state, token)

    machine = Machine(store, register=AlwaysOvertaken(store, RUN))
    machine.backend._backoff.took(0.002)
    with pytest.raises(
        RendezvousConnectionError, match=r"changed the register .* \d+ times in 3 s \(run 'job-7'"
    ) as caught:
        machine.announce("n1")
    assert not caught.value.maybe_applied
    assert machine.register.writes < 50, "losers must step aside"
    assert machine.clock.now < 6.0


# --- what is stored


GOOD = encode(msgspec.structs.replace(EMPTY, writes=("w",)))


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        pickle.dumps({"round": 1}),
        GOOD[:-1],
        GOOD + b" trailing",
        GOOD.replace(b'"v":1', b'"v":2'),
        GOOD.replace(b'"v":1', b'"v":"1"'),
        GOOD.replace(b'"v":1', b'"v":1,"more":0'),
        GOOD.replace(b'"arrivals":0', b'"arrivals":-1'),
        GOOD.replace(b"rdzv-core register", b"something else"),
        b"\xff\xfe",
    ],
)
def test_strange_bytes_are_refused_with_a_story(store: MemoryStore, stored: bytes):
    """Whatever stands in the register: one error of ours, that names backend and run; and nothing is overwritten."""
    store.poke(RUN, stored)
    machine = Machine(store)
    for call in (machine.backend.get_state, machine.backend.roster, lambda: machine.announce("n1")):
        with pytest.raises(RendezvousStateError, match=r"run 'job-7', backend memory") as caught:
            call()
        assert (caught.value.run_id, caught.value.backend) == (RUN, "memory")
    assert store.peek(RUN) == stored


def test_a_node_that_is_listed_twice_is_refused(store: MemoryStore):
    machine = Machine(store)
    machine.announce("n1")
    value = decode(store.peek(RUN))
    store.poke(RUN, encode(msgspec.structs.replace(value, nodes=value.nodes * 2)))
    with pytest.raises(RendezvousStateError, match="a node is listed twice"):
        machine.backend.roster()


def test_a_value_beyond_the_limit_is_neither_read_nor_written(store: MemoryStore):
    small = RegisterCoordination(MemoryRegister(store, RUN), run_id=RUN, largest=1000)
    with pytest.raises(RendezvousStateError, match=r"outgrown a single register .* 1000 is the limit"):
        small.set_state(b"x" * 1000)
    assert store.peek(RUN) is None
    store.poke(RUN, b" " * 1001)
    with pytest.raises(RendezvousStateError, match="1001 bytes are more than the limit of 1000"):
        small.get_state()


def test_the_value_does_not_grow_with_time(store: MemoryStore):
    machine = Machine(store)
    machine.announce("n1")
    token = None
    sizes = []
    for n in range(3 * WRITES_KEPT):
        machine.pulse("n1")
        token = machine.backend.set_state(b"%4d" % n, token)[1]
        sizes.append(len(store.peek(RUN)))
    assert max(sizes[WRITES_KEPT:]) <= sizes[WRITES_KEPT] + 2


# --- the end


def test_close_closes_the_register_underneath(store: MemoryStore):
    machine = Machine(store)
    machine.backend.close()
    with pytest.raises(RendezvousConnectionError, match="closed"):
        machine.register.get_state()
    with pytest.raises(RendezvousConnectionError, match=r"closed \(run 'job-7', backend memory\)"):
        machine.backend.get_state()
    machine.backend.close()
