"""How the members of a round become its ranks.

``sorted`` is torch's order: by address, process and local id, compared as text and numbers. ``natural`` compares
the digits inside an address as numbers, so that node8 comes before node66. ``stable`` lets survivors of the last
round keep their ranks and fills the holes with newcomers. ``hint`` orders by the rank that each node wishes for.
Each order is total, so the same members always get the same ranks, whoever leads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rdzv_core.machine.record import Record

__all__ = ["place", "shared_hints"]

_DIGITS = re.compile(r"([0-9]+)")


def place(policy: str, members: Sequence[Record], previous: Mapping[str, int]) -> tuple[str, ...]:
    """Order ``members`` into ranks 0..n-1.

    Args:
        policy: One of :data:`rdzv_core.machine.rules.PLACEMENTS`.
        members: The members of the new round.
        previous: The ranks of the last round, by node id.

    Returns:
        The ids of the members; the index is the rank.
    """
    if policy == "natural":
        return _ids(sorted(members, key=_natural))
    if policy == "stable":
        return _stable(members, previous)
    if policy == "hint":
        return _ids(sorted(members, key=_hinted))
    return _ids(sorted(members, key=_plain))


def shared_hints(members: Sequence[Record]) -> dict[int, tuple[str, ...]]:
    """The ranks that more than one of ``members`` wishes for, and the ids of those who do, in rank order."""
    wishes: dict[int, list[str]] = {}
    for record in sorted(members, key=_hinted):
        if record.rank_hint is not None:
            wishes.setdefault(record.rank_hint, []).append(record.node_id)
    return {hint: tuple(ids) for hint, ids in wishes.items() if len(ids) > 1}


def _ids(members: Sequence[Record]) -> tuple[str, ...]:
    return tuple(m.node_id for m in members)


def _plain(record: Record) -> tuple[str, int, int, str]:
    return record.addr, record.pid, record.local_id, record.node_id


def _natural(record: Record) -> tuple[list[tuple[int, int, str]], int, int, str]:
    parts = [(0, int(p), "") if p.isdecimal() else (1, 0, p) for p in _DIGITS.split(record.addr) if p]
    return parts, record.pid, record.local_id, record.node_id


def _hinted(record: Record) -> tuple[bool, int, tuple[str, int, int, str]]:
    hint = record.rank_hint
    return hint is None, 0 if hint is None else hint, _plain(record)


def _stable(members: Sequence[Record], previous: Mapping[str, int]) -> tuple[str, ...]:
    world = len(members)
    seats: list[str | None] = [None] * world
    unseated = []
    survivors = [m for m in members if m.node_id in previous]
    newcomers = [m for m in members if m.node_id not in previous]
    for record in sorted(survivors, key=lambda m: previous[m.node_id]) + sorted(newcomers, key=_plain):
        rank = previous.get(record.node_id)
        if rank is not None and rank < world:
            seats[rank] = record.node_id
        else:
            unseated.append(record.node_id)
    rest = iter(unseated)
    return tuple(next(rest) if seat is None else seat for seat in seats)
