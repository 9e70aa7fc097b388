"""Calls to a cluster, from any thread: members in turn, logins, deadlines.

A call goes to the member that served the last one. If that cannot be reached, does not answer in its share of the
time, or has no leader, the next one is asked, round and round until the call's time is up; watches on a member that
was left are ended, so that they move along. Whoever calls must have made the call such that it may arrive twice;
:attr:`TxnReply.unsure` tells when it may have. A connection is never shared with a forked child.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
import threading
from collections.abc import Callable, Mapping
from random import SystemRandom
from time import monotonic
from typing import Any, NoReturn, TypeVar

from .cluster import Cluster
from .connection import Answer, Connection
from .errors import Broken, EtcdClosed, EtcdError, Refusal, refusal_of
from .messages import Range, RangeReply, Txn, TxnReply, text
from .watch import Watch

__all__ = ["LONGEST_LEASE", "Gateway", "Usage", "new_lease_id", "seconds_of"]

LONGEST_LEASE = 2**23 - 1
"""Seconds, some 97 days: the longest lease whose id can tell its length."""

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.4
_SHORTEST_TRY = 0.3
_PATHS = ("/v3", "/v3beta")  # etcd 3.3 has only the second
_LEASE_BITS = 40  # of an id are random; those above say the lease's length
_CHANCE = SystemRandom()
_T = TypeVar("_T")


def new_lease_id(seconds: int) -> int:
    """An id for a lease of that length, which it tells: ids are ours to choose, and compare by length."""
    return (seconds << _LEASE_BITS) | (secrets.randbits(_LEASE_BITS) or 1)


def seconds_of(lease: int) -> int:
    """The length of a lease of ours; 0 for no lease."""
    return lease >> _LEASE_BITS


class Usage:
    """What the calls of one client have cost so far."""

    def __init__(self) -> None:
        self.calls = 0
        """Requests, logins and watches included."""
        self.sent = 0
        """Bytes of their bodies."""
        self.received = 0
        """Bytes of the answers' bodies; those of watches are not counted."""


