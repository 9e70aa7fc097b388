"""What is particular to Redis: keys and their expiry, versions, lost data, forks, many waiters."""

from __future__ import annotations

import multiprocessing
import threading
import time
import warnings

import pytest
import redis
from rdzv_redis import RedisRendezvousBackend
from rdzv_redis.keys import RunKeys
from rdzv_redis.server import RedisServer
from redis.crc import key_slot

from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.testing.conformance import Waiting, eventually, together

LONG = 60.0


def ids(roster):
    return [entry.node_id for entry in roster.records]


def keys_of(raw, run_id):
    return sorted(key.decode() for key in raw.scan_iter(match="rdzv:*", count=1000) if f"{{{run_id}}}" in key.decode())


# --- keys


def use_everything(backend, *, ttl):
    token = backend.set_state(b"state")[1]
    backend.announce("stays", 1, b"record", ttl)
    backend.announce("leaves", 1, b"record", ttl)
    backend.publish("group", [b"page"], 30.0)
    backend.withdraw("leaves", 2, ttl)
    backend.pulse("stays", 1, ttl, keep=40.0, group="group")
    backend.roster()
    return token


def test_every_key_of_a_run_expires(backend, raw, run_id):
    use_everything(backend, ttl=10.0)
    keys = keys_of(raw, run_id)
    assert {key.rpartition(":")[2] for key in keys} == {"live", "nodes", "left", "log", "register", "pages", "groups"}
    ends = {key.rpartition(":")[2]: raw.pttl(key) / 1000 for key in keys}
    for key in ("live", "nodes", "log"):
        assert 35 < ends[key] <= 40, f"{key} expires in {ends[key]} s"
    assert 5 < ends["left"] <= 10
    for key in ("register", "pages", "groups"):
        assert 35 < ends[key] <= 40, f"{key} expires in {ends[key]} s"


def test_keys_expire_after_the_last_record_has(backend, raw, run_id):
    backend.announce("silent", 1, b"record", 0.05)
    eventually("the record expires", lambda: not backend.roster().records, within=10)
    eventually("all keys are gone", lambda: not keys_of(raw, run_id), within=10)


def test_a_register_that_was_never_told_its_keep_stays_a_quarter_of_an_hour(backend, raw, run_id):
    token = backend.set_state(b"one")[1]
    raw.pexpire(f"rdzv:{{{run_id}}}:register", 5000)
    backend.set_state(b"two", token)
    assert 890_000 < raw.pttl(f"rdzv:{{{run_id}}}:register") <= 900_001


def test_forget_leaves_no_key(backend, raw, run_id):
    use_everything(backend, ttl=10.0)
    backend.withdraw("stays", 2, 10.0)
    backend.forget()
    assert keys_of(raw, run_id) == []


def test_all_keys_of_a_run_lie_in_one_cluster_slot():
    slots = {key_slot(key.encode()) for key in RunKeys(run_id="job {7}").every}
    assert len(slots) == 1
    assert len({key_slot(RunKeys(run_id=f"job-{n}").register.encode()) for n in range(20)}) > 10


def test_it_works_on_a_node_of_a_cluster(connect):
    with RedisServer(arguments=["--cluster-enabled", "yes"]) as server:
        with redis.Redis(host=server.host, port=server.port) as raw:
            raw.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(
                "the cluster is up", lambda: raw.execute_command("CLUSTER INFO")["cluster_state"] == "ok", within=20
            )
        backend = connect(server.endpoint)
        token = use_everything(backend, ttl=10.0)
        assert ids(backend.roster()) == ["stays"]
        waiting = Waiting(lambda: backend.wait_state(token, LONG))
        assert waiting.blocks()
        assert backend.set_state(b"new", token)[2]
        assert waiting.result(within=10)[0] == b"new"
        backend.withdraw("stays", 2, 1.0)
        backend.forget()


@pytest.mark.parametrize("prefix", ["", "a{b", "a*b", "a b"])
def test_a_prefix_that_breaks_keys_is_refused(prefix):
    with pytest.raises(ValueError, match="key prefix"):
        RunKeys(run_id="run", prefix=prefix)


