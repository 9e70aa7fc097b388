"""The import list is the architecture diagram: arrows go down, and within a floor to the left.

The two tables are the law. A module that no table names is an error, so a new file begins with the question
which floor it stands on. See CONTRIBUTING.md for the floors in words.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
CORE = ROOT / "rdzv_core"

# Bottom up. A floor has lanes side by side, and a lane has rooms from left to right. A room may import every
# room of the floors below and the rooms to its left in its own lane; lanes have no door between them. A name
# stands for the module or package and all that is in it.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "ground": (("errors", "machine", "wire"),),
    "contracts": (("dialling", "endpoint", "options", "events", "tcp_store", "store_values", "api", "backend"),),
    "shell": (
        ("servers",),
        (
            "runtime.clock",
            "runtime.journal",
            "runtime.localhost",
            "runtime.bootstrap",
            "runtime.register_coordination",
            "runtime.orders",
            "runtime.leading",
            "runtime.knowledge",
            "runtime.presence",
            "runtime.following",
            "runtime.session",
            "runtime.runner",
            "runtime.handler",
            "runtime",
        ),
    ),
    "assembly": (("discovery", "hooks", "registry"),),
    "doors": (("torchrun",), ("cli",), ("testing",)),
}
ROOF = "rdzv_core"
"""``rdzv_core/__init__``: gathers names from every floor but the doors."""

# Who may import what is not ours. The ground floor is pure: these would bring the world in.
WORLDLY = frozenset({"time", "threading", "socket", "os", "random", "logging", "subprocess", "asyncio", "signal"})
FOREIGN: dict[str, frozenset[str]] = {
    "importlib_metadata": frozenset({"discovery"}),
    "pluggy": frozenset({"hooks"}),
    "torch": frozenset({"tcp_store", "torchrun"}),
    "pytest": frozenset({"testing"}),
    "hypothesis": frozenset({"testing"}),
    "msgspec": frozenset({"machine", "wire", "runtime.register_coordination"}),
}
LAZY = {"torch": "tcp_store"}
"""Where a guest is imported inside functions only, so that the rest of the core works without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement's target, as written in ``module``."""

    module: str
    target: str
    line: int
    at_top: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.target}"


