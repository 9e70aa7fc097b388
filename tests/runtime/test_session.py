"""One session at a time, driven by hand on a clock of our own: what it asks of the store, and when.

What many sessions do together under faults is the simulator's subject.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from rdzv_core.api import Placed
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError, RendezvousTimeoutError
from rdzv_core.events import Event, MembersLost, NodeSuperseded, RoundGivenUp, RunClosed, StoreBack, StoreLost
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Bootstrap, Closed, Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.runtime.knowledge import Identity, SessionSettings
from rdzv_core.runtime.orders import (
    Abandon,
    Call,
    Close,
    Connect,
    Connected,
    Finish,
    Host,
    Hosted,
    Join,
    Leave,
    Look,
    Nudge,
    Place,
    RosterSeen,
    Sleep,
    StateSeen,
    WatchRoster,
)
from rdzv_core.runtime.session import Session
from rdzv_core.testing.memory import Change, MemoryBackend, MemoryStore
from rdzv_core.wire import decode_record, decode_register, encode_record, encode_register

RUN = "job-7"


class Hall:
    """A store, a clock, and the sessions that meet there. Nothing moves but by ``settle`` and ``advance``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = MemoryStore(now=self.monotonic, rng=Random(1))
        self.back_door = MemoryBackend(self.store, RUN)
        self.changes: set[Change] = set()
        self.store.on_change(lambda _, change: self.changes.add(change))
        self.nodes: list[Puppet] = []
        self.pushes = True

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> str:
        return "noon"

    @property
    def register(self) -> Register | None:
        data = self.store.peek(RUN)
        return None if data is None else decode_register(data)

    def node(self, name: str, low: int = 1, high: int = 1, **settings: Any) -> Puppet:
        node = Puppet(self, name, low, high, **settings)
        self.nodes.append(node)
        return node

    def settle(self) -> None:
        """Let everybody do what there is to do at this moment."""
        for _ in range(10_000):
            self._push()
            due = [n for n in self.nodes if not n.over and (n.session.inbox or n.sleeps_until <= self.now)]
            if not due:
                return
            due[0].go()
        raise AssertionError("the sessions do not come to rest")

    def _push(self) -> None:
        changes, self.changes = self.changes, set()
        if not self.pushes:
            return
        for node in self.nodes:
            if node.cut or node.deaf or node.over:
                continue
            if Change.REGISTER in changes:
                found = self.back_door.get_state()
                node.session.inbox.append(Nudge() if found is None else StateSeen(*found))
            if Change.LEASE in changes:
                node.session.inbox.append(Nudge())
            if Change.ROSTER in changes and node.watches:
                node.session.inbox.append(RosterSeen(self.back_door.roster(), self.now))

    def advance(self, seconds: float) -> None:
        """Let time pass, from one waking to the next."""
        until = self.now + seconds
        self.settle()
        while True:
            wakings = [n.sleeps_until for n in self.nodes if not n.over]
            expiry = self.store.next_expiry()
            self.now = max(self.now, min([until, *wakings, *([expiry] if expiry is not None else [])]))
            self.store.sweep()
            self.settle()
            if self.now >= until:
                return


class Puppet:
    """A session on strings."""

    def __init__(self, hall: Hall, name: str, low: int, high: int, **settings: Any) -> None:
        self.hall = hall
        self.backend = MemoryBackend(hall.store, RUN)
        self.events: list[Event] = []
        rules = Rules(min_nodes=low, max_nodes=high, interval=5.0, ttl=15.0)
        policy = settings.pop("policy", Policy(last_call=1.0, regroup=0.5))
        self.session = Session(
            Identity(node_id=name, addr=f"host-{name}", pid=1, local_id=0),
            SessionSettings(run_id=RUN, backend="memory", rules=rules, policy=policy, **settings),
            clock=hall,
            chance=Random(name),
            emit=self.events.append,
        )
        self.steps = self.session.run()
        self.sleeps_until = hall.now
        self.watches = self.cut = self.deaf = self.over = False
        self.calls: list[Call] = []
        self.before: Callable[[Call], None] = lambda call: None
        """Called before each call of the backend; may change the world, or raise."""
        self._answer: Any = None
        self._error: RendezvousError | None = None

    def go(self) -> None:
        """Obey until it sleeps."""
        while True:
            try:
                order = self.steps.throw(self._error) if self._error is not None else self.steps.send(self._answer)
            except StopIteration:
                self.over = True
                return
            self._answer = self._error = None
            match order:
                case Sleep(until):
                    self.sleeps_until = float("inf") if until is None else until
                    return
                case Call():
                    self.calls.append(order)
                    try:
                        self.before(order)
                        if self.cut:
                            raise RendezvousConnectionError("The cable is cut.")
                        self._answer = getattr(self.backend, order.name)(*order.args, **order.kwargs)
                    except RendezvousError as error:
                        self._error = error
                case WatchRoster():
                    self.watches = order.on
                case Place():
                    self._answer = Placed()
                case Host(seat):
                    self.session.inbox.append(Hosted(seat.round_id, Bootstrap(addr="h", port=seat.round)))
                case Connect(seat):
                    self.session.inbox.append(Connected(seat.round_id, f"store of {seat.round_id}"))

    def tell(self, message: Any) -> Any:
        self.session.inbox.append(message)
        return message

    def join(self, timeout: float = 60.0) -> Future:
        return self.tell(Join(timeout, Future())).promise

    def close(self, only_own: bool = True) -> Future:
        return self.tell(Close("success", "all is done", only_own, 5.0, Future())).promise

    def leave(self) -> None:
        self.tell(Leave("it is time", 2.0))

    def count(self) -> Counter[str]:
        """Calls by name since the last count."""
        counted = Counter(call.name for call in self.calls)
        self.calls.clear()
        return counted


