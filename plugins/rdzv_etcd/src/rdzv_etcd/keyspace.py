"""Single keys of a store: read, write, swap, wait. By the v3 API here, by v2 in :mod:`rdzv_etcd.v2.keyspace`.

Each value is stored behind a random word, so that a writer whose answer was lost finds its own write again.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Protocol
from urllib.parse import quote, unquote

from .gateway import Compare, Delete, Gateway, Op, Put, Range, Refusal, Txn, TxnReply, WatchEnded, prefix_end

__all__ = ["GatewayKeyspace", "Keyspace", "Overtaken"]

WORD = 8
"""Bytes of the random word before a value."""

_STEPS = 100
_RENEW = 10  # a lease is renewed once a tenth of it has passed


class Overtaken(Exception):
    """A swap may have been done, and others have written since."""


class Keyspace(Protocol):
    """What a store needs of etcd. Every method may be called from any thread."""

    @property
    def where(self) -> str:
        """Which keys, for people."""

    def read(self, key: str) -> tuple[bytes | None, int, int]:
        """A key's value (None if it is not there), its version (0 then), and a mark to wait from."""

    def write(self, pairs: Mapping[str, bytes]) -> None:
        """Write, whatever is there."""

    def swap(self, key: str, value: bytes, version: int) -> bool:
        """Write if the key still has this version.

        Raises:
            Overtaken: It cannot be told.
        """

    def delete(self, key: str) -> bool:
        """Remove a key; answers whether it was there."""

    def names(self) -> list[str]:
        """The names of all keys."""

    def wait(self, key: str, mark: int, timeout: float) -> None:
        """Wait until the key has changed since ``mark``, or perhaps; not longer than ``timeout`` seconds."""

    def close(self) -> None:
        """Let go of connections, and wake who waits."""


class GatewayKeyspace:
    """Keys under ``prefix`` by the v3 API; they end ``seconds`` after the last write made here."""

    def __init__(self, gateway: Gateway, prefix: bytes, seconds: int) -> None:
        self._gateway = gateway
        self._prefix = prefix
        self._seconds = seconds
        self._lock = threading.Lock()
        self._lease = 0
        self._renewed_at = 0.0

    @property
    def where(self) -> str:
        """Which keys, for people."""
        return f"'{self._prefix.decode()}' at etcd {self._gateway.cluster}"

    def _key(self, key: str) -> bytes:
        return self._prefix + quote(key, safe="/:").encode()

    def _lease_now(self) -> int:
        with self._lock:
            now = monotonic()
            if not self._lease or now - self._renewed_at > self._seconds / _RENEW:
                if not self._lease or not self._gateway.keep_alive("keep a store", self._lease):
                    self._lease = self._gateway.grant("keep a store", self._seconds)
                self._renewed_at = now
            return self._lease

    def read(self, key: str) -> tuple[bytes | None, int, int]:
        """See :class:`Keyspace`."""
        found, revision = self._gateway.range("read a key", Range(self._key(key)))
        held = found.only
        if held is None:
            return None, 0, revision
        return held.value[WORD:], held.mod_revision, revision

    def write(self, pairs: Mapping[str, bytes]) -> None:
        """See :class:`Keyspace`."""
        items = list(pairs.items())
        for first in range(0, len(items), _STEPS):
            portion = items[first : first + _STEPS]

            def put(lease: int, portion: list[tuple[str, bytes]] = portion) -> Txn:
                return Txn([], then=[Put(self._key(k), secrets.token_bytes(WORD) + v, lease) for k, v in portion])

            self._with_lease("set a key", put)

    def swap(self, key: str, value: bytes, version: int) -> bool:
        """See :class:`Keyspace`."""
        name, word = self._key(key), secrets.token_bytes(WORD)
        reply = self._with_lease(
            "change a key",
            lambda lease: Txn(
                [Compare(name, "MOD", "EQUAL", version)], then=[Put(name, word + value, lease)], otherwise=[Range(name)]
            ),
        )
        if reply.succeeded:
            return True
        held = reply.range(0).only
        if reply.unsure and (held is None or held.mod_revision != version):
            if held is not None and held.value[:WORD] == word:
                return True
            raise Overtaken
        return False

    def _with_lease(self, what: str, txn: Callable[[int], Txn]) -> TxnReply:
        try:
            return self._gateway.txn(what, txn(self._lease_now()))
        except Refusal as refusal:
            if not refusal.lease_not_found:
                raise
        with self._lock:
            self._lease = 0
        return self._gateway.txn(what, txn(self._lease_now()))

    def delete(self, key: str) -> bool:
        """See :class:`Keyspace`."""
        steps: list[Op] = [Delete(self._key(key))]
        reply = self._gateway.txn("delete a key", Txn([], then=steps))
        return bool(reply.replies[0]) or reply.unsure

    def names(self) -> list[str]:
        """See :class:`Keyspace`."""
        everything = Range(self._prefix, prefix_end(self._prefix), keys_only=True)
        found, _ = self._gateway.range("list keys", everything)
        return [unquote(kv.key[len(self._prefix) :].decode()) for kv in found.kvs]

    def wait(self, key: str, mark: int, timeout: float) -> None:
        """See :class:`Keyspace`."""
        name = self._key(key)
        watch = self._gateway.watch("wait for a key", name, name + b"\0", mark + 1)
        try:
            watch.next(timeout)
        except WatchEnded:
            self._gateway.pause(0.05)  # whoever waits reads again, and so finds out what is wrong
        finally:
            self._gateway.unwatch(watch)

    def close(self) -> None:
        """See :class:`Keyspace`."""
        self._gateway.close()
