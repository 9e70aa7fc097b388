"""Train a small network to read noisy digits, on as many nodes as there are.

An ordinary program for torchrun. What makes it elastic is three habits, marked (1) to (3): it takes rank and
world size as it finds them, it begins where the last checkpoint ended, and it writes checkpoints so that a crash
in the middle leaves the previous one whole.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from digits import SIDE, draw
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 240
"""Images per step in all, so that the world size does not change what is learnt; divisible by 1 to 6."""


class Diary:
    """What this worker does, as JSON lines that the demo reads: one file per node, a line per event."""

    def __init__(self, folder: Path) -> None:
        self.node = os.environ.get("DEMO_NODE", f"{os.uname().nodename}-{os.environ['LOCAL_RANK']}")
        self._path = folder / f"node-{self.node}.jsonl"

    def write(self, event: str, **facts: Any) -> None:
        """Append one line; ``at`` is this machine's monotonic clock in seconds."""
        line = json.dumps({"at": time.monotonic(), "node": self.node, "event": event, **facts})
        with self._path.open("a") as file:
            file.write(line + "\n")


def build_network() -> nn.Module:
    """One layer of convolutions and one of weights: enough to read nineteen of twenty digits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, SIDE)),
        nn.Conv2d(1, 16, kernel_size=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    )


def load(path: Path) -> dict[str, Any]:
    """(2) The last checkpoint as rank 0 finds it, the same for everybody; a fresh start if there is none."""
    found: list[Any] = [None]
    if dist.get_rank() == 0 and path.exists():
        found = [torch.load(path, weights_only=True)]
    dist.broadcast_object_list(found)
    return found[0] or {"step": 0, "round": 0, "model": None, "optimizer": None}


def save(path: Path, **state: Any) -> None:
    """(3) Write beside, then rename: whoever looks sees the old checkpoint or the new one, never half of one."""
    beside = path.with_suffix(".new")
    torch.save(state, beside)
    beside.replace(path)


def pace(folder: Path) -> float:
    """The least seconds for a step: what the file ``pace`` says, for people who want to watch; 0 without it."""
    try:
        return float((folder / "pace").read_text())
    except (FileNotFoundError, ValueError):
        return 0.0


def main() -> None:
    """Train to the last step, however often the round changes on the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="shared by all nodes: checkpoint and diaries")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--checkpoint-every", type=int, default=10, help="steps between checkpoints")
    arguments = parser.parse_args()

    diary = Diary(arguments.folder)
    diary.write("begun", pid=os.getpid())
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images, labels = draw(4000, seed=1)
    unseen_images, unseen_labels = draw(1000, seed=2)

    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()  # (1) may differ from the last time

    checkpoint = arguments.folder / "checkpoint.pt"
    state = load(checkpoint)
    network = build_network()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    if state["model"] is not None:
        network.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    model = DistributedDataParallel(network)
    number = state["round"] + 1
    diary.write("gathered", round=number, rank=rank, world=world, step=state["step"])

    for step in range(state["step"] + 1, arguments.steps + 1):
        began = time.monotonic()
        batch = torch.randint(len(images), (BATCH,), generator=torch.Generator().manual_seed(step))
        mine = batch[rank::world]
        loss = nn.functional.cross_entropy(model(images[mine]), labels[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            diary.write("step", round=number, world=world, step=step, loss=round(loss.item(), 4))
            if step % arguments.checkpoint_every == 0 or step == arguments.steps:
                with torch.no_grad():
                    right = (network(unseen_images).argmax(1) == unseen_labels).float().mean().item()
                save(
                    checkpoint,
                    step=step,
                    round=number,
                    model=network.state_dict(),
                    optimizer=optimizer.state_dict(),
                )
                diary.write("checkpoint", step=step, accuracy=round(right, 3))
        time.sleep(max(0.0, pace(arguments.folder) - (time.monotonic() - began)))

    dist.barrier()
    diary.write("finished", step=arguments.steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
