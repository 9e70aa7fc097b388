"""A torch ``Store`` on etcd, by its v3 or its v2 API: waits are pushed, any number of threads may wait at a time.

What a store does is written once, over the few things that both APIs can do with single keys
(:class:`rdzv_etcd.keyspace.Keyspace`). Three traps of torch's C++ side show: it calls some methods by two
spellings; it keeps only its own half of a Python store alive; and it hands values over as bytes, and wants bytes back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, NoReturn, TypeVar

from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.store_values import Value, addend, key_list, value_bytes

from .gateway import EtcdError, Gateway
from .keys import RunKeys
from .keyspace import GatewayKeyspace, Keyspace, Overtaken
from .target import target_of

try:
    import torch.distributed as dist
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'EtcdStore is a torch.distributed.Store, and torch is not installed: pip install "rdzv-core[torch]", or '
        "install your own build of torch.",
        name=error.name,
    ) from error

__all__ = ["EtcdStore"]

_NUMBER = re.compile(rb"\s*([+-]?\d+)")  # at the beginning of a value, as torch's stores read it
_T = TypeVar("_T")

DEFAULT_TIMEOUT = timedelta(seconds=300)
"""As torch's."""

# Every store ever made, clones too: C++ does not keep the Python half of one alive.
_ALIVE: list[EtcdStore] = []


