"""Bounded jobs at a store, whatever becomes of its host; and bells, which ring when a key appears."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.tcp_store import await_keys

from .line import Job, Line, LineEnded, LostPatience, Promise
from .source import Source

__all__ = ["Bell", "Closed", "Link"]

SHORTEST_OPENING, LONGEST_OPENING = 4.0, 32.0
"""Seconds after which a connection that is still being made is given up, in the first of some tries, and at most: a
client that is turned away may hang, and DNS may take long."""

BELL_OPENING = 8.0
"""Seconds that a bell gives its connection."""

LONG_WAIT = timedelta(days=1)
"""How long a bell sleeps in a call of torch's. That costs nothing; but torch prints two lines when its time is over and
thirty when it is ended by force."""

SETTLING = 5.0
"""Seconds for which a bell that was rung for nothing looks for itself before it sleeps: a node left, and others may."""

GENTLE, FAREWELL = 0.4, 1.5
"""Seconds to wait for threads to end by themselves, and by force: one that is in a call of torch's when the interpreter
ends aborts the process."""


class Closed(Exception):
    """The link was closed while a call waited."""


class Link:
    """Jobs at the store of one source, from any thread, none longer than ``call_timeout``.

    Args:
        source: Where clients come from.
        call_timeout: Seconds that one job may take, a new connection included.
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

    # --- jobs

    def run(self, what: str, job: Job, *, writes: bool = False) -> Any:
        """Do a job: some calls of a client, in its own thread.

        A job that only reads is done a second time if its connection turns out to be broken: a store that lost an
        idle connection, or was replaced by another, is then reached at once.

        Args:
            what: The job, in words for errors: "read the register".
            job: Does it, given the client.
            writes: Whether it changes the store; it is then done once at most.

        Raises:
            RendezvousConnectionError: It was not done in time.
            RendezvousStateError: It cannot be done with what is stored.
        """
        deadline = monotonic() + self.call_timeout
        for again in (not writes, False):
            answer = self._try(self._get_line(), what, job, deadline, writes=writes, again=again)
            if answer is not _AGAIN:
                return answer
        raise AssertionError("the second try either answers or raises")

    def _try(self, line: Line, what: str, job: Job, deadline: float, *, writes: bool, again: bool) -> Any:
        self._await_opening(line, what, deadline)
        self._patience = SHORTEST_OPENING
        try:
            return line.submit(job).result(deadline - monotonic())
        except LineEnded:
            return self._try(self._get_line(), what, job, deadline, writes=writes, again=again)
        except LostPatience:
            self._drop(line)
            raise RendezvousConnectionError(
                f"Could not {what}: {self.source.where} did not answer within {self.call_timeout:g} s. Its host hangs, "
                "or was cut off from this node.",
                maybe_applied=writes,
                backend="c10d",
            ) from None
        except RendezvousConnectionError as error:  # the job lost its races, perhaps after it had won others
            error.maybe_applied = error.maybe_applied or writes
            raise
        except RendezvousError:
            raise
        except (RuntimeError, ValueError) as error:
            self._drop(line)
            if again:
                return _AGAIN
            raise self.failed(what, error, maybe_applied=writes) from error

    def _await_opening(self, line: Line, what: str, deadline: float) -> None:
        try:
            line.opened.result(deadline - monotonic())
        except LostPatience:
            self._still_opening(line, what)
        except RendezvousError as error:
            self._drop(line)
            raise error.with_traceback(None) from error.__cause__
        except Exception as error:
            self._drop(line)
            raise self.failed(what, error, maybe_applied=False) from error

    def _get_line(self) -> Line:
        with self._lock:
            if self._pid != os.getpid():
                self._begin()  # the parent's threads are not here, and its connections are not ours
            if self._closed:
                raise RendezvousConnectionError(f"The client of {self.source.where} was closed.", backend="c10d")
            if self._line is None:
                self._line, self._line_since = Line(self.source.open), monotonic()
            return self._line

    def _drop(self, line: Line) -> None:
        self.source.doubt()
        with self._lock:
            if self._line is line:
                self._line = None
        line.give_up()
        line.hang_up()

    def _still_opening(self, line: Line, what: str) -> NoReturn:
        since = monotonic() - self._line_since
        if since > self._patience:
            self._patience = min(2 * self._patience, LONGEST_OPENING)
            self._drop(line)
        raise RendezvousConnectionError(
            f"Could not {what}: {self.source.where} is not connected yet, after {since:.1f} s. Slow DNS is the usual "
            "reason: a TCPStore asks for the name of its peer at each connect, on both sides. Or what listens there is "
            "no TCPStore.",
            backend="c10d",
        ) from None

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

    def close(self, ring: Job) -> None:
        """Drop all connections and wake whoever waits. Idempotent.

        Args:
            ring: Makes the keys appear that bells sleep for, so that they need not be woken by force.
        """
        with self._lock:
            was_closed, self._closed = self._closed, True  # from now on no bell falls asleep
            if was_closed or self._pid != os.getpid():
                return
            line, self._line = self._line, None
        if line is not None and any(bell.sleeps for bell in self._bells):
            with suppress(Exception):
                line.submit(ring).result(GENTLE)
        lines = [line, *(bell.stop() for bell in self._bells)]
        for line in lines:
            if line is not None:
                line.give_up()
        began = monotonic()
        for line in lines:
            if line is not None and not line.join(began + GENTLE - monotonic()):
                line.hang_up()
        for line in lines:
            if line is not None:
                line.join(began + FAREWELL - monotonic())
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
        self._promise = Promise()

    @property
    def sleeps(self) -> bool:
        """Whether its thread is in a call of torch's that only the key ends, or force."""
        line = self._line
        return line is not None and line.sleeps

    def wait(self, key: str, timeout: float, then: Job, *, settling: bool = False) -> Any:
        """Block until the store has ``key``, and answer what ``then`` does; None after ``timeout`` seconds, or earlier.

        Args:
            key: What to wait for.
            timeout: Seconds.
            then: What to do then, in the same thread.
            settling: Look for oneself for a while before sleeping: the run may be about to end.

        Raises:
            Closed: The link was closed.
            RendezvousConnectionError: The connection broke.
        """
        if timeout <= 0:
            return None
        promise, line = self._listen(key, then, settling)
        patience = timeout if line.opened.settled else min(timeout, BELL_OPENING)
        try:
            answer = promise.result(patience)
        except LostPatience:
            if not line.opened.settled and patience == BELL_OPENING:
                self._forget(line)
            return None
        except _StoppedError:
            raise Closed from None
        except Exception as error:
            if type(error).__name__ == "DistStoreError":  # the store's own time limit is over
                self._key = ""
                return None
            self._forget(line)
            if isinstance(error, RendezvousError):
                raise error.with_traceback(None) from error.__cause__
            raise self._link.failed("wait for news", error, maybe_applied=False) from error
        self._key = ""
        return answer

    def _listen(self, key: str, then: Job, settling: bool) -> tuple[Promise, Line]:
        with self._lock:
            if self._link.is_closed:
                raise Closed
            if self._line is not None and self._key not in ("", key) and not self._promise.settled:
                with suppress(Exception):
                    self._promise.result(GENTLE)  # it still listens for an older key, which should be there
                if not self._promise.settled:
                    self._line.give_up()
                    self._line.hang_up()
                    self._line = None
            if self._line is None:
                self._line, self._key = Line(self._link.source.open), ""
            if self._key != key:
                self._key, self._promise = key, self._line.submit(self._listening(self._line, key, then, settling))
            return self._promise, self._line

    def _forget(self, line: Line) -> None:
        self._link.source.doubt()
        line.give_up()
        with self._lock:
            if self._line is line:
                self._line, self._key = None, ""

    def stop(self) -> Line | None:
        """Wake the thread that waits; answers the line that is to be given up."""
        with self._lock:
            line, self._line = self._line, None
            self._promise.settle(error=_StoppedError())
            return line

    def _listening(self, line: Line, key: str, then: Job, settling: bool) -> Job:
        """The job of waiting for ``key``, and then doing ``then``."""

        def listen(client: Any) -> Any:
            awake_until = monotonic() + SETTLING if settling else 0.0

            def may_sleep() -> bool:
                return line.has_plug and not self._link.is_closed and monotonic() >= awake_until

            while not line.given_up:
                if may_sleep():
                    rung = line.sleep(client, key, LONG_WAIT, may_sleep)
                else:
                    rung = await_keys(client, [key], lambda pause: line.pause(pause) or may_sleep())
                if rung:
                    return then(client)
            return None

        return listen


class _StoppedError(Exception):
    """The bell was stopped."""


_AGAIN: Any = object()
