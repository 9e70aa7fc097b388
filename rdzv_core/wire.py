"""What the protocol's values look like as bytes: strict, bounded, versioned JSON.

Register, record and page each carry ``v``. Decoding never runs code, refuses unknown and missing fields, wrong
types and numbers out of range, and looks at the size before anything else; whatever is wrong with the bytes, the
answer is one ``RendezvousStateError``. Encoding refuses, likewise, what no reader would accept, so that an oddity of
one node is that node's error and not everybody's. ``docs/wire.md`` shows the form.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from rdzv_core.errors import RendezvousStateError
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import Bootstrap, Closed, Page, Register
from rdzv_core.machine.rules import Rules

__all__ = [
    "VERSION",
    "decode_page",
    "decode_record",
    "decode_register",
    "encode_page",
    "encode_record",
    "encode_register",
]

VERSION = 1
"""The version of all three forms. A reader refuses any other."""

MAX_REGISTER = 16 * 1024
MAX_RECORD = 8 * 1024
MAX_PAGE = 64 * 1024
"""Bytes above which a value is refused unread. A page holds some :data:`~rdzv_core.machine.register.PAGE_SIZE`
members of at most 150 bytes; the rest is room for a bad hash."""

_Id = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
_Word = Annotated[str, msgspec.Meta(max_length=64)]
_Line = Annotated[str, msgspec.Meta(max_length=1000)]
_Text = Annotated[str, msgspec.Meta(max_length=1024)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Nodes = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Version = Annotated[int, msgspec.Meta(ge=VERSION, le=VERSION)]


class _Form(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


class _Rules(_Form):
    min: _Nodes
    max: _Nodes
    interval: _Seconds
    ttl: _Seconds


class _Address(_Form):
    addr: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    port: _Port


class _Closed(_Form):
    by: _Word
    outcome: _Word
    reason: _Line
    at: _Word


class _Register(_Form):
    v: _Version
    life: _Id
    revision: _Count
    write_id: _Id
    rules: _Rules
    round: _Count = 0
    round_id: _Word = ""
    world: _Count = 0
    bootstrap: _Address | None = None
    waiting: _Count = 0
    lost: _Count = 0
    finished: _Count = 0
    rollcall: bool = False
    reason: _Line = ""
    closed: _Closed | None = None


class _Claim(_Form):
    round: _Count
    round_id: _Id


class _Record(_Form):
    v: _Version
    id: _Id
    seq: _Count
    addr: Annotated[str, msgspec.Meta(max_length=255)]
    pid: _Count
    local_id: _Count
    min: _Nodes
    max: _Nodes
    left: _Count = 0
    claim: _Claim | None = None
    steady: bool = False
    done: bool = False
    rank_hint: _Count | None = None
    domain: _Word = ""
    attrs: dict[_Text, _Text] = {}


class _Page(_Form):
    v: _Version
    round_id: _Id
    ranks: dict[_Id, _Count]


_F = TypeVar("_F", bound=_Form)


def _decode(data: bytes, form: type[_F], limit: int, what: str) -> _F:
    if len(data) > limit:
        raise RendezvousStateError(
            f"The {what} in the store is {len(data)} bytes long; at most {limit} are expected. It was not "
            f"written by rdzv-core, or by one that is newer than this."
        )
    try:
        return msgspec.json.decode(data, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RendezvousStateError(
            f"The {what} in the store cannot be read ({error}); it begins with {data[:40]!r}. Something else "
            f"writes to this run's keys, or nodes run different versions of rdzv-core. Use another run id, or "
            f"drop the run's keys."
        ) from error


def _encode(form: _Form, limit: int, what: str) -> bytes:
    try:
        data = msgspec.json.encode(form)
        msgspec.json.decode(data, type=type(form))
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError) as error:
        raise _unfit(what, str(error)) from error
    if len(data) > limit:
        raise _unfit(what, f"{len(data)} bytes, of at most {limit}")
    return data


def _unfit(what: str, why: str) -> RendezvousStateError:
    return RendezvousStateError(
        f"The {what} that this node would write could not be read by the others ({why}). Check what --local-addr, "
        f"--rdzv-conf and hook plugins say of this node."
    )


def encode_register(register: Register) -> bytes:
    """The register as bytes.

    Raises:
        RendezvousStateError: It holds what no reader would accept.
    """
    rules, bootstrap, closed = register.rules, register.bootstrap, register.closed
    return _encode(
        _Register(
            v=VERSION,
            life=register.life,
            revision=register.revision,
            write_id=register.write_id,
            rules=_Rules(
                min=rules.min_nodes, max=rules.max_nodes, interval=float(rules.interval), ttl=float(rules.ttl)
            ),
            round=register.round,
            round_id=register.round_id,
            world=register.world,
            bootstrap=None if bootstrap is None else _Address(addr=bootstrap.addr, port=bootstrap.port),
            waiting=register.waiting,
            lost=register.lost,
            finished=register.finished,
            rollcall=register.rollcall,
            reason=register.reason[:1000],
            closed=None
            if closed is None
            else _Closed(by=closed.by, outcome=closed.outcome, reason=closed.reason[:1000], at=closed.at),
        ),
        MAX_REGISTER,
        "register",
    )


def decode_register(data: bytes) -> Register:
    """Read a register.

    Raises:
        RendezvousStateError: The bytes are not a register of this version; nothing of them was used.
    """
    form = _decode(data, _Register, MAX_REGISTER, "register")
    if (form.round > 0) != bool(form.round_id) or (form.round > 0) != (form.world > 0):
        raise RendezvousStateError(
            f"The register in the store contradicts itself: round {form.round}, round id '{form.round_id}', "
            f"world {form.world}."
        )
    try:
        rules = Rules(
            min_nodes=form.rules.min,
            max_nodes=form.rules.max,
            interval=form.rules.interval,
            ttl=form.rules.ttl,
        )
    except ValueError as error:
        raise RendezvousStateError(f"The register in the store holds impossible rules: {error}") from error
    bootstrap, closed = form.bootstrap, form.closed
    return Register(
        life=form.life,
        revision=form.revision,
        write_id=form.write_id,
        rules=rules,
        round=form.round,
        round_id=form.round_id,
        world=form.world,
        bootstrap=None if bootstrap is None else Bootstrap(addr=bootstrap.addr, port=bootstrap.port),
        waiting=form.waiting,
        lost=form.lost,
        finished=form.finished,
        rollcall=form.rollcall,
        reason=form.reason,
        closed=None
        if closed is None
        else Closed(by=closed.by, outcome=closed.outcome, reason=closed.reason, at=closed.at),
    )


def encode_record(record: Record) -> bytes:
    """A node's record as bytes.

    Raises:
        RendezvousStateError: It holds what no reader would accept.
    """
    claim = record.claim
    return _encode(
        _Record(
            v=VERSION,
            id=record.node_id,
            seq=record.seq,
            addr=record.addr,
            pid=record.pid,
            local_id=record.local_id,
            min=record.min_nodes,
            max=record.max_nodes,
            left=record.left,
            claim=None if claim is None else _Claim(round=claim.round, round_id=claim.round_id),
            steady=record.steady,
            done=record.done,
            rank_hint=record.rank_hint,
            domain=record.domain,
            attrs=record.attrs,
        ),
        MAX_RECORD,
        "record",
    )


def decode_record(data: bytes) -> Record:
    """Read a node's record.

    Raises:
        RendezvousStateError: The bytes are not a record of this version.
    """
    form = _decode(data, _Record, MAX_RECORD, "record of a node")
    return Record(
        node_id=form.id,
        seq=form.seq,
        addr=form.addr,
        pid=form.pid,
        local_id=form.local_id,
        min_nodes=form.min,
        max_nodes=form.max,
        left=form.left,
        claim=None if form.claim is None else Claim(round=form.claim.round, round_id=form.claim.round_id),
        steady=form.steady,
        done=form.done,
        rank_hint=form.rank_hint,
        domain=form.domain,
        attrs=form.attrs,
    )


def encode_page(page: Page) -> bytes:
    """A page of members as bytes.

    Raises:
        RendezvousStateError: It holds what no reader would accept.
    """
    return _encode(_Page(v=VERSION, round_id=page.round_id, ranks=dict(page.ranks)), MAX_PAGE, "page of members")


def decode_page(data: bytes) -> Page:
    """Read a page of members.

    Raises:
        RendezvousStateError: The bytes are not a page of this version.
    """
    form = _decode(data, _Page, MAX_PAGE, "page of members")
    return Page(round_id=form.round_id, ranks=form.ranks)
