"""Where each live node stands."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from rdzv_core.machine.standing import Standing, View, stand
from tests.machine.draw import views
from tests.machine.script import Scene, record

TABLE = Path(__file__).parent / "tables" / "stand.txt"
PLACES = {
    "inside": "inside",
    "returned": "returned",
    "newcomers": "newcomer",
    "overstayers": "overstayer",
    "finished": "finished",
}


def cases() -> list:
    found = []
    for number, line in enumerate(TABLE.read_text().splitlines(), start=1):
        if line.count("|") == 2 and not line.startswith("#"):
            where, said, answer = [part.strip() for part in line.split("|")]
            found.append(pytest.param(where, said, answer.removeprefix("-> "), id=f"line {number}: {where}; {said}"))
    return found


def places(standing: Standing, node_id: str) -> list[str]:
    found = [word for name, word in PLACES.items() if any(r.node_id == node_id for r in getattr(standing, name))]
    return found or ["adrift"]


@pytest.mark.parametrize(("where", "said", "place"), cases())
def test_where_a_node_stands(where: str, said: str, place: str):
    scene, words = Scene(), where.split()
    match words[0]:
        case "empty":
            scene.play("round 0:")
        case "r4":
            scene.play("round 4: a, b, c" + (" waiting=1" if "disturbed" in words else ""))
    if "unreadable" in words:
        scene.play("unreadable")
    node = record(said, scene.rules)
    view = replace(scene.view(), records=(node,))
    assert places(stand(view, overstayed="late" in words), node.node_id) == [place]


@given(views())
def test_every_live_node_stands_in_one_place_at_most_and_keeps_its_turn(view: View):
    for overstayed in (False, True):
        standing = stand(view, overstayed=overstayed)
        turn = {r.node_id: i for i, r in enumerate(view.records)}
        seen: list[str] = []
        for name in PLACES:
            ids = [r.node_id for r in getattr(standing, name)]
            assert ids == sorted(ids, key=turn.__getitem__)
            seen += ids
        assert len(seen) == len(set(seen))
        assert set(seen) <= set(turn)


@given(views())
def test_only_a_fit_judge_counts_more_lost_than_is_proven(view: View):
    standing = stand(view, overstayed=False)
    assert 0 <= standing.lost <= standing.absent
    if view.fit:
        assert standing.settled
        return
    live = {r.node_id for r in view.records}
    proven = {n for n in view.members or {} if n not in live and n in view.withdrawn}
    said = view.register.lost if view.register is not None else 0
    assert standing.lost <= max(len(proven), said)
    assert standing.lost >= len(proven)


def test_more_claims_than_seats_are_no_negative_number_of_missing_members():
    """The list is lost and two nodes claim a round of one: somebody is wrong, and nobody is missing."""
    scene = Scene()
    for line in ("round 4: a rollcall", "unreadable", "live: a claim=4/r4, b claim=4/r4"):
        scene.play(line)
    standing = stand(scene.view(), overstayed=False)
    assert (standing.absent, standing.lost) == (0, 0)
