"""The members of a round wait for one another before torch's agents talk.

An agent that has its round exchanges roles with all the others over the round's store, on its main thread, and its
launcher ends if one of them is silent: a member that died on its way, or that cannot reach the store, would end the job
for all. So nobody returns to its agent before all members have reached the store; and while it waits it can be told
that the round is not to be.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic
from typing import Any

import torch.distributed as dist

__all__ = ["all_arrive"]

COUNT, ALL = "rdzv/arrived", "rdzv/all_arrived"
SLICE = timedelta(seconds=0.25)
"""How long to wait before asking whether the round still stands; the last to come wakes all at once."""


def all_arrive(store: Any, world: int, stands: Callable[[], bool], timeout: float) -> bool:
    """Tell the others that this node has come, and wait for them.

    Args:
        store: The store of the round.
        world: How many members are to come.
        stands: Whether there is still reason to wait.
        timeout: Seconds to wait at most.

    Returns:
        Whether all have come. If not, the round is lost for this node: it is to join the next.
    """
    deadline = monotonic() + timeout
    try:
        if store.add(COUNT, 1) == world:
            store.set(ALL, b"")
        while True:
            try:
                store.wait([ALL], SLICE)
            except dist.DistStoreError:
                if not stands() or monotonic() >= deadline:
                    return False
            else:
                return True
    except dist.DistNetworkError:
        return False  # rank 0 has gone, and its store with it
