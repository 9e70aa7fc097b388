"""A coordination service in memory: the reference of the contract, and the store of the simulator.

:class:`MemoryStore` is the server: it holds many runs, owns the clock, and can be made to suffer (lose
everything, roll back, be cut off, swallow an answer). :class:`MemoryBackend` is a client of it for one run and
keeps the whole contract of :mod:`rdzv_core.backend`; :class:`MemoryRegister` is a client that offers the one
register and nothing else, as a stranger's level-1 backend would.

Rules of the house:

* Whatever has expired is dropped before anything else is looked at, so no call ever sees the dead.
* Nothing here reads a clock but ``MemoryStore.now``. With a clock of your own, use the forms that do not
  block (``timeout=0``), subscribe with :meth:`MemoryStore.on_change`, and call :meth:`MemoryStore.sweep` at
  :meth:`MemoryStore.next_expiry`; no thread is needed.
* Tokens and versions carry a random word, which a restored snapshot does not bring back. So a store that was
  rolled back never gives out a token for the second time.
"""

from __future__ import annotations

import copy
import enum
import heapq
import math
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from rdzv_core.backend import CoordinationBackend, Pulse, RendezvousBackend, Roster, RosterEntry, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

__all__ = ["Change", "MemoryBackend", "MemoryRegister", "MemoryStore", "Snapshot"]

_DEPARTURES_KEPT = 4096
"""Departures remembered for answering with a change only; a reader that is further behind gets everything."""

_LONGEST_WAIT = 3600.0
"""Seconds; a condition cannot wait for ever when it is given a time, and looking again costs nothing."""


class Change(enum.Enum):
    """What a change in the store was about; a waiter on that subject should look again."""

    REGISTER = "register"
    """The register was written, lost, rolled back, or has expired."""
    ROSTER = "roster"
    """A record came, changed, left, or has expired."""
    LEASE = "lease"
    """A leader gave its lease up. (A lease that merely ends is no change: everybody was told when it would.)"""


@dataclass(slots=True)
class _Register:
    state: bytes
    token: str
    expires: float


@dataclass(slots=True)
class _Record:
    seq: int
    record: bytes
    expires: float
    arrival: int
    born: int
    """The roster's number when this life of the record began."""
    changed: int
    """The roster's number when these bytes were announced."""


@dataclass(slots=True)
class _Tombstone:
    seq: int
    expires: float


@dataclass(slots=True)
class _Lease:
    owner: str
    expires: float


@dataclass(slots=True)
class _Pages:
    pages: tuple[bytes, ...]
    expires: float


@dataclass(slots=True)
class _Departure:
    number: int
    node_id: str
    born: int