@pytest.fixture
def hall() -> Hall:
    return Hall()


def in_a_round(hall: Hall, *names: str, low: int = 1, **settings: Any) -> list[Puppet]:
    nodes = [hall.node(name, low, len(names), **settings) for name in names]
    joins = [node.join() for node in nodes]
    hall.advance(2.0)
    assert [promise.result(0).seat.rank for promise in joins] == list(range(len(names)))
    for node in nodes:
        node.count()
    return nodes


# --- what a round costs -----------------------------------------------------------------------------------------


def test_the_first_round_costs_a_follower_an_announcement_a_page_and_a_look(hall: Hall):
    nodes = [hall.node(f"n{i:02}", 1, 20) for i in range(20)]
    joins = [node.join() for node in nodes]
    hall.settle()
    assert all(promise.done() for promise in joins)
    for node in nodes[1:]:
        assert node.count() == {"announce": 1, "page": 1, "get_state": 1}
    leader = nodes[0].count()
    assert leader["publish"] == 1
    assert leader["set_state"] == 2, "the round, and its store"
    assert leader.total() <= 6 + 1


def test_a_later_round_costs_no_more_than_six_commands(hall: Hall):
    nodes = in_a_round(hall, *(f"n{i:02}" for i in range(20)))
    joins = [node.join() for node in nodes]
    hall.settle()
    assert all(promise.result(0).seat.round == 2 for promise in joins)
    counts = [node.count() for node in nodes]
    for count in counts[1:]:
        assert count["announce"] == 1
        assert count.total() <= 6
    assert counts[0].total() <= 12


def test_peace_costs_a_pulse_per_interval_and_nothing_else(hall: Hall):
    nodes = in_a_round(hall, "a", "b", "c")
    hall.advance(100.0)
    for node in nodes:
        calls = node.count()
        assert set(calls) == ({"pulse", "roster"} if node.watches else {"pulse"}), "a leader looks whether all is well"
        assert 19 <= calls["pulse"] <= 21
        assert calls["roster"] <= calls["pulse"]


def test_a_lost_push_costs_one_interval(hall: Hall):
    nodes = in_a_round(hall, "a", "b")
    hall.pushes = False
    nodes[1].join()
    hall.advance(0.1)
    hall.changes.clear()
    hall.back_door.set_state(
        encode_register(
            Register(**{**_fields(hall.register), "revision": 99, "write_id": "x", "waiting": 1, "reason": "come"})
        ),
        hall.back_door.get_state()[1],
    )
    assert nodes[0].session.waiting == 0
    hall.advance(5.3)
    assert nodes[0].session.waiting == 1


def _fields(register: Register) -> dict[str, Any]:
    return {name: getattr(register, name) for name in register.__dataclass_fields__}


# --- doubt ------------------------------------------------------------------------------------------------------


def test_an_announcement_whose_answer_was_lost_is_made_again_with_a_higher_seq(hall: Hall):
    node = hall.node("a", 2, 2)
    node.join()
    hall.store.lose_answers(1)
    hall.settle()
    hall.advance(1.0)
    seqs = [call.args[1] for call in node.calls if call.name == "announce"]
    assert seqs == [1, 2]
    assert len(hall.back_door.roster().records) == 1


