"""Level 2 over a TCPStore, with what a TCPStore has: compare-and-set, counters, and waiting for a key to appear.

Per node and round these are seven commands, whatever the number of nodes: four to announce (take a number in the log,
write the slot, write the entry, read the board), and one each to be woken, to read the board, and to read a page. A
sign of life is two. Only the leader reads more: the log's new entries, and all slots a few times per TTL.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from rdzv_core.backend import CoordinationBackend, Pulse, Roster, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from .backend import C10dRendezvousBackend
from .board import EMPTY, GROUPS_KEPT, Board, Seen, decode, encode, word
from .keys import RunKeys
from .link import Closed, Link
from .roll import DEAD, LEFT, LIVE, Entry, Roll, Slot, decode_base, encode_base, void
from .source import GivenStore, Source
from .stores import fits

__all__ = ["CALL_TIMEOUT", "C10dCoordinationBackend"]

CALL_TIMEOUT = 2.0
"""Seconds that one call may take."""

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

_PAGE = b"page "
_Name = TypeVar("_Name", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """One read of the board: its bytes, and what they mean to me now."""

    stored: bytes | None
    raw: Board
    board: Board
    """Without what has expired."""


class C10dCoordinationBackend(C10dRendezvousBackend, CoordinationBackend):
    """One run in one TCPStore.

    Args:
        store: A TCPStore, or a PrefixStore of one. Who made it keeps it; it must outlive this backend.
        run_id: The run; any text but the empty one.
        call_timeout: Seconds that one call may take.

    Raises:
        ValueError: The run id is empty.
    """

    def __init__(self, store: Any, run_id: str, *, call_timeout: float = CALL_TIMEOUT) -> None:
        self._begin(GivenStore(store), run_id, call_timeout)

    @classmethod
    def at(cls, source: Source, run_id: str, *, call_timeout: float = CALL_TIMEOUT) -> C10dCoordinationBackend:
        """Make a backend that gets its clients from ``source``, and closes it in the end; connects when first used."""
        backend: C10dCoordinationBackend = object.__new__(cls)
        backend._begin(source, run_id, call_timeout)
        return backend

    def _begin(self, source: Source, run_id: str, call_timeout: float) -> None:
        self._keys = RunKeys(run_id)
        self._run_id = run_id
        self._source = source
        self._link = Link(source, call_timeout)
        self._board_bell = self._link.bell()
        self._roll_bell = self._link.bell()
        self._lock = threading.Lock()
        self._seen = Seen()
        self._sight = _Sight(stored=None, raw=EMPTY, board=EMPTY)
        self._slots: dict[str, tuple[Slot, bytes]] = {}
        self._beaten: dict[str, float] = {}
        self._roll_lock = threading.Lock()
        self._roll = Roll()
        self._anchor: bytes | None = None
        self._anchor_at = 0
        self._dropped = 0
        self._silent_leader: tuple[str, str, float] | None = None
        self._listened = -math.inf
        self._listening_took = 0.0

    def __repr__(self) -> str:
        return f"<C10dCoordinationBackend run {self._run_id!r} in {self._source.where}>"

    # --- the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One command."""
        return _content(self._look("read the register").board)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. One command, unless a leader renewed its lease meanwhile."""
        mine = word()

        def edit(board: Board) -> Board | None:
            return board.written(bytes(state), mine) if _same(board.token, token) else None

        board = self._change("write the register", edit)
        held = _content(board)
        return None if held is None else (*held, board.token == mine)

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs. One command per wake-up, and one more to read."""
        end = monotonic() + timeout
        given_up: int | None = None
        try:
            while True:
                board = self._look("wait for the register").board
                if not _same(board.token, token):
                    return _content(board)
                if given_up not in (None, board.leases_given_up):
                    return None
                given_up = board.leases_given_up
                left = end - monotonic()
                if left <= 0:
                    return None
                self._board_bell.wait(self._keys.news(board.news + 1), left)
        except Closed:
            return None

    # --- signs of life

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record. Four commands."""
        what = "announce a node"
        number = int(self._link.call(what, "add", self._keys.log, 1, writes=True))

        def edit(slot: Slot | None) -> Slot | None:
            if slot is not None and (seq < slot.seq or (slot.kind == LEFT and seq == slot.seq)) and slot.kind != DEAD:
                return None
            lives = slot is not None and slot.kind == LIVE and not self._is_over(node_id, slot)
            arrival = slot.arrival if slot is not None and lives else number
            return Slot(kind=LIVE, seq=seq, arrival=arrival, ttl=ttl, word=word(), turn=_turn_after(slot))

        slot = self._write_slot(what, node_id, edit)
        entry = void() if slot is None else Entry(node_id=node_id, slot=slot, record=bytes(record)).encode()
        self._link.call(what, "set", self._keys.entry(number), fits(entry, "The record of a node"), writes=True)
        return self._answer(what, node_id, slot, ttl, lead=lead)

    def pulse(
        self,
        node_id: str,
        seq: int,
        ttl: float,
        *,
        lead: bool = True,
        keep: float = 0.0,
        group: str = "",  # noqa: ARG002 - all pages of the run stay as long as the register
    ) -> Pulse:
        """Renew the node's record, and its lease. Two commands."""
        what = "give a sign of life"

        def edit(slot: Slot | None) -> Slot | None:
            if slot is None or slot.kind != LIVE or slot.seq != seq or self._is_over(node_id, slot):
                return None
            return slot.beaten(ttl)

        return self._answer(what, node_id, self._write_slot(what, node_id, edit), ttl, lead=lead, keep=keep)

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Replace the record by a tombstone. Four commands."""
        what = "withdraw a node"
        number = int(self._link.call(what, "add", self._keys.log, 1, writes=True))

        def edit(slot: Slot | None) -> Slot | None:
            if slot is not None and seq < slot.seq and slot.kind != DEAD:
                return None
            arrival = number if slot is None else slot.arrival
            return Slot(kind=LEFT, seq=seq, arrival=arrival, ttl=ttl, word=word(), turn=_turn_after(slot))

        slot = self._write_slot(what, node_id, edit)
        entry = void() if slot is None else Entry(node_id=node_id, slot=slot).encode()
        self._link.call(what, "set", self._keys.entry(number), entry, writes=True)

        def leave(board: Board) -> Board | None:
            left = board
            if slot is not None and board.lease is not None and board.lease.owner == node_id:
                left = left.given_up()
            if slot is not None and keep is not None and board.token is not None:
                left = left.staying(keep)
            return None if left is board else left

        self._change(what, leave)
        if keep is not None:
            self._source.linger(keep)

    def _answer(
        self, what: str, node_id: str, slot: Slot | None, ttl: float, *, lead: bool, keep: float = 0.0
    ) -> Pulse:
        """Take, keep or give up the lease, and say how things are."""

        def edit(board: Board) -> Board | None:
            if slot is None:
                return None
            holds = board.lease is not None and board.lease.owner == node_id
            if holds and not lead:
                return board.given_up()
            if not lead or not (holds or board.lease is None):
                return None
            led = board.led(node_id, ttl, slot.stamp)
            if keep > 0 and board.token is not None and self._left_of_keep(board) < keep:
                led = led.staying(keep)
            return led

        board = self._change(what, edit)
        lease = board.lease
        with self._lock:
            since = self._seen.since("lease")
        left = 0.0 if lease is None or since is None else max(0.0, lease.ttl - (monotonic() - since[1]))
        known = slot is not None
        return Pulse(
            known=known,
            leads=known and lease is not None and lease.owner == node_id,
            lease_left=left,
            token=board.token,
        )

    def _left_of_keep(self, board: Board) -> float:
        with self._lock:
            since = self._seen.since("kept")
        if board.keep is None or since is None:
            return 0.0
        return board.keep - (monotonic() - since[1])

    def _is_over(self, node_id: str, slot: Slot) -> bool:
        """By my own clock the last beat of mine is a TTL ago; others hold me dead, or are about to."""
        beaten = self._beaten.get(node_id)
        return beaten is not None and monotonic() - beaten >= slot.ttl

    def _write_slot(self, what: str, node_id: str, edit: Callable[[Slot | None], Slot | None]) -> Slot | None:
        """Bring an edit into a slot; None if the edit refuses what is there."""
        key = self._keys.node(node_id)
        deadline = monotonic() + self._link.call_timeout
        slot, stored = self._slots.get(node_id, (None, None))
        fresh = False
        while True:
            edited = edit(slot)
            if edited is None and fresh:
                return None
            if edited is None:
                stored = self._link.peek(what, key)
            else:
                began = monotonic()
                stored, did = self._link.replace(what, key, stored, edited.encode())
                if did:
                    self._slots[node_id] = edited, edited.encode()
                    self._beaten[node_id] = began
                    return edited
            fresh = True
            slot = None if stored is None else Slot.decode(stored)
            if stored is None or slot is None:
                self._slots.pop(node_id, None)
            else:
                self._slots[node_id] = slot, stored
            self._check_patience(what, deadline)

    # --- the roster

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records; one command if nothing has changed, and now and then a reading of all slots."""
        end = monotonic() + timeout
        try:
            while True:
                with self._roll_lock:
                    self._catch_up()
                    self._listen()
                    roster = self._roll.roster(monotonic())
                    following = self._keys.entry(self._roll.position + 1)
                    pause = self._listened + self._listen_period() - monotonic()
                    if timeout > 0:
                        self._shorten()
                if seen is None or roster.version != seen:
                    return roster
                left = end - monotonic()
                if left <= 0:
                    return None
                self._roll_bell.wait(following, min(left, max(pause, 0.01)))
        except Closed:
            return None

    def _catch_up(self) -> None:
        """Fold what the log has that I have not."""
        what = "read the roster"
        stored = self._link.peek(what, self._keys.log)
        head = 0 if stored is None else int(stored)
        if head < self._roll.position:
            self._start_over()
        if head == self._roll.position and not self._roll.holes:
            return
        found = self._entries(what, head)
        if self._anchor is not None and self._anchor not in found.values():
            self._start_over()  # what I had read last is not there: the log was shortened, or is another one
            found = self._entries(what, head)
        if self._roll.position == 0 and (base := self._link.peek(what, self._keys.base)) is not None:
            self._roll.restore(*decode_base(base), monotonic())
        now = monotonic()
        for number in sorted(self._roll.holes | set(range(self._roll.position + 1, head + 1))):
            if number in found:
                self._roll.fold(number, Entry.decode(found[number]), now)
                self._anchor = found[number]
                self._anchor_at = number
            else:
                self._roll.missed(number)

    def _start_over(self) -> None:
        self._roll = Roll()
        self._anchor = None
        self._listened = -math.inf

    def _entries(self, what: str, head: int) -> dict[int, bytes]:
        """The entries that are new to me, and the last that was not."""
        numbers = {*range(self._roll.position + 1, head + 1), *self._roll.holes}
        if self._anchor is not None:
            numbers.add(self._anchor_at)
        return self._read_many(what, {number: self._keys.entry(number) for number in sorted(numbers)})

    def _listen_period(self) -> float:
        period = min(self._roll.shortest_ttl / LISTENS_PER_TTL, LONGEST_LISTEN)
        return max(period, self._listening_took * LISTEN_SHARE)

    def _listen(self) -> None:
        """Read the slots of all that are alive, if it is time, and mark as dead who was silent for too long."""
        what = "read the roster"
        began = monotonic()
        if began - self._listened < self._listen_period():
            return
        live = self._roll.live
        stored = self._read_many(what, {node_id: self._keys.node(node_id) for node_id in live})
        now = monotonic()
        self._listened, self._listening_took = now, now - began
        with self._lock:
            silent_leader, self._silent_leader = self._silent_leader, None
        if silent_leader is not None:
            self._roll.expect(*silent_leader)
        slots: dict[str, Slot] = {}
        for node_id, entry in live.items():
            if node_id not in stored:
                self._roll.gone(node_id, entry.slot.died(), now)
                continue
            slot = Slot.decode(stored[node_id])
            if slot.kind == LIVE:
                slots[node_id] = slot
                self._roll.beat(node_id, slot.stamp, now)
            else:
                self._roll.gone(node_id, slot, now)
        for node_id in self._roll.silent(began, slots):
            self._mark_dead(what, node_id, slots[node_id], stored[node_id])

    def _mark_dead(self, what: str, node_id: str, slot: Slot, stored: bytes) -> None:
        dead = slot.died()
        _, did = self._link.replace(what, self._keys.node(node_id), stored, dead.encode())
        if not did:
            return  # it has spoken after all
        self._roll.gone(node_id, dead, monotonic())
        number = int(self._link.call(what, "add", self._keys.log, 1, writes=True))
        self._link.call(what, "set", self._keys.entry(number), Entry(node_id=node_id, slot=dead).encode(), writes=True)

    def _shorten(self) -> None:
        """Replace the log's first entries by what they amount to, if they have become many. The leader's work."""
        what = "shorten the log"
        position, entries = self._roll.snapshot()
        if self._roll.holes or position - self._dropped < max(ENTRIES_LEAST, ENTRIES_PER_NODE * len(entries)):
            return
        stored = self._link.peek(what, self._keys.base)
        if stored is not None:
            self._dropped = max(self._dropped, decode_base(stored)[0])
            if self._dropped >= position:
                return
        base = fits(encode_base(position, entries), "The log of the run")
        if not self._link.replace(what, self._keys.base, stored, base)[1]:
            return
        for number in range(self._dropped + 1, position):  # the last stays, as the sign of this log
            self._link.call(what, "delete_key", self._keys.entry(number), writes=True)
        self._dropped = position - 1

    # --- pages, and the end

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of a group. One command each, and one to name the group on the board."""
        what = "publish the members of a round"
        for index, page in enumerate(pages):
            self._link.replace(what, self._keys.page(group, index), None, fits(_PAGE + bytes(page), "A page"))

        def edit(board: Board) -> Board | None:
            held = board if (group, len(pages)) in board.groups else board.holding(group, len(pages))
            if board.keep is not None and self._left_of_keep(board) < keep:
                held = held.staying(keep)
            if len(held.groups) > GROUPS_KEPT:
                held = replace(held, groups=held.groups[-GROUPS_KEPT:])
            return None if held is board else held

        self._change(what, edit)

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page, or None. One command."""
        what = "read who is in a round"
        with self._lock:
            board = self._sight.raw
        if board.keep is not None and self._left_of_keep(board) <= 0:
            board = self._look(what).board
            if group not in dict(board.groups):
                return None
        stored = self._link.peek(what, self._keys.page(group, index))
        return None if stored is None else stored.removeprefix(_PAGE)

    def forget(self) -> None:
        """Drop every key of the run."""
        what = "forget the run"
        with self._roll_lock:
            self._start_over()
            self._catch_up()
            self._listened = -math.inf
            self._listen()
            live = self._roll.live
            if live:
                named = ", ".join(sorted(live)[:8])
                raise RendezvousStateError(
                    f"The run {self._run_id!r} cannot be forgotten: {len(live)} of its nodes are alive ({named}). Stop "
                    "them first, or wait for one TTL after they died.",
                    run_id=self._run_id,
                    backend=self.name,
                )
            board, keys = self._look(what).raw, self._keys
            gone = [keys.page(group, index) for group, size in board.groups for index in range(size)]
            gone += [keys.node(node_id) for node_id in self._roll.known]
            gone += [keys.entry(number) for number in range(1, self._roll.position + 1)]
            gone += [keys.news(number) for number in range(board.news + 1)]
            for key in (*gone, keys.base, keys.log, keys.board):
                self._link.call(what, "delete_key", key, writes=True)
            self._start_over()
        self._slots.clear()
        self._beaten.clear()

    def close(self) -> None:
        """Let go of connections and threads, and wake blocked waits."""
        self._link.close()

    # --- looking at the board, and changing it

    def _look(self, what: str) -> _Sight:
        began = monotonic()
        return self._saw(self._link.peek(what, self._keys.board), began, monotonic())

    def _saw(self, stored: bytes | None, began: float, seen_at: float) -> _Sight:
        """Take note of what the board holds.

        Args:
            stored: Its bytes.
            began: When the command that showed them began: they were there then or later.
            seen_at: Since when I have surely seen them.
        """
        raw = EMPTY if stored is None else decode(stored, self._keys.board)
        with self._lock:
            self._sight = _Sight(stored=stored, raw=raw, board=self._meaning(raw, began, seen_at))
            return self._sight

    def _meaning(self, board: Board, began: float, seen_at: float) -> Board:
        """The board without what has expired."""
        if board.keep is not None and began - self._seen.see("kept", board.kept, seen_at) >= board.keep:
            board = board.without_content()
        lease = board.lease
        if lease is not None:
            since = self._seen.see("lease", lease.stamp, seen_at)
            if began - since >= lease.ttl:
                self._silent_leader = lease.owner, lease.stamp, since
                board = replace(board, lease=None)
        return board

    def _change(self, what: str, edit: Callable[[Board], Board | None]) -> Board:
        """Bring an edit into the board, beginning with what I last saw of it; answers what the board then says.

        To be sure that an edit has nothing to write takes a look; to write it takes none, since the write fails if
        what I saw is out of date.
        """
        deadline = monotonic() + self._link.call_timeout
        fresh = False
        with self._lock:
            sight = self._sight
            sight = replace(sight, board=self._meaning(sight.raw, monotonic(), monotonic()))
        while True:
            edited = edit(sight.board)
            if edited is None:
                if fresh:
                    return sight.board
                sight, fresh = self._look(what), True
                continue
            stored = fits(encode(replace(edited, write=word())), f"The board of run {self._run_id!r}")
            began = monotonic()
            found, did = self._link.replace(what, self._keys.board, sight.stored, stored)
            if did:
                before = sight.raw
                sight = self._saw(found, began, began)
                self._follow_up(what, before, sight.raw)
                return sight.board
            sight, fresh = self._saw(found, began, monotonic()), True
            self._check_patience(what, deadline)

    def _follow_up(self, what: str, before: Board, after: Board) -> None:
        """Wake who waits for news, and drop the pages that are named no more."""
        if after.news != before.news:
            # The news before is told again: its writer may have died before it could tell.
            keys = [self._keys.news(before.news), self._keys.news(after.news)]
            self._link.call(what, "multi_set", keys, [b"!", b"!"], writes=True)
        for group, size in set(before.groups) - set(after.groups):
            if group not in dict(after.groups):
                for index in range(size):
                    self._link.call(what, "delete_key", self._keys.page(group, index), writes=True)

    def _check_patience(self, what: str, deadline: float) -> None:
        if monotonic() > deadline:
            raise RendezvousConnectionError(
                f"Could not {what}: others wrote to {self._source.where} each time before this node could, for "
                f"{self._link.call_timeout:g} s.",
                run_id=self._run_id,
                backend=self.name,
            )

    def _read_many(self, what: str, keys: Mapping[_Name, str]) -> dict[_Name, bytes]:
        """Read several keys; those that are not there are left out. Three commands for each :data:`BATCH`."""
        names = list(keys)
        found: dict[_Name, bytes] = {}
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            values = self._fetch(what, [keys[name] for name in batch])
            found.update((name, value) for name, value in zip(batch, values, strict=True) if value is not None)
        return found

    def _fetch(self, what: str, keys: list[str]) -> list[bytes | None]:
        if len(keys) <= 1:
            return [self._link.peek(what, key) for key in keys]
        if self._link.call(what, "check", keys):
            return [bytes(value) for value in self._link.call(what, "multi_get", keys)]
        half = len(keys) // 2  # to ask for a key that is not there would be to wait for it
        return self._fetch(what, keys[:half]) + self._fetch(what, keys[half:])


def _content(board: Board) -> tuple[bytes, Token] | None:
    return None if board.token is None else (board.register, board.token)


def _turn_after(slot: Slot | None) -> int:
    return 1 if slot is None else slot.turn + 1


def _same(held: str | None, token: Token | None) -> bool:
    return held is None if token is None else isinstance(token, str) and held == token
