"""The contract of :mod:`rdzv_core.backend` over etcd's v2 API.

The v2 API has no transactions: one call writes one key, on condition of what that key holds. So everything that must
be decided at once lies in one key: a node's record and its tombstone are the same key, and the register carries the
random word of its write. A call that must read first is made again if somebody wrote in between. Times to live are
whole seconds, rounded up; etcd drops what has expired twice a second.

Use v3 if you can: here a node costs more requests per round, and leaving and forgetting are not atomic. Every key
expires, but the directories of a run stay, empty, until :meth:`EtcdRendezvousBackend.forget` removes them: etcd 3.5
refuses to renew a directory's time to live.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.backend import CoordinationBackend, Pulse, Roster, RosterEntry, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from ..options import V2_OPTIONS
from .access import Access, Refused
from .names import RunNames
from .news import News

__all__ = ["EtcdRendezvousBackend"]

DEFAULT_TTL = 7200
"""Seconds that a register stays before a leader has said how long; torch's default."""

_MARGIN = 1.25  # keys to be kept are kept for this much longer, so that not every pulse need renew them
_WORD = re.compile(r"[A-Za-z0-9_-]{1,32}")
_UNKNOWN: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """What the key of a node holds."""

    seq: int
    record: bytes | None
    """None of a tombstone."""
    value: str
    index: int
    """etcd's index of its last write."""
    arrival: int


