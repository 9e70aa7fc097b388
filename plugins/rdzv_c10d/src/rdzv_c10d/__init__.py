"""The rendezvous of rdzv-core over torch's own stores: TCPStore, FileStore, and any other c10d store.

Each name is fetched when it is first used: torch imports this package in every launcher, whatever its backend.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdzv_core.api import RendezvousHandler, RendezvousParameters
    from rdzv_core.options import OptionValues

    from .backend import C10dRendezvousBackend
    from .hosting import EndpointSource
    from .options import C10D_OPTIONS
    from .server import C10dServer
    from .static import StaticTCPRendezvous

__all__ = [
    "C10D_OPTIONS",
    "C10dRendezvousBackend",
    "C10dServer",
    "StaticTCPRendezvous",
    "create_backend",
    "create_handler",
    "create_static_handler",
]

__version__ = "0.1.0"

_HOMES = {
    "C10D_OPTIONS": "options",
    "C10dRendezvousBackend": "backend",
    "C10dServer": "server",
    "StaticTCPRendezvous": "static",
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


def create_backend(params: RendezvousParameters) -> tuple[C10dRendezvousBackend, Any]:
    """Make the backend that the parameters of a rendezvous ask for, and the store below it.

    Returns:
        The backend, and the ``torch.distributed.Store``: a TCPStore, reached or hosted, or a FileStore.

    Raises:
        ValueError: Endpoint or options are not understood.
        RendezvousConnectionError: The store was not reached within ``read_timeout``, or cannot be hosted here.
    """
    options = _options(params)
    if options["store_type"] == "file":
        return _over_file(params.endpoint, params.run_id)
    from .hosting import connected

    source = _source(params, options)
    store = connected(source, options["read_timeout"])
    return _over_source(source, params.run_id, options), store


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of the backend ``c10d``; what the registry calls. Opens no connection yet.

    Raises:
        ValueError: Endpoint or options are not understood.
        RendezvousConnectionError: The file of a FileStore cannot be used.
    """
    from rdzv_core import create_handler as create

    options = _options(params)
    if options["store_type"] == "file":
        backend, _ = _over_file(params.endpoint, params.run_id)
        return create(None, backend, params)
    source = _source(params, options)
    backend = _over_source(source, params.run_id, options)
    return create(None, backend, params, endpoint=source.endpoint)


def create_static_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of the backend ``static``; what the registry calls.

    Raises:
        ValueError: The endpoint, or the rank, is missing or not understood.
    """
    from .static import create_rdzv_handler

    return create_rdzv_handler(params)


def _options(params: RendezvousParameters) -> OptionValues:
    from rdzv_core.options import HANDLER_OPTIONS, read_options

    from .options import C10D_OPTIONS

    return read_options(HANDLER_OPTIONS, C10D_OPTIONS, config=params.config, environ=os.environ)


def _source(params: RendezvousParameters, options: OptionValues) -> EndpointSource:
    import torch.distributed  # noqa: F401 - now: it takes seconds, more than the first call of a backend may

    from .hosting import EndpointSource
    from .target import target_of

    return EndpointSource(target_of(params.endpoint, params.max_nodes, options), params.run_id)


def _over_source(source: EndpointSource, run_id: str, options: OptionValues) -> C10dRendezvousBackend:
    from .coordination import C10dCoordinationBackend

    call_timeout = min(options["call_timeout"], options["read_timeout"])
    return C10dCoordinationBackend.at(source, run_id, call_timeout=call_timeout)


def _over_file(endpoint: str, run_id: str) -> tuple[C10dRendezvousBackend, Any]:
    from .backend import C10dRendezvousBackend
    from .files import open_file_store

    store = open_file_store(endpoint)
    return C10dRendezvousBackend(store, run_id), store
