"""The contract of :mod:`rdzv_core.backend` over etcd's v3 API.

etcd has what the contract asks for, so nothing is emulated: a node is a key bound to a lease, and arrives with the
revision that created it; the leader's key is bound to the lease of its node; what one call must do at once is one
transaction; waits are watches.

Three things are worth knowing:

* A sign of life is two requests: the lease is renewed, and one transaction reads who leads and which write the
  register is at. A follower's do not touch etcd's log, whatever the number of nodes.
* The register is two keys, its bytes and the random word of their write. A write compares the revision of the one
  and the word of the other; a store that was rolled back counts revisions again, but does not draw the same words.
* etcd's leases have whole seconds, and are no shorter than its election timeout and a half (2 s by default): times
  to live are rounded up. An ended lease is noticed within half a second.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.backend import CoordinationBackend, Pulse, Roster, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from .gateway import (
    LONGEST_LEASE,
    Change,
    Compare,
    Delete,
    EtcdClosed,
    EtcdError,
    Gateway,
    KeyValue,
    Op,
    Put,
    Range,
    RangeReply,
    Refusal,
    Txn,
    TxnReply,
    Usage,
    prefix_end,
    seconds_of,
)
from .keys import (
    RunKeys,
    buried_after,
    buried_at_or_after,
    is_seq,
    node_value,
    overtakes,
    split_node_value,
    tombstone,
)
from .listening import Listening
from .mirror import Mirror, UnreadableRecord
from .options import ETCD_OPTIONS
from .target import Target, target_of

__all__ = ["EtcdV3RendezvousBackend"]

_TOKEN = re.compile(r"([0-9]{1,18})\.([A-Za-z0-9_-]{1,32})")
_KEEP_AT_FIRST = 900  # seconds that a register stays before anybody has said how long
_MARGIN = 1.25  # a lease to be kept is made this much longer, so that not every pulse need renew it
_STEPS = 60  # per transaction; etcd allows 128, and an inner one counts on top of those around it
_BYTES = 1_000_000  # of values per transaction; etcd allows 1.5 MB in all
_NOTHING: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Presence:
    """How this client keeps one node alive."""

    lease: int
    seq: int
    """Of the record that it holds up; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Beat:
    """The leader's last beat, as this client has seen it."""

    mod_revision: int
    seen_at: float
    """By our monotonic clock, when it was seen first."""


