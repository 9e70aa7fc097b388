"""The demo, as a person runs it: to its good end, into a wall, and with Ctrl-C in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rdzv_core.servers import free_port
from tests.torchrun.launcher import MARK, Job, begin_like_a_command

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "run.py"

pytestmark = [pytest.mark.needs_torch, pytest.mark.xdist_group("torchrun"), pytest.mark.timeout(240)]


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the demo; whatever outlives it is an error, and is killed."""
    mark = f"demo-{uuid.uuid4().hex[:8]}"

    with ExitStack() as stack:
        processes = stack.enter_context(Job(folder=Path(), backend="", endpoint="", nnodes="", run_id=mark)).processes

        def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
            process = subprocess.Popen(
                [sys.executable, DEMO, *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                preexec_fn=begin_like_a_command,
                env={**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", MARK: mark, **environment},
            )
            stack.enter_context(process)  # closes the pipes and waits, after
            stack.callback(process.kill)
            return process

        yield start
        deadline = time.monotonic() + 10
        while left := [process.pid for process in processes()]:
            assert time.monotonic() < deadline, f"the demo left behind: {left}"
            time.sleep(0.05)


def test_the_demo_tells_its_story_and_ends_well(start, tmp_path):
    process = start(f"--folder={tmp_path}")
    said, complaints = process.communicate(timeout=200)  # it gives up by itself after 170 s

    assert process.returncode == 0, complaints
    rounds = re.findall(r" round \d+ +(.*): world size (\d), rank 0 on (\w), from step (\d+)", said)
    assert [int(world) for _, world, _, _ in rounds] == [3, 2, 3]
    assert rounds[0][0] == "a, b, c"
    victim = re.search(r" kill +node (\w) at step", said)[1]
    assert victim == rounds[0][2], "rank 0 was killed"
    survivors = sorted({"a", "b", "c"} - {victim})
    assert rounds[1][0] == ", ".join(survivors)
    assert rounds[2][0] == ", ".join([*survivors, "d"])
    first, second, third = (int(step) for *_, step in rounds)
    assert 0 == first < second <= third < 400
    assert re.search(r"met \d+\.\d s and training \d+\.\d s after the kill", said)
    assert int(re.search(r"all 400 steps done, and (\d+)% of unseen digits read", said)[1]) > 90
    assert "exit statuses: " + ", ".join(f"{name} 0" for name in [*survivors, "d"]) in said
    assert said.endswith("\ndemo: ok\n")


def test_ctrl_c_ends_everything(start, tmp_path):
    process = start("--json", f"--folder={tmp_path}")
    diary = tmp_path / "node-a.jsonl"
    deadline = time.monotonic() + 60
    while not diary.exists() and process.poll() is None:
        assert time.monotonic() < deadline, "the demo never got to a worker"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=30)

    assert process.returncode == 130
    assert [json.loads(line)["event"] for line in said.splitlines()][:2] == ["server", "start"]
    assert complaints == "demo: interrupted, all nodes stopped\n"


def refused(process: subprocess.Popen[str]) -> str:
    """What the demo says when it cannot begin: one line, status 1."""
    _, complaints = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaints.startswith("demo: ")
    assert complaints.count("\n") == 1
    return complaints


def test_a_backend_that_is_not_there_is_refused_in_one_sentence(start):
    assert "Installed: " in refused(start("--backend=redos"))


def test_a_server_program_that_is_not_there_is_refused_in_one_sentence(start):
    assert "RDZV_REDIS_BINARY" in refused(start(RDZV_REDIS_BINARY="no-such-program"))


def test_a_port_that_is_taken_is_refused_in_one_sentence(start):
    port = free_port()
    from rdzv_redis import RedisServer

    with RedisServer(port=port):
        assert f"{port}" in refused(start(f"--port={port}"))


def test_without_torch_it_says_how_to_get_it():
    program = "import sys; sys.modules['torch'] = None; sys.argv = ['run.py']; import run; sys.exit(run.main())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=DEMO.parent)
    assert done.returncode == 1
    assert done.stderr == "demo: torch is not installed here; `make demo TORCH=yes` lets pip fetch it\n"
