"""The register's own words, and the pages of a round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core.machine.register import PAGE_SIZE, Register, page_count, page_index, paginate
from rdzv_core.machine.rules import PLACEMENTS, RESTARTS, Policy, Rules

RULES = Rules(min_nodes=2, max_nodes=4, interval=5.0, ttl=15.0)


def node_ids(world: int) -> list[str]:
    return [f"{i * 2654435761 % 2**48:012x}" for i in range(world)]


@given(st.integers(1, 5000))
def test_each_member_finds_its_rank_on_the_one_page_that_it_reads(world: int):
    seats = node_ids(world)
    pages = paginate("r1", seats)
    assert len(pages) == page_count(world)
    for rank in {0, world // 2, world - 1}:
        page = pages[page_index(seats[rank], page_count(world))]
        assert page.ranks[seats[rank]] == rank
        assert page.round_id == "r1"


@given(st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=200, unique=True))
def test_pages_hold_every_member_once_whatever_its_id(seats: list[str]):
    pages = paginate("r1", seats)
    gathered = [(rank, node_id) for page in pages for node_id, rank in page.ranks.items()]
    assert sorted(gathered) == list(enumerate(seats))
    for number, page in enumerate(pages):
        assert all(page_index(node_id, len(pages)) == number for node_id in page.ranks)


@pytest.mark.parametrize(
    ("world", "pages"), [(0, 1), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2), (2 * PAGE_SIZE, 2), (2 * PAGE_SIZE + 1, 3)]
)
def test_there_are_as_many_pages_as_are_needed(world: int, pages: int):
    assert page_count(world) == pages


def test_a_page_is_about_as_long_as_it_should_be():
    sizes = [len(page.ranks) for page in paginate("r1", node_ids(10_000))]
    assert max(sizes) < 3 * PAGE_SIZE


@pytest.mark.parametrize(("waiting", "lost", "told"), [(0, 0, False), (1, 0, True), (0, 1, True), (2, 3, True)])
def test_a_round_is_disturbed_once_its_members_were_told_to_re_form(waiting: int, lost: int, told: bool):
    register = Register(life="l", revision=1, write_id="w", rules=RULES, waiting=waiting, lost=lost)
    assert register.disturbed is told


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"min_nodes": 0}, "The minimum number of nodes (0) must be greater than zero."),
        (
            {"max_nodes": 1},
            "The maximum number of nodes (1) must be greater than or equal to the minimum number of nodes (2).",
        ),
        ({"interval": 0.0}, "The keep-alive interval (0.0 s) must be positive."),
        ({"ttl": 14.9}, "The TTL (14.9 s) must be at least three keep-alive intervals (15.0 s)."),
    ],
)
def test_rules_that_cannot_be_are_refused_with_their_number(wrong: dict, sentence: str):
    with pytest.raises(ValueError, match=r".") as refused:
        Rules(**{"min_nodes": 2, "max_nodes": 4, "interval": 5.0, "ttl": 15.0, **wrong})
    assert str(refused.value) == sentence


@pytest.mark.parametrize("interval", [0.1, 0.2, 0.3, 1 / 3, 5.0])
def test_three_intervals_are_enough_however_they_are_rounded(interval: float):
    assert Rules(min_nodes=1, max_nodes=1, interval=interval, ttl=3 * interval)


def test_rules_are_told_in_one_line():
    assert str(RULES) == "nodes 2:4, keep-alive every 5 s, dead after 15 s"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"restart_on_node_loss": "sometimes"},
            f"restart_on_node_loss is 'sometimes'; expected one of {', '.join(RESTARTS)}.",
        ),
        ({"placement": "random"}, f"placement is 'random'; expected one of {', '.join(PLACEMENTS)}."),
    ],
)
def test_a_policy_that_nobody_knows_is_refused(wrong: dict, sentence: str):
    with pytest.raises(ValueError, match=r".") as refused:
        Policy(**wrong)
    assert str(refused.value) == sentence
