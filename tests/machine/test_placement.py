"""How members become ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core.machine.placement import place, shared_hints
from rdzv_core.machine.record import Record
from rdzv_core.machine.rules import PLACEMENTS


def node(node_id: str, addr: str = "h", pid: int = 1, local_id: int = 0, hint: int | None = None) -> Record:
    return Record(
        node_id=node_id, seq=1, addr=addr, pid=pid, local_id=local_id, rank_hint=hint, min_nodes=1, max_nodes=99
    )


HOSTS = st.sampled_from(
    ["node7", "node8", "node66", "node70", "Node8", "10.0.0.9", "10.0.0.10", "a-1", "a-01", "é", ""]
)
IDS = st.text("abcdef0123456789", min_size=1, max_size=3)


@st.composite
def crews(draw: st.DrawFn) -> list[Record]:
    ids = draw(st.lists(IDS, min_size=1, max_size=9, unique=True))
    hints = st.none() | st.integers(0, 3)
    numbers = st.integers(0, 3)
    return [node(i, draw(HOSTS), draw(numbers), draw(numbers), draw(hints)) for i in ids]


@pytest.mark.needs_torch
@given(crews())
def test_sorted_is_the_order_of_torch(crew: list[Record]):
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc

    theirs = sorted(_NodeDesc(r.addr, r.pid, r.local_id) for r in crew)
    by_id = {r.node_id: r for r in crew}
    ours = [by_id[i] for i in place("sorted", crew, {})]
    assert [(r.addr, r.pid, r.local_id) for r in ours] == [(d.addr, d.pid, d.local_id) for d in theirs]


def test_natural_reads_numbers_as_numbers():
    crew = [node(name, name) for name in ("node66", "node7", "node70", "node8")]
    assert place("natural", crew, {}) == ("node7", "node8", "node66", "node70")
    assert place("sorted", crew, {}) == ("node66", "node7", "node70", "node8")


def test_natural_reads_every_number_of_an_address():
    crew = [node(name, name) for name in ("10.0.0.10", "10.0.0.9", "9.1.1.1", "rack2-n1", "rack10-n1", "rack2-n10")]
    assert place("natural", crew, {}) == ("9.1.1.1", "10.0.0.9", "10.0.0.10", "rack2-n1", "rack2-n10", "rack10-n1")


def test_survivors_keep_their_ranks_and_newcomers_fill_the_holes():
    before = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert place("stable", [node("x"), node("d"), node("b"), node("y")], before) == ("x", "b", "y", "d")


def test_in_a_smaller_round_survivors_beyond_its_end_move_into_the_holes():
    before = {"a": 0, "b": 1, "c": 2, "d": 3}
    assert place("stable", [node("b"), node("c"), node("d")], before) == ("d", "b", "c")


def test_a_hint_is_a_wish():
    crew = [node("a", "h1", hint=3), node("b", "h2", hint=2), node("c", "h3", hint=1), node("d", "h4", hint=0)]
    assert place("hint", crew, {}) == ("d", "c", "b", "a")
    assert shared_hints(crew) == {}


def test_equal_hints_fall_back_on_the_address_and_none_comes_last():
    crew = [node("a", "h4"), node("b", "h3", hint=1), node("c", "h2", hint=1), node("d", "h1"), node("e", "h5", hint=0)]
    assert place("hint", crew, {}) == ("e", "c", "b", "d", "a")
    assert shared_hints(crew) == {1: ("c", "b")}


@given(st.sampled_from(PLACEMENTS), crews(), st.data())
def test_every_policy_orders_everybody_once_and_alike_whoever_leads(policy: str, crew: list[Record], data):
    previous = data.draw(st.permutations([r.node_id for r in crew] + ["gone-1", "gone-2"]))
    ranks = {node_id: rank for rank, node_id in enumerate(previous)}
    order = place(policy, crew, ranks)
    assert sorted(order) == sorted(r.node_id for r in crew)
    assert place(policy, data.draw(st.permutations(crew)), ranks) == order


@given(st.integers(1, 40), st.data())
def test_stable_changes_exactly_as_many_ranks_as_members_were_lost(world: int, data):
    before = [f"m{i}" for i in range(world)]
    lost = data.draw(st.sets(st.sampled_from(before)))
    newcomers = [f"n{i}" for i in range(len(lost))]
    crew = data.draw(st.permutations([node(i) for i in [*(m for m in before if m not in lost), *newcomers]]))
    after = place("stable", crew, {node_id: rank for rank, node_id in enumerate(before)})
    changed = [rank for rank in range(world) if after[rank] != before[rank]]
    assert len(changed) == len(lost)
    assert changed == sorted(before.index(m) for m in lost)
