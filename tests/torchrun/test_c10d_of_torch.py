"""What torch's own c10d rendezvous does, on record: why rank 0 opens a new store every round.

These tests are about torch, not about us. If one turns red with a newer torch, torch has changed, and the texts
that speak of it (README, docs) are due.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rdzv_core.servers import free_port
from tests.torchrun.launcher import Job

pytestmark = [pytest.mark.needs_torch, pytest.mark.xdist_group("torchrun")]


def two_nodes_of_which_one_worker_fails(make_job: Callable[..., Job], **environment: str) -> Job:
    job = make_job(
        backend="c10d",
        endpoint=f"127.0.0.1:{free_port()}",
        nnodes="2",
        max_restarts=1,
        arguments=["--steps=10"],
        environment=environment,
    )
    job.start("a")
    job.start("b", "--fail-at=3")
    job.wait(lambda: all(len(node.progress("connected")) == 2 for node in job.nodes.values()), "two second lives", 60)
    return job


def masters(job: Job) -> set[str]:
    return {line["master"] for node in job.nodes.values() for line in node.progress("begun")}


def test_after_a_restart_new_workers_meet_the_old_ones_keys(make_job):
    """Both rounds are served by one store. Whether the job then ends, hangs or fails is a matter of luck.

    Who comes first reads where its peer listened in the round before. Of some ten runs of this scenario half
    ended well, the others hung or ended with status 1; so the cause is on record here, and not the outcome.
    """
    job = two_nodes_of_which_one_worker_fails(make_job)

    for node in job.nodes.values():
        assert [line["old_keys"] for line in node.progress("connected")] == [False, True]
    assert len(masters(job)) == 1


def test_with_a_store_per_round_the_same_restart_ends_well(make_job):
    """The control: the same scenario, torch told not to share the launcher's store with the workers."""
    job = two_nodes_of_which_one_worker_fails(make_job, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    assert job.statuses(within=60) == {"a": 0, "b": 0}
    for node in job.nodes.values():
        assert [line["old_keys"] for line in node.progress("connected")] == [False, False]
    assert len(masters(job)) == 2
