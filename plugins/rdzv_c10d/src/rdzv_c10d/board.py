"""The board of a run: register, leader lease, and what pages there are, in one small value.

All that must be decided by one write stands together, so that one compare-and-set decides it, and one read (one round
trip) shows a node everything that its sign of life is answered with. A TCPStore has no clock and lets nothing expire:
what has a time to live carries a *stamp*, which is new whenever that time begins anew. A stamp that a reader has
watched unchanged for the whole time, on its own clock, marks what has expired.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, replace
from typing import Any

from rdzv_core.errors import RendezvousStateError

__all__ = ["EMPTY", "Board", "Lease", "Seen", "decode", "encode", "word"]

_FORM = 1
GROUPS_KEPT = 16
"""Groups of pages that are remembered: those of the last rounds."""


def word() -> str:
    """A random word, unlike all others."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who leads."""

    owner: str
    ttl: float
    stamp: str
    """The stamp of the owner's own sign of life that came with it; see :mod:`.roll`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """All that is decided about a run."""

    write: str = ""
    """Random; no two boards are the same bytes."""
    news: int = 0
    """Grows with whatever waiters are to be woken for."""
    leases_given_up: int = 0
    token: str | None = None
    """The register's; None if it is empty."""
    register: bytes = b""
    lease: Lease | None = None
    keep: float | None = None
    """How long register and pages stay after ``kept`` was stamped; None if nobody has said."""
    kept: str = ""
    groups: tuple[tuple[str, int], ...] = ()
    """Names and sizes of the groups of pages, oldest first."""

    def written(self, state: bytes, token: str) -> Board:
        """With the register written."""
        return replace(self, register=state, token=token, news=self.news + 1)

    def led(self, owner: str, ttl: float, stamp: str) -> Board:
        """With the lease taken or renewed."""
        return replace(self, lease=Lease(owner=owner, ttl=ttl, stamp=stamp))

    def given_up(self) -> Board:
        """With the lease given up, which waiters are told."""
        return replace(self, lease=None, leases_given_up=self.leases_given_up + 1, news=self.news + 1)

    def ringing(self) -> Board:
        """With nothing new, but waiters woken."""
        return replace(self, news=self.news + 1)

    def staying(self, keep: float) -> Board:
        """With register and pages staying for ``keep`` seconds from now."""
        return replace(self, keep=keep, kept=word())

    def holding(self, group: str, pages: int) -> Board:
        """With a group of pages named."""
        others = tuple(named for named in self.groups if named[0] != group)
        return replace(self, groups=(*others, (group, pages)))

    def without_content(self) -> Board:
        """As it is when register and pages have expired."""
        return replace(self, token=None, register=b"", keep=None, kept="", groups=())


EMPTY = Board()


def encode(board: Board) -> bytes:
    """The board as bytes: a line of JSON, then the register as it is."""
    lease = board.lease
    head = {
        "v": _FORM,
        "write": board.write,
        "news": board.news,
        "given_up": board.leases_given_up,
        "token": board.token,
        "lease": None if lease is None else [lease.owner, lease.ttl, lease.stamp],
        "keep": board.keep,
        "kept": board.kept,
        "groups": board.groups,
    }
    return json.dumps(head, separators=(",", ":")).encode() + b"\n" + board.register


def decode(stored: bytes, key: str) -> Board:
    """The board that these bytes are.

    Raises:
        RendezvousStateError: They are none.
    """
    head, newline, register = stored.partition(b"\n")
    try:
        said = _said(head, ended=bool(newline))
        lease = said["lease"]
        return Board(
            write=str(said["write"]),
            news=int(said["news"]),
            leases_given_up=int(said["given_up"]),
            token=None if said["token"] is None else str(said["token"]),
            register=register,
            lease=None if lease is None else Lease(owner=lease[0], ttl=float(lease[1]), stamp=lease[2]),
            keep=None if said["keep"] is None else float(said["keep"]),
            kept=str(said["kept"]),
            groups=tuple((str(name), int(size)) for name, size in said["groups"]),
        )
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise RendezvousStateError(
            f"The key '{key}' was not written by rdzv-c10d ({error}); it begins with {stored[:16]!r}. Another program "
            "uses this store; choose another store or run id.",
            backend="c10d",
        ) from error


def _said(head: bytes, *, ended: bool) -> Any:
    said = json.loads(head)
    if not ended or said["v"] != _FORM:
        raise ValueError(f"its first line is not of form {_FORM}")
    return said


class Seen:
    """Since when one reader has seen stamps unchanged, on its own clock. Not safe from threads."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def see(self, what: str, stamp: str, at: float) -> float:
        """Note that ``what`` has this stamp; answers since when it has been seen with it."""
        known = self._since.get(what)
        if known is None or known[0] != stamp:
            known = self._since[what] = (stamp, at)
        return known[1]

    def since(self, what: str) -> tuple[str, float] | None:
        """The stamp last seen, and since when."""
        return self._since.get(what)

    def forget(self, what: str) -> None:
        """Drop what was seen."""
        self._since.pop(what, None)
