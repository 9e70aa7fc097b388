"""The names under which a run's data stand in a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

__all__ = ["RunKeys"]


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run. Runs and names in them are quoted, so that no two of them can meet.

    Args:
        run_id: The run; any text but the empty one.

    Raises:
        ValueError: The run id is empty.
    """

    run_id: str
    prefix: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.run_id:
            raise ValueError("The run id must be a non-empty string.")
        object.__setattr__(self, "prefix", f"rdzv/{quote(self.run_id, safe='')}")

    @property
    def register(self) -> str:
        """The bare register of level 1."""
        return f"{self.prefix}/register"

    @property
    def board(self) -> str:
        """Level 2: register, lease, and what pages there are, in one value."""
        return f"{self.prefix}/board"

    def news(self, number: int) -> str:
        """Appears when the board's news reaches ``number``; waiters block on it."""
        return f"{self.prefix}/news/{number}"

    @property
    def log(self) -> str:
        """A counter: how many entries the log of comings and goings has."""
        return f"{self.prefix}/log"

    def entry(self, number: int) -> str:
        """One entry of the log, counted from 1."""
        return f"{self.prefix}/log/{number}"

    @property
    def base(self) -> str:
        """What the log's first entries amounted to, when they were dropped."""
        return f"{self.prefix}/base"

    def node(self, node_id: str) -> str:
        """The slot of one node: its state of life and its beat."""
        return f"{self.prefix}/node/{quote(node_id, safe='')}"

    def page(self, group: str, index: int) -> str:
        """One page of a group."""
        return f"{self.prefix}/page/{quote(group, safe='')}/{index}"
