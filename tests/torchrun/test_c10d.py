"""Real torchrun over torch's own store, which one of the launchers hosts: what happens when launchers come and go.

Besides the stories of any store (:mod:`tests.torchrun.stories`) those of a store that lives in a launcher: it may end
first, be killed, or be stopped.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from rdzv_c10d import C10dServer

from rdzv_core.servers import free_port
from tests.torchrun import stories
from tests.torchrun.launcher import Job, Node
from tests.torchrun.looking import logged, wait_for_world
from tests.torchrun.stories import CONF, INTERVAL, MACHINE, TTL, expect_to_end_well, others, three_at_work

pytestmark = [pytest.mark.needs_torch, pytest.mark.xdist_group("torchrun"), pytest.mark.timeout(240)]


@pytest.fixture
def c10d_job(make_job: Callable[..., Job]) -> Callable[..., Job]:
    def make(nnodes: str, *, conf: dict[str, object] | None = None, **settings: Any) -> Job:
        settings = {"backend": "rdzv-c10d", "endpoint": f"127.0.0.1:{free_port()}", **settings}
        return make_job(nnodes=nnodes, conf={**CONF, **(conf or {})}, **settings)

    return make


def host_of(job: Job) -> Node:
    """The node whose launcher hosts the store; the last to say so, if it has moved on."""
    words = "this process hosts the store"
    hosts = [node for node in job.nodes.values() if words in node.log()]
    return max(hosts, key=lambda node: logged(node, words))


def not_the_host(job: Job) -> Node:
    """One of those whose launchers do not host the store."""
    return next(node for node in job.nodes.values() if node is not host_of(job))


def test_one_failed_worker_restarts_all_and_the_job_ends_well(c10d_job):
    stories.a_failed_worker_restarts_all_and_the_job_ends_well(c10d_job)


def test_survivors_of_a_stopped_launcher_go_on_without_a_restart(c10d_job, end):
    stories.survivors_of_a_stopped_launcher_go_on_without_a_restart(c10d_job, end, not_the_host, 1.0 + MACHINE)


def test_survivors_of_a_killed_launcher_re_form_within_the_ttl(c10d_job, end):
    stories.survivors_of_a_killed_launcher_re_form(c10d_job, end, not_the_host, TTL + 1.0 + INTERVAL + MACHINE)


def test_a_late_joiner_is_taken_in(c10d_job, end):
    stories.a_late_joiner_is_taken_in(c10d_job, end)


def test_a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(c10d_job, end):
    stories.a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(c10d_job, end)


def test_one_node_needs_no_endpoint(c10d_job):
    job = c10d_job("1", endpoint="", worker="alone", arguments=["--steps=3"])
    job.start("a")
    assert job.statuses(within=60) == {"a": 0}, job.story()


def test_several_nodes_without_an_endpoint_are_refused_at_once(c10d_job):
    job = c10d_job("2", endpoint="", worker="alone", arguments=["--steps=3"])
    node = job.start("a")
    assert job.statuses(within=60) == {"a": 1}
    assert "The rendezvous endpoint is empty" in node.log().splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_when_the_launcher_that_hosts_the_store_ends_another_hosts_it_and_the_job_goes_on(c10d_job, end, number):
    """All launchers have the endpoint's address, so the next of them hosts a new store, and all say what they hold."""
    job = three_at_work(c10d_job, worker="alone", arguments=[f"--until={end}"])
    victim = host_of(job)
    survivors = others(job, victim)

    victim.signal(number)
    wait_for_world(job, 2, *survivors, within=60)
    job.wait(lambda: host_of(job).name in survivors, "another host: the first may stay a while for the others", 30)

    end.touch()
    expect_to_end_well(job, survivors)


def test_with_a_list_of_endpoints_the_next_one_is_hosted_when_the_first_is_lost(c10d_job, end):
    """On machines of their own each node could host only its own address; here the list alone is on trial."""
    first, second = f"127.0.0.1:{free_port()}", f"127.0.0.2:{free_port()}"
    job = three_at_work(
        c10d_job,
        worker="alone",
        endpoint=f"{first},{second}",
        conf={"failover_timeout": 1},
        arguments=[f"--until={end}"],
    )
    victim = host_of(job)
    survivors = others(job, victim)

    victim.signal(signal.SIGKILL)
    wait_for_world(job, 2, *survivors, within=60)
    assert host_of(job).name in survivors

    end.touch()
    expect_to_end_well(job, survivors)


def test_a_job_that_loses_its_store_for_good_is_told_which_host_it_was(c10d_job, end):
    with C10dServer() as server:
        conf = {"is_host": "false", "store_outage_timeout": 3, "call_timeout": 1}
        job = c10d_job("2", endpoint=server.endpoint, worker="alone", arguments=[f"--until={end}"], conf=conf)
        nodes = [job.start(name) for name in "ab"]
        wait_for_world(job, 2, *"ab", within=90)
        server.kill()
        assert job.statuses(within=60) == {"a": 1, "b": 1}, job.story()
    for node in nodes:
        last = node.log().splitlines()[-1]
        assert server.endpoint in last
        assert "nobody hosts a store there" in last


def test_a_spare_ends_well_though_the_host_of_the_store_ends_first(c10d_job, end):
    """The host stays until the spare has heard that the run is over."""
    job = c10d_job("2", worker="alone", arguments=[f"--until={end}"])
    job.start("a")
    job.wait(lambda: "this process hosts" in job.nodes["a"].log(), "a store", within=60)
    job.start("b")
    wait_for_world(job, 2, "a", "b", within=60)
    job.start("spare")
    job.wait(lambda: "is a spare" in job.nodes["spare"].log(), "a spare", within=60)

    end.touch()
    assert job.statuses(within=60) == {"a": 0, "b": 0, "spare": 0}, job.story()


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.chaos) for seed in range(3, 51))])
def test_scaled_up_and_down_with_a_node_lost_at_any_moment(c10d_job, end, seed):
    """1 -> 2 -> 3 -> 2: who is lost, host or not, how, and when, is drawn by lot."""
    lot = random.Random(seed)
    job = c10d_job("1:3", worker="alone", conf=stories.FEWER_AT_FIRST, arguments=[f"--until={end}"])
    job.start("a")
    wait_for_world(job, 1, "a", within=90)
    job.start("b")
    wait_for_world(job, 2, "a", "b", within=90)
    job.start("c")
    if lot.random() < 0.5:
        wait_for_world(job, 3, "a", "b", "c", within=90)
    else:  # in the middle of its coming in, or before
        job.wait(lambda: "joins run" in job.nodes["c"].log(), "the third node", within=90)
    moment = time.monotonic() + lot.uniform(0.0, 2.0)
    victim = job.nodes[lot.choice("abc")]
    job.wait(lambda: time.monotonic() > moment, "the moment")
    victim.signal(lot.choice([signal.SIGKILL, signal.SIGTERM]))
    survivors = others(job, victim)
    job.wait(lambda: of_one_round(job, survivors) == [0, 1], "the two survivors in a round of their own", within=90)

    end.touch()
    expect_to_end_well(job, survivors)
    for node in job.nodes.values():
        assert "RendezvousClosedError" not in node.log(), job.story()


def of_one_round(job: Job, names: list[str]) -> list[int] | None:
    """The ranks of the nodes' workers, if they are all of one round, and of nobody else's."""
    lines = [line for name in names for line in job.nodes[name].progress("begun")[-1:]]
    if len({(line["master"], line["world"]) for line in lines}) != 1 or lines[0]["world"] != len(names):
        return None
    return sorted(line["rank"] for line in lines)