def test_an_empty_run_id_is_refused(valkey):
    with pytest.raises(ValueError, match="must not be empty"):
        RedisRendezvousBackend.connect(valkey.endpoint, "")


def test_prefixes_keep_runs_apart(connect, valkey):
    here, there = connect(valkey.endpoint), connect(valkey.endpoint, key_prefix="other")
    here.set_state(b"here")
    assert there.get_state() is None


def test_databases_of_one_server_keep_runs_apart(connect, valkey):
    """Though a server has one set of channels for all of its databases."""
    here, there = (connect(f"redis://{valkey.endpoint}/{number}") for number in (0, 1))
    register = Waiting(lambda: there.wait_state(None, LONG))
    seen = there.roster().version
    roster = Waiting(lambda: there.roster(seen, LONG))
    assert register.blocks()
    assert roster.blocks()
    here.set_state(b"here")
    here.announce("n1", 1, b"here", LONG)
    there.set_state(b"there")
    there.announce("n2", 1, b"there", LONG)
    assert register.result(within=10)[0] == b"there"
    assert ids(roster.result(within=10)) == ["n2"]


@pytest.mark.parametrize("run_id", ["job-7", "job {7}", "a:b", "ä/%"])
def test_a_key_tells_its_run(run_id):
    keys = RunKeys(run_id=run_id)
    assert {RunKeys.run_id_of(key) for key in keys.every} == {run_id}
    assert RunKeys.run_id_of("somebody:else") is None


# --- pages


def test_pages_of_groups_whose_time_is_over_are_dropped(backend, raw, run_id):
    pages = f"rdzv:{{{run_id}}}:pages"
    for n in range(5):
        backend.publish(f"old-{n}", [b"page"] * 3, 0.05)
    backend.publish("kept", [b"page"], LONG)

    def only_the_living() -> bool:
        backend.publish("new", [b"page"], LONG)
        return set(raw.hkeys(pages)) == {b"0 kept", b"# kept", b"0 new", b"# new"}

    eventually("the old groups are dropped", only_the_living, within=10)
    assert backend.page("kept", 0) == b"page"
    assert backend.page("old-0", 0) is None


# --- records


def test_sequence_numbers_beyond_a_double_are_told_apart(backend):
    seq = 2**60
    assert backend.announce("n1", seq + 1, b"new", LONG).known
    assert not backend.announce("n1", seq, b"old", LONG).known
    assert not backend.pulse("n1", seq, LONG).known
    assert backend.pulse("n1", seq + 1, LONG).known


@pytest.mark.parametrize("node_id", ["a b", "7 a", "node:1", "ä", "a\nb", "+", "version", "x" * 500])
def test_any_text_is_a_node_id(backend, node_id):
    assert backend.announce(node_id, 1, b"\n 7 \0", LONG).leads
    seen = backend.roster()
    assert [(e.node_id, e.record) for e in seen.records] == [(node_id, b"\n 7 \0")]
    assert backend.pulse(node_id, 1, LONG).leads
    backend.withdraw(node_id, 2, LONG)
    change = backend.roster(seen.version)
    assert (change.base, change.gone, change.withdrawn) == (seen.version, {node_id}, {node_id})


def test_nobody_is_taken_for_dead_a_part_of_a_millisecond_too_early(backend, raw, run_id):
    """The server tells microseconds, and the scripts count in milliseconds."""
    live, nodes, left = (f"rdzv:{{{run_id}}}:{part}" for part in ("live", "nodes", "left"))
    for seq in range(1, 40, 2):
        seconds, micros = raw.time()
        earliest = seconds * 1000 + micros / 1000 + 60_000
        backend.announce("n1", seq, b"", LONG)
        assert raw.zscore(live, f"{seq} n1") >= earliest
        assert int(raw.hget(nodes, "lease")) >= earliest
        backend.pulse("n1", seq, LONG)
        assert raw.zscore(live, f"{seq} n1") >= earliest
        backend.withdraw("n1", seq + 1, LONG)
        assert int(raw.hget(left, "n1").split()[1]) >= earliest