def modules() -> dict[str, Path]:
    """Every module of the core by its name inside the package; the roof is ''."""
    found = {}
    for path in sorted(CORE.rglob("*.py")):
        parts = path.relative_to(CORE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def read_imports(module: str, source: str, *, is_package: bool) -> Iterator[Import]:
    """Read the imports of one module; those only for type checkers are no arrows and are left out."""
    package = [ROOF, *module.split(".")] if module else [ROOF]
    if not is_package:
        package.pop()

    def walk(node: ast.AST, at_top: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and ast.unparse(child.test) in {
                "TYPE_CHECKING",
                "typing.TYPE_CHECKING",
            }:
                yield from (found for other in child.orelse for found in walk(other, at_top))
                continue
            if isinstance(child, ast.Import):
                for name in child.names:
                    yield Import(module=module, target=name.name, line=child.lineno, at_top=at_top)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                stem = ".".join([*base, *([child.module] if child.module else [])])
                for name in child.names:
                    yield Import(module=module, target=f"{stem}.{name.name}", line=child.lineno, at_top=at_top)
            inside = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from walk(child, at_top and not inside)

    yield from walk(ast.parse(source), True)


def imports_of_core() -> list[Import]:
    return [
        found
        for module, path in modules().items()
        for found in read_imports(module, path.read_text(), is_package=path.name == "__init__.py")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Where a module stands: how high, in which lane, how far right."""

    name: str
    floor: int
    lane: int
    place: int


ROOMS: dict[str, Room] = {
    name: Room(name=name, floor=height, lane=number, place=place)
    for height, floor in enumerate(FLOORS.values())
    for number, lane in enumerate(floor)
    for place, name in enumerate(lane)
}
TOP = len(FLOORS) - 1


DIVIDED = frozenset(name.rpartition(".")[0] for name in ROOMS if "." in name)
"""Packages whose modules have a room each; a new module in them is not covered by the package's name."""


def room_of(module: str) -> Room | None:
    """The room with the most precise name that covers ``module``."""
    parts = module.split(".")
    names = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
    return next((ROOMS[name] for name in names if name in ROOMS and (name == module or name not in DIVIDED)), None)


def complaint_about_arrow(found: Import, known: frozenset[str]) -> str | None:
    """Say what is wrong with an import of ours, or None."""
    inner = found.target.removeprefix(ROOF).lstrip(".")
    while inner and inner not in known:  # a name inside a module
        inner = inner.rpartition(".")[0]
    target = room_of(inner)
    if found.module == "":
        if target is not None and target.floor == TOP:
            return f"{found}: the roof gathers from every floor but the doors"
        return None
    if not inner:
        return f"{found}: the roof is above every floor; import from where the name lives"
    here = room_of(found.module)
    if here is None or target is None or here == target:
        return None  # a module without a floor has a test of its own
    if here.floor == target.floor and here.lane != target.lane:
        return f"{found}: {here.name} and {target.name} are lanes without a door between them"
    if (here.floor, here.place) < (target.floor, target.place):
        return f"{found}: {target.name} stands above {here.name}, or to its right"
    return None


def complaint_about_foreigner(found: Import) -> str | None:
    """Say what is wrong with an import of somebody else's, or None."""
    top = found.target.partition(".")[0]
    room = room_of(found.module) if found.module else None
    if top in WORLDLY and room is not None and room.floor == 0:
        return f"{found}: the ground floor is pure"
    allowed = FOREIGN.get(top)
    if allowed is not None:
        inside = {".".join(found.module.split(".")[:n]) for n in range(1, found.module.count(".") + 2)}
        if not inside & allowed:
            return f"{found}: {top} belongs to {', '.join(sorted(allowed))} alone"
    elif top not in sys.stdlib_module_names and top != ROOF:
        return f"{found}: no floor is open to {top}; if it is to be, FOREIGN says where"
    if found.at_top and LAZY.get(top) == found.module:
        return f"{found}: {top} is imported inside functions only"
    return None


def test_every_module_has_a_floor():
    homeless = [name for name in modules() if name and room_of(name) is None]
    assert not homeless, f"no floor in FLOORS for {homeless}"


def test_imports_go_down_or_left():
    known = frozenset(modules())
    ours = [found for found in imports_of_core() if found.target.partition(".")[0] == ROOF]
    assert ours, "no import of ours was read at all"
    complaints = [text for found in ours if (text := complaint_about_arrow(found, known))]
    assert not complaints, "\n".join(complaints)


def test_foreign_modules_stay_where_they_belong():
    foreign = [found for found in imports_of_core() if found.target.partition(".")[0] != ROOF]
    assert foreign, "no foreign import was read at all"
    complaints = [text for found in foreign if (text := complaint_about_foreigner(found))]
    assert not complaints, "\n".join(complaints)


def test_plugins_see_contracts_but_not_the_protocol():
    """A backend keeps bytes and a token; it cannot peek."""
    closed = ("machine", "wire", "runtime", "testing", "cli")
    complaints = []
    for path in sorted(ROOT.glob("plugins/*/src/**/*.py")):
        for found in read_imports("", path.read_text(), is_package=True):
            inner = found.target.removeprefix(f"{ROOF}.")
            if inner != found.target and inner.partition(".")[0] in closed:
                complaints.append(f"{path.relative_to(ROOT)}:{found.line} imports {found.target}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize(
    ("module", "source", "said"),
    [
        ("errors", "from rdzv_core.machine import rules", "stands above errors, or to its right"),
        ("wire", "from rdzv_core import machine", None),
        ("machine.decide", "from .register import Register", None),
        ("machine.decide", "from ..backend import Token", "stands above machine"),
        ("backend", "from rdzv_core import RendezvousError", "the roof is above every floor"),
        ("torchrun.entry", "def f():\n    import rdzv_core.cli", "lanes without a door"),
        ("machine.decide", "import time", "the ground floor is pure"),
        ("machine.decide", "if True:\n    from os import path", "the ground floor is pure"),
        ("tcp_store", "import torch", "inside functions only"),
        ("tcp_store", "def f():\n    import torch", None),
        ("runtime.session", "def f():\n    import torch", "belongs to tcp_store, torchrun alone"),
        ("runtime.session", "from rdzv_core.runtime.session import nobody", None),
        ("registry", "import requests", "no floor is open to requests"),
        ("", "from rdzv_core.torchrun import entry", "every floor but the doors"),
        ("errors", "if TYPE_CHECKING:\n    from rdzv_core.registry import R", None),
    ],
)
def test_the_laws_themselves(module: str, source: str, said: str | None):
    """Each law is seen to fail, on a line that breaks it."""
    known = frozenset({*ROOMS, "machine.register"})
    answers = [
        complaint_about_arrow(found, known) if found.target.startswith(ROOF) else complaint_about_foreigner(found)
        for found in read_imports(module, source, is_package=module == "")
    ]
    if said is None:
        assert not any(answers)
    else:
        assert said in str(answers[0])


@pytest.mark.parametrize("pyproject", sorted(ROOT.glob("plugins/*/pyproject.toml")), ids=lambda path: path.parent.name)
def test_what_torch_loads_while_it_is_imported_imports_nothing(pyproject: Path):
    """It imports every ``torchrun.handlers`` target in the middle of its own import, in every launcher."""
    targets = tomllib.loads(pyproject.read_text())["project"]["entry-points"]["torchrun.handlers"]
    assert targets
    for target in targets.values():
        path = pyproject.parent.joinpath("src", *target.partition(":")[0].split(".")).with_suffix(".py")
        at_top = [found for found in read_imports("", path.read_text(), is_package=True) if found.at_top]
        assert not [found for found in at_top if not found.target.startswith("__future__")]


def test_importing_the_core_brings_neither_torch_nor_a_client():
    program = "import sys, rdzv_core; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    brought = set(done.stdout.split())
    assert "rdzv_core" in brought
    assert not brought & {"torch", "numpy", "pytest", "hypothesis", "redis", "rdzv_redis", "pluggy"}
