"""What torch's own c10d rendezvous does, on record: why rank 0 opens a new store every round.

These tests are about torch, not about us. If one turns red with a newer torch, torch has changed, and the texts
that speak of it (README, docs) are due.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.torchrun.conftest import free_port
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
    job.wait(lambda: job.nodes["b"].progress("failed"), "the worker of node b to fail")
    return job


def test_after_a_restart_new_workers_meet_the_old_ones_keys(make_job):
    """The launchers agree on a second round within seconds; its workers never get to a step."""
    job = two_nodes_of_which_one_worker_fails(make_job)
    job.wait(lambda: all(node.lives() == 2 for node in job.nodes.values()), "two second lives")

    first, second = ({line["master"] for line in job.nodes[name].progress("begun")} for name in "ab")
    assert first == second
    assert len(first) == 1, "the same store served both rounds"
    with pytest.raises(AssertionError, match="in vain"):
        job.wait(lambda: all(node.progress("finished") for node in job.nodes.values()), "an end", within=10)


def test_with_a_store_per_round_the_same_restart_ends_well(make_job):
    """The control: the same scenario, torch told not to share the launcher's store with the workers."""
    job = two_nodes_of_which_one_worker_fails(make_job, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    assert job.statuses(within=60) == {"a": 0, "b": 0}
    assert [node.lives() for node in job.nodes.values()] == [2, 2]
