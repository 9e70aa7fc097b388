"""A hook is documented and tested, or the build is red."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from rdzv_core.discovery import HOOKS
from rdzv_core.hooks import Hooks, specs

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hooks.md").read_text()
SPECS: dict[str, FunctionType] = {
    name: thing for name, thing in vars(specs).items() if inspect.isfunction(thing) and name.startswith("rdzv_")
}


def test_the_manager_knows_exactly_these_hooks():
    hooks = Hooks(environ={"RDZV_HOOKS": ""})
    assert set(SPECS) == {name for name in vars(hooks.manager.hook) if name.startswith("rdzv_")}
    assert SPECS


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_hook_is_documented_with_its_signature(name: str):
    signature = str(inspect.signature(SPECS[name])).replace("'", "")
    assert re.search(rf"^## `{name}`$", TEXT, flags=re.MULTILINE), f"docs/hooks.md has no section on {name}"
    assert f"{name}{signature}" in TEXT, f"docs/hooks.md does not show {name}{signature}"


def test_no_section_speaks_of_a_hook_that_is_not_there():
    assert set(re.findall(r"^## `(rdzv_\w+)`$", TEXT, flags=re.MULTILINE)) == set(SPECS)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_hook_is_tested(name: str):
    tree = ast.parse((Path(__file__).parent / "test_hooks.py").read_text())
    assert f"test_hook_{name}" in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_hook_says_what_it_promises(name: str):
    assert len(inspect.getdoc(SPECS[name]) or "") > 80


@pytest.mark.parametrize("switch", ["RDZV_HOOKS", "RDZV_TRACE_HOOKS", "RDZV_STRICT_PLUGINS", HOOKS])
def test_the_switches_are_documented(switch: str):
    assert switch in TEXT


def test_every_field_of_a_member_is_documented():
    for field in specs.Member.__dataclass_fields__:
        assert f"`{field}`" in TEXT


def test_the_example_works():
    """The first Python block of the page is a whole plugin."""
    source = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)[0]
    module: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "docs/hooks.md", "exec"), module)
    hooks = Hooks(environ={"RDZV_HOOKS": ""})
    hooks.manager.register(type("Example", (), {k: staticmethod(v) for k, v in module.items() if k in SPECS}))
    hooks.manager.check_pending()
    assert hooks.manager.hook.rdzv_place.get_hookimpls()
