"""Three members are enough: whole handlers meet over a bare register."""

from __future__ import annotations

from typing import Any

from rdzv_core.machine.register import Bootstrap
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.testing.conformance import Waiting, eventually
from rdzv_core.testing.memory import MemoryRegister, MemoryStore

NODES = 4


class NoStores:
    """Stands in for rank 0's TCPStore, which is not what this is about."""

    def host(self, seat: Any) -> Bootstrap:
        return Bootstrap(addr="127.0.0.1", port=1)

    def connect(self, seat: Any, address: Bootstrap) -> object:
        return (address.addr, address.port)

    def close(self) -> None:
        pass


def test_nodes_meet_and_part_over_a_bare_register():
    """A round completes with ranks that are exactly 0 to n-1; who closes it closes it for all."""
    store = MemoryStore()
    registers = [MemoryRegister(store, "job-7") for _ in range(NODES)]
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "job-7", None, register, NODES, NODES, local_addr="127.0.0.1", stores=NoStores()
        )
        for register in registers
    ]
    try:
        joining = [Waiting(handler.next_rendezvous) for handler in handlers]
        infos = [waiting.result(within=20.0) for waiting in joining]
        assert sorted(info.rank for info in infos) == list(range(NODES))
        assert {info.world_size for info in infos} == {NODES}
        assert [handler.num_nodes_waiting() for handler in handlers] == [0] * NODES
        assert sum(register.writes for register in registers) <= 10 * NODES
        handlers[0].set_closed()
        for handler in handlers:
            eventually("everybody sees it closed", handler.is_closed, within=5.0)
    finally:
        for handler in handlers:
            handler.shutdown()
