"""What a node says when its time is over."""

from __future__ import annotations

import pytest

from rdzv_core.machine.attendance import attendance
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import Register
from rdzv_core.machine.rules import Rules
from rdzv_core.machine.standing import View

RULES = Rules(min_nodes=2, max_nodes=4, interval=5.0, ttl=15.0)


def record(node_id: str, **more: object) -> Record:
    about = {"seq": 1, "addr": f"host-{node_id}", "pid": 7, "local_id": 0, "min_nodes": 2, "max_nodes": 4}
    return Record(node_id=node_id, **{**about, **more})  # type: ignore[arg-type]


def view(*records: Record, members: dict[str, int] | None = None) -> View:
    register = None
    if members is not None:
        register = Register(
            life="life", revision=1, write_id="w", rules=RULES, round=1, round_id="r1", world=len(members)
        )
    return View(register=register, records=records, members=members)


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (
            view(),
            "at the barrier are 0 of at least 2 nodes (nobody). Nodes that are missing have not reached the backend: "
            "check that every node uses this run id and endpoint, or raise join_timeout.",
        ),
        (
            view(record("a")),
            "at the barrier are 1 of at least 2 nodes (a (host-a, pid 7)). Nodes that are missing have not reached "
            "the backend: check that every node uses this run id and endpoint, or raise join_timeout.",
        ),
        (
            view(record("a", left=1), record("b"), record("x"), members={"a": 0, "b": 1, "c": 2}),
            "at the barrier are 2 of at least 2 nodes (a (host-a, pid 7), x (host-x, pid 7)); still in round 1: 1 "
            "(b (host-b, pid 7)); gone from round 1: 1 (c). A new round waits until all members have left the one "
            "before, which each does when its agent takes notice: look at what those still in it are doing.",
        ),
        (
            view(record("a", left=1), record("b", left=1), members={"a": 0, "b": 1}),
            "at the barrier are 2 of at least 2 nodes (a (host-a, pid 7), b (host-b, pid 7)). These are enough: "
            "the last call for more of them (last_call_timeout) is not over, nobody has decided in time, or rank 0 did "
            "not open its store; see the log of the others.",
        ),
        (
            view(record("a"), record("b", min_nodes=3, max_nodes=3)),
            "at the barrier are 1 of at least 2 nodes (a (host-a, pid 7)); with another --nnodes than 2:4: 1 (b "
            "(host-b, pid 7)). Start all nodes with the same --nnodes.",
        ),
        (
            view(record("a", claim=Claim(round=9, round_id="elsewhere")), record("b")),
            "at the barrier are 1 of at least 2 nodes (b (host-b, pid 7)). Nodes that are missing have not reached "
            "the backend: check that every node uses this run id and endpoint, or raise join_timeout.",
        ),
    ],
    ids=["nobody", "alone", "one stays, one has gone", "enough", "other rules", "adrift"],
)
def test_it_says_who_came_who_stays_and_who_has_gone(seen: View, expected: str):
    assert attendance(seen, RULES) == expected


def test_of_many_nodes_the_first_eight_are_named():
    said = attendance(view(*(record(f"n{i:02}") for i in range(12))), RULES)
    assert "12 of at least 2 nodes (n00 (" in said
    assert "n07 (host-n07, pid 7) and 4 more)" in said
    assert "n08" not in said


def test_members_that_nobody_can_name_are_counted():
    register = Register(life="life", revision=1, write_id="w", rules=RULES, round=3, round_id="r3", world=3)
    here = record("a", claim=Claim(round=3, round_id="r3"))
    said = attendance(View(register=register, records=(here,)), RULES)
    assert "still in round 3: 1 (a (host-a, pid 7)); gone from round 3: 2. A new round" in said
