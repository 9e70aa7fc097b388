"""Where each live node stands with regard to the register's round: in it, at the barrier, or adrift (rule 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Register

__all__ = ["Standing", "View", "stand"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a leader sees when it decides."""

    register: Register | None
    records: tuple[Record, ...]
    """The live nodes, in order of arrival."""
    withdrawn: frozenset[str] = frozenset()
    """Ids known to have left, as opposed to silent ones."""
    members: Mapping[str, int] | None = None
    """Ids and ranks of the register's round; None if a page of it cannot be read."""
    fit: bool = False
    """The leader has been in unbroken contact for a TTL: it may take silence for death (rule 3)."""

    @property
    def gone(self) -> tuple[str, ...]:
        """The members that are not live, as far as they are known by name; sorted."""
        live = {record.node_id for record in self.records}
        return tuple(sorted(node_id for node_id in self.members or () if node_id not in live))


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The live nodes, sorted by where they stand, and the members that are missing."""

    inside: tuple[Record, ...]
    """In the round, and expected to come back to the barrier before the next."""
    returned: tuple[Record, ...]
    """Members that are back at the barrier."""
    newcomers: tuple[Record, ...]
    """At the barrier, not members."""
    overstayers: tuple[Record, ...]
    """Members that did not leave in time after they were told to (rule 16)."""
    finished: tuple[Record, ...]
    """Members whose workers have succeeded and that will not return (rule 15)."""
    absent: int
    """Listed members that are not live."""
    lost: int
    """Those of them that are counted lost."""

    @property
    def settled(self) -> bool:
        """Every absent member has been counted lost by somebody fit to judge."""
        return self.lost == self.absent

    @property
    def broken(self) -> bool:
        """A member has left the round or is lost."""
        return self.lost > 0 or bool(self.returned)


def stand(view: View, *, overstayed: bool) -> Standing:
    """Sort the live nodes.

    Args:
        view: What the leader sees.
        overstayed: The members' time to leave the round is over.
    """
    register = view.register
    inside: list[Record] = []
    returned: list[Record] = []
    newcomers: list[Record] = []
    finished: list[Record] = []
    for record in view.records:
        if register is not None and _inside(record, register, view.members):
            (finished if record.done and register.disturbed else inside).append(record)
        elif record.claim is not None or record.done:
            continue  # adrift, or finished with an earlier round: no candidate, and blocks nobody
        elif view.members is not None and record.node_id in view.members:
            returned.append(record)
        else:
            newcomers.append(record)
    absent, lost = _missing(view)
    return Standing(
        inside=() if overstayed else tuple(inside),
        returned=tuple(returned),
        newcomers=tuple(newcomers),
        overstayers=tuple(inside) if overstayed else (),
        finished=tuple(finished),
        absent=absent,
        lost=lost,
    )


def _inside(record: Record, register: Register, members: Mapping[str, int] | None) -> bool:
    if record.claim is not None:
        return record.claim.round_id == register.round_id
    return members is not None and record.node_id in members and record.left < register.round


def _missing(view: View) -> tuple[int, int]:
    """Count the members that are not live, and how many of them may be called lost.

    A tombstone is proof. Silence is proof only for a fit judge; others repeat what the register already says.
    """
    register = view.register
    if register is None or not register.round_id:
        return 0, 0
    if view.members is None:
        known = sum(1 for r in view.records if r.claim is not None and r.claim.round_id == register.round_id)
        absent, proven = max(0, register.world - known), 0
    else:
        gone = view.gone
        absent, proven = len(gone), sum(1 for node_id in gone if node_id in view.withdrawn)
    if view.fit:
        return absent, absent
    return absent, max(proven, min(register.lost, absent))
