"""The keys of a run: nine names under one prefix and one Redis Cluster hash tag.

``rdzv:{job-7}:register``: what stands in braces is the run id, percent-encoded, so that all keys of a run live
in one slot and one script may touch them together. Two channels carry the names of the keys that they speak of:
``register`` (every write of it, with its bytes) and ``live`` (membership or a record has changed).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

__all__ = ["RunKeys"]

_PREFIX = re.compile(r"[A-Za-z0-9_.:/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The names of all keys that a run may own.

    Raises:
        ValueError: The run id is empty, or the prefix holds a character that would break hash tag or pattern.
    """

    run_id: str
    prefix: str = "rdzv"

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("A run id must not be empty: keys of a run need a name of their own.")
        if not _PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"The key prefix {self.prefix!r} is not usable: letters, digits and _ . : / - only, since braces "
                "and wildcards mean something in Redis Cluster and in access rules."
            )

    def __getitem__(self, part: str) -> str:
        return f"{self.prefix}:{{{quote(self.run_id, safe='')}}}:{part}"

    @property
    def live(self) -> str:
        """Sorted set: who is alive, by the server's moment of expiry. Also a channel."""
        return self["live"]

    @property
    def nodes(self) -> str:
        """Hash: the records, the roster's version, and the leader lease."""
        return self["nodes"]

    @property
    def left(self) -> str:
        """Hash: tombstones of nodes that have withdrawn."""
        return self["left"]

    @property
    def log(self) -> str:
        """Sorted set: who changed in which version."""
        return self["log"]

    @property
    def register(self) -> str:
        """Hash: the compare-and-set register. Also a channel."""
        return self["register"]

    @property
    def pages(self) -> str:
        """Hash: the pages of all groups."""
        return self["pages"]

    @property
    def groups(self) -> str:
        """Sorted set: the groups of pages, by the server's moment until which they are kept."""
        return self["groups"]

    @property
    def store(self) -> str:
        """Hash: the keys and values of the run's :class:`rdzv_redis.RedisStore`."""
        return self["store"]

    @property
    def queues(self) -> str:
        """Hash: the queues of the run's :class:`rdzv_redis.RedisStore`."""
        return self["queues"]

    @property
    def every(self) -> tuple[str, ...]:
        """All of them, in the order that ``forget.lua`` declares."""
        return (
            self.live,
            self.nodes,
            self.left,
            self.log,
            self.register,
            self.pages,
            self.groups,
            self.store,
            self.queues,
        )

    @staticmethod
    def run_id_of(key: str) -> str | None:
        """The run id that a key of ours belongs to; None if it is not one of ours."""
        found = re.fullmatch(r"[^{}]+:\{([^{}]+)\}:[a-z]+", key)
        return unquote(found[1]) if found else None
