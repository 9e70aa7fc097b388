"""The contract with callers: what a launcher asks of a rendezvous, in torch's own names.

Code that was written against ``torch.distributed.elastic.rendezvous`` finds the same classes, signatures,
defaults and kinds of error here, but none of torch: a store is whatever has :class:`Store`'s two members.
"""

from __future__ import annotations

import re
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from rdzv_core.endpoint import mask_secrets
from rdzv_core.errors import RendezvousStateError, RendezvousTimeoutError
from rdzv_core.events import EventSink
from rdzv_core.machine.record import Record
from rdzv_core.tcp_store import listen_everywhere

__all__ = [
    "Observers",
    "Placed",
    "PlacementHook",
    "RendezvousHandler",
    "RendezvousHandlerCreator",
    "RendezvousInfo",
    "RendezvousParameters",
    "RendezvousSettings",
    "RendezvousStoreInfo",
    "RendezvousTimeout",
    "Store",
]

_FIRST_PAUSE = 0.01  # seconds between two looks at a key that is not there yet
_LONGEST_PAUSE = 0.5
_ABSENT = re.compile(r"not.?found|no such key|time(d )?.?out", re.IGNORECASE)


@runtime_checkable
class Store(Protocol):
    """The part of ``torch.distributed.Store`` that a rendezvous itself relies on."""

    def set(self, key: str, value: bytes, /) -> Any:
        """Write ``value`` under ``key``."""

    def get(self, key: str, /) -> bytes:
        """Read ``key``; wait for it up to the store's own timeout, or raise at once if it is not there."""


