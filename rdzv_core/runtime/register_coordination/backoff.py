"""How long to step aside after a lost race, and how long between two looks of a wait."""

from __future__ import annotations

import random

__all__ = ["Backoff", "Pace"]

FIRST_WINDOW = 8
"""Round trips. With eight places for two rivals they seldom meet again, and nobody waits long."""
GROWTH = 3
"""Per loss in a row. Tried on a model of 2 to 256 nodes that start together, with factors of 2, 3, 4 and 5: at 128
nodes 5.1, 4.4, 4.1 and 4.3 writes per node; a larger factor costs time when rivals are few."""
LONGEST_WINDOW = 2.0
"""Seconds."""


class Backoff:
    """Random waits whose range grows while races are lost and shrinks when one is won.

    The range is measured in round trips to the store, as they are seen: what takes a millisecond in memory may take
    fifty elsewhere. It outlasts an operation, since a store that was crowded a moment ago will be still.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._trip = 0.0
        self._trips = 0.0

    def took(self, seconds: float) -> None:
        """A round trip took so long."""
        self._trip = seconds if self._trip == 0.0 else 0.8 * self._trip + 0.2 * seconds

    def won(self) -> None:
        """A race was won."""
        self._trips = self._trips / GROWTH if self._trips > FIRST_WINDOW else 0.0

    def lost(self) -> float:
        """A race was lost: the seconds to wait before the next."""
        longest = LONGEST_WINDOW / max(self._trip, 1e-6)
        self._trips = min(max(self._trips * GROWTH, FIRST_WINDOW), longest)
        return self._chance.uniform(0.0, self._trips * self._trip)


class Pace:
    """The pauses of one wait: short at first, for what happens at once; longer for what does not."""

    SHORTEST = 0.05
    """Seconds."""
    LONGEST = 0.5
    """Seconds; with jitter and a slow read a change is still noticed within the second that the contract allows."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._step = self.SHORTEST

    def next(self) -> float:
        """Seconds until the next look."""
        step = self._step
        self._step = min(step * 1.5, self.LONGEST)
        return step * self._chance.uniform(0.6, 1.0)
