"""How soon a round is released: the last node comes, and then all have returned.

    python benchmarks/release.py --nodes 16 64 256 1000 [--processes 2] [--json]

All nodes but one wait at the barrier; the last one's call starts the clock, and the last return stops it. Nodes are
handlers in a few processes of this machine, over one server. Beside them runs the floor, in the same processes: as
many clients at a bare barrier of the same server, of two commands each (count yourself in; be woken). Compare rows of
one run only, by their ratio.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from handlers import NoStores
from rdzv_redis import RedisRendezvousBackend, RedisServer

from rdzv_core.runtime.handler import DynamicRendezvousHandler

DEADLINE = 120.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """Median and spread of one quantity."""

    what: str
    nodes: int
    release_ms: float
    worst_ms: float
    storm_ms: float


class Ours:
    """A node of ours."""

    def __init__(self, endpoint: str, run_id: str, index: int, nodes: int) -> None:
        backend = RedisRendezvousBackend.connect(endpoint, run_id)
        self._handler = DynamicRendezvousHandler.from_backend(
            run_id, None, backend, nodes, nodes, local_addr=f"node{index:05}", stores=NoStores()
        )

    def meet(self) -> None:
        if self._handler.next_rendezvous().world_size < 1:
            raise AssertionError("an empty world")

    def close(self) -> None:
        self._handler.leave("the benchmark is over")


class Bare:
    """A client at a bare barrier: no identity, no rank, no liveness."""

    def __init__(self, endpoint: str, run_id: str, _index: int, nodes: int) -> None:
        import redis

        host, port = endpoint.rsplit(":", 1)
        self._client = redis.Redis(host=host, port=int(port))
        self._waiter = redis.Redis(host=host, port=int(port)).pubsub(ignore_subscribe_messages=True)
        self._waiter.subscribe(run_id)
        self._waiter.get_message(timeout=5)
        self._run_id, self._nodes = run_id, nodes

    def meet(self) -> None:
        if self._client.incr(self._run_id) % self._nodes == 0:
            self._client.publish(self._run_id, b"go")
        end = time.monotonic() + DEADLINE
        while self._waiter.get_message(timeout=end - time.monotonic()) is None:
            if time.monotonic() > end:
                raise TimeoutError("nobody opened the barrier")

    def close(self) -> None:
        self._waiter.close()
        self._client.close()


def serve(pipe: Connection, make: Callable[..., Any], endpoint: str, run_id: str, mine: list[int], nodes: int) -> None:
    """One process: meet with the named nodes whenever told to, and say when the last of them returned."""
    threading.stack_size(256 * 1024)
    sys.setswitchinterval(0.1)
    members = {i: make(endpoint, run_id, i, nodes) for i in mine}
    pipe.send("ready")
    pending: list[threading.Thread] = []
    returned: list[float] = []

    def meet(index: int) -> None:
        members[index].meet()
        returned.append(time.monotonic())

    while (order := pipe.recv()) is not None:
        if order == "collect":
            for thread in pending:
                thread.join(DEADLINE)
            pipe.send((len(returned), max(returned)))
            pending.clear()
            returned.clear()
            continue
        started = [threading.Thread(target=meet, args=(i,), daemon=True) for i in mine if i in order]
        pending += started
        for thread in started:
            thread.start()
        pipe.send(time.monotonic())
    for member in members.values():
        member.close()


def measure(what: str, make: Callable[..., Any], endpoint: str, nodes: int, processes: int, rounds: int) -> Row:
    """Rounds in which all come at once, then rounds in which one comes last."""
    context = multiprocessing.get_context("spawn")
    processes = min(processes, nodes)
    shares = [list(range(nodes))[p::processes] for p in range(processes)]
    pipes = []
    for share in shares:
        here, there = context.Pipe()
        run_id = f"release-{what}-{nodes}"
        context.Process(target=serve, args=(there, make, endpoint, run_id, share, nodes), daemon=True).start()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()

    def start(indices: list[int]) -> float:
        wanted = set(indices)
        for pipe in pipes:
            pipe.send(wanted)
        return max(pipe.recv() for pipe in pipes)

    def collect(since: float) -> float:
        for pipe in pipes:
            pipe.send("collect")
        answers = [pipe.recv() for pipe in pipes]
        if sum(count for count, _ in answers) != nodes:
            raise AssertionError(f"{what}: not all of {nodes} nodes returned within {DEADLINE:.0f} s")
        return (max(at for _, at in answers) - since) * 1000

    began = time.monotonic()
    start(list(range(nodes)))
    storm = collect(began)
    releases = []
    for _ in range(rounds):
        start(list(range(nodes - 1)))
        time.sleep(0.5 + nodes / 500)  # all are to be waiting, and the machine quiet
        began = time.monotonic()
        start([nodes - 1])
        releases.append(collect(began))
    for pipe in pipes:
        pipe.send(None)
    return Row(
        what=what,
        nodes=nodes,
        release_ms=statistics.median(releases),
        worst_ms=max(releases),
        storm_ms=storm,
    )


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 256, 1000])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")
    arguments = parser.parse_args()
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    rows = []
    with RedisServer() as server:
        for nodes in arguments.nodes:
            for what, make in (("bare barrier", Bare), ("rdzv-core", Ours)):
                rows.append(measure(what, make, server.endpoint, nodes, arguments.processes, arguments.rounds))
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))
        return
    print(f"{'':14} {'nodes':>6} {'release ms':>11} {'worst ms':>9} {'all at once ms':>15}")
    for row in rows:
        print(f"{row.what:14} {row.nodes:6} {row.release_ms:11.1f} {row.worst_ms:9.1f} {row.storm_ms:15.1f}")


if __name__ == "__main__":
    main()