def test_a_failed_pulse_is_tried_again_within_a_second(hall: Hall):
    (node,) = in_a_round(hall, "a")
    hall.advance(4.0)
    node.cut = True
    tries: list[float] = []
    node.before = lambda call: tries.append(hall.now)
    hall.advance(8.0)
    assert len(tries) >= 6
    assert max(b - a for a, b in pairwise(tries)) <= 1.0
    assert [type(e) for e in node.events if isinstance(e, StoreLost | StoreBack)] == [StoreLost]
    node.cut = False
    hall.advance(1.0)
    (back,) = [e for e in node.events if isinstance(e, StoreBack)]
    assert 3.0 <= back.outage <= 9.0


def test_an_outage_of_thousands_of_tries_is_borne(hall: Hall):
    (node,) = in_a_round(hall, "a", store_outage_timeout=3600.0)
    node.cut = True
    hall.advance(2000.0)
    assert node.count()["pulse"] > 1100, "more than the exponent of a float can bear"
    node.cut = False
    hall.advance(1.0)
    told = [e for e in node.events if isinstance(e, StoreLost | StoreBack)]
    assert [type(e) for e in told] == [StoreLost] * 34 + [StoreBack], "at once, and each minute"
    assert all(event.at_work for event in told[:-1])
    assert told[0].patience == 3600.0
    assert 3600.0 - 2000.0 <= told[33].patience <= 3600.0 - 33 * 60.0
    assert node.session.failure is None


def test_a_node_that_waits_says_for_how_long_it_goes_on_trying(hall: Hall):
    node = hall.node("a", 1, 2)
    node.cut = True
    node.join(timeout=90.0)
    hall.advance(100.0)
    told = [(event.at_work, round(event.patience)) for event in node.events if isinstance(event, StoreLost)]
    assert told == [(False, 90), (False, 30)]


def test_an_interrupted_user_leaves_no_ghost_at_the_barrier(hall: Hall):
    node = hall.node("a", 2, 2)
    interrupted = node.join()
    hall.settle()
    node.tell(Abandon())
    hall.settle()
    assert interrupted.done()
    assert not hall.back_door.roster().records
    others = [hall.node(name, 2, 2).join() for name in ("b", "c")]
    hall.advance(2.0)
    assert [promise.result(0).seat.world for promise in others] == [2, 2]
    again = node.join()
    hall.settle()
    assert not again.done(), "it may wait once more, as anybody"


def test_who_was_interrupted_as_it_was_seated_gives_the_seat_back(hall: Hall):
    nodes = in_a_round(hall, "a", "b")
    nodes[1].tell(Abandon())
    hall.settle()
    assert nodes[0].session.waiting == 1, "the other is told that a member has gone"
    assert [entry.node_id for entry in hall.back_door.roster().records] == ["a"]


def test_a_node_that_leaves_withdraws_although_it_cannot_read_the_register(hall: Hall):
    """Another version of this library may have written it meanwhile."""
    nodes = in_a_round(hall, "a", "b")
    nodes[1].leave()
    nodes[1].tell(StateSeen(b"what is this?", "a token"))
    hall.settle()
    hall.advance(0.2)
    assert nodes[1].session.took_leave
    assert nodes[1].over
    assert [entry.node_id for entry in hall.back_door.roster().records] == ["a"]


def test_news_that_was_known_already_does_not_put_off_a_read_that_is_due(hall: Hall):
    """A pulse said that there is more, and the push of that was lost."""
    _, node = in_a_round(hall, "a", "b")
    hall.pushes = False
    known = hall.back_door.get_state()
    closed = Closed(by="somebody", outcome="closed", reason="enough", at="noon")
    changed = Register(**{**_fields(hall.register), "revision": 99, "write_id": "x", "closed": closed})
    hall.back_door.set_state(encode_register(changed), known[1])
    while not node.count()["pulse"]:
        hall.advance(0.1)
    assert not [event for event in node.events if isinstance(event, RunClosed)]
    node.tell(StateSeen(*known))
    hall.advance(0.3)
    assert [event.by for event in node.events if isinstance(event, RunClosed)] == ["somebody"]


def test_a_close_whose_answer_was_lost_is_found_and_not_repeated(hall: Hall):
    (node,) = in_a_round(hall, "a")

    def lose(call: Call) -> None:
        if call.name == "set_state":
            node.before = lambda call: None
            hall.store.lose_answers(1)

    node.before = lose
    promise = node.close()
    hall.advance(1.0)
    assert promise.result(0) is True
    assert node.count()["set_state"] == 1
    assert hall.register.closed.by == "a"


