"""One client of a store, and the thread that makes its calls.

A client of a TCPStore has no deadline: a call blocks for as long as the host says nothing, be it stopped, cut off or
gone without a word; and it has one mutex, so a thread that waits shuts out all others. So each client is given a
thread of its own, callers wait for its answer as long as they like, and who has lost patience leaves client and
thread behind. Such a thread ends when the kernel gives its connection up.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from queue import SimpleQueue
from typing import Any

__all__ = ["Line"]


class Line:
    """A client that is opened, used and dropped in a thread of its own.

    Args:
        open_client: Connects; runs in the line's thread.

    Attributes:
        opened: Resolved when the client is there, or cannot be had.
    """

    def __init__(self, open_client: Callable[[], Any]) -> None:
        self._open = open_client
        self.opened: Future[None] = Future()
        self._work: SimpleQueue[tuple[Future[Any], str, tuple[Any, ...]] | None] = SimpleQueue()
        self._given_up = False
        threading.Thread(target=self._run, name="rdzv-c10d", daemon=True).start()

    def submit(self, operation: str, *args: Any) -> Future[Any]:
        """Ask for a call of the client; answers a promise of its result."""
        promise: Future[Any] = Future()
        self._work.put((promise, operation, args))
        return promise

    def give_up(self) -> None:
        """Let client and thread end, as soon as no call is under way."""
        self._given_up = True
        self._work.put(None)

    def _run(self) -> None:
        try:
            client = self._open()
        except Exception as error:
            self.opened.set_exception(error)
            self._refuse_all(error)
            return
        self.opened.set_result(None)
        while (job := self._work.get()) is not None and not self._given_up:
            promise, operation, args = job
            try:
                result = getattr(client, operation)(*args)
            except Exception as error:
                _settle(promise, error=error)
            else:
                _settle(promise, result)
            del job, promise

    def _refuse_all(self, error: Exception) -> None:
        while (job := self._work.get()) is not None:
            _settle(job[0], error=error)


def _settle(promise: Future[Any], result: Any = None, error: Exception | None = None) -> None:
    with contextlib.suppress(InvalidStateError):  # whoever waited has woken itself
        if error is not None:
            promise.set_exception(error)
        else:
            promise.set_result(result)