class EtcdStore(dist.Store):  # type: ignore[misc]
    """Keys under one prefix, as a ``torch.distributed.Store``.

    Differs from TCPStore: it outlives each of its users; ``get`` in one thread holds up no other; keys expire.
    :meth:`connect` makes one from an endpoint.

    Args:
        etcd_client: A client of python-etcd for the v2 API, or a :class:`rdzv_etcd.gateway.Gateway` for v3.
        etcd_store_prefix: What all keys begin with.
        timeout: How long ``get`` and ``wait`` wait for a key; 300 s if None.
        ttl: How long the keys stay after the last write of this store.
    """

    def __init__(
        self,
        etcd_client: Any,
        etcd_store_prefix: str,
        timeout: timedelta | None = None,
        *,
        ttl: timedelta = timedelta(days=7),
    ) -> None:
        seconds = max(1, round(ttl.total_seconds()))
        if isinstance(etcd_client, Gateway):
            keys: Keyspace = GatewayKeyspace(etcd_client, etcd_store_prefix.rstrip("/").encode() + b"/", seconds)
        else:
            from .v2.keyspace import V2Keyspace

            keys = V2Keyspace(etcd_client, etcd_store_prefix, seconds)
        self._begin(keys, timeout or DEFAULT_TIMEOUT)

    def _begin(self, keys: Keyspace, timeout: timedelta) -> None:
        dist.Store.__init__(self)
        self._keys = keys
        self.set_timeout(timeout)
        _ALIVE.append(self)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        run_id: str,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        ttl: timedelta = timedelta(days=7),
        options: Mapping[str, Any] | None = None,
    ) -> EtcdStore:
        """Make the store of a run, by the v3 API; ``forget()`` of the run's backend drops it too.

        Args:
            endpoint: etcd, in any form that ``--rdzv-endpoint`` takes.
            run_id: The run whose keys these are.
            timeout: How long ``get`` and ``wait`` wait for a key.
            ttl: How long the keys stay after the last write of this store.
            options: Options of the connection, such as ``ca_cert``.

        Raises:
            ValueError: Endpoint, run id or an option is not understood.
        """
        target = target_of(endpoint, options or {}, os.environ)
        prefix = RunKeys(run_id=run_id, prefix=target.key_prefix).store.decode()
        return cls(Gateway(target.cluster), prefix, timeout, ttl=ttl)

    def __repr__(self) -> str:
        return f"<EtcdStore {self._keys.where}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("An EtcdStore holds connections and cannot be pickled: make one in the other process.")

    # -- values

    def set(self, key: str, value: Value) -> None:
        """Write ``value``, and wake who waits for the key."""
        self.multi_set([key], [value])

    def multi_set(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        """Write several values; all at once, if there are no more than 100 of them and the API is v3."""
        pairs = {key: value_bytes(value) for key, value in zip(keys, values, strict=True)}
        _asked(lambda: self._keys.write(pairs))

    def get(self, key: str) -> bytes:
        """Read a value; wait for it up to the store's timeout.

        Raises:
            DistStoreError: Nobody has set it by then.
        """
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several values; wait for all of them up to the store's timeout."""
        named = key_list(keys)
        found = self._wait(named, self.timeout)
        return [found[key] for key in named]

    def add(self, key: str, amount: int) -> int:
        """Add to the number under ``key``, 0 if there is none; answers the sum."""

        more = addend(amount)

        def sum_of(held: bytes | None) -> bytes:
            number = _NUMBER.match(b"0" if held is None else held)
            if number is None:
                raise dist.DistStoreError(
                    f"Cannot add to key {key!r} ({self!r}): it holds {held!r}, which is no number."
                )
            return str(int(number[1]) + more).encode()

        return int(self._change(key, sum_of))

    def append(self, key: str, value: Value) -> None:
        """Write ``value`` behind what the key holds."""
        self._change(key, lambda held: (held or b"") + value_bytes(value))

    def _change(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace what a key holds by what ``change`` makes of it, as often as it takes; answers that."""
        while True:
            held, version, _ = _asked(lambda: self._keys.read(key))
            value = change(held)
            if self._swap(key, value, version):
                return value

    def compare_set(self, key: str, expected: Value, desired: Value) -> bytes:
        """Write ``desired`` if the key holds ``expected``, or if it is not there and nothing is expected.

        Returns:
            What the key now holds; ``expected`` if the key is not there. So it was written only if the answer is
            ``desired``.
        """
        wanted, value = value_bytes(expected), value_bytes(desired)
        while True:
            held, version, _ = _asked(lambda: self._keys.read(key))
            if held is None and wanted:
                return wanted
            if held is not None and held != wanted:
                return held
            if self._swap(key, value, version):
                return value

    def _swap(self, key: str, value: bytes, version: int) -> bool:
        try:
            return _asked(lambda: self._keys.swap(key, value, version))
        except Overtaken:
            raise dist.DistNetworkError(
                f"The answer to a write of key {key!r} was lost, and others have written since ({self!r}): it may have "
                "been done or not, and cannot be told apart any more."
            ) from None

    def delete_key(self, key: str) -> bool:
        """Remove a key; answers whether it was there."""
        return _asked(lambda: self._keys.delete(key))

    def deleteKey(self, key: str) -> bool:
        """As :meth:`delete_key`; by this name C++ calls it."""
        return self.delete_key(key)

    def num_keys(self) -> int:
        """How many keys the store holds, all prefixes together."""
        return len(self.list_keys())

    def getNumKeys(self) -> int:
        """As :meth:`num_keys`; by this name C++ calls it."""
        return self.num_keys()

    def list_keys(self) -> list[str]:
        """The names of all keys."""
        return _asked(self._keys.names)

    # -- waiting

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of the keys are there."""
        return all(_asked(lambda key=key: self._keys.read(key))[0] is not None for key in key_list(keys))  # type: ignore[misc]

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all of the keys are there.

        Raises:
            DistStoreError: They are not within ``timeout``, or the store's own timeout if None.
        """
        self._wait(key_list(keys), self.timeout if timeout is None else timeout)

    def _wait(self, keys: Sequence[str], timeout: timedelta) -> dict[str, bytes]:
        began = monotonic()
        end = began + timeout.total_seconds()
        found: dict[str, bytes] = {}
        for key in keys:
            while key not in found:
                held, _, mark = _asked(lambda key=key: self._keys.read(key))  # type: ignore[misc]
                if held is not None:
                    found[key] = held
                    continue
                left = end - monotonic()
                if left <= 0:
                    raise dist.DistStoreError(self._waited_for(keys, found, monotonic() - began))
                _asked(lambda key=key, left=left, mark=mark: self._keys.wait(key, mark, left))  # type: ignore[misc]
        return found

    def _waited_for(self, keys: Sequence[str], found: Mapping[str, bytes], seconds: float) -> str:
        missing = [key for key in keys if key not in found and not self.check([key])]
        shown = ", ".join(repr(key) for key in missing[:8]) + (", ..." if len(missing) > 8 else "")
        return (
            f"Timed out after {seconds:.3g} s waiting for keys that nobody has set: {len(missing)} of {len(keys)} "
            f"({shown}) at {self._keys.where}. Did the rank that sets them start, and with the same run id?"
        )

    # -- the rest

    def has_extended_api(self) -> bool:
        """True: append, multi_get and multi_set are there."""
        return True

    def clone(self) -> EtcdStore:
        """Another store over the same keys and connections."""
        copy: EtcdStore = EtcdStore.__new__(EtcdStore)
        copy._begin(self._keys, self.timeout)
        return copy

    def close(self) -> None:
        """Close the connections of this store and its clones, and wake who waits. The keys stay."""
        self._keys.close()


def _asked(call: Callable[[], _T]) -> _T:
    """Torch's callers know torch's errors."""
    try:
        return call()
    except (EtcdError, RendezvousConnectionError) as error:
        raise dist.DistNetworkError(str(error)) from error
    except RendezvousError as error:
        raise dist.DistStoreError(str(error)) from error
