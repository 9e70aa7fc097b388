"""A leader's copy of the roster, kept by reading what has changed and by listening.

etcd tells a reader which keys were written since a revision, and how many there are. So one small read brings the
copy up to date: if the numbers agree, nobody is missing; if not, the names are read as well. Events of the watch
that a read has overtaken are passed over.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from rdzv_core.backend import Roster, RosterEntry

from .gateway import Change, KeyValue, RangeReply
from .keys import RunKeys, split_node_value

__all__ = ["Mirror", "UnreadableRecord"]


class UnreadableRecord(Exception):
    """A key among the records is none of ours; it is the argument."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copy:
    mod_revision: int
    entry: RosterEntry | None
    """None for a tombstone."""


class Mirror:
    """Records and tombstones of a run as last seen. Safe from many threads."""

    def __init__(self, keys: RunKeys) -> None:
        self._keys = keys
        self._lock = threading.Lock()
        self._word = secrets.token_hex(4)
        self._number = 0
        self._copies: dict[bytes, _Copy] = {}
        self.revision = 0
        """The store's revision that the copy is of; 0 before anything was read."""

    @property
    def version(self) -> Hashable:
        """Differs whenever the roster differs. Of this copy only: nobody else's is equal to it."""
        return self._word, self._number

    def roster(self) -> Roster:
        """The roster, complete."""
        with self._lock:
            entries = [copy.entry for copy in self._copies.values() if copy.entry is not None]
            tombs = [key for key, copy in self._copies.items() if copy.entry is None]
            version = self.version
        return Roster(
            version=version,
            records=tuple(sorted(entries, key=lambda entry: entry.arrival)),
            withdrawn=frozenset(self._keys.node_id_of(key) for key in tombs),
        )

    def replace(self, found: RangeReply, revision: int) -> None:
        """Take in everything that there is at ``revision``."""
        copies = {kv.key: self._copy(kv) for kv in found.kvs}
        with self._lock:
            if copies != self._copies:
                self._number += 1
                self._copies = copies
            self.revision = revision

    def update(self, found: RangeReply, revision: int) -> bool:
        """Take in what was written since the copy was made; False if keys are missing, so that it is incomplete."""
        with self._lock:
            if revision < self.revision:
                return False
            written = {kv.key: self._copy(kv) for kv in found.kvs}
            merged = self._copies | written
            if len(merged) != found.count:
                return False
            if merged != self._copies:
                self._number += 1
                self._copies = merged
            self.revision = revision
            return True

    def hear(self, changes: Iterable[Change]) -> None:
        """Take in what a watch has told."""
        last = 0
        with self._lock:
            for change in changes:
                kv = change.kv
                if kv.mod_revision <= self.revision:
                    continue
                if change.deleted:
                    self._copies.pop(kv.key, None)
                else:
                    self._copies[kv.key] = self._copy(kv)
                self._number += 1
                last = kv.mod_revision
            self.revision = max(self.revision, last)  # a watch leaves nothing out

    def _copy(self, kv: KeyValue) -> _Copy:
        if kv.key.startswith(self._keys.tombs):
            return _Copy(mod_revision=kv.mod_revision, entry=None)
        parts = split_node_value(kv.value)
        if parts is None or not kv.key.startswith(self._keys.nodes):
            raise UnreadableRecord(kv.key.decode("utf-8", "replace"))
        entry = RosterEntry(node_id=self._keys.node_id_of(kv.key), arrival=kv.create_revision, record=parts[1])
        return _Copy(mod_revision=kv.mod_revision, entry=entry)
