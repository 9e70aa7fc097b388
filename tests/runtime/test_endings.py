"""Closing, leaving, shutting down: who may end a job for the others, and what they are told."""

from __future__ import annotations

import re
import threading

import pytest

from rdzv_core.errors import RendezvousClosedError, RendezvousError, RendezvousGracefulExitError
from rdzv_core.events import NodeLeft, RunClosed
from tests.runtime.party import BRISK, SOON, Party

# --- closed ---------------------------------------------------------------------------------------------------


def test_a_joiner_is_told_by_whom_when_and_why_the_run_was_closed(party: Party):
    waiting = party.guest(2, 2)
    joining = waiting.joins()
    party.seen(waiting)
    closer = party.guest(2, 2)
    closer.handler.set_closed()
    with pytest.raises(RendezvousClosedError) as told:
        joining.result(within=SOON)
    assert re.match(
        rf"Run 'job-7' is closed by {closer.handler.node_id} at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(closed\): "
        r"set_closed\(\) was called\. A closed run takes no more nodes: use another run id, or wait; the id becomes "
        r"free 60 s after the last node has left\.",
        told.value.message,
    )


def test_closed_is_seen_by_all_and_stays(party: Party):
    guests = [party.guest(1, 2) for _ in range(2)]
    assert [guest.handler.is_closed() for guest in guests] == [False, False]
    party.meet(*guests)
    guests[0].handler.set_closed()
    assert [guest.handler.is_closed() for guest in guests] == [True, True]
    assert guests[1].event(RunClosed).by == guests[0].handler.node_id
    for guest in (guests[1], party.guest(1, 2)):
        with pytest.raises(RendezvousClosedError):
            guest.handler.next_rendezvous()
    guests[1].handler.set_closed()
    assert party.register.closed.by == guests[0].handler.node_id, "the first word stands"


def test_a_member_of_a_closed_run_is_not_told_to_re_form(party: Party):
    guests = [party.guest(1, 2) for _ in range(2)]
    party.meet(*guests)
    guests[0].handler.shutdown()
    guests[1].event(RunClosed)
    assert guests[1].handler.num_nodes_waiting() == 0


def test_closing_needs_no_join(party: Party):
    outsider = party.guest(1, 2)
    assert not outsider.handler.is_closed()
    outsider.handler.set_closed()
    assert party.register.closed is not None
    assert not party.records


# --- shutdown -------------------------------------------------------------------------------------------------


