"""One client of a store, and the thread that makes its calls.

A client of a TCPStore has no deadline: a call blocks for as long as the host says nothing, be it stopped, cut off or
gone without a word; and it has one mutex, so a thread that waits shuts out all others. So each client is given a
thread of its own, callers wait for its answer as long as they like, and who has lost patience pulls the plug.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

from .plug import Plug

__all__ = ["Job", "Line", "LineEnded", "LostPatience", "Promise"]

Job: TypeAlias = Callable[[Any], Any]
"""What a line is asked to do: given its client, make some calls and answer something."""


class LostPatience(Exception):
    """A promise was not kept in time."""


class LineEnded(Exception):
    """The job came too late to be begun."""


class Promise:
    """The answer to a job, which another thread will give. Lighter than a Future, of which there are thousands."""

    __slots__ = ("_error", "_pending", "_result", "_settled")

    def __init__(self) -> None:
        self._pending = threading.Lock()
        self._pending.acquire()
        self._settled = False
        self._result: Any = None
        self._error: Exception | None = None

    @property
    def settled(self) -> bool:
        """Whether the answer is there."""
        return self._settled

    def settle(self, result: Any = None, error: Exception | None = None) -> None:
        """Give the answer; the first one counts."""
        if not self._settled:
            self._result, self._error, self._settled = result, error, True
            self._pending.release()

    def result(self, timeout: float) -> Any:
        """Wait for the answer, for one caller at a time.

        Raises:
            LostPatience: It has not come in time.
            Exception: The job raised it.
        """
        if not self._settled:
            if not self._pending.acquire(timeout=max(0.0, timeout)):
                raise LostPatience
            self._pending.release()
        if self._error is not None:
            raise self._error
        return self._result


class Line:
    """A client that is opened, used and dropped in a thread of its own.

    Args:
        open_client: Connects, and answers the client and its plug; runs in the line's thread.

    Attributes:
        opened: Kept when the client is there, or cannot be had.
        sleeps: In a call that only a key ends, or :meth:`hang_up`.
    """

    def __init__(self, open_client: Callable[[], tuple[Any, Plug | None]]) -> None:
        self._open = open_client
        self.opened = Promise()
        self._work: SimpleQueue[tuple[Promise, Job] | None] = SimpleQueue()
        self._given_up, self._ended = threading.Event(), threading.Event()
        self._plug: Plug | None = None
        self.sleeps = False
        self._thread = threading.Thread(target=self._run, name="rdzv-c10d", daemon=True)
        self._thread.start()

    @property
    def given_up(self) -> bool:
        """Whether :meth:`give_up` was called; a job that takes long should end then."""
        return self._given_up.is_set()

    def pause(self, seconds: float) -> bool:
        """Wait in the middle of a job, no longer than until it should end; answers whether it should."""
        return self._given_up.wait(seconds)

    @property
    def has_plug(self) -> bool:
        """Whether a call under way can be ended by :meth:`hang_up`."""
        return self._plug is not None

    def sleep(self, client: Any, key: str, timeout: timedelta, may_sleep: Callable[[], bool]) -> bool:
        """In a job: let torch wait for a key; False if that is not wanted any more.

        Raises:
            DistStoreError: The time is over.
            DistNetworkError: The connection broke, or was ended.
        """
        self.sleeps = True
        try:
            if wanted := may_sleep():  # asked after others can see that it sleeps
                client.wait([key], timeout)
            return wanted
        finally:
            self.sleeps = False

    def submit(self, job: Job) -> Promise:
        """Ask for a job to be done; jobs are done in order. Refused with :class:`LineEnded` if that is not to be."""
        promise = Promise()
        self._work.put((promise, job))
        if self._ended.is_set():
            self._refuse_rest()
        return promise

    def give_up(self) -> None:
        """Let client and thread end, as soon as no call is under way."""
        self._given_up.set()
        self._work.put(None)

    def hang_up(self) -> None:
        """End a call that is under way, with an error, if there is a plug."""
        if self._plug is not None:
            self._plug.pull()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; answers whether it has."""
        if self._thread is threading.current_thread():
            return True
        self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._do_jobs()
        finally:
            self._ended.set()
            self._refuse_rest()

    def _refuse_rest(self) -> None:
        with suppress(Empty):
            while True:
                if (work := self._work.get_nowait()) is not None:
                    work[0].settle(error=LineEnded())

    def _do_jobs(self) -> None:
        try:
            client, self._plug = self._open()
        except Exception as error:
            self.opened.settle(error=error)
            while (work := self._work.get()) is not None:
                work[0].settle(error=error)
            return
        self.opened.settle()
        while (work := self._work.get()) is not None:
            promise, job = work
            if self.given_up:
                promise.settle(error=LineEnded())
                return
            try:
                promise.settle(job(client))
            except Exception as error:
                promise.settle(error=error)
            del work, promise, job
