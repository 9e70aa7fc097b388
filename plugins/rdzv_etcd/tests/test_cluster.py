"""Three members: the leader is killed, the quorum is lost and comes back; rounds go on, and nothing happens twice."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from rdzv_core import RendezvousParameters
from rdzv_core.testing.conformance import Waiting, eventually
from tests.torchrun.etcd_cluster import Cluster

pytestmark = pytest.mark.needs_torch

CONF = {"keep_alive_interval": 3, "last_call_timeout": 2, "regroup_timeout": 0.2, "read_timeout": 3}

TTL = 3 * CONF["keep_alive_interval"]
SOON = 15.0
"""Seconds within which a round completes."""


@pytest.fixture
def cluster():
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def nodes(cluster):
    """Make handlers of one run; each leaves at the end."""
    from rdzv_etcd import create_handler

    run_id = f"run-{uuid.uuid4().hex[:8]}"
    made = []

    def make(count, low=None, high=None, **conf):
        for _ in range(count):
            params = RendezvousParameters(
                "etcd-v3", cluster.endpoint, run_id, low or count, high or count, "127.0.0.1", **(CONF | conf)
            )
            made.append(create_handler(params))
        return made[-count:]

    yield make
    together(lambda handler=handler: handler.leave("the test is over") for handler in made)


def together(calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def meet(handlers):
    return [Waiting(handler.next_rendezvous) for handler in handlers]


def round_of(waiting, within):
    infos = [w.result(within=within) for w in waiting]
    assert sorted(info.rank for info in infos) == list(range(len(infos)))
    assert {info.world_size for info in infos} == {len(infos)}
    return infos


def test_a_round_completes_soon_after_there_is_a_new_leader(cluster, nodes):
    """The leader is killed when all but one have announced: the last comes while there is none."""
    early = meet(nodes(3, 4, 4))
    eventually("three at the barrier", lambda: all(w.blocks() for w in early), within=30)
    cluster.leader().kill()
    late = meet(nodes(1, 4, 4))
    cluster.leader()
    there_is_one = time.monotonic()
    round_of([*early, *late], within=60)
    assert max(w.ended for w in [*early, *late]) - there_is_one < SOON


def test_a_leader_killed_between_rounds_disturbs_nobody_and_the_next_round_is_one(cluster, nodes):
    handlers = nodes(3)
    round_of(meet(handlers), within=60)
    cluster.kill_leader()
    calm_until = time.monotonic() + TTL + 1
    while time.monotonic() < calm_until:
        assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0, 0]
        time.sleep(0.1)
    began = time.monotonic()
    waiting = meet(handlers)
    round_of(waiting, within=60)
    assert max(w.ended for w in waiting) - began < SOON


def test_a_lost_quorum_that_comes_back_disturbs_nobody(cluster, nodes):
    """For several TTLs nobody can write; nobody is taken for dead, and a round begun meanwhile completes once."""
    handlers = nodes(3, 3, 4, store_outage_timeout=60)
    round_of(meet(handlers), within=60)
    lost = cluster.members[:2]
    for member in lost:
        member.kill()
    lost_until = time.monotonic() + 3 * TTL
    late = meet(nodes(1, 3, 4, scale_up_delay=0.5, store_outage_timeout=60))
    while time.monotonic() < lost_until:
        assert [handler.num_nodes_waiting() for handler in handlers] == [0, 0, 0]
        time.sleep(0.1)
    assert late[0].blocks()
    for member in lost:
        member.launch()
    for member in lost:
        member.wait_until_ready()
    cluster.leader()
    eventually("the newcomer is seen", lambda: all(h.num_nodes_waiting() for h in handlers), within=30)
    began = time.monotonic()
    again = meet(handlers)
    round_of([*again, *late], within=60)
    assert max(w.ended for w in again) - began < SOON


def test_half_of_the_endpoints_may_be_dead_from_the_start(cluster, nodes):
    cluster.members[0].kill()
    cluster.leader()
    round_of(meet(nodes(3)), within=60)
