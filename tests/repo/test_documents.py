"""The pages on options and errors say what the code says, or the build is red.

``RDZV_ACCEPT_TABLES=1 python -m pytest tests/repo/test_documents.py`` writes the tables of options anew.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path

import pytest

from rdzv_core.options import HANDLER_OPTIONS, Option, option_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "options.md"
OPTIONS = PAGE.read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.md"), *ROOT.glob("plugins/*/README.md")]
)
TABLE = re.compile(r"<!-- table of (\S+) -->\n(.*?)<!-- end -->", flags=re.DOTALL)
TABLES = dict(TABLE.findall(OPTIONS))


def declared(where: str) -> tuple[Option, ...]:
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


@pytest.fixture(autouse=True)
def _plugins_can_be_imported(monkeypatch: pytest.MonkeyPatch):
    for source in ROOT.glob("plugins/*/src"):
        monkeypatch.syspath_prepend(str(source))


def test_the_tables_of_options_are_those_of_the_declarations():
    def table(found: re.Match[str]) -> str:
        return f"<!-- table of {found[1]} -->\n{option_table(declared(found[1]))}<!-- end -->"

    assert TABLES
    now = TABLE.sub(table, OPTIONS)
    if os.environ.get("RDZV_ACCEPT_TABLES") == "1":
        PAGE.write_text(now)
    assert PAGE.read_text() == now, "a table of docs/options.md is not that of its declaration; see above to accept"


def test_all_declarations_have_a_table():
    """A module that declares options to be read from a configuration is called ``options``."""
    found = {"rdzv_core.options:HANDLER_OPTIONS"}
    for path in ROOT.glob("plugins/*/src/*/options.py"):
        names = re.findall(r"^([A-Z][A-Z0-9_]*): tuple\[Option, \.\.\.\]", path.read_text(), flags=re.MULTILINE)
        assert names, f"{path.relative_to(ROOT)} declares no tuple of options"
        found |= {f"{path.parent.name}.options:{name}" for name in names}
    missing = [f"<!-- table of {where} -->\n<!-- end -->" for where in sorted(found - set(TABLES))]
    assert not missing, "\n".join(["docs/options.md needs a section with each of these lines:", *missing])
    assert set(TABLES) <= found


def test_options_that_a_text_speaks_of_exist():
    known = {option.name for where in TABLES for option in declared(where)}
    known |= {alias for option in HANDLER_OPTIONS for alias in option.aliases}
    for page, text in (("options.md", OPTIONS), ("errors.md", ERRORS)):
        spoken = set(re.findall(r"`([a-z]+(?:_[a-z]+)*_(?:timeout|interval|attempt|delay|ttl|hint))`", text))
        assert spoken
        assert spoken <= known, f"docs/{page} speaks of {spoken - known}"


def error_classes() -> set[str]:
    """Public errors of the core, read without importing what needs torch."""
    return {
        node.name
        for path in (ROOT / "rdzv_core").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
    }


def test_every_error_has_its_section_and_no_other():
    sections = re.findall(r"^## `(\w+)`\n\n(.+?)(?=^## |\Z)", ERRORS, flags=re.MULTILINE | re.DOTALL)
    assert {name for name, _ in sections} == error_classes()
    assert len(sections) == len({name for name, _ in sections})
    assert all(len(text) > 100 for _, text in sections)


def test_the_overview_of_errors_is_true():
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\) \| `(\w+)` \|", ERRORS, flags=re.MULTILINE)
    assert {name for name, _, _ in rows} == error_classes()
    homes = ("rdzv_core.errors", "rdzv_core.options", "rdzv_core.discovery")
    for name, anchor, base in rows:
        assert anchor == name.lower()
        (home,) = [home for home in homes if hasattr(import_module(home), name)]
        assert getattr(sys.modules[home], name).__bases__[0].__name__ == base


def found(dotted: str) -> bool:
    """Whether a dotted name of ours is a module, or something that a module holds."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return reduce(lambda held, name: getattr(held, name, None), parts[cut:], thing) is not None
    return False


def names_in(page: Path) -> set[str]:
    return set(re.findall(r"`(rdzv_(?:core|c10d|etcd|redis)(?:\.[A-Za-z]\w*)+)[`(]", page.read_text()))


def needs(page: Path) -> tuple[pytest.MarkDecorator, ...]:
    of_torch = any(name.startswith(("rdzv_c10d.", "rdzv_core.torchrun.")) for name in names_in(page))
    return (pytest.mark.needs_torch,) if of_torch else ()


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=needs(page), id=page.relative_to(ROOT).as_posix()) for page in PAGES]
)
def test_names_of_ours_that_a_text_speaks_of_exist(page: Path):
    spoken = names_in(page)
    missing = sorted(name for name in spoken if not found(name))
    assert not missing, f"{page.relative_to(ROOT)} speaks of {missing}"
