"""Events handed to watchers in a thread of their own, so that no watcher can delay a sign of life."""

from __future__ import annotations

import atexit
import logging
import queue
import threading
from contextlib import suppress

from rdzv_core.events import Event, EventSink

__all__ = ["Background"]

log = logging.getLogger(__name__)

LIMIT = 1000
"""Events that may wait for a slow watcher before further ones are dropped."""
_LAST_WORDS = 1.0  # seconds that the end of the process waits for watchers


class Background:
    """A sink that returns at once and feeds ``sink`` from a daemon thread, in order.

    Args:
        sink: What to feed; raises nothing.
        limit: How many events may wait before further ones are dropped.
    """

    def __init__(self, sink: EventSink, limit: int = LIMIT) -> None:
        self._sink = sink
        self._queue: queue.Queue[Event] = queue.Queue(limit)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """How many events found no room."""

    def __call__(self, event: Event) -> None:
        """Take ``event`` for later; drop it if too many wait already."""
        self._start()
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1
            if self.dropped == 1:
                log.warning("Event hooks are too slow: %s and later events are dropped.", event.name)

    def drain(self, timeout: float) -> bool:
        """Wait until all events so far have been fed, for ``timeout`` seconds at most; tells whether they have."""
        done = self._queue.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._queue.unfinished_tasks, timeout)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._feed, name="rdzv-event-hooks", daemon=True)
                self._thread.start()
                atexit.register(self.drain, _LAST_WORDS)

    def _feed(self) -> None:
        while True:
            event = self._queue.get()
            # A sink raises nothing. If one did, this thread would end, and all later events be lost in silence.
            with suppress(Exception):
                self._sink(event)
            self._queue.task_done()
