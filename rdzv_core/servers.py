"""Development servers: a store on this machine for a laptop, a demo or a test; never for production.

A plugin offers one in the entry point group ``rdzv_core.servers``. It dies with the process that started it, also
if that is killed: see :func:`spawn`.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from os import PathLike, getpid
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import IO, ClassVar

from rdzv_core.errors import RendezvousConnectionError

__all__ = ["DevServer", "ProgramServer", "free_port", "serve", "spawn"]

# Below the range from which Linux takes the ports of outgoing connections, and below 55536, since a Redis in
# cluster mode also listens 10000 above its port.
_PORTS = range(12000, 32000)
_TRIES = 200
_STOP_SECONDS = 5.0  # that a process may take to stand still

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


class ProgramServer(DevServer):
    """A server that is one program, in one temporary folder: found a port for, watched, stopped.

    After :meth:`kill`, :meth:`start` brings it back on the same port, with whatever it finds in its folder.

    Args:
        binary: The program.
        host: Where it listens; an address of this machine.
        port: The port; 0 for a free one.
        secrets: What must not be shown when the program's own words are.
    """

    kind: ClassVar[str]
    """The backend that it is a server of; for errors and the folder's name."""
    start_timeout: float = 15.0
    """Seconds within which it must answer."""
    stop_timeout: ClassVar[float] = 5.0
    """Seconds that it has for an orderly end."""

    _POLL = 0.005
    _PORT_TRIES = 5
    _LAST_LINES = 5

    def __init__(
        self, *, binary: Path, host: str = "127.0.0.1", port: int = 0, secrets: Sequence[str | None] = ()
    ) -> None:
        self.binary = binary
        self._host = host
        self._asked_port = port
        self._port = port
        self._secrets = [secret for secret in secrets if secret]
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @abstractmethod
    def _arguments_for(self, folder: Path) -> list[str]:
        """The arguments to run it with, now that :attr:`port` is known."""

    def _environment(self) -> Mapping[str, str] | None:
        """The program's environment; None for ours."""
        return None

    @abstractmethod
    def _is_ready(self, said: str) -> bool:
        """Whether it answers, given what it has said: somebody else may answer at a port that it could not have."""

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._host

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started for the first time, if none was asked for."""
        return self._port

    @property
    def pid(self) -> int | None:
        """The process, or None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def folder(self) -> Path | None:
        """Where its files are; None when it is stopped."""
        return self._folder

    @property
    def log(self) -> str:
        """What it has said since it was last started."""
        path = self._folder / "log" if self._folder else None
        return path.read_text(errors="replace") if path and path.exists() else ""

    def start(self) -> None:
        """Start the server and wait until it answers; without effect if it runs."""
        if self.pid is not None:
            return
        for tries_left in reversed(range(self._PORT_TRIES)):
            try:
                self.launch()
                self.wait_until_ready()
                return
            except _PortTakenError:
                if self._asked_port or not tries_left:
                    self.stop()
                    raise ValueError(
                        f"Port {self._port} of {self._host} is taken by another program. "
                        "Stop it, or leave the port to us with port=0."
                    ) from None
                self._port = 0
            except BaseException:
                self.stop()
                raise

    def launch(self) -> None:
        """Start the program, and do not wait for it: members of a cluster answer when others run too."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=f"rdzv-{self.kind}-"))
        if not self._port:
            self._port = free_port(self._host)
        with (self._folder / "log").open("wb") as output:
            command: list[str | PathLike[str]] = [self.binary, *self._arguments_for(self._folder)]
            self._process = spawn(command, directory=self._folder, output=output, environment=self._environment())

    def wait_until_ready(self) -> None:
        """Wait until the program that was launched answers.

        Raises:
            RendezvousConnectionError: It ended, or did not answer in time; says what it said.
        """
        assert self._process is not None
        deadline = time.monotonic() + self.start_timeout
        while not self._is_ready(self.log):
            if self._process.poll() is not None:
                self._process = None
                if "in use" in self.log:
                    raise _PortTakenError
                raise self._failed("ended at once")
            if time.monotonic() > deadline:
                raise self._failed(f"did not answer within {self.start_timeout:g} s")
            time.sleep(self._POLL)

    def _failed(self, what: str) -> RendezvousConnectionError:
        lines = [line.strip() for line in self.log.splitlines() if line.strip()][-self._LAST_LINES :]
        last = "; ".join(lines) or "nothing"
        for secret in self._secrets:
            last = last.replace(secret, "***")
        return RendezvousConnectionError(f"The server '{self.binary}' {what}. It said: {last}", backend=self.kind)

    def stop(self) -> None:
        """Stop the server and remove its files; without effect if it does not run."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server without a warning, as a power failure would."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Stop the server in its tracks (SIGSTOP): connections stay, and from the return on nothing is answered."""
        self._signal(signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while not self._stands_still() and time.monotonic() < deadline:
            time.sleep(0.001)  # its threads are stopped one by one, and may serve meanwhile

    def _stands_still(self) -> bool:
        if self._process is None or not hasattr(os, "waitid"):
            return True
        return os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("The server does not run.")
        self._process.send_signal(number)


def serve(make: Callable[..., ProgramServer], arguments: Sequence[str] | None = None) -> int:
    """Run a development server until this process is told to end: ``python -m PLUGIN.server --port 7000``.

    The first line on standard output is ``ready at ENDPOINT``.

    Args:
        make: The class of the server.
        arguments: Of the command line; None for this process's own.

    Returns:
        The status to exit with: 0 when told to end, 1 if the server did not start or ended by itself.
    """
    parser = argparse.ArgumentParser(
        description="A development server on this machine; it keeps nothing, and ends with this program."
    )
    parser.add_argument("--host", default="127.0.0.1", help="an address of this machine (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    given = parser.parse_args(arguments)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server = make(host=given.host, port=given.port)
        with server:
            sys.stdout.write(f"ready at {server.endpoint}\n")
            sys.stdout.flush()
            while server.pid is not None:
                time.sleep(0.2)
            raise server._failed("has ended")
    except KeyboardInterrupt:
        return 0
    except (RendezvousConnectionError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


class _PortTakenError(Exception):
    """The port is taken; another may be tried."""


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on at this moment; somebody else may take it at the next.

    Raises:
        ValueError: The host is no address of this machine, so that nothing can listen there.
        OSError: A great many were tried, and all are taken.
    """
    if not host:
        raise ValueError("The host to listen on is empty; is a variable unset?")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for _ in range(_TRIES):
        port = SystemRandom().choice(_PORTS)
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise ValueError(
                        f"Nothing can listen on '{host}': {error.strerror}. Give an address of this machine."
                    ) from error
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
