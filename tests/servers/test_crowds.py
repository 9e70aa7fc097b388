"""A round of many handlers over one server, in a process of its own: what it costs each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("backend", "nodes", "commands", "size"),
    [
        ("redis", 1000, 6, 2500),  # the aim is 2,000
        ("etcd", 500, 6, 6000),  # bodies alone: JSON and base64, see the plugin's README
    ],
)
def test_a_round_costs_a_node_the_same_however_many_there_are(backend: str, nodes: int, commands: int, size: int):
    program = [sys.executable, "benchmarks/handlers.py", "--backend", backend, "--nodes", "16", str(nodes), "--json"]
    ended = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)
    assert [row["nodes"] for row in rows] == [16, 16, nodes, nodes]
    for row in rows:
        # On a busy machine some nodes read again what was pushed too late, and among few these weigh more.
        spare = 1.4 if row["nodes"] == 16 else 1.0
        assert 1 < row["commands_per_node"] <= spare * commands, row
        assert 100 < row["bytes_per_node"] <= spare * size, row
    assert not ended.stderr
