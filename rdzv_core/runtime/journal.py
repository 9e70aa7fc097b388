"""The last decisions of a node, so that every error can tell the story that led to it."""

from __future__ import annotations

from collections import deque

from rdzv_core.runtime.clock import Clock

__all__ = ["Journal"]

LENGTH = 10
"""Lines kept: enough for two rounds, and short enough to be read at the end of a trace."""


class Journal:
    """A short list of sentences with their times. A sentence that repeats is kept once, with its first time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lines: deque[tuple[str, str]] = deque(maxlen=LENGTH)

    def note(self, sentence: str) -> bool:
        """Keep ``sentence``; returns False if it is only the last one again."""
        if self._lines and self._lines[-1][1] == sentence:
            return False
        self._lines.append((self._clock.wall(), sentence))
        return True

    def story(self) -> tuple[str, ...]:
        """The lines, oldest first."""
        return tuple(f"  {at}  {sentence}" for at, sentence in list(self._lines))
