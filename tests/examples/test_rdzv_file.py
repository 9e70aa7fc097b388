"""The example backend, installed as a stranger would: it keeps the laws, and runs a real job on the adapter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from rdzv_core import RegisterCoordination, RendezvousConnectionError
from rdzv_core.runtime.register_coordination.value import EMPTY, Kept, decode, encode
from rdzv_core.testing.conformance import CoordinationConformance, Power, RegisterConformance
from tests.torchrun.launcher import Job
from tests.torchrun.looking import wait_for_world

EXAMPLE = Path(__file__).parents[2] / "examples" / "rdzv_file"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the example was installed into."""
    copy = tmp_path_factory.mktemp("example") / "rdzv_file"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("*.egg-info", "build", "__pycache__"))
    site = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "install", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-build-isolation", "--target", str(site), str(copy)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def rdzv_file(site: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(site))
    return import_module("rdzv_file")


def test_it_is_small():
    """About eighty lines of code, or it is no example."""
    lines = (EXAMPLE / "src" / "rdzv_file" / "__init__.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 85


class FileBackDoor:
    """The file itself."""

    def __init__(self, folder: Path, path_of: Callable[[str], Path]) -> None:
        self.folder = folder
        self.path_of = path_of
        self.saved: dict[Path, bytes] = {}

    def read_register(self, run_id: str) -> bytes | None:
        path = self.path_of(run_id)
        return path.read_bytes()[16:] if path.exists() else None

    def write_register(self, run_id: str, state: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        self.path_of(run_id).write_bytes(b"of-a-stranger..." + state)

    def wipe(self, run_id: str) -> None:
        self.path_of(run_id).unlink(missing_ok=True)

    def snapshot(self) -> None:
        self.saved = {path: path.read_bytes() for path in self.folder.iterdir()}

    def roll_back(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        for path, content in self.saved.items():
            path.write_bytes(content)

    def cut(self) -> None:
        """A file in the place of the folder: what a file system that went away looks like, also to root."""
        self.folder.rename(self.folder.with_suffix(".away"))
        self.folder.touch()

    def mend(self) -> None:
        self.folder.unlink()
        self.folder.with_suffix(".away").rename(self.folder)


class LiftedBackDoor(FileBackDoor):
    """What the adapter keeps in the file."""

    def read_register(self, run_id: str) -> bytes | None:
        stored = super().read_register(run_id)
        register = None if stored is None else decode(stored).register
        return None if register is None else register.state

    def write_register(self, run_id: str, state: bytes) -> None:
        stored = super().read_register(run_id)
        value = EMPTY if stored is None else decode(stored)
        register = Kept(state=state, token="a-stranger")
        super().write_register(run_id, encode(msgspec.structs.replace(value, register=register)))


class OnAFolder:
    powers = frozenset({Power.ROLL_BACK, Power.CUT})

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        return tmp_path / "folder"


class TestLevel1(OnAFolder, RegisterConformance):
    @pytest.fixture
    def make_backend(self, rdzv_file, folder):
        return lambda run_id: rdzv_file.FileBackend(str(folder), run_id)

    @pytest.fixture
    def back_door(self, rdzv_file, folder):
        return FileBackDoor(folder, lambda run_id: rdzv_file.FileBackend(str(folder), run_id)._path)


class TestLifted(OnAFolder, CoordinationConformance):
    @pytest.fixture
    def make_backend(self, rdzv_file, folder):
        return lambda run_id: RegisterCoordination(rdzv_file.FileBackend(str(folder), run_id), run_id=run_id)

    @pytest.fixture
    def back_door(self, rdzv_file, folder):
        return LiftedBackDoor(folder, lambda run_id: rdzv_file.FileBackend(str(folder), run_id)._path)


def test_a_lock_that_is_never_let_go_is_no_reason_to_hang(rdzv_file, tmp_path, monkeypatch):
    monkeypatch.setattr(rdzv_file, "PATIENCE", 0.1)
    one, other = (rdzv_file.FileBackend(str(tmp_path), "run") for _ in range(2))
    with one._locked(), pytest.raises(RendezvousConnectionError, match="cannot be used"):
        other.set_state(b"state")
    assert other.set_state(b"state")[2]


@pytest.fixture
def job(site: Path, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Job:
            folder = tmp_path / "job"
            folder.mkdir()
            environment = {"PYTHONPATH": str(site)}
            return stack.enter_context(Job(folder=folder, environment=environment, **settings))

        yield make


@pytest.mark.needs_torch
@pytest.mark.xdist_group("torchrun")
@pytest.mark.timeout(240)
def test_the_story_of_the_demo(job, tmp_path):
    """Three nodes meet; the one of rank 0 is killed, and two go on; a new one comes in; the job ends well."""
    end = tmp_path / "end"
    job = job(
        backend="rdzv-file",
        endpoint=str(tmp_path / "shared"),
        nnodes="2:3",
        max_restarts=3,
        arguments=[f"--until={end}"],
        conf={"keep_alive_interval": 1, "last_call_timeout": 2, "scale_up_delay": 1, "allow_default_run_id": "true"},
    )
    for name in "abc":
        job.start(name)
    wait_for_world(job, 3, *"abc", within=90)
    victim = next(node for node in job.nodes.values() if node.progress("begun")[-1]["rank"] == 0)
    survivors = [name for name in "abc" if name != victim.name]
    victim.kill()
    wait_for_world(job, 2, *survivors, within=60)
    job.start("d")
    wait_for_world(job, 3, *survivors, "d", within=60)
    end.touch()
    statuses = job.statuses(within=60)
    assert {name: statuses[name] for name in (*survivors, "d")} == dict.fromkeys((*survivors, "d"), 0), job.story()
