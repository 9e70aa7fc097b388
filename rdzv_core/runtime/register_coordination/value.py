"""The one value that a bare register holds: its parts, its bytes, and the edits that the calls of level 2 are.

An edit is a pure function from a value, out of which everything expired has been taken, to the next value, or to None
if there is nothing to write. It stamps what it touches with the word of its operation. A stamp that stays the same is
how others see that nothing was said; a stamp that is one's own is how an operation knows its work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeVar

import msgspec

__all__ = ["EMPTY", "Grave", "Group", "Kept", "Lease", "Node", "Value", "decode", "encode"]

VERSION = 1
WRITES_KEPT = 32
"""Words of the latest writes that a value remembers, for operations that are unsure of theirs; some 500 bytes."""

_Version = Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Id = Annotated[str, msgspec.Meta(max_length=256)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Node(_Part, frozen=True):
    """What a node says of itself."""

    id: _Id
    seq: _Count
    record: bytes
    ttl: _Seconds
    arrival: _Count
    born: _Word
    """The stamp of the announce that began this life of the record."""
    said: _Word
    """The stamp of the latest announce."""
    beat: _Word
    """The stamp of the latest sign of life."""


class Grave(_Part, frozen=True):
    """Says that a node has withdrawn."""

    id: _Id
    seq: _Count
    ttl: _Seconds
    beat: _Word


class Lease(_Part, frozen=True):
    """Who leads."""

    owner: _Id
    ttl: _Seconds
    beat: _Word


class Kept(_Part, frozen=True):
    """The register of level 2."""

    state: bytes
    token: _Word
    """The stamp of the write."""
    keep: _Seconds | None = None
    """How long it stays after ``beat``; None if nobody has said."""
    beat: _Word = ""


class Group(_Part, frozen=True):
    """The pages of one group."""

    name: _Id
    pages: tuple[bytes, ...]
    keep: _Seconds
    beat: _Word


class Value(_Part, frozen=True):
    """All that is stored of one run."""

    form: Literal["rdzv-core register"]
    v: _Version
    writes: tuple[_Word, ...] = ()
    """The stamps of the latest writes, newest last; makes equal values differ in bytes."""
    register: Kept | None = None
    arrivals: _Count = 0
    nodes: tuple[Node, ...] = ()
    graves: tuple[Grave, ...] = ()
    lease: Lease | None = None
    leases_given_up: _Count = 0
    groups: tuple[Group, ...] = ()

    def node(self, node_id: str) -> Node | None:
        """The record of a node."""
        return next((n for n in self.nodes if n.id == node_id), None)

    def group(self, name: str) -> Group | None:
        """The pages of a group."""
        return next((g for g in self.groups if g.name == name), None)

    def overtaken(self, node_id: str, seq: int) -> bool:
        """Whether something newer than ``seq`` is stored of this node."""
        said: tuple[Node | Grave, ...] = (*self.nodes, *self.graves)
        return any(s.id == node_id and s.seq > seq for s in said)

    # --- edits

    def stamped(self, stamp: str) -> Value:
        """This value, as the write of the operation with this word."""
        return msgspec.structs.replace(self, writes=(*self.writes, stamp)[-WRITES_KEPT:])

    def emptied(self) -> Value:
        """With nothing in it but what operations and waits that are under way need."""
        return msgspec.structs.replace(EMPTY, writes=self.writes, leases_given_up=self.leases_given_up)

    def announced(self, node_id: str, seq: int, record: bytes, ttl: float, stamp: str) -> Value | None:
        """With a record stored; None if it comes too late."""
        if self.overtaken(node_id, seq) or any(g.id == node_id and g.seq == seq for g in self.graves):
            return None
        known = self.node(node_id)
        said = Node(
            id=node_id,
            seq=seq,
            record=record,
            ttl=ttl,
            arrival=self.arrivals + 1 if known is None else known.arrival,
            born=stamp if known is None else known.born,
            said=stamp,
            beat=stamp,
        )
        return msgspec.structs.replace(
            self,
            arrivals=max(self.arrivals, said.arrival),
            nodes=(*_without(self.nodes, node_id), said),
            graves=_without(self.graves, node_id),
        )

    def pulsed(self, node_id: str, seq: int, ttl: float, stamp: str) -> Value | None:
        """With a record renewed; None if there is none with this ``seq``."""
        known = self.node(node_id)
        if known is None or known.seq != seq:
            return None
        alive = msgspec.structs.replace(known, ttl=ttl, beat=stamp)
        return msgspec.structs.replace(self, nodes=(*_without(self.nodes, node_id), alive))

    def buried(self, node_id: str, seq: int, ttl: float, stamp: str) -> Value | None:
        """With a tombstone instead of the record; None if it comes too late."""
        if self.overtaken(node_id, seq):
            return None
        grave = Grave(id=node_id, seq=seq, ttl=ttl, beat=stamp)
        return msgspec.structs.replace(
            self,
            nodes=_without(self.nodes, node_id),
            graves=(*_without(self.graves, node_id), grave),
        )

    def led(self, node_id: str, ttl: float, stamp: str, *, wanted: bool) -> Value:
        """With the lease taken if it is vacant, kept, or given up."""
        holds = self.lease is not None and self.lease.owner == node_id
        if wanted and (self.lease is None or holds):
            return msgspec.structs.replace(self, lease=Lease(owner=node_id, ttl=ttl, beat=stamp))
        if holds and not wanted:
            return msgspec.structs.replace(self, lease=None, leases_given_up=self.leases_given_up + 1)
        return self

    def written(self, state: bytes, token: str | None, stamp: str) -> Value | None:
        """With the register written; None if ``token`` is not the present one."""
        held = self.register
        if token != (None if held is None else held.token):
            return None
        if held is None:
            return msgspec.structs.replace(self, register=Kept(state=state, token=stamp))
        return msgspec.structs.replace(self, register=msgspec.structs.replace(held, state=state, token=stamp))

    def published(self, name: str, pages: tuple[bytes, ...], keep: float, stamp: str) -> Value:
        """With the pages of a group that is not there yet."""
        group = Group(name=name, pages=pages, keep=keep, beat=stamp)
        return msgspec.structs.replace(self, groups=(*self.groups, group))

    def kept(self, keep: float, stamp: str, *, register: bool, groups: Iterable[str]) -> Value:
        """With the register, if asked, and these groups staying for ``keep`` seconds from now."""
        names = frozenset(groups)
        held = self.register
        if register and held is not None:
            held = msgspec.structs.replace(held, keep=keep, beat=stamp)
        return msgspec.structs.replace(
            self,
            register=held,
            groups=tuple(
                msgspec.structs.replace(g, keep=keep, beat=stamp) if g.name in names else g for g in self.groups
            ),
        )


EMPTY = Value(form="rdzv-core register", v=VERSION)

_Named = TypeVar("_Named", Node, Grave)


def _without(parts: Iterable[_Named], node_id: str) -> tuple[_Named, ...]:
    return tuple(part for part in parts if part.id != node_id)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Value, strict=True)


def encode(value: Value) -> bytes:
    """The value as bytes."""
    return _encoder.encode(value)


def decode(stored: bytes) -> Value:
    """The value that these bytes are.

    Raises:
        ValueError: They are none; says why, and where.
    """
    value = _decoder.decode(stored)
    for what, names in (
        ("node", [n.id for n in value.nodes]),
        ("tombstone", [g.id for g in value.graves]),
        ("group of pages", [g.name for g in value.groups]),
    ):
        if len(set(names)) != len(names):
            raise ValueError(f"a {what} is listed twice")
    return value
