"""The rendezvous of rdzv-core over etcd: its v3 API, and for old servers its v2 API.

Each name is fetched when it is first used: torch imports this package in every launcher, whatever its backend.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rdzv_core.api import RendezvousHandler, RendezvousParameters
    from rdzv_core.options import Option

    from .backend import EtcdV3RendezvousBackend
    from .legacy import EtcdRendezvousHandler, create_rdzv_handler
    from .options import ETCD_OPTIONS, LEGACY_OPTIONS, V2_OPTIONS
    from .server import EtcdServer
    from .store import EtcdStore
    from .target import Target
    from .v2.backend import EtcdRendezvousBackend

__all__ = [
    "ETCD_OPTIONS",
    "LEGACY_OPTIONS",
    "V2_OPTIONS",
    "EtcdRendezvousBackend",
    "EtcdRendezvousHandler",
    "EtcdServer",
    "EtcdStore",
    "EtcdV3RendezvousBackend",
    "create_backend",
    "create_handler",
    "create_rdzv_handler",
    "create_v2_handler",
]

__version__ = "0.1.0"

STORE_PREFIX = "/torch/elastic/store"
"""Where :func:`create_backend` puts the keys of its store; torch's place for them."""

_HOMES = {
    "ETCD_OPTIONS": "options",
    "LEGACY_OPTIONS": "options",
    "V2_OPTIONS": "options",
    "EtcdRendezvousBackend": "v2.backend",
    "EtcdRendezvousHandler": "legacy",
    "EtcdServer": "server",
    "EtcdStore": "store",
    "EtcdV3RendezvousBackend": "backend",
    "create_rdzv_handler": "legacy",
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


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of ``--rdzv-backend=etcd-v3``; what the registry calls.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
    """
    from rdzv_core import create_handler as create

    from .backend import EtcdV3RendezvousBackend
    from .options import ETCD_OPTIONS

    target = _target(params, ETCD_OPTIONS)
    backend = EtcdV3RendezvousBackend(target, params.run_id)
    return create(None, backend, params, endpoint=target.endpoint)


def create_v2_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the rendezvous handler of the backend ``etcd-v2``; under torchrun it is called ``rdzv-etcd-v2``.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
        RendezvousConnectionError: python-etcd is not installed or does not work.
    """
    from rdzv_core import create_handler as create

    backend, target = _v2_backend(params)
    return create(None, backend, params, endpoint=target.endpoint)


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, EtcdStore]:
    """Make the v2 backend and a store beside it, as torch's function of this name does; opens no connection yet.

    Raises:
        ValueError: Endpoint or options are not understood; the sentence says which, and shows no password.
        RendezvousConnectionError: python-etcd is not installed or does not work.
    """
    from .store import EtcdStore
    from .v2.access import clients_of

    backend, target = _v2_backend(params)
    return backend, EtcdStore(clients_of(target.cluster), STORE_PREFIX)


def _v2_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Target]:
    from .options import V2_OPTIONS
    from .v2.access import clients_of
    from .v2.backend import EtcdRendezvousBackend

    target = _target(params, V2_OPTIONS)
    return EtcdRendezvousBackend(clients_of(target.cluster), params.run_id, target.key_prefix), target


def _target(params: RendezvousParameters, declared: Sequence[Option]) -> Target:
    from rdzv_core.options import HANDLER_OPTIONS, read_options

    from .target import target_of

    # Read all, so that a misspelt name is found; then ours alone.
    read_options(HANDLER_OPTIONS, declared, config=params.config, environ=os.environ)
    ours = {name for option in declared for name in (option.name, *option.aliases)}
    options = {key: value for key, value in params.config.items() if key in ours}
    return target_of(params.endpoint, options, os.environ, declared)
