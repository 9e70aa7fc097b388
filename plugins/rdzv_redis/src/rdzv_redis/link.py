"""The connections of one client: short calls that may be repeated, and subscriptions that wait.

Every call of this distribution may reach the server twice and do no harm (it carries a token, a sequence number or
an immutable value), so a call whose connection broke is made again, with growing random pauses, until its time is
up. What the store may have done by then is told truthfully. A connection is never shared with a forked child.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from random import SystemRandom
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.errors import RendezvousConnectionError

from .connection import Target
from .lua import script
from .refusals import Attempt, RetryableError, is_answer, is_demoted, translated

__all__ = ["Closed", "Link", "Subscription"]

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_CHANCE = SystemRandom()


class Closed(Exception):
    """The link was closed while a call waited."""


class Link:
    """Calls to one server, from any thread."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._idle: list[Any] = []
        self._all: set[Any] = set()
        self._listening: set[Any] = set()  # of them; who wakes those that listen must not wait for them

    def _of_this_process(self) -> None:
        if self._pid != os.getpid():
            self._begin()  # the parent's sockets are the parent's

    def __reduce__(self) -> NoReturn:
        raise TypeError("A Redis connection cannot be pickled: make a new backend or store in the other process.")

    # -- calls

    def run(
        self,
        what: str,
        name: str,
        keys: Sequence[str],
        arguments: Sequence[Any],
        *,
        writes: bool,
        repeatable: bool = True,
    ) -> tuple[Any, Attempt]:
        """Run the script ``name``; answers its reply, and how certain it is that it ran only once.

        Args:
            what: The call, in words for errors.
            name: The file in ``scripts/``.
            keys: The keys that it touches.
            arguments: The rest.
            writes: Whether it may change the store.
            repeatable: Whether it does no harm to run it twice; else it is tried again only if it was not sent.
        """
        code = script(name)
        rest = (len(keys), *keys, *arguments)

        def exchange(connection: Any, deadline: float) -> Any:
            from redis.exceptions import NoScriptError

            try:
                return self._exchange(connection, deadline, "EVALSHA", code.sha, *rest)
            except NoScriptError:
                return self._exchange(connection, deadline, "EVAL", code.source, *rest)

        return self._call(what, exchange, writes=writes, repeatable=repeatable)

    def command(self, what: str, *command: Any) -> Any:
        """Run one command that changes nothing."""
        return self._call(what, lambda connection, deadline: self._exchange(connection, deadline, *command))[0]

    def subscribe(self, channels: Sequence[str]) -> Any:
        """A connection that hears these channels; it is the caller's until given back or dropped."""

        def exchange(connection: Any, deadline: float) -> Any:
            connection.send_command("SUBSCRIBE", *channels, check_health=False)
            for _ in channels:
                _reply(connection, deadline)
            return connection

        return self._call(f"subscribe to {channels[0]}", exchange, keeps=True)[0]

    def _call(
        self,
        what: str,
        exchange: Callable[[Any, float], Any],
        *,
        writes: bool = False,
        repeatable: bool = True,
        keeps: bool = False,
    ) -> tuple[Any, Attempt]:
        attempt = Attempt(where=str(self.target), what=what, writes=writes)
        deadline = monotonic() + self.target.read_timeout
        pause = _FIRST_PAUSE
        wait = 0.0

        def again() -> bool:
            harmless = repeatable or not attempt.in_flight
            return harmless and not self._closed and monotonic() + wait < deadline

        while True:
            wait = pause * _CHANCE.uniform(0.5, 1.5)
            try:
                with translated(attempt, again=again):
                    return self._try(attempt, exchange, deadline, keeps), attempt
            except RetryableError:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, wait)
                pause = min(2 * pause, _LONGEST_PAUSE)

    def _try(self, attempt: Attempt, exchange: Callable[[Any, float], Any], deadline: float, keeps: bool) -> Any:
        from redis.exceptions import RedisError, ResponseError

        connection = self.take(deadline)
        try:
            attempt.in_flight = True
            reply = exchange(connection, deadline)
        except RedisError as error:
            attempt.in_flight = not is_answer(error)
            demoted = is_demoted(error)
            if demoted:
                self._drop_idle()
            if demoted or not isinstance(error, ResponseError):
                self.drop(connection)
            else:
                self.give_back(connection)
            raise
        except BaseException:
            self.drop(connection)
            raise
        attempt.in_flight = False
        if keeps:
            self._let_listen(connection)
        else:
            self.give_back(connection)
        return reply

    @staticmethod
    def _exchange(connection: Any, deadline: float, *command: Any) -> Any:
        connection.send_command(*command, check_health=False)
        return _reply(connection, deadline)

    # -- connections

    def take(self, deadline: float) -> Any:
        """A connected connection, used before or new; it is the caller's until given back or dropped."""
        self._of_this_process()
        while True:
            connection, is_new = self._claim(deadline)
            if is_new:
                break
            if _is_quiet(connection):
                return connection
            self.drop(connection)
        try:
            connection.connect()
        except BaseException:
            self.drop(connection)
            raise
        if self._closed:  # meanwhile; `close` may not have seen its socket
            self.drop(connection)
            raise self._closed_error()
        return connection

    def _claim(self, deadline: float) -> tuple[Any, bool]:
        """An idle connection, or one that is yet to connect and counts from now on; and whether it is new."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or self._idle or self._has_room,
                max(deadline - monotonic(), 0),
            )
            if self._closed:
                raise self._closed_error()
            if self._idle:
                return self._idle.pop(), False
            if not self._has_room:
                raise RendezvousConnectionError(
                    f"All {self.target.max_connections} connections to Redis at {self.target} are in use. "
                    "Raise the option max_connections.",
                    backend="redis",
                )
            connection = self.target.connection(max(deadline - monotonic(), 0.001))
            self._all.add(connection)
            return connection, True

    @property
    def _has_room(self) -> bool:
        return len(self._all) - len(self._listening) < self.target.max_connections

    def _let_listen(self, connection: Any) -> None:
        with self._changed:
            if connection in self._all:
                self._listening.add(connection)
                self._changed.notify_all()

    def give_back(self, connection: Any) -> None:
        """Let others use the connection; it must owe nobody an answer."""
        with self._changed:
            fits = connection not in self._listening or self._has_room
            if fits and not self._closed and connection in self._all:
                self._listening.discard(connection)
                self._idle.append(connection)
                self._changed.notify_all()
                return
        self.drop(connection)

    def _drop_idle(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            self.drop(connection)

    def drop(self, connection: Any) -> None:
        """Close the connection."""
        with self._changed:
            self._all.discard(connection)
            self._listening.discard(connection)
            self._changed.notify_all()  # who pauses between two tries listens too
        with contextlib.suppress(Exception):
            connection.disconnect()

    def _closed_error(self) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"This client of Redis at {self.target} was closed; nothing can be asked of it any more.", backend="redis"
        )

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Close every connection; whoever waits on one is woken. Idempotent."""
        self._of_this_process()
        with self._changed:
            self._closed = True
            used = self._all.difference(self._idle)
            self._changed.notify_all()
        self._drop_idle()
        for connection in used:
            # Its owner may be reading: end the conversation, and leave the closing to the owner.
            held = getattr(connection, "_sock", None)
            if held is not None:
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(held, socket.SHUT_RDWR)


