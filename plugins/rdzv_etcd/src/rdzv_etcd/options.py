"""What a user may say about a connection to etcd, each declared once.

Names that torch's own etcd backends have are kept, those of its legacy handler as aliases. Each also has a twin in
the environment (``RDZV_ETCD_PASSWORD``, ``RDZV_READ_TIMEOUT``, ...), and may stand in the query of an endpoint URL.
"""

from __future__ import annotations

from dataclasses import replace

from rdzv_core.options import Option

__all__ = ["ETCD_OPTIONS", "LEGACY_OPTIONS", "LONGEST_CALL", "V2_OPTIONS"]

LONGEST_CALL = 6.0
"""Seconds; a member without a leader gives an answer up after 7, and we must be done before it."""

ETCD_OPTIONS: tuple[Option, ...] = (
    Option(
        name="protocol",
        kind="choice",
        choices=("http", "https"),
        sentence="Whether the connection is encrypted, where the endpoint is no URL; `http` without it.",
    ),
    Option(
        name="ca_cert",
        kind="text",
        aliases=("cacert",),
        sentence="File of the authorities to trust with `https`; those of the system without it.",
    ),
    Option(
        name="ssl_cert",
        kind="text",
        aliases=("cert",),
        sentence="File of our own certificate, if etcd asks for one.",
    ),
    Option(name="ssl_cert_key", kind="text", aliases=("key",), sentence="File of the private key to `ssl_cert`."),
    Option(
        name="ssl_check_hostname",
        kind="flag",
        default=True,
        sentence="Whether a member's certificate must name the host of the endpoint.",
    ),
    Option(name="etcd_username", kind="text", sentence="The user, where the endpoint names none."),
    Option(
        name="etcd_password",
        kind="text",
        secret=True,
        sentence="The password, where the endpoint has none. Give it through the environment: a command line "
        "can be read by others.",
    ),
    Option(
        name="password_file",
        kind="text",
        sentence="A file whose first line is the password, where neither endpoint nor `etcd_password` has one; "
        "read anew at each login.",
    ),
    Option(
        name="read_timeout",
        kind="duration",
        default=3.0,
        unit="s",
        above=0,
        sentence="How long one call may take, new tries on other members included; more than 6 s are taken as 6 s, "
        "since etcd itself gives up after 7.",
    ),
    Option(
        name="key_prefix",
        kind="text",
        default="rdzv",
        aliases=("etcd_prefix",),
        sentence="What every key begins with, followed by `/RUN_ID/`.",
    ),
)
"""The options of the backends, beside those of the handler."""


def _beginning_with(prefix: str) -> tuple[Option, ...]:
    return tuple(replace(o, default=prefix) if o.name == "key_prefix" else o for o in ETCD_OPTIONS)


V2_OPTIONS = _beginning_with("/torch/elastic/rendezvous")
"""The options of ``etcd-v2``: those of v3, and torch's directory."""

LEGACY_OPTIONS = _beginning_with("/torchelastic/p2p")
"""The options of ``etcd``: those of v3, and the directory of torch's legacy handler."""
