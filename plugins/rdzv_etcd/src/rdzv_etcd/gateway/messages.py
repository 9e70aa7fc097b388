"""The words of etcd's v3 API that we speak, as values, and their form in JSON.

The gateway writes 64-bit integers as strings and bytes in base64, and leaves out what is zero or empty.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

__all__ = [
    "Change",
    "Compare",
    "Delete",
    "KeyValue",
    "Op",
    "Put",
    "Range",
    "RangeReply",
    "Txn",
    "TxnReply",
    "prefix_end",
]

Json: TypeAlias = Mapping[str, Any]


def prefix_end(prefix: bytes) -> bytes:
    """The first key after all keys that begin with ``prefix``; a zero byte, etcd's word for no end, if none is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"


def text(data: bytes) -> str:
    """Bytes as JSON carries them."""
    return b64encode(data).decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValue:
    """A key as etcd holds it."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int
    """The lease that the key ends with; 0 for none."""

    @classmethod
    def read(cls, json: Json) -> KeyValue:
        """From the gateway's form."""
        return cls(
            key=b64decode(json["key"]),
            value=b64decode(json.get("value", "")),
            create_revision=int(json.get("create_revision", 0)),
            mod_revision=int(json.get("mod_revision", 0)),
            lease=int(json.get("lease", 0)),
        )


@dataclass(frozen=True, slots=True)
class Compare:
    """What must hold of a key, or of every key of a range. A comparison of the value of an absent key fails."""

    key: bytes
    target: Literal["CREATE", "MOD", "VALUE", "LEASE"]
    result: Literal["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]
    operand: int | bytes
    end: bytes = b""

    def json(self) -> Json:
        """In the gateway's form."""
        field = {"CREATE": "create_revision", "MOD": "mod_revision", "VALUE": "value", "LEASE": "lease"}[self.target]
        operand = text(self.operand) if isinstance(self.operand, bytes) else str(self.operand)
        json = {"key": text(self.key), "target": self.target, "result": self.result, field: operand}
        if self.end:
            json["range_end"] = text(self.end)
        return json


@dataclass(frozen=True, slots=True)
class Range:
    """Read a key, or all keys from ``key`` up to ``end``."""

    key: bytes
    end: bytes = b""
    keys_only: bool = False
    limit: int = 0
    changed_from: int = 0
    """Leave out what was last written before this revision; the count still counts everything."""

    def json(self) -> Json:
        """In the gateway's form."""
        json: dict[str, Any] = {"key": text(self.key)}
        if self.end:
            json["range_end"] = text(self.end)
        if self.keys_only:
            json["keys_only"] = True
        if self.limit:
            json["limit"] = str(self.limit)
        if self.changed_from:
            json["min_mod_revision"] = str(self.changed_from)
        return json


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key; without a value, keep the one that it has and bind it to ``lease``."""

    key: bytes
    value: bytes | None
    lease: int

    def json(self) -> Json:
        """In the gateway's form."""
        json: dict[str, Any] = {"key": text(self.key), "lease": str(self.lease)}
        if self.value is None:
            json["ignore_value"] = True
        elif self.value:
            json["value"] = text(self.value)
        return json


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a key, or all keys from ``key`` up to ``end``."""

    key: bytes
    end: bytes = b""

    def json(self) -> Json:
        """In the gateway's form."""
        return {"key": text(self.key), "range_end": text(self.end)} if self.end else {"key": text(self.key)}


@dataclass(frozen=True, slots=True)
class Txn:
    """If all comparisons hold do ``then``, else do ``otherwise``; at once, and at one revision.

    A transaction may stand among the steps of another. All comparisons, inner ones too, look at what was there
    before the first step.
    """

    compare: Sequence[Compare]
    then: Sequence[Op] = ()
    otherwise: Sequence[Op] = ()

    def json(self) -> Json:
        """In the gateway's form."""
        json: dict[str, Any] = {}
        if self.compare:
            json["compare"] = [c.json() for c in self.compare]
        if self.then:
            json["success"] = [{_REQUEST[type(op)]: op.json()} for op in self.then]
        if self.otherwise:
            json["failure"] = [{_REQUEST[type(op)]: op.json()} for op in self.otherwise]
        return json


Op: TypeAlias = Range | Put | Delete | Txn

_REQUEST: dict[type, str] = {
    Range: "request_range",
    Put: "request_put",
    Delete: "request_delete_range",
    Txn: "request_txn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReply:
    """What a :class:`Range` found."""

    kvs: tuple[KeyValue, ...]
    count: int
    """Keys in the range, also those that ``limit`` or ``changed_from`` left out."""

    @property
    def only(self) -> KeyValue | None:
        """The one key that was asked for, or None."""
        return self.kvs[0] if self.kvs else None

    @classmethod
    def read(cls, json: Json) -> RangeReply:
        """From the gateway's form."""
        return cls(kvs=tuple(KeyValue.read(kv) for kv in json.get("kvs", ())), count=int(json.get("count", 0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnReply:
    """What a :class:`Txn` did."""

    succeeded: bool
    """Whether the comparisons held."""
    replies: tuple[RangeReply | TxnReply | int | None, ...]
    """Per step that was taken: what a range found, what an inner transaction did, how many keys were deleted."""
    revision: int = 0
    """The store's revision afterwards; known of the outermost transaction only."""
    unsure: bool = False
    """It was sent more than once, and an earlier time may have counted."""

    def range(self, step: int) -> RangeReply:
        """What the range at this step found."""
        reply = self.replies[step]
        assert isinstance(reply, RangeReply)
        return reply

    def txn(self, step: int) -> TxnReply:
        """What the transaction at this step did."""
        reply = self.replies[step]
        assert isinstance(reply, TxnReply)
        return reply

    @classmethod
    def read(cls, json: Json, *, unsure: bool = False) -> TxnReply:
        """From the gateway's form."""
        return cls(
            succeeded=bool(json.get("succeeded", False)),
            replies=tuple(_read_step(step) for step in json.get("responses", ())),
            revision=int(json.get("header", {}).get("revision", 0)),
            unsure=unsure,
        )


def _read_step(json: Json) -> RangeReply | TxnReply | int | None:
    if "response_range" in json:
        return RangeReply.read(json["response_range"])
    if "response_txn" in json:
        return TxnReply.read(json["response_txn"])
    if "response_delete_range" in json:
        return int(json["response_delete_range"].get("deleted", 0))
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a watched key."""

    deleted: bool
    kv: KeyValue
    """As it now is; of a deletion, only key and revision."""

    @classmethod
    def read(cls, json: Json) -> Change:
        """From the gateway's form."""
        return cls(deleted=json.get("type") == "DELETE", kv=KeyValue.read(json["kv"]))
