"""What docs/write-a-backend.md shows to a stranger works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rdzv_core import RendezvousParameters
from rdzv_core.endpoint import Endpoint, parse_endpoint
from rdzv_core.options import OptionError
from rdzv_core.runtime.localhost import own_address
from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.testing.conformance import Power, RegisterConformance

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

PAGE = Path(__file__).parents[2] / "docs" / "write-a-backend.md"
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))
EXAMPLES = dict(re.findall(r"^```\w+ example=(\S+)\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL))


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


def module(*texts: str) -> dict[str, Any]:
    """What a module made of ``texts`` defines."""
    namespace: dict[str, Any] = {}
    for text in texts:
        exec(compile(text, "rdzv_sqlite.py", "exec"), namespace)
    return namespace


def asked(endpoint: str, run_id: str = "job-7", **options: Any) -> RendezvousParameters:
    return RendezvousParameters("sqlite", endpoint, run_id, 1, 1, **options)


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
    backend = module(FILES["rdzv_sqlite.py"])["SqliteBackend"]
    file = str(project / "rdzv.db")
    nodes = [RegisterCoordination(backend(file, "job-7"), run_id="job-7") for _ in range(2)]
    leaders = [node.announce(f"n{n}", 1, b"", 60.0).leads for n, node in enumerate(nodes)]
    assert leaders == [True, False]
    for node in nodes:
        assert [e.node_id for e in node.roster().records] == ["n0", "n1"]


@pytest.mark.parametrize("endpoint", ["", ":memory:", "rdzv.db"])
def test_the_backend_of_the_page_refuses_what_is_no_shared_file(endpoint: str):
    with pytest.raises(ValueError, match=f"^The endpoint '{endpoint}' is no file; give a path that begins with '/'.$"):
        module(FILES["rdzv_sqlite.py"])["create_handler"](asked(endpoint))


def test_the_distribution_of_the_page_can_be_installed_and_is_found(project: Path):
    pip = ["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    done = run(project, *pip, "--no-build-isolation", "--target", "installed", ".")
    assert done.returncode == 0, done.stdout + done.stderr
    modules = {name for name in FILES if name.endswith(".py") and not name.startswith("test_")}
    assert {path.name for path in (project / "installed").glob("*.py")} == modules
    program = "import rdzv_core; print(rdzv_core.rendezvous_handler_registry.names())"
    assert "'sqlite'" in run(project / "installed", "-c", program).stdout


def test_an_option_of_the_page_is_read_and_others_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = str(tmp_path / "rdzv.db")
    plain = module(FILES["rdzv_sqlite.py"])
    with pytest.raises(OptionError, match="There is no option 'lock_timeout'"):
        plain["create_handler"](asked(file, lock_timeout="1"))

    create = module(FILES["rdzv_sqlite.py"], EXAMPLES["options"])["create_handler"]
    made: list[float] = []
    monkeypatch.setitem(
        create.__globals__, "SqliteBackend", lambda *args: made.append(args[2]) or plain["SqliteBackend"](*args)
    )
    create(asked(file, lock_timeout="1", join_timeout="5m"))
    monkeypatch.setenv("RDZV_LOCK_TIMEOUT", "3")
    create(asked(file))
    assert made == [1.0, 3.0]
    with pytest.raises(OptionError, match="'500ms' is not a duration in seconds above 0 and at most 4"):
        create(asked(file, lock_timeout="500ms"))
    with pytest.raises(OptionError, match="Did you mean 'lock_timeout'"):
        create(asked(file, lock_timeuot="1"))


def test_what_the_page_says_of_the_endpoint(tmp_path: Path):
    with_endpoint = module(FILES["rdzv_sqlite.py"], EXAMPLES["options"])["create_handler"]
    without = module(FILES["rdzv_sqlite.py"])["create_handler"]
    assert without(asked(str(tmp_path / "rdzv.db"))).endpoint is None
    nowhere = with_endpoint(asked(str(tmp_path / "rdzv.db"))).endpoint
    assert nowhere == Endpoint(scheme="unix", path=str(tmp_path / "rdzv.db"))

    here = [parse_endpoint(text, default_port=7000) for text in ("localhost", "127.0.0.1", "::1")]
    assert all(where.is_loopback for where in (nowhere, *here))
    assert not parse_endpoint("db.example", default_port=7000).is_loopback
    assert own_address(nowhere, shared=True) == own_address(here[1], shared=True) == "127.0.0.1"


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
