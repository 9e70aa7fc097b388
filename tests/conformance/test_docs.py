"""What docs/write-a-backend.md shows to a stranger works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.testing.conformance import Power, RegisterConformance

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "write-a-backend.md"
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env={"PYTHONPATH": f"{project}:{PAGE.parents[1]}", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_the_backend_of_the_page_keeps_every_law(project: Path):
    done = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--tb=short")
    assert done.returncode == 0, done.stdout + done.stderr
    laws = sum(name.startswith("test_") for name in dir(RegisterConformance))
    unproven = 1  # an SQLite file gives no answer that could be lost
    assert f"{laws - unproven} passed, {unproven} skipped" in done.stdout


def test_the_backend_of_the_page_fits_on_a_screen():
    lines = [line for line in FILES["rdzv_sqlite.py"].splitlines() if line.strip()]
    assert len(lines) <= 40


def test_the_backend_of_the_page_can_be_lifted(project: Path):
    """Two processes' worth of clients meet over the file: one leads, both see both."""
    namespace: dict[str, type] = {}
    exec(compile(FILES["rdzv_sqlite.py"], "rdzv_sqlite.py", "exec"), namespace)
    file = str(project / "rdzv.db")
    nodes = [RegisterCoordination(namespace["SqliteBackend"](file, "job-7"), run_id="job-7") for _ in range(2)]
    leaders = [node.announce(f"n{n}", 1, b"", 60.0).leads for n, node in enumerate(nodes)]
    assert leaders == [True, False]
    for node in nodes:
        assert [e.node_id for e in node.roster().records] == ["n0", "n1"]


def test_entry_points_of_the_page_name_what_is_there(project: Path):
    groups = tomllib.loads(FILES["pyproject.toml"])["project"]["entry-points"]
    targets = [target for group in groups.values() for target in group.values()]
    assert set(groups) == {"rdzv_core.backends", "torchrun.handlers"}
    for target in targets:
        module, _, name = target.partition(":")
        program = f"import sys, {module}; assert callable({module}.{name}); print('torch' in sys.modules)"
        done = run(project, "-c", program)
        assert done.stdout.strip() == "False", done.stderr


def test_the_module_that_torch_loads_imports_nothing(project: Path):
    program = "import sys; before = set(sys.modules); import rdzv_sqlite_torchrun as t; t.get_handler(); "
    program += "print(*(set(sys.modules) - before))"
    done = run(project, "-c", program)
    assert done.stdout.split() == ["rdzv_sqlite_torchrun"], done.stderr


@pytest.mark.parametrize("power", Power)
def test_the_page_tells_of_each_power(power: Power):
    """A power that nobody hears of is used by nobody."""
    told = {Power.ROLL_BACK: "fall back", Power.CUT: "cut the connection", Power.LOSE_ANSWER: "swallow an answer"}
    assert told[power] in " ".join(PAGE.read_text().split())