class Gateway:
    """A client of etcd's v3 API over its JSON gateway. Connects at the first call."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.usage = Usage()
        self._closed = False
        self._member = _CHANCE.randrange(len(cluster.members))  # spreads nodes over members
        self._path = ""
        self._token: str | None = None
        self._context: ssl.SSLContext | None = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._login_lock = threading.Lock()
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._watches: set[Watch] = set()

    def _of_this_process(self) -> None:
        if self._pid != os.getpid():
            self._begin()  # the parent's sockets are the parent's

    def __reduce__(self) -> NoReturn:
        raise TypeError("A client of etcd holds connections and cannot be pickled: make one in the other process.")

    # -- calls

    def range(self, what: str, range: Range) -> tuple[RangeReply, int]:
        """Read keys; answers what was found, and at which revision of the store."""
        reply, _ = self._call(what, "kv/range", range.json(), writes=False)
        return RangeReply.read(reply), int(reply.get("header", {}).get("revision", 0))

    def txn(self, what: str, txn: Txn, *, writes: bool = True) -> TxnReply:
        """Run a transaction.

        Args:
            what: The call, in words for errors.
            txn: The transaction; it must do no harm if it arrives twice.
            writes: Whether it may change anything.
        """
        reply, unsure = self._call(what, "kv/txn", txn.json(), writes=writes)
        return TxnReply.read(reply, unsure=unsure)

    def grant(self, what: str, seconds: int) -> int:
        """Make a lease; answers its id, which says its length (:func:`seconds_of`).

        Of more than :data:`LONGEST_LEASE` seconds that many are given. etcd makes very short leases longer: to some
        2 s with its default election timeout.
        """
        seconds = min(seconds, LONGEST_LEASE)
        while True:
            lease = new_lease_id(seconds)
            try:
                self._call(what, "lease/grant", {"TTL": str(seconds), "ID": str(lease)}, writes=True)
            except _RepeatedRefusal as refusal:
                if refusal.refusal.lease_exists:
                    return lease  # the answer to an earlier try was lost
                raise refusal.refusal from None
            except Refusal as refusal:
                if not refusal.lease_exists:
                    raise
            else:
                return lease

    def keep_alive(self, what: str, lease: int) -> bool:
        """Let a lease begin anew; False if it has ended already."""
        reply, _ = self._call(what, "lease/keepalive", {"ID": str(lease)}, writes=True)
        return int(reply.get("result", {}).get("TTL", 0)) > 0

    def watch(self, what: str, key: bytes, end: bytes, revision: int) -> Watch:
        """Listen to changes of the keys from ``key`` up to ``end``, from ``revision`` on."""
        body = {
            "create_request": {"key": text(key), "range_end": text(end), "start_revision": str(revision)},
        }
        return self._with_members(what, lambda member, deadline: self._open_watch(member, body, deadline), False)[0]

    def close(self) -> None:
        """Close every connection; whoever waits on one is woken. Idempotent."""
        self._of_this_process()
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy, watches = list(self._busy), list(self._watches)
            self._changed.notify_all()
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.shut()  # its owner is reading, and closes it
        for watch in watches:
            watch.end()

    def pause(self, seconds: float) -> None:
        """Wait; not for longer than until the client is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, seconds)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    # -- one call, on one member after the other

    def _call(self, what: str, method: str, body: Mapping[str, Any], *, writes: bool) -> tuple[Any, bool]:
        data = json.dumps(body, separators=(",", ":")).encode()
        return self._with_members(what, lambda member, deadline: self._ask(member, method, data, deadline), writes)

    def _with_members(self, what: str, attempt: Callable[[int, float], _T], writes: bool) -> tuple[_T, bool]:
        """Try until it works or the time is up; answers what came, and whether it may have been done before."""
        self._of_this_process()
        members = len(self.cluster.members)
        deadline = monotonic() + self.cluster.timeout
        share = max(self.cluster.timeout / members, _SHORTEST_TRY)
        failures: dict[int, Broken] = {}
        unsure = False
        pause = _FIRST_PAUSE
        while True:
            if self._closed:
                raise EtcdClosed(
                    f"This client of etcd at {self.cluster} was closed; nothing can be asked of it any more."
                )
            member = self._member
            try:
                return attempt(member, min(deadline, monotonic() + share)), unsure
            except Broken as broken:
                failures[member] = broken
                unsure = unsure or (writes and broken.sent)
                hopeless = len(failures) == members and all(b.permanent for b in failures.values())
                wait = pause * _CHANCE.uniform(0.5, 1.5)
                if hopeless or monotonic() + wait >= deadline:
                    raise self._failed(what, failures, unsure=unsure, permanent=hopeless) from broken
                self._leave(member)
                if len(failures) == members:
                    self.pause(wait)
                    pause = min(2 * pause, _LONGEST_PAUSE)
            except Refusal as refusal:
                if unsure:
                    raise _RepeatedRefusal(refusal) from refusal
                raise self._refused(what, refusal) from refusal

    def _failed(self, what: str, failures: Mapping[int, Broken], *, unsure: bool, permanent: bool) -> EtcdError:
        def named(member: int) -> str:
            host, port = self.cluster.members[member]
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

        reasons = {broken.reason for broken in failures.values()}
        if len(reasons) == 1:
            why = reasons.pop()
        else:
            why = "; ".join(f"{named(member)}: {broken.reason}" for member, broken in sorted(failures.items()))
        said = f"Could not {what} at etcd {self.cluster}: {why}."
        if permanent or "; if it speaks" in why:
            advice = ""
        elif unsure:
            advice = " It may have been done all the same: read again before you decide."
        elif any(broken.sent for broken in failures.values()):
            advice = " Nothing was changed. Has the cluster lost its quorum, or is it overloaded?"
        else:
            advice = (
                " Check that etcd runs there, that this node may reach it, and that TLS is on at both ends or none."
            )
        return EtcdError(said + advice, maybe_applied=unsure, permanent=permanent)

    def _closed_error(self) -> EtcdClosed:
        return EtcdClosed(f"This client of etcd at {self.cluster} was closed; nothing can be asked of it any more.")

    def _refused(self, what: str, refusal: Refusal) -> Refusal:
        told = refusal_of(refusal.code, refusal.said)
        told.args = (f"etcd at {self.cluster} refused to {what}: {refusal}",)
        return told

    def _leave(self, member: int) -> None:
        """Ask another member from now on, and let those who listen to this one move along."""
        with self._changed:
            if self._member == member:
                self._member = (member + 1) % len(self.cluster.members)
            left = [watch for watch in self._watches if watch.member == member]
            idle = [c for c in self._idle if c.member == member]
            self._idle = [c for c in self._idle if c.member != member]
        for connection in idle:
            connection.close()
        if len(self.cluster.members) > 1:
            for watch in left:
                watch.end()

    # -- one try on one member

    def _ask(self, member: int, method: str, data: bytes, deadline: float) -> Any:
        token = self._login(member, deadline) if self.cluster.user is not None else None
        try:
            return self._ask_with(member, method, data, token, deadline)
        except Refusal as refusal:
            if token is None or not refusal.wants_login:
                raise
        self._forget_token(token)
        return self._ask_with(member, method, data, self._login(member, deadline), deadline)

    def _ask_with(self, member: int, method: str, data: bytes, token: str | None, deadline: float) -> Any:
        for path in (self._path,) if self._path else _PATHS:
            answer = self._exchange(member, f"{path}/{method}", data, token, deadline)
            if answer.status == 404 and not (isinstance(answer.json, dict) and "code" in answer.json):
                continue
            reply = _understood(answer)
            self._path = path
            return reply
        raise Broken(
            "it does not offer etcd's v3 API as JSON, which etcd 3.3 and newer do unless they run with "
            "--enable-grpc-gateway=false",
            sent=False,
            permanent=True,
        )

    def _exchange(self, member: int, path: str, data: bytes, token: str | None, deadline: float) -> Answer:
        connection = self._take(member, deadline)
        try:
            answer = connection.ask(path, data, token, deadline)
        except BaseException:
            self._drop(connection)
            raise
        self.usage.calls += 1
        self.usage.sent += len(data)
        self.usage.received += len(answer.body)
        self._give_back(connection)
        return answer

    def _open_watch(self, member: int, body: Mapping[str, Any], deadline: float) -> Watch:
        data = json.dumps(body, separators=(",", ":")).encode()
        if not self._path:  # a watch cannot tell by its answer which path is served
            self._ask(member, "kv/range", b'{"key":"AA==","count_only":true}', deadline)
        for _ in range(2):
            token = self._login(member, deadline) if self.cluster.user is not None else None
            connection = Connection(member, self.cluster.members[member], self._ssl(), deadline)
            watch = Watch(connection)
            try:
                connection.send(f"{self._path}/watch", data, token, deadline)
                watch.begin(deadline)
            except Refusal as refusal:
                watch.close()
                if token is None or not refusal.wants_login:
                    raise
                self._forget_token(token)
                continue
            except BaseException:
                watch.close()
                raise
            self.usage.calls += 1
            self.usage.sent += len(data)
            with self._changed:
                self._watches.add(watch)
                closed = self._closed
            if closed:
                watch.end()
            return watch
        raise Broken("it does not accept the token that it has just given out", sent=False)

    def unwatch(self, watch: Watch) -> None:
        """Let go of a watch."""
        with self._changed:
            self._watches.discard(watch)
        watch.close()

    # -- logins

    def _login(self, member: int, deadline: float) -> str:
        token = self._token
        if token is not None:
            return token
        with self._login_lock:
            if self._token is None:
                body = {"name": self.cluster.user, "password": self.cluster.read_password()}
                reply = self._ask_with(member, "auth/authenticate", json.dumps(body).encode(), None, deadline)
                self._token = str(reply.get("token", ""))
            return self._token

    def _forget_token(self, token: str) -> None:
        with self._login_lock:
            if self._token == token:
                self._token = None

    # -- connections

    def _ssl(self) -> ssl.SSLContext | None:
        if self.cluster.tls and self._context is None:
            self._context = self.cluster.ssl_context()
        return self._context

    def _take(self, member: int, deadline: float) -> Connection:
        self._of_this_process()
        while True:
            with self._changed:
                if self._closed:
                    raise self._closed_error()
                idle = next((c for c in reversed(self._idle) if c.member == member), None)
                if idle is not None:
                    self._idle.remove(idle)
                    self._busy.add(idle)
            if idle is None:
                break
            if idle.is_quiet():
                return idle
            self._drop(idle)
        connection = Connection(member, self.cluster.members[member], self._ssl(), deadline)
        with self._changed:
            self._busy.add(connection)
        return connection

    def _give_back(self, connection: Connection) -> None:
        with self._changed:
            self._busy.discard(connection)
            if not self._closed and connection.member == self._member:
                self._idle.append(connection)
                return
        connection.close()

    def _drop(self, connection: Connection) -> None:
        with self._changed:
            self._busy.discard(connection)
        connection.close()


