"""The rendezvous of distributed PyTorch training, as a small core with plugins.

Everything that users and backend authors need is named here; each name is fetched when it is first used, so that
``import rdzv_core`` brings neither torch nor a client library, and asks no name server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rdzv_core.api import (
        RendezvousHandler,
        RendezvousHandlerCreator,
        RendezvousInfo,
        RendezvousParameters,
        RendezvousSettings,
        RendezvousStoreInfo,
        RendezvousTimeout,
        Store,
    )
    from rdzv_core.backend import CoordinationBackend, Pulse, RendezvousBackend, Roster, RosterEntry, Token
    from rdzv_core.errors import (
        RendezvousClosedError,
        RendezvousConnectionError,
        RendezvousError,
        RendezvousGracefulExitError,
        RendezvousStateError,
        RendezvousTimeoutError,
    )
    from rdzv_core.registry import (
        RendezvousHandlerRegistry,
        get_rendezvous_handler,
        rendezvous_handler_registry,
    )
    from rdzv_core.runtime.handler import DynamicRendezvousHandler, create_handler
    from rdzv_core.runtime.register_coordination import RegisterCoordination

__version__ = "0.1.0"

__all__ = [
    "CoordinationBackend",
    "DynamicRendezvousHandler",
    "Pulse",
    "RegisterCoordination",
    "RendezvousBackend",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousHandlerRegistry",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousStateError",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "RendezvousTimeoutError",
    "Roster",
    "RosterEntry",
    "Store",
    "Token",
    "create_handler",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

_HOMES = {
    "CoordinationBackend": "backend",
    "DynamicRendezvousHandler": "runtime.handler",
    "Pulse": "backend",
    "RegisterCoordination": "runtime.register_coordination",
    "RendezvousBackend": "backend",
    "RendezvousClosedError": "errors",
    "RendezvousConnectionError": "errors",
    "RendezvousError": "errors",
    "RendezvousGracefulExitError": "errors",
    "RendezvousHandler": "api",
    "RendezvousHandlerCreator": "api",
    "RendezvousHandlerRegistry": "registry",
    "RendezvousInfo": "api",
    "RendezvousParameters": "api",
    "RendezvousSettings": "api",
    "RendezvousStateError": "errors",
    "RendezvousStoreInfo": "api",
    "RendezvousTimeout": "api",
    "RendezvousTimeoutError": "errors",
    "Roster": "backend",
    "RosterEntry": "backend",
    "Store": "api",
    "Token": "backend",
    "create_handler": "runtime.handler",
    "get_rendezvous_handler": "registry",
    "rendezvous_handler_registry": "registry",
}
"""The module of each name; a test holds it, ``__all__`` and the imports above together."""


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'rdzv_core' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"rdzv_core.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
