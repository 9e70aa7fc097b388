"""Real torchrun over a real Redis-protocol server: what happens to a job when its nodes, workers or store fail.

Each test tells one story; those of any store are in :mod:`tests.torchrun.stories`.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rdzv_redis import RedisRendezvousBackend, RedisServer

from tests.torchrun import stories
from tests.torchrun.launcher import Job, Node
from tests.torchrun.looking import leader, rounds, wait_for_world
from tests.torchrun.stories import CONF, INTERVAL, MACHINE, TTL

pytestmark = [pytest.mark.needs_torch, pytest.mark.xdist_group("torchrun"), pytest.mark.timeout(240)]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis_job(make_job: Callable[..., Job], server: RedisServer) -> Callable[..., Job]:
    def make(nnodes: str, *, conf: dict[str, object] | None = None, **settings: Any) -> Job:
        return make_job(
            backend="redis", endpoint=server.endpoint, nnodes=nnodes, conf={**CONF, **(conf or {})}, **settings
        )

    return make


# --- (a) a worker fails ----------------------------------------------------------------------------------------


def test_one_failed_worker_restarts_all_and_the_job_ends_well(redis_job):
    stories.a_failed_worker_restarts_all_and_the_job_ends_well(redis_job)


# --- (b) a launcher is told to stop ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("victim_rank", [0, 1])
def test_survivors_of_a_stopped_launcher_go_on_without_a_restart(redis_job, end, number, victim_rank):
    stories.survivors_of_a_stopped_launcher_go_on_without_a_restart(
        redis_job, end, stories.rank(victim_rank), 1.0 + MACHINE, number
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("victim", ["first", "second"])
def test_a_launcher_stopped_in_its_first_wait_leaves_at_once(redis_job, number, victim):
    job = redis_job("3", worker="alone", arguments=["--steps=3"])
    names = ["first", "second"]
    for name in names:
        job.start(name)
        job.wait(lambda name=name: "joins run" in job.nodes[name].log(), f"{name} at the barrier")
    job.nodes[victim].signal(number)
    job.wait(lambda: job.nodes[victim].process.poll() is not None, "the end of the stopped launcher", 10)
    assert "leaves run" in job.nodes[victim].log(), "it has said so, and was not found out after its TTL"
    assert job.nodes[victim].process.returncode == {signal.SIGTERM: 143, signal.SIGINT: -2}[number]

    job.start("third")
    job.start("fourth")
    job.wait(lambda: all(job.nodes[n].process.poll() is not None for n in job.nodes), "the end of the others", 60)
    others = [n for n in job.nodes if n != victim]
    assert [job.nodes[n].process.returncode for n in others] == [0, 0, 0], job.story()
    assert sorted(rounds(job.nodes[n])[0] for n in others) == [(0, 3), (1, 3), (2, 3)]


# --- (c) a node dies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim_rank", [0, 2])
def test_survivors_of_a_killed_node_spend_one_restart_at_most_and_go_on(redis_job, end, victim_rank):
    job = stories.three_at_work(redis_job, max_restarts=1, arguments=[f"--until={end}"])
    victim = stories.rank(victim_rank)(job)
    survivors = stories.others(job, victim)

    victim.kill()
    wait_for_world(job, 2, *survivors)
    spent = [job.nodes[name].progress("begun")[-1]["restart_count"] for name in survivors]
    assert max(spent) <= 1, "whose worker fails spends one; who is told before its own does, none"

    end.touch()
    stories.expect_to_end_well(job, survivors)


@pytest.mark.parametrize("led", [True, False], ids=["the leader", "another"])
def test_survivors_of_a_killed_launcher_re_form_within_the_ttl(redis_job, end, led):
    def choose(job: Job) -> Node:
        return next(node for node in job.nodes.values() if (node is leader(job)) == led)

    stories.survivors_of_a_killed_launcher_re_form(redis_job, end, choose, TTL + 1.0 + led * INTERVAL + MACHINE)


# --- (d) late joiners and spares -------------------------------------------------------------------------------


def test_a_late_joiner_is_taken_in(redis_job, end):
    stories.a_late_joiner_is_taken_in(redis_job, end)


def test_a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(redis_job, end):
    stories.a_spare_is_promoted_when_a_member_dies_and_ends_well_if_never_needed(redis_job, end)


# --- (e) the end of a job --------------------------------------------------------------------------------------


def in_exit_barrier(node: Node) -> bool:
    return bool(node.progress("finished")) and node.process.poll() is None


def test_nobody_waits_in_the_exit_barrier_for_a_dead_member(redis_job):
    job = redis_job("2", worker="alone", arguments=["--pace=0.05"])
    job.start("done", "--steps=2")
    job.start("other")
    job.wait(lambda: in_exit_barrier(job.nodes["done"]), "one node in the exit barrier", 60)

    job.nodes["other"].kill()
    # torch's barrier would wait for 300 s.
    job.wait(lambda: job.nodes["done"].process.poll() is not None, "the end of the node that is done", 60)

    assert job.nodes["done"].process.returncode == 0, job.story()


def test_a_member_that_restarts_does_not_wait_for_one_in_the_exit_barrier(redis_job, end):
    job = redis_job("1:2", worker="alone", max_restarts=1, arguments=["--pace=0.05"])
    job.start("done", "--steps=2")
    job.start("other", "--fail-at=60", "--steps=80")
    job.wait(lambda: in_exit_barrier(job.nodes["done"]), "one node in the exit barrier", 60)

    assert job.statuses(within=40) == {"done": 0, "other": 0}, job.story()
    assert [world for _, world in rounds(job.nodes["other"])] == [2, 1]


# --- (f) rank 0 dies before the round is usable ----------------------------------------------------------------


def doomed_in(what: str) -> dict[str, str]:
    """The environment of a node that stops at this step."""
    return {"PYTHONPATH": str(Path(__file__).parent / "doomed"), "RDZV_TEST_DOOM": what}


def test_a_member_that_dies_before_it_reaches_the_store_holds_nobody_up(redis_job):
    """The others have their round by then, and torch's agents would wait for it on their main threads, and fail."""
    job = redis_job("2:3", worker="alone", arguments=["--steps=3"])
    doomed = job.start("doomed", **doomed_in("connect"))
    for name in "bc":
        job.start(name)
    job.wait(lambda: "would reach its store" in doomed.log(), "the doomed member seated", 60)
    job.wait(lambda: all("is complete" in job.nodes[n].log() for n in "bc"), "the others in the round", 20)

    doomed.kill()
    job.wait(lambda: all(job.nodes[n].process.poll() is not None for n in "bc"), "the end of the others", 40)

    assert [job.nodes[n].process.returncode for n in "bc"] == [0, 0], job.story()
    assert sorted(rounds(job.nodes[n])[0] for n in "bc") == [(0, 2), (1, 2)]


