"""Where clients of a store come from: somebody's store, cloned; or an endpoint (:mod:`.hosting`)."""

from __future__ import annotations

from typing import Any, Protocol

from .plug import Plug, innermost, plugged

__all__ = ["GivenStore", "Source", "is_cloneable"]


class Source(Protocol):
    """Opens clients of one store. Called from several threads, one call per client."""

    @property
    def where(self) -> str:
        """The store, in words for errors: names its host."""
        ...

    def open(self) -> tuple[Any, Plug | None]:
        """Connect a new client; answers it, and how to end its connection from outside.

        Raises:
            RendezvousConnectionError: No store was reached; says what was tried, and what to do.
            RuntimeError: A store was reached, and then lost.
        """
        ...

    def doubt(self) -> None:
        """A client of this source was lost, or hangs."""
        ...

    def linger(self, seconds: float) -> None:
        """The run has ended: what is hosted here is still wanted by others, for so long at most."""
        ...

    def close(self) -> None:
        """Let go of what is hosted here."""
        ...


class GivenStore:
    """Clones of a store that somebody else made, and goes on owning.

    Args:
        store: A TCPStore, or a PrefixStore of one.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        tcp = innermost(store)
        self._where = f"the TCPStore at {tcp.host}:{tcp.port}"

    @property
    def where(self) -> str:
        """Host and port of the store."""
        return self._where

    def open(self) -> tuple[Any, Plug | None]:
        """Clone the store: a connection of its own to the same host."""
        return plugged(self._store.clone)

    def doubt(self) -> None:
        """Nothing: there is one way to clone."""

    def linger(self, seconds: float) -> None:
        """Nothing: the store is its owner's."""

    def close(self) -> None:
        """Nothing: the store is its owner's."""


def is_cloneable(store: Any) -> bool:
    """Whether more clients can be had of this store, each with a connection of its own."""
    return hasattr(store, "clone") and type(innermost(store)).__name__ == "TCPStore"
