"""The store that the agent gets: rank 0's, with an eye on the exit barrier.

A node whose workers have succeeded waits in torch's exit barrier for all others, for up to five minutes, and asks
nobody whether they are still there. Only its store sees it: the agent adds to one key and waits for another. So
this store passes everything on, and at that point tells the rendezvous that the node is done, and ends the wait when
the rendezvous says that the others are not coming.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.tcp_store import await_keys
from rdzv_core.torchrun.aside import Aside

__all__ = ["AgentStore"]

TERMINAL = "torchelastic/agent/terminal_state"
"""The prefix of the keys of torch's exit barrier."""


class AgentStore(dist.Store):  # type: ignore[misc] # torch has no types here
    """A c10d store over another one.

    Args:
        store: The store of the round.
        handler: The rendezvous to tell and to ask.
    """

    def __init__(self, store: Any, handler: DynamicRendezvousHandler) -> None:
        super().__init__()
        self._store = store
        self._handler = handler

    # --- the exit barrier --------------------------------------------------------------------------------

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; joining the exit barrier tells the rendezvous that this node is done."""
        if not key.startswith(TERMINAL):
            return int(self._store.add(key, amount))
        self._handler.finish()
        count = Aside(lambda _: int(self._store.add(key, amount))).result(lambda: self._handler.released is None)
        if count is None:
            raise self._released()
        return count

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; in the exit barrier only as long as there is somebody to wait for.

        Raises:
            torch.distributed.DistStoreError: The time is over, or the other members have gone; the agent logs it
                and ends well.
        """
        if not any(key.startswith(TERMINAL) for key in keys):
            self._store.wait(keys, *([] if timeout is None else [timeout]))
            return
        seconds = (timeout or self._store.timeout).total_seconds()
        deadline = time.monotonic() + seconds
        waiting = Aside(lambda told_to_end: await_keys(self._store, keys, told_to_end.wait))
        if waiting.result(lambda: self._handler.released is None and time.monotonic() < deadline):
            return
        if self._handler.released is not None:
            raise self._released()
        raise dist.DistStoreError(f"The exit barrier was not passed within {seconds:g} s: {', '.join(keys)}")

    def _released(self) -> Exception:
        text = f"The exit barrier ends early, and this node ends well: {self._handler.released}"
        return dist.DistStoreError(text)  # type: ignore[no-any-return]

    # --- everything else is passed on --------------------------------------------------------------------

    @property
    def timeout(self) -> timedelta:
        """How long ``get`` and ``wait`` wait."""
        return self._store.timeout  # type: ignore[no-any-return]

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long ``get`` and ``wait`` wait."""
        self._store.set_timeout(timeout)

    def set(self, key: str, value: Any) -> None:
        """Write a value."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        """Read a value; waits for it."""
        return self._store.get(key)  # type: ignore[no-any-return]

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Write a value if another one is there."""
        return self._store.compare_set(key, expected, desired)  # type: ignore[no-any-return]

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._store.check(keys))

    def append(self, key: str, value: Any) -> None:
        """Add to the end of a value."""
        self._store.append(key, value)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several values; waits for them."""
        return self._store.multi_get(keys)  # type: ignore[no-any-return]

    def multi_set(self, keys: list[str], values: list[Any]) -> None:
        """Write several values."""
        self._store.multi_set(keys, values)

    def delete_key(self, key: str) -> bool:
        """Remove a key."""
        return bool(self._store.delete_key(key))

    def deleteKey(self, key: str) -> bool:
        """Remove a key."""
        return self.delete_key(key)

    def num_keys(self) -> int:
        """How many keys there are in the store below, of any prefix."""
        return int(self._store.num_keys())

    def getNumKeys(self) -> int:
        """How many keys there are in the store below, of any prefix."""
        return self.num_keys()

    def has_extended_api(self) -> bool:
        """Whether append and the multi calls work."""
        return bool(self._store.has_extended_api())