def test_rank_0_that_dies_before_it_publishes_its_store_holds_nobody_up(redis_job):
    job = redis_job("2:3", worker="alone", arguments=["--steps=3"], conf={"placement": "hint"})
    doomed = job.start("doomed", RDZV_RANK_HINT="0", **doomed_in("host"))
    for name, hint in (("b", "1"), ("c", "2")):
        job.start(name, RDZV_RANK_HINT=hint)
    job.wait(lambda: "would open its store" in doomed.log(), "the doomed rank 0 seated", 60)

    doomed.kill()
    job.wait(lambda: all(job.nodes[n].process.poll() is not None for n in "bc"), "the end of the others", 40)

    assert [job.nodes[n].process.returncode for n in "bc"] == [0, 0], job.story()
    assert sorted(rounds(job.nodes[n])[0] for n in "bc") == [(0, 2), (1, 2)]


# --- (g), (h) the store fails ----------------------------------------------------------------------------------


def test_a_server_restarted_empty_disturbs_nobody_and_a_later_node_still_joins(redis_job, server, end):
    job = redis_job("2:3", worker="alone", conf=stories.FEWER_AT_FIRST, arguments=[f"--until={end}"])
    job.start("a")
    job.start("b")
    wait_for_world(job, 2, "a", "b", within=60)

    server.kill()
    server.start()
    job.wait(lambda: any("wrote revision" in n.log() for n in job.nodes.values()), "the register written back", 20)
    assert [rounds(n) for n in job.nodes.values()] == [[(rounds(n)[0])] for n in job.nodes.values()]

    job.start("c")
    wait_for_world(job, 3, "a", "b", "c")
    end.touch()
    assert job.statuses() == {"a": 0, "b": 0, "c": 0}, job.story()
    assert [len(rounds(job.nodes[n])) for n in "abc"] == [2, 2, 1], "the restart of the store cost nobody a restart"


