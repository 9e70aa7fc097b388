"""Waiting, in the process that hosts a store, until the other nodes of a run have no use for it any more."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

from rdzv_core.errors import RendezvousError

from .keys import RunKeys
from .roll import LIVE, Entry, Slot, decode_base
from .stores import peek

__all__ = ["await_departures"]

POLL = 0.1
"""Seconds between two looks; the store is in this process."""


def await_departures(server: Any, run_id: str, seconds: float, stop: threading.Event) -> None:
    """Block until no node of the run is alive, by what the store says of it.

    Args:
        server: The store, which this process hosts.
        run_id: The run.
        seconds: Give up after so long.
        stop: Give up when this is set.
    """
    keys = RunKeys(run_id)
    deadline = time.monotonic() + seconds
    seen: dict[str, tuple[bytes, float]] = {}
    with suppress(RuntimeError, RendezvousError):
        while not stop.is_set() and time.monotonic() < deadline:
            now = time.monotonic()
            slots = {node_id: peek(server, keys.node(node_id)) for node_id in _ids(server, keys)}
            seen = {n: seen[n] if n in seen and seen[n][0] == s else (s, now) for n, s in slots.items() if s}
            if not any(_lives(stored, now - since) for stored, since in seen.values()):
                return
            stop.wait(POLL)


def _ids(server: Any, keys: RunKeys) -> set[str]:
    """Every node that has ever been heard of."""
    base = peek(server, keys.base)
    position, entries = (0, ()) if base is None else decode_base(base)
    ids = {entry.node_id for entry in entries}
    for number in range(position + 1, int(peek(server, keys.log) or 0) + 1):
        stored = peek(server, keys.entry(number))
        if stored is not None:
            ids.add(Entry.decode(stored).node_id)
    return ids - {""}


def _lives(stored: bytes, unchanged_for: float) -> bool:
    slot = Slot.decode(stored)
    return slot.kind == LIVE and unchanged_for < slot.ttl
