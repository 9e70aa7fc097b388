"""Handlers with real threads: how they meet, grow, shrink, and stand by."""

from __future__ import annotations

import pytest

from rdzv_core.errors import RendezvousConnectionError, RendezvousGracefulExitError, RendezvousTimeoutError
from rdzv_core.events import NodeSpare, RoundGivenUp
from tests.runtime.party import BRISK, PATIENT, SOON, Party


def test_the_maximum_meets_at_once(party: Party):
    guests = [party.guest(1, 3, addr) for addr in ("host-c", "host-a", "host-b")]
    infos = party.meet(*guests)
    assert [info.rank for info in infos] == [2, 0, 1], "by address"
    assert {info.world_size for info in infos} == {3}
    assert len({info.store for info in infos}) == 1
    assert [guest.handler.num_nodes_waiting() for guest in guests] == [0, 0, 0]


def test_only_rank_0_hosts_and_all_learn_where(party: Party):
    guests = [party.guest(2, 2, addr) for addr in ("host-b", "host-a")]
    infos = party.meet(*guests)
    assert [len(guest.stores.hosted) for guest in guests] == [0, 1]
    port = party.register.bootstrap.port
    assert [info.store[2] for info in infos] == [port, port]
    for info in infos:
        assert info.bootstrap_store_info.master_addr == "127.0.0.1"
        assert info.bootstrap_store_info.master_port == port


def test_the_minimum_goes_on_without_the_rest_when_last_call_ends(party: Party):
    infos = party.meet(*[party.guest(2, 3, last_call_timeout=0.3) for _ in range(2)])
    assert {info.world_size for info in infos} == {2}


def test_a_late_joiner_makes_the_round_grow(party: Party):
    first, late = [party.guest(1, 3, last_call_timeout=0.3) for _ in range(2)]
    assert party.meet(first)[0].world_size == 1
    joining = late.joins()
    party.until("the member is told", lambda: first.handler.num_nodes_waiting() == 1)
    infos = [*party.meet(first), joining.result(within=SOON)]
    assert sorted(info.rank for info in infos) == [0, 1]
    assert {info.world_size for info in infos} == {2}
    assert party.register.round == 2


def test_a_newcomer_waits_for_the_scale_up_delay(party: Party):
    """A pod that crashes again and again must not restart a job that is well again and again."""
    member, late = [party.guest(1, 3, last_call_timeout=0.3, scale_up_delay=60.0) for _ in range(2)]
    party.meet(member)
    joining = late.joins()
    party.seen(late)
    party.until("it knows that it was passed over", lambda: "runs with 1 members" in late.handler.story[-1])
    assert not party.seen(late).steady
    assert party.register.waiting == 0
    late.handler.leave("crashed")
    with pytest.raises(Exception, match="has left"):
        joining.result(within=SOON)
    assert member.handler.num_nodes_waiting() == 0


def test_each_round_has_a_store_of_its_own(party: Party):
    guests = [party.guest(2, 2) for _ in range(2)]
    stores = [party.meet(*guests)[0].store for _ in range(3)]
    assert [store[0] for store in stores] == [1, 2, 3]
    assert len({store[1] for store in stores}) == 3
    assert len({store[2] for store in stores}) == 3
    assert [seat.round for seat in guests[0].stores.hosted] == [1, 2, 3]


def test_a_member_that_comes_back_is_waited_for(party: Party):
    """World 2, maximum 2: one worker group fails and restarts, and its peer must hear of it."""
    guests = [party.guest(2, 2) for _ in range(2)]
    party.meet(*guests)
    joining = guests[1].joins()
    party.until("its peer is told", lambda: guests[0].handler.num_nodes_waiting() == 1)
    party.meet(guests[0])
    assert joining.result(within=SOON).world_size == 2


# --- spares ---------------------------------------------------------------------------------------------------


def with_a_spare(party: Party):
    members = [party.guest(2, 2), party.guest(2, 2)]
    party.meet(*members)
    spare = party.guest(2, 2, join=2.0)
    waiting = spare.joins()
    assert spare.event(NodeSpare).round == 1
    return members, spare, waiting


def test_a_spare_disturbs_nobody_and_its_time_does_not_run(party: Party):
    members, spare, waiting = with_a_spare(party)
    with pytest.raises(pytest.fail.Exception):
        waiting.result(within=4.0)  # twice its join timeout
    assert [guest.handler.num_nodes_waiting() for guest in members] == [0, 0]
    assert spare.kinds() == ["NodeJoining", "NodeSpare"]


def test_a_spare_takes_the_place_of_a_member_that_leaves(party: Party):
    members, _, waiting = with_a_spare(party)
    members[0].handler.leave("its machine is needed elsewhere")
    party.until("the other is told", lambda: members[1].handler.num_nodes_waiting() > 0)
    party.meet(members[1])
    assert waiting.result(within=SOON).world_size == 2


def test_a_spare_leaves_in_peace_when_the_job_ends(party: Party):
    members, _, waiting = with_a_spare(party)
    assert members[0].handler.shutdown()
    with pytest.raises(RendezvousGracefulExitError) as told:
        waiting.result(within=SOON)
    assert told.value.message.startswith("This node was a spare of run 'job-7', which has ended without it: closed by")
    assert members[0].handler.node_id in told.value.message


# --- members that are lost ------------------------------------------------------------------------------------


def test_survivors_of_a_dead_member_are_told_and_go_on(party: Party):
    guests = [party.guest(2, 3, options=BRISK) for _ in range(3)]
    party.meet(*guests)
    guests[2].dies()
    party.until("both are told", lambda: all(g.handler.num_nodes_waiting() == 1 for g in guests[:2]))
    infos = party.meet(*guests[:2])
    assert {info.world_size for info in infos} == {2}
    assert party.register.round == 2


