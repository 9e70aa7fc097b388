"""From an endpoint and options to a connection: what may be written, and what is sent.

The client library's defaults do not fit a rendezvous: it repeats writes whose answer was lost, waits 5 s for any
answer and tells the server its own name in two more commands. So only its ``Connection`` is used: sockets, TLS,
authentication and the wire format. When to connect, wait and repeat is decided in :mod:`rdzv_redis.link`.
"""

from __future__ import annotations

import inspect
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rdzv_core.dialling import dial
from rdzv_core.endpoint import Endpoint, parse_endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.options import OptionError, read_options

from .options import REDIS_OPTIONS

__all__ = ["Target", "target_of"]

_SCHEMES = ("redis", "rediss", "unix")
_LARGEST_DATABASE = 2**31 - 1
_FILES = ("password_file", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how to enter. Its text forms hide the password."""

    endpoint: Endpoint
    database: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: Path | None = None
    read_timeout: float = 2.0
    """Seconds that a whole call may take."""
    max_connections: int = 64
    key_prefix: str = "rdzv"
    ssl_ca_certs: Path | None = None
    ssl_certfile: Path | None = None
    ssl_keyfile: Path | None = None
    ssl_check_hostname: bool = True

    def __str__(self) -> str:
        if self.endpoint.scheme:
            return str(self.endpoint)
        return str(self.endpoint.addresses[0])

    @property
    def prefix(self) -> str:
        """What all names begin with. The databases of a server share its channels, so each has names of its own."""
        return f"{self.key_prefix}:db{self.database}" if self.database else self.key_prefix

    def connection(self, connect_timeout: float) -> Any:
        """A connection of the client library, not yet connected.

        Raises:
            RendezvousConnectionError: The password file cannot be read.
        """
        from redis import connection
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        theirs: Any = connection
        arguments: dict[str, Any] = {
            "db": self.database,
            "username": self.username,
            "password": self._password(),
            "socket_timeout": self.read_timeout,
            "socket_connect_timeout": connect_timeout,
            "retry": Retry(NoBackoff(), 0),
            # Protocol 2 needs no HELLO, and delivers messages as plain replies.
            "protocol": 2,
            **_no_introduction(theirs.Connection),
        }
        if self.endpoint.is_unix_socket:
            del arguments["socket_connect_timeout"]
            return theirs.UnixDomainSocketConnection(path=self.endpoint.path, **arguments)
        arguments |= {"host": self.endpoint.host, "port": self.endpoint.port}
        plain, secure = _kinds()
        if self.endpoint.scheme != "rediss":
            return plain(**arguments)
        return secure(
            ssl_ca_certs=_text(self.ssl_ca_certs),
            ssl_certfile=_text(self.ssl_certfile),
            ssl_keyfile=_text(self.ssl_keyfile),
            ssl_check_hostname=self.ssl_check_hostname,
            **arguments,
        )

    def _password(self) -> str | None:
        if self.password is not None or self.password_file is None:
            return self.password
        try:
            return self.password_file.read_text(encoding="utf-8").split("\n", 1)[0].strip()
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
            raise RendezvousConnectionError(
                f"The password file '{self.password_file}' cannot be read ({why}). "
                "Is the secret mounted, and readable for this user?",
                backend="redis",
            ) from error


@cache
def _kinds() -> tuple[Any, Any]:
    """The client library's connections over TCP and over TLS, with a way to the server that ends in time."""
    from redis.connection import Connection, SSLConnection

    base: Any = Connection

    class Dialled(base):  # type: ignore[misc]
        def _connect(self) -> socket.socket:
            opened = dial(self.host, self.port, self.socket_connect_timeout)
            opened.settimeout(self.socket_timeout)
            return opened

    secure: Any = SSLConnection

    class DialledTLS(secure, Dialled):  # type: ignore[misc]
        pass

    return Dialled, DialledTLS


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _no_introduction(connection: type) -> dict[str, None]:
    """Arguments that keep the client library from sending CLIENT SETINFO at each connect."""
    known: set[str] = set()
    for kind in connection.__mro__:
        if "__init__" in vars(kind):
            known |= set(inspect.signature(kind).parameters)
    if "driver_info" in known:
        return {"driver_info": None}
    return {name: None for name in ("lib_name", "lib_version") if name in known}


def target_of(endpoint: str | None, options: Mapping[str, Any], environ: Mapping[str, str]) -> Target:
    """Understand an endpoint with its options; opens nothing but looks whether named files are there.

    Args:
        endpoint: ``HOST``, ``HOST:PORT``, ``[V6]:PORT``, ``redis://USER:PASSWORD@HOST:PORT/DB``, ``rediss://...``,
            ``unix:///PATH?db=DB``; blanks around it are ignored. Empty: the option ``redis_url``, else
            ``localhost:6379``.
        options: What was given of :data:`REDIS_OPTIONS`. Beats the endpoint's query, which beats the environment.
        environ: The environment.

    Raises:
        ValueError: Something is not understood, contradicts itself, or names a file that is not there. The
            sentence shows no password.
    """
    text = (endpoint or "").strip()
    if not text:
        text = str(read_options(REDIS_OPTIONS, config=options, environ=environ)["redis_url"] or "")
    where = parse_endpoint(text, default_port=6379, schemes=_SCHEMES, allow_empty=True)
    query = where.query
    database = _database(where, query)
    # read_options decodes what it is given once more.
    asked = {key: value.replace("%", "%25") for key, value in query.items() if key != "db"}
    try:
        values = read_options(REDIS_OPTIONS, config=asked | dict(options), environ=environ)
    except OptionError as error:
        raise type(error)([_in_query(problem, asked, where) for problem in error.problems]) from None

    given = {name: Path(values[name]) for name in _FILES if values[name]}
    for name, path in given.items():
        if not path.is_file():
            raise ValueError(f"Option '{name}': there is no file '{path}' on this node.")
    _check_tls(where, given)
    files = {name: path.absolute() for name, path in given.items()}
    return Target(
        endpoint=where,
        database=database,
        username=where.user or values["redis_username"],
        password=where.password or values["redis_password"],
        read_timeout=values["read_timeout"],
        max_connections=values["max_connections"],
        key_prefix=values["key_prefix"],
        ssl_check_hostname=values["ssl_check_hostname"],
        **files,
    )


def _database(where: Endpoint, query: Mapping[str, str]) -> int:
    asked = [] if where.is_unix_socket else [where.path.removeprefix("/")]
    found = {text for text in (*asked, query.get("db", "")) if text}
    if len(found) > 1:
        raise ValueError(f"The rendezvous endpoint '{where}' names two databases; leave out the path or '?db='.")
    if not found:
        return 0
    text = found.pop()
    if not text.isascii() or not text.isdecimal() or int(text) > _LARGEST_DATABASE:
        raise ValueError(f"The rendezvous endpoint '{where}' names the database '{text}'; expected a number, as in /0.")
    return int(text)


def _check_tls(where: Endpoint, files: Mapping[str, Path]) -> None:
    tls = sorted(name for name in files if name.startswith("ssl_"))
    if tls and where.scheme != "rediss":
        raise ValueError(
            f"Option '{tls[0]}' is given, but the endpoint '{where}' is not encrypted; write rediss://HOST:PORT."
        )
    if ("ssl_certfile" in files) != ("ssl_keyfile" in files):
        raise ValueError("The options 'ssl_certfile' and 'ssl_keyfile' need each other; only one is given.")


def _in_query(problem: str, asked: Mapping[str, str], where: Endpoint) -> str:
    from_query = any(f"'{key}'" in problem for key in asked)
    return f"{problem} It stands in the query of the endpoint '{where}'." if from_query else problem
