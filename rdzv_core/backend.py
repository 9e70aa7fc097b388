"""The contract between the rendezvous and a store.

Level 1, :class:`RendezvousBackend`, is one compare-and-set register: three members, enough to run torchrun.
Level 2, :class:`CoordinationBackend`, adds what coordination services are made of: records that expire, a
leader lease, a wait that is woken by a write. The handler speaks level 2 only; a level-1 backend is lifted to
it by :class:`rdzv_core.RegisterCoordination`.

What every member may raise, and nothing else: ``RendezvousConnectionError`` if the store could not be reached
or did not answer (with ``maybe_applied`` set if a write may have got through), ``RendezvousStateError`` if
what is stored cannot be understood. Programming errors pass untranslated. No member blocks past its own
deadline, which is well below the keep-alive interval, except where a ``timeout`` is passed.

All times are durations in seconds. No contract compares the clocks of two machines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from rdzv_core.options import Option

__all__ = ["CoordinationBackend", "Pulse", "RendezvousBackend", "Roster", "RosterEntry", "Token"]

Token: TypeAlias = Any
"""A fencing token. Opaque: compare with ``==`` only, never order, never look inside."""


class RendezvousBackend(ABC):
    """Level 1: one register that is written by compare-and-set.

    Laws (each has a test in ``rdzv_core.testing``): a fresh register is empty; of rivals that hold the same
    token at most one wins, also when their bytes are equal; a stale token never wins, also if the old bytes
    come back or the store rolls back and counts again; a damaged or foreign token is a lost race and no
    error; bytes are kept exactly.
    """

    options: ClassVar[Sequence[Option]] = ()
    """Options of its own, which its creator has read by the time that the handler is made."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which users ask for this backend."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register: its bytes and their token, or None if it is empty."""

    @abstractmethod
    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write ``state`` if the register still carries ``token`` (None: if it is empty).

        Returns:
            What the register now holds, its token, and whether this call wrote it; so a loser is shown what
            it lost to. None only if the register was not written and is empty.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """The answer to a sign of life."""

    known: bool
    """The store holds a live record of this node under this ``seq``, and has renewed it."""
    leads: bool
    """This node holds the leader lease after this call."""
    lease_left: float
    """Seconds until the lease ends, whoever holds it; 0.0 if nobody does."""
    token: Token | None
    """The register's present token; None if it is empty. Shows a write whose wake-up was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RosterEntry:
    """One live node."""

    node_id: str
    arrival: int
    """Given by the store at the first announce of this id, kept while its record lives; smaller is earlier."""
    record: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The live records of a run."""

    version: Hashable
    """Differs whenever membership or a record differs. Opaque: compare with ``==``."""
    records: tuple[RosterEntry, ...]
    """In order of arrival; only the new or changed ones if ``base`` is set."""
    withdrawn: frozenset[str]
    """Ids that have withdrawn within the last TTL: known to have left, not merely silent. Always complete."""
    base: Hashable | None = None
    """The version that this answer is a change to; None if it is complete."""
    gone: frozenset[str] = frozenset()
    """With ``base``: ids that were live in it and are not now."""

    def onto(self, earlier: Roster | None) -> Roster:
        """Make this answer complete: apply the change to the roster that it is based on.

        Raises:
            ValueError: The answer is a change to a version other than ``earlier``'s.
        """
        if self.base is None:
            return self
        if earlier is None or earlier.version != self.base:
            raise ValueError("a roster change was applied to a version that it is not based on")
        entries = {e.node_id: e for e in earlier.records if e.node_id not in self.gone}
        entries.update((e.node_id, e) for e in self.records)
        records = tuple(sorted(entries.values(), key=lambda e: e.arrival))
        return Roster(version=self.version, records=records, withdrawn=self.withdrawn)


class CoordinationBackend(RendezvousBackend):
    """Level 2: membership that expires, a leader lease, waits that are pushed.

    One run per instance. Every member may be called from any thread; at most one call of :meth:`roster` and
    one of :meth:`wait_state` block at a time, while other threads go on calling the rest. No key of a run
    outlives its time: records one TTL, register and pages their ``keep``.

    ``seq`` orders what one node says. It grows with each announce and withdraw; the store applies a call only
    if its ``seq`` is not below the one stored for that id, so a call that arrives late or twice does no harm.
    """

    @abstractmethod
    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store ``record`` as the node's own, alive for ``ttl`` seconds; also a pulse.

        A lower ``seq`` than the stored one, or a tombstone with this ``seq`` or a higher one, refuses it:
        nothing changes and ``known`` is False. With ``lead`` the node takes the leader lease if it is vacant,
        for ``ttl`` seconds.
        """

    @abstractmethod
    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew the node's record for ``ttl`` seconds from now, and its lease if it leads.

        Renews only a live record with exactly this ``seq``; an expired one is not revived, and the answer is
        ``known=False`` without the lease. With ``lead`` it takes a vacant lease; with ``lead=False`` a leader
        gives its lease up. If the node leads, register and the pages of ``group`` are kept for ``keep`` more
        seconds.
        """

    @abstractmethod
    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Remove the node's record, leave a tombstone for ``ttl`` seconds, and give up its lease.

        Refused without a word if the store holds a higher ``seq``. With ``keep``, register and pages of the
        run now expire ``keep`` seconds from now (a later leader's pulse may prolong that).
        """

    @abstractmethod
    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records; returns at once unless the version is still ``seen``.

        Else blocks until it differs, by a call of anybody's or because a record expired (noticed within one
        second), and returns None after ``timeout`` seconds. May answer with the change since ``seen`` only.
        """

    @abstractmethod
    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token *differs* from ``token`` (None: seen empty), and return it.

        Returns None after ``timeout`` seconds, or earlier without a reason; in particular when the register
        was lost, and when a leader gave up its lease, so that the caller pulses.
        """

    @abstractmethod
    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of ``group``, immutable, for at least ``keep`` seconds. Publishing twice is harmless."""

    @abstractmethod
    def page(self, group: str, index: int) -> bytes | None:
        """Read one page, or None if it is not there."""

    @abstractmethod
    def forget(self) -> None:
        """Drop every key of the run.

        Raises:
            RendezvousStateError: Nodes of the run are still alive; names them. Nothing was dropped.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections and threads, and wake blocked waits. Idempotent; does not touch the store."""
