"""torch's ``TCPStore``: opened with torch itself when it is first needed, a socket of ours, and libuv if it is there.

And how to wait at one without flooding the logs.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from time import monotonic
from typing import Any

from rdzv_core.errors import RendezvousConnectionError

__all__ = ["BACKLOG", "await_keys", "listen_everywhere", "serve_tcp_store", "torch_distributed"]

logger = logging.getLogger(__name__)

_libuv_refused = threading.Event()
"""It was tried in this process, and torch has said no; it complains on stderr each time."""

BACKLOG = 4096
"""Connections that may wait to be taken in, where the system allows as many: all nodes come at one moment."""

FIRST_PAUSE, LONGEST_PAUSE = 0.002, 0.5
"""Seconds between two looks for a key, at least and at most; else a quarter of the time waited, which is by how much a
key may be found late."""


def await_keys(store: Any, keys: Sequence[str], stopped: Callable[[float], bool]) -> bool:
    """Look for keys, ever less often, until they are there.

    For waits that must be ended early: one of torch's own cannot be, and torch prints two lines on stderr for each wait
    of a TCPStore whose time is over (2.13), so that a wait in short turns floods the logs.

    Args:
        store: Any c10d store.
        keys: All of them are to be there.
        stopped: Waits for so many seconds at most, and says whether to stop: an event's ``wait``.

    Returns:
        Whether they are there.
    """
    began = monotonic()
    while not store.check(list(keys)):
        if stopped(min(max(FIRST_PAUSE, (monotonic() - began) / 4), LONGEST_PAUSE)):
            return False
    return True


def listen_everywhere(port: int) -> socket.socket:
    """Listen at a port of every interface, by IPv6 too where there is any; 0 for a free one.

    Raises:
        OSError: The port is taken, or not for us.
    """
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                raise
            # The system knows IPv6, and this machine has it switched off.
    return socket.create_server(("", port), backlog=BACKLOG)


def serve_tcp_store(host: str, listener: socket.socket, *, timeout: timedelta, use_libuv: bool | None = None) -> Any:
    """A TCPStore that serves at a socket which listens already; the socket is its own from then on.

    Args:
        host: The name by which the store's own client reaches it.
        listener: The socket.
        timeout: How long ``get`` and ``wait`` of the store's own client wait.
        use_libuv: As torch's; None for torch's default. A torch that was built without libuv does without, and so does
            one whose libuv serves at no socket of others (2.6).
    """
    if use_libuv is None and _libuv_refused.is_set():
        use_libuv = False
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "timeout": timeout}
    if use_libuv is not None:
        options["use_libuv"] = use_libuv
    tcp_store, port = torch_distributed().TCPStore, listener.getsockname()[1]
    with listener.dup() as spare:
        descriptor = listener.detach()
        try:
            return tcp_store(host, port, master_listen_fd=descriptor, **options)
        except RuntimeError as error:
            _close_unless_closed(descriptor, spare)
            if "libuv" not in str(error) or use_libuv is False:
                raise
            _libuv_refused.set()
            logger.warning("torch's libuv cannot serve the store here, so it is served without: %s", error)
            options["use_libuv"] = False
            return tcp_store(host, port, master_listen_fd=spare.detach(), **options)


def _close_unless_closed(descriptor: int, same: socket.socket) -> None:
    """Close what a store that could not be made may have left open, or closed, for others to open a file under it."""
    with suppress(OSError):
        if os.path.sameopenfile(descriptor, same.fileno()):
            os.close(descriptor)


def torch_distributed() -> Any:
    """The module ``torch.distributed``.

    Raises:
        RendezvousConnectionError: torch is not installed; says what to install.
    """
    try:
        import torch.distributed as distributed
    except ImportError as error:
        raise RendezvousConnectionError(
            "torch is needed to open the store that the members of a round share, and it is not installed: "
            'pip install "rdzv-core[torch]", or install your own build of torch.',
            permanent=True,
        ) from error
    return distributed
