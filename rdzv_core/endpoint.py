"""Where a store is: endpoint text to a value, and secrets kept out of whatever people read.

Nothing here asks a name server. A text is either understood as it stands, or refused with one sentence; it is
never split at a colon that may be part of an IPv6 address.

>>> parse_endpoint("[2001:db8::1]:29400", default_port=6379).port
29400
>>> str(parse_endpoint("redis://ann:s3cret@db/0", default_port=6379, schemes=("redis",)))
'redis://ann:***@db:6379/0'
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn
from urllib.parse import quote, unquote

__all__ = ["Address", "Endpoint", "mask_secrets", "parse_endpoint"]

_MASK = "***"
_LARGEST_PORT = 65535
_LONGEST_NAME = 253  # of a DNS name in text form
_LONGEST_LABEL = 63  # of one label of it
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_LABEL = re.compile(r"\w(?:[\w-]*\w)?")
_PORT = re.compile(r"[0-9]{1,5}")
_BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

_URL_AUTHORITY = re.compile(r"(?<=://)(?P<userinfo>\S*)@")
_NAME_AND_PASSWORD = re.compile(r"(?P<user>[^:/?#@\s]*):[^:/?#@\s]*")
_SECRET_IN_QUERY = re.compile(
    r"(?P<key>[?&][\w.-]*(?:password|passwd|pwd|secret|token|credential)[\w.-]*=)[^&\s#\"'<>]+", re.IGNORECASE
)
_SECRET_ASSIGNED = re.compile(
    r"(?P<key>\b\w*(?:password|passwd|secret)\w*\s*=\s*)(?P<value>\"[^\"]*\"|'[^']*'|[^\s,&;\"'<>]+)",
    re.IGNORECASE,
)


def mask_secrets(text: str) -> str:
    """Replace what looks like a secret in ``text``: passwords in URLs, and values of keys that say so.

    Rather hides too much than too little: if a URL holds several ``@``, all before the last goes.
    """
    text = _URL_AUTHORITY.sub(_mask_userinfo, text)
    text = _SECRET_IN_QUERY.sub(rf"\g<key>{_MASK}", text)
    return _SECRET_ASSIGNED.sub(rf"\g<key>{_MASK}", text)


def _mask_userinfo(found: re.Match[str]) -> str:
    userinfo = found["userinfo"]
    plain = _NAME_AND_PASSWORD.fullmatch(userinfo)
    if plain:
        return f"{plain['user']}:{_MASK}@"
    if re.fullmatch(r"[^:/?#@\s]*", userinfo):
        return found[0]  # a user without a password
    return f"{_MASK}@"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and the port to knock at."""

    host: str
    """A name, an IPv4 literal, or an IPv6 literal without brackets."""
    port: int

    @property
    def is_loopback(self) -> bool:
        """True if the text alone says that this is the machine itself; no name is looked up."""
        return _is_loopback(self.host)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a store is, and as whom to enter.

    ``str()`` and ``repr()`` hide the password and secret query values; :meth:`reveal` does not.
    """

    addresses: tuple[Address, ...] = ()
    """In the order given; empty for a Unix socket only."""
    scheme: str = ""
    """In lower case; empty if the text was no URL."""
    user: str | None = None
    password: str | None = None
    path: str = ""
    """Decoded, with its leading slash if it has one; the socket's file for a Unix socket."""
    parameters: tuple[tuple[str, str], ...] = ()
    """The query's keys and values, decoded, in the order given; no key is there twice."""

    @property
    def host(self) -> str:
        """The first host; empty for a Unix socket."""
        return self.addresses[0].host if self.addresses else ""

    @property
    def port(self) -> int:
        """The first port; 0 for a Unix socket."""
        return self.addresses[0].port if self.addresses else 0

    @property
    def query(self) -> dict[str, str]:
        """The query as a dictionary of its own."""
        return dict(self.parameters)

    @property
    def is_unix_socket(self) -> bool:
        """True if :attr:`path` names a socket file of this machine."""
        return not self.addresses

    @property
    def is_loopback(self) -> bool:
        """True if by the text alone no other machine can be meant; no name is looked up."""
        return all(address.is_loopback for address in self.addresses)

    def reveal(self) -> str:
        """The endpoint as text, secrets and all; for :func:`parse_endpoint` and client libraries only."""
        return self._text(quote(self.password, safe="") if self.password is not None else None)

    def __str__(self) -> str:
        return mask_secrets(self._text(_MASK if self.password is not None else None))

    def __repr__(self) -> str:
        return f"Endpoint({str(self)!r})"

    def _text(self, password: str | None) -> str:
        where = ",".join(str(address) for address in self.addresses)
        if not self.scheme:
            return where
        who = quote(self.user, safe="") if self.user is not None else ""
        if password is not None:
            who += f":{password}"
        if who or self.user is not None:
            who += "@"
        query = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in self.parameters)
        return f"{self.scheme}://{who}{where}{quote(self.path)}{'?' if query else ''}{query}"


