"""Waiting at a store in a way that can be ended, and says nothing."""

from __future__ import annotations

import pytest

from rdzv_core import tcp_store
from rdzv_core.tcp_store import FIRST_PAUSE, LONGEST_PAUSE, await_keys


class Clock:
    """A store whose keys appear at their times, and the clock that says when it is."""

    def __init__(self, **keys: float) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self._keys = keys

    def check(self, keys: list[str]) -> bool:
        return all(self._keys[key] <= self.now for key in keys)

    def sleep(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return False


@pytest.fixture
def make_clock(monkeypatch):
    def make(**keys: float) -> Clock:
        clock = Clock(**keys)
        monkeypatch.setattr(tcp_store, "monotonic", lambda: clock.now)
        return clock

    return make


def test_keys_that_are_there_are_found_at_once(make_clock):
    clock = make_clock(a=0.0, b=0.0)
    assert await_keys(clock, ("a", "b"), clock.sleep)
    assert clock.pauses == []


@pytest.mark.parametrize("at", [0.01, 0.1, 1.0, 10.0])
def test_keys_are_found_no_later_than_a_quarter_of_the_time_waited(make_clock, at):
    clock = make_clock(early=0.0, late=at)
    assert await_keys(clock, ["early", "late"], clock.sleep)
    assert at <= clock.now <= 1.25 * at + FIRST_PAUSE


def test_keys_are_looked_for_ever_less_often(make_clock):
    clock = make_clock(a=3600.0)
    assert await_keys(clock, ["a"], clock.sleep)
    assert clock.pauses == sorted(clock.pauses)
    assert clock.pauses[0] == FIRST_PAUSE
    assert clock.pauses[-1] == LONGEST_PAUSE
    assert len(clock.pauses) < 3600 / LONGEST_PAUSE + 40


def test_it_stops_when_told_to(make_clock):
    clock = make_clock(a=1.0)
    assert not await_keys(clock, ["a"], lambda seconds: clock.sleep(seconds) or len(clock.pauses) == 3)
    assert len(clock.pauses) == 3
