"""The stories that a job must live through over any store; what only one store can go through is told beside it.

Each takes ``make``, which makes jobs over the store, and what differs from one store to the next. Times are scaled down
by options (keep-alive every second, dead after three).
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tests.torchrun.launcher import Job, Node
from tests.torchrun.looking import re_formed_after, rounds, wait_for_world

INTERVAL = 2.0
TTL = 3 * INTERVAL
MACHINE = 4.0
"""Seconds granted to a machine that runs several tests at once; with them a farewell is still told from a TTL."""

CONF = {"keep_alive_interval": INTERVAL, "last_call_timeout": 30, "scale_up_delay": 1, "closed_ttl": 2}
"""The first round waits for the slowest to start."""

FEWER_AT_FIRST = {"last_call_timeout": 2}
"""For jobs that begin with fewer nodes than they may have."""

MakeJob = Callable[..., Job]
"""Makes a :class:`Job` over one store from ``nnodes`` and settings of the job."""

Choose = Callable[[Job], Node]
"""Chooses the victim among the nodes of a job."""


def rank(number: int) -> Choose:
    """The node of this rank in the last round."""
    return lambda job: next(node for node in job.nodes.values() if rounds(node)[-1][0] == number)


def others(job: Job, *nodes: Node) -> list[str]:
    """The names of all nodes but these."""
    return [node.name for node in job.nodes.values() if node not in nodes]


def expect_to_end_well(job: Job, names: list[str]) -> dict[str, int]:
    """Wait for the end of all launchers; these are to end with status 0. Answers the statuses of all."""
    statuses = job.statuses(within=60)
    assert {name: statuses[name] for name in names} == dict.fromkeys(names, 0), job.story()
    return statuses


def three_at_work(make: MakeJob, **settings: object) -> Job:
    """A job of three nodes, of which two would do."""
    job = make("2:3", **settings)
    for name in "abc":
        job.start(name)
    wait_for_world(job, 3, *"abc", within=90)
    return job


def a_failed_worker_restarts_all_and_the_job_ends_well(make: MakeJob) -> None:
    """The restart on which torch's own c10d may hang."""
    job = make("2", max_restarts=1, arguments=["--steps=10"])
    job.start("a")
    job.start("b", "--fail-at=3")

    assert job.statuses(within=90) == {"a": 0, "b": 0}, job.story()
    for node in job.nodes.values():
        assert [line["old_keys"] for line in node.progress("connected")] == [False, False], "a fresh store per round"
        assert [world for _, world in rounds(node)] == [2, 2]


def survivors_of_a_stopped_launcher_go_on_without_a_restart(
    make: MakeJob, end: Path, choose: Choose, within: float, number: signal.Signals = signal.SIGTERM
) -> None:
    """It says that it leaves, so nobody waits for its TTL; and nobody closes the run.

    Args:
        within: Seconds that the rendezvous may take.
    """
    job = three_at_work(make, arguments=[f"--until={end}"])
    victim = choose(job)
    survivors = others(job, victim)

    before = {name: len(rounds(job.nodes[name])) for name in survivors}
    stopped_at = datetime.now()
    victim.signal(number)
    wait_for_world(job, 2, *survivors, within=60)
    assert re_formed_after([job.nodes[name] for name in survivors], stopped_at) < within
    assert {name: len(rounds(job.nodes[name])) - 1 for name in survivors} == before, "one round more, and no other"

    end.touch()
    assert expect_to_end_well(job, survivors)[victim.name] == 1
    assert "was closed by" not in victim.log()


def survivors_of_a_killed_launcher_re_form(make: MakeJob, end: Path, choose: Choose, within: float) -> None:
    """Its workers live on and notice nothing, nor do the others': only the rendezvous can tell the survivors.

    Args:
        within: Seconds that the rendezvous may take.
    """
    job = three_at_work(make, worker="alone", arguments=[f"--until={end}"])
    victim = choose(job)
    survivors = others(job, victim)

    killed_at = datetime.now()
    victim.signal(signal.SIGKILL)
    wait_for_world(job, 2, *survivors, within=60)
    assert re_formed_after([job.nodes[name] for name in survivors], killed_at) < within

    end.touch()
    expect_to_end_well(job, survivors)


def a_late_joiner_is_taken_in(make: MakeJob, end: Path) -> None:
    """Into a round with room, which is disturbed for it."""
    job = make("1:3", conf=FEWER_AT_FIRST, arguments=[f"--until={end}"])
    job.start("a")
    wait_for_world(job, 1, "a", within=90)

    job.start("b")
    wait_for_world(job, 2, "a", "b", within=60)

    end.touch()
    expect_to_end_well(job, ["a", "b"])


def a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(make: MakeJob, end: Path) -> None:
    """Two come too many; one of them is needed, and it is the one that came first.

    A store that lives in a launcher lives in the one that is started first, and stays.
    """
    job = make("2", max_restarts=1, arguments=[f"--until={end}"])
    job.start("a")
    job.wait(lambda: "joins run" in job.nodes["a"].log(), "the first at the barrier", within=60)
    job.start("b")
    wait_for_world(job, 2, "a", "b", within=90)
    for name in ("spare", "never-needed"):
        job.start(name)
        job.wait(lambda name=name: "is a spare" in job.nodes[name].log(), f"{name} as a spare", within=60)

    job.nodes["b"].kill()
    wait_for_world(job, 2, "a", "spare", within=60)

    end.touch()
    expect_to_end_well(job, ["a", "spare", "never-needed"])
    assert rounds(job.nodes["never-needed"]) == []
    assert "Traceback" not in job.nodes["never-needed"].log()
