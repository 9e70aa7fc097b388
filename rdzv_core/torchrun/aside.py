"""Waiting for rank 0's store without being held by it.

A call of a store whose host has frozen, or was cut off, does not come back, whatever timeout it was given; and while
the main thread is in one, no signal is handled. So these waits are made in a thread of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Aside"]

T = TypeVar("T")

SLICE = 0.25
"""Seconds that a wait lasts before it asks whether to go on; the end of the work wakes it at once."""

FAREWELL = 1.0
"""Seconds for a thread to end when it is told to; one that is in a call of torch's when the interpreter ends aborts the
process."""


class Aside(Generic[T]):
    """Work at a store, in a thread of its own.

    Args:
        work: Does it; looks at the event now and then, and ends soon after it is set.
    """

    def __init__(self, work: Callable[[threading.Event], T]) -> None:
        self._work = work
        self._told_to_end = threading.Event()
        self._ended = threading.Event()
        self._result: T | None = None
        self._error: Exception | None = None

    def _run(self) -> None:
        try:
            self._result = self._work(self._told_to_end)
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def result(self, go_on: Callable[[], bool], *, patience: float = FAREWELL) -> T | None:
        """Do the work; ask ``go_on`` every so often, and tell the work to end when it says no.

        Args:
            go_on: Whether to wait on.
            patience: Seconds to wait for the answer of work that was told to end.

        Returns:
            The work's answer; None if it was told to end and gave none in time.

        Raises:
            Exception: The work's own; or what ``go_on`` or a signal handler has raised.
        """
        try:
            threading.Thread(target=self._run, name="rdzv-aside", daemon=True).start()
            while not self._ended.wait(SLICE):
                if not go_on():
                    self._told_to_end.set()
                    self._ended.wait(patience)
                    break
        except BaseException:
            self._told_to_end.set()
            self._ended.wait(FAREWELL)
            raise
        if self._error is not None:
            raise self._error
        return self._result
