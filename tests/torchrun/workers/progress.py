"""What every worker program of these tests shares: its progress file and its common arguments."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


class Progress:
    """Appends a JSON line per event to this worker's file; a line is written whole or not at all."""

    def __init__(self) -> None:
        folder = Path(os.environ["RDZV_TEST_PROGRESS"])
        self._path = folder / f"worker-{os.environ['LOCAL_RANK']}.jsonl"
        self.life = self._path.read_text().count('"begun"') if self._path.exists() else 0
        """How many times this worker had begun before; 0 in its first life."""
        self.say(
            "begun",
            life=self.life,
            pid=os.getpid(),
            rank=int(os.environ["RANK"]),
            world=int(os.environ["WORLD_SIZE"]),
            restart_count=int(os.environ["TORCHELASTIC_RESTART_COUNT"]),
            master=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        )

    def say(self, event: str, **facts: object) -> None:
        """Write one line; ``at`` is this machine's monotonic clock in seconds."""
        line = json.dumps({"at": time.monotonic(), "node": os.environ["RDZV_TEST_NODE"], "event": event, **facts})
        with self._path.open("a") as file:
            file.write(line + "\n")


def parser() -> argparse.ArgumentParser:
    """The arguments that every worker program understands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pace", type=float, default=0.02, help="seconds between two steps")
    parser.add_argument("--steps", type=int, help="end well after so many steps in one life")
    parser.add_argument("--until", type=Path, help="end well as soon as this file exists")
    parser.add_argument("--fail-at", type=int, help="in the first life, fail after so many steps")
    parser.add_argument("--finish-at", type=int, help="in the first life, end well after so many steps")
    parser.add_argument("--ignore-sigterm", action="store_true", help="go on when told to stop")
    return parser


def misbehave(arguments: argparse.Namespace, progress: Progress, step: int) -> None:
    """Do after ``step`` what the scenario asks this worker to do."""
    if progress.life == 0 and step == arguments.fail_at:
        progress.say("failed", step=step)
        sys.exit(1)
    if progress.life == 0 and step == arguments.finish_at:
        progress.say("finished", step=step)
        sys.exit(0)


def prepare(arguments: argparse.Namespace) -> None:
    """Set up what the scenario asks for before the first step."""
    if arguments.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