class _RepeatedRefusal(EtcdError):
    """A call was refused that may have been done before: the refusal may be about its own first time."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(
            f"{refusal} It was the second try, and the first may have been done: read again before you decide.",
            maybe_applied=True,
            permanent=refusal.permanent,
        )
        self.refusal = refusal


def _understood(answer: Answer) -> Any:
    """The JSON of an answer that is a success.

    Raises:
        Refusal: etcd said no.
        Broken: It said that another time or another member may do, or it is not etcd.
    """
    reply = answer.json
    if answer.status == 200 and isinstance(reply, dict) and "error" not in reply:
        return reply
    if isinstance(reply, dict):
        # grpc-gateway 1 answers {error, message, code}, a stream {error: {grpc_code, message}}; 2 {code, message}.
        inner = reply.get("error")
        error: Mapping[str, Any] = inner if isinstance(inner, dict) else reply
        said = str(error.get("message") or error.get("error") or f"HTTP status {answer.status}")
        code = error.get("code", error.get("grpc_code", 2))
        refusal = refusal_of(int(code) if isinstance(code, int) else 2, said)
        if refusal.passes_by_itself:
            raise Broken(f"etcd says: {said}", sent=True)
        raise refusal
    if b"HTTP request to an HTTPS server" in answer.body:
        raise Broken("it speaks TLS; write https:// in place of http://", sent=False, permanent=True)
    if answer.status >= 500:
        raise Broken(f"HTTP status {answer.status}", sent=True)
    raise Broken(
        f"it does not answer as etcd does (HTTP status {answer.status}). Does the endpoint name another server?",
        sent=False,
        permanent=True,
    )
