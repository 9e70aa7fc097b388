"""The adapter itself: the members of level 2, each an edit of the one value or a look at it."""

from __future__ import annotations

import hashlib
import random
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from rdzv_core.backend import CoordinationBackend, Pulse, RendezvousBackend, Roster, RosterEntry, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.runtime.register_coordination.backoff import Backoff, Pace
from rdzv_core.runtime.register_coordination.value import EMPTY, Value, decode, encode
from rdzv_core.runtime.register_coordination.watch import Watch

__all__ = ["RegisterCoordination"]

LARGEST = 4 * 1024 * 1024
"""Bytes. Some 10,000 nodes; far beyond what a register that everybody rewrites is good for."""

Edit = Callable[[Value, str], Value | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sight:
    """One read of the register: what it means to me, and the token to write it by."""

    value: Value
    token: Token | None


class RegisterCoordination(CoordinationBackend):
    """Level 2 over any level-1 backend.

    Args:
        register: The backend; used from several threads, and closed with this one if it has a ``close``.
        run_id: Named in errors.
        monotonic: The clock by which silence is measured, in seconds.
        wait: Lets so many seconds pass; may return early, and should when :meth:`close` is called. The default does.
        chance: Where jitter and stamps come from; different on every node.
        deadline: Seconds after which an operation that keeps losing races gives up.
        largest: Bytes beyond which a value is neither written nor read.
    """

    def __init__(
        self,
        register: RendezvousBackend,
        *,
        run_id: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
        chance: random.Random | None = None,
        deadline: float = 3.0,
        largest: int = LARGEST,
    ) -> None:
        self._register = register
        self._run_id = run_id
        self._monotonic = monotonic
        self._closed = threading.Event()
        self._wait = wait or self._closed.wait
        self._chance = chance or random.SystemRandom()
        self._deadline = deadline
        self._largest = largest
        self._lock = threading.Lock()
        self._watch = Watch()
        self._backoff = Backoff(self._chance)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A RegisterCoordination ({self._about}) remembers what this process has seen and cannot be pickled; "
            "make one where it is needed."
        )

    @property
    def name(self) -> str:
        """The name of the backend underneath."""
        return self._register.name

    # --- the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register."""
        return _content(self._look().value)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``; it then stays as long as the one before was to."""
        if token is not None and not isinstance(token, str):
            token = ""  # foreign: no register carries it
        wanted: str | None = token
        stamp = self._word()
        held = _content(self._change(lambda value, stamp: value.written(bytes(state), wanted, stamp), stamp))
        return None if held is None else (*held, held[1] == stamp)

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Poll until the token differs, the register is lost, or a leader gave up its lease."""
        pace, end = Pace(self._chance), self._monotonic() + timeout
        value = self._look().value
        given_up = value.leases_given_up
        while True:
            held = _content(value)
            if (None if held is None else held[1]) != token:
                return held
            if value.leases_given_up != given_up or not self._pause(pace, end):
                return None
            value = self._look().value

    # --- the roster

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record, and with the same write take, keep or give up the lease."""

        def edit(value: Value, stamp: str) -> Value | None:
            announced = value.announced(node_id, seq, bytes(record), ttl, stamp)
            return None if announced is None else announced.led(node_id, ttl, stamp, wanted=lead)

        return self._pulse_of(node_id, seq, self._change(edit))

    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew record, lease and, for a leader, the time that register and pages stay; all with one write."""

        def edit(value: Value, stamp: str) -> Value | None:
            pulsed = value.pulsed(node_id, seq, ttl, stamp)
            if pulsed is None:
                return None
            pulsed = pulsed.led(node_id, ttl, stamp, wanted=lead)
            if pulsed.lease is not None and pulsed.lease.owner == node_id and keep > 0:
                return self._prolonged(pulsed, keep, stamp, group=group, register=True)
            return pulsed

        return self._pulse_of(node_id, seq, self._change(edit))

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Replace the record by a tombstone, and give up the lease."""

        def edit(value: Value, stamp: str) -> Value | None:
            buried = value.buried(node_id, seq, ttl, stamp)
            if buried is None:
                return None
            buried = buried.led(node_id, ttl, stamp, wanted=False)
            if keep is not None:
                return buried.kept(keep, stamp, register=True, groups=[g.name for g in buried.groups])
            return buried

        self._change(edit)

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records; poll while they are those of the version ``seen``."""
        pace, end = Pace(self._chance), self._monotonic() + timeout
        while True:
            roster = _roster(self._look().value)
            if seen is None or roster.version != seen:
                return roster
            if not self._pause(pace, end):
                return None

    # --- pages

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of a group; one that is there already stays as it is, and is kept longer."""

        def edit(value: Value, stamp: str) -> Value | None:
            if value.group(group) is None:
                return value.published(group, tuple(bytes(page) for page in pages), keep, stamp)
            prolonged = self._prolonged(value, keep, stamp, group=group, register=False)
            return None if prolonged == value else prolonged

        self._change(edit)

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page, or None."""
        held = self._look().value.group(group)
        return held.pages[index] if held is not None and 0 <= index < len(held.pages) else None

    # --- the end

    def forget(self) -> None:
        """Leave an empty value behind, unless nodes are alive. A register cannot be less than that.

        A client that has only just begun to watch takes every record for alive, for that record's time to live.
        """

        def edit(value: Value, _: str) -> Value | None:
            if value.nodes:
                named = ", ".join(sorted(node.id for node in value.nodes)[:8])
                raise RendezvousStateError(
                    f"The run cannot be forgotten ({self._about}): {len(value.nodes)} of its nodes are alive "
                    f"({named}). Stop them first, or wait for one TTL after they died.",
                    run_id=self._run_id,
                    backend=self.name,
                )
            empty = value.emptied()
            return None if empty == value else empty

        self._change(edit)

    def close(self) -> None:
        """Wake blocked waits, refuse all further calls, and close the backend underneath if it can be."""
        self._closed.set()
        closing = getattr(self._register, "close", None)
        if closing is not None:
            closing()

    # --- looking and changing

    def _look(self) -> _Sight:
        self._refuse_if_closed()
        began = self._monotonic()
        held = self._register.get_state()
        return self._saw(held, began)

    def _saw(self, held: tuple[bytes, Token] | None, began: float) -> _Sight:
        stored, token = (None, None) if held is None else held
        value = EMPTY if stored is None else self._decode(stored)
        with self._lock:
            return _Sight(value=self._watch.see(value, began, self._monotonic()), token=token)

    def _change(self, edit: Edit, stamp: str | None = None) -> Value:
        """Bring an edit into the register: read, edit, write, until it is there or has nothing to write.

        The word of the operation is left behind by its write. Where it is found the operation is done, also if the
        answer to the write was lost.
        """
        stamp = stamp or self._word()
        begun = began = self._monotonic()
        unsure: RendezvousConnectionError | None = None
        lost = 0
        while True:
            sight = self._look_again(unsure)
            if stamp in sight.value.writes:
                return sight.value
            edited = edit(sight.value, stamp)
            if edited is None:
                return sight.value
            stored = self._encode(edited.stamped(stamp))
            if unsure is None:
                began = self._monotonic()
            with self._lock:
                self._watch.expect(stamp, began)
            tried = self._monotonic()
            try:
                answer = self._register.set_state(stored, sight.token)
            except RendezvousConnectionError as error:
                if unsure is not None or not error.maybe_applied:
                    error.maybe_applied = error.maybe_applied or unsure is not None
                    raise
                unsure = error
                continue
            self._backoff.took(self._monotonic() - tried)
            if answer is not None and answer[2]:
                self._backoff.won()
                return self._saw(answer[:2], tried).value
            lost += 1
            if self._monotonic() - begun > self._deadline:
                raise self._too_crowded(lost, maybe_applied=unsure is not None)
            self._wait(self._backoff.lost())

    def _look_again(self, unsure: RendezvousConnectionError | None) -> _Sight:
        try:
            return self._look()
        except RendezvousConnectionError as error:
            if unsure is not None:
                raise unsure from error
            raise

    def _pause(self, pace: Pace, end: float) -> bool:
        """Let some time of a wait pass; False if its end is reached, or this backend was closed."""
        left = end - self._monotonic()
        if left <= 0 or self._closed.is_set():
            return False
        self._wait(min(pace.next(), left))
        return not self._closed.is_set()

    # --- smaller things

    def _pulse_of(self, node_id: str, seq: int, value: Value) -> Pulse:
        node, lease, held = value.node(node_id), value.lease, value.register
        known = node is not None and node.seq == seq
        with self._lock:
            left = 0.0 if lease is None else self._watch.left("lease", "", lease.ttl, self._monotonic())
        return Pulse(
            known=known,
            leads=known and lease is not None and lease.owner == node_id,
            lease_left=left,
            token=None if held is None else held.token,
        )

    def _prolonged(self, value: Value, keep: float, stamp: str, *, group: str, register: bool) -> Value:
        """With register and group staying for ``keep`` seconds, where that is longer than they would anyway."""
        now = self._monotonic()
        held, pages = value.register, value.group(group)
        with self._lock:
            longer = (
                register
                and held is not None
                and (held.keep is None or self._watch.left("register", "", held.keep, now) < keep)
            )
            further = pages is not None and self._watch.left("group", group, pages.keep, now) < keep
        return value.kept(keep, stamp, register=longer, groups=[group] if further else [])

    def _word(self) -> str:
        return f"{self._chance.getrandbits(64):016x}"

    def _encode(self, value: Value) -> bytes:
        stored = encode(value)
        if len(stored) > self._largest:
            raise RendezvousStateError(
                f"The run has outgrown a single register ({self._about}): {len(value.nodes)} nodes and "
                f"{len(value.groups)} groups of pages take {len(stored)} bytes, and {self._largest} is the limit. "
                "Use a backend that keeps nodes apart, such as redis.",
                run_id=self._run_id,
                backend=self.name,
            )
        return stored

    def _decode(self, stored: bytes) -> Value:
        problem: Exception | None = None
        if len(stored) > self._largest:
            reason = f"{len(stored)} bytes are more than the limit of {self._largest}"
        else:
            try:
                return decode(stored)
            except ValueError as error:
                problem, reason = error, str(error)
        raise RendezvousStateError(
            f"The register holds what rdzv-core did not write, or another version of it did ({self._about}): {reason}; "
            f"it begins with {bytes(stored[:24])!r}. Run the same rdzv-core on all nodes, or choose a new run id.",
            run_id=self._run_id,
            backend=self.name,
        ) from problem

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            raise RendezvousConnectionError(
                f"This client was closed ({self._about}).", run_id=self._run_id, backend=self.name
            )

    def _too_crowded(self, lost: int, *, maybe_applied: bool) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"Others changed the register before this node could, {lost} times in {self._deadline:g} s "
            f"({self._about}). A single register serves some hundred nodes; use a backend that keeps nodes apart, "
            "such as redis, or raise keep_alive_interval.",
            maybe_applied=maybe_applied,
            run_id=self._run_id,
            backend=self.name,
        )

    @property
    def _about(self) -> str:
        run = "" if self._run_id is None else f"run {self._run_id!r}, "
        return f"{run}backend {self.name}"


def _content(value: Value) -> tuple[bytes, str] | None:
    return None if value.register is None else (value.register.state, value.register.token)


def _roster(value: Value) -> Roster:
    nodes = sorted(value.nodes, key=lambda n: (n.arrival, n.id))
    said = "\0".join(f"{n.born} {n.said}" for n in nodes)
    return Roster(
        version=hashlib.blake2b(said.encode(), digest_size=12).hexdigest(),
        records=tuple(RosterEntry(node_id=n.id, arrival=n.arrival, record=n.record) for n in nodes),
        withdrawn=frozenset(g.id for g in value.graves),
    )
