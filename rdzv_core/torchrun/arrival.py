"""The members of a round wait for one another before torch's agents talk.

An agent that has its round exchanges roles with all the others over the round's store, on its main thread, and its
launcher ends if one of them is silent: a member that died on its way, or that cannot reach the store, would end the job
for all. So nobody returns to its agent before all members have reached the store; and while it waits it can be told
that the round is not to be. Whether it is to be is one verdict for all, by compare-and-set: whoever is last to come, or
first to give up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import torch.distributed as dist

from rdzv_core.tcp_store import await_keys
from rdzv_core.torchrun.aside import Aside

__all__ = ["all_arrive"]

COUNT, VERDICT = "rdzv/arrived", "rdzv/verdict"
ALL_CAME, GIVEN_UP = b"all came", b"given up"

VERDICT_SECONDS = 10.0
"""Who gives up may find that all have come; if the store has not said so by then, its host has frozen."""


def all_arrive(store: Any, world: int, stands: Callable[[], bool], timeout: float) -> bool:
    """Tell the others that this node has come, and wait for them.

    Args:
        store: The store of the round.
        world: How many members are to come.
        stands: Whether there is still reason to wait.
        timeout: Seconds to wait at most.

    Returns:
        Whether all have come. If not, the round is lost, for all of them: this node is to join the next.
    """

    def arrive(told_to_end: threading.Event) -> bool:
        if store.add(COUNT, 1) == world:
            return _verdict(store, ALL_CAME)
        if await_keys(store, [VERDICT], told_to_end.wait):
            return bytes(store.get(VERDICT)) == ALL_CAME
        return _verdict(store, GIVEN_UP)

    deadline = monotonic() + timeout
    try:
        return bool(Aside(arrive).result(lambda: stands() and monotonic() < deadline, patience=VERDICT_SECONDS))
    except dist.DistError:
        return False  # rank 0 has gone, and its store with it


def _verdict(store: Any, mine: bytes) -> bool:
    """Give the verdict if nobody has before; whether it is that all have come."""
    verdict = bytes(store.compare_set(VERDICT, "", mine.decode()))
    store.set(VERDICT, verdict.decode())  # nothing new; but a TCPStore without libuv wakes nobody for the other call
    return verdict == ALL_CAME
