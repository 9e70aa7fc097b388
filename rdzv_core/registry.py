"""Backends by name: those that were registered by hand, and behind them those that are installed.

A dictionary with manners. What a program registers wins over what is installed under the same name, so that a
test or a launcher can put its own in place; two different creators under one name are refused.
"""

from __future__ import annotations

import difflib
from contextlib import suppress

from rdzv_core.api import RendezvousHandler, RendezvousHandlerCreator, RendezvousParameters
from rdzv_core.discovery import BACKENDS, Discovery, PluginError
from rdzv_core.hooks.manager import Hooks

__all__ = [
    "EXTRAS",
    "RendezvousHandlerRegistry",
    "get_rendezvous_handler",
    "rendezvous_handler_registry",
]

EXTRAS = {
    "c10d": "c10d",
    "static": "c10d",
    "etcd": "etcd",
    "etcd-v2": "etcd",
    "etcd-v3": "etcd",
    "redis": "redis",
}
"""Names that users know, and the extra of rdzv-core that brings each."""


class RendezvousHandlerRegistry:
    """Makes handlers by the name of their backend.

    Args:
        discovery: Where installed backends are found; None for all that is installed.
        hooks: Who watches the handlers that are made; None for nobody.
    """

    def __init__(self, discovery: Discovery | None = None, hooks: Hooks | None = None) -> None:
        self._creators: dict[str, RendezvousHandlerCreator] = {}
        self._discovery = discovery if discovery is not None else Discovery()
        self._hooks = hooks

    def register(self, backend: str, creator: RendezvousHandlerCreator) -> None:
        """Let ``creator`` make the handlers of ``backend``; to say so again is no error.

        Raises:
            ValueError: The name is empty, or another creator is registered under it.
        """
        if not backend:
            raise ValueError("The name of the rendezvous backend is empty.")
        present = self._creators.setdefault(backend, creator)
        if present != creator:
            raise ValueError(
                f"The backend '{backend}' cannot be registered with {creator!r}: it is registered with {present!r} "
                "already. Give it another name."
            )

    def names(self) -> tuple[str, ...]:
        """All names that can be asked for, in alphabetical order. Imports no plugin."""
        return tuple(sorted({*self._creators, *self._installed()}))

    def create_handler(self, params: RendezvousParameters) -> RendezvousHandler:
        """Make the handler that ``params`` ask for.

        Raises:
            ValueError: There is no such backend, or it is broken; says which there are, which one may have
                been meant, and what to install.
            RuntimeError: The backend made a handler that goes by another name.
        """
        handler = self._creator(params.backend)(params)
        name = handler.get_backend()
        if name != params.backend:
            raise RuntimeError(
                f"The backend '{params.backend}' made a handler that calls itself '{name}'. That is a fault of the "
                "backend: get_backend() must return the name that was asked for."
            )
        if self._hooks is not None and isinstance(handler, RendezvousHandler):  # torch's own cannot be observed
            handler.observe(self._hooks.observers(params.run_id))
        return handler

    def _installed(self) -> tuple[str, ...]:
        return self._discovery.names(BACKENDS)

    def _creator(self, backend: str) -> RendezvousHandlerCreator:
        creator = self._creators.get(backend)
        if creator is not None:
            return creator
        if backend not in self._installed():
            raise PluginError(self._unknown(backend))
        found: RendezvousHandlerCreator = self._discovery.load(BACKENDS, backend)
        if not callable(found):
            raise self._discovery.reject(BACKENDS, backend, f"is no creator of handlers, but {found!r}.")
        return found

    def _broken(self) -> tuple[str, ...]:
        """What is wrong with what is installed; looks at all of it, since a misspelt name may mean any."""
        for name in self._installed():
            with suppress(PluginError):
                self._creator(name)
        return tuple(failure.sentence for failure in self._discovery.failures(BACKENDS))

    def _unknown(self, backend: str) -> str:
        names = self.names()
        said = [f"There is no backend named '{backend}'. Installed: {', '.join(names) or 'none'}."]
        near = difflib.get_close_matches(backend, {*names, *EXTRAS}, n=1, cutoff=0.6)
        if backend in EXTRAS:
            said.append(f'To get it: pip install "rdzv-core[{EXTRAS[backend]}]".')
        elif near and near[0] in names:
            said.append(f"Did you mean '{near[0]}'?")
        elif near:
            said.append(f"Did you mean '{near[0]}'? To get it: pip install \"rdzv-core[{EXTRAS[near[0]]}]\".")
        said += [f"Of no use: {sentence}" for sentence in self._broken()]
        return " ".join(said)


rendezvous_handler_registry = RendezvousHandlerRegistry(hooks=Hooks())
"""The registry of this process, which launchers ask."""


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make the handler that ``params`` ask for, from the registry of this process.

    Raises:
        ValueError: There is no such backend, or it is broken.
        RuntimeError: The backend made a handler that goes by another name.
    """
    return rendezvous_handler_registry.create_handler(params)
