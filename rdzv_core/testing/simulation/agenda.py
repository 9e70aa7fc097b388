"""The virtual clock: what is to happen, in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

__all__ = ["Agenda", "NodeClock"]


LATE = 1e-6
"""Seconds; also more than any rounding error, so that no wait ends before its time."""


class Agenda:
    """A heap of things to do. Time passes only from one to the next; equal times keep the order of asking.

    Attributes:
        now: Seconds of virtual time.
        done: How many things have been done.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.done = 0
        self._asked = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def at(self, when: float, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` at that time; now, if it has passed."""
        self._asked += 1
        heapq.heappush(self._heap, (max(when, self.now), self._asked, do, args))

    def after(self, seconds: float, do: Callable[..., None], *args: Any) -> None:
        """Call ``do(*args)`` so many seconds from now."""
        self.at(self.now + seconds, do, *args)

    def step(self) -> bool:
        """Do the next thing; False if there is none."""
        if not self._heap:
            return False
        self.now, _, do, args = heapq.heappop(self._heap)
        self.done += 1
        do(*args)
        return True

    @property
    def next_at(self) -> float | None:
        """When the next thing happens; None if nothing does."""
        return self._heap[0][0] if self._heap else None


class NodeClock:
    """A node's view of time: a monotonic clock with a start of its own, and a wall clock that may be wrong.

    Attributes:
        skew: Seconds by which this machine's wall clock is off; may step at any moment.
    """

    def __init__(self, agenda: Agenda, origin: float) -> None:
        self._agenda = agenda
        self._origin = origin
        self.skew = 0.0

    def monotonic(self) -> float:
        """Seconds from this machine's own start."""
        return self._agenda.now + self._origin

    def wall(self) -> str:
        """The time of day as this machine has it."""
        return f"T{self._agenda.now + self.skew:+.3f}"

    def virtual(self, monotonic: float) -> float:
        """The virtual time at which a timer set for ``monotonic`` goes off: a little late, as timers do."""
        return monotonic - self._origin + LATE
