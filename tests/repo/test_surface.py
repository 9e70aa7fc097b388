"""What users can import, on record: a change of it shows in the diff of ``surface.txt``.

``RDZV_ACCEPT_SURFACE=1 python -m pytest tests/repo/test_surface.py`` writes the record anew.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_origin

import pytest

import rdzv_core

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("surface.txt")
MODULES = (
    "rdzv_core",
    "rdzv_core.backend",
    "rdzv_core.discovery",
    "rdzv_core.endpoint",
    "rdzv_core.errors",
    "rdzv_core.events",
    "rdzv_core.hooks",
    "rdzv_core.options",
    "rdzv_core.registry",
    "rdzv_core.servers",
)


def signature(thing: Any) -> str:
    try:
        text = str(inspect.signature(thing))
    except (TypeError, ValueError):
        return ""
    text = re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)  # annotations are strings, and read better without quotes
    return re.sub(r"<(?:built-in )?function (\w+)(?: at 0x[0-9a-f]+)?>", r"\1", text)


def members(kind: type) -> Iterator[str]:
    """Public members that our own classes add, with what they take."""
    seen: dict[str, str] = {}
    for base in kind.__mro__:
        if not base.__module__.startswith("rdzv_core"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            if isinstance(member, (staticmethod, classmethod)):
                seen[name] = f"{name}{signature(member.__func__)}"
            elif inspect.isfunction(member):
                seen[name] = f"{name}{signature(member)}"
            else:
                seen[name] = name
    yield from (seen[name] for name in sorted(seen))


def surface() -> str:
    """Every public name, by the module that it is imported from."""
    lines = []
    for module in MODULES:
        lines.append(module)
        public = import_module(module)
        for name in sorted(public.__all__):
            thing = getattr(public, name)
            if inspect.isclass(thing) and thing is not Any and get_origin(thing) is None:  # an alias is no class
                lines.append(f"    class {name}{signature(thing) if not _is_protocol(thing) else ''}")
                lines += [f"        {member}" for member in members(thing)]
            elif inspect.isfunction(thing):
                lines.append(f"    {name}{signature(thing)}")
            else:
                lines.append(f"    {name}")
    return "\n".join(lines) + "\n"


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))


def test_the_surface_is_as_recorded():
    now = surface()
    if os.environ.get("RDZV_ACCEPT_SURFACE") == "1":
        RECORD.write_text(now)
    then = RECORD.read_text()
    diff = "\n".join(difflib.unified_diff(then.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1))
    assert now == then, f"the public surface has changed; see the top of this file to accept it:\n{diff}"


def test_the_roof_names_each_thing_in_all_three_places():
    """``__all__``, the lazy table, and the imports for type checkers."""
    tree = ast.parse((ROOT / "rdzv_core" / "__init__.py").read_text())
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(rdzv_core.__all__) == set(rdzv_core._HOMES) == set(typed)
    assert {name: f"rdzv_core.{home}" for name, home in rdzv_core._HOMES.items()} == typed
    assert list(rdzv_core.__all__) == sorted(rdzv_core.__all__)


@pytest.mark.parametrize("name", rdzv_core.__all__)
def test_each_name_is_that_of_its_home(name: str):
    home = import_module(f"rdzv_core.{rdzv_core._HOMES[name]}")
    assert getattr(rdzv_core, name) is getattr(home, name)
    assert name in home.__all__
    assert name in dir(rdzv_core)


def test_what_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'rdzv_core' has no attribute 'Redis'"):
        rdzv_core.Redis  # noqa: B018
    assert not hasattr(rdzv_core, "Redis")


def test_the_version_is_that_of_the_project():
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    assert f'version = "{rdzv_core.__version__}"' in lines


LIMIT_MS = 60


def test_importing_the_core_is_quick_and_asks_for_nothing():
    """The best of several, since the machine may be busy; measured beside an interpreter that imports nothing."""
    program = (
        "import sys, time\n"
        "before = time.perf_counter()\n"
        "import rdzv_core\n"
        "print((time.perf_counter() - before) * 1000)\n"
        "print(*sorted(name for name in sys.modules if name.startswith('rdzv_core')))\n"
    )
    best = float("inf")
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT, check=True
        )
        took, brought = done.stdout.splitlines()
        best = min(best, float(took))
        assert brought == "rdzv_core"
    assert best < LIMIT_MS