def test_a_late_pulse_of_an_earlier_record_does_not_cost_the_lease(backend):
    assert backend.announce("n1", 1, b"", LONG).leads
    assert backend.announce("n1", 2, b"", LONG).leads
    assert not backend.pulse("n1", 1, LONG).known
    assert backend.pulse("n1", 2, LONG).leads


def test_a_pulse_that_shortens_a_life_is_noticed_by_who_waits(backend, connect, valkey):
    other = connect(valkey.endpoint)
    other.announce("n1", 1, b"", LONG)
    seen = backend.roster()
    waiting = Waiting(lambda: backend.roster(seen.version, LONG))
    assert waiting.blocks()
    other.pulse("n1", 1, 0.2)
    assert ids(waiting.result(within=1.5).onto(seen)) == []


def test_a_reader_far_behind_gets_the_whole_roster(backend):
    backend.announce("first", 1, b"", LONG)
    seen = backend.roster()
    for n in range(200):
        backend.announce("busy", n, b"%d" % n, LONG)
    answer = backend.roster(seen.version)
    assert answer.base is None
    assert ids(answer) == ["first", "busy"]


def test_a_change_costs_only_what_changed(backend):
    for n in range(50):
        backend.announce(f"n{n}", 1, b"record", LONG)
    seen = backend.roster()
    backend.announce("n7", 2, b"new", LONG)
    backend.withdraw("n8", 2, LONG)
    change = backend.roster(seen.version)
    assert (change.base, ids(change), change.gone) == (seen.version, ["n7"], {"n8"})
    assert len(change.onto(seen).records) == 49


def test_who_came_and_went_between_two_looks_is_not_gone(backend):
    backend.announce("stays", 1, b"", LONG)
    seen = backend.roster()
    backend.announce("guest", 1, b"", LONG)
    backend.withdraw("guest", 2, LONG)
    change = backend.roster(seen.version)
    assert (change.base, ids(change), change.gone, change.withdrawn) == (seen.version, [], set(), {"guest"})


def test_who_expired_unseen_and_came_and_went_again_is_gone(backend):
    backend.announce("back", 1, b"", 0.05)
    seen = backend.roster()
    assert ids(seen) == ["back"]
    eventually("it has expired", lambda: not backend.pulse("back", 1, 0.05).known, within=10, every=0.1)
    backend.announce("back", 2, b"", LONG)
    backend.withdraw("back", 3, LONG)
    change = backend.roster(seen.version)
    assert ids(change.onto(seen)) == []


# --- a store that loses data


def test_versions_are_not_used_twice_after_a_wipe(backend, raw, run_id):
    seen = set()
    for _ in range(3):
        backend.announce("n1", 1, b"", LONG)
        seen.add(backend.roster().version)
        raw.delete(*keys_of(raw, run_id))
    assert len(seen) == 3


def test_a_rolled_back_store_answers_the_whole_roster(backend, raw, run_id):
    backend.announce("early", 1, b"", LONG)
    saved = {key: (raw.pttl(key), raw.dump(key)) for key in keys_of(raw, run_id)}
    backend.announce("lost", 1, b"", LONG)
    seen = backend.roster()
    raw.delete(*keys_of(raw, run_id))
    for key, (ttl, value) in saved.items():
        raw.restore(key, ttl, value)
    backend.announce("late", 1, b"", LONG)
    answer = backend.roster(seen.version)
    assert answer.base is None
    assert ids(answer) == ["early", "late"]


@pytest.mark.parametrize("evicted", ["nodes", "live", "log", "left"])
def test_a_run_outlives_an_evicted_key(backend, raw, run_id, evicted):
    backend.announce("n1", 1, b"record", LONG)
    backend.announce("n2", 1, b"record", LONG)
    backend.withdraw("n2", 2, LONG)
    backend.announce("n3", 1, b"dead by now", LONG)
    seen = backend.roster()
    raw.delete(f"rdzv:{{{run_id}}}:{evicted}")
    known = backend.pulse("n1", 1, LONG).known
    assert known == (evicted in ("log", "left"))
    assert ids(backend.roster()) == (["n1", "n3"] if known else [])
    assert backend.announce("n1", 2, b"again", LONG).known
    others = [("n3", b"dead by now")] if known else []
    answer = backend.roster(seen.version).onto(seen)
    assert [(e.node_id, e.record) for e in answer.records] == [("n1", b"again"), *others]
    assert all(raw.pttl(key) > 0 for key in keys_of(raw, run_id))