class RendezvousParameters:
    """What a user asked for; a backend makes a :class:`RendezvousHandler` out of it.

    Args:
        backend: The name of the backend.
        endpoint: Where the backend's store is; its form is the backend's business.
        run_id: The name of the run; nodes with the same one meet.
        min_nodes: The smallest number of nodes that a round may have, at least 1.
        max_nodes: The largest, not below ``min_nodes``.
        local_addr: The address by which other nodes reach this one; None to find it out.
        **kwargs: Options of the handler and the backend; kept in ``config``.

    Raises:
        ValueError: No backend is named, or the numbers of nodes cannot be.
    """

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        **kwargs: Any,
    ) -> None:
        if not backend:
            raise ValueError("The name of the rendezvous backend is empty; is a variable unset?")
        if min_nodes < 1:
            raise ValueError(f"The minimum number of nodes is {min_nodes}; it must be at least 1.")
        if max_nodes < min_nodes:
            raise ValueError(
                f"The maximum number of nodes ({max_nodes}) is below the minimum ({min_nodes}); it must be "
                "at least as large."
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.config = kwargs
        self.local_addr = local_addr

    def get(self, key: str, default: Any = None) -> Any:
        """The option ``key`` as it was given, or ``default``."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The option ``key`` as true or false, or ``default``.

        Raises:
            ValueError: It is neither a bool, nor 0 or 1, nor one of 1, true, t, yes, y, 0, false, f, no, n.
        """
        value = self.get(key, default)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value in (0, 1):
            return value == 1
        word = value.lower() if isinstance(value, str) else ""
        if word in ("1", "true", "t", "yes", "y"):
            return True
        if word in ("0", "false", "f", "no", "n"):
            return False
        raise ValueError(f"Option '{key}': {mask_secrets(repr(value))} is not true or false.")

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The option ``key`` as a whole number, or ``default``.

        Raises:
            ValueError: It is a text that is no whole number.
            TypeError: It is of a kind that cannot be a number.
        """
        value = self.get(key, default)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError as error:
            raise ValueError(f"Option '{key}': {mask_secrets(repr(value))} is not a whole number.") from error

    def __repr__(self) -> str:
        nodes = f"{self.min_nodes}:{self.max_nodes}"
        config = ", ".join(f"{key}={value}" for key, value in self.config.items())
        return mask_secrets(
            f"RendezvousParameters(backend={self.backend!r}, endpoint={self.endpoint!r}, "
            f"run_id={self.run_id!r}, nodes={nodes}, local_addr={self.local_addr!r}, config=[{config}])"
        )


@dataclass
class RendezvousStoreInfo:
    """Where rank 0's store listens, from which the workers bootstrap their communication."""

    MASTER_ADDR_KEY: ClassVar[str] = "MASTER_ADDR"
    MASTER_PORT_KEY: ClassVar[str] = "MASTER_PORT"
    master_addr: str
    master_port: int

    @staticmethod
    def build(
        rank: int,
        store: Store,
        local_addr: str | None,
        server_port: int | None = None,
        *,
        timeout: timedelta = timedelta(seconds=300),
    ) -> RendezvousStoreInfo:
        """Let rank 0 tell, through ``store``, where it will listen; all others read it.

        Args:
            rank: The rank of this node.
            store: Shared by the round, and fresh: keys of an earlier round would be taken for this one's.
            local_addr: The address of this node; None for its fully qualified name, which is looked up now and
                on rank 0 only.
            server_port: The port of a server that runs already; None for a port that is free now. It is not
                held, so somebody else may take it before the server starts.
            timeout: How long to wait for a key that is not there. A store whose ``get`` waits by itself is
                asked again until this time has passed.

        Raises:
            RendezvousTimeoutError: Rank 0 has not told within ``timeout``; names the key.
            RendezvousStateError: What is stored is no address or no port.
        """
        addr_key, port_key = RendezvousStoreInfo.MASTER_ADDR_KEY, RendezvousStoreInfo.MASTER_PORT_KEY
        if rank == 0:
            addr = local_addr or socket.getfqdn()
            port = server_port or _free_port()
            store.set(addr_key, addr.encode())
            store.set(port_key, str(port).encode())
        deadline = time.monotonic() + timeout.total_seconds()
        addr_bytes = _wait_for(store, addr_key, rank, timeout, deadline)
        port_bytes = _wait_for(store, port_key, rank, timeout, deadline)
        try:
            return RendezvousStoreInfo(master_addr=addr_bytes.decode(), master_port=int(port_bytes))
        except ValueError as error:
            raise RendezvousStateError(
                f"The keys {addr_key} and {port_key} hold {addr_bytes!r} and {port_bytes!r}; expected an "
                "address and a port. Does another program write into this store?"
            ) from error


def _wait_for(store: Store, key: str, rank: int, timeout: timedelta, deadline: float) -> bytes:
    pause = _FIRST_PAUSE
    while True:
        try:
            return store.get(key)
        except Exception as error:
            if not _means_absent(error):
                raise
            left = deadline - time.monotonic()
            if left <= 0:
                raise RendezvousTimeoutError(
                    f"Rank {rank} waited {timeout.total_seconds():g} s for the key {key}, which the node of rank "
                    "0 writes; it is not there. Rank 0 has died, or hangs, before it could tell its address: "
                    "see its log."
                ) from error
        time.sleep(min(pause, left))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _means_absent(error: Exception) -> bool:
    """Stores have no common error for a key that is not there: some say so at once, others after a wait."""
    if isinstance(error, LookupError):
        return True
    return bool(_ABSENT.search(type(error).__name__) or _ABSENT.search(str(error)))


def _free_port() -> int:
    """A port that is free at the moment on every address of this machine."""
    with listen_everywhere(0) as server:
        return int(server.getsockname()[1])


class RendezvousInfo:
    """One node's part in a completed round.

    Args:
        store: The store that the round shares.
        rank: The rank of this node, 0 to ``world_size`` - 1.
        world_size: The number of nodes in the round.
        bootstrap_store_info: Where rank 0's store listens.
    """

    __slots__ = ("_bootstrap_store_info", "_rank", "_store", "_world_size")

    def __init__(
        self, store: Store, rank: int, world_size: int, bootstrap_store_info: RendezvousStoreInfo | None
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Any:
        """The store that the round shares; torch's agents coordinate through it."""
        return self._store

    @property
    def rank(self) -> int:
        """The rank of this node."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of nodes in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo | None:
        """Where rank 0's store listens."""
        return self._bootstrap_store_info

    def __repr__(self) -> str:
        where = self._bootstrap_store_info
        return f"RendezvousInfo(rank={self._rank}, world_size={self._world_size}, bootstrap_store_info={where})"


class RendezvousHandler(ABC):
    """One node's door to the rendezvous of a run. Launchers hold one and call it from one thread."""

    @abstractmethod
    def get_backend(self) -> str:
        """The name of the backend, as it was asked for."""

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the store of :meth:`next_rendezvous` as their own, by its address."""
        return False

    @abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Wait until a round completes that this node is a member of.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousConnectionError: The backend cannot be reached.
            RendezvousStateError: What is stored cannot be read, or contradicts what this node was told.
            RendezvousTimeoutError: No round completed in time.
            RendezvousGracefulExitError: The run has ended, and this node was a spare in it.
        """

    @abstractmethod
    def is_closed(self) -> bool:
        """Whether this node has heard that the run is closed. News travels; this is no lock."""

    @abstractmethod
    def set_closed(self) -> None:
        """Close the run for all: no further round completes."""

    @abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes would join, or are lost, so that members should call :meth:`next_rendezvous`."""

    @abstractmethod
    def get_run_id(self) -> str:
        """The name of the run."""

    @abstractmethod
    def shutdown(self) -> bool:
        """Let go of everything; close the run if it has ended. Returns whether all went well."""

    def observe(self, observers: Observers) -> None:  # noqa: B027 - a handler need not listen
        """Let ``observers`` watch, and ask them; called before the first join. By default nobody is heard."""


RendezvousHandlerCreator: TypeAlias = Callable[[RendezvousParameters], RendezvousHandler]
"""What a backend registers under its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """What the placement hook made of a round."""

    order: tuple[str, ...] | None = None
    """The ids of the members by rank; None if nobody has an opinion, or it failed."""
    failure: str | None = None
    """A sentence, if it failed: the round is then to be ordered as by ``sorted``."""


PlacementHook: TypeAlias = Callable[[Sequence[Record], Mapping[str, int]], Placed]
"""Asked for the order of the members, given with the ranks of the last round by node id. Raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observers:
    """Who is told, and who is asked, along a node's way."""

    events: EventSink | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Said of this node in its record."""
    before_join: Callable[[str, str], str | None] | None = None
    """Asked with run id and node id before each join; a sentence forbids it."""
    place: PlacementHook | None = None


class RendezvousTimeout:
    """How long the stages of a rendezvous may take. None stands for the default.

    Args:
        join: How long to wait for a round; 600 s.
        last_call: How long the minimum of nodes waits for more; 30 s.
        close: How long closing may take; 30 s.
        heartbeat: How long `is_closed()` may take; 5 s.

    Raises:
        ValueError: A duration is zero or negative.
    """

    __slots__ = ("_close", "_heartbeat", "_join", "_last_call")

    def __init__(
        self,
        join: timedelta | None = None,
        last_call: timedelta | None = None,
        close: timedelta | None = None,
        heartbeat: timedelta | None = None,
    ) -> None:
        self._join = _positive("join", join, default=600)
        self._last_call = _positive("last call", last_call, default=30)
        self._close = _positive("close", close, default=30)
        self._heartbeat = _positive("heartbeat", heartbeat, default=5)

    @property
    def join(self) -> timedelta:
        """How long to wait for a round."""
        return self._join

    @property
    def last_call(self) -> timedelta:
        """How long the minimum of nodes waits for more."""
        return self._last_call

    @property
    def close(self) -> timedelta:
        """How long closing may take."""
        return self._close

    @property
    def heartbeat(self) -> timedelta:
        """How long `is_closed()` may take."""
        return self._heartbeat

    def _all(self) -> tuple[timedelta, ...]:
        return self._join, self._last_call, self._close, self._heartbeat

    def __eq__(self, other: object) -> bool:
        return self._all() == other._all() if isinstance(other, RendezvousTimeout) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        join, last_call, close, heartbeat = (f"{t.total_seconds():g} s" for t in self._all())
        return f"RendezvousTimeout(join={join}, last_call={last_call}, close={close}, heartbeat={heartbeat})"


def _positive(name: str, given: timedelta | None, *, default: float) -> timedelta:
    timeout = timedelta(seconds=default) if given is None else given
    if timeout <= timedelta(0):
        raise ValueError(f"The {name} timeout is {timeout.total_seconds():g} s; it must be positive.")
    return timeout


@dataclass(frozen=True, slots=True)
class RendezvousSettings:
    """What a handler was set to."""

    run_id: str
    min_nodes: int
    max_nodes: int
    timeout: RendezvousTimeout
    keep_alive_interval: timedelta
    """How often a node gives a sign of life."""
    keep_alive_max_attempt: int
    """How many of them must be missed before the node counts as dead."""
