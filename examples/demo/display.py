"""What the demo shows: lines that tell the story, and under them, on a terminal, how far the training is."""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

BAR = 24
REPORT_EVERY = 5.0
"""Seconds between two lines of progress where there is no terminal to draw a bar on."""


class Display:
    """Tells what happens, to people or, with ``as_json``, to programs: one JSON object per line."""

    def __init__(self, *, as_json: bool = False) -> None:
        self._began = self._reported = time.monotonic()
        self._as_json = as_json
        self._is_live = sys.stdout.isatty() and not as_json
        self._last_step = 0

    def tell(self, what: str, sentence: str, **facts: Any) -> None:
        """Say that something happened; ``facts`` are for programs."""
        elapsed = time.monotonic() - self._began
        if self._as_json:
            print(json.dumps({"t": round(elapsed, 2), "event": what, "text": sentence, **facts}), flush=True)
        else:
            self._wipe()
            print(f"{elapsed:6.1f} s  {what:<8} {sentence}", flush=True)

    def progress(self, step: int, steps: int, loss: float, accuracy: float | None, world: int) -> None:
        """Say how far the training is: drawn over itself on a terminal, else now and then a line."""
        read = "" if accuracy is None else f"  reads {accuracy:.0%}"
        text = f"step {step:>3}/{steps}  loss {loss:.2f}{read}  {world} node{'s'[: world != 1]}"
        if self._is_live:
            done = BAR * step // steps
            line = f"          [{'#' * done}{'.' * (BAR - done)}]  {text}"
            print(f"\r{line[: shutil.get_terminal_size().columns - 1]}\x1b[K", end="", flush=True)
        elif step > self._last_step and time.monotonic() - self._reported > REPORT_EVERY:
            self._reported, self._last_step = time.monotonic(), step
            self.tell("training", text, step=step, steps=steps, loss=loss, accuracy=accuracy, world=world)

    def close(self) -> None:
        """Leave the terminal clean."""
        self._wipe()

    def _wipe(self) -> None:
        if self._is_live:
            print("\r\x1b[K", end="", flush=True)