# --- leave is not close -----------------------------------------------------------------------------------------


def test_a_close_looks_again_for_each_attempt(hall: Hall):
    """The others form a round between its reading and its writing: then it is not its run to close."""
    a, _ = in_a_round(hall, "a", "b")

    def others_go_on(call: Call) -> None:
        if call.name == "set_state":
            a.before = lambda call: None
            data, token = hall.back_door.get_state()
            register = Register(**{**_fields(decode_register(data)), "round": 2, "round_id": "r2", "revision": 50})
            hall.back_door.set_state(encode_register(register), token)

    a.before = others_go_on
    promise = a.close()
    hall.settle()
    assert promise.result(0) is False
    assert hall.register.closed is None
    assert hall.register.round == 2


def test_a_close_that_loses_a_race_for_the_same_round_is_made_again(hall: Hall):
    a, _ = in_a_round(hall, "a", "b")

    def rewrite(call: Call) -> None:
        if call.name == "set_state":
            a.before = lambda call: None
            data, token = hall.back_door.get_state()
            register = Register(**{**_fields(decode_register(data)), "revision": 50, "waiting": 1, "reason": "x"})
            hall.back_door.set_state(encode_register(register), token)

    a.before = rewrite
    promise = a.close()
    hall.settle()
    assert promise.result(0) is True
    assert (hall.register.closed.by, hall.register.revision) == ("a", 51)


def test_a_leader_that_leaves_decides_once_more_and_takes_lease_and_record_along(hall: Hall):
    a, b = in_a_round(hall, "a", "b")
    began = hall.now
    a.leave()
    hall.settle()
    assert a.session.took_leave
    assert a.over
    assert [call.name for call in a.calls][-2:] == ["set_state", "withdraw"]
    assert hall.register.lost == 1
    assert b.session.waiting == 1
    assert hall.now == began, "nobody has waited for anything"
    hall.advance(0.2)
    assert b.watches, "it leads now"


def test_a_leader_that_cannot_write_lets_another_try(hall: Hall):
    a, b = in_a_round(hall, "a", "b")

    def refuse(call: Call) -> None:
        if call.name == "set_state":
            raise RendezvousConnectionError("No answer.", maybe_applied=False)

    a.before = refuse
    b.join()
    hall.advance(6.0)
    assert [call.kwargs["lead"] for call in a.calls if call.name in ("pulse", "announce")][-1] is False
    assert b.watches
    assert not a.watches


def test_a_join_that_times_out_looks_once_more_and_goes_on_if_it_was_seated(hall: Hall):
    """Its decision to give up and the leader's to seat it crossed."""
    a, b = hall.node("a", 2, 2), hall.node("b", 2, 2)
    joined = a.join()
    hall.settle()
    b.deaf = True
    promise = b.join(timeout=3.0)
    hall.advance(2.9)
    assert hall.register.world == 2
    assert not promise.done()
    hall.advance(0.2)
    b.deaf = False
    assert "withdraw" not in b.count(), "the others were not told that it leaves"
    assert promise.result(0).seat.world == joined.result(0).seat.world == 2
    assert hall.register.lost == 0


def test_the_time_as_a_spare_does_not_count_against_the_join_timeout(hall: Hall):
    a, b = in_a_round(hall, "a", "b", low=2)
    c = hall.node("c", 2, 2)
    promise = c.join(timeout=10.0)
    hall.advance(60.0)
    a.leave()  # and b does not come back
    hall.advance(8.0)
    assert b.session.waiting > 0
    assert not promise.done()
    hall.advance(4.0)
    with pytest.raises(RendezvousTimeoutError, match=r"did not complete in 7\d s"):
        promise.result(0)


def test_the_end_of_a_run_is_told_once_however_often_it_is_looked_at(hall: Hall):
    a, b = in_a_round(hall, "a", "b")
    a.close()
    hall.settle()
    b.session.journal.note("something else")
    b.close()
    hall.advance(20.0)
    assert [[e.by for e in node.events if isinstance(e, RunClosed)] for node in (a, b)] == [["a"], ["a"]]


def test_the_news_that_a_run_is_closed_outlives_the_last_node_by_its_time(hall: Hall):
    (a,) = in_a_round(hall, "a", closed_ttl=60.0)
    a.close()
    hall.settle()
    a.leave()
    hall.advance(59.0)
    assert hall.register.closed is not None
    hall.advance(2.0)
    assert hall.register is None
    assert in_a_round(hall, "b"), "and then the id is free"


