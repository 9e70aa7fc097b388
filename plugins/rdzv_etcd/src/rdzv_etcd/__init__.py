"""The rendezvous of rdzv-core over etcd: its v3 API, and for old servers its v2 API.

Nothing here imports python-etcd, or torch, before it is needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .backend import EtcdV3RendezvousBackend
from .options import ETCD_OPTIONS

if TYPE_CHECKING:
    from rdzv_core.api import RendezvousHandler, RendezvousParameters

    from .server import EtcdServer
    from .target import Target

__all__ = [
    "ETCD_OPTIONS",
    "EtcdServer",
    "EtcdV3RendezvousBackend",
    "create_handler",
]

__version__ = "0.1.0"

_LAZY = {"EtcdServer": "server"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of ``--rdzv-backend=etcd-v3``; what the registry calls.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
    """
    from rdzv_core import create_handler as create

    target = _target(params)
    backend = EtcdV3RendezvousBackend(target, params.run_id)
    return create(None, backend, params, backend_options=ETCD_OPTIONS, endpoint=target.endpoint)


def _target(params: RendezvousParameters) -> Target:
    from rdzv_core.options import HANDLER_OPTIONS, read_options

    from .target import target_of

    # Read all, so that a misspelt name is found; then ours alone.
    read_options(HANDLER_OPTIONS, ETCD_OPTIONS, config=params.config, environ=os.environ)
    ours = {name for option in ETCD_OPTIONS for name in (option.name, *option.aliases)}
    options = {key: value for key, value in params.config.items() if key in ours}
    return target_of(params.endpoint, options, os.environ)
