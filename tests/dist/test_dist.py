"""The distributions as a user gets them: built, read, and installed where nothing of this tree can be seen."""

from __future__ import annotations

import configparser
import fnmatch
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from rdzv_etcd import EtcdServer
from rdzv_redis import RedisServer

ROOT = Path(__file__).parents[2]
TRACKED = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT).stdout
PLUGINS = sorted(name.split("/")[1] for name in fnmatch.filter(TRACKED.split(), "plugins/*/pyproject.toml"))
PROJECTS = ["rdzv_core", *PLUGINS]

pytestmark = [pytest.mark.dist, pytest.mark.xdist_group("dist"), pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path = ROOT, **more: str) -> str:
    """Run a program that sees neither this tree nor its environment; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=500, cwd=cwd, env=environment)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """What a wheel holds."""

    path: Path
    names: frozenset[str]
    metadata: Message
    entry_points: dict[str, dict[str, str]]


def read_wheel(path: Path) -> Wheel:
    with zipfile.ZipFile(path) as archive:
        names = frozenset(archive.namelist())
        info = next(name.partition("/")[0] for name in names if name.endswith(".dist-info/METADATA"))
        points = configparser.ConfigParser(delimiters=("=",))
        points.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
        points.read_string(archive.read(f"{info}/entry_points.txt").decode())
        metadata = Parser().parsestr(archive.read(f"{info}/METADATA").decode())
    return Wheel(
        path=path,
        names=names,
        metadata=metadata,
        entry_points={section: dict(points[section]) for section in points.sections()},
    )


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all distributions, as ``make dist`` builds them."""
    folder = tmp_path_factory.mktemp("dist")
    run("sh", ROOT / "scripts" / "dist.sh", sys.executable, folder)
    return folder


@pytest.fixture(scope="session")
def wheels(dist: Path) -> dict[str, Wheel]:
    return {path.name.partition("-")[0]: read_wheel(path) for path in dist.glob("*.whl")}


