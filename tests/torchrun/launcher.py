"""Real torchrun launchers as processes: started, waited for, hit with signals, and always cleaned up.

A :class:`Job` is one run of a program on several *nodes*, each a launcher (``python -m torch.distributed.run``) in
a process group of its own on this machine. Workers write what they do to a progress file per worker; tests wait
on those lines, with a deadline and never by sleeping for a guessed time.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

WORKERS = Path(__file__).parent / "workers"
MARK = "RDZV_TEST_JOB"
"""An environment variable that every process of a job carries, orphans too; how they are found."""

Progress = Mapping[str, Any]


def begin_like_a_command() -> None:
    """Before a program starts: let signals reach it as from a terminal, and let it end when its parent dies.

    A job in the background of a script starts with SIGINT ignored, and hands that on. SIGTERM at the parent's end, so
    that a launcher takes its workers along.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass(slots=True, kw_only=True)
class Node:
    """One launcher and its workers."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]

    def log(self) -> str:
        """What the launcher and its workers have printed so far."""
        return (self.folder / "log").read_text(errors="replace")

    def progress(self, event: str | None = None) -> list[Progress]:
        """What the workers of this node have written so far, oldest first; only ``event`` if given."""
        lines = [
            json.loads(line)
            for path in sorted(self.folder.glob("*.jsonl"))
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        found = [line for line in lines if event is None or line["event"] == event]
        return sorted(found, key=lambda line: line["at"])

    def lives(self) -> int:
        """How many times a worker of this node has begun."""
        return len(self.progress("begun"))

    def worker_pids(self) -> list[int]:
        """The workers that have begun and are there now."""
        pids = {line["pid"] for line in self.progress("begun")}
        return [pid for pid in pids if psutil.pid_exists(pid)]

    def signal(self, number: int) -> None:
        """Send a signal to the launcher alone; its workers live on."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill launcher and workers at once, as a machine dies."""
        pids = [self.process.pid, *self.worker_pids()]
        for pid in pids:
            _kill_group(pid)
        self.process.wait(timeout=10)


@dataclass(slots=True, kw_only=True)
class Job:
    """One run on several nodes; use as a context manager.

    Attributes:
        folder: Where logs and progress go, a folder per node.
        backend: ``--rdzv-backend``.
        endpoint: ``--rdzv-endpoint``.
        nnodes: ``--nnodes``, as ``"2"`` or ``"2:4"``.
        worker: The program in ``workers/`` that the nodes run, without ``.py``.
        arguments: Its arguments, on every node.
        conf: ``--rdzv-conf``, times in seconds.
        environment: Added to every node's environment.
    """

    folder: Path
    backend: str
    endpoint: str
    nnodes: str
    worker: str = "all_reduce"
    arguments: Sequence[str] = ()
    run_id: str = field(default_factory=lambda: f"test-{uuid.uuid4().hex[:8]}")
    workers_per_node: int = 1
    max_restarts: int = 0
    conf: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.clean_up()

    def start(self, name: str, *arguments: str, **environment: str) -> Node:
        """Start a launcher as node ``name``; ``arguments`` go to its workers after those of the job."""
        if name in self.nodes:
            raise ValueError(f"node {name!r} was started before; names tell nodes apart")
        folder = self.folder / name
        folder.mkdir(parents=True)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes={self.nnodes}",
            f"--nproc-per-node={self.workers_per_node}",
            f"--max-restarts={self.max_restarts}",
            f"--rdzv-backend={self.backend}",
            f"--rdzv-endpoint={self.endpoint}",
            f"--rdzv-id={self.run_id}",
            "--local-addr=127.0.0.1",
        ]
        if self.conf:
            command.append("--rdzv-conf=" + ",".join(f"{key}={value}" for key, value in self.conf.items()))
        command += [str(WORKERS / f"{self.worker}.py"), *self.arguments, *arguments]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=begin_like_a_command,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    # A TCPStore asks DNS for the peer's name at every connect; an answer that is lost costs 5 s.
                    "RES_OPTIONS": "timeout:1 attempts:1",
                    "RDZV_TEST_NODE": name,
                    "RDZV_TEST_PROGRESS": str(folder),
                    MARK: self.run_id,
                    **self.environment,
                    **environment,
                },
            )
        node = self.nodes[name] = Node(name=name, folder=folder, process=process)
        return node

    def wait(self, condition: Callable[[], object], what: str, within: float = 30.0) -> None:
        """Wait until ``condition`` holds; fail after ``within`` seconds with ``what`` and the nodes' stories."""
        deadline = time.monotonic() + within
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {within:.0f} s for {what}, in vain.\n{self.story()}")
            time.sleep(0.02)

    def statuses(self, within: float = 30.0) -> dict[str, int]:
        """Wait until every launcher has ended; exit statuses by node, minus the signal's number if it took one."""
        self.wait(
            lambda: all(node.process.poll() is not None for node in self.nodes.values()),
            f"the end of nodes {', '.join(self.nodes)}",
            within,
        )
        return {name: node.process.returncode for name, node in self.nodes.items()}

    def story(self) -> str:
        """How each node is and what it said last, for a failure's message."""
        parts = []
        for node in self.nodes.values():
            status = node.process.poll()
            parts.append(f"--- node {node.name}: {'runs' if status is None else f'ended with {status}'}")
            parts += [f"    {line}" for line in node.progress()[-5:]]
            parts += [f"    | {line}" for line in node.log().splitlines()[-15:]]
        return "\n".join(parts)

    def processes(self) -> Iterator[psutil.Process]:
        """Every process of this job that is there now, orphaned workers too."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # gone meanwhile, or not ours to read
                if process.environ().get(MARK) == self.run_id:
                    yield process

    def clean_up(self) -> None:
        """Kill all that is left of the job. Idempotent."""
        for node in self.nodes.values():
            if node.process.poll() is None:
                _kill_group(node.process.pid)
                node.process.wait(timeout=10)
        deadline = time.monotonic() + 10
        while left := list(self.processes()):
            for process in left:
                _kill_group(process.pid)
            if time.monotonic() > deadline:
                raise AssertionError(f"processes that do not die: {left}")
            time.sleep(0.02)


def _kill_group(pid: int) -> None:
    """Kill a process, and its group if it leads one; none of it need be there any more."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
