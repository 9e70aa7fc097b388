"""A TCP proxy that makes a network suffer: slow, deaf, cut, half-open.

A test puts it between a client and a server and turns its knobs while both run. It knows nothing of what it
carries.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType

__all__ = ["FaultProxy"]

_CHUNK = 65536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, zero seconds


@dataclass(slots=True, eq=False)
class _Pipe:
    """One client's connection, and ours to the server."""

    client: socket.socket
    server: socket.socket
    # What is under way: (when it may go on, to whom, bytes).
    waiting: deque[tuple[float, socket.socket, bytes]] = field(default_factory=deque)
    open: bool = True


class FaultProxy:
    """Carries connections from a port of its own to ``host:port``, and spoils them on demand.

    A context manager. All knobs may be turned from any thread, and hold for connections old and new.

    Args:
        host: The server.
        port: The server's port.

    Attributes:
        delay: Seconds that each piece of data waits, either way.
        drop_replies: True throws away what the server says; connections stay.
        drop_requests: True throws away what clients say; connections stay.
        refuse: True resets each new connection at once.
        connections: How many connections were accepted.
        to_server: Bytes carried to the server.
        to_client: Bytes carried to clients.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._pipes: set[_Pipe] = set()
        self._lock = threading.Lock()
        self._running = True
        self._cut_after_request = 0
        self.delay = 0.0
        self.drop_replies = False
        self.drop_requests = False
        self.refuse = False
        self.connections = 0
        self.to_server = 0
        self.to_client = 0
        self._thread = threading.Thread(target=self._run, name="fault-proxy", daemon=True)

    @property
    def host(self) -> str:
        """Where clients connect to."""
        return "127.0.0.1"

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def endpoint(self) -> str:
        """``host:port``."""
        return f"{self.host}:{self.port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        with self._lock:
            return len(self._pipes)

    def __enter__(self) -> FaultProxy:
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running = False
        self._wake()
        self._thread.join()
        self.cut()
        self._selector.close()
        for each in (self._listener, self._wake_reader, self._wake_writer):
            each.close()

    # -- knobs

    def cut(self, *, reset: bool = True) -> None:
        """End every connection: with a reset, or as if both ends had closed in order."""
        with self._lock:
            pipes = list(self._pipes)
            for pipe in pipes:
                self._end(pipe, reset=reset)

    def lose_replies(self, count: int = 1) -> None:
        """Let the server have the next ``count`` requests, but cut the connection in place of its reply."""
        with self._lock:
            self._cut_after_request = count

    def half_open(self) -> None:
        """Say nothing any more in either direction while all connections stay open."""
        self.drop_replies = self.drop_requests = True

    def lead_to(self, host: str, port: int) -> None:
        """Carry new connections to another server, as a name does after a failover; open ones stay where they are."""
        self._target = (host, port)

    def mend(self) -> None:
        """Turn all knobs back."""
        with self._lock:
            self._cut_after_request = 0
        self.delay = 0.0
        self.drop_replies = self.drop_requests = self.refuse = False

    # -- the one thread

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"!")

    def _run(self) -> None:
        while self._running:
            ready = self._selector.select(self._until_next())
            with self._lock:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data is None:
                        with contextlib.suppress(OSError):
                            self._wake_reader.recv(_CHUNK)
                    elif key.data.open:
                        self._carry(key.data, key.fileobj)  # type: ignore[arg-type]
                for pipe in list(self._pipes):
                    self._flush(pipe)

    def _until_next(self) -> float | None:
        with self._lock:
            moments = [pipe.waiting[0][0] for pipe in self._pipes if pipe.waiting]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return
        self.connections += 1
        try:
            server = None if self.refuse else socket.create_connection(self._target, timeout=5)
        except OSError:
            server = None
        if server is None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            client.close()
            return
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pipe = _Pipe(client, server)
        self._pipes.add(pipe)
        for each in (client, server):
            self._selector.register(each, selectors.EVENT_READ, pipe)

    def _carry(self, pipe: _Pipe, source: socket.socket) -> None:
        try:
            data = source.recv(_CHUNK)
        except OSError:
            data = b""
        if not data:
            self._end(pipe, reset=False)
            return
        from_client = source is pipe.client
        if self.drop_requests if from_client else self.drop_replies:
            return
        if not from_client and self._cut_after_request:
            self._cut_after_request -= 1
            self._end(pipe, reset=True)
            return
        if from_client:
            self.to_server += len(data)
        else:
            self.to_client += len(data)
        pipe.waiting.append((time.monotonic() + self.delay, pipe.server if from_client else pipe.client, data))

    def _flush(self, pipe: _Pipe) -> None:
        while pipe.open and pipe.waiting and pipe.waiting[0][0] <= time.monotonic():
            _, target, data = pipe.waiting.popleft()
            try:
                target.sendall(data)
            except OSError:
                self._end(pipe, reset=True)

    def _end(self, pipe: _Pipe, *, reset: bool) -> None:
        if not pipe.open:
            return
        pipe.open = False
        self._pipes.discard(pipe)
        for each in (pipe.client, pipe.server):
            with contextlib.suppress(KeyError, ValueError, RuntimeError):
                self._selector.unregister(each)
            if reset:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            with contextlib.suppress(OSError):
                each.close()
