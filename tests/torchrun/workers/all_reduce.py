"""A worker that trains nothing: it adds numbers up with its peers, step by step, over gloo."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from progress import Progress, misbehave, parser, prepare


def main() -> None:
    """Meet, then step together until all agree to end."""
    arguments = parser().parse_args()
    progress = Progress()
    prepare(arguments)
    store, rank, world = next(dist.rendezvous("env://"))
    mine = f"worker-{rank}"
    progress.say("connected", rank=rank, old_keys=store.check([mine]))
    store.set(mine, "was here")
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    progress.say("met", rank=rank, world=world)
    step = 0
    while True:
        step += 1
        wants_to_end = step == arguments.steps or (arguments.until is not None and arguments.until.exists())
        sums = torch.tensor([1, int(wants_to_end)])
        dist.all_reduce(sums)
        progress.say("step", step=step, sum=int(sums[0]))
        misbehave(arguments, progress, step)
        if int(sums[1]) > 0:  # one look at the sum: all end at the same step
            break
        time.sleep(arguments.pace)
    dist.destroy_process_group()
    progress.say("finished", step=step)


if __name__ == "__main__":
    main()
