"""Level 2 over a TCPStore, with what a TCPStore has: compare-and-set, counters, and waiting for a key to appear.

Per node and round these are eight commands, whatever the number of nodes: four to announce (take a number in the log,
write the slot, write the entry, read the board), one to be woken and one to see why, one to read a page, and one to
make sure of the register. A sign of life is two. Only the leader reads more: the log's new entries, and all slots some
times per TTL.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rdzv_core.backend import CoordinationBackend, Pulse, Roster, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from .backend import C10dRendezvousBackend
from .board import EMPTY, GROUPS_KEPT, Board, Seen, decode, encode, word
from .keys import RunKeys
from .link import Closed, Link
from .reader import Reader
from .roll import LEFT, LIVE, Entry, Slot, void
from .source import GivenStore, Source
from .stores import fits, peek, replace

__all__ = ["CALL_TIMEOUT", "C10dCoordinationBackend"]

CALL_TIMEOUT = 2.0
"""Seconds that one call may take."""

_PAGE = b"page "
_NEWS = b"!"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """One read of the board: its bytes, what they say, and what that means to me now."""

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
        self._lock = threading.Lock()  # of what was seen of the board
        self._seen = Seen()
        self._sight = _Sight(stored=None, raw=EMPTY, board=EMPTY)
        self._silent_leader: tuple[str, str, float] | None = None
        self._slots: dict[str, tuple[Slot, bytes]] = {}
        self._beaten: dict[str, float] = {}
        self._reading = threading.Lock()
        self._reader = Reader(self._keys)

    def __repr__(self) -> str:
        return f"<C10dCoordinationBackend run {self._run_id!r} in {self._source.where}>"

    # --- the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One command."""
        sight: _Sight = self._link.run("read the register", self._look)
        return _content(sight.board)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. One command, unless a leader renewed its lease meanwhile."""
        mine = word()

        def edit(board: Board) -> Board | None:
            return board.written(bytes(state), mine) if _same(board.token, token) else None

        board: Board = self._link.run("write the register", lambda client: self._change(client, edit), writes=True)
        held = _content(board)
        return None if held is None else (*held, board.token == mine)

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs. Two commands per wake-up."""
        end = monotonic() + timeout
        given_up: int | None = None
        sight: _Sight | None = None
        rung = False
        try:
            while True:
                if sight is None:
                    sight = self._link.run("wait for the register", self._look)
                board = sight.board
                if not _same(board.token, token):
                    return _content(board)
                if given_up not in (None, board.leases_given_up):
                    return None
                given_up = board.leases_given_up
                left = end - monotonic()
                if left <= 0:
                    return None
                key = self._keys.news(board.news + 1)
                sight = self._board_bell.wait(key, left, self._look, settling=rung)
                rung = sight is not None
        except Closed:
            return None

    # --- signs of life

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record. Four commands."""
        record = fits(bytes(record), "The record of a node")

        def announce(client: Any) -> Pulse:
            number = client.add(self._keys.log, 1)

            def edit(slot: Slot | None) -> Slot | None:
                if slot is not None and slot.refuses(seq, LIVE):
                    return None
                lives = slot is not None and slot.kind == LIVE and not self._is_over(node_id, slot)
                arrival = slot.arrival if slot is not None and lives else number
                return Slot(kind=LIVE, seq=seq, arrival=arrival, ttl=ttl, word=word(), turn=_turn_after(slot))

            slot = self._write_slot(client, node_id, edit)
            entry = void() if slot is None else Entry(node_id=node_id, slot=slot, record=record).encode()
            client.set(self._keys.entry(number), entry)
            return self._answer(client, node_id, slot, ttl, lead=lead)

        return self._link.run("announce a node", announce, writes=True)  # type: ignore[no-any-return]

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

        def edit(slot: Slot | None) -> Slot | None:
            if slot is None or slot.kind != LIVE or slot.seq != seq or self._is_over(node_id, slot):
                return None
            return slot.beaten(ttl)

        def pulse(client: Any) -> Pulse:
            slot = self._write_slot(client, node_id, edit)
            return self._answer(client, node_id, slot, ttl, lead=lead, keep=keep)

        return self._link.run("give a sign of life", pulse, writes=True)  # type: ignore[no-any-return]

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Replace the record by a tombstone. Four commands."""

        def withdraw(client: Any) -> None:
            number = client.add(self._keys.log, 1)

            def bury(slot: Slot | None) -> Slot | None:
                if slot is not None and slot.refuses(seq, LEFT):
                    return None
                arrival = number if slot is None else slot.arrival
                return Slot(kind=LEFT, seq=seq, arrival=arrival, ttl=ttl, word=word(), turn=_turn_after(slot))

            def leave(board: Board) -> Board | None:
                left = board
                if slot is not None and board.lease is not None and board.lease.owner == node_id:
                    left = left.given_up()
                if slot is not None and keep is not None and board.token is not None:
                    left = left.staying(keep)
                return None if left is board else left

            slot = self._write_slot(client, node_id, bury)
            client.set(self._keys.entry(number), void() if slot is None else Entry(node_id=node_id, slot=slot).encode())
            self._change(client, leave)

        self._link.run("withdraw a node", withdraw, writes=True)
        if keep is not None:
            self._source.linger(keep)

    def _answer(
        self, client: Any, node_id: str, slot: Slot | None, ttl: float, *, lead: bool, keep: float = 0.0
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

        board = self._change(client, edit)
        lease = board.lease
        with self._lock:
            since = self._seen.since("lease")
        left = 0.0 if lease is None or since is None else max(0.0, lease.ttl - (monotonic() - since[1]))
        leads = slot is not None and lease is not None and lease.owner == node_id
        return Pulse(known=slot is not None, leads=leads, lease_left=left, token=board.token)

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

    def _write_slot(self, client: Any, node_id: str, edit: Callable[[Slot | None], Slot | None]) -> Slot | None:
        """Bring an edit into a slot, beginning with what I last wrote there; None if it refuses what is there."""
        key = self._keys.node(node_id)
        patience = _Patience(self._link.call_timeout)
        slot, stored = self._slots.get(node_id, (None, None))
        fresh = False
        while True:
            edited = edit(slot)
            if edited is None and fresh:
                return None
            if edited is None:
                stored = peek(client, key)
            else:
                began = monotonic()
                stored, did = replace(client, key, stored, edited.encode())
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
            patience.check()

    # --- the roster

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records; one command if nothing has changed, and now and then a reading of all slots."""
        end = monotonic() + timeout
        try:
            while True:
                roster, following, pause = self._read_roster(shorten=timeout > 0)
                if seen is None or roster.version != seen:
                    return roster
                left = end - monotonic()
                if left <= 0:
                    return None
                self._roll_bell.wait(following, min(left, max(pause, 0.01)), _nothing)
        except Closed:
            return None

    def _read_roster(self, *, shorten: bool) -> tuple[Roster, str, float]:
        with self._lock:
            hint, self._silent_leader = self._silent_leader, None
        with self._reading:
            reader = self._reader
            try:
                roster: Roster = self._link.run(
                    "read the roster", lambda client: reader.read(client, shorten=shorten, hint=hint), writes=False
                )
            except RendezvousConnectionError:
                self._reader = Reader(self._keys)  # the job may go on by itself, and its reader with it
                raise
            return roster, reader.following, reader.until_next_listen

    # --- pages, and the end

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of a group. One command each, and one to name the group on the board."""
        stored = [fits(_PAGE + bytes(page), "A page") for page in pages]

        def edit(board: Board) -> Board | None:
            held = board if (group, len(pages)) in board.groups else board.holding(group, len(pages))
            if board.keep is not None and self._left_of_keep(board) < keep:
                held = held.staying(keep)
            if len(held.groups) > GROUPS_KEPT:
                held = dataclasses.replace(held, groups=held.groups[-GROUPS_KEPT:])
            return None if held is board else held

        def publish(client: Any) -> None:
            for index, page in enumerate(stored):
                replace(client, self._keys.page(group, index), None, page)
            self._change(client, edit)

        self._link.run("publish the members of a round", publish, writes=True)

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page, or None. One command."""

        def read(client: Any) -> bytes | None:
            with self._lock:
                board = self._sight.raw
            if board.keep is not None and self._left_of_keep(board) <= 0:
                board = self._look(client).board
                if group not in dict(board.groups):
                    return None
            return peek(client, self._keys.page(group, index))

        stored: bytes | None = self._link.run("read who is in a round", read)
        return None if stored is None else stored.removeprefix(_PAGE)

    def forget(self) -> None:
        """Drop every key of the run."""
        with self._reading:
            reader, self._reader = Reader(self._keys), Reader(self._keys)
            self._link.run("forget the run", lambda client: self._forget(client, reader), writes=True)
        self._slots.clear()
        self._beaten.clear()

    def _forget(self, client: Any, reader: Reader) -> None:
        reader.read_all(client)
        if live := reader.roll.live:
            named = ", ".join(sorted(live)[:8])
            raise RendezvousStateError(
                f"The run {self._run_id!r} cannot be forgotten: {len(live)} of its nodes are alive ({named}). Stop "
                "them first, or wait for one TTL after they died.",
                run_id=self._run_id,
                backend=self.name,
            )
        board, keys = self._look(client).raw, self._keys
        gone = [keys.page(group, index) for group, size in board.groups for index in range(size)]
        gone += [keys.node(node_id) for node_id in reader.roll.known]
        gone += [keys.entry(number) for number in range(1, reader.roll.position + 1)]
        gone += [keys.news(number) for number in range(board.news + 1)]
        for key in (*gone, keys.base, keys.log, keys.board):
            client.delete_key(key)

    def close(self) -> None:
        """Let go of connections and threads, and wake blocked waits."""
        self._link.close(self._ring)

    def _ring(self, client: Any) -> None:
        """Wake one's own bells, and with them all that wait for the same."""

        def edit(board: Board) -> Board | None:
            return board.ringing() if self._board_bell.sleeps and board.write else None

        self._change(client, edit)
        if self._roll_bell.sleeps:
            client.set(self._keys.entry(client.add(self._keys.log, 1)), void())

    # --- looking at the board, and changing it

    def _look(self, client: Any) -> _Sight:
        began = monotonic()
        return self._saw(peek(client, self._keys.board), began, monotonic())

    def _saw(self, stored: bytes | None, began: float, seen_at: float) -> _Sight:
        """Take note of what the board holds.

        Args:
            stored: Its bytes.
            began: When the command that showed them began: they were there then or later.
            seen_at: Since when I have surely seen them.
        """
        with self._lock:
            if stored is None:
                raw = EMPTY
            elif stored == self._sight.stored:
                raw = self._sight.raw
            else:
                raw = decode(stored, self._keys.board)
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
                board = dataclasses.replace(board, lease=None)
        return board

    def _change(self, client: Any, edit: Callable[[Board], Board | None]) -> Board:
        """Bring an edit into the board, beginning with what I last saw of it; answers what the board then says.

        To be sure that an edit has nothing to write takes a look; to write it takes none, since the write fails if
        what I saw is out of date.
        """
        patience = _Patience(self._link.call_timeout)
        fresh = False
        with self._lock:
            sight, now = self._sight, monotonic()
            sight = dataclasses.replace(sight, board=self._meaning(sight.raw, now, now))
        while True:
            edited = edit(sight.board)
            if edited is None:
                if fresh:
                    return sight.board
                sight, fresh = self._look(client), True
                continue
            stored = fits(encode(dataclasses.replace(edited, write=word())), f"The board of run {self._run_id!r}")
            began = monotonic()
            found, did = replace(client, self._keys.board, sight.stored, stored)
            if did:
                before = sight.raw
                sight = self._saw(found, began, began)
                self._follow_up(client, before, sight.raw)
                return sight.board
            sight, fresh = self._saw(found, began, monotonic()), True
            patience.check()

    def _follow_up(self, client: Any, before: Board, after: Board) -> None:
        """Wake who waits for news, and drop the pages that are named no more."""
        if after.news != before.news:
            # The news before is told again: its writer may have died before it could tell.
            client.multi_set([self._keys.news(before.news), self._keys.news(after.news)], [_NEWS, _NEWS])
        for group, size in set(before.groups) - set(after.groups):
            if group not in dict(after.groups):
                for index in range(size):
                    client.delete_key(self._keys.page(group, index))


class _Patience:
    """For how long races may be lost, in one call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = monotonic() + seconds

    def check(self) -> None:
        """Go on.

        Raises:
            RendezvousConnectionError: The time is over.
        """
        if monotonic() > self._deadline:
            raise RendezvousConnectionError(
                f"Others wrote to the store each time before this node could, for {self._seconds:g} s.", backend="c10d"
            )


def _content(board: Board) -> tuple[bytes, Token] | None:
    return None if board.token is None else (board.register, board.token)


def _turn_after(slot: Slot | None) -> int:
    return 1 if slot is None else slot.turn + 1


def _same(held: str | None, token: Token | None) -> bool:
    return held is None if token is None else isinstance(token, str) and held == token


def _nothing(_: Any) -> bool:
    return True
