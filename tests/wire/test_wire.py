"""The form in the store: what is written today is read for ever, and what is not ours is refused in words."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core import wire
from rdzv_core.errors import RendezvousStateError
from rdzv_core.hooks.manager import ATTRIBUTES_LIMIT
from rdzv_core.machine.record import Claim, Record
from rdzv_core.machine.register import PAGE_SIZE, Bootstrap, Closed, Page, Register
from rdzv_core.machine.rules import Rules

HERE = Path(__file__).parent
DOC = (HERE.parents[1] / "docs" / "wire.md").read_text()

RULES = Rules(min_nodes=2, max_nodes=4, interval=5.0, ttl=15.0)
FIRST = Register(life="6b1d", revision=1, write_id="90aa", rules=RULES)
ROUND = replace(FIRST, revision=7, write_id="51c3", round=3, round_id="e07f", world=2, reason="round 3 with 2 members")
PLAIN = Record(node_id="4f2a", seq=1, addr="10.0.0.7", pid=4711, local_id=0, min_nodes=2, max_nodes=4)

# Never change a file of golden/: a store may hold it. A new version gets new files, and old ones stay readable.
GOLDEN: dict[str, Register | Record | Page] = {
    "register-first": FIRST,
    "register-round": ROUND,
    "register-told": replace(
        ROUND,
        revision=9,
        bootstrap=Bootstrap(addr="10.0.0.7", port=29500),
        waiting=1,
        lost=2,
        finished=1,
        rollcall=True,
        reason="lost: 8c31 (rank 1)",
    ),
    "register-closed": replace(
        ROUND,
        revision=10,
        bootstrap=Bootstrap(addr="fe80::1", port=1),
        reason="its workers have succeeded",
        closed=Closed(by="4f2a", outcome="success", reason="its workers have succeeded", at="2026-11-30 12:00:00 UTC"),
    ),
    "record-plain": PLAIN,
    "record-full": Record(
        node_id="8c31",
        seq=12,
        addr="node-8.example",
        pid=4712,
        local_id=3,
        left=2,
        claim=Claim(round=3, round_id="e07f"),
        steady=True,
        done=True,
        rank_hint=1,
        domain="rack-2",
        attrs={"slurm_node": "n8", "größe": "groß"},
        min_nodes=2,
        max_nodes=4,
    ),
    "page": Page(round_id="e07f", ranks={"4f2a": 0, "8c31": 1}),
    "page-empty": Page(round_id="e07f", ranks={}),
}
DECODERS: dict[type, Callable[[bytes], Any]] = {
    Register: wire.decode_register,
    Record: wire.decode_record,
    Page: wire.decode_page,
}
ENCODERS: dict[type, Callable[[Any], bytes]] = {
    Register: wire.encode_register,
    Record: wire.encode_record,
    Page: wire.encode_page,
}
ALL_DECODERS = list(DECODERS.values())


def golden(name: str) -> bytes:
    return (HERE / "golden" / f"{name}.json").read_bytes()


# --- what is written today is read for ever -------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_bytes_mean_what_they_meant(name: str):
    value = GOLDEN[name]
    assert DECODERS[type(value)](golden(name)) == value


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_golden_values_are_written_as_they_were(name: str):
    value = GOLDEN[name]
    assert ENCODERS[type(value)](value) == golden(name)


def test_every_golden_file_has_its_value():
    assert {path.stem for path in (HERE / "golden").iterdir()} == set(GOLDEN)


words = st.text(max_size=64)
ids = st.text(min_size=1, max_size=64)
counts = st.integers(0, 2**53)
ports = st.integers(1, 65535)
hosts = st.text(min_size=1, max_size=255)


@st.composite
def rules(draw: st.DrawFn) -> Rules:
    low = draw(st.integers(1, 2**31))
    interval = draw(st.floats(1e-6, 1e8))
    return Rules(
        min_nodes=low,
        max_nodes=draw(st.integers(low, 2**31)),
        interval=interval,
        ttl=draw(st.floats(3 * interval, 1e9)),
    )


@st.composite
def registers(draw: st.DrawFn) -> Register:
    number = draw(st.just(0) | st.integers(1, 2**53))
    return Register(
        life=draw(ids),
        revision=draw(counts),
        write_id=draw(ids),
        rules=draw(rules()),
        round=number,
        round_id=draw(ids) if number else "",
        world=draw(st.integers(1, 2**53)) if number else 0,
        bootstrap=draw(st.none() | st.builds(Bootstrap, addr=hosts, port=ports)),
        waiting=draw(counts),
        lost=draw(counts),
        finished=draw(counts),
        rollcall=draw(st.booleans()),
        reason=draw(st.text(max_size=1000)),
        closed=draw(st.none() | st.builds(Closed, by=words, outcome=words, reason=st.text(max_size=99), at=words)),
    )


records = st.builds(
    Record,
    node_id=ids,
    seq=counts,
    addr=st.text(max_size=255),
    pid=counts,
    local_id=counts,
    left=counts,
    claim=st.none() | st.builds(Claim, round=counts, round_id=ids),
    steady=st.booleans(),
    done=st.booleans(),
    rank_hint=st.none() | counts,
    domain=words,
    attrs=st.dictionaries(st.text(max_size=30), st.text(max_size=60), max_size=8),
    min_nodes=st.integers(1, 2**31),
    max_nodes=st.integers(1, 2**31),
)
pages = st.builds(Page, round_id=ids, ranks=st.dictionaries(ids, counts, max_size=20))


@given(registers() | records | pages)
def test_what_is_written_is_what_is_read(value: Any):
    assert DECODERS[type(value)](ENCODERS[type(value)](value)) == value


def test_a_round_costs_a_node_little():
    """The sizes that the promise of 2 kB per node and round is made of."""
    members = {f"{i * 2654435761 % 2**48:012x}": 9000 + i for i in range(PAGE_SIZE)}
    assert len(wire.encode_page(Page(round_id="0123456789ab", ranks=members))) < 25 * PAGE_SIZE + 60
    assert len(wire.encode_record(replace(PLAIN, node_id="0123456789ab", left=12))) < 200
    assert len(wire.encode_register(ROUND)) < 300


def test_a_long_reason_is_cut_and_not_refused():
    told = replace(ROUND, reason="x" * 5000, closed=Closed(by="b", outcome="failed", reason="y" * 5000, at="noon"))
    read = wire.decode_register(wire.encode_register(told))
    assert read.reason == "x" * 1000
    assert read.closed.reason == "y" * 1000


@pytest.mark.parametrize("character", ["x", "é", "\x00", '"'])
@pytest.mark.parametrize("names", [1, 50])
def test_all_that_hooks_may_say_of_a_node_fits_into_its_record(character: str, names: int):
    size = len(character.encode())
    each = ATTRIBUTES_LIMIT // names - 4
    attrs = {f"n{i:02}": character * (each // size) for i in range(names)}
    assert sum(len(k.encode()) + len(v.encode()) for k, v in attrs.items()) <= ATTRIBUTES_LIMIT
    longest = replace(PLAIN, addr=character * 255, domain=character * 64, attrs=attrs)
    assert wire.decode_record(wire.encode_record(longest)) == longest


# --- what nobody could read is not written --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "because"),
    [
        (replace(PLAIN, addr="x" * 256), r"Expected `str` of length <= 255 - at `\$\.addr`"),
        (replace(PLAIN, addr="\udcff"), "surrogates not allowed"),
        (replace(PLAIN, rank_hint=-1), r"Expected `int` >= 0 - at `\$\.rank_hint`"),
        (replace(PLAIN, rank_hint=2**99), r"\$\.rank_hint|serialize ints"),
        (replace(PLAIN, attrs={"a": "x" * 1025}), r"length <= 1024 - at `\$\.attrs"),
        (replace(PLAIN, attrs={str(i): "x" * 1000 for i in range(9)}), r"\d+ bytes, of at most 8192"),
        (replace(ROUND, lost=-1), r"Expected `int` >= 0 - at `\$\.lost`"),
        (Page(round_id="", ranks={}), r"length >= 1 - at `\$\.round_id`"),
    ],
)
def test_what_no_reader_would_accept_is_the_error_of_who_writes_it(value: Any, because: str):
    with pytest.raises(RendezvousStateError, match=because) as refused:
        ENCODERS[type(value)](value)
    assert "that this node would write could not be read by the others" in str(refused.value)
    assert "--local-addr" in str(refused.value)


# --- what is not ours is refused in words ---------------------------------------------------------------------


def bent(name: str, **changes: Any) -> bytes:
    """A golden value with some fields changed, or with ``None`` taken away."""
    fields = json.loads(golden(name))
    for path, value in changes.items():
        *way, last = path.split("__")
        where = fields
        for step in way:
            where = where[step]
        if value is ...:
            del where[last]
        else:
            where[last] = value
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("name", "changes", "because"),
    [
        ("register-round", {"v": 2}, r"Expected `int` <= 1 - at `$.v`"),
        ("register-round", {"v": 0}, r"Expected `int` >= 1 - at `$.v`"),
        ("register-round", {"v": ...}, "missing required field `v`"),
        ("register-round", {"v": True}, "Expected `int`, got `bool` - at `$.v`"),
        ("register-round", {"life": ""}, "length >= 1 - at `$.life`"),
        ("register-round", {"life": 7}, "Expected `str`, got `int` - at `$.life`"),
        ("register-round", {"revision": -1}, "Expected `int` >= 0 - at `$.revision`"),
        ("register-round", {"revision": 2**53 + 1}, "Expected `int` <= 9007199254740992 - at `$.revision`"),
        ("register-round", {"revision": 10**400}, "at `$.revision`"),
        ("register-round", {"revision": True}, "Expected `int`, got `bool`"),
        ("register-round", {"revision": 1.0}, "Expected `int`, got `float`"),
        ("register-round", {"revision": "7"}, "Expected `int`, got `str`"),
        ("register-round", {"revision": None}, "Expected `int`, got `null`"),
        ("register-round", {"rules__interval": float("nan")}, "JSON is malformed"),
        ("register-round", {"rules__interval": float("inf")}, "JSON is malformed"),
        ("register-round", {"rules__interval": 0}, "Expected `float` > 0.0 - at `$.rules.interval`"),
        ("register-round", {"rules__min": 0}, "Expected `int` >= 1 - at `$.rules.min`"),
        ("register-round", {"rules": ...}, "missing required field `rules`"),
        ("register-round", {"surprise": 1}, "contains unknown field `surprise`"),
        ("register-told", {"bootstrap__port": 0}, "Expected `int` >= 1 - at `$.bootstrap.port`"),
        ("register-told", {"bootstrap__port": 65536}, "Expected `int` <= 65535 - at `$.bootstrap.port`"),
        ("register-told", {"bootstrap__addr": ""}, "length >= 1 - at `$.bootstrap.addr`"),
        ("register-told", {"rollcall": 1}, "Expected `bool`, got `int` - at `$.rollcall`"),
        ("register-told", {"reason": "x" * 1001}, "length <= 1000 - at `$.reason`"),
        ("register-closed", {"closed__by": ...}, "missing required field `by` - at `$.closed`"),
        ("record-full", {"id": ""}, "length >= 1 - at `$.id`"),
        ("record-full", {"id": "x" * 65}, "length <= 64 - at `$.id`"),
        ("record-full", {"addr": "\ud800"}, "JSON is malformed: unexpected end of escaped utf-16 surrogate pair"),
        ("record-full", {"attrs__slurm_node": 8}, "Expected `str`, got `int` - at `$.attrs[...]`"),
        ("record-full", {"claim__round_id": ""}, "at `$.claim.round_id`"),
        ("record-full", {"claim__surprise": ""}, "unknown field `surprise` - at `$.claim`"),
        ("record-full", {"rank_hint": -1}, "Expected `int` >= 0 - at `$.rank_hint`"),
        ("page", {"ranks": [["4f2a", 0]]}, "Expected `object`, got `array` - at `$.ranks`"),
        ("page", {"ranks__4f2a": "0"}, "Expected `int`, got `str`"),
        ("page", {"ranks__4f2a": False}, "Expected `int`, got `bool`"),
    ],
)
def test_a_bent_value_is_refused_by_its_field(name: str, changes: dict[str, Any], because: str):
    with pytest.raises(RendezvousStateError) as refused:
        DECODERS[type(GOLDEN[name])](bent(name, **changes))
    assert because in str(refused.value)


FOREIGN = {
    "nothing": b"",
    "null": b"null",
    "a number": b"42",
    "a list": b"[]",
    "an empty object": b"{}",
    "another schema": b'{"participants": {"a": 0}, "wait_list": [], "version": "1.0"}',
    "not a number": b"NaN",
    "text": b"hello",
    "NUL bytes": b"\0\0\0",
    "no UTF-8": b'{"v": 1, "id": "\xff\xfe"}',
    "a byte order mark": b"\xef\xbb\xbf" + golden("page"),
    "UTF-16": golden("page").decode().encode("utf-16"),
    "two values": golden("page") + golden("page"),
    "a cut value": golden("page")[:-1],
    "base64 of torch's c10d": b"gASVMAAAAAAAAACMB19fbWFpbl9flIwBWJSTlCmBlC4=",
    "deep nesting within the size": b'{"v":' * 1000,
    "deep lists within the size": b"[" * 8000,
}


@pytest.mark.parametrize("decode", ALL_DECODERS)
@pytest.mark.parametrize("what", sorted(FOREIGN))
def test_foreign_bytes_are_refused_with_what_they_begin_with(decode: Callable[[bytes], Any], what: str):
    data = FOREIGN[what]
    if decode is wire.decode_page and what == "deep lists within the size":
        data *= 8
    with pytest.raises(RendezvousStateError) as refused:
        decode(data)
    said = str(refused.value)
    assert repr(data[:40]) in said
    assert "Something else writes to this run's keys, or nodes run different versions" in said
    assert "Use another run id, or drop the run's keys." in said


@pytest.mark.parametrize(
    ("decode", "limit", "what"),
    [
        (wire.decode_register, wire.MAX_REGISTER, "register"),
        (wire.decode_record, wire.MAX_RECORD, "record of a node"),
        (wire.decode_page, wire.MAX_PAGE, "page of members"),
    ],
)
def test_size_is_looked_at_before_anything_else(decode: Callable[[bytes], Any], limit: int, what: str):
    with pytest.raises(RendezvousStateError) as refused:
        decode(b"[" * (limit + 1))
    assert f"The {what} in the store is {limit + 1} bytes long; at most {limit} are expected." in str(refused.value)
    with pytest.raises(RendezvousStateError, match="cannot be read"):
        decode(b" " * limit)


@pytest.mark.parametrize("decode", ALL_DECODERS)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_run(decode: Callable[[bytes], Any], protocol: int, tmp_path: Path):
    victim = tmp_path / "written-by-a-pickle"

    class Exploit:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.write_text, (victim, "gotcha")

    data = pickle.dumps(Exploit(), protocol=protocol)
    with pytest.raises(RendezvousStateError, match="cannot be read"):
        decode(data)
    assert not victim.exists()
    pickle.loads(data)
    assert victim.exists(), "this pickle would not have hurt anybody"


@pytest.mark.parametrize(
    ("changes", "because"),
    [
        ({"round": 0}, "contradicts itself: round 0, round id 'e07f', world 2"),
        ({"round_id": ""}, "contradicts itself: round 3, round id '', world 2"),
        ({"world": 0}, "contradicts itself: round 3, round id 'e07f', world 0"),
        ({"rules__max": 1}, "holds impossible rules: The maximum number of nodes (1)"),
        ({"rules__ttl": 14}, "holds impossible rules: The TTL (14.0 s)"),
    ],
)
def test_a_register_that_contradicts_itself_is_refused(changes: dict[str, Any], because: str):
    with pytest.raises(RendezvousStateError) as refused:
        wire.decode_register(bent("register-round", **changes))
    assert because in str(refused.value)


def refused_or_read(decode: Callable[[bytes], Any], data: bytes) -> None:
    """The law of this module: a value of its kind, or the one error."""
    try:
        value = decode(data)
    except RendezvousStateError:
        return
    assert DECODERS[type(value)] is decode
    assert decode(ENCODERS[type(value)](value)) == value


@given(st.sampled_from(ALL_DECODERS), st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(decode: Callable[[bytes], Any], data: bytes):
    refused_or_read(decode, data)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(ALL_DECODERS), anything)
def test_random_json_is_refused_or_read(decode: Callable[[bytes], Any], value: Any):
    refused_or_read(decode, json.dumps(value).encode())


@given(st.sampled_from(sorted(GOLDEN)), st.data())
def test_one_changed_field_is_refused_or_read(name: str, data: st.DataObject):
    fields = json.loads(golden(name))
    fields[data.draw(st.sampled_from(sorted(fields)))] = data.draw(anything)
    refused_or_read(DECODERS[type(GOLDEN[name])], json.dumps(fields).encode())


@given(st.sampled_from(sorted(GOLDEN)), st.integers(0, 400), st.integers(0, 3), st.binary(max_size=3))
def test_damaged_bytes_are_refused_or_read(name: str, at: int, cut: int, patch: bytes):
    data = golden(name)
    at = min(at, len(data))
    refused_or_read(DECODERS[type(GOLDEN[name])], data[:at] + patch + data[at + cut :])


# --- docs/wire.md ---------------------------------------------------------------------------------------------


def test_the_page_shows_golden_values():
    shown = re.findall(r"^<!-- (\S+) -->\n```json\n(.*?)^```", DOC, flags=re.MULTILINE | re.DOTALL)
    assert {name for name, _ in shown} >= {"register-told", "register-closed", "record-plain", "record-full", "page"}
    for name, text in shown:
        assert json.loads(text) == json.loads(golden(name)), name
        assert DECODERS[type(GOLDEN[name])](text.encode()) == GOLDEN[name]


@pytest.mark.parametrize(
    ("heading", "form"), [("Record", wire._Record), ("Register", wire._Register), ("Page", wire._Page)]
)
def test_the_page_names_every_field(heading: str, form: type[msgspec.Struct]):
    section = re.search(rf"^## {heading}$(.*?)(?=^## |\Z)", DOC, flags=re.MULTILINE | re.DOTALL).group(1)
    fields = {field.encode_name: field for field in msgspec.structs.fields(form)}
    rows = dict(re.findall(r"^\| `(\w+)`[^|]* \| ([^|]+) \|", section, flags=re.MULTILINE))
    assert list(rows) == list(fields)
    for name, needed in rows.items():
        assert (needed.strip() == "always") == fields[name].required, name


def test_the_page_tells_the_limits():
    for limit in (wire.MAX_REGISTER, wire.MAX_RECORD, wire.MAX_PAGE):
        assert f"{limit // 1024} KiB" in DOC
    assert f"Some {PAGE_SIZE} members" in DOC
    assert f"`world / {PAGE_SIZE}` pages" in DOC