def test_survivors_of_a_dead_leader_find_another(party: Party):
    leader = party.guest(1, 2, options=BRISK)
    leading = leader.joins()
    party.seen(leader)
    other = party.guest(1, 2, options=BRISK)
    party.meet(other)
    leading.result(within=SOON)
    leader.dies()
    party.until("the survivor is told", lambda: other.handler.num_nodes_waiting() == 1)
    assert party.meet(other)[0].world_size == 1


def test_a_node_that_was_cut_off_learns_that_it_was_superseded(party: Party):
    guests = [party.guest(1, 2, options=BRISK) for _ in range(2)]
    party.meet(*guests)
    guests[1].dies()
    party.until("the survivor is told", lambda: guests[0].handler.num_nodes_waiting() == 1)
    party.meet(guests[0])
    guests[1].line.cut = False
    party.until("the other learns it", lambda: guests[1].handler.num_nodes_waiting() == 1)
    assert "superseded by round 2" in " ".join(guests[1].handler.story)


def test_a_leave_is_seen_at_once_and_closes_nothing(party: Party):
    guests = [party.guest(1, 2, keep_alive_interval=60.0) for _ in range(2)]
    party.meet(*guests)
    assert guests[0].handler.leave("SIGTERM")
    party.until("the survivor is told", lambda: guests[1].handler.num_nodes_waiting() == 1)
    assert party.register.closed is None
    assert party.meet(guests[1])[0].world_size == 1


# --- rank 0's store -------------------------------------------------------------------------------------------


def test_when_rank_0_cannot_open_its_store_it_says_so_and_the_rest_goes_on(party: Party):
    rank0, *rest = [party.guest(2, 3, addr) for addr in ("a", "b", "c")]
    rank0.stores.refuses_to_host = OSError("no port is free")
    joining = [guest.joins() for guest in (rank0, *rest)]
    with pytest.raises(RendezvousConnectionError, match="OSError: no port is free"):
        joining[0].result(within=SOON)
    infos = [waiting.result(within=SOON) for waiting in joining[1:]]
    assert sorted(info.rank for info in infos) == [0, 1]
    assert party.register.round == 2


def test_a_rank_0_that_never_publishes_is_given_up(party: Party):
    rank0, other = (
        party.guest(2, 2, "a", bootstrap_timeout=0.3),
        party.guest(2, 2, "b", bootstrap_timeout=0.3),
    )
    rank0.stores.may_host.clear()
    joining = [rank0.joins(), other.joins()]
    # Both lose patience at about the same moment; who does so second is told that the first is back at the barrier.
    reasons = [guest.event(RoundGivenUp).reason for guest in (rank0, other)]
    assert any("rank 0 of round 1 did not publish its store within" in reason for reason in reasons), reasons
    rank0.stores.may_host.set()
    for waiting in joining:
        assert waiting.result(within=SOON).world_size == 2


def test_a_store_that_cannot_be_reached_costs_a_round_and_no_more(party: Party):
    guests = [party.guest(2, 2) for _ in range(2)]
    guests[1].stores.refuses_to_connect.append(TimeoutError("no route to host"))
    joining = [guest.joins() for guest in guests]
    assert "could not be reached: no route to host" in guests[1].event(RoundGivenUp).reason
    info = joining[1]
    # The other has returned, and is told by its agent's next look that its peer is back at the barrier.
    joining[0].result(within=SOON)
    party.until("the first is told", lambda: guests[0].handler.num_nodes_waiting() > 0)
    party.meet(guests[0])
    assert info.result(within=SOON).store[0] == 2


def test_a_join_that_runs_out_of_time_names_who_keeps_the_others_waiting_and_who_has_gone(party: Party):
    stuck, gone = members = [party.guest(2, 3, host, last_call_timeout=0.1) for host in ("host-a", "host-b")]
    party.meet(*members)
    gone.handler.leave("its machine is needed elsewhere")
    party.until("the other is told", lambda: stuck.handler.num_nodes_waiting() > 0)
    with pytest.raises(RendezvousTimeoutError) as told:
        party.guest(2, 3, "host-c", join=0.5).handler.next_rendezvous()
    said = told.value.message
    assert said.startswith("Round 2 of run 'job-7' (backend 'memory') did not complete in ")
    assert "at the barrier are 1 of at least 2 nodes (" in said
    assert f"still in round 1: 1 ({stuck.handler.node_id} (host-a, pid " in said
    assert f"gone from round 1: 1 ({gone.handler.node_id})" in said
    assert "look at what those still in it are doing" in said


def test_a_join_that_runs_out_of_time_names_who_is_there(party: Party):
    there = [party.guest(3, 4, "host-a", options=PATIENT, join=60.0), party.guest(3, 4, "host-b", join=0.8)]
    waiting = [guest.joins() for guest in there]
    with pytest.raises(RendezvousTimeoutError) as told:
        waiting[1].result(within=SOON)
    said = told.value.message
    assert said.startswith("Round 1 of run 'job-7' (backend 'memory') did not complete in ")
    assert "at the barrier are 2 of at least 3 nodes (" in said
    for guest, host in zip(there, ("host-a", "host-b"), strict=True):
        assert f"{guest.handler.node_id} ({host}, pid " in said
    assert "check that every node uses this run id and endpoint, or raise join_timeout." in said
    party.until("it has withdrawn", lambda: set(party.records) == {there[0].handler.node_id})
