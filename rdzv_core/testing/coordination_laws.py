"""The laws of level 2: membership that expires, a leader lease, waits that are woken, pages, and their ends.

Time here is real, and short: records live for ``ttl`` seconds. A law about time holds the store to both sides
of its promise: *not before*, by the clock from before the call that started the time; *not later*, by the
clock from after it, plus the second that the contract allows for noticing, plus slack for a busy machine.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from rdzv_core.backend import CoordinationBackend, Pulse, Roster
from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError
from rdzv_core.testing.register_laws import RegisterConformance, token_of, written
from rdzv_core.testing.suite import (
    BackDoor,
    MakeBackend,
    Power,
    Waiting,
    eventually,
    needs,
    together,
)

__all__ = ["CoordinationConformance"]

LONG = 60.0
"""Seconds of a time to live that does not end during a law."""


class CoordinationConformance(RegisterConformance):
    """Inherit this to try a level-2 backend; it contains the laws of level 1."""

    ttl: ClassVar[float] = 0.6
    """Seconds that a record lives in the laws about expiry; raise it for a backend that is slow by nature."""
    notice: ClassVar[float] = 1.0
    """Seconds within which an expiry is noticed and a blocked call woken; the contract's figure."""

    @property
    def soon(self) -> float:
        """Seconds within which a change must be noticed."""
        return self.notice + self.slack

    # --- the roster

    def test_a_fresh_roster_is_empty(self, backend: CoordinationBackend) -> None:
        """In a run where nobody announced there is nobody, and nobody has withdrawn."""
        roster = read(backend)
        assert (roster.records, roster.withdrawn, roster.base) == ((), frozenset(), None)

    def test_an_announced_node_is_in_everybodys_roster(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """What one client announces every client sees, with the record's bytes exactly."""
        record = b'\0{"v": 1}\xff\n'
        assert backend.announce("n1", 1, record, LONG).known
        for client in (backend, other):
            assert [(e.node_id, e.record) for e in read(client).records] == [("n1", record)]

    def test_the_roster_is_in_order_of_arrival(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """Records are listed as their ids first came, not by name, by seq, or by who asks."""
        names = [f"n{n}" for n in (7, 3, 11, 1, 9, 2, 10, 5, 12, 4)]
        for n, name in enumerate(names):
            (backend, other)[n % 2].announce(name, 20 - n, b"", LONG)
        for client in (backend, other):
            roster = read(client)
            assert ids(roster) == names
            arrivals = [e.arrival for e in roster.records]
            assert arrivals == sorted(set(arrivals)), "arrival numbers must grow"

    def test_arrival_is_kept_over_a_new_announce(self, backend: CoordinationBackend) -> None:
        """To say something new is not to arrive anew: the record changes, the place in the order does not."""
        for name in ("first", "second", "third"):
            backend.announce(name, 1, b"old", LONG)
        before = read(backend)
        assert backend.announce("first", 2, b"new", LONG).known
        after = read(backend)
        assert ids(after) == ["first", "second", "third"]
        assert after.records[0].record == b"new"
        assert after.records[0].arrival == before.records[0].arrival
        assert after.version != before.version

    def test_who_comes_back_arrives_last(self, backend: CoordinationBackend) -> None:
        """Arrival lasts as long as the record: an id that had withdrawn gets a new number, after all others."""
        for name in ("first", "second"):
            backend.announce(name, 1, b"", LONG)
        backend.withdraw("first", 2, LONG)
        backend.announce("first", 3, b"", LONG)
        assert ids(read(backend)) == ["second", "first"]

    def test_a_lower_seq_is_refused(self, backend: CoordinationBackend) -> None:
        """An announce that was overtaken by a later one changes nothing and is not known."""
        backend.announce("n1", 5, b"later", LONG)
        before = read(backend)
        assert not backend.announce("n1", 4, b"earlier", LONG).known
        assert read(backend) == before

    def test_an_announce_that_comes_twice_does_no_harm(self, backend: CoordinationBackend) -> None:
        """The same announce delivered again is known, and leaves record and arrival as they are."""
        backend.announce("n1", 1, b"record", LONG)
        backend.announce("n2", 1, b"record", LONG)
        before = read(backend)
        assert backend.announce("n1", 1, b"record", LONG).known
        assert read(backend).records == before.records

    def test_an_announce_that_comes_after_its_withdrawal_is_refused(self, backend: CoordinationBackend) -> None:
        """A late announce does not raise who has left: seq must be above that of the withdrawal."""
        backend.announce("n1", 1, b"", LONG)
        backend.withdraw("n1", 3, LONG)
        for late in (1, 2, 3):
            answer = backend.announce("n1", late, b"late", LONG)
            assert not answer.known
            assert not answer.leads
            assert ids(read(backend)) == []
        assert backend.announce("n1", 4, b"back", LONG).known
        assert ids(read(backend)) == ["n1"]

    def test_a_withdrawal_that_comes_before_its_announce_holds(self, backend: CoordinationBackend) -> None:
        """Of an announce and its withdrawal that arrive in the wrong order the withdrawal is what counts."""
        backend.withdraw("n1", 2, LONG)
        assert not backend.announce("n1", 1, b"late", LONG).known
        roster = read(backend)
        assert ids(roster) == []
        assert roster.withdrawn == {"n1"}

    def test_a_withdrawal_with_a_lower_seq_is_refused(self, backend: CoordinationBackend) -> None:
        """A withdrawal that was overtaken by an announce changes nothing."""
        backend.announce("n1", 5, b"stays", LONG)
        backend.withdraw("n1", 4, LONG)
        roster = read(backend)
        assert (ids(roster), roster.withdrawn) == (["n1"], frozenset())

    def test_a_withdrawn_node_shows_as_withdrawn_for_one_ttl(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """Who has left is told from who is silent, for the length of its ``ttl`` and not for ever."""
        backend.announce("stays", 1, b"", LONG)
        backend.announce("leaves", 1, b"", LONG)
        began = time.monotonic()
        backend.withdraw("leaves", 2, self.ttl)
        done = time.monotonic()
        assert ids(read(other)) == ["stays"]
        self.ends(
            "the tombstone",
            lambda: "leaves" in read(other).withdrawn,
            earliest=began + self.ttl,
            latest=done + self.ttl + self.soon,
        )

    def test_who_comes_back_is_no_longer_withdrawn(self, backend: CoordinationBackend) -> None:
        """The next announce ends the withdrawal."""
        backend.announce("n1", 1, b"", LONG)
        backend.withdraw("n1", 2, LONG)
        backend.announce("n1", 3, b"", LONG)
        assert read(backend).withdrawn == frozenset()

    # --- life and death

    def test_an_expired_record_leaves_within_a_second_and_not_before(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """A node that says nothing is in the roster for its whole ``ttl``, and gone a second later."""
        began = time.monotonic()
        backend.announce("silent", 1, b"", self.ttl)
        done = time.monotonic()
        self.ends(
            "the record",
            lambda: "silent" in ids(read(other)),
            earliest=began + self.ttl,
            latest=done + self.ttl + self.soon,
        )
        assert read(other).withdrawn == frozenset(), "silence was taken for a withdrawal"

    def test_a_pulse_renews_the_record(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A node that pulses is never missed, for many times its ``ttl``."""
        seq = 0

        def begin() -> None:
            nonlocal seq
            seq += 1
            backend.announce("alive", seq, b"", self.ttl)

        def pulsed_and_there() -> None:
            assert backend.pulse("alive", seq, self.ttl).known
            assert ids(read(other)) == ["alive"]

        self.holds_for(3 * self.ttl, pulsed_and_there, begin=begin, lasts=self.ttl)

    def test_no_pulse_revives_an_expired_record(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """Once gone is gone: a late pulse is told so, leads nothing, and brings nobody back."""
        backend.announce("slow", 1, b"", self.ttl)
        eventually("the record expires", lambda: ids(read(other)) == [], within=self.ttl + self.soon)
        late = backend.pulse("slow", 1, LONG)
        assert not late.known
        assert not late.leads
        assert ids(read(other)) == []
        assert backend.announce("slow", 2, b"", LONG).known
        assert ids(read(other)) == ["slow"]

    def test_a_pulse_of_another_seq_is_not_known(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """A pulse renews what it names and nothing else: with another ``seq`` the record still expires."""
        began = time.monotonic()
        backend.announce("n1", 5, b"", self.ttl)
        done = time.monotonic()

        def still_there_in_spite_of_false_pulses() -> bool:
            for seq in (4, 6):
                assert not backend.pulse("n1", seq, LONG).known
            return "n1" in ids(read(other))

        self.ends(
            "the record",
            still_there_in_spite_of_false_pulses,
            earliest=began + self.ttl,
            latest=done + self.ttl + self.soon,
        )

    def test_a_wiped_store_knows_nobody(self, backend: CoordinationBackend, back_door: BackDoor, run_id: str) -> None:
        """A store that lost its data says so to a pulse, and does not pretend to remember."""
        written(backend.set_state(b"state"))
        assert backend.announce("n1", 1, b"", LONG).leads
        back_door.wipe(run_id)
        answer = backend.pulse("n1", 1, LONG)
        assert (answer.known, answer.leads, answer.token) == (False, False, None)
        assert ids(read(backend)) == []
        assert backend.announce("n1", 2, b"", LONG).known

    # --- the lease

    def test_a_vacant_lease_is_taken_by_whoever_asks(self, backend: CoordinationBackend) -> None:
        """An announce takes it, or a pulse; unless the node does not want it."""
        assert not backend.announce("n1", 1, b"", LONG, lead=False).leads
        assert not backend.pulse("n1", 1, LONG, lead=False).leads
        assert backend.announce("n2", 1, b"", LONG).leads
        backend.withdraw("n2", 2, LONG)
        assert backend.pulse("n1", 1, LONG).leads

    def test_the_lease_is_held_by_one(self, open_backend: MakeBackend, run_id: str) -> None:
        """However many ask at once, one leads, and goes on leading while the others ask."""
        clients = {f"n{n}": open_backend(run_id) for n in range(6)}
        answers = together([functools.partial(client.announce, name, 1, b"", LONG) for name, client in clients.items()])
        leaders = [name for name, answer in zip(clients, answers, strict=True) if answer.leads]
        assert len(leaders) == 1
        for _ in range(3):
            assert [n for n, client in clients.items() if client.pulse(n, 1, LONG).leads] == leaders

    def test_the_lease_is_renewed_by_pulses(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A leader that pulses leads on, for many times the length of its lease."""
        other.announce("follower", 1, b"", LONG, lead=False)
        seq = 0

        def begin() -> None:
            nonlocal seq
            seq += 1
            other.pulse("follower", 1, LONG, lead=False)
            assert backend.announce("leader", seq, b"", self.ttl).leads

        def still_leads() -> None:
            assert not other.pulse("follower", 1, LONG).leads, "the lease ended though its owner pulses"
            assert backend.pulse("leader", seq, self.ttl).leads

        self.holds_for(3 * self.ttl, still_leads, begin=begin, lasts=self.ttl)

    def test_the_lease_ends_by_expiry(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A silent leader's lease falls to the next who asks, when its time is over and not before."""
        began = time.monotonic()
        assert backend.announce("silent", 1, b"", self.ttl).leads
        done = time.monotonic()
        other.announce("heir", 1, b"", LONG)
        self.ends(
            "the lease",
            lambda: not other.pulse("heir", 1, LONG).leads,
            earliest=began + self.ttl,
            latest=done + self.ttl + self.soon,
        )
        assert not backend.pulse("silent", 1, LONG).leads

    def test_a_withdrawal_gives_the_lease_up(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A leader that leaves does not leave the others without one until its lease ends."""
        assert backend.announce("leader", 1, b"", LONG).leads
        assert not other.announce("heir", 1, b"", LONG).leads
        backend.withdraw("leader", 2, LONG)
        assert other.pulse("heir", 1, LONG).leads

    def test_a_pulse_without_lead_gives_the_lease_up(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """A leader may step down and stay."""
        assert backend.announce("leader", 1, b"", LONG).leads
        other.announce("heir", 1, b"", LONG)
        answer = backend.pulse("leader", 1, LONG, lead=False)
        assert (answer.known, answer.leads, answer.lease_left) == (True, False, 0.0)
        assert other.pulse("heir", 1, LONG).leads
        assert not backend.pulse("leader", 1, LONG).leads

    def test_lease_left_says_how_long(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """Everybody is told when the lease ends: never more than its length, zero if nobody leads."""
        assert backend.announce("n1", 1, b"", LONG, lead=False).lease_left == 0.0
        lease = 5.0
        began = time.monotonic()
        assert 0 < backend.announce("leader", 1, b"", lease).lease_left <= lease
        first = other.pulse("n1", 1, LONG)
        assert not first.leads
        assert lease - (time.monotonic() - began) - self.slack <= first.lease_left <= lease
        eventually(
            "lease_left shrinks",
            lambda: other.pulse("n1", 1, LONG),
            until=lambda later: later.lease_left < first.lease_left,
            within=self.soon,
        )

    def test_an_unknown_node_never_leads(self, backend: CoordinationBackend) -> None:
        """A pulse without a record takes no lease, even if nobody holds it."""
        stranger = backend.pulse("stranger", 1, LONG)
        assert (stranger.known, stranger.leads, stranger.lease_left) == (False, False, 0.0)
        assert backend.announce("n1", 1, b"", LONG).leads

    def test_a_pulse_shows_the_present_register(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """Each answer carries the register's token, None if it is empty, so no lost wake-up is lost for long."""
        assert backend.announce("n1", 1, b"", LONG).token is None
        assert backend.pulse("n1", 1, LONG).token is None
        token = None
        for seq, state in enumerate((b"one", b"two"), start=1):
            _, token, _ = written(other.set_state(state, token))
            assert backend.pulse("n1", seq, LONG).token == token_of(backend)
            assert backend.announce("n1", seq + 1, b"", LONG).token == token_of(backend)
            assert backend.pulse("n1", 99, LONG).token == token_of(backend), "an unknown node is not told"

    # --- waiting for the roster

    def test_a_roster_that_differs_is_returned_at_once(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """A reader that is behind does not wait, whatever it had seen: an older version or a foreign one."""
        seen = read(backend)
        other.announce("n1", 1, b"", LONG)
        for version in (seen.version, "no version of this store", ("x", 1), 0):
            began = time.monotonic()
            roster = backend.roster(version, LONG)
            assert time.monotonic() - began < self.soon
            assert roster is not None
            assert ids(roster.onto(seen)) == ["n1"]

    def test_a_roster_that_is_the_same_blocks_until_the_timeout(self, backend: CoordinationBackend) -> None:
        """With nothing new the call takes its ``timeout`` and answers None; with none it answers at once."""
        backend.announce("n1", 1, b"", LONG)
        version = read(backend).version
        assert backend.roster(version) is None
        began = time.monotonic()
        assert backend.roster(version, self.ttl) is None
        assert self.ttl <= time.monotonic() - began <= self.ttl + self.soon

    def test_an_announce_wakes_the_roster(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A newcomer is noticed within a second."""
        self.wakes_the_roster(backend, lambda: other.announce("n2", 1, b"", LONG), ["n1", "n2"])

    def test_a_new_announce_wakes_the_roster(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A record that changed is noticed within a second."""
        roster = self.wakes_the_roster(backend, lambda: other.announce("n1", 2, b"new", LONG), ["n1"])
        assert roster.records[0].record == b"new"

    def test_a_withdrawal_wakes_the_roster(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A departure is noticed within a second."""
        roster = self.wakes_the_roster(backend, lambda: other.withdraw("n1", 2, LONG), [])
        assert roster.withdrawn == {"n1"}

    def test_an_expiry_wakes_the_roster(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """A node that fell silent is noticed within a second of its end, though nobody makes a call."""

        def seen_alive() -> Roster:
            other.announce("silent", 1, b"", self.ttl)
            return read(backend)

        seen = eventually("it is there", seen_alive, within=self.soon, until=lambda roster: ids(roster) == ["silent"])
        done = time.monotonic()
        roster = backend.roster(seen.version, LONG)
        assert roster is not None
        assert ids(roster.onto(seen)) == []
        assert time.monotonic() <= done + self.ttl + self.soon

    @pytest.mark.parametrize("seed", range(3))
    def test_changes_compose_to_the_whole(
        self, backend: CoordinationBackend, other: CoordinationBackend, seed: int
    ) -> None:
        """Whatever is answered, a whole roster or a change, leads to the same roster as a plain list would.

        Random announces, stale announces and withdrawals, compared with a model after random numbers of them.
        """
        rng = random.Random(seed)
        model = _Model()
        kept: Roster | None = None
        for step in range(80):
            client = rng.choice([backend, other])
            node_id, seq = f"n{rng.randrange(6)}", rng.randrange(step // 4 + 3)
            if rng.random() < 0.6:
                record = b"%d" % step
                assert client.announce(node_id, seq, record, LONG).known == model.announce(node_id, seq, record)
            else:
                client.withdraw(node_id, seq, LONG)
                model.withdraw(node_id, seq)
            if rng.random() < 0.4:
                answer = backend.roster(None if kept is None else kept.version)
                if answer is not None:
                    kept = answer.onto(kept)
                    assert kept.withdrawn == set(model.withdrawn), f"at step {step}"
                assert kept is not None
                assert [(e.node_id, e.record) for e in kept.records] == model.listed(), f"at step {step}"

    # --- waiting for the register

    def test_a_register_that_differs_is_returned_at_once(
        self, backend: CoordinationBackend, other: CoordinationBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """Different is what counts, not greater: none, an older token, a foreign one, a write by a stranger."""
        first = written(other.set_state(b"one"))[1]
        second = written(other.set_state(b"two", first))[1]
        for stale in (None, first, "no token of this store", object()):
            assert self.told_at_once(backend, stale) == b"two"
        back_door.write_register(run_id, b"by a stranger")
        assert self.told_at_once(backend, second) == b"by a stranger"

    @needs(Power.ROLL_BACK)
    def test_a_register_that_fell_back_is_returned_at_once(self, backend: CoordinationBackend, back_door: Any) -> None:
        """After a failover that lost writes the register is *older* than what was seen, and that is told."""
        first = written(backend.set_state(b"old"))[1]
        back_door.snapshot()
        second = written(backend.set_state(b"new", first))[1]
        back_door.roll_back()
        assert self.told_at_once(backend, second) == b"old"

    def test_a_lost_register_ends_the_wait(
        self, backend: CoordinationBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """When the register that was seen is no longer there, the call does not wait for its return."""
        token = written(backend.set_state(b"state"))[1]
        back_door.wipe(run_id)
        assert Waiting(lambda: backend.wait_state(token, LONG)).result(within=self.soon) is None

    def test_a_register_that_is_the_same_blocks_until_the_timeout(self, backend: CoordinationBackend) -> None:
        """With nothing new, empty or not, the answer is None when the ``timeout`` is over."""
        assert backend.wait_state(None, 0.0) is None
        token = None
        for state in (None, b"state"):
            if state is not None:
                token = written(backend.set_state(state))[1]
            waiting = Waiting(functools.partial(backend.wait_state, token, self.ttl))
            assert waiting.result(within=self.ttl + self.soon) is None
            assert waiting.ended - waiting.began >= self.ttl, "the call did not wait"

    def test_a_write_wakes_the_waiters(self, open_backend: MakeBackend, run_id: str) -> None:
        """A write is noticed by everyone who waits within a second, the first of a run too."""
        writer, *readers = (open_backend(run_id) for _ in range(4))
        token = None
        for state in (b"first", b"second"):
            waiting = [Waiting(functools.partial(r.wait_state, token_of(r), LONG)) for r in readers]
            for waiter in waiting:
                assert waiter.blocks(), "the call did not wait"
            _, token, _ = written(writer.set_state(state, token))
            for reader, waiter in zip(readers, waiting, strict=True):
                assert waiter.result(within=self.soon) == (state, token_of(reader))

    def test_giving_up_the_lease_wakes_the_waiters(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """When a leader leaves or steps down the others are told within a second, so that one takes over."""
        token = written(backend.set_state(b"state"))[1]
        other.announce("waits", 1, b"", LONG, lead=False)
        ways: list[Callable[[int], object]] = [
            lambda seq: backend.pulse("leader", seq, LONG, lead=False),
            lambda seq: backend.withdraw("leader", seq, LONG),
        ]
        seqs = itertools.count(1)
        for gives_up in ways:
            waiting = Waiting(lambda: other.wait_state(token, LONG))
            assert waiting.blocks()
            for _ in range(3):  # the thread may be slow, and a wait that begins later is not told
                seq = next(seqs)
                assert backend.announce("leader", seq, b"", LONG).leads
                gives_up(seq)
                if not waiting.blocks(self.soon):
                    break
            waiting.result(within=0)

    def test_a_wait_blocks_nobody_else(self, backend: CoordinationBackend) -> None:
        """While one thread waits for the register and one for the roster, a third does everything else."""
        backend.announce("n1", 1, b"", LONG)
        token = written(backend.set_state(b"state"))[1]
        version = read(backend).version
        for_register = Waiting(lambda: backend.wait_state(token, LONG))
        for_roster = Waiting(lambda: backend.roster(version, LONG))
        assert for_register.blocks()
        assert for_roster.blocks()
        calls: list[Callable[[], object]] = [
            lambda: backend.pulse("n1", 1, LONG),
            backend.get_state,
            backend.roster,
            lambda: backend.page("none", 0),
            lambda: backend.publish("some", [b"page"], LONG),
            lambda: backend.set_state(b"new", token),
            lambda: backend.announce("n2", 1, b"", LONG),
        ]
        for call in calls:
            Waiting(call).result(within=self.soon)
        assert for_register.result(within=self.soon) is not None
        assert for_roster.result(within=self.soon) is not None

    def test_close_wakes_the_waiters(self, backend: CoordinationBackend) -> None:
        """A closed client lets go of those who wait, with None or an error of ours, and may be closed again."""
        backend.announce("n1", 1, b"", LONG)
        token = written(backend.set_state(b"state"))[1]
        version = read(backend).version
        waiting: list[Waiting[Any]] = [
            Waiting(lambda: backend.wait_state(token, LONG)),
            Waiting(lambda: backend.roster(version, LONG)),
        ]
        for waiter in waiting:
            assert waiter.blocks(), "the call did not wait"
        backend.close()
        for waiter in waiting:
            with contextlib.suppress(RendezvousError):
                assert waiter.result(within=self.soon) is None
        backend.close()

    # --- pages

    def test_pages_come_back_as_they_were_published(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """Everyone reads each page of a group by its index, exactly."""
        pages = [b"zero", b"", bytes(range(256))]
        backend.publish("g", pages, LONG)
        assert [other.page("g", n) for n in range(3)] == pages

    def test_an_absent_page_is_none(self, backend: CoordinationBackend) -> None:
        """No group, or no such index, is None and no error."""
        assert backend.page("g", 0) is None
        backend.publish("g", [b"zero"], LONG)
        assert backend.page("g", 1) is None
        assert backend.page("h", 0) is None

    def test_pages_are_immutable(self, backend: CoordinationBackend, other: CoordinationBackend) -> None:
        """To publish a group again is harmless, by anybody; and nobody can change what it says."""
        backend.publish("g", [b"zero", b"one"], LONG)
        backend.publish("g", [b"zero", b"one"], LONG)
        other.publish("g", [b"zero", b"one"], LONG)
        assert [other.page("g", n) for n in range(3)] == [b"zero", b"one", None]
        other.publish("g", [b"forged", b"forged"], LONG)
        assert [backend.page("g", n) for n in range(2)] == [b"zero", b"one"]

    def test_groups_of_pages_are_apart(
        self, backend: CoordinationBackend, open_backend: MakeBackend, run_id: str
    ) -> None:
        """Pages of different groups do not mix, however their names look; nor do those of different runs."""
        stranger = open_backend(f"{run_id}-stranger")
        groups = ("", "g", "g1", "g:1", "g/1", "G", "{g}", "ü")
        for group in groups:
            backend.publish(group, [f"{group} {n}".encode() for n in range(12)], LONG)
        for group in groups:
            assert [backend.page(group, n) for n in (0, 1, 11)] == [f"{group} {n}".encode() for n in (0, 1, 11)]
            assert stranger.page(group, 0) is None

    # --- how long things are kept

    def test_register_and_pages_survive_their_keep_and_no_longer(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """The last to leave says how long register and pages stay: that long, and then nothing is left."""
        backend.announce("last", 1, b"", LONG)
        written(backend.set_state(b"state"))
        backend.publish("g", [b"page"], LONG)
        assert (token_of(other) is None, other.page("g", 0)) == (False, b"page")
        began = time.monotonic()
        backend.withdraw("last", 2, self.ttl, keep=self.ttl)
        done = time.monotonic()
        earliest, latest = began + self.ttl, done + self.ttl + self.soon

        def register() -> bool:
            return other.get_state() is not None

        def page() -> bool:
            return other.page("g", 0) is not None

        self.ends("register and page", lambda: register() and page(), earliest=earliest, latest=latest)
        self.ends("the register", register, earliest=earliest, latest=latest)
        self.ends("the page", page, earliest=earliest, latest=latest)
        assert written(other.set_state(b"new life"))[2], "an expired register takes a first write"

    def test_a_leaders_pulse_keeps_register_and_pages(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """While somebody leads, register and the named pages stay, though a node that left had them expire."""
        other.announce("leads", 1, b"", LONG)
        seqs = itertools.count(1)

        def begin() -> None:
            backend.announce("leaves", next(seqs), b"", LONG, lead=False)
            written(backend.set_state(b"state"))
            backend.publish("g", [b"page"], LONG)
            backend.withdraw("leaves", next(seqs), self.ttl, keep=2 * self.ttl)

        def kept() -> None:
            assert other.pulse("leads", 1, LONG, keep=2 * self.ttl, group="g").leads
            assert backend.get_state() is not None, "the register expired under a leader"
            assert backend.page("g", 0) == b"page", "the pages expired under a leader"

        self.holds_for(4 * self.ttl, kept, begin=begin, lasts=2 * self.ttl)

    def test_a_withdrawal_without_keep_takes_nothing_along(
        self, backend: CoordinationBackend, other: CoordinationBackend
    ) -> None:
        """The last to leave does not take register and pages along, unless it says so."""

        def begin() -> None:
            backend.announce("last", 1, b"", self.ttl)
            written(backend.set_state(b"state"))
            backend.publish("g", [b"page"], LONG)
            backend.withdraw("last", 2, self.ttl)

        def still_there() -> None:
            assert other.get_state() is not None
            assert other.page("g", 0) == b"page"

        self.holds_for(2 * self.ttl, still_there, begin=begin, lasts=LONG)

    # --- forgetting a run

    def test_forget_is_refused_while_nodes_live(self, backend: CoordinationBackend) -> None:
        """A run with live nodes is not dropped; the refusal names them, and nothing is lost."""
        for name in ("alice", "bob"):
            backend.announce(name, 1, b"", LONG)
        written(backend.set_state(b"state"))
        backend.publish("g", [b"page"], LONG)
        with pytest.raises(RendezvousStateError) as refusal:
            backend.forget()
        assert "alice" in str(refusal.value)
        assert "bob" in str(refusal.value)
        assert ids(read(backend)) == ["alice", "bob"]
        assert token_of(backend) is not None
        assert backend.page("g", 0) == b"page"

    def test_forget_drops_everything_of_the_run(
        self, backend: CoordinationBackend, open_backend: MakeBackend, back_door: BackDoor, run_id: str
    ) -> None:
        """A run without live nodes is dropped to the last key, tombstones too; other runs are not touched."""
        neighbour = open_backend(f"{run_id}-neighbour")
        neighbour.announce("neighbour", 1, b"", LONG)
        written(neighbour.set_state(b"neighbour"))
        backend.announce("n1", 7, b"", LONG)
        written(backend.set_state(b"state"))
        backend.publish("g", [b"page"], LONG)
        backend.withdraw("n1", 8, LONG)
        backend.forget()
        assert backend.get_state() is None
        assert back_door.read_register(run_id) is None
        assert backend.page("g", 0) is None
        roster = read(backend)
        assert (roster.records, roster.withdrawn) == ((), frozenset())
        assert backend.announce("n1", 1, b"", LONG).leads
        assert token_of(neighbour) is not None
        assert ids(read(neighbour)) == ["neighbour"]

    def test_to_forget_a_run_that_never_was_is_no_error(self, backend: CoordinationBackend) -> None:
        """Dropping nothing is fine, and so is dropping it twice."""
        backend.forget()
        backend.forget()
        assert backend.get_state() is None

    # --- trouble

    def test_runs_share_nothing_but_the_store(self, open_backend: MakeBackend, run_id: str) -> None:
        """Records, lease and tombstones of one run are invisible in another."""
        here, there = open_backend(run_id), open_backend(f"{run_id}2")
        assert here.announce("n1", 5, b"here", LONG).leads
        assert ids(read(there)) == []
        assert there.announce("n1", 1, b"there", LONG).leads
        there.withdraw("n1", 9, LONG)
        roster = read(here)
        assert (ids(roster), roster.withdrawn) == (["n1"], frozenset())
        assert here.pulse("n1", 5, LONG).leads

    @needs(Power.CUT)
    def test_each_call_without_a_store_is_a_connection_error_in_time(
        self, backend: CoordinationBackend, back_door: Any
    ) -> None:
        """No member hangs, guesses or leaks a foreign error while the store is out of reach; then all is well."""
        backend.announce("n1", 1, b"", LONG)
        token = written(backend.set_state(b"state"))[1]
        version = read(backend).version
        back_door.cut()
        try:
            for call in (
                lambda: backend.announce("n1", 2, b"", LONG),
                lambda: backend.pulse("n1", 1, LONG),
                lambda: backend.withdraw("n1", 0, LONG),
                backend.roster,
                lambda: backend.roster(version, 0.0),
                lambda: backend.publish("g", [b"page"], LONG),
                lambda: backend.page("g", 0),
                backend.forget,
            ):
                self.fails_in_time(call)
            waiting = Waiting(lambda: backend.wait_state(token, self.ttl))
            with contextlib.suppress(RendezvousConnectionError):
                assert waiting.result(within=self.ttl + self.deadline + self.slack) is None
        finally:
            back_door.mend()
        eventually("the roster is back", lambda: ids(read(backend)) == ["n1"], within=self.soon)
        assert backend.announce("n1", 3, b"", LONG).known

    @needs(Power.LOSE_ANSWER)
    def test_an_unsure_announce_may_be_made_again(
        self, backend: CoordinationBackend, other: CoordinationBackend, back_door: Any
    ) -> None:
        """An announce without an answer says that it may have been applied, or finds out; again is harmless."""
        back_door.lose_next_answer()
        try:
            told = backend.announce("n1", 1, b"", LONG).known
        except RendezvousConnectionError as error:
            told = error.maybe_applied
        assert told
        before = read(other)
        assert ids(before) == ["n1"]
        assert backend.announce("n1", 1, b"", LONG).known
        assert read(other).records == before.records

    # --- how the laws about time look

    def wakes_the_roster(
        self, backend: CoordinationBackend, change: Callable[[], Pulse | None], expected: list[str]
    ) -> Roster:
        """A thread that waits for the roster of one node is woken by the change, within a second."""
        backend.announce("n1", 1, b"old", LONG)
        seen = read(backend)
        waiting = Waiting(lambda: backend.roster(seen.version, LONG))
        assert waiting.blocks(), "the call did not wait"
        change()
        roster = waiting.result(within=self.soon)
        assert roster is not None
        whole = roster.onto(seen)
        assert ids(whole) == expected
        return whole

    def told_at_once(self, backend: CoordinationBackend, token: object) -> bytes:
        """What a wait for a token that is not the present one returns, without waiting."""
        answer = Waiting(lambda: backend.wait_state(token, LONG)).result(within=self.soon)
        assert answer is not None, f"no answer though the register differs from {token!r}"
        assert answer == backend.get_state()
        return answer[0]

    def holds_for(self, seconds: float, look: Callable[[], None], *, begin: Callable[[], None], lasts: float) -> None:
        """Look (which asserts) again and again while time passes: that is what the law is about.

        Each look gives what it looks for ``lasts`` seconds more. If it took us as long from one look to the next, on a
        machine that stood still meanwhile, a failure says nothing of the store, and all begins anew.
        """
        for tries_left in reversed(range(5)):
            looked = time.monotonic()
            begin()
            end = time.monotonic() + seconds
            try:
                while (began := time.monotonic()) < end:
                    look()
                    looked = began
                    time.sleep(self.ttl / 6)
            except AssertionError:
                if not tries_left or time.monotonic() - looked < lasts:
                    raise
            else:
                return

    def ends(self, what: str, holds: Callable[[], bool], *, earliest: float, latest: float) -> None:
        """Look again and again until something no longer holds: that must be so between two moments.

        A look that *ended* before ``earliest`` must still have seen it, one that *began* after ``latest`` not.
        """
        while True:
            began = time.monotonic()
            held = holds()
            ended = time.monotonic()
            if not held:
                assert ended >= earliest, f"{what} ended {earliest - ended:.2f} s before its time"
                return
            assert began <= latest, f"{what} outlived its time by more than {self.soon:g} s"
            time.sleep(0.01)


class _Model:
    """The roster as a plain dict would have it, in order of arrival."""

    def __init__(self) -> None:
        self.live: dict[str, tuple[int, bytes]] = {}
        self.withdrawn: dict[str, int] = {}

    def announce(self, node_id: str, seq: int, record: bytes) -> bool:
        if self._newer(node_id, seq) or self.withdrawn.get(node_id) == seq:
            return False
        self.withdrawn.pop(node_id, None)
        self.live[node_id] = seq, record
        return True

    def withdraw(self, node_id: str, seq: int) -> None:
        if not self._newer(node_id, seq):
            self.live.pop(node_id, None)
            self.withdrawn[node_id] = seq

    def listed(self) -> list[tuple[str, bytes]]:
        return [(node_id, record) for node_id, (_, record) in self.live.items()]

    def _newer(self, node_id: str, seq: int) -> bool:
        stored = self.live.get(node_id, (-1, b""))[0]
        return max(stored, self.withdrawn.get(node_id, -1)) > seq


def read(backend: CoordinationBackend) -> Roster:
    """The whole roster."""
    roster = backend.roster()
    assert roster is not None, "a roster that is asked for without a version is always given"
    assert roster.base is None, "a change was answered to a reader that had seen nothing"
    return roster


def ids(roster: Roster) -> list[str]:
    """Who is in it, in its order."""
    return [e.node_id for e in roster.records]


for _name, _law in vars(CoordinationConformance).items():
    if _name.startswith("test_"):
        _law.level = "rdzv_coordination"
