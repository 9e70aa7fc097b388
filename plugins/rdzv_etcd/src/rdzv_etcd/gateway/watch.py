"""A watch: one request whose answer never ends, a line of JSON per batch of changes."""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from time import monotonic
from typing import Any

from .connection import Connection
from .errors import Broken, refusal_of
from .messages import Change

__all__ = ["Watch", "WatchEnded"]

_LARGEST_LINE = 256 * 1024 * 1024
_PIECE = 65536


class WatchEnded(Exception):
    """The stream is over: the member died, was left, or has compacted what was to be told. Read, and watch anew."""


class Watch:
    """The changes of some keys, from a revision on. For one thread at a time; :meth:`end` may come from any."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._bytes = _Body(connection)
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._reading = threading.Lock()
        self._ended = False

    @property
    def member(self) -> int:
        """The member that it listens to."""
        return self.connection.member

    def begin(self, deadline: float) -> None:
        """Read the head of the answer, and that the watch was created.

        Raises:
            EtcdError: It was refused.
            Broken: The member broke off.
        """
        try:
            status, whole = self._bytes.head(deadline)
            if status != 200:
                said = _read_json(whole) or {}
                error = said.get("error", said) if isinstance(said.get("error"), dict) else said
                code = int(error.get("code", error.get("grpc_code", 2)))
                raise refusal_of(code, str(error.get("message") or error.get("error") or f"HTTP status {status}"))
            while True:
                line = self._line(deadline)
                if line is None:
                    raise Broken("no answer in time", sent=False)
                result = self._read(line)
                if result.get("canceled"):
                    self._cancelled(result)
                if result.get("created"):
                    return
        except WatchEnded as ended:
            raise Broken(str(ended), sent=False) from ended

    def next(self, timeout: float) -> tuple[Change, ...]:
        """The next batch, in order, whole revisions at a time; empty if nothing comes within ``timeout`` seconds.

        Raises:
            WatchEnded: Nothing more will come.
            EtcdError: It was cancelled for good, as when a right was taken away.
        """
        try:
            with self._reading:
                return self._next(monotonic() + timeout)
        finally:
            if self._ended:
                self.connection.close()

    def _next(self, deadline: float) -> tuple[Change, ...]:
        while True:
            line = self._line(deadline)
            if line is None:
                return ()
            result = self._read(line)
            if result.get("canceled"):
                self._cancelled(result)
            changes = tuple(Change.read(event) for event in result.get("events", ()))
            if changes:
                return changes

    def end(self) -> None:
        """Wake who waits, who then gets :class:`WatchEnded`. Who comes last, of the two, closes the connection."""
        self._ended = True
        self.connection.shut()
        if self._reading.acquire(blocking=False):
            self.connection.close()
            self._reading.release()

    def close(self) -> None:
        """Let go of the connection."""
        self.connection.close()

    def _line(self, deadline: float) -> bytes | None:
        while not self._lines:
            piece = self._bytes.read(deadline)
            if piece is None:
                return None
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines.extend(line for line in lines if line.strip())
            if len(self._rest) > _LARGEST_LINE:
                raise WatchEnded("a line without an end")
        return self._lines.popleft()

    @staticmethod
    def _read(line: bytes) -> dict[str, Any]:
        message = _read_json(line)
        if message is None:
            raise WatchEnded("what comes is not JSON")
        error = message.get("error")
        if error is not None:
            said = error.get("message", "") if isinstance(error, dict) else str(error)
            raise WatchEnded(said or "the member gave the stream up")
        result = message.get("result", {})
        return result if isinstance(result, dict) else {}

    @staticmethod
    def _cancelled(result: dict[str, Any]) -> None:
        reason = str(result.get("cancel_reason", ""))
        if "permission denied" in reason:
            raise refusal_of(7, reason)
        if "auth" in reason:
            raise refusal_of(16, reason or "invalid auth token")
        raise WatchEnded(reason or f"compacted up to revision {result.get('compact_revision', '?')}")


def _read_json(text: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


class _Body:
    """The body of an HTTP answer that comes in chunks, read as it comes; a timeout loses nothing."""

    def __init__(self, connection: Connection) -> None:
        self._socket = connection.socket
        self._raw = bytearray()
        self._chunk = 0  # bytes still to come of the present chunk, its line end included
        self._chunked = True

    def head(self, deadline: float) -> tuple[int, bytes]:
        """Read status and headers. Of an answer that is no success the body is read too, as far as it is there."""
        while (end := self._raw.find(b"\r\n\r\n")) < 0:
            if not self._more(deadline):
                raise WatchEnded("no answer in time")
        head = bytes(self._raw[:end])
        del self._raw[: end + 4]
        found = re.match(rb"HTTP/1\.[01] (\d{3})", head)
        if not found:
            raise WatchEnded("it does not speak HTTP as etcd does")
        self._chunked = bool(re.search(rb"(?im)^transfer-encoding:\s*chunked\s*$", head.replace(b"\r", b"")))
        status = int(found[1])
        return status, b"" if status == 200 else (self.read(deadline) or b"")

    def read(self, deadline: float) -> bytes | None:
        """What has come of the body, at least a byte; None if nothing does until the deadline."""
        while not (piece := self._take()):
            if not self._more(deadline):
                return None
        return piece

    def _take(self) -> bytes:
        """What is there of the body; empty if nothing more can be made of what has come."""
        if not self._chunked:
            piece = bytes(self._raw)
            self._raw.clear()
            return piece
        while True:
            if not self._chunk:
                line, found, _ = bytes(self._raw[:64]).partition(b"\r\n")
                if not found:
                    return b""
                self._chunk = _chunk_size(line) + 2
                del self._raw[: len(line) + 2]
            taken = bytes(self._raw[: self._chunk])
            del self._raw[: len(taken)]
            line_end = max(0, len(taken) - max(0, self._chunk - 2))
            self._chunk -= len(taken)
            if piece := taken[: len(taken) - line_end]:
                return piece
            if not self._raw:
                return b""

    def _more(self, deadline: float) -> bool:
        try:
            self._socket.settimeout(max(deadline - monotonic(), 0.001))
            piece = self._socket.recv(_PIECE)
        except TimeoutError:
            return False
        except (OSError, ValueError) as error:
            raise WatchEnded(f"the connection is lost ({error})") from error
        if not piece:
            raise WatchEnded("the connection was closed")
        self._raw += piece
        return True


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0], 16)
    except ValueError:
        raise WatchEnded("its chunks are damaged") from None
    if size <= 0:
        raise WatchEnded("the member ended the stream")
    return size
