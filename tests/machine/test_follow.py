"""What the register means for one node."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from rdzv_core.machine import follow as module
from rdzv_core.machine.follow import Completed, Ended, Me, PageLookup, PageState, Republish, Seat, follow
from rdzv_core.machine.register import Bootstrap, Closed, Register
from tests.machine.draw import known_registers, lookups, nodes, registers
from tests.machine.script import rules

TABLE = Path(__file__).parent / "tables" / "follow.txt"
RULES = rules("2:4")


def cases() -> list[Any]:
    found = []
    for number, line in enumerate(TABLE.read_text().splitlines(), start=1):
        if "|" in line and not line.startswith("#"):
            *given_, answer = [part.strip() for part in line.split("|", 4)]
            found.append(pytest.param(*given_, answer.removeprefix("-> "), id=f"line {number}"))
    return found


def words(text: str) -> dict[str, str]:
    return {word.partition("=")[0]: word.partition("=")[2] for word in text.split()}


def me(text: str) -> Me:
    said = words(text)
    seat = None
    if "in" in said:
        number, _, round_id = said["in"].partition("/")
        seat = Seat(life="life", round=int(number), round_id=round_id, rank=0, world=2)
    return Me(
        node_id="n",
        rules=RULES,
        left=int(said.get("left", 0)),
        last_round_id=said.get("last", ""),
        seat=seat,
        joining="joining" in said,
    )


def register(text: str) -> Register | None:
    if text == "-":
        return None
    number = int(text.split()[0].removeprefix("r"))
    said = words(text)
    closed = Closed(by="b", outcome="success", reason="all is done", at="noon") if "closed" in said else None
    return Register(
        life=said.get("life", "life"),
        revision=10 * number,
        write_id="w",
        rules=rules(said.get("rules", "2:4")),
        round=number,
        round_id=said.get("id", f"r{number}") if number else "",
        world=2 if number else 0,
        bootstrap=Bootstrap(addr="h", port=1) if "boot" in said else None,
        waiting=int(said.get("waiting", 0)),
        lost=int(said.get("lost", 0)),
        rollcall="rollcall" in said,
        reason="as was said",
        closed=closed,
    )


def page(text: str) -> PageLookup:
    said = words(text)
    if text == "unread":
        return PageLookup()
    if text.startswith("missing"):
        return PageLookup(state=PageState.MISSING, waited=float(text.split()[1]))
    rank = int(said["rank"]) if "rank" in said else None
    return PageLookup(state=PageState.READ, rank=rank, waited=float(said.get("waited", 0)))


def told(answer: Any) -> str:
    said = [type(answer).__name__]
    for field in dataclasses.fields(answer):
        value = getattr(answer, field.name)
        if isinstance(value, Seat):
            said.append(f"in={value.round}/{value.round_id} rank={value.rank} of {value.world}")
        elif value is True:
            said.append(field.name)
        elif field.name == "waiting":
            said.append(f"waiting={value}")
        elif field.name in ("round", "round_id"):
            said.append(str(value))
    return f"{' '.join(said)}: {answer.why}"


@pytest.mark.parametrize(("node", "knew", "stored", "its_page", "answer"), cases())
def test_what_the_register_means(node: str, knew: str, stored: str, its_page: str, answer: str):
    assert told(follow(me(node), register(stored), register(knew), page(its_page))) == answer


def test_every_answer_has_a_case():
    given_ = {case.values[4].split()[0].rstrip(":") for case in cases()}
    assert given_ == {kind.__name__ for kind in module.Answer.__args__}


@given(nodes(), registers() | known_registers(), registers() | known_registers(), lookups())
def test_a_node_is_done_only_on_a_whole_round(node: Me, stored: Any, known: Any, looked: PageLookup):
    answer = follow(node, stored, known, looked)
    if isinstance(answer, Completed):
        assert stored.closed is None
        assert stored.lost == 0
        assert answer.bootstrap is stored.bootstrap is not None
        assert stored.rules == node.rules
        assert stored.round > node.left
        assert (answer.seat.round, answer.seat.round_id, answer.seat.world) == (
            stored.round,
            stored.round_id,
            stored.world,
        )
        assert answer.seat.rank == looked.rank


@given(nodes(), registers() | known_registers(), registers() | known_registers(), lookups())
def test_closed_is_believed_by_all_who_do_not_know_better(node: Me, stored: Any, known: Any, looked: PageLookup):
    answer = follow(node, stored, known, looked)
    if stored is not None and stored.closed is not None:
        assert isinstance(answer, Ended | Republish)
        newer = known is not None and known.life == stored.life and known.revision > stored.revision
        assert isinstance(answer, Republish) == newer


@given(nodes(), registers() | known_registers(), registers() | known_registers(), lookups())
def test_every_answer_says_why(node: Me, stored: Any, known: Any, looked: PageLookup):
    assert follow(node, stored, known, looked).why
