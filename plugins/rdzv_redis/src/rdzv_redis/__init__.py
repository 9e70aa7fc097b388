"""The rendezvous of rdzv-core over a Redis or Valkey server.

Each name is fetched when it is first used: torch imports this package in every launcher, whatever its backend.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdzv_core.api import RendezvousHandler, RendezvousParameters

    from .backend import RedisRendezvousBackend
    from .connection import Target
    from .options import REDIS_OPTIONS
    from .server import RedisServer
    from .store import RedisStore
    from .tools import runs

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


_HOMES = {
    "REDIS_OPTIONS": "options",
    "RedisRendezvousBackend": "backend",
    "RedisServer": "server",
    "RedisStore": "store",
    "runs": "tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def create_backend(params: RendezvousParameters) -> tuple[RedisRendezvousBackend, None]:
    """Make the backend that the parameters of a rendezvous ask for; opens no connection yet.

    Returns:
        The backend, and None for the store: each round gets a fresh TCPStore of its rank 0.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
    """
    from .backend import RedisRendezvousBackend

    return RedisRendezvousBackend(_target(params), params.run_id), None


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of ``--rdzv-backend=redis``; what the registry calls.

    Raises:
        ValueError: As :func:`create_backend`.
    """
    from rdzv_core import create_handler as create

    from .backend import RedisRendezvousBackend

    target = _target(params)
    backend = RedisRendezvousBackend(target, params.run_id)
    return create(None, backend, params, endpoint=target.endpoint)


def _target(params: RendezvousParameters) -> Target:
    from rdzv_core.options import HANDLER_OPTIONS, read_options

    from .connection import target_of
    from .options import REDIS_OPTIONS

    # Read all, so that a misspelt name is found; then ours alone.
    read_options(HANDLER_OPTIONS, REDIS_OPTIONS, config=params.config, environ=os.environ)
    ours = {option.name for option in REDIS_OPTIONS}
    options = {key: value for key, value in params.config.items() if key in ours}
    return target_of(params.endpoint, options, os.environ)
