"""What a node bears, and what it says when it can bear it no longer."""

from __future__ import annotations

import pickle
import re
import time
from typing import Any

import pytest

from rdzv_core.errors import (
    RendezvousConnectionError,
    RendezvousError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from rdzv_core.events import RegisterRepublished, StoreBack, StoreLost
from tests.runtime.party import BRISK, RUN, SOON, Guest, Party


def about(guest: Guest, error: RendezvousError) -> None:
    """Every error of a join says whom it happened to, and how it came to that."""
    assert (error.run_id, error.node_id, error.backend) == (RUN, guest.handler.node_id, "memory")
    assert error.story
    assert str(error).startswith(error.message)
    assert str(error).endswith(error.message)
    assert "The last decisions were:" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.__dict__) == (str(error), error.__dict__)


def test_a_job_bears_an_outage_without_a_restart(party: Party):
    guests = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(*guests)
    revision = party.register.revision
    party.store.cut()
    for guest in guests:
        assert "cut off" in guest.event(StoreLost).error
    assert [guest.handler.num_nodes_waiting() for guest in guests] == [0, 0]
    party.store.mend()
    for guest in guests:
        assert guest.event(StoreBack).outage > 0
    party.until("both are known again", lambda: len(party.records) == 2)
    assert [guest.handler.num_nodes_waiting() for guest in guests] == [0, 0]
    assert party.register.revision == revision


def test_a_job_bears_a_store_that_has_lost_everything(party: Party):
    guests = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(*guests)
    before = party.register
    party.store.wipe()
    party.until("the register is back", lambda: party.register is not None)
    party.until("both are known again", lambda: len(party.records) == 2)
    after = party.register
    assert (after.life, after.round_id, after.bootstrap) == (before.life, before.round_id, before.bootstrap)
    assert [guest.handler.num_nodes_waiting() for guest in guests] == [0, 0]
    assert any(isinstance(event, RegisterRepublished) for guest in guests for event in guest.events)


def test_beyond_the_outage_timeout_the_whole_story_is_told(party: Party):
    guest = party.guest(1, 1, options=BRISK, store_outage_timeout=0.5)
    party.meet(guest)
    party.store.cut()

    def told() -> RendezvousError | None:
        try:
            assert guest.handler.num_nodes_waiting() == 0
        except RendezvousError as error:
            return error
        return None

    error = party.until("it raises", told)
    assert isinstance(error, RendezvousConnectionError)
    assert "has not answered for" in error.message
    assert "longer than store_outage_timeout; the last cause: The store is cut off" in error.message
    assert any("in round 1 as rank 0 of 1" in line for line in error.story)
    assert any("the store does not answer" in line for line in error.story)
    about(guest, error)


def test_a_join_ends_when_the_store_was_never_reached(party: Party):
    party.store.cut()
    guest = party.guest(1, 1, join=0.5)
    with pytest.raises(RendezvousConnectionError) as told:
        guest.handler.next_rendezvous()
    where = r"The store of run 'job-7' \(backend 'memory'\)"
    assert re.match(rf"{where} could not be reached in \d+ s and \d+ attempts; the last cause: ", told.value.message)
    assert "the last cause: The store is cut off" in told.value.message
    about(guest, told.value)


def test_a_store_that_comes_late_is_waited_for(party: Party):
    party.store.cut()
    guest = party.guest(1, 1, last_call_timeout=0.1)
    joining = guest.joins()
    guest.event(StoreLost)
    party.store.mend()
    assert joining.result(within=SOON).world_size == 1


def test_what_cannot_get_better_ends_the_join_at_once(party: Party):
    guest = party.guest(1, 1, join=600.0)
    guest.line.cut = guest.line.permanent = True
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match="The cable is cut") as told:
        guest.handler.next_rendezvous()
    assert time.monotonic() - began < 60
    assert told.value.permanent
    about(guest, told.value)


def test_after_an_outage_a_request_has_its_own_deadline(party: Party):
    guest = party.guest(1, 1, close_timeout=0.3)
    party.meet(guest)
    party.store.cut()
    for call in (guest.handler.set_closed, guest.handler.is_closed):
        with pytest.raises(RendezvousConnectionError, match="could not be reached") as told:
            call()
        about(guest, told.value)
    assert party.register.closed is None


