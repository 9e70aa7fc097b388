"""Reading the roll: the log's new entries, and the slots; and the work of whoever leads, which keeps the log short.

Every method here is part of a job, and gets the client to use. One reader belongs to one backend; when a job of its is
left behind by an impatient caller, the reader is left behind with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import monotonic
from typing import Any, TypeVar

from rdzv_core.backend import Roster

from .keys import RunKeys
from .roll import LIVE, Entry, Roll, Slot, decode_base, encode_base
from .stores import fits, peek, replace

__all__ = ["Reader"]

LISTENS_PER_TTL = 4
"""How often in the shortest TTL of any record the slots are read, by who wants to know the roster."""
LONGEST_LISTEN = 0.5
"""Seconds between two readings of the slots at most, so that a death is noticed within the second of the contract."""
LISTEN_SHARE = 20
"""A reading of the slots is followed by a pause of at least this many times as long."""
BATCH = 512
"""Keys that are asked for in one command."""
ENTRIES_PER_NODE = 8
"""The log is shortened when it has more entries than this for each node."""
ENTRIES_LEAST = 512
"""And more than this in all."""

_Name = TypeVar("_Name", int, str)


class Reader:
    """The roll of one run, as it is read.

    Args:
        keys: Of the run.
    """

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._start_over()
        self._dropped = 0

    def _start_over(self) -> None:
        self.roll = Roll()
        self._anchor: bytes | None = None
        self._anchor_at = 0
        self._listened = -math.inf
        self._listening_took = 0.0

    @property
    def following(self) -> str:
        """The key that appears with the next entry of the log."""
        return self._keys.entry(self.roll.position + 1)

    @property
    def until_next_listen(self) -> float:
        """Seconds until the slots are to be read again."""
        return self._listened + self._listen_period() - monotonic()

    def read(self, client: Any, *, shorten: bool = False, hint: tuple[str, str, float] | None = None) -> Roster:
        """Bring the roll up to date; one command if nothing has changed, and now and then a reading of all slots.

        Args:
            client: The store.
            shorten: Whether to drop the log's first entries too, if they have become many.
            hint: A node, its stamp, and since when it has been seen with it elsewhere.
        """
        self._catch_up(client)
        if hint is not None:
            self.roll.expect(*hint)
        if hint is not None or self.until_next_listen <= 0:
            self._listen(client)
        if shorten:
            self._shorten(client)
        return self.roll.roster(monotonic())

    def read_all(self, client: Any) -> Roster:
        """Read everything anew."""
        self._start_over()
        self._catch_up(client)
        self._listen(client)
        return self.roll.roster(monotonic())

    # --- the log

    def _catch_up(self, client: Any) -> None:
        """Fold what the log has that I have not."""
        head = int(peek(client, self._keys.log) or 0)
        if head < self.roll.position:
            self._start_over()  # the store lost what I have read
        if head == self.roll.position and not self.roll.holes:
            return
        found = self._entries(client, head)
        if self._anchor is not None and found.get(self._anchor_at) != self._anchor:
            self._start_over()  # what I read last is not there: the log was shortened, or is another one
            found = self._entries(client, head)
        if self.roll.position == 0 and (base := peek(client, self._keys.base)) is not None:
            self.roll.restore(*decode_base(base), monotonic())
        now = monotonic()
        for number in sorted(self.roll.holes | set(range(self.roll.position + 1, head + 1))):
            if number in found:
                self.roll.fold(number, Entry.decode(found[number]), now)
                self._anchor, self._anchor_at = found[number], number
            else:
                self.roll.missed(number, now)

    def _entries(self, client: Any, head: int) -> dict[int, bytes]:
        """The entries that are new to me, and the last that was not."""
        numbers = {*range(self.roll.position + 1, head + 1), *self.roll.holes}
        if self._anchor is not None:
            numbers.add(self._anchor_at)
        return read_many(client, {number: self._keys.entry(number) for number in sorted(numbers)})

    def _shorten(self, client: Any) -> None:
        """Replace the log's first entries by what they amount to, if they have become many."""
        position, entries = self.roll.snapshot()
        if self.roll.holes or position - self._dropped < max(ENTRIES_LEAST, ENTRIES_PER_NODE * len(entries)):
            return
        stored = peek(client, self._keys.base)
        if stored is not None:
            self._dropped = max(self._dropped, decode_base(stored)[0])
            if self._dropped >= position:
                return
        base = fits(encode_base(position, entries), "The log of the run")
        if not replace(client, self._keys.base, stored, base)[1]:
            return
        for number in range(self._dropped + 1, position):  # the last stays, as the sign of this log
            client.delete_key(self._keys.entry(number))
        self._dropped = position - 1

    # --- the slots

    def _listen_period(self) -> float:
        period = min(self.roll.shortest_ttl / LISTENS_PER_TTL, LONGEST_LISTEN)
        return max(period, self._listening_took * LISTEN_SHARE)

    def _listen(self, client: Any) -> None:
        """Read the slots of all that are alive, and mark as dead who was silent for too long."""
        began = monotonic()
        live = self.roll.live
        stored = read_many(client, {node_id: self._keys.node(node_id) for node_id in live})
        now = monotonic()
        self._listened, self._listening_took = now, now - began
        slots: dict[str, Slot] = {}
        for node_id, entry in live.items():
            slot = Slot.decode(stored[node_id]) if node_id in stored else entry.slot.died()
            if slot.kind == LIVE:
                slots[node_id] = slot
                self.roll.beat(node_id, slot.stamp, now)
            else:
                self.roll.gone(node_id, slot, now)
        for node_id in self.roll.silent(began, slots):
            self._mark_dead(client, node_id, slots[node_id], stored[node_id])

    def _mark_dead(self, client: Any, node_id: str, slot: Slot, stored: bytes) -> None:
        dead = slot.died()
        if not replace(client, self._keys.node(node_id), stored, dead.encode())[1]:
            return  # it has spoken after all
        self.roll.gone(node_id, dead, monotonic())
        number = client.add(self._keys.log, 1)
        client.set(self._keys.entry(number), Entry(node_id=node_id, slot=dead).encode())


def read_many(client: Any, keys: Mapping[_Name, str]) -> dict[_Name, bytes]:
    """Read several keys; those that are not there are left out. Three round trips for each :data:`BATCH`."""
    names = list(keys)
    found: dict[_Name, bytes] = {}
    for start in range(0, len(names), BATCH):
        batch = names[start : start + BATCH]
        values = _fetch(client, [keys[name] for name in batch])
        found.update((name, value) for name, value in zip(batch, values, strict=True) if value is not None)
    return found


def _fetch(client: Any, keys: list[str]) -> list[bytes | None]:
    if len(keys) <= 1:
        return [peek(client, key) for key in keys]
    if client.check(keys):
        return [bytes(value) for value in client.multi_get(keys)]
    half = len(keys) // 2  # to ask for a key that is not there would be to wait for it
    return _fetch(client, keys[:half]) + _fetch(client, keys[half:])
