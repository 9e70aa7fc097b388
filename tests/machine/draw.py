"""Hypothesis: views, registers and nodes from a small world, so that they often have to do with each other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from rdzv_core.machine.decide import Fresh, Hold, Timers
from rdzv_core.machine.follow import Me, PageLookup, PageState, Seat
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import Bootstrap, Closed, Register
from rdzv_core.machine.rules import PLACEMENTS, RESTARTS, Policy, Rules
from rdzv_core.machine.standing import View

IDS = [*"abcdef"]
ROUND_IDS = ["r1", "r2", "r3", "other"]
FRESH = Fresh(life="fresh-life", round_id="fresh-round", write_id="fresh-write")
TIMES = st.sampled_from([0.0, 0.5, 3.0, 10.0, 15.0, 30.0, 300.0, 1000.0])


def all_rules() -> st.SearchStrategy[Rules]:
    return st.sampled_from([(1, 1), (1, 3), (2, 2), (2, 3), (3, 5)]).map(
        lambda n: Rules(min_nodes=n[0], max_nodes=n[1], interval=5.0, ttl=15.0)
    )


@st.composite
def registers(draw: st.DrawFn) -> Register:
    number = draw(st.integers(0, 3))
    told = number > 0
    return Register(
        life=draw(st.sampled_from(["life", "life", "another"])),
        revision=draw(st.integers(1, 6)),
        write_id="w",
        rules=draw(all_rules()),
        round=number,
        round_id=draw(st.sampled_from([f"r{number}", "other"])) if told else "",
        world=draw(st.integers(1, 5)) if told else 0,
        bootstrap=draw(st.none() | st.just(Bootstrap(addr="h", port=1))) if told else None,
        waiting=draw(st.integers(0, 2)) if told else 0,
        lost=draw(st.integers(0, 2)) if told else 0,
        finished=draw(st.integers(0, 1)) if told else 0,
        rollcall=draw(st.booleans()) if told else False,
        reason="as was said",
        closed=draw(st.sampled_from([None] * 4 + [Closed(by="b", outcome="success", reason="done", at="noon")])),
    )


def known_registers() -> st.SearchStrategy[Register | None]:
    return st.none() | registers()


@st.composite
def nodes(draw: st.DrawFn) -> Me:
    number = draw(st.integers(1, 3))
    seat = Seat(life="life", round=number, round_id=f"r{number}", rank=0, world=2)
    return Me(
        node_id="n",
        rules=draw(all_rules()),
        left=draw(st.integers(0, 4)),
        last_round_id=draw(st.sampled_from(["", *ROUND_IDS])),
        seat=draw(st.none() | st.just(seat)),
        joining=draw(st.booleans()),
    )


@st.composite
def lookups(draw: st.DrawFn) -> PageLookup:
    state = draw(st.sampled_from([*PageState, PageState.READ]))
    return PageLookup(
        state=state,
        rank=draw(st.none() | st.integers(0, 3)) if state is PageState.READ else None,
        waited=draw(st.sampled_from([0.0, 2.9, 3.0, 59.0, 60.0])),
    )


@st.composite
def records(draw: st.DrawFn, node_id: str, rules: Rules | None = None) -> Record:
    claim = draw(st.none() | st.none() | st.builds(Claim, round=st.integers(1, 4), round_id=st.sampled_from(ROUND_IDS)))
    wants = rules if rules is not None and draw(st.integers(0, 4)) else draw(all_rules())
    return Record(
        node_id=node_id,
        seq=1,
        addr=draw(st.sampled_from(["h1", "h2", "h10"])),
        pid=draw(st.integers(1, 2)),
        local_id=0,
        left=draw(st.integers(0, 4)),
        claim=claim,
        steady=draw(st.booleans()),
        done=draw(st.sampled_from([False, False, True])),
        rank_hint=draw(st.none() | st.integers(0, 2)),
        min_nodes=wants.min_nodes,
        max_nodes=wants.max_nodes,
    )


@st.composite
def views(draw: st.DrawFn, rules: Rules | None = None) -> View:
    register = draw(registers() | registers() | st.none())
    if register is not None and rules is not None and draw(st.integers(0, 4)):
        register = _with_rules(register, rules)
    live = draw(st.permutations(IDS).flatmap(lambda ids: st.integers(0, len(ids)).map(lambda n: ids[:n])))
    members = None
    if register is not None and register.round_id and draw(st.integers(0, 3)):
        listed = draw(st.permutations(IDS))[: register.world]
        members = {node_id: rank for rank, node_id in enumerate(listed)}
    return View(
        register=register,
        records=tuple(draw(records(node_id, rules)) for node_id in live),
        withdrawn=frozenset(draw(st.sets(st.sampled_from(IDS)))) - frozenset(live),
        members=members,
        fit=draw(st.booleans()),
    )


def _with_rules(register: Register, rules: Rules) -> Register:
    return replace(register, rules=rules)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        last_call=draw(st.sampled_from([0.1, 30.0])),
        regroup=draw(st.sampled_from([0.0, 0.5])),
        leave_timeout=draw(st.sampled_from([10.0, 300.0])),
        restart_on_node_loss=draw(st.sampled_from(RESTARTS)),
        placement=draw(st.sampled_from(PLACEMENTS)),
    )


@st.composite
def timers(draw: st.DrawFn) -> Timers:
    since = st.none() | TIMES
    return Timers(
        min_since=draw(since),
        min_round=draw(st.sampled_from(["", *ROUND_IDS])),
        told_since=draw(since),
        told_round=draw(st.sampled_from(["", *ROUND_IDS])),
        short_since=draw(since),
        hold=draw(st.none() | st.builds(Hold, cause=st.just("a cause of its own"), until=TIMES)),
    )
