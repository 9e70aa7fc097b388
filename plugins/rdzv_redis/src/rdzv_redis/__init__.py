"""The rendezvous of rdzv-core over a Redis or Valkey server.

Nothing here imports the client library, or torch, before it is needed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .backend import RedisRendezvousBackend
from .options import REDIS_OPTIONS
from .tools import runs

if TYPE_CHECKING:
    from rdzv_core.api import RendezvousHandler, RendezvousParameters

    from .connection import Target
    from .server import RedisServer
    from .store import RedisStore

__all__ = [
    "REDIS_OPTIONS",
    "RedisRendezvousBackend",
    "RedisServer",
    "RedisStore",
    "create_backend",
    "create_handler",
    "runs",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "RedisStore":
        from .store import RedisStore

        return RedisStore
    if name == "RedisServer":
        from .server import RedisServer

        return RedisServer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def create_backend(params: RendezvousParameters) -> tuple[RedisRendezvousBackend, None]:
    """Make the backend that the parameters of a rendezvous ask for; opens no connection yet.

    Returns:
        The backend, and None for the store: each round gets a fresh TCPStore of its rank 0.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
    """
    return RedisRendezvousBackend(_target(params), params.run_id), None


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of ``--rdzv-backend=redis``; what the registry calls.

    Raises:
        ValueError: As :func:`create_backend`.
    """
    from rdzv_core import create_handler as create

    target = _target(params)
    backend = RedisRendezvousBackend(target, params.run_id)
    return create(None, backend, params, backend_options=REDIS_OPTIONS, endpoint=target.endpoint)


def _target(params: RendezvousParameters) -> Target:
    from rdzv_core.options import HANDLER_OPTIONS, read_options

    from .connection import target_of

    # Read all, so that a misspelt name is found; then ours alone.
    read_options(HANDLER_OPTIONS, REDIS_OPTIONS, config=params.config, environ=os.environ)
    ours = {option.name for option in REDIS_OPTIONS}
    options = {key: value for key, value in params.config.items() if key in ours}
    return target_of(params.endpoint, options, os.environ)
