"""Pulling the plug of a TCPStore's client: the one way to end a call of torch's that is under way.

A thread in such a call cannot be woken, and if the interpreter ends meanwhile, the process is aborted when the call
returns. But the call ends with an error as soon as its connection does. torch tells nobody which socket a client has,
so it is found as the one that has appeared while the client was made, and leads to the store's port. If that is not
clear there is no plug, and who waits must look again and again.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rdzv_core.dialling import keep_alive

__all__ = ["Plug", "innermost", "plugged"]

TURN = 3.0
"""Seconds to wait for another client to be made; it may be held up by DNS."""

_making = threading.Lock()


class Plug:
    """A socket that belongs to somebody else: its descriptor, and what shows that it is still the same."""

    def __init__(self, descriptor: int, inode: int) -> None:
        self._descriptor = descriptor
        self._inode = inode

    def keep_alive(self) -> None:
        """See :func:`rdzv_core.dialling.keep_alive`."""
        with suppress(OSError), self._connection() as connection:
            keep_alive(connection)

    def pull(self) -> None:
        """End the connection, if it is still there."""
        with suppress(OSError), self._connection() as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def _connection(self) -> socket.socket:
        if os.fstat(self._descriptor).st_ino != self._inode:
            raise OSError("closed, and the number is another's by now")
        return socket.socket(fileno=os.dup(self._descriptor))


def plugged(make: Callable[[], Any]) -> tuple[Any, Plug | None]:
    """Make a client, and find its plug; None if it cannot be told from others."""
    alone = _making.acquire(timeout=TURN)
    try:
        before = _sockets() if alone else {}
        client = make()
        after = _sockets() if alone else {}
    finally:
        if alone:
            _making.release()
    port = innermost(client).port
    new = [(fd, inode) for fd, inode in after.items() if before.get(fd) != inode and _peer_port(fd) == port]
    if len(new) != 1:
        return client, None
    plug = Plug(*new[0])
    plug.keep_alive()
    return client, plug


def innermost(store: Any) -> Any:
    """The store below all prefixes."""
    while (below := getattr(store, "underlying_store", None)) is not None:
        store = below
    return store


def _sockets() -> dict[int, int]:
    """The open sockets of this process: inodes by descriptor."""
    found = {}
    with suppress(OSError):
        for name in os.listdir("/dev/fd"):
            with suppress(OSError, ValueError):
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[int(name)] = status.st_ino
    return found


def _peer_port(descriptor: int) -> int | None:
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return int(connection.getpeername()[1])
    except (OSError, IndexError, TypeError, ValueError):
        return None
