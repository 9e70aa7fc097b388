"""docs/protocol.md and docs/torchrun.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rdzv_core.machine import follow

ROOT = Path(__file__).parents[2]
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()
TORCHRUN = (ROOT / "docs" / "torchrun.md").read_text()
FOLLOW_TABLE = (ROOT / "tests" / "machine" / "tables" / "follow.txt").read_text()
ANSWERS = {kind.__name__ for kind in follow.Answer.__args__}
CALLS = {"next_rendezvous()", "shutdown()"}
SEEN_BY_FOLLOW = {
    "idle": "idle",
    "barrier": "joining",
    "spare": "joining",
    "seated": "joining",
    "member": "in",
}
"""The diagram's states as ``follow`` tells them apart."""


def arrows() -> list[tuple[str, str, list[str]]]:
    """From, to, and labels of the diagram."""
    (drawn,) = re.findall(r"^```mermaid\n(.*?)^```", PROTOCOL, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^ +(\S+) --> (\S+?)(?:: (.+))?$", drawn, flags=re.MULTILINE)
    return [(before, after, [label.strip() for label in labels.split(",") if label]) for before, after, labels in found]


def tried() -> set[tuple[str, str]]:
    """State and answer of each case of the truth table, which is held against the code."""
    cases = re.findall(r"^(\w+)[^|\n]*(?:\|[^|\n]*){3}\| -> (\w+(?: spare)?)", FOLLOW_TABLE, flags=re.MULTILINE)
    return {(state, answer if answer.split()[0] in ("Wait", "Ended") else answer.split()[0]) for state, answer in cases}


def test_the_diagram_draws_what_follow_answers():
    drawn = {
        (SEEN_BY_FOLLOW[before], label) for before, _, labels in arrows() for label in labels if label not in CALLS
    }
    assert drawn == tried()


def test_the_diagram_has_no_dead_end_and_no_unknown_word():
    places = {place for before, after, _ in arrows() for place in (before, after)}
    leads_on = {before for before, after, _ in arrows() if after != before}
    assert places == leads_on
    labels = {label.removesuffix(" spare") for _, _, labels in arrows() for label in labels}
    assert labels == ANSWERS | CALLS


def test_every_answer_is_described():
    (table,) = re.findall(r"^\| answer \|.*?\n\n", PROTOCOL, flags=re.MULTILINE | re.DOTALL)
    described = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert len(described) == len(set(described))
    assert set(described) == ANSWERS


def test_every_rule_that_the_code_cites_is_told():
    told = {int(number) for number in re.findall(r"^### Rule (\d+):", PROTOCOL, flags=re.MULTILINE)}
    assert told == set(range(1, 17))
    cited = {
        int(number)
        for path in (ROOT / "rdzv_core").rglob("*.py")
        for group in re.findall(r"\brules? ((?:\d+(?:, | and )?)+)", path.read_text())
        for number in re.findall(r"\d+", group)
    }
    assert cited
    assert cited <= told


def test_the_fixed_times_are_those_of_the_code():
    code = "\n".join(path.read_text() for path in (ROOT / "rdzv_core").rglob("*.py"))
    rows = [*re.findall(r"^\| `([A-Z_]+)` \| ([\d.]+) \|", PROTOCOL, flags=re.MULTILINE)]
    rows += re.findall(r"`([A-Z_]+)` = ([\d.]+) intervals", PROTOCOL)
    assert len(rows) >= 7
    for name, number in rows:
        assert [float(n) for n in re.findall(rf"^{name} = ([\d.]+)$", code, flags=re.MULTILINE)] == [float(number)], (
            name
        )


@pytest.mark.parametrize("text", [PROTOCOL, TORCHRUN], ids=["protocol", "torchrun"])
def test_names_that_the_page_speaks_of_exist(text: str):
    """A snake_case word in backticks is an option, or a word of the code."""
    spoken = set(re.findall(r"`([a-z]+(?:_[a-z]+)+)(?:\(\))?`", text))
    code = "\n".join(path.read_text() for path in (ROOT / "rdzv_core").rglob("*.py"))
    assert spoken
    assert not {word for word in spoken if not re.search(rf"\b{word}\b", code)}


def test_the_names_for_torchrun_are_those_of_the_plugins():
    listed = {
        name
        for path in ROOT.glob("plugins/*/pyproject.toml")
        for table in re.findall(
            r'^\[project.entry-points."torchrun.handlers"\]\n((?:.+\n)+)', path.read_text(), re.MULTILINE
        )
        for name in re.findall(r"^([\w-]+) = ", table, flags=re.MULTILINE)
    }
    (said,) = re.findall(r"^\| refuses names that it holds itself.*\| ours are (.*) \|$", TORCHRUN, flags=re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", said)) == listed
