"""What a user may say about a c10d store, each declared once; every one has a twin in the environment."""

from __future__ import annotations

from rdzv_core.options import Option

__all__ = ["C10D_OPTIONS", "STATIC_OPTIONS"]

C10D_OPTIONS: tuple[Option, ...] = (
    Option(
        name="store_type",
        kind="choice",
        default="tcp",
        choices=("tcp", "file"),
        sentence="`tcp`: a TCPStore at the endpoint, hosted by one of the nodes. `file`: a FileStore; the endpoint is "
        "then the path of a file that all nodes share.",
    ),
    Option(
        name="is_host",
        kind="flag",
        sentence="Whether this node hosts the store. Without it the node that has the endpoint's address does, and if "
        "several processes could, the first of them. With `true`, not being able to host is an error.",
    ),
    Option(
        name="read_timeout",
        kind="duration",
        default=60.0,
        unit="s",
        above=0,
        sentence="How long `create_backend` waits for the store to be there, and how long `get` and `wait` of the "
        "store that it returns wait for a key.",
    ),
    Option(
        name="call_timeout",
        kind="duration",
        default=2.0,
        unit="s",
        above=0,
        maximum=60,
        sentence="How long one call of the rendezvous may take, `read_timeout` at most; keep it well below "
        "`keep_alive_interval`.",
    ),
    Option(
        name="failover_timeout",
        kind="duration",
        default=3.0,
        unit="s",
        above=0,
        sentence="With several addresses as endpoint: how long none of them may answer before the next one's node "
        "hosts a new store.",
    ),
    Option(
        name="use_libuv",
        kind="flag",
        sentence="Whether a TCPStore that is hosted here uses libuv; torch's own default without it. If torch was "
        "built without libuv it is done without, with a warning.",
    ),
)
"""The options of this backend, beside those of the handler."""

STATIC_OPTIONS: tuple[Option, ...] = (
    Option(
        name="rank",
        kind="integer",
        minimum=0,
        also_from=("PET_NODE_RANK",),
        sentence="The rank of this node; torchrun fills it in from --node-rank.",
    ),
    Option(
        name="timeout",
        kind="duration",
        default=600.0,
        unit="s",
        above=0,
        sentence="How long to wait for the other nodes, and how long the store waits for a key.",
    ),
)
"""The options of the static rendezvous; it has no others."""
