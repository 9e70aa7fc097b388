"""The only place that asks the operating system for the time.

There are two kinds of time. *Monotonic* time measures waits on one machine, and is what every decision is made by.
*Wall* time is text that people read; nothing is ever computed from it, and no two machines' times are compared.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """A source of time; tests and the simulator own theirs."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...

    def wall(self) -> str:
        """The time of day as text, for people."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        return time.monotonic()

    def wall(self) -> str:
        """UTC, to the second."""
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
