"""Who watches a node, and who is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from rdzv_core.api import Observers, Placed
from rdzv_core.errors import RendezvousError
from rdzv_core.events import (
    Event,
    HintShared,
    JoinVetoed,
    LeaderChanged,
    PlacementFailed,
    RoundCompleted,
    RoundDecided,
)
from rdzv_core.machine.record import Record
from tests.runtime.party import RUN, Guest, Party


def test_a_quiet_life_in_events(party: Party):
    guest = party.guest(1, 1)
    party.meet(guest)
    guest.handler.shutdown()
    assert guest.kinds() == [
        "NodeJoining",
        "LeaderChanged",
        "RoundDecided",
        "RoundCompleted",
        "RunClosed",
        "NodeLeft",
    ]
    assert {(e.run_id, e.node_id, e.backend) for e in guest.events} == {(RUN, guest.handler.node_id, "memory")}


def test_events_say_what_the_caller_was_told(party: Party):
    guests = [party.guest(2, 2) for _ in range(2)]
    infos = party.meet(*guests)
    for guest, info in zip(guests, infos, strict=True):
        event = guest.event(RoundCompleted)
        assert (event.round, event.rank, event.world) == (1, info.rank, info.world_size)
        assert event.round_id == party.register.round_id
    assert [sum(isinstance(e, RoundDecided) for e in g.events) for g in guests].count(1) == 1, "one leader decided"
    assert sum(isinstance(e, LeaderChanged) and e.leads for g in guests for e in g.events) == 1


def test_a_watcher_that_breaks_disturbs_nobody(party: Party, caplog):
    def breaks(event: Event) -> None:
        raise ZeroDivisionError

    guest = party.guest(1, 1, observers=Observers(events=breaks))
    assert party.meet(guest)[0].world_size == 1
    assert guest.kinds()[0] == "NodeJoining"
    assert caplog.text.count("The event sink") == 1


def test_a_veto_keeps_a_node_out_and_is_told(party: Party):
    asked = []

    def no_disk(run_id: str, node_id: str) -> str | None:
        asked.append((run_id, node_id))
        return "The disk is full."

    guest = party.guest(1, 1, observers=Observers(before_join=no_disk))
    with pytest.raises(RendezvousError) as told:
        guest.handler.next_rendezvous()
    assert told.value.message == "This node may not join run 'job-7': The disk is full."
    assert (told.value.run_id, told.value.node_id, told.value.backend) == (RUN, guest.handler.node_id, "memory")
    assert guest.event(JoinVetoed).reason == "The disk is full."
    assert asked == [(RUN, guest.handler.node_id)]
    assert not party.records
    assert guest.handler.shutdown()
    assert party.register is None


def test_who_was_in_and_may_not_come_back_does_not_close_the_run(party: Party):
    answers = [None, "The disk is full."]
    guest = party.guest(1, 2, observers=Observers(before_join=lambda *_: answers.pop(0)))
    other = party.guest(1, 2)
    party.meet(guest, other)
    with pytest.raises(RendezvousError, match="disk"):
        guest.handler.next_rendezvous()
    guest.handler.shutdown()
    assert party.register.closed is None


def test_attributes_are_in_the_record(party: Party):
    guest = party.guest(1, 1, observers=Observers(attributes={"zone": "b"}))
    guest.handler.observe(Observers(attributes={"rack": "7"}))
    party.meet(guest)
    assert party.seen(guest).attrs == {"zone": "b", "rack": "7"}


def reverse(members: Sequence[Record], previous: Mapping[str, int]) -> Placed:
    return Placed(order=tuple(r.node_id for r in sorted(members, key=lambda r: r.addr, reverse=True)))


def test_a_placement_hook_has_the_last_word(party: Party):
    seen = []

    def place(members: Sequence[Record], previous: Mapping[str, int]) -> Placed:
        seen.append(dict(previous))
        return reverse(members, previous)

    guests = [party.guest(3, 3, addr, observers=Observers(place=place)) for addr in "abc"]
    assert [info.rank for info in party.meet(*guests)] == [2, 1, 0]
    assert [info.rank for info in party.meet(*guests)] == [2, 1, 0]
    assert seen == [{}, {guest.handler.node_id: rank for guest, rank in zip(guests, (2, 1, 0), strict=True)}]


def test_a_placement_hook_without_opinion_leaves_it_to_the_policy(party: Party):
    hook = Observers(place=lambda members, previous: Placed())
    guests = [party.guest(2, 2, addr, observers=hook, placement="natural") for addr in ("n10", "n9")]
    assert [info.rank for info in party.meet(*guests)] == [1, 0]


def test_a_placement_hook_that_fails_is_replaced_by_sorted_and_named(party: Party):
    hook = Observers(place=lambda members, previous: Placed(failure="It took longer than 1 s."))
    guests = [party.guest(2, 2, addr, observers=hook, placement="natural") for addr in ("n9", "n10")]
    assert [info.rank for info in party.meet(*guests)] == [1, 0]
    failed = [e for guest in guests for e in guest.events if isinstance(e, PlacementFailed)]
    assert [e.reason for e in failed] == ["It took longer than 1 s."]


def test_hints_are_heard(party: Party):
    guests = [party.guest(3, 3, placement="hint", rank_hint=hint) for hint in (2, 0, 1)]
    assert [info.rank for info in party.meet(*guests)] == [2, 0, 1]


def hints_shared(guests: Sequence[Guest]) -> list[tuple[int, tuple[str, ...]]]:
    return [(e.rank_hint, e.node_ids) for guest in guests for e in guest.events if isinstance(e, HintShared)]


def test_nodes_that_wish_for_the_same_rank_are_named_once_a_round(party: Party):
    wishes = {"d": 1, "a": 1, "b": 0, "c": 3}
    guests = [party.guest(4, 4, addr, placement="hint", rank_hint=hint) for addr, hint in wishes.items()]
    assert [info.rank for info in party.meet(*guests)] == [2, 1, 0, 3]
    assert hints_shared(guests) == [(1, (guests[1].handler.node_id, guests[0].handler.node_id))]
    party.meet(*guests)
    assert len(hints_shared(guests)) == 2


def test_hints_that_nobody_hears_may_be_shared(party: Party):
    deaf = [party.guest(2, 2, addr, rank_hint=0) for addr in "ab"]
    party.meet(*deaf)
    assert hints_shared(deaf) == []


def test_hints_that_a_placement_hook_overrules_may_be_shared(party: Party):
    hook = Observers(place=reverse)
    guests = [party.guest(2, 2, addr, observers=hook, placement="hint", rank_hint=0) for addr in "ab"]
    assert [info.rank for info in party.meet(*guests)] == [1, 0]
    assert hints_shared(guests) == []


def test_survivors_keep_their_ranks_under_stable(party: Party):
    guests = [party.guest(3, 3, addr, placement="stable") for addr in ("c", "b", "a")]
    assert [info.rank for info in party.meet(*guests)] == [2, 1, 0]
    guests[1].handler.leave("gone")
    newcomer = party.guest(3, 3, "0", placement="stable")
    assert [info.rank for info in party.meet(guests[0], newcomer, guests[2])] == [2, 1, 0]
