"""Bounded calls to a store, whatever becomes of its host; and bells, which ring when a key appears."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, InvalidStateError
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.errors import RendezvousConnectionError, RendezvousError

from .line import Line
from .source import Source
from .stores import peek, replace

__all__ = ["Bell", "Closed", "Link"]

SHORTEST_OPENING, LONGEST_OPENING = 4.0, 32.0
"""Seconds after which a connection that is still being made is given up, in the first of some tries, and at most: a
client that is turned away may hang, and DNS may take long."""

OPENING = 8.0
"""Seconds that a bell gives its connection."""
LONGEST_WAIT = 20.0
"""Seconds that a bell listens before it asks again, so that a store which forgot us is noticed."""


class Closed(Exception):
    """The link was closed while a call waited."""


class Link:
    """Calls to the store of one source, from any thread, none longer than ``call_timeout``.

    Args:
        source: Where clients come from.
        call_timeout: Seconds that one call may take, a new connection included.
    """

    def __init__(self, source: Source, call_timeout: float) -> None:
        self.source = source
        self.call_timeout = call_timeout
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._line: Line | None = None
        self._line_since = 0.0
        self._patience = SHORTEST_OPENING
        self._bells: list[Bell] = []

    # --- calls

    def call(self, what: str, operation: str, *args: Any, writes: bool = False) -> Any:
        """Make one call.

        A call that only reads is made a second time if its connection turns out to be broken: a store that lost an
        idle connection, or was replaced by another, is then reached at once.

        Args:
            what: The call, in words for errors: "read the register".
            operation: The method of the client.
            args: Its arguments.
            writes: Whether it changes the store; it is then made once at most.

        Raises:
            RendezvousConnectionError: There was no answer in time.
        """
        deadline = monotonic() + self.call_timeout
        for again in (not writes, False):
            line = self._get_line()
            if (answer := self._try(line, what, operation, args, deadline, writes, again)) is not _AGAIN:
                return answer
        raise AssertionError("the second try either answers or raises")

    def peek(self, what: str, key: str) -> bytes | None:
        """Read a key; None if it is not there."""
        return peek(_Calls(self, what, writes=False), key)

    def replace(self, what: str, key: str, expected: bytes | None, desired: bytes) -> tuple[bytes | None, bool]:
        """Write a key by compare-and-set; see :func:`rdzv_c10d.stores.replace`."""
        return replace(_Calls(self, what, writes=True), key, expected, desired)

    def _try(
        self, line: Line, what: str, operation: str, args: tuple[Any, ...], deadline: float, writes: bool, again: bool
    ) -> Any:
        try:
            line.opened.result(max(0.0, deadline - monotonic()))
        except FutureTimeout:
            self._still_opening(line, what)
        except RendezvousError as error:
            self._drop(line)
            raise error.with_traceback(None) from error.__cause__
        except Exception as error:
            self._drop(line)
            raise self.failed(what, error, maybe_applied=False) from error
        self._patience = SHORTEST_OPENING
        try:
            return line.submit(operation, *args).result(max(0.001, deadline - monotonic()))
        except FutureTimeout:
            self._drop(line)
            raise RendezvousConnectionError(
                f"Could not {what}: {self.source.where} did not answer within {self.call_timeout:g} s. Its host hangs, "
                "or was cut off from this node.",
                maybe_applied=writes,
                backend="c10d",
            ) from None
        except (RuntimeError, ValueError) as error:
            self._drop(line)
            if again:
                return _AGAIN
            raise self.failed(what, error, maybe_applied=writes) from error

    def _get_line(self) -> Line:
        with self._lock:
            self._of_this_process()
            if self._closed:
                raise self._gone()
            if self._line is None:
                self._line, self._line_since = Line(self.source.open), monotonic()
            return self._line

    def _drop(self, line: Line) -> None:
        self.source.doubt()
        with self._lock:
            if self._line is line:
                self._line = None
        line.give_up()

    def _still_opening(self, line: Line, what: str) -> NoReturn:
        if monotonic() - self._line_since > self._patience:
            self._patience = min(2 * self._patience, LONGEST_OPENING)
            self._drop(line)
        raise RendezvousConnectionError(
            f"Could not {what}: {self.source.where} is not connected yet, after "
            f"{monotonic() - self._line_since:.1f} s. Slow DNS is the usual reason: a TCPStore asks for the name of "
            "its peer at each connect, on both sides. Or what listens there is no TCPStore.",
            backend="c10d",
        )

    def failed(self, what: str, error: Exception, *, maybe_applied: bool) -> RendezvousConnectionError:
        """The error to raise when a connection broke."""
        first_line = str(error).partition("\n")[0]
        advice = "It may have been done all the same. " if maybe_applied else ""
        return RendezvousConnectionError(
            f"Could not {what}: the connection to {self.source.where} broke ({first_line}). {advice}The process that "
            "hosts the store has ended, or its machine.",
            maybe_applied=maybe_applied,
            backend="c10d",
        )

    def _gone(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(f"The client of {self.source.where} was closed.", backend="c10d")

    def _of_this_process(self) -> None:
        if self._pid != os.getpid():
            self._begin()  # the parent's threads are not here, and its connections are not ours

    # --- bells, and the end

    def bell(self) -> Bell:
        """A bell of one's own: one connection and one thread, from its first use on."""
        bell = Bell(self)
        with self._lock:
            self._bells.append(bell)
        return bell

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Drop all connections and wake whoever waits. Idempotent."""
        with self._lock:
            if self._closed or self._pid != os.getpid():
                self._closed = True
                return
            self._closed = True
            line, self._line = self._line, None
        if line is not None:
            line.give_up()
        for bell in self._bells:
            bell.stop()
        self.source.close()


class Bell:
    """Waits for keys to appear, one at a time; between waits for the same key nothing is asked.

    For one waiting thread; :meth:`stop` may come from any other.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._line: Line | None = None
        self._key = ""  # what is listened for; empty if for nothing
        self._promise: Future[Any] = Future()

    def wait(self, key: str, timeout: float) -> bool:
        """Block until the store has ``key``; False after ``timeout`` seconds, or earlier to look again.

        Raises:
            Closed: The link was closed.
            RendezvousConnectionError: The connection broke.
        """
        if timeout <= 0:
            return False
        promise, line = self._listen(key)
        patience = timeout if line.opened.done() else min(timeout, OPENING)
        try:
            promise.result(patience)
        except FutureTimeout:
            if not line.opened.done() and patience == OPENING:
                self._forget(line)
            return False
        except _StoppedError:
            raise Closed from None
        except Exception as error:
            if type(error).__name__ == "DistStoreError":  # the store's own time limit is over
                self._key = ""
                return False
            self._forget(line)
            if isinstance(error, RendezvousError):
                raise error.with_traceback(None) from error.__cause__
            raise self._link.failed("wait for news", error, maybe_applied=False) from error
        self._key = ""
        return True

    def _listen(self, key: str) -> tuple[Future[Any], Line]:
        with self._lock:
            if self._link.is_closed:
                raise Closed
            if self._line is not None and self._key not in ("", key) and not self._promise.done():
                self._line.give_up()  # it still listens for an older key
                self._line = None
            if self._line is None:
                self._line, self._key = Line(self._link.source.open), ""
            if self._key != key:
                self._key = key
                self._promise = self._line.submit("wait", [key], timedelta(seconds=LONGEST_WAIT))
            return self._promise, self._line

    def _forget(self, line: Line) -> None:
        self._link.source.doubt()
        line.give_up()
        with self._lock:
            if self._line is line:
                self._line, self._key = None, ""

    def stop(self) -> None:
        """Wake the thread that waits."""
        with self._lock:
            line, promise = self._line, self._promise
            self._line = None
        with suppress(InvalidStateError):
            promise.set_exception(_StoppedError())
        if line is not None:
            line.give_up()


class _Calls:
    """A link, seen as a store."""

    def __init__(self, link: Link, what: str, *, writes: bool) -> None:
        self._link = link
        self._what = what
        self._writes = writes

    def compare_set(self, key: str, expected: Any, desired: Any, /) -> bytes:
        return bytes(self._link.call(self._what, "compare_set", key, expected, desired, writes=self._writes))


class _StoppedError(Exception):
    """The bell was stopped."""


_AGAIN: Any = object()
