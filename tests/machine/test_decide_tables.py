"""What a leader writes, told as stories. ``RDZV_REWRITE_TABLES=1`` writes the answers anew: commit what you grasp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.machine.script import Stanza, play, rewritten, stanzas

TABLES = sorted((Path(__file__).parent / "tables").glob("decide-*.txt"))
if os.environ.get("RDZV_REWRITE_TABLES"):
    for path in TABLES:
        path.write_text(rewritten(path))
CASES = [
    pytest.param(stanza, id=f"{path.stem}:{stanza.line}: {stanza.title}") for path in TABLES for stanza in stanzas(path)
]


@pytest.mark.parametrize("stanza", CASES)
def test_what_a_leader_writes(stanza: Stanza):
    answers = [line for line in stanza.lines if line.startswith("->")]
    assert answers, "a stanza without an answer proves nothing"
    assert play(stanza) == stanza.lines


def test_each_rule_of_decide_has_its_table():
    rules = {path.stem.split("-")[1] for path in TABLES}
    assert rules == {"complete", "tell", "loss", "end"}
