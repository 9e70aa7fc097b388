"""What the register means for one node.

``follow`` owns rules 6, 7 and 13 of the protocol as one node sees them: am I in a round, was I passed over, is
it over. It does not know what other nodes do, and never looks at a clock: waits come in as durations.

What wins when two rules meet: an older register of the same life is put right before anything is read from
it; closed beats everything that a register can say; another life or another round supersedes; a lost member
beats being done.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from rdzv_core.machine.register import Bootstrap, Closed, Register
from rdzv_core.machine.rules import Rules

__all__ = [
    "Answer",
    "Completed",
    "Ended",
    "GiveUp",
    "Me",
    "Mismatch",
    "PageLookup",
    "PageState",
    "ReadPage",
    "Republish",
    "Seat",
    "Seated",
    "Stay",
    "Superseded",
    "Wait",
    "follow",
]

PAGE_PATIENCE = 3.0
"""Seconds that a page named by the register may be missing before the round is given up (rule 6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The round that a node is in."""

    life: str
    round: int
    round_id: str
    rank: int
    world: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Me:
    """What a node knows of itself."""

    node_id: str
    rules: Rules
    left: int = 0
    last_round_id: str = ""
    """The last round that this node was a member of and has left; empty if none."""
    seat: Seat | None = None
    """Set from the return of a round until the node goes back to the barrier."""
    joining: bool = False
    """The node is at the barrier and wants a round."""


class PageState(Enum):
    """What came of reading the page that would list this node."""

    UNREAD = "not read yet"
    MISSING = "not there"
    READ = "read"


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLookup:
    """The page of the register's round that would list this node, as far as it was read."""

    state: PageState = PageState.UNREAD
    rank: int | None = None
    """With ``READ``: this node's rank; None if the page does not list it."""
    waited: float = 0.0
    """Seconds since the round was first seen."""
    bootstrap_timeout: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing to do but wait for another register."""

    spare: bool
    """This node was passed over and is not needed at present."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPage:
    """A round newer than the last one left: read the page that would list this node."""

    round_id: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Seated:
    """This node is on the page and the round has no bootstrap yet; rank 0 is to open the store, others wait."""

    seat: Seat
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The node is in the round, and rank 0's store is known."""

    seat: Seat
    bootstrap: Bootstrap
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The node is to announce that it has left this round without returning from it."""

    round: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """The node's round stands."""

    waiting: int
    """What ``num_nodes_waiting()`` answers: nodes for whom to re-form, and members lost."""
    rollcall: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Superseded:
    """The node's round is over; it learns so by returning to the barrier."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The run is closed."""

    closed: Closed
    spare: bool
    """This node was not needed, and the job has ended without it."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Republish:
    """The store has none, or an older one, of what this node knows: write it again."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """The run is played by other rules than this node was told."""

    theirs: Rules
    ours: Rules
    why: str


Answer: TypeAlias = Wait | ReadPage | Seated | Completed | GiveUp | Stay | Superseded | Ended | Republish | Mismatch


def follow(me: Me, stored: Register | None, known: Register | None, page: PageLookup) -> Answer:
    """Say what ``stored``, the register as just read, means for a node that knows ``known``.

    Args:
        me: The node.
        stored: What the store holds now; None if it holds nothing.
        known: The newest register that this node has seen before.
        page: What the node knows of its page in ``stored``'s round.
    """
    if stored is None:
        if known is not None:
            return Republish(why=f"the store has lost the register, revision {known.revision}")
        return Wait(spare=False, why="no round has been formed yet")
    if known is not None and stored.life == known.life and stored.revision < known.revision:
        return Republish(why=f"the store fell back from revision {known.revision} to revision {stored.revision}")
    if stored.closed is not None:
        return _ended(me, stored, stored.closed, page)
    if me.seat is not None:
        return _in_round(me.seat, stored)
    if me.joining:
        return _at_barrier(me, stored, page)
    return Wait(spare=False, why="this node has not joined")


def _ended(me: Me, register: Register, closed: Closed, page: PageLookup) -> Ended:
    return Ended(
        closed=closed,
        spare=me.joining and me.seat is None and _not_needed(me, register, page),
        why=f"closed by {closed.by} at {closed.at} ({closed.outcome}): {closed.reason}",
    )


def _in_round(seat: Seat, register: Register) -> Stay | Superseded:
    if register.life != seat.life:
        return Superseded(why="the run has begun another life")
    if register.round_id != seat.round_id:
        return Superseded(why=f"round {seat.round} was superseded by round {register.round}")
    return Stay(
        waiting=register.waiting + register.lost,
        rollcall=register.rollcall,
        why=register.reason if register.disturbed else f"round {seat.round} stands",
    )


def _at_barrier(me: Me, register: Register, page: PageLookup) -> Answer:
    if register.rules != me.rules:
        return Mismatch(
            theirs=register.rules,
            ours=me.rules,
            why=f"the run is played by other rules ({register.rules}) than this node's ({me.rules})",
        )
    if register.round <= me.left:
        return Wait(spare=_not_needed(me, register, page), why=f"waiting for a round after {me.left}")
    if page.state is PageState.UNREAD:
        return ReadPage(round_id=register.round_id, why=f"round {register.round} was formed")
    if page.state is PageState.MISSING:
        if page.waited >= PAGE_PATIENCE:
            return GiveUp(
                round=register.round,
                why=f"the page of round {register.round} was missing for {page.waited:.1f} s",
            )
        why = f"the page of round {register.round} is not there yet"
        return ReadPage(round_id=register.round_id, why=why)
    if page.rank is None:
        return _passed_over(register)
    return _seated(register, page, page.rank)


def _not_needed(me: Me, register: Register, page: PageLookup) -> bool:
    """Say whether the register names a round that this node was not in, and that nobody is about to leave."""
    if register.disturbed or not register.round_id:
        return False
    if register.round > me.left:
        return page.state is PageState.READ and page.rank is None
    return register.round_id != me.last_round_id


def _passed_over(register: Register) -> Wait:
    if register.disturbed:
        return Wait(spare=False, why=f"round {register.round} is about to re-form: {register.reason}")
    return Wait(spare=True, why=f"round {register.round} runs with {register.world} members without this node")


def _seated(register: Register, page: PageLookup, rank: int) -> Answer:
    seat = Seat(
        life=register.life,
        round=register.round,
        round_id=register.round_id,
        rank=rank,
        world=register.world,
    )
    if register.lost:
        return GiveUp(round=register.round, why=f"round {register.round} lost a member: {register.reason}")
    if register.waiting and register.bootstrap is None:
        why = f"round {register.round} is to re-form before rank 0 has published its store: {register.reason}"
        return GiveUp(round=register.round, why=why)
    if register.bootstrap is not None:
        return Completed(
            seat=seat,
            bootstrap=register.bootstrap,
            why=f"in round {register.round} as rank {rank} of {register.world}",
        )
    if page.waited >= page.bootstrap_timeout:
        return GiveUp(
            round=register.round,
            why=f"rank 0 of round {register.round} did not publish its store within {page.waited:.0f} s",
        )
    return Seated(seat=seat, why=f"round {register.round} has no store yet; rank {rank} of {register.world} here")