# --- lost data --------------------------------------------------------------------------------------------------


def test_a_store_that_lost_everything_is_told_again_without_a_restart(hall: Hall):
    nodes = in_a_round(hall, "a", "b", "c")
    before = hall.register
    hall.store.wipe()
    hall.advance(6.0)
    after = hall.register
    assert (after.life, after.round_id, after.bootstrap) == (before.life, before.round_id, before.bootstrap)
    assert after.revision >= before.revision
    assert after.write_id != before.write_id
    records = [decode_record(entry.record) for entry in hall.back_door.roster().records]
    assert {record.claim.round_id for record in records} == {before.round_id}
    hall.advance(60.0)
    assert [node.session.waiting for node in nodes] == [0, 0, 0]
    assert hall.back_door.page(before.round_id, 0) is not None, "who once led has kept the pages"


def test_pages_that_are_lost_come_back_from_who_once_led(hall: Hall):
    a, b = in_a_round(hall, "a", "b")
    pages = hall.store._runs[RUN].pages
    before = {group: held.pages for group, held in pages.items()}
    pages.clear()
    a.deaf = True
    a.backend.pulse("a", 1, 15.0, lead=False)  # the lease is free, and b, which never saw the pages, takes it
    hall.advance(0.5)
    assert b.watches
    assert hall.register.rollcall
    hall.advance(6.0)
    assert {group: held.pages for group, held in pages.items()} == before
    assert a.count()["publish"] == 1
    hall.advance(30.0)
    assert a.count()["publish"] == 0
    assert [node.session.waiting for node in (a, b)] == [0, 0]


def test_with_the_pages_lost_for_good_the_roll_is_called(hall: Hall):
    nodes = in_a_round(hall, "a", "b", "c")
    hall.store._runs[RUN].pages.clear()
    nodes[0].cut = True  # the only one that ever led
    hall.advance(40.0)
    assert hall.register.rollcall
    records = [decode_record(entry.record) for entry in hall.back_door.roster().records]
    claims = {(record.node_id, record.claim.round_id) for record in records}
    assert claims == {(name, hall.register.round_id) for name in "bc"}
    assert [node.session.waiting for node in nodes[1:]] == [1, 1], "and a is missing"


def test_a_node_of_an_old_life_learns_that_it_is_superseded(hall: Hall):
    (old,) = in_a_round(hall, "old")
    old.cut = True
    hall.store.wipe()
    hall.settle()
    (_,) = in_a_round(hall, "new")
    life = hall.register.life
    old.cut = False
    hall.advance(6.0)
    assert old.session.waiting == 1
    assert any(isinstance(e, NodeSuperseded) for e in old.events)
    assert hall.register.life == life
    promise = old.close()
    hall.settle()
    assert promise.result(0) is False
    assert hall.register.closed is None


def test_a_page_that_does_not_come_costs_a_round_and_no_more(hall: Hall):
    a, b = hall.node("a", 2, 2), hall.node("b", 2, 2)
    joined = a.join()
    hall.settle()

    def evict(call: Call) -> None:
        if call.name == "page":
            hall.store._runs[RUN].pages.clear()

    b.before = evict
    waiting = b.join()
    hall.advance(2.9)
    assert 10 <= b.count()["page"] <= 16, "it looks again and again, and not all the time"
    assert not waiting.done()
    hall.advance(0.2)
    assert joined.result(0).seat.round == 1
    (given_up,) = [e for e in b.events if isinstance(e, RoundGivenUp)]
    assert "page of round 1 was missing for 3.0 s" in given_up.reason
    assert a.session.waiting == 1
    b.before = lambda call: None
    again = a.join()
    hall.advance(1.0)
    assert waiting.result(0).seat.round == again.result(0).seat.round == 2


def test_a_tombstone_from_the_future_is_waited_out_without_a_storm(hall: Hall):
    """A store that was rolled back, or a clock of seqs that was: the node cannot be heard until it has expired."""
    (a,) = in_a_round(hall, "a")
    hall.back_door.withdraw("a", 99, 15.0)
    hall.advance(30.0)
    assert [entry.node_id for entry in hall.back_door.roster().records] == ["a"]
    assert a.session.waiting == 0
    assert a.count()["announce"] <= 90


