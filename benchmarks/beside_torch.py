"""Ours and torch's, side by side on the same kind of store: how long until all nodes are released.

    python benchmarks/beside_torch.py --nodes 16 64 128 [--processes 2] [--rounds 3] [--json]

Nodes are handlers, each in a thread and with connections of its own, in a few processes of this machine; the store is
a TCPStore in one more. All join at the same moment. Connections are made before the clock starts. Ratios are of one
run, ours and torch's in turn; times tell of this machine, where every node shares a few cores.

A TCPStore asks DNS for names at every connect, and a lost answer costs 5 s. So where the system lets us, all of this
happens in a network namespace of its own, in which nobody answers, at once; else the questions are kept short.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import logging
import multiprocessing
import os
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any

from rdzv_c10d import C10dServer

DEADLINE = 180.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """One size of one kind of handler."""

    what: str
    nodes: int
    first_s: float | None
    """Seconds from the first call to the last return, of the first round; None if not all met in time."""
    later_s: float | None
    """The same, median of the rounds after it; None if one of them failed."""


def ours(endpoint: str, run_id: str, nodes: int) -> Any:
    """A handler of ours, connected."""
    from rdzv_c10d import create_handler

    from rdzv_core import RendezvousParameters

    handler = create_handler(
        RendezvousParameters("c10d", endpoint, run_id, nodes, nodes, "127.0.0.1", is_host=False, join_timeout=DEADLINE)
    )
    handler.is_closed()
    return handler


def torchs(endpoint: str, run_id: str, nodes: int) -> Any:
    """A handler of torch's, connected."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    parameters = RendezvousParameters(
        "c10d", endpoint, run_id, nodes, nodes, "127.0.0.1", is_host=False, join_timeout=DEADLINE
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


KINDS: dict[str, Callable[[str, str, int], Any]] = {"ours": ours, "torch": torchs}


def some_nodes(pipe: Connection, what: str, endpoint: str, run_id: str, nodes: int, mine: int) -> None:
    """A process with some of the nodes: makes them, and lets them join each time it is told to."""
    logging.disable(logging.WARNING)  # that the endpoint is on loopback is no news
    handlers = [KINDS[what](endpoint, run_id, nodes) for _ in range(mine)]
    pipe.send("ready")
    while pipe.recv():
        worlds: list[int] = []

        def join(handler: Any, worlds: list[int] = worlds) -> None:
            worlds.append(handler.next_rendezvous().world_size)

        threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        pipe.send((time.monotonic(), worlds == [nodes] * mine))
    os._exit(0)  # a thousand threads need no farewell


def measure(what: str, endpoint: str, nodes: int, processes: int, rounds: int) -> Row:
    """Let ``nodes`` meet a few times."""
    context = multiprocessing.get_context("spawn")
    run_id = f"{what}-{nodes}-{time.monotonic_ns()}"
    pipes, children = [], []
    for index in range(processes):
        mine = nodes // processes + (index < nodes % processes)
        here, there = context.Pipe()
        child = context.Process(target=some_nodes, args=(there, what, endpoint, run_id, nodes, mine), daemon=True)
        child.start()
        pipes.append(here)
        children.append(child)
    try:
        for pipe in pipes:
            pipe.recv()
        took = []
        for _ in range(1 + rounds):
            began = time.monotonic()
            for pipe in pipes:
                pipe.send(True)
            answers = [pipe.recv() if pipe.poll(DEADLINE) else (0.0, False) for pipe in pipes]
            if not all(met for _, met in answers):
                break
            took.append(max(ended for ended, _ in answers) - began)
        for pipe in pipes:
            pipe.send(False)
        for child in children:
            child.join(10)
    finally:
        for child in children:
            child.kill()
    later = statistics.median(took[1:]) if len(took) == 1 + rounds else None
    return Row(what=what, nodes=nodes, first_s=took[0] if took else None, later_s=later)


def seconds(value: float | None) -> str:
    """For people."""
    return f"not within {DEADLINE:g} s" if value is None else f"{value:.3f} s"


def leave_the_network() -> bool:
    """Move this process, and those it will start, to where only loopback is; whether the system let us."""
    new_user, new_net = 0x10000000, 0x40000000  # CLONE_NEWUSER, CLONE_NEWNET
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(new_net) and libc.unshare(new_user | new_net):
        return False
    set_flags, up = 0x8914, 0x1  # SIOCSIFFLAGS, IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, set_flags, struct.pack("16sH14x", b"lo", up))
    return True


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, nargs="+", default=[16, 64, 128])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3, help="rounds after the first")
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")
    arguments = parser.parse_args()
    if not leave_the_network():
        os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")  # read by the C library
    rows = []
    with C10dServer() as server:
        for nodes in arguments.nodes:
            for what in arguments.kinds:
                rows.append(measure(what, server.endpoint, nodes, arguments.processes, arguments.rounds))
                if not arguments.json:
                    row = rows[-1]
                    print(
                        f"{row.what:8} {row.nodes:6} nodes  first {seconds(row.first_s)}, later {seconds(row.later_s)}"
                    )
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows]))


if __name__ == "__main__":
    main()
