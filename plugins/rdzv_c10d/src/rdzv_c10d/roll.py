"""Who is there: slots in which nodes beat, and a log of comings and goings that tells where to look.

Each node has a *slot*, a key that it alone writes, by compare-and-set: its sequence number, its arrival, and a beat
that every sign of life raises. Each announce and withdraw also adds one *entry* to the log: a counter gives the entry
its number, which is the order of arrival, and the entry's own key wakes whoever waits for the next.

A reader folds the log entry by entry, and then watches the beats. A slot that it has seen unchanged for the whole time
to live of its record, on its own clock, it *marks as dead* by compare-and-set: should the node have beaten meanwhile
that fails, and the node lives; else the node's next sign of life fails, and it learns that it is not known. So
liveness is decided once and for all, though no two readers' clocks agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rdzv_core.backend import Roster, RosterEntry
from rdzv_core.errors import RendezvousStateError

from .board import word

__all__ = ["DEAD", "LEFT", "LIVE", "Entry", "Roll", "Slot", "decode_base", "encode_base", "void"]

LIVE, LEFT, DEAD, VOID = "live", "left", "dead", "void"

HOLE_PATIENCE = 60.0
"""Seconds for the writer of an entry to write it, after it took the number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What a node's slot says."""

    kind: str
    """``live``, ``left`` (has withdrawn) or ``dead`` (was silent for too long)."""
    seq: int
    arrival: int
    ttl: float
    word: str
    """Random; new with each announce."""
    turn: int
    """Counts what became of the node: announced, withdrawn, dead. The later turn is what holds."""
    beat: int = 0

    @property
    def stamp(self) -> str:
        """Differs from one sign of life to the next."""
        return f"{self.word}.{self.beat}"

    def refuses(self, seq: int, kind: str) -> bool:
        """Whether an announce or a withdraw with this ``seq`` comes too late for this slot."""
        if self.kind == DEAD:
            return False
        return seq < self.seq or (seq == self.seq and self.kind == LEFT and kind == LIVE)

    def died(self) -> Slot:
        """After the node was silent for too long."""
        return replace(self, kind=DEAD, turn=self.turn + 1)

    def beaten(self, ttl: float) -> Slot:
        """After one more sign of life."""
        return replace(self, beat=self.beat + 1, ttl=ttl)

    def encode(self) -> bytes:
        """The slot as bytes."""
        return f"{self.kind} {self.seq} {self.arrival} {self.ttl!r} {self.word} {self.turn} {self.beat}".encode()

    @classmethod
    def decode(cls, stored: bytes) -> Slot:
        """The slot that these bytes are.

        Raises:
            RendezvousStateError: They are none.
        """
        try:
            kind, seq, arrival, ttl, word_, turn, beat = stored.decode().split(" ")
            return cls(
                kind=kind,
                seq=int(seq),
                arrival=int(arrival),
                ttl=float(ttl),
                word=word_,
                turn=int(turn),
                beat=int(beat),
            )
        except ValueError as error:
            raise RendezvousStateError(
                f"The slot of a node was not written by rdzv-c10d: it begins with {stored[:32]!r}.", backend="c10d"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log."""

    node_id: str
    slot: Slot
    record: bytes = b""

    def encode(self) -> bytes:
        """The entry as bytes: its slot, the node's id, and the record as it is."""
        return self.slot.encode() + b"\n" + json.dumps(self.node_id).encode() + b"\n" + self.record

    @classmethod
    def decode(cls, stored: bytes) -> Entry:
        """The entry that these bytes are.

        Raises:
            RendezvousStateError: They are none.
        """
        slot, _, rest = stored.partition(b"\n")
        name, _, record = rest.partition(b"\n")
        try:
            return cls(node_id=str(json.loads(name)), slot=Slot.decode(slot), record=record)
        except ValueError as error:
            raise RendezvousStateError(
                f"An entry of the log was not written by rdzv-c10d: it begins with {stored[:32]!r}.", backend="c10d"
            ) from error


def void() -> bytes:
    """An entry that says nothing; it fills a number that was taken for nothing."""
    return Entry(node_id="", slot=Slot(kind=VOID, seq=0, arrival=0, ttl=0.0, word=word(), turn=0)).encode()


class Roll:
    """The log, folded, as one reader has it. No I/O, no lock and no clock: whoever calls brings them.

    Attributes:
        position: Entries up to this number have been folded, or are in ``holes``.
        holes: Numbers up to the position whose entries were not there yet.
    """

    def __init__(self) -> None:
        self.position = 0
        self.holes: set[int] = set()
        self._missed_since: dict[int, float] = {}
        self._incarnation = word()
        self._changes = 0
        self._latest: dict[str, Entry] = {}
        self._since: dict[str, float] = {}
        self._beats: dict[str, str] = {}
        self._roster: Roster | None = None

    # --- what is known

    @property
    def live(self) -> dict[str, Entry]:
        """The latest entry of each node that counts as alive."""
        return {node_id: entry for node_id, entry in self._latest.items() if entry.slot.kind == LIVE}

    @property
    def known(self) -> tuple[str, ...]:
        """Every id that was ever heard of and not dropped."""
        return tuple(self._latest)

    @property
    def shortest_ttl(self) -> float:
        """The shortest time to live of any live record; infinity if there is none."""
        return min((entry.slot.ttl for entry in self.live.values()), default=math.inf)

    def roster(self, now: float) -> Roster:
        """The live records, and who has left within its TTL."""
        self._bury(now)
        if self._roster is None:
            live = sorted(self.live.items(), key=lambda item: item[1].slot.arrival)
            self._roster = Roster(
                version=(self._incarnation, self._changes),
                records=tuple(
                    RosterEntry(node_id=node_id, arrival=entry.slot.arrival, record=entry.record)
                    for node_id, entry in live
                ),
                withdrawn=frozenset(n for n, entry in self._latest.items() if entry.slot.kind == LEFT),
            )
        return self._roster

    # --- folding

    def fold(self, number: int, entry: Entry, now: float) -> None:
        """Take one entry into account. Order does not matter: of one node's entries the latest holds."""
        self.position = max(self.position, number)
        self.holes.discard(number)
        self._missed_since.pop(number, None)
        if entry.slot.kind == VOID:
            return
        known = self._latest.get(entry.node_id)
        if known is not None and entry.slot.turn <= known.slot.turn:
            return
        self._latest[entry.node_id] = entry
        if known is None or known.slot.word != entry.slot.word:
            self._see(entry.node_id, entry.slot.stamp, now)
        self._changed()

    def missed(self, number: int, now: float) -> None:
        """An entry is not there: its writer is about to write it, or has died; then it is given up after a while."""
        self.position = max(self.position, number)
        if now - self._missed_since.setdefault(number, now) < HOLE_PATIENCE:
            self.holes.add(number)
        else:
            self.holes.discard(number)

    # --- watching

    def beat(self, node_id: str, stamp: str, now: float) -> None:
        """The slot of a live node was seen with this stamp."""
        if self._beats.get(node_id) != stamp:
            self._see(node_id, stamp, now)

    def expect(self, node_id: str, stamp: str, since: float) -> None:
        """The node is known to have had this stamp since then, from what it last wrote elsewhere; say so once."""
        known = self._beats.get(node_id)
        if known is not None and known.partition(".")[0] == stamp.partition(".")[0]:
            self._see(node_id, stamp, since)

    def silent(self, began: float, slots: Mapping[str, Slot]) -> list[str]:
        """The nodes whose slots, in a read that began then, had been unchanged for their whole time to live."""
        return [node_id for node_id, slot in slots.items() if began - self._since.get(node_id, math.inf) >= slot.ttl]

    def gone(self, node_id: str, slot: Slot, now: float) -> None:
        """The slot of a node that was live says that it is no longer."""
        self._latest[node_id] = Entry(node_id=node_id, slot=slot)
        self._see(node_id, slot.stamp, now)
        self._changed()

    def _bury(self, now: float) -> None:
        """Forget those who left, or died, a TTL ago."""
        for node_id, entry in tuple(self._latest.items()):
            if entry.slot.kind != LIVE and now - self._since.get(node_id, now) >= entry.slot.ttl:
                del self._latest[node_id]
                self._since.pop(node_id, None)
                self._beats.pop(node_id, None)
                if entry.slot.kind == LEFT:
                    self._changed()

    def _see(self, node_id: str, stamp: str, at: float) -> None:
        self._beats[node_id] = stamp
        self._since[node_id] = at

    def _changed(self) -> None:
        self._changes += 1
        self._roster = None

    # --- dropping the log's first entries

    def snapshot(self) -> tuple[int, tuple[Entry, ...]]:
        """What the log amounts to, up to the position."""
        return self.position, tuple(self._latest.values())

    def restore(self, position: int, entries: Iterable[Entry], now: float) -> None:
        """Begin anew from what the log amounted to."""
        self.position = position
        self.holes = {number for number in self.holes if number > position}
        for entry in entries:
            self.fold(position, entry, now)


def encode_base(position: int, entries: Iterable[Entry]) -> bytes:
    """The first entries of a log, as what they amount to."""
    parts = [entry.encode() for entry in entries]
    head = json.dumps({"v": 1, "position": position, "sizes": [len(part) for part in parts], "write": word()})
    return head.encode() + b"\n" + b"".join(parts)


def decode_base(stored: bytes) -> tuple[int, tuple[Entry, ...]]:
    """What :func:`encode_base` made bytes of.

    Raises:
        RendezvousStateError: They are not of that form.
    """
    head, _, rest = stored.partition(b"\n")
    try:
        said = json.loads(head)
        entries = []
        at = 0
        for size in said["sizes"]:
            entries.append(Entry.decode(rest[at : at + size]))
            at += size
        return int(said["position"]), tuple(entries)
    except (ValueError, TypeError, KeyError) as error:
        raise RendezvousStateError(
            f"The base of the log was not written by rdzv-c10d: it begins with {stored[:32]!r}.", backend="c10d"
        ) from error