def parse_endpoint(
    text: str | None,
    *,
    default_port: int,
    schemes: Sequence[str] = (),
    allow_list: bool = False,
    allow_empty: bool = False,
) -> Endpoint:
    """Understand the text that a user gave as endpoint.

    Args:
        text: ``host``, ``host:port``, ``[v6]``, ``[v6]:port``, a bare IPv6 address (a host without a port),
            or a URL. Blanks around it are ignored.
        default_port: The port of an address that has none.
        schemes: URL schemes that are understood; without any, a URL is refused. A scheme ``unix``, or one
            that ends in ``+unix``, is followed by a path instead of a host.
        allow_list: Whether several addresses may be given, with commas between them.
        allow_empty: Whether no text means ``localhost``.

    Raises:
        ValueError: The text is not understood. The sentence names the fault and shows the text without its
            secrets.
    """
    stripped = (text or "").strip()
    if not stripped:
        if not allow_empty:
            raise ValueError(
                "The rendezvous endpoint is empty; give the host and port of the store, such as "
                f"HOST:{default_port}. Is a variable unset?"
            )
        return Endpoint(addresses=(Address(host="localhost", port=default_port),))
    reader = _Reader(stripped, default_port, tuple(s.lower() for s in schemes), allow_list)
    return reader.endpoint()


