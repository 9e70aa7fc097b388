"""Single keys of a store by the v2 API."""

from __future__ import annotations

import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from time import sleep
from typing import Any

from rdzv_core.errors import RendezvousConnectionError

from ..keyspace import WORD, Overtaken
from .access import Access, Refused
from .names import encode

__all__ = ["V2Keyspace"]

_LONGEST_WAIT = 30.0
_PAUSE = 0.05


class V2Keyspace:
    """Keys in the directory ``prefix`` by the v2 API; each ends ``seconds`` after it was last written.

    Args:
        client: A client of python-etcd, or a list of clients of members of one cluster.
        prefix: The directory.
        seconds: How long a key stays.
    """

    def __init__(self, client: Any, prefix: str, seconds: int) -> None:
        self._owns_clients = isinstance(client, list)
        self._access = Access(client if isinstance(client, list) else [client])
        self._prefix = "/" + prefix.strip("/")
        self._seconds = seconds

    @property
    def where(self) -> str:
        """Which keys, for people."""
        return f"'{self._prefix}' at etcd {self._access.where}"

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{encode(key)}"

    def read(self, key: str) -> tuple[bytes | None, int, int]:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        import etcd

        def read(client: Any) -> tuple[bytes | None, int, int]:
            try:
                found = client.read(self._key(key), quorum=True)
            except etcd.EtcdKeyNotFound as absent:
                return None, 0, int((absent.payload or {}).get("index", 0))
            return b64decode(found.value or "")[WORD:], found.modifiedIndex, found.etcd_index

        return self._access.call("read a key", read)

    def write(self, pairs: Mapping[str, bytes]) -> None:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        for key, value in pairs.items():
            text = b64encode(secrets.token_bytes(WORD) + value).decode()
            self._access.write("set a key", self._key(key), text, self._seconds)

    def swap(self, key: str, value: bytes, version: int) -> bool:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        text = b64encode(secrets.token_bytes(WORD) + value).decode()
        condition: dict[str, Any] = {"prevIndex": version} if version else {"prevExist": False}
        try:
            self._access.write("change a key", self._key(key), text, self._seconds, **condition)
        except Refused as refused:
            held = self._access.read("change a key", self._key(key))
            if held is not None and held.value == text:
                return True  # the answer to our first try was lost
            if refused.unsure and (held is None or held.modifiedIndex != version):
                raise Overtaken from refused
            return False
        return True

    def delete(self, key: str) -> bool:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        try:
            self._access.delete("delete a key", self._key(key))
        except Refused as refused:
            return refused.unsure
        return True

    def names(self) -> list[str]:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        from .names import RunNames

        found = self._access.read("list keys", self._prefix, recursive=True)
        return [] if found is None else [RunNames.node_id_of(leaf.key) for leaf in found.leaves if not leaf.dir]

    def wait(self, key: str, mark: int, timeout: float) -> None:
        """See :class:`rdzv_etcd.keyspace.Keyspace`."""
        import etcd

        def wait(client: Any) -> None:
            try:
                client.read(self._key(key), wait=True, waitIndex=mark + 1, timeout=min(timeout, _LONGEST_WAIT))
            except (etcd.EtcdWatchTimedOut, etcd.EtcdEventIndexCleared):
                return  # whoever waits reads again

        try:
            self._access.call("wait for a key", wait)
        except RendezvousConnectionError:
            sleep(_PAUSE)  # whoever waits reads again, from another member, and so finds out what is wrong

    def close(self) -> None:
        """Close the connections, unless they are those of a client that somebody brought along."""
        if self._owns_clients:
            self._access.close()
