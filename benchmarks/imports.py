"""What it costs to have us installed: imports with and without our plugins, in turn, in fresh processes.

    python benchmarks/imports.py [--runs 10] [--json]

torch loads every plugin of the group ``torchrun.handlers`` when its rendezvous package is imported. "Without" is the
same environment with our entry points hidden from that one import.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

HIDE = """
import importlib.metadata as metadata
seen = metadata.entry_points
metadata.entry_points = lambda **asked: metadata.EntryPoints(
    e for e in seen(**asked) if not e.value.startswith("rdzv_")
)
"""
TORCHS = """
import time, torch.distributed, torch.distributed.elastic.utils
{before}
began = time.perf_counter()
import torch.distributed.elastic.rendezvous
print(time.perf_counter() - began)
"""
OURS = """
import time
began = time.perf_counter()
import rdzv_core
for name in rdzv_core.__all__ if {all} else ():
    getattr(rdzv_core, name)
print(time.perf_counter() - began)
"""


def seconds(program: str) -> float:
    """What the program measures, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="print one JSON value instead of a table")
    arguments = parser.parse_args()
    programs = {
        "torch's rendezvous, our plugins hidden": TORCHS.format(before=HIDE),
        "torch's rendezvous, our plugins installed": TORCHS.format(before=""),
        "import rdzv_core": OURS.format(all=False),
        "import rdzv_core, every public name": OURS.format(all=True),
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for run in range(arguments.runs + 1):
        for name, program in programs.items():
            took = seconds(program) * 1000
            if run:  # the first one warms the disk up
                taken[name].append(took)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    if arguments.json:
        print(json.dumps(medians))
        return
    for name, median in medians.items():
        print(f"{name:42} {median:7.1f} ms (median of {arguments.runs})")


if __name__ == "__main__":
    main()
