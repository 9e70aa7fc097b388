"""What happens in a directory, heard by one thread for all who wait.

The v2 API tells one event per request, and its library cannot be woken from a request. So a thread of our own asks
again and again, each time from the event after the last, and those who wait wait for the thread.
"""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

from rdzv_core.errors import RendezvousConnectionError

from .access import Access

__all__ = ["News"]

_LONGEST_ASK = 30.0
_PAUSE = 0.5


class News:
    """Counts what has happened under some names of a directory. Starts to listen when somebody first waits."""

    def __init__(self, access: Access, directory: str) -> None:
        self._access = access
        self._directory = directory
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._listens = False
        self._count = 0
        self._given_up = 0

    def mark(self) -> tuple[int, int]:
        """How much has happened so far, and how often a leader was lost; to be waited on after a read.

        Raises:
            RendezvousConnectionError: The directory cannot be listened to.
        """
        if self._pid != os.getpid():
            self._begin()  # a forked child has none of our threads
        with self._changed:
            if not self._listens and not self._closed:
                index = self._present_index()
                self._listens = True
                threading.Thread(target=self._listen, args=(index,), name="rdzv-etcd-v2", daemon=True).start()
            return self._count, self._given_up

    def wait(self, mark: tuple[int, int], timeout: float) -> bool:
        """Wait until something has happened since ``mark``; False if nothing has, or all is closed."""
        with self._changed:
            happened = self._changed.wait_for(lambda: self._closed or self._count != mark[0], max(timeout, 0))
            return happened and not self._closed

    def leader_lost_since(self, mark: tuple[int, int]) -> bool:
        """Whether a leader's key has gone since ``mark``."""
        return self._given_up != mark[1]

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Let all go who wait; the thread ends with its present request."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _present_index(self) -> int:
        import etcd

        def read(client: Any) -> int:
            try:
                return int(client.read(self._directory).etcd_index)
            except etcd.EtcdKeyNotFound as absent:
                return int((absent.payload or {}).get("index", 0))

        return self._access.call("listen to the run", read)

    def _listen(self, index: int) -> None:
        import etcd

        while not self._closed:
            try:
                event = self._access.call("listen to the run", partial(self._next, index + 1))
            except etcd.EtcdEventIndexCleared as cleared:
                index = int((cleared.payload or {}).get("index", index))
                self._happened()
            except RendezvousConnectionError:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, _PAUSE)
                index = self._index_again(index)
                self._happened()
            else:
                if event is not None:
                    index = event.modifiedIndex
                    gone = event.action in ("delete", "expire", "compareAndDelete")
                    self._happened(leader_lost=gone and event.key.endswith("/leader"))

    def _index_again(self, index: int) -> int:
        try:
            return self._present_index()
        except RendezvousConnectionError:
            return index

    def _next(self, index: int, client: Any) -> Any:
        import etcd

        if self._closed:  # perhaps since an attempt that failed
            return None
        try:
            return client.read(self._directory, wait=True, waitIndex=index, recursive=True, timeout=_LONGEST_ASK)
        except etcd.EtcdWatchTimedOut:
            return None

    def _happened(self, *, leader_lost: bool = False) -> None:
        with self._changed:
            self._count += 1
            self._given_up += leader_lost
            self._changed.notify_all()
