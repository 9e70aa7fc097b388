"""Schedules by seed: whatever goes wrong, every invariant holds after every step."""

from __future__ import annotations

import zlib

import pytest

from rdzv_core.testing.simulate import crowd, story
from rdzv_core.testing.simulation.draw import KINDS, draw
from rdzv_core.testing.simulation.world import play

CHUNK = 25
EACH_KIND = 8


def holds(plan) -> None:
    outcome = play(plan)
    assert outcome.ok, story(outcome)


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_every_invariant_holds_under_faults_of_any_kind(first: int):
    for seed in range(first, first + CHUNK):
        holds(draw(seed))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_invariant_holds_under_each_kind_of_fault(kind: str):
    first = zlib.crc32(kind.encode())
    for seed in range(first, first + EACH_KIND):
        holds(draw(seed, kinds=[kind]))


@pytest.mark.parametrize("nodes", [1, 2, 5, 64, 200])
def test_a_crowd_without_faults_meets_once_and_ends_well(nodes: int):
    outcome = play(crowd(seed=nodes, nodes=nodes))
    assert outcome.ok, outcome.sentence
    assert (outcome.rounds, outcome.returns, outcome.closed) == (1, nodes, "success")


@pytest.mark.parametrize("seed", range(20))
def test_without_faults_every_node_that_started_in_time_ends_well(seed: int):
    outcome = play(draw(seed, faults=0))
    assert outcome.ok, story(outcome)
    assert outcome.closed == "success"
