"""What an import brings along. Counted in modules and not in seconds, which depend on the machine.

torch imports the ``torchrun.handlers`` module of every installed plugin in every launcher, whatever backend was asked
for; so that module, and the package that it is in, import nothing that torch has not got already.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT, *(path.parent for path in sorted(ROOT.glob("plugins/*/src/*")) if (path / "__init__.py").exists())]
CLIENTS = {"torch", "redis", "hiredis", "etcd", "msgspec", "pluggy", "importlib_metadata", "pytest", "hypothesis"}


def doors() -> list[tuple[str, str, str]]:
    """Name, module and function of every plugin's entry for torchrun."""
    found = []
    for path in sorted(ROOT.glob("plugins/*/pyproject.toml")):
        groups = tomllib.loads(path.read_text())["project"]["entry-points"]
        for name, target in groups.get("torchrun.handlers", {}).items():
            module, _, function = target.partition(":")
            found.append((name, module, function))
    return found


DOORS = doors()


def brought_by(statement: str, before: str = "pass") -> list[str]:
    """The modules that a statement loads in a fresh interpreter that has run ``before``."""
    program = (
        f"import sys; sys.path[:0] = {[str(path) for path in SOURCES]!r}\n"
        "import __future__, collections.abc, importlib, json, os, typing\n"
        f"{before}\n"
        "had = set(sys.modules)\n"
        f"{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - had)))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    return json.loads(said.stdout.splitlines()[-1])


def test_the_core_is_one_module():
    assert brought_by("import rdzv_core") == ["rdzv_core"]


def test_all_names_of_the_core_come_without_torch_and_clients():
    names = {name.partition(".")[0] for name in brought_by("from rdzv_core import *")}
    assert names & CLIENTS <= {"msgspec", "pluggy"}


def test_every_plugin_has_a_door_to_torchrun():
    assert {module.partition(".")[0] for _, module, _ in DOORS} == {path.name for path in ROOT.glob("plugins/*")}


@pytest.mark.parametrize(("name", "module", "function"), DOORS)
def test_a_door_is_its_package_and_itself(name: str, module: str, function: str):
    assert brought_by(f"import {module}") == [module.partition(".")[0], module]


@pytest.mark.parametrize(("name", "module", "function"), DOORS)
def test_a_door_answers_a_creator_and_always_the_same(name: str, module: str, function: str):
    """torch warns on each launch if a target that is loaded twice answers another function the second time."""
    brought = brought_by(
        f"from {module} import {function} as target\n"
        "creator = target()\n"
        "assert callable(creator) and target() is creator"
    )
    assert brought == [module.partition(".")[0], module]


GIVE_DOORS_TO_TORCH = f"""
import importlib.metadata as metadata, torch.distributed
doors = [metadata.EntryPoint(n, m + ':' + f, 'torchrun.handlers') for n, m, f in {DOORS!r}]
metadata.entry_points = lambda **wanted: metadata.EntryPoints(doors)
"""
"""By hand, since a checkout need not be installed."""


@pytest.mark.needs_torch
def test_torch_with_all_plugins_installed_loads_their_doors_and_no_more():
    brought = brought_by("import torch.distributed.elastic.rendezvous", before=GIVE_DOORS_TO_TORCH)
    ours = {name for name in brought if name.startswith("rdzv_")}
    assert ours == {part for _, module, _ in DOORS for part in (module, module.partition(".")[0])}


@pytest.mark.needs_torch
def test_torch_knows_every_door_by_its_name():
    brought_by(
        "from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry\n"
        f"missing = {{n for n, _, _ in {DOORS!r}}} - set(registry._registry)\n"
        "assert not missing, missing",
        before=GIVE_DOORS_TO_TORCH,
    )
