"""The one value that all nodes of a run agree on, and the pages that list a round's members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from rdzv_core.machine.rules import Rules

__all__ = ["PAGE_SIZE", "Bootstrap", "Closed", "Page", "Register", "page_count", "page_index", "paginate"]

PAGE_SIZE = 8
"""Members on a page, about. A node reads one page to learn its rank, so small pages keep what a round costs a node
below 2 kB; a leader reads them all, once per tenure, which at 10,000 members is 1,250 short reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrap:
    """Where rank 0's store is."""

    addr: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """Who closed the run, and why."""

    by: str
    outcome: str
    """``success``, ``failed``, or ``closed`` if nobody said."""
    reason: str
    at: str
    """Wall time as text, for people only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """The register: one agreed round, and what its members must know of it since.

    ``revision`` grows with every write within a ``life``; ``write_id`` is new with every write, so that two
    equal states differ in bytes and a writer can tell after a lost reply whether it was heard.
    """

    life: str
    revision: int
    write_id: str
    rules: Rules
    round: int = 0
    round_id: str = ""
    world: int = 0
    bootstrap: Bootstrap | None = None
    waiting: int = 0
    """Nodes at the barrier for whom the round should re-form."""
    lost: int = 0
    """Members of the round that are gone."""
    finished: int = 0
    """Members whose workers had succeeded when the others were told to re-form; they will not return."""
    rollcall: bool = False
    """The members' list cannot be read: every node in the round is to announce its claim."""
    reason: str = ""
    """Why this was written, for people."""
    closed: Closed | None = None

    @property
    def disturbed(self) -> bool:
        """The members have been told to re-form."""
        return self.waiting > 0 or self.lost > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some of a round's members and their ranks. Immutable once published."""

    round_id: str
    ranks: Mapping[str, int]


def page_count(world: int) -> int:
    """How many pages a round of ``world`` members has."""
    return max(1, -(-world // PAGE_SIZE))


def page_index(node_id: str, count: int) -> int:
    """The page that lists ``node_id``, if the round has ``count`` pages and lists it at all."""
    return crc32(node_id.encode()) % count


def paginate(round_id: str, seats: Sequence[str]) -> tuple[Page, ...]:
    """Spread the members, given in order of rank, over the pages of their round."""
    count = page_count(len(seats))
    ranks: list[dict[str, int]] = [{} for _ in range(count)]
    for rank, node_id in enumerate(seats):
        ranks[page_index(node_id, count)][node_id] = rank
    return tuple(Page(round_id=round_id, ranks=part) for part in ranks)
