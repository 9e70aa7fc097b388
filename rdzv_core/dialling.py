"""How a TCP connection to a server is opened within the time of a call, and kept.

A socket leaves the whole of that time to each address of a name, and to the resolver as much as it wants: one dead
address before a live one, or a name server that is away, would use up what was meant for the answer.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeAlias

__all__ = ["dial", "keep_alive"]

_Found: TypeAlias = "list[tuple[Any, ...]]"

# A connection that only listens for hours: notice within 45 s that the other end is gone, and keep gateways awake.
_KEEP_ALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}


def dial(host: str, port: int, seconds: float) -> socket.socket:
    """Connect to the first address of ``host`` that answers; each has an equal share of the time that is left.

    Args:
        host: A name or an address.
        port: The port.
        seconds: What all of it may take.

    Returns:
        The connection, kept alive and without Nagle's delay. It has a timeout of its own; set what you need.

    Raises:
        OSError: The name was not resolved in time, or no address took the connection.
    """
    deadline = monotonic() + seconds
    found = _addresses(host, port, seconds)
    failure = OSError(f"The name '{host}' has no address.")
    for number, (family, kind, protocol, _, address) in enumerate(found):
        with ExitStack() as unless_connected:
            try:
                opened = unless_connected.enter_context(socket.socket(family, kind, protocol))
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(opened)
                opened.settimeout(max(deadline - monotonic(), 0.001) / (len(found) - number))
                opened.connect(address)
            except OSError as error:
                failure = error
            else:
                unless_connected.pop_all()
                return opened
    raise failure


def keep_alive(connection: socket.socket) -> None:
    """Let the system find out that the other end is gone, and keep gateways from forgetting the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEP_ALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _addresses(host: str, port: int, seconds: float) -> _Found:
    with suppress(socket.gaierror):
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    answers: SimpleQueue[_Found | OSError] = SimpleQueue()

    def ask() -> None:
        try:
            answers.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            answers.put(error)

    threading.Thread(target=ask, name="rdzv-resolver", daemon=True).start()  # a look-up cannot be interrupted
    try:
        answer = answers.get(timeout=seconds)
    except Empty:
        raise OSError(f"The name '{host}' was not resolved within {seconds:.2g} s: is DNS slow or away?") from None
    if isinstance(answer, OSError):
        raise answer
    return answer
