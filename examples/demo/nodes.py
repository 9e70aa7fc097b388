"""The demo's nodes: launchers on this machine, and what their workers write in their diaries."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
GRACE = 5.0
"""Seconds that a launcher has to end its workers when it is told to stop."""


def end_with_parent() -> None:
    """Ask the kernel to stop this launcher, and so its workers, when the demo itself dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass(slots=True, kw_only=True)
class Node:
    """One launcher and its worker; in the demo, what a machine would be."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    began: float
    """When it was started, on this machine's monotonic clock."""

    @property
    def log(self) -> Path:
        """What launcher and worker print."""
        return self.folder / f"node-{self.name}.log"

    def diary(self, event: str | None = None) -> list[dict[str, Any]]:
        """The lines that this node's workers have written so far; only ``event`` if given."""
        path = self.folder / f"node-{self.name}.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line for line in found if event is None or line["event"] == event]

    def kill(self) -> None:
        """End launcher and workers at once, as when a machine loses its power.

        Killing the launcher alone would leave its worker training: torch puts each worker into a session of its
        own, where neither the launcher's death nor a signal to its group reaches it.
        """
        for pid in [self.process.pid, *(line["pid"] for line in self.diary("begun"))]:
            _kill_group(pid)
        self.process.wait()


@dataclass(slots=True, kw_only=True)
class Nodes:
    """All nodes of the demo; they run the same command.

    Attributes:
        folder: Logs, diaries and the checkpoint.
        launcher: Arguments of torchrun.
        program: Arguments of the training program.
    """

    folder: Path
    launcher: Sequence[str]
    program: Sequence[str]
    all: dict[str, Node] = field(default_factory=dict)

    def start(self, name: str) -> Node:
        """Start a node."""
        with (self.folder / f"node-{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *self.launcher, str(TRAIN), *self.program],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the demo, which then ends its nodes
                preexec_fn=end_with_parent,  # the demo has one thread
                env={**os.environ, "DEMO_NODE": name, "OMP_NUM_THREADS": "1"},
            )
        node = self.all[name] = Node(name=name, folder=self.folder, process=process, began=time.monotonic())
        return node

    def alive(self) -> list[Node]:
        """The nodes whose launcher runs."""
        return [node for node in self.all.values() if node.process.poll() is None]

    def gathered(self, since: float = 0.0) -> dict[int, dict[str, dict[str, Any]]]:
        """For each round that workers gathered in after ``since``: who, and what they wrote of it."""
        rounds: dict[int, dict[str, dict[str, Any]]] = {}
        for node in self.all.values():
            for line in node.diary("gathered"):
                if line["at"] > since:
                    rounds.setdefault(line["round"], {})[node.name] = line
        return rounds

    def last(self, event: str) -> dict[str, Any] | None:
        """The latest line about ``event`` in any diary."""
        lines = [line for node in self.all.values() for line in node.diary(event)[-1:]]
        return max(lines, key=lambda line: line["at"], default=None)

    def stop(self) -> None:
        """End whatever still runs: asked first, so that launchers take their workers along; then killed."""
        alive = self.alive()
        for node in alive:
            node.process.terminate()
        deadline = time.monotonic() + GRACE
        for node in alive:
            with suppress(subprocess.TimeoutExpired):
                node.process.wait(max(0.0, deadline - time.monotonic()))
        for node in alive:
            node.kill()


def _kill_group(pid: int) -> None:
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
