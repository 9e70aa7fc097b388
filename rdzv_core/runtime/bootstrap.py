"""How the members of a round reach rank 0's store.

Rank 0 opens a *new* TCPStore on another port for every round, also when it stays rank 0: restarted workers that met
the keys of the last round would hang. A store lives until the round after it is complete, since workers of other
nodes may still be talking to it.
"""

from __future__ import annotations

import errno
import os
import socket
from datetime import timedelta
from typing import Any, Protocol

from rdzv_core.api import RendezvousStoreInfo
from rdzv_core.endpoint import Endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.machine.follow import Seat
from rdzv_core.machine.register import Bootstrap
from rdzv_core.runtime.localhost import check_own_address, own_address
from rdzv_core.tcp_store import listen_everywhere, serve_tcp_store, torch_distributed

__all__ = ["BootstrapStores", "TCPBootstrap", "shares_agent_store"]


def shares_agent_store() -> bool:
    """Whether workers use the agents' store too; torch's ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`` says no."""
    return os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0") != "1"


class BootstrapStores(Protocol):
    """Opens and connects the stores of rounds. Called from threads that may block."""

    def locate(self) -> str:
        """Find the address by which other nodes reach this one; asked first, and only if the handler was given none.

        Raises:
            RendezvousConnectionError: It cannot be found at present.
        """
        ...

    def host(self, seat: Seat) -> Bootstrap:
        """Open the store of this round, as its rank 0, and say where it is."""
        ...

    def connect(self, seat: Seat, address: Bootstrap) -> Any:
        """Connect to the store of this round; returns a c10d ``Store`` that only this round uses."""
        ...

    def address_for_workers(self, seat: Seat, store: Any) -> Bootstrap:
        """Where the workers of this round meet, if not in its store: rank 0 tells the others, through the store."""
        ...

    def close(self) -> None:
        """Let go of all stores."""
        ...


class TCPBootstrap:
    """Rank 0's TCPStore.

    Args:
        run_id: The run; part of every key's prefix.
        local_addr: Where other nodes reach this one; empty to find it out by ``endpoint``.
        endpoint: Where the run's store is; None if it is nowhere.
        shared: Whether other nodes are to reach this one.
        timeout: Seconds to wait for a connection.
        store: A c10d ``Store`` of the caller's to return, scoped, in place of rank 0's; None for rank 0's.
        ports: The ports to listen at; None for any.
    """

    def __init__(
        self,
        *,
        run_id: str,
        local_addr: str,
        endpoint: Endpoint | None = None,
        shared: bool = True,
        timeout: float,
        store: Any = None,
        ports: range | None = None,
    ) -> None:
        self._run_id = run_id
        self._local_addr = local_addr
        self._endpoint = endpoint
        self._shared = shared
        self._timeout = timedelta(seconds=timeout)
        self._store = store
        self._ports = ports
        self._servers: dict[str, Any] = {}
        self._hosted = ""  # the newest round that this node opened a store for
        self._connected, self._connected_round = "", 0  # the newest that it has reached the store of

    def locate(self) -> str:
        """The address of this machine that leads to the store."""
        self._local_addr = own_address(self._endpoint, shared=self._shared)
        return self._local_addr

    def host(self, seat: Seat) -> Bootstrap:
        """Open a TCPStore on a free port.

        Raises:
            RendezvousConnectionError: torch is missing, or this machine cannot listen at its own address, or at none
                of the ports that it may use.
        """
        try:
            check_own_address(self._local_addr)
        except ValueError as error:
            raise RendezvousConnectionError(str(error), permanent=True) from error
        torch_distributed()  # before a port is taken
        self._keep_servers(self._connected)
        with self._listen() as listener:
            server = serve_tcp_store(self._local_addr, listener, timeout=self._timeout)
        self._hosted = seat.round_id  # before it is there to be dropped
        self._servers[seat.round_id] = server
        return Bootstrap(addr=self._local_addr, port=server.port)

    def _listen(self) -> socket.socket:
        for port in self._ports or (0,):
            try:
                return listen_everywhere(port)
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                last = str(error)  # the error itself would keep our callers' frames alive, and a server in them
        said = f"{self._ports[0]}-{self._ports[-1]}" if self._ports else "any"
        raise RendezvousConnectionError(
            f"This node is rank 0 and is to open the store of the round, but no port of bootstrap_ports ({said}) can "
            f"be had on this machine; the last one said: {last}. Each round needs a new one while the one before may "
            f"still be in use: allow at least two for each agent of a machine.",
            permanent=True,
        )

    def connect(self, seat: Seat, address: Bootstrap) -> Any:
        """Connect to rank 0's TCPStore, and drop the servers of all rounds but this and the one before."""
        distributed = torch_distributed()
        store = self._store
        if store is None:
            store = self._servers.get(seat.round_id)
        if store is None:
            store = distributed.TCPStore(
                host_name=address.addr,
                port=address.port,
                is_master=False,
                wait_for_workers=False,
                timeout=self._timeout,
            )
        # A connection of a round that was given up may come about when the next one has begun.
        self._keep_servers(self._connected, seat.round_id, self._hosted)
        if seat.round >= self._connected_round:
            self._connected, self._connected_round = seat.round_id, seat.round
        prefix = f"rdzv/{self._run_id}/{seat.round}/{seat.round_id}"
        return distributed.PrefixStore(prefix, store)

    def address_for_workers(self, seat: Seat, store: Any) -> Bootstrap:
        """A port of rank 0 that is free at present, one of those that stores may listen at; it is not held.

        Raises:
            RendezvousConnectionError: This node is rank 0, and no such port is free.
            RendezvousTimeoutError: Rank 0 has not told it in time.
            RendezvousStateError: What is stored is no address.
        """
        port = None
        if seat.rank == 0 and self._ports is not None:
            with self._listen() as listener:
                port = int(listener.getsockname()[1])
        told = RendezvousStoreInfo.build(
            seat.rank, store, local_addr=self._local_addr, server_port=port, timeout=self._timeout
        )
        return Bootstrap(addr=told.master_addr, port=told.master_port)

    def _keep_servers(self, *round_ids: str) -> None:
        for round_id in [*self._servers]:
            if round_id not in round_ids:
                self._servers.pop(round_id, None)

    def close(self) -> None:
        """Let go of all servers; workers that still use them lose their store."""
        self._servers.clear()