@dataclass(slots=True)
class _Run:
    """All that the store knows of one run. No lock and no clock: whoever calls brings both."""

    incarnation: str
    """Random; differs after a loss or a rollback, so that versions from before match nothing."""
    register: _Register | None = None
    writes: int = 0
    records: dict[str, _Record] = field(default_factory=dict)
    """By id, the latest announced last."""
    arrivals: int = 0
    number: int = 0
    """Counts the changes of the roster."""
    departures: list[_Departure] = field(default_factory=list)
    departures_since: int = 0
    """A roster number; departures up to it are no longer remembered."""
    expiries: list[tuple[float, str]] = field(default_factory=list)
    """A heap with one entry per record, never later than the record's true expiry."""
    tombstones: dict[str, _Tombstone] = field(default_factory=dict)
    burials: list[tuple[float, str]] = field(default_factory=list)
    """A heap with one entry per burial, by the time at which its tombstone goes."""
    lease: _Lease | None = None
    leases_given_up: int = 0
    pages: dict[str, _Pages] = field(default_factory=dict)

    # --- the roster

    @property
    def version(self) -> tuple[str, int]:
        return self.incarnation, self.number

    def put(self, node_id: str, seq: int, record: bytes, expires: float) -> bool:
        """Store a record; False if what is stored is not older."""
        known, buried = self.records.get(node_id), self.tombstones.get(node_id)
        if (known is not None and seq < known.seq) or (buried is not None and seq <= buried.seq):
            return False
        self.records.pop(node_id, None)
        self.tombstones.pop(node_id, None)
        self.number += 1
        if known is None:
            self.arrivals += 1
            arrival, born = self.arrivals, self.number
        else:
            arrival, born = known.arrival, known.born
        self.records[node_id] = _Record(seq, record, expires, arrival, born, changed=self.number)
        if known is None or expires < known.expires:
            heapq.heappush(self.expiries, (expires, node_id))
        return True

    def renew(self, node_id: str, seq: int, expires: float) -> bool:
        """Prolong the life of a record; False unless there is one with exactly this ``seq``."""
        known = self.records.get(node_id)
        if known is None or known.seq != seq:
            return False
        if expires < known.expires:
            heapq.heappush(self.expiries, (expires, node_id))
        known.expires = expires
        return True

    def bury(self, node_id: str, seq: int, expires: float) -> bool:
        """Replace a record by a tombstone; False if what is stored is newer."""
        known, buried = self.records.get(node_id), self.tombstones.get(node_id)
        if (known is not None and seq < known.seq) or (buried is not None and seq < buried.seq):
            return False
        self.tombstones[node_id] = _Tombstone(seq, expires)
        heapq.heappush(self.burials, (expires, node_id))
        if not self.remove(node_id):
            self.number += 1
        return True

    def remove(self, node_id: str) -> bool:
        """Drop a record, remembering that it was there."""
        known = self.records.pop(node_id, None)
        if known is None:
            return False
        self.number += 1
        self.departures.append(_Departure(self.number, node_id, known.born))
        if len(self.departures) > _DEPARTURES_KEPT:
            half = len(self.departures) // 2
            self.departures_since = self.departures[half - 1].number
            del self.departures[:half]
        return True

    def next_expiry(self) -> float:
        """When the next record expires; infinity if none does."""
        heap = self.expiries
        while heap:
            expires, node_id = heap[0]
            known = self.records.get(node_id)
            if known is not None and known.expires == expires:
                return expires
            heapq.heappop(heap)
            if known is not None:
                heapq.heappush(heap, (known.expires, node_id))
        return math.inf

    def roster(self, seen: Hashable | None) -> Roster:
        """The live records; the change only, if ``seen`` is a version that is still remembered."""
        base = self._number_of(seen)
        withdrawn = frozenset(self.tombstones)
        if base is None:
            return Roster(version=self.version, records=_entries(self.records.items()), withdrawn=withdrawn)
        fresh: list[tuple[str, _Record]] = []
        for node_id in reversed(self.records):
            if self.records[node_id].changed <= base:
                break
            fresh.append((node_id, self.records[node_id]))
        gone = frozenset(
            d.node_id for d in self.departures if d.born <= base < d.number and d.node_id not in self.records
        )
        return Roster(version=self.version, records=_entries(fresh), withdrawn=withdrawn, base=seen, gone=gone)

    def _number_of(self, seen: Hashable | None) -> int | None:
        match seen:
            case (self.incarnation, int(number)) if self.departures_since <= number <= self.number:
                return number
            case _:
                return None

    # --- the lease

    def lead(self, node_id: str, expires: float, *, wanted: bool) -> bool:
        """Take, keep or give up the lease; answers whether this node gave it up."""
        holds = self.lease is not None and self.lease.owner == node_id
        if wanted and (self.lease is None or holds):
            self.lease = _Lease(node_id, expires)
        elif holds and not wanted:
            self.lease = None
            self.leases_given_up += 1
            return True
        return False

    def pulse(self, node_id: str, now: float, *, known: bool) -> Pulse:
        """The answer to a sign of life."""
        return Pulse(
            known=known,
            leads=known and self.lease is not None and self.lease.owner == node_id,
            lease_left=0.0 if self.lease is None else self.lease.expires - now,
            token=None if self.register is None else self.register.token,
        )

    # --- how long things are kept

    def prolong(self, group: str, expires: float) -> None:
        """Keep the register and one group of pages at least until then."""
        if self.register is not None:
            self.register.expires = _later(self.register.expires, expires)
        if group in self.pages:
            self.pages[group].expires = _later(self.pages[group].expires, expires)

    def expire_at(self, expires: float) -> None:
        """Let the register and all pages expire then."""
        if self.register is not None:
            self.register.expires = expires
        for group in self.pages.values():
            group.expires = expires

    def sweep(self, now: float) -> set[Change]:
        """Drop whatever has expired; answers what that changed."""
        changes: set[Change] = set()
        while self.next_expiry() <= now:
            _, node_id = heapq.heappop(self.expiries)
            self.remove(node_id)
            changes.add(Change.ROSTER)
        if self.register is not None and self.register.expires <= now:
            self.register = None
            changes.add(Change.REGISTER)
        if self.lease is not None and self.lease.expires <= now:
            self.lease = None
        while self.burials and self.burials[0][0] <= now:
            expires, node_id = heapq.heappop(self.burials)
            if node_id in self.tombstones and self.tombstones[node_id].expires == expires:
                del self.tombstones[node_id]
        for group in [g for g, p in self.pages.items() if p.expires <= now]:
            del self.pages[group]
        return changes