class _Reader:
    """One reading of one text; knows how to blame it."""

    def __init__(self, text: str, default_port: int, schemes: tuple[str, ...], allow_list: bool) -> None:
        self._text = text
        self._default_port = default_port
        self._schemes = schemes
        self._allow_list = allow_list

    def _refuse(self, why: str) -> NoReturn:
        who, at, where = self._text.rpartition("@")
        scheme, colon, _ = who.partition("://")
        shown = f"{scheme + colon if colon else ''}{_MASK}@{where}" if at else self._text
        raise ValueError(f"The rendezvous endpoint {mask_secrets(shown)!r} cannot be used: {why}")

    def endpoint(self) -> Endpoint:
        if re.search(r"\s", self._text):
            self._refuse("it has a blank inside; is it two values in one variable?")
        if not self._text.isprintable():
            self._refuse("it holds a character that cannot be printed.")
        scheme = _SCHEME.match(self._text)
        if scheme:
            return self._url(scheme[1].lower(), self._text[scheme.end() :])
        if "://" in self._text:
            self._refuse("what stands before '://' is no URL scheme.")
        if "@" in self._text:
            self._refuse(f"a user or password needs the URL form{self._example('USER:PASSWORD@HOST')}.")
        if re.search(r"[/?#]", self._text):
            self._refuse(f"a path or query needs the URL form{self._example('HOST/PATH')}.")
        return Endpoint(addresses=self._addresses(self._text))

    def _example(self, rest: str) -> str:
        return f", such as {self._schemes[0]}://{rest}" if self._schemes else ", which is not understood here"

    def _url(self, scheme: str, rest: str) -> Endpoint:
        if not self._schemes:
            self._refuse("a URL is not understood here; write HOST or HOST:PORT.")
        if scheme not in self._schemes:
            expected = ", ".join(f"{s}://" for s in self._schemes)
            self._refuse(f"the scheme '{scheme}://' is not one of {expected}.")
        if "#" in rest:
            self._refuse("it holds a '#'; write it as %23 if it belongs to a name or a password.")
        location, _, query = rest.partition("?")
        authority, slash, path = location.partition("/")
        path = slash + path
        if "@" in path or "@" in query:
            self._refuse("an '@' comes after a '/' or '?'; inside a password write %40, %2F and %3F for them.")
        who, at, where = authority.rpartition("@")
        user, password = self._userinfo(who) if at else (None, None)
        unix = scheme == "unix" or scheme.endswith("+unix")
        if unix:
            if where:
                self._refuse(f"a Unix socket has a path but no host; write {scheme}:///PATH.")
            if path in ("", "/"):
                self._refuse("the path of the socket is empty; is a variable unset?")
        return Endpoint(
            addresses=() if unix else self._addresses(where),
            scheme=scheme,
            user=user,
            password=password,
            path=self._decoded(path, "path"),
            parameters=self._parameters(query),
        )

    def _userinfo(self, who: str) -> tuple[str | None, str | None]:
        user, colon, password = who.partition(":")
        if "@" in who:
            self._refuse("there are several '@'; write an '@' inside a password as %40.")
        return (
            self._decoded(user, "user") if user or not colon else None,
            self._decoded(password, "password") if colon else None,
        )

    def _parameters(self, query: str) -> tuple[tuple[str, str], ...]:
        found: dict[str, str] = {}
        for part in filter(None, query.split("&")):
            key, _, value = part.partition("=")
            key = self._decoded(key, "query")
            if not key:
                self._refuse("its query has a value without a name.")
            if key in found:
                self._refuse(f"its query names '{key}' twice.")
            found[key] = self._decoded(value, "query")
        return tuple(found.items())

    def _decoded(self, text: str, what: str) -> str:
        if _BROKEN_ESCAPE.search(text):
            self._refuse(f"the {what} holds a '%' that does not begin an escape; write a plain '%' as %25.")
        try:
            return unquote(text, errors="strict")
        except UnicodeDecodeError:
            self._refuse(f"the {what} does not decode to UTF-8.")

    def _addresses(self, text: str) -> tuple[Address, ...]:
        parts = text.split(",")
        if len(parts) > 1 and not self._allow_list:
            self._refuse("it lists several addresses, and this backend takes one.")
        return tuple(self._address(part, one_of_many=len(parts) > 1) for part in parts)

    def _address(self, text: str, *, one_of_many: bool) -> Address:
        if not text and one_of_many:
            self._refuse("an address in the list is empty; is there a comma too many?")
        host, port = self._split(text)
        if not host:
            self._refuse("the host part is empty; is a variable unset?")
        number = self._default_port if port is None else self._port(port)
        if text.startswith("["):
            return Address(host=self._ipv6(host), port=number)
        return Address(host=self._ipv6(host) if ":" in host else self._name(host), port=number)

    def _split(self, text: str) -> tuple[str, str | None]:
        if text.startswith("["):
            host, closed, rest = text[1:].partition("]")
            if not closed:
                self._refuse("the bracket around the IPv6 address is not closed.")
            if rest and not rest.startswith(":"):
                self._refuse(f"{rest!r} follows the bracket; expected ':' and a port, or nothing.")
            return host, rest[1:] if rest else None
        if text.count(":") > 1:
            return text, None  # a bare IPv6 address, or nothing that we know
        host, colon, port = text.partition(":")
        return host, port if colon else None

    def _port(self, text: str) -> int:
        if not text:
            self._refuse("the port is empty; is a variable unset?")
        if not _PORT.fullmatch(text) or int(text) > _LARGEST_PORT:
            self._refuse(f"the port {text!r} is not a number from 0 to {_LARGEST_PORT}.")
        return int(text)

    def _ipv6(self, host: str) -> str:
        if "%" in host:
            self._refuse("it has an IPv6 zone ('%...'), which has a meaning on one machine only.")
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            self._refuse(f"{host!r} is no IPv6 address; write [ADDRESS]:PORT for one, else HOST:PORT.")
        return host

    def _name(self, host: str) -> str:
        if host.isdecimal():
            self._refuse(f"{host!r} looks like a port; the host is missing.")
        labels = host.removesuffix(".").split(".")
        if len(host) > _LONGEST_NAME or any(len(label) > _LONGEST_LABEL for label in labels):
            self._refuse(f"a host name has at most {_LONGEST_NAME} characters, {_LONGEST_LABEL} between dots.")
        if not all(_LABEL.fullmatch(label) for label in labels):
            self._refuse(f"{host!r} is neither a host name nor an IP address.")
        if labels[-1].isdecimal():
            try:
                ipaddress.IPv4Address(host)
            except ValueError:
                self._refuse(f"{host!r} looks like an IPv4 address but is none.")
        return host


def _is_loopback(host: str) -> bool:
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