def test_a_server_that_stands_still_for_longer_than_the_ttl_declares_nobody_dead(redis_job, server, end):
    job = redis_job("2", worker="alone", arguments=[f"--until={end}"])
    job.start("a")
    job.start("b")
    wait_for_world(job, 2, "a", "b", within=60)
    job.start("spare")
    job.wait(lambda: "is a spare" in job.nodes["spare"].log(), "a spare")

    server.pause()
    job.wait(lambda: all("cannot reach" in n.log() for n in job.nodes.values()), "an outage that all have noticed", 20)
    stalled_at = time.monotonic()
    job.wait(lambda: time.monotonic() - stalled_at > 2 * TTL, "more than the TTL", 30)
    server.resume()
    job.wait(lambda: all("reaches the" in n.log() for n in job.nodes.values()), "the end of the outage", 20)
    back_at = time.monotonic()
    job.wait(lambda: time.monotonic() - back_at > 2 * TTL, "time enough to judge wrongly", 30)

    assert [len(rounds(job.nodes[n])) for n in "ab"] == [1, 1], "no second round"
    assert rounds(job.nodes["spare"]) == []
    end.touch()
    assert job.statuses() == {"a": 0, "b": 0, "spare": 0}, job.story()


# --- (i) ids -----------------------------------------------------------------------------------------------------


def test_two_ids_on_one_server_do_not_meet_and_an_id_is_free_again_after_its_closed_ttl(redis_job, server):
    both = [redis_job("2", worker="alone", arguments=["--steps=20"]) for _ in range(2)]
    for job in both:
        job.start("a")
        job.start("b")
    for job in both:
        assert job.statuses(within=60) == {"a": 0, "b": 0}, job.story()
        assert sorted(rounds(n)[0] for n in job.nodes.values()) == [(0, 2), (1, 2)]

    back_door = RedisRendezvousBackend.connect(server.endpoint, both[0].run_id)
    both[0].wait(lambda: back_door.get_state() is None, "the end of the news that the run is closed", 20)
    back_door.close()
    again = redis_job("2", worker="alone", arguments=["--steps=3"], run_id=both[0].run_id)
    again.start("a")
    again.start("b")
    assert again.statuses(within=60) == {"a": 0, "b": 0}, again.story()


def test_a_closed_id_says_by_whom_and_what_to_do(redis_job):
    first = redis_job("1", worker="alone", arguments=["--steps=2"], conf={"closed_ttl": 60})
    first.start("a")
    assert first.statuses(within=60) == {"a": 0}

    second = redis_job("1", worker="alone", run_id=first.run_id)
    second.start("late")
    assert second.statuses(within=60) == {"late": 1}
    last_line = second.nodes["late"].log().strip().splitlines()[-1]
    assert "RendezvousClosedError" in second.nodes["late"].log()
    assert "closed by" in last_line
    assert "use another run id" in last_line


def test_the_default_run_id_is_refused_on_a_shared_store(make_job):
    job = make_job(backend="redis", endpoint="redis://user:secret@192.0.2.1:6379", nnodes="1", run_id="none")
    job.start("a")
    assert job.statuses(within=60) == {"a": 1}
    assert "--rdzv-id" in job.nodes["a"].log().strip().splitlines()[-1]
    assert "allow_default_run_id" in job.nodes["a"].log()
