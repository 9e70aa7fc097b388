"""A torch ``Store`` on a Redis or Valkey server: waits are pushed, any number of threads may wait at a time.

All keys of a store are fields of one hash of the run, and all queues fields of another, so that two expiries cover
them all. Three traps of torch's C++ side shape this module: it calls some methods by two spellings; it keeps only
its own half of a Python store alive; and it hands values over as bytes, and wants bytes back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn, TypeVar

from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.store_values import Value, addend, key_list, value_bytes

from .connection import Target, target_of
from .keys import RunKeys
from .link import Closed, Link, Subscription

try:
    import torch.distributed as dist
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'RedisStore is a torch.distributed.Store, and torch is not installed: pip install "rdzv-core[torch]", or '
        "install your own build of torch.",
        name=error.name,
    ) from error

__all__ = ["RedisStore"]

_T = TypeVar("_T")

_QueueEmptyError: type[Exception] = getattr(dist, "QueueEmptyError", dist.DistStoreError)  # torch 2.6 has none

# Every store ever made, clones too: C++ does not keep the Python half of one alive.
_ALIVE: list[RedisStore] = []


class RedisStore(dist.Store):  # type: ignore[misc]
    """The keys of one run, as a ``torch.distributed.Store``.

    Differs from TCPStore: it outlives each of its users; ``get`` in one thread holds up no other; keys expire.

    Args:
        endpoint: The server, in any form that ``--rdzv-endpoint`` takes; empty for ``RDZV_REDIS_URL``.
        run_id: The run whose keys these are.
        timeout: How long ``get``, ``wait`` and ``queue_pop`` wait for a key.
        ttl: How long the keys stay after the last use of the store.
        options: Options of the connection, such as ``ssl_ca_certs``.

    Raises:
        ValueError: Endpoint, run id or an option is not understood.
    """

    def __init__(
        self,
        endpoint: str,
        run_id: str,
        *,
        timeout: timedelta = timedelta(seconds=300),
        ttl: timedelta = timedelta(days=7),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        target = target_of(endpoint, options or {}, os.environ)
        self._begin(Link(target), RunKeys(run_id=run_id, prefix=target.prefix), timeout, ttl)

    def _begin(self, link: Link, keys: RunKeys, timeout: timedelta, ttl: timedelta) -> None:
        dist.Store.__init__(self)
        self._link = link
        self._keys = keys
        self._ttl = ttl
        self._ttl_ms = max(1, round(ttl.total_seconds() * 1000))
        self.set_timeout(timeout)
        _ALIVE.append(self)

    def __repr__(self) -> str:
        return f"<RedisStore of run {self._keys.run_id!r} at {self._link.target}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A RedisStore holds connections and cannot be pickled: make one in the other process.")

    # -- values

    def set(self, key: str, value: Value) -> None:
        """Write ``value``, and wake who waits for the key."""
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write several values at once."""
        pairs = [part for key, value in zip(keys, values, strict=True) for part in (key, value_bytes(value))]
        self._run("set a key", "store_set", pairs, repeatable=True)

    def get(self, key: str) -> bytes:
        """Read a value; wait for it up to the store's timeout.

        Raises:
            DistStoreError: Nobody has set it by then.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several values; wait for all of them up to the store's timeout."""
        named = key_list(keys)
        end = monotonic() + self.timeout.total_seconds()
        values: list[bytes] = []

        def missing() -> list[str]:
            values[:] = self._run("read keys", "store_read", named, repeatable=True)
            return [key for key, value in zip(named, values, strict=True) if value is None]

        if missing():
            self._listen(named, end, missing)  # not `wait`, for which a queue of that name would do
        return values

    def add(self, key: str, amount: int) -> int:
        """Add to the number under ``key``, 0 if there is none; answers the sum."""
        return int(self._run("add to a key", "store_add", [key, addend(amount)]))

    def append(self, key: str, value: Value) -> None:
        """Write ``value`` behind what the key holds."""
        self._run("append to a key", "store_append", [key, value_bytes(value)])

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Write ``desired`` if the key holds ``expected``, or if it is not there and nothing is expected.

        Returns:
            What the key now holds; ``expected`` if the key is not there. So it was written only if the answer is
            ``desired``.
        """
        arguments = [key, value_bytes(expected), value_bytes(desired)]
        return bytes(self._run("compare and set a key", "store_compare_set", arguments))

    def delete_key(self, key: str) -> bool:
        """Remove a key; answers whether it was there."""
        reply, _ = self._asked(
            lambda: self._link.run(
                "delete a key", "store_delete", [self._keys.store], [key], writes=True, repeatable=False
            )
        )
        return bool(reply)

    def deleteKey(self, key: str) -> bool:
        """As :meth:`delete_key`; by this name C++ calls it."""
        return self.delete_key(key)

    def num_keys(self) -> int:
        """How many keys the store holds, all prefixes together."""
        return int(self._asked(lambda: self._link.command("count keys", "HLEN", self._keys.store)))

    def getNumKeys(self) -> int:
        """As :meth:`num_keys`; by this name C++ calls it."""
        return self.num_keys()

    def list_keys(self) -> list[str]:
        """The names of all keys."""
        names = self._asked(lambda: self._link.command("list keys", "HKEYS", self._keys.store))
        return [name.decode() for name in names]

    # -- waiting

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys are there."""
        return not self._missing(key_list(keys))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all of the keys are there.

        Raises:
            DistStoreError: They are not within ``timeout``, or the store's own timeout if None.
        """
        named = key_list(keys)
        end = monotonic() + (self.timeout if timeout is None else timeout).total_seconds()
        if self._missing(named):
            self._listen(named, end, lambda: self._missing(named))

    def _missing(self, keys: list[str]) -> list[str]:
        if not keys:
            return []
        missing = self._run("look for keys", "store_missing", keys, repeatable=True, queues=True)
        return [name.decode() for name in missing]

    def _listen(self, keys: Sequence[str], end: float, look: Callable[[], Sequence[str]]) -> None:
        """Wait until none of the keys is missing.

        Args:
            keys: The keys that may be missing at one time or another.
            end: Until when, by the monotonic clock.
            look: Answers what is missing. Asked after every subscribing, whenever all that was missing has been spoken
                of, and once more at the end.
        """
        news = Subscription(self._link, *(f"{self._keys.store}:{key}" for key in dict.fromkeys(keys)))
        unheard: set[str] = set()
        started = monotonic()
        try:
            while True:
                if self._asked(news.open) or not unheard:
                    unheard = set(look())
                    if not unheard:
                        return
                try:
                    message = news.next(end - monotonic())
                except RendezvousConnectionError:
                    continue  # `open` finds out whether the server is still there
                if message is not None and monotonic() < end:
                    unheard.discard(message.decode())
                elif missing := look():
                    raise dist.DistStoreError(self._waited_for(missing, len(keys), monotonic() - started))
                else:
                    return
        except Closed:
            raise dist.DistNetworkError(f"The store was closed while it waited: {self!r}") from None
        finally:
            news.release()

    def _waited_for(self, missing: Sequence[str], of: int, seconds: float) -> str:
        shown = ", ".join(repr(key) for key in missing[:8]) + (", ..." if len(missing) > 8 else "")
        return (
            f"Timed out after {seconds:.3g} s waiting for keys that nobody has set: {len(missing)} of {of} "
            f"({shown}) of run {self._keys.run_id!r} at {self._link.target}. Did the rank that sets them start, and "
            "with the same run id?"
        )

    # -- queues

    def queue_push(self, key: str, value: Value) -> None:
        """Put a value at the end of a queue."""
        self._run("push to a queue", "store_push", [key, value_bytes(value)], queues=True)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the oldest value of a queue; wait for one up to the store's timeout.

        Raises:
            DistStoreError: None came in time.
            QueueEmptyError: There is none, and ``block`` is False.
        """
        end = monotonic() + self.timeout.total_seconds()
        taken: list[bytes] = []

        def take() -> list[str]:
            reply, _ = self._asked(
                lambda: self._link.run(
                    "pop from a queue",
                    "store_pop",
                    [self._keys.queues],
                    [self._ttl_ms, key],
                    writes=True,
                    repeatable=False,
                )
            )
            if reply is not None:
                taken.append(reply)
            return [] if taken else [key]

        if take():
            if not block:
                raise _QueueEmptyError(f"The queue {key!r} of run {self._keys.run_id!r} is empty.")
            self._listen([key], end, take)
        return taken[0]

    def queue_len(self, key: str) -> int:
        """How many values a queue holds."""
        fields = (f"first {key}", f"last {key}")
        first, last = self._asked(lambda: self._link.command("measure a queue", "HMGET", self._keys.queues, *fields))
        return 0 if last is None else int(last) - int(first) + 1

    # -- the rest

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are there."""
        return True

    def clone(self) -> RedisStore:
        """Another store over the same keys and connections."""
        copy: RedisStore = RedisStore.__new__(RedisStore)
        copy._begin(self._link, self._keys, self.timeout, self._ttl)
        return copy

    def close(self) -> None:
        """Close the connections of this store and its clones, and wake who waits. The keys stay."""
        self._link.close()

    @property
    def target(self) -> Target:
        """The server."""
        return self._link.target

    def _run(
        self, what: str, name: str, arguments: list[Any], *, repeatable: bool = False, queues: bool = False
    ) -> Any:
        keys = [self._keys.store, self._keys.queues] if queues else [self._keys.store]
        reply, _ = self._asked(
            lambda: self._link.run(what, name, keys, [self._ttl_ms, *arguments], writes=True, repeatable=repeatable)
        )
        return reply

    @staticmethod
    def _asked(call: Callable[[], _T]) -> _T:
        """Torch's callers know torch's errors."""
        try:
            return call()
        except RendezvousConnectionError as error:
            raise dist.DistNetworkError(str(error)) from error
        except RendezvousError as error:
            raise dist.DistStoreError(str(error)) from error
