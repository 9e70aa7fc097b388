"""What a user may say about a Redis connection, each declared once.

Each also has a twin in the environment (``RDZV_REDIS_PASSWORD``, ``RDZV_READ_TIMEOUT``, ...) and may stand in the
query of an endpoint URL.
"""

from __future__ import annotations

from rdzv_core.options import Option

__all__ = ["REDIS_OPTIONS"]

REDIS_OPTIONS: tuple[Option, ...] = (
    Option(
        name="redis_url",
        kind="text",
        sentence="The server, where the endpoint is left empty; `localhost:6379` without it.",
        secret=True,
    ),
    Option(name="redis_username", kind="text", sentence="The user, where the endpoint names none."),
    Option(
        name="redis_password",
        kind="text",
        secret=True,
        sentence="The password, where the endpoint has none. Give it through the environment: a command line "
        "can be read by others.",
    ),
    Option(
        name="password_file",
        kind="text",
        sentence="A file whose first line is the password, where neither endpoint nor `redis_password` has one; "
        "read anew at each connect.",
    ),
    Option(
        name="read_timeout",
        kind="duration",
        default=2.0,
        unit="s",
        above=0,
        maximum=60,
        sentence="How long one call may take, new tries after a lost connection included; keep it well below "
        "`keep_alive_interval`.",
    ),
    Option(
        name="max_connections",
        kind="integer",
        default=64,
        minimum=1,
        sentence="How many connections one backend or store may hold at most for its calls; each thread of a node or a "
        "store that waits for news holds one besides.",
    ),
    Option(
        name="key_prefix",
        kind="text",
        default="rdzv",
        sentence="What every key and channel begins with, followed by `:{RUN_ID}:`.",
    ),
    Option(
        name="ssl_ca_certs",
        kind="text",
        sentence="File of the authorities to trust with `rediss://`; those of the system without it.",
    ),
    Option(name="ssl_certfile", kind="text", sentence="File of our own certificate, if the server asks for one."),
    Option(name="ssl_keyfile", kind="text", sentence="File of the private key to `ssl_certfile`."),
    Option(
        name="ssl_check_hostname",
        kind="flag",
        default=True,
        sentence="Whether the server's certificate must name the host of the endpoint.",
    ),
)
"""The options of this backend, beside those of the handler."""
