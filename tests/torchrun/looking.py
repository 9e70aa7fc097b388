"""What a story may ask of its nodes: which rounds they were in, how far they came, and when."""

from __future__ import annotations

import re
from datetime import datetime

from tests.torchrun.launcher import Job, Node


def rounds(node: Node) -> list[tuple[int, int]]:
    """Rank and world of each life of the node's worker."""
    return [(line["rank"], line["world"]) for line in node.progress("begun")]


def steps_in(node: Node, life: int) -> int:
    """Steps that the node's worker made in its given life, from 0."""
    lines = node.progress()
    begun = [i for i, line in enumerate(lines) if line["event"] == "begun"]
    if len(begun) <= life:
        return 0
    until = begun[life + 1] if len(begun) > life + 1 else len(lines)
    return sum(1 for line in lines[begun[life] : until] if line["event"] == "step")


def wait_for_world(job: Job, world: int, *names: str, within: float = 40.0) -> None:
    """Wait until the named nodes step together in a world of this size."""

    def there() -> bool:
        latest = [(job.nodes[n], rounds(job.nodes[n])) for n in names]
        return all(r and r[-1][1] == world and steps_in(node, len(r) - 1) > 0 for node, r in latest)

    job.wait(there, f"{', '.join(names)} at work in a world of {world}", within)
    ranks = sorted(rounds(job.nodes[name])[-1][0] for name in names)
    assert ranks == list(range(world)) or len(names) < world


TOLD = "is to leave round|went on without"
"""What a member says when it learns that its round is over."""


def logged(node: Node, words: str, nth: int = -1) -> datetime:
    """When the node's rendezvous said one of these words, the last time or the nth."""
    lines = [line for line in node.log().splitlines() if line.startswith("[rdzv]") and re.search(words, line)]
    return datetime.strptime(" ".join(lines[nth].split()[1:3]), "%Y-%m-%d %H:%M:%S,%f")


def re_formed_after(survivors: list[Node], since: datetime) -> float:
    """Seconds from ``since`` until every survivor knew, and from the last one's return to the barrier until all were in
    the next round: the rendezvous' part, without the time that torch takes to stop the old workers."""
    told = max(logged(node, TOLD) for node in survivors)
    returned = max(logged(node, "joins run") for node in survivors)
    complete = max(logged(node, "is complete") for node in survivors)
    return ((told - since) + (complete - returned)).total_seconds()


def leader(job: Job) -> Node:
    """The node that decided the last round."""
    deciders = [node for node in job.nodes.values() if "is decided with" in node.log()]
    return max(deciders, key=lambda node: logged(node, "is decided with"))
