"""How a TCP connection to the server is opened within the time of a call.

The client library leaves the whole of that time to each address of a name, and to the resolver as much as it wants:
one dead address before a live one, or a name server that is away, would use up what was meant for the answer.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias

__all__ = ["connections", "dial"]

_Found: TypeAlias = "list[tuple[Any, ...]]"


def dial(host: str, port: int, seconds: float, keep_alive: Mapping[int, int]) -> socket.socket:
    """Connect to the first address of ``host`` that answers; each has an equal share of the time that is left.

    Args:
        host: A name or an address.
        port: The port.
        seconds: What all of it may take.
        keep_alive: Options of TCP's keep-alive, for a connection that only listens for hours.

    Raises:
        OSError: The name was not resolved in time, or no address took the connection.
    """
    deadline = monotonic() + seconds
    found = _addresses(host, port, seconds)
    failure = OSError(f"the name '{host}' has no address")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in keep_alive.items():
                opened.setsockopt(socket.IPPROTO_TCP, option, value)
            opened.settimeout(max(deadline - monotonic(), 0.001) / (len(found) - number))
            opened.connect(address)
        except OSError as error:
            opened.close()
            failure = error
        else:
            return opened
    raise failure


def _addresses(host: str, port: int, seconds: float) -> _Found:
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answers: SimpleQueue[_Found | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name="rdzv-redis-name", daemon=True).start()  # the resolver cannot be interrupted
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise OSError(f"The name '{host}' was not resolved within {seconds:.2g} s: is DNS slow or away?") from None
    if isinstance(answer, OSError):
        raise answer
    return answer


@cache
def connections() -> tuple[Any, Any]:
    """The client library's connections over TCP and over TLS, with :func:`dial` for their way to the server."""
    from redis.connection import Connection, SSLConnection

    base: Any = Connection

    class Dialled(base):  # type: ignore[misc]
        def _connect(self) -> socket.socket:
            opened = dial(self.host, self.port, self.socket_connect_timeout, self.socket_keepalive_options)
            opened.settimeout(self.socket_timeout)
            return opened

    secure: Any = SSLConnection

    class DialledTLS(secure, Dialled):  # type: ignore[misc]
        pass

    return Dialled, DialledTLS
