"""Real torchrun over a real etcd, by its v3 API: what happens to a job when its nodes or its store fail.

Besides the stories of any store (:mod:`tests.torchrun.stories`) those of a cluster of three, and one by the v2 API.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv_etcd import EtcdServer, EtcdV3RendezvousBackend
from rdzv_etcd.target import target_of

from tests.torchrun import stories
from tests.torchrun.etcd_cluster import Cluster
from tests.torchrun.launcher import Job
from tests.torchrun.looking import rounds, wait_for_world
from tests.torchrun.stories import CONF, INTERVAL, MACHINE, TTL

pytestmark = [pytest.mark.needs_torch, pytest.mark.xdist_group("torchrun"), pytest.mark.timeout(240)]


@pytest.fixture
def server() -> Iterator[EtcdServer]:
    with EtcdServer() as server:
        yield server


@pytest.fixture
def etcd_job(make_job: Callable[..., Job], server: EtcdServer) -> Callable[..., Job]:
    def make(nnodes: str, *, conf: dict[str, object] | None = None, **settings: Any) -> Job:
        settings = {"backend": "etcd-v3", "endpoint": server.endpoint, **settings}
        return make_job(nnodes=nnodes, conf={**CONF, **(conf or {})}, **settings)

    return make


def test_one_failed_worker_restarts_all_and_the_job_ends_well(etcd_job):
    stories.a_failed_worker_restarts_all_and_the_job_ends_well(etcd_job)


def test_survivors_of_a_stopped_launcher_go_on_without_a_restart(etcd_job, end):
    stories.survivors_of_a_stopped_launcher_go_on_without_a_restart(etcd_job, end, stories.rank(0), 1.0 + MACHINE)


def test_survivors_of_a_killed_launcher_re_form_within_the_ttl(etcd_job, end):
    stories.survivors_of_a_killed_launcher_re_form(etcd_job, end, stories.rank(0), TTL + 1.0 + INTERVAL + MACHINE)


def test_a_paused_node_is_missed_comes_back_learns_it_and_joins_anew(etcd_job, end):
    job = etcd_job("1:2", worker="alone", max_restarts=1, arguments=[f"--until={end}"])
    job.start("stays")
    job.start("sleeps")
    wait_for_world(job, 2, "stays", "sleeps", within=60)

    job.nodes["sleeps"].signal(signal.SIGSTOP)
    wait_for_world(job, 1, "stays")
    job.nodes["sleeps"].signal(signal.SIGCONT)
    wait_for_world(job, 2, "stays", "sleeps")

    end.touch()
    assert job.statuses() == {"stays": 0, "sleeps": 0}, job.story()
    assert [world for _, world in rounds(job.nodes["stays"])] == [2, 1, 2]
    assert [world for _, world in rounds(job.nodes["sleeps"])] == [2, 2]


def test_a_late_joiner_is_taken_in(etcd_job, end):
    stories.a_late_joiner_is_taken_in(etcd_job, end)


def test_a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(etcd_job, end):
    stories.a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(etcd_job, end)


def test_an_id_is_free_again_after_its_closed_ttl(etcd_job, server):
    back_door = EtcdV3RendezvousBackend(target_of(server.endpoint, {}, {}), "again")
    for _ in range(2):
        job = etcd_job("1", worker="alone", arguments=["--steps=3"], run_id="again")
        job.start("a")
        assert job.statuses(within=60) == {"a": 0}, job.story()
        job.wait(lambda: back_door.get_state() is None, "the end of the news that the run is closed", 20)
    back_door.close()


# --- a cluster of three ------------------------------------------------------------------------------------------


def test_training_goes_on_over_the_death_of_etcds_leader_and_a_lost_quorum(etcd_job, end):
    """No worker is restarted, nobody is taken for dead, and afterwards a late joiner is taken in, once."""
    with Cluster() as cluster:
        job = etcd_job(
            "2:3",
            worker="alone",
            endpoint=cluster.endpoint,
            conf=stories.FEWER_AT_FIRST,
            arguments=[f"--until={end}"],
        )
        for name in "ab":
            job.start(name)
        wait_for_world(job, 2, "a", "b", within=60)

        cluster.kill_leader()
        until = time.monotonic() + TTL + 2 * INTERVAL
        job.wait(lambda: time.monotonic() > until, "time enough to judge wrongly")
        assert [len(rounds(node)) for node in job.nodes.values()] == [1, 1], job.story()

        survivor = cluster.leader()
        survivor.kill()  # one of three is left, which can decide nothing
        job.wait(lambda: all("cannot reach" in n.log() for n in job.nodes.values()), "an outage that all noticed", 30)
        until = time.monotonic() + 30
        job.wait(lambda: time.monotonic() > until, "many times the TTL", 40)
        for member in cluster.members:
            if member.pid is None:
                member.launch()
        cluster.leader(within=30)
        job.start("c")
        wait_for_world(job, 3, *"abc", within=60)

        end.touch()
        assert job.statuses() == {"a": 0, "b": 0, "c": 0}, job.story()
        assert [len(rounds(job.nodes[name])) for name in "abc"] == [2, 2, 1], job.story()


# --- the v2 API --------------------------------------------------------------------------------------------------


def test_a_killed_launcher_is_missed_by_the_v2_api_too(etcd_job, end):
    job = stories.three_at_work(etcd_job, worker="alone", backend="rdzv-etcd-v2", arguments=[f"--until={end}"])
    job.nodes["b"].signal(signal.SIGKILL)
    wait_for_world(job, 2, "a", "c")

    end.touch()
    stories.expect_to_end_well(job, ["a", "c"])