def _entries(records: Iterable[tuple[str, _Record]]) -> tuple[RosterEntry, ...]:
    entries = (RosterEntry(node_id=i, arrival=r.arrival, record=r.record) for i, r in records)
    return tuple(sorted(entries, key=lambda e: e.arrival))


def _later(expires: float, candidate: float) -> float:
    """The later of the two; a register that was never told how long to stay starts its time now."""
    return candidate if math.isinf(expires) else max(expires, candidate)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a store held at one moment; give it to :meth:`MemoryStore.restore`."""

    _runs: dict[str, _Run]


class MemoryStore:
    """The server: many runs, one clock.

    Args:
        now: The store's clock, in seconds; must not run backwards. With a clock other than the default, only
            the forms that do not block make sense.
        rng: Where the random words of tokens and versions come from.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic, rng: random.Random | None = None) -> None:
        self.now = now
        self._rng = rng or random.Random()
        self._lock = threading.RLock()
        self._runs: dict[str, _Run] = {}
        self._subjects: dict[tuple[str, Change], threading.Condition] = {}
        self._callbacks: list[Callable[[str, Change], None]] = []
        self._cut = False
        self._answers_to_lose = 0

    # --- for a simulator

    def on_change(self, callback: Callable[[str, Change], None]) -> Callable[[], None]:
        """Call ``callback(run_id, change)`` at each change from now on.

        The callback runs inside the call that made the change, under the store's lock: take a note and
        return; it must not call the store.

        Returns:
            A function that ends the subscription.
        """
        with self._lock:
            self._callbacks.append(callback)

        def unsubscribe() -> None:
            with self._lock:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

        return unsubscribe

    def next_expiry(self, run_id: str | None = None) -> float | None:
        """The next moment, on the store's clock, at which a record or a register expires; None if none does.

        Args:
            run_id: Look at this run only.
        """
        with self._lock:
            runs = self._runs.values() if run_id is None else filter(None, [self._runs.get(run_id)])
            moments = [m for run in runs for m in (run.next_expiry(), _expiry_of(run.register))]
            soonest = min(moments, default=math.inf)
            return None if math.isinf(soonest) else soonest

    def sweep(self) -> None:
        """Drop what has expired and tell the subscribers, as any call would for its own run."""
        with self._lock:
            for run_id in list(self._runs):
                self._swept(run_id)

    def runs(self) -> tuple[str, ...]:
        """The ids of the runs of which the store holds anything but emptiness."""
        with self._lock:
            self.sweep()
            return tuple(run_id for run_id, run in self._runs.items() if run.register or run.records or run.pages)

    # --- a back door: no backend is asked

    def peek(self, run_id: str) -> bytes | None:
        """What the register holds, read behind every client's back; works while the store is cut off."""
        with self._lock:
            register = self._swept(run_id).register
            return None if register is None else register.state

    def poke(self, run_id: str, state: bytes) -> None:
        """Write the register behind every client's back, whatever it holds."""
        with self._lock:
            run = self._swept(run_id)
            self._write(run, state)
            self._tell(run_id, Change.REGISTER)

    # --- ways to suffer

    def wipe(self, run_id: str | None = None) -> None:
        """Lose everything, or everything of one run: a restart without persistence."""
        with self._lock:
            for lost in list(self._runs) if run_id is None else [run_id]:
                self._runs.pop(lost, None)
                self._tell(lost, *Change)

    def snapshot(self) -> Snapshot:
        """Remember what the store holds; times of expiry included."""
        with self._lock:
            return Snapshot(copy.deepcopy(self._runs))

    def restore(self, snapshot: Snapshot) -> None:
        """Roll back to a snapshot: a failover to a replica that the last writes had not reached."""
        with self._lock:
            before = set(self._runs)
            self._runs = copy.deepcopy(snapshot._runs)
            for run_id in before | set(self._runs):
                if run_id in self._runs:
                    self._runs[run_id].incarnation = self._word()
                self._tell(run_id, *Change)

    def cut(self) -> None:
        """Cut the connection of every client: each call, also a blocked one, is a connection error."""
        with self._lock:
            self._cut = True
            for subject in self._subjects.values():
                subject.notify_all()

    def mend(self) -> None:
        """Undo :meth:`cut`."""
        with self._lock:
            self._cut = False

    def lose_answers(self, count: int = 1) -> None:
        """Apply the next ``count`` writes, but let the writer see the connection break instead of an answer."""
        with self._lock:
            self._answers_to_lose = count

    # --- for the clients

    def _word(self) -> str:
        return f"{self._rng.getrandbits(48):012x}"

    def _swept(self, run_id: str) -> _Run:
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = _Run(self._word())
        self._tell(run_id, *run.sweep(self.now()))
        return run

    def _tell(self, run_id: str, *changes: Change) -> None:
        for change in changes:
            self._subject(run_id, change).notify_all()
            if change is Change.LEASE:
                self._subject(run_id, Change.REGISTER).notify_all()
            for callback in tuple(self._callbacks):
                callback(run_id, change)

    def _subject(self, run_id: str, change: Change) -> threading.Condition:
        key = run_id, change
        if key not in self._subjects:
            self._subjects[key] = threading.Condition(self._lock)
        return self._subjects[key]

    def _write(self, run: _Run, state: bytes) -> _Register:
        run.writes += 1
        expires = math.inf if run.register is None else run.register.expires
        run.register = _Register(bytes(state), f"{run.writes}-{self._word()}", expires)
        return run.register


