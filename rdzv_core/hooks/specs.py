"""The hooks, and what they are given. Nothing else is in this file.

Hooks are called with keyword arguments; an implementation names those that it wants, so a hook can gain an
argument without breaking anybody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pluggy

from rdzv_core.events import Event

__all__ = ["PROJECT", "Member", "hookimpl", "hookspec"]

PROJECT = "rdzv_core"
"""The name under which pluggy keeps our hooks apart from others'."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function as an implementation of the hook that it is named after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A member of the round that is being formed, as :func:`rdzv_place` sees it."""

    node_id: str
    addr: str
    """The address that the node tells the others."""
    attributes: Mapping[str, str]
    """What :func:`rdzv_node_attributes` said on that node."""
    domain: str
    """The part of the network that it is in, if it said so; else empty."""
    rank_hint: int | None
    """The rank that it would like to have."""
    previous_rank: int | None
    """Its rank in the last round, if it was in it."""


@hookspec
def rdzv_event(event: Event) -> None:
    """Watch: something happened, as this node saw it.

    Called in a thread of its own, one event after the other, so a slow watcher delays nobody; if it falls far
    behind, events are dropped, and the log says so. An exception is logged once.
    """


@hookspec
def rdzv_node_attributes() -> dict[str, str]:  # type: ignore[empty-body]
    """Describe: what should placement know of this node, such as its switch or its rack?

    Asked once, when the handler is made. Answers of several plugins are merged; the one called first wins. Names
    and values are short texts: more than 1 kB in all is left out. An exception is logged, and the answer is
    none.
    """


@hookspec
def rdzv_before_join(run_id: str, node_id: str) -> str | None:
    """Veto: a sentence that says why this node must not join, or None if it may.

    Asked before each round, in the caller's thread; a slow check delays this node alone. An exception counts as
    a veto, since a check that breaks is no proof of health.
    """


@hookspec(firstresult=True)
def rdzv_place(run_id: str, members: tuple[Member, ...]) -> Sequence[str] | None:
    """Order: the node ids of all ``members``, in the order of their ranks, or None for no opinion.

    Asked on the leader, whenever a round is formed; ``members`` come in the order of the option ``placement``.
    The first plugin with an opinion is heard. An exception, an answer that is not exactly the members, or none
    within one second is replaced by the order of ``placement=sorted``.
    """
