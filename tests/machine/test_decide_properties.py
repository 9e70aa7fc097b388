"""What holds for every decision, whatever the view."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from rdzv_core.machine.decide import Decision, Fresh, Timers, decide
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Closed, Register
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.machine.standing import View
from tests.machine.draw import FRESH, IDS, TIMES, all_rules, policies, timers, views


def asked(view: View, rules: Rules, policy: Policy, memory: Timers, now: float, fresh: Fresh = FRESH) -> Decision:
    return decide(view, rules, policy, memory, now, fresh, by="leader", at="noon")


scenes = all_rules().flatmap(lambda rules: st.tuples(views(rules), st.just(rules), policies(), timers(), TIMES))


def is_inside(record: Record, register: Register, members: dict[str, int] | None) -> bool:
    """Rule 2, said once more."""
    if record.claim is not None:
        return record.claim.round_id == register.round_id
    return members is not None and record.node_id in members and record.left < register.round


@given(scenes)
def test_a_round_has_its_number_of_nodes_all_at_the_barrier(scene):
    view, rules, *_ = scene
    decision = asked(*scene)
    if not decision.seats:
        return
    assert rules.min_nodes <= len(decision.seats) <= rules.max_nodes
    assert len(set(decision.seats)) == len(decision.seats) == decision.register.world
    seated = [r for r in view.records if r.node_id in decision.seats]
    assert len(seated) == len(decision.seats)
    for record in seated:
        assert record.claim is None
        assert not record.done
        assert (record.min_nodes, record.max_nodes) == (rules.min_nodes, rules.max_nodes)


@given(scenes)
def test_a_new_round_is_above_all_that_anybody_has_seen(scene):
    view, decision = scene[0], asked(*scene)
    if decision.seats:
        seen = [r.left for r in view.records] + [view.register.round if view.register else 0]
        assert decision.register.round == 1 + max(seen)
        assert decision.register.round_id == FRESH.round_id
        assert (decision.register.bootstrap, decision.register.disturbed, decision.register.finished) == (
            None,
            False,
            0,
        )


@given(scenes)
def test_no_round_completes_over_the_head_of_a_live_node(scene):
    view, _, policy, memory, now = scene
    decision = asked(*scene)
    if not decision.seats or view.register is None:
        return
    still = [r for r in view.records if is_inside(r, view.register, view.members)]
    finished = [r for r in still if r.done and view.register.disturbed]
    if len(still) > len(finished):  # then they have overstayed: told long ago, as this leader saw
        assert view.register.disturbed
        assert memory.told_round == view.register.round_id
        assert now - memory.told_since >= policy.leave_timeout
        assert "overstayed" in decision.register.reason


@given(scenes)
def test_a_member_is_replaced_only_if_its_end_is_known(scene):
    view, decision = scene[0], asked(*scene)
    if not decision.seats or view.register is None or view.fit or view.members is None:
        return
    live = {r.node_id for r in view.records}
    silent = [n for n in view.members if n not in live and n not in view.withdrawn]
    gone = [n for n in view.members if n not in live]
    assert not silent or view.register.lost >= len(gone)


@given(scenes)
def test_nothing_follows_a_closed_register(scene):
    view, *rest = scene
    if view.register is not None:
        closed = Closed(by="b", outcome="success", reason="all is done", at="noon")
        view = replace(view, register=replace(view.register, closed=closed))
        assert asked(view, *rest).register is None


@given(scenes)
def test_one_write_is_one_revision_of_the_same_life(scene):
    view, decision = scene[0], asked(*scene)
    if decision.register is None:
        return
    assert decision.register.write_id == FRESH.write_id
    if view.register is None:
        assert (decision.register.life, decision.register.revision) == (FRESH.life, 1)
    else:
        assert decision.register.life == view.register.life
        assert decision.register.revision == view.register.revision + 1
        assert decision.register.rules == view.register.rules


@given(scenes)
def test_the_same_question_has_the_same_answer(scene):
    assert asked(*scene) == asked(*scene)


@given(scenes)
def test_a_leader_that_waits_is_never_woken_in_the_past(scene):
    decision = asked(*scene)
    if decision.register is None and decision.wake_at is not None:
        assert decision.wake_at > scene[4]
    assert decision.why


@given(scenes)
def test_a_leader_comes_to_rest(scene):
    """It says what there is to say in a few writes, and then nothing until something changes."""
    view, rules, policy, memory, now = scene
    for step in range(4):
        fresh = Fresh(life="fresh-life", round_id=f"fresh-{step}", write_id=f"fresh-{step}")
        decision = asked(view, rules, policy, memory, now, fresh)
        if decision.register is None:
            return
        memory = decision.timers
        members = {n: rank for rank, n in enumerate(decision.seats)} if decision.seats else view.members
        view = replace(view, register=decision.register, members=members)
    raise AssertionError(f"still writes: {decision}")


@given(
    st.lists(st.floats(0.01, 20.0), min_size=2, max_size=len(IDS)),
    st.sampled_from([(2, 6), (2, 9), (3, 9), (1, 9)]),
    st.sampled_from([5.0, 30.0]),
)
def test_last_call_ends_when_it_was_going_to_however_many_come_later(gaps, numbers, last_call):
    rules = Rules(min_nodes=numbers[0], max_nodes=numbers[1], interval=5.0, ttl=15.0)
    policy = Policy(last_call=last_call)
    assume(len(gaps) >= rules.min_nodes)
    arrivals = [sum(gaps[: i + 1]) for i in range(len(gaps))]
    due = arrivals[rules.min_nodes - 1] + last_call
    memory, live, wake_at, formed = Timers(), [], None, None
    events = [(at, i) for i, at in enumerate(arrivals)]
    while formed is None:
        if events and (wake_at is None or events[0][0] <= wake_at):
            now, i = events.pop(0)
            live.append(_node(IDS[i], rules))
        else:
            now = wake_at
        decision = asked(View(register=None, records=tuple(live)), rules, policy, memory, now)
        memory, wake_at = decision.timers, decision.wake_at
        if decision.seats:
            formed = now
        elif wake_at is not None:
            assert wake_at == due
    full = arrivals[rules.max_nodes - 1] if len(arrivals) >= rules.max_nodes else due
    assert formed == min(due, full)


@given(st.lists(st.tuples(st.floats(0.1, 10.0), st.booleans()), min_size=1, max_size=12))
def test_a_hold_lasts_two_intervals_and_not_longer(looks):
    """A leader that met a loss looks again and again: it holds still up to the tenth second, and not after it."""
    rules = Rules(min_nodes=2, max_nodes=2, interval=5.0, ttl=15.0)
    records = tuple(replace(_node(n, rules), left=3) for n in "ab")
    memory, now, begun = Timers(), 0.0, None
    for gap, unfit in looks:
        now += gap
        begun = now if begun is None else begun
        view = View(register=None, records=records, fit=not unfit)
        decision = asked(view, rules, Policy(), memory, now)
        memory = decision.timers
        assert bool(decision.seats) == (now >= begun + 10.0)
        if decision.seats:
            return


@given(st.lists(TIMES, min_size=2, max_size=6, unique=True).map(sorted))
def test_the_time_to_leave_runs_from_the_first_sight(times):
    rules = Rules(min_nodes=1, max_nodes=3, interval=5.0, ttl=15.0)
    register = Register(
        life="life", revision=1, write_id="w", rules=rules, round=1, round_id="r1", world=2, waiting=1, reason="x"
    )
    view = View(
        register=register,
        records=(_node("a", rules), replace(_node("b", rules), left=1)),
        members={"a": 0, "b": 1},
        fit=True,
    )
    policy, memory = Policy(leave_timeout=300.0), Timers()
    for now, _ in pairwise([*times, 0.0]):
        decision = asked(view, rules, policy, memory, now)
        memory = decision.timers
        assert bool(decision.seats) == (now >= times[0] + 300.0)
        if decision.seats:
            assert decision.seats == ("b",)


def _node(node_id: str, rules: Rules) -> Record:
    return Record(
        node_id=node_id,
        seq=1,
        addr="h",
        pid=1,
        local_id=0,
        min_nodes=rules.min_nodes,
        max_nodes=rules.max_nodes,
    )
