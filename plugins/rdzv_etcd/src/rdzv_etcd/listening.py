"""A watch that is kept from call to call, and begun anew after a read when it has ended."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic

from .gateway import Change, Gateway, Watch, WatchEnded

__all__ = ["Listening"]

_SHORTEST_LIFE = 0.2
"""Seconds; watches that end sooner are not begun one after the other without a pause."""


class Listening:
    """The changes of a range; for one thread at a time.

    A watch may end at any moment (a member dies, is left, has compacted the past). What happened before the next
    one begins would be lost, so that one begins with a read, which also says from which revision on to listen.

    Args:
        gateway: The client.
        what: What is listened to, in words for errors.
        keys: The range, from a key up to another.
        read: Reads the range, takes in what it finds, and answers the store's revision.
    """

    def __init__(self, gateway: Gateway, what: str, keys: tuple[bytes, bytes], read: Callable[[], int]) -> None:
        self._gateway = gateway
        self._what = what
        self._keys = keys
        self._read = read
        self._watch: Watch | None = None
        self._begun_at = -_SHORTEST_LIFE
        self._pid = os.getpid()

    def begin(self) -> bool:
        """Begin to listen if that is not so already; True if it was not, so that the range was read."""
        if self._pid != os.getpid():
            self._watch, self._pid = None, os.getpid()
        if self._watch is not None:
            return False
        if monotonic() - self._begun_at < _SHORTEST_LIFE:
            self._gateway.pause(_SHORTEST_LIFE)
        self._begun_at = monotonic()
        revision = self._read()
        self._watch = self._gateway.watch(f"listen to {self._what}", *self._keys, revision + 1)
        return True

    def next(self, timeout: float) -> tuple[Change, ...] | None:
        """The next changes; empty if there are none within ``timeout`` seconds, None if the watch has ended."""
        assert self._watch is not None
        try:
            return self._watch.next(timeout)
        except WatchEnded:
            self.stop()
            return None
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Listen no more."""
        watch, self._watch = self._watch, None
        if watch is not None:
            self._gateway.unwatch(watch)
