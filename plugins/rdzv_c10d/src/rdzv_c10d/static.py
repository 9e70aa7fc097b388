"""The static rendezvous: rank and world size are given, and nothing is agreed on.

One round, for nodes that were told who they are; rank 0 hosts the store at the endpoint, and the workers use it too.
Nobody joins later, and a node that is lost is not missed: for that use another backend.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from rdzv_core.api import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from rdzv_core.endpoint import parse_endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousTimeoutError
from rdzv_core.options import read_options

from .options import STATIC_OPTIONS

__all__ = ["StaticTCPRendezvous", "create_rdzv_handler"]


class StaticTCPRendezvous(RendezvousHandler):
    """A node of a group whose ranks are fixed.

    Args:
        master_addr: Where rank 0's store is.
        master_port: Its port.
        rank: The rank of this node.
        world_size: The number of nodes.
        run_id: The name of the run; prefix of every key.
        timeout: Seconds to wait for the other nodes.

    Raises:
        ValueError: There is no such rank in a world of this size, or the port is 0.
    """

    def __init__(
        self, master_addr: str, master_port: int, rank: int, world_size: int, run_id: str, timeout: float
    ) -> None:
        if not 0 <= rank < world_size:
            raise ValueError(f"The rank {rank} is not one of 0 to {world_size - 1}, for {world_size} nodes.")
        if not 0 < master_port < 65536:
            raise ValueError(
                f"The port of the endpoint is {master_port}; the nodes must know it, so it is one from 1 to 65535."
            )
        self.master_addr = master_addr
        self.master_port = master_port
        self.rank = rank
        self.world_size = world_size
        self.run_id = run_id
        self.timeout = timedelta(seconds=timeout)
        self._store: Any = None

    def get_backend(self) -> str:
        """``static``."""
        return "static"

    @property
    def use_agent_store(self) -> bool:
        """True: the workers use the store at the endpoint."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Host or reach the store, and wait until all nodes have; the same answer each time.

        Raises:
            RendezvousTimeoutError: Not all nodes came within the timeout.
            RendezvousConnectionError: The store cannot be hosted here, or not be reached.
        """
        from torch.distributed import PrefixStore

        if self._store is None:
            self._store = self._open()
        bootstrap = RendezvousStoreInfo(self.master_addr, self.master_port)
        return RendezvousInfo(PrefixStore(self.run_id, self._store), self.rank, self.world_size, bootstrap)

    def _open(self) -> Any:
        from torch.distributed import TCPStore

        try:
            return TCPStore(
                self.master_addr,
                self.master_port,
                self.world_size,
                self.rank == 0,
                self.timeout,
                multi_tenant=True,
            )
        except (RuntimeError, ValueError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> Exception:
        said = str(error).partition("\n")[0]
        where = f"{self.master_addr}:{self.master_port}"
        if self.rank == 0 and ("EADDRINUSE" in said or "listen" in said):
            return RendezvousConnectionError(
                f"Rank 0 cannot host the store at {where}: {said}. Another program may have the port; choose another "
                "endpoint on every node.",
                permanent=True,
                run_id=self.run_id,
                backend="static",
            )
        if self.rank == 0:
            return RendezvousTimeoutError(
                f"Rank 0 hosts the store at {where}, and not all of the {self.world_size} nodes came within "
                f"{self.timeout.total_seconds():g} s: {said}. Check that every node has this endpoint, and its own "
                f"rank from 0 to {self.world_size - 1}.",
                run_id=self.run_id,
                backend="static",
            )
        return RendezvousConnectionError(
            f"Rank {self.rank} did not reach rank 0's store at {where} within {self.timeout.total_seconds():g} s: "
            f"{said}. Check that the node of rank 0 runs, and that the endpoint is its address.",
            run_id=self.run_id,
            backend="static",
        )

    def is_closed(self) -> bool:
        """False: there is nothing to close."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is nothing to close."""

    def num_nodes_waiting(self) -> int:
        """0: nobody is waited for."""
        return 0

    def get_run_id(self) -> str:
        """The name of the run."""
        return self.run_id

    def shutdown(self) -> bool:
        """Do nothing, successfully; the store stays for the workers."""
        return True


def create_rdzv_handler(params: RendezvousParameters) -> StaticTCPRendezvous:
    """Make a static handler from a launcher's parameters; torch's name for it.

    Raises:
        ValueError: The endpoint or its port, or the rank, is missing; or an option is not understood.
    """
    options = read_options(STATIC_OPTIONS, config=params.config, environ=os.environ)
    if options["rank"] is None:
        raise ValueError("The static rendezvous needs the rank of this node: --node-rank, or the option rank.")
    endpoint = parse_endpoint(params.endpoint, default_port=0)
    if endpoint.port == 0:
        raise ValueError(
            f"The endpoint '{endpoint}' of the static rendezvous has no port, which all nodes must know: "
            "--master-addr and --master-port, or --rdzv-endpoint=HOST:PORT."
        )
    return StaticTCPRendezvous(
        endpoint.host, endpoint.port, options["rank"], params.max_nodes, params.run_id, options["timeout"]
    )