def test_an_answer_that_was_lost_is_no_second_close(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    party.store.lose_answers(1)
    guest.handler.set_closed()
    assert party.register.closed.by == guest.handler.node_id


def test_foreign_bytes_end_the_join_with_a_sentence(party: Party):
    party.store.poke(RUN, b"\x80\x04\x95 a pickle")
    guest = party.guest(1, 1)
    with pytest.raises(RendezvousStateError, match="The register in the store cannot be read") as told:
        guest.handler.next_rendezvous()
    about(guest, told.value)


def test_other_rules_name_both_sets(party: Party):
    party.meet(party.guest(1, 1))
    other = party.guest(2, 4)
    with pytest.raises(RendezvousStateError) as told:
        other.handler.next_rendezvous()
    assert "(nodes 1:1, keep-alive every 5 s, dead after 15 s)" in told.value.message
    assert "(nodes 2:4, keep-alive every 5 s, dead after 15 s)" in told.value.message
    assert "same --nnodes and keep-alive options, or use another run id" in told.value.message
    about(other, told.value)
    party.until("it has withdrawn", lambda: other.handler.node_id not in party.records)


def test_a_name_that_nobody_could_read_is_the_error_of_its_node(party: Party):
    guest = party.guest(1, 1, "x" * 300)
    with pytest.raises(RendezvousStateError, match="could not be read by the others") as told:
        guest.handler.next_rendezvous()
    about(guest, told.value)
    assert party.meet(party.guest(1, 1, last_call_timeout=0.1))[0].world_size == 1


def test_a_join_timeout_tells_its_story(party: Party):
    guest = party.guest(2, 2, join=0.3)
    with pytest.raises(RendezvousTimeoutError) as told:
        guest.handler.next_rendezvous()
    about(guest, told.value)


def test_a_fault_of_ours_is_told_to_whoever_waits_and_is_borne(party: Party, caplog, monkeypatch):
    guest = party.guest(1, 1, options=BRISK)
    monkeypatch.setattr(guest.line, "announce", lambda *args: None)
    for _ in range(2):
        with pytest.raises(RendezvousError, match="met a fault of rdzv-core: TypeError: ") as told:
            guest.handler.next_rendezvous()
        assert type(told.value) is RendezvousError
    assert caplog.text.count("met a fault of its own; it goes on") == 1, "the same one is told once"
    monkeypatch.undo()
    assert guest.handler.next_rendezvous().world_size == 1


def test_a_fault_of_ours_leaves_the_workers_alone_and_the_node_is_heard_of_again(party: Party, caplog, monkeypatch):
    """They may end well without another round; torch's agent would stop them at once for an error here."""
    guests = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(*guests)
    pulse, faults = guests[1].line.pulse, [1]

    def faulty_once(*args: Any, **kwargs: Any) -> Any:
        """After it the session rests, for much longer than the TTL."""
        return faults.pop() if faults else pulse(*args, **kwargs)

    monkeypatch.setattr("rdzv_core.runtime.runner.FAULT_PAUSE", 5.0)
    monkeypatch.setattr(guests[1].line, "pulse", faulty_once)
    party.until("it is taken for dead", lambda: guests[0].handler.num_nodes_waiting() > 0)
    assert "met a fault of its own" in caplog.text
    assert guests[1].handler.num_nodes_waiting() == 0
    party.until("it is known again", lambda: len(party.records) == 2)
    guests[1].handler.leave("the test is over")


def test_a_leader_that_meets_a_fault_lets_another_lead(party: Party, monkeypatch):
    guests = [party.guest(1, 3, options=BRISK) for _ in range(3)]
    party.meet(*guests)
    (leader,) = [guest for guest in guests if guest.handler._session._leading is not None]
    other, doomed = [guest for guest in guests if guest is not leader]
    monkeypatch.setattr(leader.handler._session, "_lead", lambda *_, **__: 1 / 0)
    doomed.handler.leave("its machine is needed elsewhere")
    party.until("another has led", lambda: other.handler.num_nodes_waiting() > 0)
    monkeypatch.undo()
    party.meet(leader, other)


def test_a_fault_that_stays_for_a_ttl_ends_the_node_for_the_others(party: Party, monkeypatch):
    guests = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(*guests)
    monkeypatch.setattr(guests[1].handler._session, "_react", lambda *_: 1 / 0)
    party.until("it is taken for dead", lambda: guests[0].handler.num_nodes_waiting() > 0)
    party.until("its session has ended", lambda: guests[1].handler._runner.ended)
    for call in (guests[1].handler.num_nodes_waiting, guests[1].handler.next_rendezvous):
        with pytest.raises(RendezvousError, match="met a fault of rdzv-core: ZeroDivisionError"):
            call()


def test_a_fault_that_stays_does_not_keep_a_node_from_ending(party: Party, monkeypatch):
    guest = party.guest(1, 1, options=BRISK)
    party.meet(guest)
    for name in ("pulse", "withdraw"):
        monkeypatch.setattr(guest.line, name, lambda *args, **kwargs: 1 / 0)
    assert guest.handler.leave("it is time", timeout=0.5) is False, "the store does not know"


def test_a_watcher_that_breaks_is_told_and_the_node_goes_on(party: Party, caplog, monkeypatch):
    """It then hears of changes with its next sign of life."""
    guests = [party.guest(2, 2, keep_alive_interval=0.5) for _ in range(2)]
    monkeypatch.setattr(guests[1].line, "wait_state", lambda: None)
    assert {info.world_size for info in party.meet(*guests)} == {2}
    guests[0].handler.leave("gone")
    party.until("the other is told", lambda: guests[1].handler.num_nodes_waiting() == 1)
    assert "The watcher of the register ended by a fault of its own" in caplog.text
