"""Who came, who is still in the round before, and who has gone: what a node may say when its time is over."""

from __future__ import annotations

from collections.abc import Sequence

from rdzv_core.machine.record import Record
from rdzv_core.machine.rules import Rules
from rdzv_core.machine.standing import View, stand

__all__ = ["attendance", "some"]

NAMED = 8
"""Nodes that are named one by one; of more, a reader only wants to know how many."""


def attendance(view: View, rules: Rules) -> str:
    """Say in one sentence and a piece of advice why no round was formed of these nodes, or could be.

    Args:
        view: The register, the live nodes, and the members of the register's round if they are known.
        rules: What this node was told.
    """
    standing, register = stand(view, overstayed=False), view.register
    present: list[Record] = []
    others: list[Record] = []
    for record in (*standing.returned, *standing.newcomers):
        (present if record.plays_by(rules) else others).append(record)
    parts = [f"at the barrier are {len(present)} of at least {rules.min_nodes} nodes ({_named(present)})"]
    if others:
        ours = f"{rules.min_nodes}:{rules.max_nodes}"
        parts.append(f"with another --nnodes than {ours}: {len(others)} ({_named(others)})")
    if register is not None and standing.inside:
        parts.append(f"still in round {register.round}: {len(standing.inside)} ({_named(standing.inside)})")
    if register is not None and standing.absent:
        names = f" ({some(view.gone, NAMED)})" if view.gone else ""
        parts.append(f"gone from round {register.round}: {standing.absent}{names}")
    advice = _advice(bool(standing.inside), bool(others), len(present) < rules.min_nodes)
    return f"{'; '.join(parts)}. {advice}"


def _advice(occupied: bool, mixed: bool, short: bool) -> str:
    if mixed:
        return "Start all nodes with the same --nnodes."
    if occupied:
        return (
            "A new round waits until all members have left the one before, which each does when its agent takes "
            "notice: look at what those still in it are doing."
        )
    if short:
        return (
            "Nodes that are missing have not reached the backend: check that every node uses this run id and "
            "endpoint, or raise join_timeout."
        )
    return (
        "These are enough: the last call for more of them (last_call_timeout) is not over, nobody has decided in time, "
        "or rank 0 did not open its store; see the log of the others."
    )


def _named(records: Sequence[Record]) -> str:
    return some([record.who for record in records], NAMED) or "nobody"


def some(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
