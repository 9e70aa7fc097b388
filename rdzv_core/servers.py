"""Development servers: a store on this machine for a laptop, a demo or a test; never for production.

A plugin offers one in the entry point group ``rdzv_core.servers``. It dies with the process that started it, also
if that is killed: see :func:`spawn`.
"""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike, getpid
from types import TracebackType
from typing import IO

__all__ = ["DevServer", "free_port", "spawn"]

# Below the range from which Linux takes the ports of outgoing connections, and below 55536, since a Redis in
# cluster mode also listens 10000 above its port.
_PORTS = range(12000, 32000)
_TRIES = 200

# What the new process does before it becomes the server. It must be a program of its own: code between fork and
# exec is not safe beside other threads. 1 is PR_SET_PDEATHSIG, 9 is SIGKILL, which also ends a stopped process.
_DIE_WITH_PARENT = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class DevServer(ABC):
    """A server of one's own. A context manager: starts on entry, stops on exit."""

    @abstractmethod
    def start(self) -> None:
        """Start the server and wait until it answers. Without effect if it runs.

        Raises:
            RendezvousConnectionError: It did not start, or did not answer in time; says what it said.
            ValueError: It cannot be started at all: no program, or a port that is taken.
        """

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and remove its files. Without effect if it does not run."""

    @property
    @abstractmethod
    def host(self) -> str:
        """Where it listens."""

    @property
    @abstractmethod
    def port(self) -> int:
        """The port that it listens on."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """What to give as ``--rdzv-endpoint``; may hold a password."""

    def get_host(self) -> str:
        """As :attr:`host`; the name that torch's servers have for it."""
        return self.host

    def get_port(self) -> int:
        """As :attr:`port`; the name that torch's servers have for it."""
        return self.port

    def get_endpoint(self) -> str:
        """As :attr:`endpoint`; the name that torch's servers have for it."""
        return self.endpoint

    def __enter__(self) -> DevServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this moment; somebody else may take it at the next.

    Raises:
        OSError: A great many were tried, and all are taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_TRIES):
        port = random.choice(_PORTS)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port was found on {host} between {_PORTS.start} and {_PORTS.stop - 1}")


def spawn(
    command: Sequence[str | PathLike[str]],
    *,
    directory: str | PathLike[str],
    output: IO[bytes],
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that dies with this process.

    On Linux the kernel sees to it, also if we are killed; it goes by the *thread* that called: start a server from
    one that stays. Elsewhere the program outlives a parent that is killed.

    Args:
        command: An absolute path, and arguments.
        directory: Where it runs.
        output: A file that takes what it says.
        environment: Its environment; None for ours.
    """
    argv = [str(part) for part in command]
    if sys.platform == "linux":
        argv = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(getpid()), *argv]
    return subprocess.Popen(
        argv,
        cwd=directory,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us; we stop it then
    )