def _reply(connection: Any, deadline: float) -> Any:
    if not connection.can_read(max(deadline - monotonic(), 0)):
        raise TimeoutError("no answer in time")
    return connection.read_response()


def _is_quiet(connection: Any) -> bool:
    """False if the server has closed an idle connection, or still says something on it."""
    try:
        return not connection.can_read(0)
    except Exception:  # whatever is wrong with it, it is not used again
        return False


class Subscription:
    """One channel's messages, on a connection that stays from call to call; for one thread at a time.

    A message that is sent while nobody is subscribed is lost: after :meth:`open` has answered True, read again
    what the messages speak of.
    """

    def __init__(self, link: Link, *channels: str) -> None:
        self._link = link
        self._channels = channels
        self._connection: Any = None
        self._pid = os.getpid()

    @property
    def listens(self) -> bool:
        """Whether it is subscribed, as far as is known."""
        return self._connection is not None

    def open(self) -> bool:
        """Subscribe if that is not so already; True if it was not, so that messages may have been missed."""
        if self._pid != os.getpid():
            self._connection, self._pid = None, os.getpid()
        if self._connection is not None:
            return False
        try:
            self._connection = self._link.subscribe(self._channels)
        except RendezvousConnectionError:
            if self._link.closed:
                raise Closed from None
            raise
        return True

    def next(self, timeout: float) -> bytes | None:
        """The next message, or None if there is none within ``timeout`` seconds.

        Raises:
            RendezvousConnectionError: The connection is lost; :meth:`open` makes a new one.
            Closed: The link was closed.
        """
        end = monotonic() + timeout
        try:
            with translated(
                Attempt(where=str(self._link.target), what=f"listen to {self._channels[0]}", in_flight=True)
            ):
                while self._connection.can_read(max(end - monotonic(), 0)):
                    kind, _, message = self._connection.read_response()
                    if kind == b"message":
                        return bytes(message)
        except BaseException:
            self.drop()
            if self._link.closed:
                raise Closed from None
            raise
        return None

    def last(self) -> list[bytes]:
        """The messages that have come already."""
        messages = []
        while (message := self.next(0)) is not None:
            messages.append(message)
        return messages

    def release(self) -> None:
        """Unsubscribe, and let others use the connection."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            deadline = monotonic() + self._link.target.read_timeout
            connection.send_command("UNSUBSCRIBE", check_health=False)
            left = len(set(self._channels))
            while left:
                left -= _reply(connection, deadline)[0] == b"unsubscribe"
        except Exception:  # the next user gets a connection that works
            self._link.drop(connection)
        else:
            self._link.give_back(connection)

    def drop(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._link.drop(connection)
