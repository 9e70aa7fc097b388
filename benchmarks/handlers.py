"""How much one round costs: many handlers in one process, one server; commands and bytes per node, and the time.

    python benchmarks/handlers.py --backend redis --nodes 16 64 256 1000 [--json]

Counts are the same on any machine; no sign of life falls into a round. A Redis server counts its own; for etcd the
clients count requests, and the bytes of their bodies without HTTP's headers. Times are of handlers that share one
interpreter, so at large N they tell of Python's lock and not of the protocol; compare them within one run only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from rdzv_etcd import EtcdServer, EtcdV3RendezvousBackend
from rdzv_redis import RedisRendezvousBackend, RedisServer

from rdzv_core.backend import CoordinationBackend
from rdzv_core.machine.follow import Seat
from rdzv_core.machine.register import Bootstrap
from rdzv_core.runtime.handler import DynamicRendezvousHandler

DEADLINE = 120.0
INTERVAL = 60.0
"""Seconds between signs of life: more than a round takes."""
QUANTITIES = ("commands", "bytes")
"""Each is counted in a run of its own: to be monitored costs a Redis server bytes."""
THE_END = "the-end-of-the-count"
COUNTER = f"""
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as server:
    server.sendall(b"MONITOR\\r\\n")
    lines = server.makefile("rb")
    lines.readline()
    print("ready", flush=True)
    count = 0
    for line in lines:
        if b"{THE_END}" in line:
            break
        count += b" lua] " not in line and b'"HELLO"' not in line
print(count)
"""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measured round."""

    what: str
    nodes: int
    commands_per_node: float
    bytes_per_node: float
    seconds: float


class NoStores:
    """Rank 0's store is torch's business; here nobody opens one."""

    def host(self, seat: Seat) -> Bootstrap:
        return Bootstrap(addr="127.0.0.1", port=1)

    def connect(self, seat: Seat, address: Bootstrap) -> Any:
        return None

    def locate(self) -> str:
        return "127.0.0.1"

    def address_for_workers(self, seat: Seat, store: Any) -> Bootstrap:
        return Bootstrap(addr="127.0.0.1", port=2)

    def close(self) -> None:
        pass


class Server(Protocol):
    """A server of one kind, and what the nodes asked of it."""

    def backend(self, run_id: str) -> CoordinationBackend:
        """A node's backend, with connections of its own."""
        ...

    def counting(self, quantity: str) -> AbstractContextManager[Callable[[], int]]:
        """Count one of :data:`QUANTITIES` from here on, until the function is called."""
        ...


class Redis:
    """Counts what clients ask, and not what scripts do for them."""

    def __init__(self, server: RedisServer) -> None:
        import redis

        self._server = server
        self._client = redis.Redis(host=server.get_host(), port=server.get_port())

    def backend(self, run_id: str) -> CoordinationBackend:
        return RedisRendezvousBackend.connect(self._server.endpoint, run_id)

    @contextmanager
    def counting(self, quantity: str) -> Iterator[Callable[[], int]]:
        if quantity == "bytes":
            before = self._bytes()
            yield lambda: self._bytes() - before
            return
        # MONITOR marks what scripts do; it is read by a process of its own.
        address = (self._server.get_host(), str(self._server.get_port()))
        with subprocess.Popen([sys.executable, "-c", COUNTER, *address], stdout=subprocess.PIPE, text=True) as counter:
            assert counter.stdout is not None
            if counter.stdout.readline() != "ready\n":
                raise RuntimeError("the server does not let itself be monitored")

            def count() -> int:
                self._client.echo(THE_END)
                return int(counter.communicate(timeout=60)[0])

            yield count

    def _bytes(self) -> int:
        info = self._client.info("stats")
        return int(info["total_net_input_bytes"]) + int(info["total_net_output_bytes"])


class Etcd:
    """Sums up what each client counts of itself."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._backends: list[EtcdV3RendezvousBackend] = []

    def backend(self, run_id: str) -> CoordinationBackend:
        backend = EtcdV3RendezvousBackend.connect(self._server.endpoint, run_id, {"read_timeout": 6})
        self._backends.append(backend)
        return backend

    @contextmanager
    def counting(self, quantity: str) -> Iterator[Callable[[], int]]:
        before = self._total(quantity)
        yield lambda: self._total(quantity) - before

    def _total(self, quantity: str) -> int:
        usages = [backend.usage for backend in self._backends]
        return sum(usage.calls if quantity == "commands" else usage.sent + usage.received for usage in usages)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Server]]] = {
    "redis": (RedisServer, Redis),
    "etcd": (EtcdServer, Etcd),
}


def meet(handlers: Sequence[DynamicRendezvousHandler]) -> float:
    """One round; seconds from the first call to the last return."""
    worlds: list[int] = []

    def join(handler: DynamicRendezvousHandler) -> None:
        worlds.append(handler.next_rendezvous().world_size)

    threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, DEADLINE - (time.perf_counter() - began)))
    took = time.perf_counter() - began
    if worlds != [len(handlers)] * len(handlers):
        raise AssertionError(f"{len(worlds)} of {len(handlers)} handlers returned within {DEADLINE:.0f} s")
    return took


def measure(server: Server, nodes: int) -> list[Row]:
    """A first and a later round of ``nodes`` handlers, counted once by commands and once by bytes."""
    counted: dict[str, dict[str, float]] = {"first round": {}, "later round": {}}
    for quantity in QUANTITIES:
        run_id = f"bench-{nodes}-{quantity}"
        handlers = [
            DynamicRendezvousHandler.from_backend(
                run_id,
                None,
                server.backend(run_id),
                nodes,
                nodes,
                local_addr=f"node{i:05}",
                keep_alive_interval=INTERVAL,
                stores=NoStores(),
            )
            for i in range(nodes)
        ]
        for row in counted.values():
            with server.counting(quantity) as count:
                row["seconds"] = meet(handlers)
                row[quantity] = count() / nodes
        for handler in handlers:
            handler.post_leave("the benchmark is over")
        for handler in handlers:
            handler.leave("the benchmark is over")
    return [
        Row(
            what=what,
            nodes=nodes,
            commands_per_node=row["commands"],
            bytes_per_node=row["bytes"],
            seconds=row["seconds"],
        )
        for what, row in counted.items()
    ]


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=sorted(KINDS), default="redis")
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 256, 1000])
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")
    arguments = parser.parse_args()
    threading.stack_size(256 * 1024)
    sys.setswitchinterval(0.1)  # thousands of runnable threads that each ask for the lock every 5 ms stop a machine
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    start, kind = KINDS[arguments.backend]
    with start() as running:
        server = kind(running)
        rows = [row for nodes in arguments.nodes for row in measure(server, nodes)]
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'':12} {'nodes':>6} {'commands/node':>14} {'bytes/node':>11} {'seconds':>8}")
    for row in rows:
        print(
            f"{row.what:12} {row.nodes:6} {row.commands_per_node:14.2f} {row.bytes_per_node:11.0f} {row.seconds:8.3f}"
        )


if __name__ == "__main__":
    main()