def _expiry_of(register: _Register | None) -> float:
    return math.inf if register is None else register.expires


class _Client:
    """A connection to one run: lets calls through to it, unless it is cut or closed."""

    def __init__(self, store: MemoryStore, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._closed = False

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} (run {self._run_id!r}) is bound to a store in this process and cannot be "
            "pickled; make one where it is needed."
        )

    @contextmanager
    def _reading(self) -> Iterator[_Run]:
        with self._store._lock:
            yield self._enter()

    @contextmanager
    def _writing(self) -> Iterator[_Run]:
        with self._store._lock:
            yield self._enter()
            if self._store._answers_to_lose:
                self._store._answers_to_lose -= 1
                raise self._broken("The answer was lost", maybe_applied=True)

    def _enter(self) -> _Run:
        if self._closed:
            raise self._broken("This client was closed")
        if self._store._cut:
            raise self._broken("The store is cut off")
        return self._store._swept(self._run_id)

    def _tell(self, *changes: Change) -> None:
        self._store._tell(self._run_id, *changes)

    def _broken(self, what: str, *, maybe_applied: bool = False) -> RendezvousConnectionError:
        return RendezvousConnectionError(
            f"{what} (run {self._run_id!r}, backend memory).",
            maybe_applied=maybe_applied,
            run_id=self._run_id,
            backend="memory",
        )

    def _get_state(self) -> tuple[bytes, Token] | None:
        with self._reading() as run:
            return _content(run.register)

    def _set_state(self, state: bytes, token: Token | None) -> tuple[bytes, Token, bool] | None:
        with self._writing() as run:
            if not _carries(run.register, token):
                held = _content(run.register)
                return None if held is None else (*held, False)
            written = self._store._write(run, state)
            self._tell(Change.REGISTER)
            return written.state, written.token, True


def _content(register: _Register | None) -> tuple[bytes, Token] | None:
    return None if register is None else (register.state, register.token)


def _carries(register: _Register | None, token: Token | None) -> bool:
    if register is None or token is None:
        return register is None and token is None
    return isinstance(token, str) and token == register.token