def test_a_lost_register_is_told_once_and_then_waited_for(backend, connect, valkey, raw, run_id):
    token = backend.set_state(b"state")[1]
    assert backend.wait_state(token, 0.0) is None
    raw.delete(f"rdzv:{{{run_id}}}:register")
    backend._register_news.drop()  # as a server does that fell over
    assert Waiting(lambda: backend.wait_state(token, LONG)).result(within=10) is None
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    assert waiting.blocks(), "it would be told again and again"
    written = connect(valkey.endpoint).set_state(b"new")
    assert waiting.result(within=10) == written[:2]


@pytest.mark.parametrize("kind", ["string", "half"])
def test_a_register_by_somebody_else_is_a_state_error(backend, raw, run_id, kind):
    key = f"rdzv:{{{run_id}}}:register"
    if kind == "string":
        raw.set(key, b"mine", ex=60)
    else:
        raw.hset(key, mapping={"token": "nonsense", "state": "x"})
    with pytest.raises(RendezvousStateError, match="another run id"):
        backend.get_state()


# --- waiting


def test_two_hundred_waiters_are_woken_by_one_write(connect, valkey):
    writer, *waiters = (connect(valkey.endpoint) for _ in range(201))
    token = writer.set_state(b"before")[1]
    ready = threading.Barrier(201)
    woken = []

    def wait(waiter):
        assert waiter.wait_state(token, 0.0) is None  # subscribes
        ready.wait(30)
        held = waiter.wait_state(token, 30.0)
        woken.append(time.monotonic())
        return held

    waiting = [Waiting(lambda waiter=waiter: wait(waiter)) for waiter in waiters]
    ready.wait(30)
    began = time.monotonic()
    state, new, did = writer.set_state(b"after", token)
    assert did
    assert {each.result(within=20) for each in waiting} == {(state, new)}
    assert max(woken) - began < 10


def test_a_writer_is_not_told_an_older_write(connect, valkey):
    """Messages on one connection may come later than answers on another: never back to an older register."""
    one, two = connect(valkey.endpoint), connect(valkey.endpoint)
    token = one.set_state(b"0")[1]
    one.wait_state(token, 0.0)
    for turn in range(1, 200):
        writer = (one, two)[turn % 2]
        token = writer.set_state(b"%d" % turn, token)[1]
        assert one.wait_state(token, 0.0) is None


def test_a_closed_backend_refuses_with_a_sentence(backend):
    backend.get_state()
    backend.close()
    with pytest.raises(RendezvousConnectionError, match="was closed"):
        backend.get_state()
    assert backend.wait_state(None, LONG) is None
    assert backend.roster("0", LONG) is None


def test_threads_may_share_it(backend):
    def live(name):
        assert backend.announce(name, 1, b"", LONG).known
        return [backend.pulse(name, 1, LONG).leads for _ in range(20)]

    led = together([lambda n=n: live(f"n{n}") for n in range(8)])
    assert sorted(set(map(tuple, led))) == [(False,) * 20, (True,) * 20]


# --- processes


def _in_child(backend, answers):
    answers.put((backend.get_state(), backend.wait_state(None, 1.0)))


def test_a_forked_child_has_connections_of_its_own(backend, connect, valkey):
    token = backend.set_state(b"state")[1]
    waiting = Waiting(lambda: backend.wait_state(token, LONG))
    assert waiting.blocks()
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "fork beside threads": that is what is tried here
        child = fork.Process(target=_in_child, args=(backend, answers))
        child.start()
    child.join(20)
    assert child.exitcode == 0
    assert answers.get() == ((b"state", token), (b"state", token))
    new = connect(valkey.endpoint).set_state(b"new", token)
    assert waiting.result(within=10) == new[:2]