def test_shutdown_closes_the_run_that_it_is_of_and_withdraws(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    assert guest.handler.shutdown() is True
    assert party.register.closed.reason == "shutdown() was called"
    assert not party.records
    assert guest.stores.closed == 1
    assert guest.kinds()[-1] == "NodeLeft"


def test_shutdown_again_does_nothing(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    guest.handler.shutdown()
    assert guest.handler.shutdown() is True
    assert guest.kinds().count("NodeLeft") == 1


def test_shutdown_of_a_handler_that_was_never_used(party: Party):
    assert party.guest(1, 1).handler.shutdown() is True
    assert party.register is None


def test_shutdown_of_a_joiner_does_not_close_the_run_of_others(party: Party):
    member = party.guest(1, 1)
    party.meet(member)
    spare = party.guest(1, 1)
    joining = spare.joins()
    party.seen(spare)
    assert spare.handler.shutdown()
    with pytest.raises(RendezvousClosedError, match="This node has left run 'job-7'"):
        joining.result(within=SOON)
    assert party.register.closed is None


def test_shutdown_after_a_join_that_failed_does_not_close(party: Party):
    """It was in round 1, but what it knows of the run it knows no longer."""
    guests = [party.guest(2, 2), party.guest(2, 2, join=3.0)]
    party.meet(*guests)
    with pytest.raises(RendezvousError, match="did not complete"):
        guests[1].handler.next_rendezvous()
    assert guests[1].handler.shutdown()
    assert party.register.closed is None


def test_shutdown_of_a_superseded_node_does_not_close_the_round_of_others(party: Party):
    late, other = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(late, other)
    late.line.cut = True
    party.until("the survivor is told", lambda: other.handler.num_nodes_waiting() == 1)
    party.meet(other)
    late.line.cut = False
    assert late.handler.shutdown()
    assert party.register.round == 2
    assert party.register.closed is None


def test_shutdown_is_bounded_and_silent_when_the_store_is_away(party: Party):
    guest = party.guest(1, 1, close_timeout=0.3)
    party.meet(guest)
    party.store.cut()
    assert guest.handler.shutdown() is False
    assert guest.handler.end("success", "again") is False
    party.store.mend()
    assert party.register.closed is None


def test_end_without_closing_lets_the_others_go_on(party: Party):
    guests = [party.guest(1, 2) for _ in range(2)]
    party.meet(*guests)
    assert guests[0].handler.end("left", "its launcher was interrupted", close=False)
    party.until("the other is told", lambda: guests[1].handler.num_nodes_waiting() == 1)
    assert party.register.closed is None
    assert guests[0].event(NodeLeft).reason == "its launcher was interrupted"


# --- the end of a job -----------------------------------------------------------------------------------------


def test_a_finished_node_is_released_when_its_peer_starts_anew(party: Party):
    """Else the one waits in torch's exit barrier, and the other for the one to leave the round."""
    guests = [party.guest(1, 2) for _ in range(2)]
    party.meet(*guests)
    guests[0].handler.finish()
    party.until("it says that it is done", lambda: party.seen(guests[0]).done)
    assert guests[0].handler.released is None
    joining = guests[1].joins()
    party.until("it is released", lambda: guests[0].handler.released is not None)
    assert joining.result(within=SOON).world_size == 1
    assert guests[0].handler.shutdown()
    assert party.register.closed is None, "others have re-formed: not its run to close any more"


def test_a_finished_node_does_not_close_a_run_in_which_others_have_re_formed(party: Party):
    guests = [party.guest(2, 2, last_call_timeout=60.0) for _ in range(2)]
    party.meet(*guests)
    guests[0].handler.finish()
    party.until("it says that it is done", lambda: party.seen(guests[0]).done)
    joining = guests[1].joins()
    third = party.guest(2, 2, last_call_timeout=60.0)
    party.meet(third)
    assert joining.result(within=SOON).world_size == 2
    party.until("it is released", lambda: guests[0].handler.released is not None)
    assert guests[0].handler.shutdown()
    assert party.register.round == 2
    assert party.register.closed is None


def test_members_that_finish_although_they_were_told_to_re_form_for_a_newcomer_close_the_run(party: Party):
    guests = [party.guest(2, 3, scale_up_delay=0.1, last_call_timeout=0.1) for _ in range(2)]
    party.meet(*guests)
    newcomer = party.guest(2, 3, scale_up_delay=0.1, last_call_timeout=0.1)
    joining = newcomer.joins()
    party.until("the members are told", lambda: party.register.waiting > 0)
    for guest in guests:
        guest.handler.finish()
    # The leader takes the telling back, or, if both have finished by then, closes the run itself.
    party.until("the run can end", lambda: not party.register.waiting or party.register.closed)
    for guest in guests:
        guest.handler.end("success", "its workers have succeeded")
    assert party.register.closed.outcome == "success"
    with pytest.raises((RendezvousClosedError, RendezvousGracefulExitError)):
        joining.result(within=SOON)


def test_finished_nodes_are_released_when_all_the_others_are_lost(party: Party):
    guests = [party.guest(1, 3) for _ in range(3)]
    party.meet(*guests)
    for guest in guests[:2]:
        guest.handler.finish()
    party.until("both have said so", lambda: sum(record.done for record in party.records.values()) == 2)
    guests[2].handler.leave("crashed")
    party.until("both are released", lambda: all(guest.handler.released for guest in guests[:2]))
    assert party.register.closed.outcome == "success"
    assert "all who are left of round 1 have finished" in guests[0].handler.released


def test_those_left_behind_by_the_finished_are_told_that_they_cannot_go_on(party: Party):
    guests = [party.guest(2, 2, last_call_timeout=0.2) for _ in range(2)]
    party.meet(*guests)
    guests[0].handler.finish()
    party.until("it says that it is done", lambda: party.seen(guests[0]).done)
    with pytest.raises(RendezvousClosedError, match="1 of at least 2 nodes are left to go on after round 1"):
        guests[1].handler.next_rendezvous()


# --- after the end --------------------------------------------------------------------------------------------


def test_a_handler_that_has_left_says_so(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    guest.handler.shutdown()
    for call in (guest.handler.next_rendezvous, guest.handler.is_closed, guest.handler.set_closed):
        with pytest.raises(RendezvousClosedError, match="has left run 'job-7'"):
            call()
    assert guest.handler.num_nodes_waiting() == 0


def test_a_second_join_of_one_handler_takes_the_place_of_the_first(party: Party):
    """Nobody is left to wait for an answer that does not come."""
    guest, other = party.guest(2, 2), party.guest(2, 2)
    first = guest.joins()
    party.seen(guest)
    second = guest.joins()
    with pytest.raises(RendezvousError, match=r"Another next_rendezvous\(\) of this handler has begun"):
        first.result(within=SOON)
    (theirs,) = party.meet(other)
    assert {second.result(within=SOON).rank, theirs.rank} == {0, 1}


def test_a_handler_that_could_not_start_its_thread_can_when_there_is_room(party: Party, monkeypatch):
    guest = party.guest(1, 1)

    def no_room(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", no_room)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                guest.handler.next_rendezvous()
    party.meet(guest)


def test_leaving_says_whether_the_store_was_told(party: Party):
    guests = [party.guest(1, 1) for _ in range(2)]
    party.meet(guests[0])
    assert guests[0].handler.leave("it is time")
    assert guests[0].handler.leave("again")
    party.meet(guests[1])
    guests[1].line.cut = True
    assert not guests[1].handler.leave("it is time", 0.3)
    assert "left without being able to say so: the store does not answer" in guests[1].handler.story[-1]


def test_no_thread_outlives_the_handler(party: Party):
    guest = party.guest(1, 1)
    assert party.threads() == [], "none before the first call"
    party.meet(guest)
    assert party.threads()
    guest.handler.shutdown()
    party.until("all threads are gone", lambda: not party.threads())


def test_a_dropped_handler_withdraws_its_node(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    party.guests.clear()
    del guest
    party.until("its record is gone", lambda: not party.records)
    assert party.register.closed is None