def test_records_that_cannot_be_read_or_are_not_what_they_say_are_passed_over(hall: Hall):
    hall.back_door.announce("x", 1, b"\x80 not ours", 60.0)
    z = Record(node_id="z", seq=1, addr="h", pid=1, local_id=0, min_nodes=2, max_nodes=4)
    hall.back_door.announce("y", 1, encode_record(z), 60.0)
    a, b = hall.node("a", 2, 4), hall.node("b", 2, 4)
    joins = [a.join(), b.join()]
    hall.settle()
    hall.back_door.pulse("x", 1, 60.0, lead=False)  # whoever announced first holds the lease
    hall.advance(3.0)
    assert {promise.result(0).seat.world for promise in joins} == {2}
    story = "\n".join((*a.session.journal.story(), *b.session.journal.story()))
    assert "the record of node 'x' is passed over" in story
    assert "the record of node 'y' is passed over: it says 'z'" in story


def test_a_register_that_cannot_be_read_is_told_to_whoever_asks(hall: Hall):
    (a,) = in_a_round(hall, "a")
    hall.store.poke(RUN, b"not ours")
    look = a.tell(Look(5.0, Future())).promise
    close = a.close()
    hall.advance(1.0)
    for promise in (look, close):
        with pytest.raises(RendezvousStateError, match="register in the store cannot be read"):
            promise.result(0)
    assert a.session.waiting == 0, "its workers go on"
    a.leave()
    hall.advance(3.0)
    assert a.session.took_leave
    assert a.over


# --- decisions --------------------------------------------------------------------------------------------------


def test_a_decision_that_took_too_long_is_made_anew(hall: Hall):
    a, b = hall.node("a", 2, 4), hall.node("b", 2, 4)
    joined = a.join()
    b.join()

    def slow(call: Call) -> None:
        if call.name == "publish":
            a.before = lambda call: None
            hall.now += 2.5
            hall.back_door.withdraw("b", 99, 15.0)
            b.over = True

    a.before = slow
    hall.advance(4.0)
    assert a.count()["publish"] == 1, "the first was dropped, and alone a is too few"
    assert hall.register is None
    hall.node("c", 2, 4).join()
    hall.advance(1.1)
    assert joined.result(0).seat.world == 2


def test_a_leader_whom_the_others_contradict_steps_aside_and_learns_why(hall: Hall):
    odd = hall.node("odd", 3, 3)
    refused = odd.join()
    hall.settle()
    nodes = [hall.node(name, 2, 2) for name in "ab"]
    joins = [node.join() for node in nodes]
    hall.advance(6.0)
    assert {promise.result(0).seat.world for promise in joins} == {2}
    with pytest.raises(RendezvousStateError, match=r"nodes 2:2.*nodes 3:3"):
        refused.result(0)
    assert any("does not lead for 15 s: most nodes play by other rules" in line for line in odd.session.journal.story())


# --- who may judge ----------------------------------------------------------------------------------------------


def test_nobody_is_called_dead_by_a_judge_that_shared_the_outage(hall: Hall):
    nodes = in_a_round(hall, "a", "b", "c")
    hall.advance(20.0)
    for node in nodes:
        node.cut = True
    hall.advance(30.0)
    assert not hall.back_door.roster().records, "all have expired"
    b = nodes[1]
    b.cut = False
    hall.advance(14.0)
    assert b.watches
    assert hall.register.lost == 0
    hall.advance(6.0)
    assert hall.register.lost == 2, "after a whole TTL of unbroken contact silence is death"


def test_who_had_to_write_the_register_again_does_not_take_silence_for_death(hall: Hall):
    """The store has lost it, and perhaps records too: b's is gone, and b will say so with its next pulse."""
    a, b = in_a_round(hall, "a", "b")
    hall.advance(22.0)
    b.deaf = True
    run = hall.store._runs[RUN]
    run.register = None
    run.remove("b")
    hall.changes |= {Change.REGISTER, Change.ROSTER}
    hall.advance(8.0)
    assert len(hall.back_door.roster().records) == 2
    assert not any(isinstance(e, MembersLost) for e in a.events)
    assert [node.session.waiting for node in (a, b)] == [0, 0]


def test_finished_is_said_once_and_a_new_join_takes_it_back(hall: Hall):
    (a,) = in_a_round(hall, "a")
    a.tell(Finish())
    hall.settle()
    assert a.count() == {"announce": 1}
    assert decode_record(hall.back_door.roster().records[0].record).done
    promise = a.join()
    hall.advance(2.0)
    assert promise.result(0).seat.round == 2
    assert not decode_record(hall.back_door.roster().records[0].record).done