@pytest.fixture(scope="session")
def python(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment in which a user has said: pip install "rdzv-core[redis]"."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "-q", "install", "--find-links", dist, "rdzv-core[redis]==0.1.*", cwd=folder)
    return python


def test_each_project_is_one_sdist_and_one_wheel(dist, wheels):
    assert sorted(wheels) == sorted(PROJECTS)
    assert sorted(path.name.partition("-")[0] for path in dist.glob("*.tar.gz")) == sorted(PROJECTS)
    assert len(list(dist.iterdir())) == 2 * len(PROJECTS)


@pytest.mark.parametrize("project", PROJECTS)
def test_a_wheel_holds_its_package_and_nothing_else(wheels, project):
    names = wheels[project].names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {project}
    assert f"{project}/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    source = f"{project}/" if project == "rdzv_core" else f"plugins/{project}/src/{project}/"
    inside = {f"{project}/{name.removeprefix(source)}" for name in TRACKED.split() if name.startswith(source)}
    assert {name for name in names if ".dist-info/" not in name} == inside


@pytest.mark.parametrize("project", PROJECTS)
def test_an_sdist_can_be_built_from_and_holds_no_other_project(dist, project):
    path = next(dist.glob(f"{project}-*.tar.gz"))
    with tarfile.open(path) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"} <= inside
    tops = {name.partition("/")[0] for name in inside}
    assert not tops & {"plugins", "examples", "benchmarks", "docs", ".ci", "requirements"}
    assert "tests" not in tops or project in PLUGINS, "a plugin's sdist may hold its own tests; the core's are of all"


def test_the_core_promises_its_extras_and_needs_no_torch(wheels):
    metadata = wheels["rdzv_core"].metadata
    assert set(metadata.get_all("Provides-Extra")) >= {"torch", "redis", "all", "testing"}
    always = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert always
    assert not [line for line in always if line.startswith(("torch", "redis", "pytest", "hypothesis"))]
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["Requires-Python"] == ">=3.10"
    assert "pytest11" in wheels["rdzv_core"].entry_points


def test_the_redis_plugin_is_found_under_every_group(wheels):
    points = wheels["rdzv_redis"].entry_points
    for group in ("rdzv_core.backends", "rdzv_core.servers", "torchrun.handlers"):
        assert "redis" in points[group], group
    assert any(name.endswith(".lua") for name in wheels["rdzv_redis"].names)


def test_installing_with_redis_brings_the_client_and_not_torch(python):
    installed = {line.partition("==")[0].lower() for line in run(python, "-m", "pip", "freeze").split()}
    assert {"rdzv-core", "rdzv-redis", "redis"} <= installed
    assert not installed & {"torch", "numpy", "pytest", "hypothesis"}


def test_the_registry_lists_redis_where_only_wheels_are_installed(python, tmp_path):
    program = (
        "import sys, rdzv_core; assert 'site-packages' in rdzv_core.__file__, rdzv_core.__file__;"
        "print(*rdzv_core.rendezvous_handler_registry.names());"
        "print(*sorted(sys.modules))"
    )
    names, modules = run(python, "-c", program, cwd=tmp_path).splitlines()
    assert "redis" in names.split()
    assert not {"torch", "redis", "rdzv_redis"} & set(modules.split()), "listing names imports no plugin"


def test_etcd_installs_beside_it_and_v3_needs_no_library(python, dist, tmp_path):
    """python-etcd comes along for v2; where it is taken away again, v3 works and v2 says what is missing."""
    run(python, "-m", "pip", "-q", "install", "--find-links", dist, "rdzv-core[etcd]==0.1.*", cwd=tmp_path)
    names = "import rdzv_core; print(*rdzv_core.rendezvous_handler_registry.names())"
    assert {"etcd", "etcd-v2", "etcd-v3", "redis"} <= set(run(python, "-c", names, cwd=tmp_path).split())
    make = (
        "import sys; from rdzv_core import RendezvousParameters as P, get_rendezvous_handler as get;"
        "print(get(P(sys.argv[1], '127.0.0.1:1', 'run', 1, 1, '127.0.0.1')).get_backend())"
    )
    assert run(python, "-c", make, "etcd-v2", cwd=tmp_path).strip() == "etcd-v2"
    try:
        run(python, "-m", "pip", "-q", "uninstall", "--yes", "python-etcd", cwd=tmp_path)
        assert run(python, "-c", make, "etcd-v3", cwd=tmp_path).strip() == "etcd-v3"
        tried = subprocess.run(
            [python, "-c", make, "etcd-v2"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert "pip install python-etcd==0.4.5" in tried.stderr.strip().splitlines()[-1]
    finally:
        run(python, "-m", "pip", "-q", "uninstall", "--yes", "rdzv-etcd", cwd=tmp_path)


def test_every_entry_point_leads_to_something(python, tmp_path):
    program = (
        "from importlib.metadata import entry_points;"
        "groups = ['rdzv_core.backends', 'rdzv_core.servers', 'torchrun.handlers'];"
        "points = [point for group in groups for point in entry_points(group=group)];"
        "print(*(point.name for point in points if callable(point.load())))"
    )
    assert run(python, "-c", program, cwd=tmp_path).split() == ["redis"] * 3


def test_the_extras_of_c10d_bring_the_plugin_and_the_plugin_brings_torch(wheels):
    promised = [line.replace(" ", "") for line in wheels["rdzv_core"].metadata.get_all("Requires-Dist")]
    for extra in ("c10d", "all"):
        assert f"rdzv-c10d==0.1.*;extra==\"{extra}\"" in promised, extra
    needed = wheels["rdzv_c10d"].metadata.get_all("Requires-Dist")
    assert [line for line in needed if line.startswith("torch>=")]
    assert set(wheels["rdzv_c10d"].entry_points["rdzv_core.backends"]) == {"c10d", "static"}


@pytest.fixture(scope="session")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with torch and what it requires, and nothing else of the environment that runs the tests."""
    folder = tmp_path_factory.mktemp("torch")
    wanted, seen = ["torch"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
        needs = [Requirement(line) for line in found.requires or ()]
        wanted += [need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]
    return folder


@pytest.fixture
def beside_torch(python: Path, torch_alone: Path) -> Iterator[None]:
    """As on a cluster: the machine's own torch is there before anything of ours."""
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    link = site / "torch-of-the-machine.pth"
    link.write_text(f"{torch_alone}\n")
    yield
    link.unlink()


@pytest.mark.needs_torch
@pytest.mark.usefixtures("beside_torch")
@pytest.mark.parametrize(
    ("extra", "backend", "server"),
    [
        ("redis", "redis", RedisServer),
        ("etcd", "etcd-v3", EtcdServer),
        ("c10d", "rdzv-c10d", None),
        ("all", "redis", RedisServer),
    ],
)
def test_torchrun_finds_what_an_extra_installed(python, dist, torch_alone, tmp_path, extra, backend, server):
    """pip sees the torch of the machine and fetches no other; one node of ``rdzv-c10d`` needs no server and no port."""
    before = set(run(python, "-m", "pip", "freeze").split())
    run(python, "-m", "pip", "-q", "install", "--find-links", dist, f"rdzv-core[{extra}]==0.1.*", cwd=tmp_path)
    worker = tmp_path / "worker.py"
    worker.write_text("import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])")
    try:
        came = set(run(python, "-m", "pip", "freeze").split()) - before
        assert not [line for line in came if line.startswith(("torch", "nvidia", "triton"))]
        paths = run(python, "-c", "import rdzv_core, torch; print(rdzv_core.__file__, torch.__file__)", cwd=tmp_path)
        ours, theirs = paths.split()
        assert str(python.parents[1]) in ours
        assert str(torch_alone) in theirs
        with server() if server is not None else nullcontext() as serving:
            said = run(
                *(python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc-per-node=2"),
                *(f"--rdzv-backend={backend}", "--rdzv-id=installed"),
                *((f"--rdzv-endpoint={serving.endpoint}",) if serving is not None else ()),
                worker,
                cwd=tmp_path,
                RES_OPTIONS="timeout:1 attempts:1",
                OMP_NUM_THREADS="1",
            )
    finally:
        run(python, "-m", "pip", "-q", "uninstall", "--yes", "rdzv-c10d", "rdzv-etcd", cwd=tmp_path)
    assert sorted(said.split("\n"))[-2:] == ["rank 0 of 2", "rank 1 of 2"]
