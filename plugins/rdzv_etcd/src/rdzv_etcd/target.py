"""From an endpoint and options to a cluster: what may be written, and what it means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdzv_core.endpoint import Endpoint, parse_endpoint
from rdzv_core.options import Option, OptionError, read_options

from .gateway.cluster import Cluster
from .options import ETCD_OPTIONS, LONGEST_CALL

__all__ = ["Target", "target_of"]

_DEFAULT_PORT = 2379
_FILES = ("password_file", "ca_cert", "ssl_cert", "ssl_cert_key")
_TLS = ("ca_cert", "ssl_cert", "ssl_cert_key")
_PREFIX = re.compile(r"/?[A-Za-z0-9_.:-]+(?:/[A-Za-z0-9_.:-]+)*/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster, how to enter, and where its keys for us begin. Its text forms hide the password."""

    endpoint: Endpoint
    cluster: Cluster
    key_prefix: str = "rdzv"

    def __str__(self) -> str:
        return str(self.cluster)


def target_of(
    endpoint: str | None,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    declared: Sequence[Option] = ETCD_OPTIONS,
) -> Target:
    """Understand an endpoint with its options; opens nothing but looks whether named files are there.

    Args:
        endpoint: ``HOST:PORT``, several with commas between them, or a URL: ``http://USER:PASSWORD@HOST:PORT``,
            ``https://HOST:PORT,HOST:PORT?ca_cert=FILE``. Empty: ``localhost:2379``.
        options: What was given. Beats the endpoint's query, which beats the environment.
        environ: The environment.
        declared: The options that there are.

    Raises:
        ValueError: Something is not understood, contradicts itself, or names a file that is not there. The
            sentence shows no password.
    """
    where = parse_endpoint(
        endpoint, default_port=_DEFAULT_PORT, schemes=("http", "https", "etcd"), allow_list=True, allow_empty=True
    )
    if where.path not in ("", "/"):
        raise ValueError(
            f"The rendezvous endpoint '{where}' has a path, which means nothing here; say where keys begin with the "
            "option key_prefix."
        )
    asked = {key: value.replace("%", "%25") for key, value in where.query.items()}  # decoded once more below
    try:
        values = read_options(declared, config=asked | dict(options), environ=environ)
    except OptionError as error:
        raise type(error)([_in_query(problem, asked, where) for problem in error.problems]) from None

    files = {name: Path(values[name]) for name in _FILES if values[name]}
    for name, path in files.items():
        if not path.is_file():
            raise ValueError(f"Option '{name}': there is no file '{path}' on this node.")
    tls = _is_encrypted(where, values["protocol"])
    given = [name for name in _TLS if name in files]
    if given and not tls:
        raise ValueError(
            f"Option '{given[0]}' is given, but the endpoint '{where}' is not encrypted; write https://HOST:PORT, or "
            "give protocol=https."
        )
    if "ssl_cert_key" in files and "ssl_cert" not in files:
        raise ValueError("The option 'ssl_cert_key' needs 'ssl_cert' with it; only the key is given.")
    user = where.user or values["etcd_username"]
    password = where.password or values["etcd_password"]
    if user is None and (password is not None or "password_file" in files):
        raise ValueError("A password for etcd is given, but no user; set etcd_username or RDZV_ETCD_USERNAME.")
    if user is not None and password is None and "password_file" not in files:
        raise ValueError(f"The etcd user '{user}' is given without a password; set RDZV_ETCD_PASSWORD.")
    prefix = str(values["key_prefix"])
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            f"Option 'key_prefix': {prefix!r} is not usable: letters, digits and _ . : - only, with single slashes "
            "between them."
        )
    return Target(
        endpoint=where,
        cluster=Cluster(
            members=tuple((address.host, address.port) for address in where.addresses),
            tls=tls,
            timeout=min(values["read_timeout"], LONGEST_CALL),
            user=user,
            password=password,
            password_file=files.get("password_file"),
            ca_cert=files.get("ca_cert"),
            cert=files.get("ssl_cert"),
            cert_key=files.get("ssl_cert_key"),
            check_hostname=values["ssl_check_hostname"],
        ),
        key_prefix=prefix.rstrip("/"),
    )


def _is_encrypted(where: Endpoint, protocol: str | None) -> bool:
    said = where.scheme if where.scheme in ("http", "https") else None
    if said and protocol and said != protocol:
        raise ValueError(
            f"The endpoint '{where}' says {said} and the option 'protocol' says {protocol}; leave one out."
        )
    return (said or protocol) == "https"


def _in_query(problem: str, asked: Mapping[str, str], where: Endpoint) -> str:
    from_query = any(f"'{key}'" in problem for key in asked)
    return f"{problem} It stands in the query of the endpoint '{where}'." if from_query else problem