class MemoryRegister(_Client, RendezvousBackend):
    """A level-1 backend: the register of one run, and nothing else.

    Args:
        store: The server.
        run_id: The run.
        latency: Seconds that pass before a call reaches the store, and again before its answer is back.
        sleep: How they pass.

    Attributes:
        reads: Calls of ``get_state``.
        writes: Calls of ``set_state``.
        wins: Calls of ``set_state`` that wrote.
    """

    def __init__(
        self,
        store: MemoryStore,
        run_id: str,
        *,
        latency: float = 0.0,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(store, run_id)
        self._latency = latency
        self._sleep = sleep
        self._counting = threading.Lock()
        self.reads = self.writes = self.wins = 0

    @property
    def name(self) -> str:
        """``memory``."""
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register."""
        with self._counting:
            self.reads += 1
        self._pass_time()
        held = self._get_state()
        self._pass_time()
        return held

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``."""
        with self._counting:
            self.writes += 1
        self._pass_time()
        answer = self._set_state(state, token)
        self._pass_time()
        if answer is not None and answer[2]:
            with self._counting:
                self.wins += 1
        return answer

    def close(self) -> None:
        """Refuse all further calls."""
        self._closed = True

    def _pass_time(self) -> None:
        if self._latency:
            self._sleep(self._latency)


class MemoryBackend(_Client, CoordinationBackend):
    """A client of the store for one run; keeps every law of the contract.

    Args:
        store: The server.
        run_id: The run.
    """

    @property
    def name(self) -> str:
        """``memory``."""
        return "memory"

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register."""
        return self._get_state()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``; it then stays as long as the one before was to."""
        return self._set_state(state, token)

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record, and take or keep the lease, or give it up."""
        with self._writing() as run:
            now = self._store.now()
            known = run.put(node_id, seq, bytes(record), now + ttl)
            if known:
                self._tell(Change.ROSTER)
                self._lead(run, node_id, now + ttl, wanted=lead)
            return run.pulse(node_id, now, known=known)

    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew record and lease; a leader also prolongs the life of register and pages."""
        with self._writing() as run:
            now = self._store.now()
            known = run.renew(node_id, seq, now + ttl)
            if known:
                self._lead(run, node_id, now + ttl, wanted=lead)
            answer = run.pulse(node_id, now, known=known)
            if answer.leads and keep > 0:
                run.prolong(group, now + keep)
            return answer

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Replace the record by a tombstone, and give up the lease."""
        with self._writing() as run:
            now = self._store.now()
            if not run.bury(node_id, seq, now + ttl):
                return
            if keep is not None:
                run.expire_at(now + keep)
            self._tell(Change.ROSTER)
            self._lead(run, node_id, now, wanted=False)

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records, or what changed since ``seen``; block while nothing has."""
        with self._store._lock:
            deadline = self._store.now() + timeout
            while not (self._closed and timeout > 0):
                run = self._enter()
                if seen is None or run.version != seen:
                    return run.roster(seen)
                if not self._wait(Change.ROSTER, deadline, run.next_expiry()):
                    break
            return None

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs, the register is lost, or a leader gave up its lease."""
        with self._store._lock:
            deadline = self._store.now() + timeout
            given_up = self._enter().leases_given_up
            while not self._closed:
                run = self._enter()
                if not _carries(run.register, token):
                    return _content(run.register)
                if run.leases_given_up != given_up:
                    break
                if not self._wait(Change.REGISTER, deadline, _expiry_of(run.register)):
                    break
            return None

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of a group; a group that is there already stays as it is, and is kept longer."""
        with self._writing() as run:
            expires = self._store.now() + keep
            if group not in run.pages:
                run.pages[group] = _Pages(tuple(bytes(page) for page in pages), expires)
            else:
                run.pages[group].expires = max(run.pages[group].expires, expires)

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page, or None."""
        with self._reading() as run:
            held = run.pages.get(group)
            if held is None or not 0 <= index < len(held.pages):
                return None
            return held.pages[index]

    def forget(self) -> None:
        """Drop everything of the run, unless nodes are alive."""
        with self._writing() as run:
            if run.records:
                raise RendezvousStateError(
                    f"Run {self._run_id!r} cannot be forgotten: {len(run.records)} of its nodes are alive "
                    f"({', '.join(sorted(run.records)[:8])}). Stop them first, or wait one TTL after they died.",
                    run_id=self._run_id,
                    backend=self.name,
                )
            self._store.wipe(self._run_id)

    def close(self) -> None:
        """Wake blocked waits, and refuse all further calls."""
        with self._store._lock:
            self._closed = True
            for change in Change:
                self._store._subject(self._run_id, change).notify_all()

    def _lead(self, run: _Run, node_id: str, expires: float, *, wanted: bool) -> None:
        if run.lead(node_id, expires, wanted=wanted):
            self._tell(Change.LEASE)

    def _wait(self, subject: Change, deadline: float, expiry: float) -> bool:
        """Wait for a change, the deadline or an expiry, whichever is first; False if the deadline is past."""
        now = self._store.now()
        if now >= deadline:
            return False
        self._store._subject(self._run_id, subject).wait(min(deadline, expiry, now + _LONGEST_WAIT) - now)
        return True
