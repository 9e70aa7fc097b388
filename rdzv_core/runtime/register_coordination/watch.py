"""Life and death as one reader sees them: unchanged across my own reads, for so long, on my own clock.

A part of the value lives for a time after it was stamped. When it was stamped no other machine can know; but since when
*I* have seen this stamp I do know, and if it is still there in a read that I began a whole lifetime later, it has
expired. So I am never early, and late by at most the time between two of my reads. My own stamps I count from before
the write that carried them, so I hold myself dead before anybody else does.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rdzv_core.runtime.register_coordination.value import Value

__all__ = ["Watch"]

_OWN_STAMPS = 64
"""Stamps of mine that I remember while I have not read them back; one per operation under way would do."""


class Watch:
    """What one reader has seen of one run. Not safe from threads: whoever owns it locks."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], tuple[str, float]] = {}
        self._own: dict[str, float] = {}
        self._dead: frozenset[str] = frozenset()

    def expect(self, stamp: str, at: float) -> None:
        """A write of mine with this stamp is about to begin."""
        self._own[stamp] = at
        while len(self._own) > _OWN_STAMPS:
            del self._own[next(iter(self._own))]

    def see(self, value: Value, began: float, ended: float) -> Value:
        """Take a read into account.

        Args:
            value: What was read.
            began: When the read began, on my clock: what it showed was so then or later.
            ended: When it had ended: what it showed was so then or earlier.

        Returns:
            The value without what has expired.
        """
        self._since = {key: self._first_seen(key, stamp, ended) for key, stamp in _stamps(value)}
        fresh = {n.born for n in value.nodes if not self._over("node", n.id, n.ttl, began)}
        self._dead = frozenset(n.born for n in value.nodes if n.born in self._dead or n.born not in fresh)
        nodes = tuple(n for n in value.nodes if n.born not in self._dead)
        live = {n.id for n in nodes}
        lease, register = value.lease, value.register
        if lease is not None and (lease.owner not in live or self._over("lease", "", lease.ttl, began)):
            lease = None
        if register is not None and self._over("register", "", register.keep, began):
            register = None
        return msgspec.structs.replace(
            value,
            register=register,
            nodes=nodes,
            graves=tuple(g for g in value.graves if not self._over("grave", g.id, g.ttl, began)),
            lease=lease,
            groups=tuple(g for g in value.groups if not self._over("group", g.name, g.keep, began)),
        )

    def left(self, kind: str, name: str, lifetime: float, now: float) -> float:
        """Seconds that a part which was seen has left; all of its lifetime if it was not."""
        _, since = self._since.get((kind, name), ("", now))
        return max(0.0, lifetime - (now - since))

    def _first_seen(self, key: tuple[str, str], stamp: str, ended: float) -> tuple[str, float]:
        known = self._since.get(key)
        if known is not None and known[0] == stamp:
            return known
        return stamp, self._own.get(stamp, ended)

    def _over(self, kind: str, name: str, lifetime: float | None, began: float) -> bool:
        return lifetime is not None and began - self._since[kind, name][1] >= lifetime


def _stamps(value: Value) -> Iterator[tuple[tuple[str, str], str]]:
    for node in value.nodes:
        yield ("node", node.id), node.beat
    for grave in value.graves:
        yield ("grave", grave.id), grave.beat
    for group in value.groups:
        yield ("group", group.name), group.beat
    if value.lease is not None:
        yield ("lease", ""), value.lease.beat
    if value.register is not None:
        yield ("register", ""), value.register.beat