class EtcdV3RendezvousBackend(CoordinationBackend):
    """One run on one cluster. Connects at the first call.

    Args:
        target: The cluster; see :func:`rdzv_etcd.target.target_of`.
        run_id: The run; any text but the empty one.

    Raises:
        ValueError: The run id is empty.
    """

    options = ETCD_OPTIONS

    def __init__(self, target: Target, run_id: str) -> None:
        self._run_id = run_id
        self._target = target
        self._keys = RunKeys(run_id=run_id, prefix=target.key_prefix)
        self._gateway = Gateway(target.cluster)
        self._presences: dict[str, _Presence] = {}
        self._beat: _Beat | None = None
        self._leader_seen: bytes | None = None
        self._run_lease = 0
        self._keep = _KEEP_AT_FIRST
        self._kept: dict[int, float] = {}
        self._group_leases: dict[str, int] = {}
        self._held: dict[bytes, KeyValue] = {}
        self._held_at = 0
        self._heard: Any = _NOTHING
        self._register_news = Listening(self._gateway, "the register", self._keys.news, self._begin_hearing)
        self._mirror = Mirror(self._keys)
        self._roster_news = Listening(self._gateway, "the roster", self._keys.people, self._refresh_mirror)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        run_id: str,
        options: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> EtcdV3RendezvousBackend:
        """Make a backend from an endpoint's text and options, as a user writes them.

        Raises:
            ValueError: Endpoint, options or run id are not understood.
        """
        return cls(target_of(endpoint, options or {}, environ or {}), run_id)

    @property
    def name(self) -> str:
        """``etcd-v3``."""
        return "etcd-v3"

    @property
    def usage(self) -> Usage:
        """What this backend's calls have cost so far."""
        return self._gateway.usage

    def __repr__(self) -> str:
        return f"<EtcdV3RendezvousBackend run {self._run_id!r} at {self._target}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"An EtcdV3RendezvousBackend (run {self._run_id!r}) holds connections and cannot be pickled: pass endpoint "
            "and run id to the other process, and make a backend there."
        )

    # -- level 1: the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One request."""
        with self._translated():
            found, _ = self._gateway.range("read the register", Range(*self._keys.news))
        return self._register_in({kv.key: kv for kv in found.kvs})

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. One request; one more for the first write of a run.

        Raises:
            RendezvousConnectionError: With ``maybe_applied`` if the answer was lost and somebody else has written
                since, or nothing more can be learnt.
        """
        expected = self._expected(token)
        word = secrets.token_urlsafe(9)
        with self._translated():
            reply = self._write_register(bytes(state), expected, word)
        if reply.succeeded:
            return bytes(state), f"{reply.revision}.{word}", True
        found = {kv.key: kv for kv in reply.range(0).kvs}
        held = self._register_in(found)
        if reply.unsure and self._keys.fence in found and found[self._keys.fence].value.decode() == word:
            assert held is not None
            return *held, True
        if reply.unsure:
            raise RendezvousConnectionError(
                f"The answer to writing the register of run {self._run_id!r} was lost, and when etcd at "
                f"{self._target} was asked again, the register held another write. Ours may have been there in "
                "between: read again before you decide.",
                maybe_applied=True,
                run_id=self._run_id,
                backend=self.name,
            )
        return None if held is None else (*held, False)

    def _expected(self, token: Token | None) -> list[Compare]:
        register, fence = self._keys.register, self._keys.fence
        if token is None:
            return [Compare(register, "CREATE", "EQUAL", 0)]
        parts = _TOKEN.fullmatch(token) if isinstance(token, str) else None
        if parts is None:
            return [Compare(register, "CREATE", "LESS", 0)]  # never: a foreign token is a lost race
        return [
            Compare(register, "MOD", "EQUAL", int(parts[1])),
            Compare(fence, "VALUE", "EQUAL", parts[2].encode()),
        ]

    def _write_register(self, state: bytes, expected: Sequence[Compare], word: str) -> TxnReply:
        while True:
            lease = self._run_lease
            granted = not lease
            if granted:
                lease = self._gateway.grant("write the register", self._keep)
            try:
                reply = self._gateway.txn(
                    "write the register",
                    Txn(
                        expected,
                        then=[Put(self._keys.register, state, lease), Put(self._keys.fence, word.encode(), lease)],
                        otherwise=[Range(*self._keys.news)],
                    ),
                )
            except Refusal as refusal:
                if granted or not refusal.lease_not_found:
                    raise
                self._run_lease = 0
                continue
            if reply.succeeded:
                self._run_lease = lease
            return reply

    def _register_in(self, found: Mapping[bytes, KeyValue]) -> tuple[bytes, Token] | None:
        """The register among keys that were read, and note of the lease that it ends with."""
        register, fence = found.get(self._keys.register), found.get(self._keys.fence)
        if register is None:
            return None
        word = "" if fence is None else fence.value.decode("ascii", "replace")
        token = f"{register.mod_revision}.{word}"
        if fence is None or not _TOKEN.fullmatch(token):
            raise RendezvousStateError(
                f"The register of run {self._run_id!r} at etcd {self._target} (key "
                f"'{self._keys.register.decode()}') was not written by rdzv-etcd: its key 'run/fence' is missing or "
                "damaged. Delete the key, or choose another run id or key_prefix.",
                run_id=self._run_id,
                backend=self.name,
            )
        self._run_lease = fence.lease
        return register.value, token

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs. No request while it waits.

        After the first call the watch stays, so that a later call needs no request at all.
        """
        end = monotonic() + timeout
        vacant = False
        with self._translated(), suppress(EtcdClosed):
            fresh = self._register_news.begin()
            while True:
                if not fresh:
                    vacant |= self._hear_what_has_come()
                held = self._register_in(self._held)
                present = None if held is None else held[1]
                if present != token and (held is not None or self._heard != token):
                    if fresh or _counts_higher(present, token):
                        # A lost register is told once; the next wait is for the write that follows.
                        self._heard = token if held is None else _NOTHING
                        return held
                    self._begin_hearing()  # the caller may know more than we have heard yet
                    fresh = True
                    continue
                if vacant:
                    return None
                changes = self._register_news.next(end - monotonic())
                if changes:
                    vacant |= self._hear(changes)
                elif changes is not None or monotonic() >= end:
                    return None
                fresh = self._register_news.begin()
        return None

    def _begin_hearing(self) -> int:
        found, revision = self._gateway.range("read the register", Range(*self._keys.news))
        self._held = {kv.key: kv for kv in found.kvs}
        self._held_at = revision
        return revision

    def _hear_what_has_come(self) -> bool:
        vacant = False
        while changes := self._register_news.next(0):
            vacant |= self._hear(changes)
        if changes is None:
            self._register_news.begin()
        return vacant

    def _hear(self, changes: Sequence[Change]) -> bool:
        """Take note of what was written; answers whether the run is without a leader since."""
        vacant = False
        for change in changes:
            if change.kv.mod_revision <= self._held_at:
                continue  # a read has overtaken it
            if change.deleted:
                self._held.pop(change.kv.key, None)
            else:
                self._held[change.kv.key] = change.kv
            if change.kv.key == self._keys.leader:
                vacant = change.deleted
        return vacant

    # -- level 2: signs of life

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record. Two requests."""
        what = "announce a node"
        node, tomb = self._keys.node(node_id), self._keys.tomb(node_id)
        with self._translated():
            while True:
                lease = self._lease_for(what, node_id, seq, ttl)
                put: list[Op] = [
                    Put(node, node_value(seq, bytes(record)), lease),
                    Delete(tomb),
                    self._lead(node_id, lease, lead),
                ]
                unless_overtaken = Txn([overtakes(node, seq)], otherwise=put)
                unless_buried = Txn([buried_at_or_after(tomb, seq)], otherwise=[unless_overtaken])
                try:
                    reply = self._gateway.txn(what, Txn([], then=[unless_buried, Range(*self._keys.signs)]))
                except Refusal as refusal:
                    if not refusal.lease_not_found:
                        raise
                    self._presences.pop(node_id, None)  # it ended between the two requests
                    continue
                break
        buried = reply.txn(0)
        known = not buried.succeeded and not buried.txn(0).succeeded
        if known:
            self._presences[node_id] = _Presence(lease=lease, seq=seq)
        return self._pulse_of(node_id, known, reply.range(1))

    def _lease_for(self, what: str, node_id: str, seq: int, ttl: float) -> int:
        """A lease of that length for the node that begins now: the one that it has, or a new one."""
        held = self._presences.get(node_id)
        if held is not None and seconds_of(held.lease) == _whole(ttl):
            if held.seq > seq or self._gateway.keep_alive(what, held.lease):
                return held.lease
            self._presences.pop(node_id, None)
        return self._gateway.grant(what, _whole(ttl))

    def _lead(self, node_id: str, lease: int, lead: bool) -> Txn:
        """Take the leader's key if it is vacant, keep it if it is ours; or give it up."""
        leader, beat, name = self._keys.leader, self._keys.beat, node_id.encode()
        mine = Compare(leader, "VALUE", "EQUAL", name)
        if not lead:
            return Txn([mine], then=[Delete(leader), Delete(beat)])
        take: list[Op] = [Put(leader, name, lease), Put(beat, b"", lease)]
        move = Txn([mine], then=take)
        keep = Txn([mine, Compare(leader, "LEASE", "EQUAL", lease)], then=[Put(beat, b"", lease)], otherwise=[move])
        return Txn([Compare(leader, "CREATE", "EQUAL", 0)], then=take, otherwise=[keep])

    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew the node's record, and its leader's key. Two requests; now and then two more for a leader."""
        mine = node_id.encode()
        with self._translated():
            presence, is_new = self._renewed(node_id, seq, ttl)
            may_lead = presence is not None and self._leader_seen in (None, mine)
            reply = self._look(node_id, seq, presence, is_new, lead if may_lead else None)
            if presence is not None and reply.succeeded:
                self._presences[node_id] = presence
                if not may_lead and _value(reply.range(-1), self._keys.leader) in (None, mine):
                    reply = self._look(node_id, seq, presence, False, lead)
            pulse = self._pulse_of(node_id, reply.succeeded, reply.range(-1))
            if pulse.leads and keep > 0:
                self._keep_run(reply.range(-1), keep, group)
        return pulse

    def _renewed(self, node_id: str, seq: int, ttl: float) -> tuple[_Presence | None, bool]:
        """Renew the lease of the record, if it is there under this seq; or make one, to which it is yet to be bound."""
        what = "give a sign of life"
        held = self._presences.get(node_id)
        if held is None or held.seq != seq:
            found, _ = self._gateway.range(what, Range(self._keys.node(node_id)))
            parts = split_node_value(found.only.value) if found.only is not None else None
            if found.only is None or parts is None or parts[0] != seq:
                return None, False
            held = _Presence(lease=found.only.lease, seq=seq)
        if seconds_of(held.lease) != _whole(ttl):
            return replace(held, lease=self._gateway.grant(what, _whole(ttl))), True
        if self._gateway.keep_alive(what, held.lease):
            return held, False
        self._presences.pop(node_id, None)
        return None, False

    def _look(self, node_id: str, seq: int, presence: _Presence | None, is_new: bool, lead: bool | None) -> TxnReply:
        """See whether the record is there, and how things stand; bind it to a new lease, and lead if told to."""
        node = self._keys.node(node_id)
        signs = Range(*self._keys.signs)
        steps: list[Op] = []
        if presence is not None and is_new:
            steps.append(Put(node, None, presence.lease))
        if presence is not None and lead is not None:
            steps.append(self._lead(node_id, presence.lease, lead))
        txn = Txn(is_seq(node, seq), then=[*steps, signs], otherwise=[signs])
        return self._gateway.txn("give a sign of life", txn, writes=bool(steps))

    def _pulse_of(self, node_id: str, known: bool, signs: RangeReply) -> Pulse:
        """The answer to a sign of life, from what stands in the run's small keys."""
        found = {kv.key: kv for kv in signs.kvs}
        leader, beat, fence = (found.get(key) for key in (self._keys.leader, self._keys.beat, self._keys.fence))
        self._leader_seen = None if leader is None else leader.value
        if fence is not None:
            self._run_lease = fence.lease
        return Pulse(
            known=known,
            leads=known and leader is not None and leader.value == node_id.encode(),
            lease_left=0.0 if leader is None else self._lease_left(leader, beat),
            token=None if fence is None else f"{fence.mod_revision}.{fence.value.decode('ascii', 'replace')}",
        )

    def _lease_left(self, leader: KeyValue, beat: KeyValue | None) -> float:
        """Seconds until the leader's lease ends, at most: its length, from when we saw the present beat first."""
        now = monotonic()
        revision = beat.mod_revision if beat is not None else leader.mod_revision
        if self._beat is None or self._beat.mod_revision != revision:
            self._beat = _Beat(mod_revision=revision, seen_at=now)
        return max(0.01, seconds_of(leader.lease) - (now - self._beat.seen_at))

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Remove the node's record and leave a tombstone. Two requests."""
        what = "withdraw a node"
        node, tomb = self._keys.node(node_id), self._keys.tomb(node_id)
        leader = self._keys.leader
        step_down = Txn(
            [Compare(leader, "VALUE", "EQUAL", node_id.encode())], then=[Delete(leader), Delete(self._keys.beat)]
        )
        with self._translated():
            while True:
                lease = self._lease_for(what, node_id, seq, ttl)
                bury = Txn(
                    [overtakes(node, seq)], otherwise=[Put(tomb, tombstone(seq), lease), Delete(node), step_down]
                )
                unless_buried = Txn([buried_after(tomb, seq)], otherwise=[bury])
                try:
                    reply = self._gateway.txn(what, Txn([], then=[unless_buried, Range(*self._keys.signs)]))
                except Refusal as refusal:
                    if not refusal.lease_not_found:
                        raise
                    self._presences.pop(node_id, None)
                    continue
                break
            refused = reply.txn(0).succeeded or reply.txn(0).txn(0).succeeded
            if not refused:
                self._presences[node_id] = _Presence(lease=lease, seq=-1)
            self._pulse_of(node_id, False, reply.range(1))
            if not refused and keep is not None:
                self._expire_run(_whole(keep), reply.range(1))

    # -- how long register and pages stay

    def _keep_run(self, signs: RangeReply, keep: float, group: str) -> None:
        """Renew, now and then, the leases of register and pages; bind the register to a longer one if need be."""
        self._keep = _whole(keep * _MARGIN)
        fence = _find(signs, self._keys.fence)
        if fence is not None:
            if fence.lease not in self._kept:
                self._group_leases = {}  # somebody has bound the run anew, and its pages too
            if not self._still(fence.lease, keep):
                lease = self._gateway.grant("keep the register", self._keep)
                self._rebind([self._keys.register, self._keys.fence], lease, guard=fence)
                self._kept[lease] = monotonic()
        known = self._group_leases.get(group, 0)
        if not group or (known and self._still(known, keep)):
            return
        prefix = self._keys.group(group)
        found, _ = self._gateway.range("keep pages", Range(prefix, prefix_end(prefix), keys_only=True))
        short = [kv.key for kv in found.kvs if not self._still(kv.lease, keep)]
        if short:
            lease = self._gateway.grant("keep pages", self._keep)
            self._rebind(short, lease)
            self._kept[lease] = monotonic()
            self._group_leases = {group: lease}
        elif found.kvs:
            self._group_leases = {group: found.kvs[0].lease}

    def _still(self, lease: int, keep: float) -> bool:
        """Whether what ends with this lease stays for ``keep`` seconds; renews it if it must."""
        spare = seconds_of(lease) - min(keep, LONGEST_LEASE)
        if spare < 0:
            return False
        now = monotonic()
        last = self._kept.get(lease)
        if last is not None and now - last < spare:
            return True
        self._kept = {known: at for known, at in self._kept.items() if now - at < seconds_of(known)}
        if not self._gateway.keep_alive("keep the register", lease):
            return False
        self._kept[lease] = now
        return True

    def _rebind(self, keys: Sequence[bytes], lease: int, guard: KeyValue | None = None) -> bool:
        """Let keys end with another lease; with ``guard``, only if that key still ends with the lease that it had."""
        for first in range(0, len(keys), _STEPS):
            steps = [
                Txn([Compare(key, "CREATE", "GREATER", 0)], then=[Put(key, None, lease)])
                for key in keys[first : first + _STEPS]
            ]
            compare = [] if guard is None or first else [Compare(guard.key, "LEASE", "EQUAL", guard.lease)]
            if not self._gateway.txn("set how long a run is kept", Txn(compare, then=steps)).succeeded:
                return False
        return True

    def _expire_run(self, seconds: int, signs: RangeReply) -> None:
        """Let register and pages end ``seconds`` from now. The first to say so binds them; the rest renew."""
        what = "set how long a run is kept"
        fence = _find(signs, self._keys.fence)
        if fence is not None and seconds_of(fence.lease) == seconds and self._gateway.keep_alive(what, fence.lease):
            return
        pages = Range(self._keys.pages, prefix_end(self._keys.pages), keys_only=True)
        found, _ = self._gateway.range(what, pages)
        keys = [kv.key for kv in found.kvs]
        if fence is not None:
            keys = [self._keys.register, self._keys.fence, *keys]
        if keys:
            self._rebind(keys, self._gateway.grant(what, seconds), guard=fence)

    # -- level 2: the roster

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records: what has changed since the last time, and always answered whole.

        No request while it blocks.
        """
        end = monotonic() + timeout
        with self._translated(), suppress(EtcdClosed):
            if seen is None or timeout <= 0:
                self._refresh_mirror(whole=seen is None)
                return None if self._mirror.version == seen else self._mirror.roster()
            while True:
                self._roster_news.begin()
                if self._mirror.version != seen:
                    return self._mirror.roster()
                changes = self._roster_news.next(end - monotonic())
                if changes:
                    self._mirror.hear(changes)
                elif changes is not None or monotonic() >= end:
                    return None
        return None

    def _refresh_mirror(self, *, whole: bool = False) -> int:
        """Bring the mirror up to date; answers the store's revision."""
        what, mirror, people = "read the roster", self._mirror, self._keys.people
        if mirror.revision and not whole:
            found, revision = self._gateway.range(what, Range(*people, changed_from=mirror.revision + 1))
            if mirror.update(found, revision):
                return revision
        found, revision = self._gateway.range(what, Range(*people))
        mirror.replace(found, revision)
        return revision

    # -- level 2: pages, and the end

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of ``group``. Two requests for some 60 pages."""
        what = "publish pages"
        self._keep = _whole(keep * _MARGIN)
        with self._translated():
            lease = self._gateway.grant(what, self._keep)
            for steps in self._in_portions(group, pages, lease):
                self._gateway.txn(what, Txn([], then=steps))
        self._kept[lease] = monotonic()
        self._group_leases = {group: lease}

    def _in_portions(self, group: str, pages: Sequence[bytes], lease: int) -> Iterator[list[Op]]:
        """Transactions that write the pages that are not there, and keep those that are, none of them too large."""
        portion: list[Op] = []
        size = 0
        for index, page in enumerate(pages):
            key = self._keys.page(group, index)
            shorter = Compare(key, "LEASE", "LESS", (seconds_of(lease) + 1) << 40)
            renew = Txn([shorter], then=[Put(key, None, lease)])
            step = Txn([Compare(key, "CREATE", "EQUAL", 0)], then=[Put(key, bytes(page), lease)], otherwise=[renew])
            if portion and (len(portion) == _STEPS or size + len(page) > _BYTES):
                yield portion
                portion, size = [], 0
            portion.append(step)
            size += len(page)
        if portion:
            yield portion

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page. One request."""
        with self._translated():
            found, _ = self._gateway.range("read a page", Range(self._keys.page(group, index)))
        return None if found.only is None else found.only.value

    def forget(self) -> None:
        """Drop every key of the run, unless nodes are alive. One request."""
        nodes, end = self._keys.nodes, prefix_end(self._keys.nodes)
        nobody = Compare(nodes, "CREATE", "EQUAL", 0, end)
        drop = Delete(self._keys.all, prefix_end(self._keys.all))
        with self._translated():
            reply = self._gateway.txn(
                "forget the run", Txn([nobody], then=[drop], otherwise=[Range(nodes, end, keys_only=True)])
            )
        if not reply.succeeded:
            alive = reply.range(0).kvs
            names = ", ".join(sorted(self._keys.node_id_of(kv.key) for kv in alive)[:8])
            raise RendezvousStateError(
                f"Run {self._run_id!r} cannot be forgotten: {len(alive)} of its nodes are alive ({names}). "
                "Stop them first, or wait one TTL after they died.",
                run_id=self._run_id,
                backend=self.name,
            )

    def close(self) -> None:
        """Close all connections, and wake blocked waits, which then return None."""
        self._gateway.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the client's errors into errors of the rendezvous."""
        about: dict[str, Any] = {"run_id": self._run_id, "backend": self.name}
        try:
            yield
        except EtcdError as error:
            raise RendezvousConnectionError(
                str(error), maybe_applied=error.maybe_applied, permanent=error.permanent, **about
            ) from error
        except UnreadableRecord as record:
            raise RendezvousStateError(
                f"The key '{record}' at etcd {self._target} lies among the records of run {self._run_id!r} and was not "
                "written by rdzv-etcd. Delete it, or choose another run id or key_prefix.",
                **about,
            ) from None


def _whole(seconds: float) -> int:
    """Whole seconds, not fewer, as far as a lease can last."""
    return min(max(1, math.ceil(seconds)), LONGEST_LEASE)


def _find(found: RangeReply, key: bytes) -> KeyValue | None:
    return next((kv for kv in found.kvs if kv.key == key), None)


def _value(found: RangeReply, key: bytes) -> bytes | None:
    kv = _find(found, key)
    return None if kv is None else kv.value


def _counts_higher(present: Token | None, token: Token | None) -> bool:
    """Whether one token is certainly of a later write than the other, unless the store was rolled back."""
    numbers = [_TOKEN.fullmatch(t) if isinstance(t, str) else None for t in (present, token)]
    one, other = (0 if found is None else int(found[1]) for found in numbers)
    return one > other