class EtcdRendezvousBackend(CoordinationBackend):
    """One run on one cluster.

    Args:
        client: A client of python-etcd, or a list of clients of members of one cluster, which :meth:`close` closes.
        run_id: The run.
        key_prefix: The directory under which all runs are; None for the root.
        ttl: Seconds that the register stays, before a leader has said how long; two hours if None or not positive.

    Raises:
        ValueError: The run id is empty.
    """

    options = V2_OPTIONS

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        self._run_id = run_id
        self._names = RunNames(run_id=run_id, prefix=key_prefix or "")
        self._owns_clients = isinstance(client, list)
        self._access = Access(client if isinstance(client, list) else [client])
        self._keep = ttl if ttl and ttl > 0 else DEFAULT_TTL
        self._known: dict[str, _Node] = {}
        self._kept_at = 0.0
        self._kept_group = ""
        self._heard: Any = _UNKNOWN
        self._news = News(self._access, self._names.small)
        self._people_news = News(self._access, self._names.nodes)

    @property
    def name(self) -> str:
        """``etcd-v2``."""
        return "etcd-v2"

    def __repr__(self) -> str:
        return f"<EtcdRendezvousBackend run {self._run_id!r} at {self._access.where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"An EtcdRendezvousBackend (run {self._run_id!r}) holds connections and cannot be pickled: make a client "
            "and a backend in the other process."
        )

    # -- level 1: the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One request."""
        found = self._read("read the register", self._names.register)
        return None if found is None else self._register_in(found)

    def _register_in(self, found: Any) -> tuple[bytes, Token]:
        word, blank, state = (found.value or "").partition(" ")
        try:
            data = b64decode(state, validate=True) if blank and _WORD.fullmatch(word) else None
        except NotBase64:
            data = None
        if data is None:
            raise RendezvousStateError(
                f"The register of run {self._run_id!r} at etcd {self._access.where} (key '{self._names.register}') "
                "was not written by rdzv-etcd. Delete the key, or choose another run id or key_prefix.",
                run_id=self._run_id,
                backend=self.name,
            )
        return data, word

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. Two requests, one if there is none to be."""
        what = "write the register"
        word = secrets.token_urlsafe(9)
        value = f"{word} {b64encode(bytes(state)).decode()}"
        condition: dict[str, Any] = {"prevExist": False}
        if token is not None:
            found = self._read(what, self._names.register)
            if found is None:
                return None
            held = self._register_in(found)
            if held[1] != token:
                return *held, False
            condition = {"prevIndex": found.modifiedIndex, "prevValue": found.value}
        try:
            self._write(what, self._names.register, value, self._keep, **condition)
        except Refused as refused:
            present = self.get_state()
            if present is not None and present[1] == word:
                return *present, True  # the answer to our first try was lost
            if refused.unsure:
                raise RendezvousConnectionError(
                    f"The answer to writing the register of run {self._run_id!r} was lost, and the register now holds "
                    "another write or none. Ours may have been there in between: read again before you decide.",
                    maybe_applied=True,
                    run_id=self._run_id,
                    backend=self.name,
                ) from refused
            return None if present is None else (*present, False)
        return bytes(state), word, True

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs. One request per change, and one every 30 s."""
        end = monotonic() + timeout
        while not self._news.closed:
            mark = self._news.mark()
            held = self.get_state()
            present = None if held is None else held[1]
            if present != token and (held is not None or self._heard != token):
                # A lost register is told once; the next wait is for the write that follows.
                self._heard = token if held is None else _UNKNOWN
                return held
            if not self._news.wait(mark, end - monotonic()) or self._news.leader_lost_since(mark):
                return None
        return None

    # -- level 2: signs of life

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record. Three requests; one more for who arrives or takes the lead."""
        what = "announce a node"
        key = self._names.node(node_id)
        value = f"+ {seq} {b64encode(bytes(record)).decode()}"
        while True:
            stored = self._node(what, key)
            if stored is not None and (stored.seq > seq or (stored.record is None and stored.seq == seq)):
                return self._look(node_id, False, ttl, lead=False)
            try:
                if stored is not None and stored.record is None:
                    self._delete(what, key, prevIndex=stored.index)  # who comes back arrives anew
                    stored = None
                if stored is None:
                    written = self._write(what, key, value, _whole(ttl), prevExist=False)
                else:
                    written = self._write(what, key, value, _whole(ttl), prevIndex=stored.index)
            except Refused:
                continue
            self._known[node_id] = _node_in(written)
            return self._look(node_id, True, ttl, lead=lead)

    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew the node's record, and its lead. Two requests, three for the leader."""
        known = self._renew(node_id, seq, ttl)
        pulse = self._look(node_id, known, ttl, lead=lead and known)
        if pulse.leads and keep > 0:
            self._keep_run(keep, group)
        return pulse

    def _renew(self, node_id: str, seq: int, ttl: float) -> bool:
        what = "give a sign of life"
        key = self._names.node(node_id)
        known = self._known.get(node_id)
        for turn in range(3):
            if turn or known is None or known.seq != seq:
                known = self._node(what, key)
            if known is None or known.record is None or known.seq != seq:
                self._known.pop(node_id, None)
                return False
            try:
                written = self._write(what, key, None, _whole(ttl), refresh=True, prevIndex=known.index)
            except Refused:
                continue
            self._known[node_id] = _node_in(written)
            return True
        return False

    def _look(self, node_id: str, known: bool, ttl: float, *, lead: bool) -> Pulse:
        """See who leads and which write the register is at; take, keep or give up the lead."""
        what = "see who leads"
        leader, register = self._small(what)
        if known and lead and leader is None:
            try:
                leader = self._write(what, self._names.leader, node_id, _whole(ttl), prevExist=False)
            except Refused:
                leader, register = self._small(what)
        elif leader is not None and leader.value == node_id:
            leader = self._hold(what, node_id, ttl, wanted=known and lead)
        return Pulse(
            known=known,
            leads=known and leader is not None and leader.value == node_id,
            lease_left=0.0 if leader is None else float(leader.ttl or 0.01),
            token=None if register is None else self._register_in(register)[1],
        )

    def _hold(self, what: str, node_id: str, ttl: float, *, wanted: bool) -> Any:
        """Keep the lead, or give it up; answers the leader's key as it then is."""
        try:
            if wanted:
                return self._write(what, self._names.leader, None, _whole(ttl), refresh=True, prevValue=node_id)
            self._delete(what, self._names.leader, prevValue=node_id)
        except Refused:
            return self._read(what, self._names.leader)
        return None

    def _small(self, what: str) -> tuple[Any, Any]:
        found = self._read(what, self._names.small, recursive=True)
        children = {} if found is None else {child.key: child for child in found.leaves}
        return children.get(self._names.leader), children.get(self._names.register)

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Replace the node's record by a tombstone, and give up its lead. Three requests or four."""
        what = "withdraw a node"
        self._known.pop(node_id, None)
        key = self._names.node(node_id)
        while True:
            stored = self._node(what, key)
            if stored is not None and stored.seq > seq:
                return
            condition: dict[str, Any] = {"prevExist": False} if stored is None else {"prevIndex": stored.index}
            try:
                self._write(what, key, f"- {seq}", _whole(ttl), **condition)
            except Refused:
                continue
            break
        leader, _ = self._small(what)
        if leader is not None and leader.value == node_id:
            self._hold(what, node_id, ttl, wanted=False)
        if keep is not None:
            self._renew_run(_whole(keep), None)

    # -- how long things stay

    def _keep_run(self, keep: float, group: str) -> None:
        spare = (_MARGIN - 1) * keep
        if group == self._kept_group and monotonic() - self._kept_at < min(spare, 1.0 if spare < 1 else spare):
            return
        self._keep = math.ceil(keep * _MARGIN)
        self._renew_run(self._keep, group)
        self._kept_at, self._kept_group = monotonic(), group

    def _renew_run(self, seconds: int, group: str | None) -> None:
        """Let the register and the pages of ``group`` (None: of all) end so many seconds from now."""
        what = "set how long a run is kept"
        directory = self._names.pages if group is None else self._names.group(group)
        found = self._read(what, directory, recursive=True)
        pages = [] if found is None else [leaf.key for leaf in found.leaves if not leaf.dir]
        for key in (self._names.register, *pages):
            try:
                self._write(what, key, None, seconds, refresh=True, prevExist=True)
            except Refused:
                continue  # it is not there

    # -- level 2: the roster

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records, all of them. While it blocks: one request per change, and one every 30 s."""
        end = monotonic() + timeout
        waits = seen is not None and timeout > 0
        while not self._people_news.closed:
            mark = self._people_news.mark() if waits else (0, 0)
            roster = self._read_roster()
            if roster.version != seen:
                return roster
            if not waits or not self._people_news.wait(mark, end - monotonic()):
                return None
        return None

    def _read_roster(self) -> Roster:
        found = self._read("read the roster", self._names.nodes, recursive=True)
        leaves = [] if found is None else [leaf for leaf in found.leaves if not leaf.dir]
        nodes = {self._names.node_id_of(leaf.key): self._parsed(leaf) for leaf in leaves}
        content = sorted((node.arrival, node_id, node.value) for node_id, node in nodes.items())
        entries = [
            RosterEntry(node_id=node_id, arrival=node.arrival, record=node.record)
            for node_id, node in nodes.items()
            if node.record is not None
        ]
        return Roster(
            version=hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest(),
            records=tuple(sorted(entries, key=lambda entry: entry.arrival)),
            withdrawn=frozenset(node_id for node_id, node in nodes.items() if node.record is None),
        )

    def _node(self, what: str, key: str) -> _Node | None:
        found = self._read(what, key)
        return None if found is None else self._parsed(found)

    def _parsed(self, found: Any) -> _Node:
        try:
            return _node_in(found)
        except (ValueError, NotBase64):
            raise RendezvousStateError(
                f"The key '{found.key}' at etcd {self._access.where} lies among the records of run {self._run_id!r} "
                "and was not written by rdzv-etcd. Delete it, or choose another run id or key_prefix.",
                run_id=self._run_id,
                backend=self.name,
            ) from None

    # -- level 2: pages, and the end

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of ``group``. One request per page."""
        self._keep = math.ceil(keep * _MARGIN)
        for index, page in enumerate(pages):
            key, value = self._names.page(group, index), b64encode(bytes(page)).decode()
            try:
                self._write("publish pages", key, value, self._keep, prevExist=False)
            except Refused:
                continue  # it is there, and immutable

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page. One request."""
        found = self._read("read a page", self._names.page(group, index))
        return None if found is None else b64decode(found.value or "")

    def forget(self) -> None:
        """Drop every key of the run, unless nodes are alive. Two requests, and so not atomic."""
        alive = sorted(entry.node_id for entry in self._read_roster().records)
        if alive:
            raise RendezvousStateError(
                f"Run {self._run_id!r} cannot be forgotten: {len(alive)} of its nodes are alive "
                f"({', '.join(alive[:8])}). Stop them first, or wait one TTL after they died.",
                run_id=self._run_id,
                backend=self.name,
            )
        with suppress(Refused):  # there is nothing
            self._delete("forget the run", self._names.all, recursive=True, dir=True)
        self._known.clear()

    def close(self) -> None:
        """Wake blocked waits, which then return None, and close the connections that are ours."""
        self._news.close()
        self._people_news.close()
        if self._owns_clients:
            self._access.close()

    # -- single calls

    def _read(self, what: str, key: str, **how: Any) -> Any:
        return self._access.read(what, key, **how)

    def _write(self, what: str, key: str, value: str | None, seconds: int, **condition: Any) -> Any:
        return self._access.write(what, key, value, seconds, **condition)

    def _delete(self, what: str, key: str, **condition: Any) -> None:
        self._access.delete(what, key, **condition)


def _whole(seconds: float) -> int:
    """Whole seconds, not fewer."""
    return max(1, math.ceil(seconds))


def _node_in(found: Any) -> _Node:
    """What the key of a node holds.

    Raises:
        ValueError: It is none of ours.
    """
    kind, _, rest = (found.value or "").partition(" ")
    digits, _, record = rest.partition(" ")
    if kind not in ("+", "-"):
        raise ValueError(kind)
    return _Node(
        seq=int(digits),
        record=b64decode(record, validate=True) if kind == "+" else None,
        value=found.value,
        index=found.modifiedIndex,
        arrival=found.createdIndex,
    )
