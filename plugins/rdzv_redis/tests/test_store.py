"""The torch store: compared with TCPStore call by call, then on its own, then under a process group."""

from __future__ import annotations

import gc
import os
import pickle
import random
import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from rdzv_redis import RedisStore
from rdzv_redis.link import Subscription

from rdzv_core.servers import free_port
from rdzv_core.testing.conformance import Waiting, eventually, together
from rdzv_core.testing.proxy import FaultProxy

SHORT = timedelta(milliseconds=200)


@pytest.fixture
def make_store(valkey, run_id):
    made = []

    def make(endpoint=None, **options):
        made.append(RedisStore(endpoint or valkey.endpoint, run_id, **options))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def store(make_store):
    return make_store()


@pytest.fixture
def tcp_store(monkeypatch):
    monkeypatch.setenv("RES_OPTIONS", "timeout:1 attempts:1")
    usual = timedelta(seconds=30)
    return dist.TCPStore("127.0.0.1", free_port(), is_master=True, wait_for_workers=False, timeout=usual)


# --- the same as torch's


def outcome(call):
    try:
        return call()
    except Exception as error:
        return type(error)


def random_call(rng):
    """A call of one of the store's methods, on few keys, so that they meet."""
    key, value = rng.choice("abc"), rng.choice(["", "1", "2", "x"])
    keys = [rng.choice("abc") for _ in range(2)]
    number = rng.randrange(-2, 5)
    return rng.choice(
        [
            ("set", lambda s: s.set(key, value)),
            ("compare_set", lambda s: s.compare_set(key, rng.choice([value, "", "1"]), value + "y")),
            ("append", lambda s: s.append(key, value)),
            ("add", lambda s: s.add("n" + key, number)),
            ("delete_key", lambda s: s.delete_key(rng.choice([key, "n" + key]))),
            ("check", lambda s: s.check(keys)),
            ("multi_set", lambda s: s.multi_set(keys, [value, "z"])),
            ("get", lambda s: s.get(key) if s.check([key]) else None),
            ("multi_get", lambda s: s.multi_get(keys) if s.check(keys) else None),
            ("num_keys", lambda s: s.num_keys()),
            ("list_keys", lambda s: sorted(s.list_keys())),
            ("queue_push", lambda s: s.queue_push("q" + key, value)),
            ("queue_pop", lambda s: s.queue_pop("q" + key, False)),
            ("queue_len", lambda s: s.queue_len("q" + key)),
        ]
    )


@pytest.mark.parametrize("seed", range(5))
def test_it_answers_as_tcp_store_does(store, tcp_store, seed):
    # TCPStore counts a key of its own, made at its start.
    own = tcp_store.num_keys()
    assert tcp_store.list_keys() == [] or own == len(tcp_store.list_keys())
    hidden = set(tcp_store.list_keys())
    rng = random.Random(seed)
    for step in range(300):
        state = rng.getstate()
        name, call = random_call(rng)
        ours = outcome(lambda call=call: call(store))
        after = rng.getstate()
        rng.setstate(state)
        name, call = random_call(rng)
        theirs = outcome(lambda call=call: call(tcp_store))
        assert rng.getstate() == after
        if name == "num_keys":
            theirs -= own
        if name == "list_keys":
            theirs = sorted(set(theirs) - hidden)
        assert ours == theirs, f"step {step}: {name}"


@pytest.mark.parametrize("held", [" 5", "5 ", "+5", "007", "-007", "5x", "-0", "000", "\t-3", str(2**62)])
def test_it_adds_to_what_torchs_store_takes_for_a_number(store, tcp_store, held):
    sums = []
    for each in (store, tcp_store):
        each.set("n", held)
        sums.append((each.add("n", 1), each.add("n", 1), each.get("n")))
    assert sums[0] == sums[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.set("k", 5),
        lambda s: s.append("k", 5),
        lambda s: s.add("k", 1.0),
        lambda s: s.add("k", 2**64),
        lambda s: s.wait("abc"),
        lambda s: s.check("abc"),
        lambda s: s.multi_get("abc"),
    ],
)
def test_what_is_of_the_wrong_type_is_refused_as_by_torch(store, tcp_store, call):
    assert (outcome(lambda: call(store)), outcome(lambda: call(tcp_store))) == (TypeError, TypeError)
    assert store.num_keys() == 0


@pytest.mark.parametrize(
    "call", [lambda s: s.get("never"), lambda s: s.wait(["never"]), lambda s: s.wait(["never"], SHORT)]
)
def test_waiting_in_vain_is_torchs_error(make_store, tcp_store, call):
    store = make_store(timeout=SHORT)
    tcp_store.set_timeout(SHORT)
    for each in (store, tcp_store):
        began = time.monotonic()
        with pytest.raises(dist.DistStoreError):
            call(each)
        assert 0.15 < time.monotonic() - began < 10


def test_a_queue_is_no_value(make_store):
    store = make_store(timeout=SHORT)
    store.queue_push("q", "v")
    store.wait(["q"], SHORT)
    began = time.monotonic()
    with pytest.raises(dist.DistStoreError, match="waiting for keys that nobody has set"):
        store.get("q")
    assert 0.15 < time.monotonic() - began < 10


def test_what_the_server_refuses_is_torchs_error(store, raw):
    store.set("k", "text")
    with pytest.raises(dist.DistStoreError, match="is no number"):
        store.add("k", 1)
    store.set("n", str(2**63 - 1))
    with pytest.raises(dist.DistStoreError, match="more than 64 bits"):
        store.add("n", 1)
    raw.delete(store._keys.store)
    raw.set(store._keys.store, "no hash", ex=60)
    with pytest.raises(dist.DistStoreError, match="another kind of value"):
        store.get("k")


def test_an_empty_queue_is_torchs_error(store, tcp_store):
    for each in (store, tcp_store):
        with pytest.raises(dist.QueueEmptyError):
            each.queue_pop("q", block=False)


# --- through C++


@pytest.fixture
def prefixed(store):
    return dist.PrefixStore("p", store)


def test_all_that_a_prefix_store_passes_on(prefixed, store):
    prefixed.set("k", b"v\0")
    assert prefixed.get("k") == b"v\0" == store.get("p/k")
    assert prefixed.add("n", 2) == 2
    assert prefixed.compare_set("k", "v\0", "w") == b"w"
    assert prefixed.check(["k", "n"])
    assert not prefixed.check(["k", "absent"])
    prefixed.append("k", "!")
    prefixed.multi_set(["a", "b"], ["1", "2"])
    assert prefixed.multi_get(["a", "b", "k"]) == [b"1", b"2", b"w!"]
    assert prefixed.num_keys() == 4
    assert prefixed.delete_key("a")
    assert not prefixed.delete_key("a")
    assert prefixed.has_extended_api()
    prefixed.wait(["k"])
    prefixed.wait(["k"], SHORT)
    with pytest.raises(dist.DistStoreError, match="'p/never'"):
        prefixed.wait(["never"], SHORT)
    assert prefixed.clone().get("k") == b"w!"


def test_nobody_need_hold_on_to_it(valkey, run_id):
    prefixed = dist.PrefixStore("p", RedisStore(valkey.endpoint, run_id))
    cloned = dist.PrefixStore("q", prefixed.underlying_store.clone())
    gc.collect()
    prefixed.set("k", "v")
    cloned.set("k", "w")
    assert (prefixed.get("k"), cloned.get("k")) == (b"v", b"w")
    prefixed.underlying_store.close()


def test_a_barrier_holds_until_all_are_there(store):
    prefixed = [dist.PrefixStore("p", store) for _ in range(3)]
    early = [Waiting(lambda s=s: s.barrier("b", 3, timedelta(seconds=20))) for s in prefixed[:2]]
    assert all(each.blocks() for each in early)
    prefixed[2].barrier("b", 3, timedelta(seconds=20))
    for each in early:
        each.result(within=10)


# --- waiting


def test_a_key_wakes_who_waits(store, make_store):
    other = make_store()
    waiting = [Waiting(lambda: store.get("k")), Waiting(lambda: store.wait(["k", "l"]))]
    assert all(each.blocks() for each in waiting)
    other.set("k", "v")
    assert waiting[0].result(within=10) == b"v"
    assert waiting[1].blocks()
    other.add("l", 1)
    waiting[1].result(within=10)


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.set("k", "v"),
        lambda s: s.multi_set(["j", "k"], ["", "v"]),
        lambda s: s.append("k", "v"),
        lambda s: s.compare_set("k", "", "v"),
    ],
    ids=["set", "multi_set", "append", "compare_set"],
)
def test_each_way_to_write_wakes(store, make_store, write):
    waiting = Waiting(lambda: store.get("k"))
    assert waiting.blocks()
    write(make_store())
    assert waiting.result(within=10) == b"v"


def test_one_waiting_thread_holds_up_no_other(store):
    waiting = Waiting(lambda: store.get("late"))
    assert waiting.blocks()
    began = time.monotonic()
    store.set("k", "v")
    assert store.get("k") == b"v"
    assert time.monotonic() - began < 10
    store.set("late", "v")
    waiting.result(within=10)


def test_many_threads_wait_on_one_store(store):
    waiting = [Waiting(lambda n=n: store.get(f"k{n % 4}")) for n in range(40)]
    assert all(each.blocks() for each in waiting[:2])
    store.multi_set([f"k{n}" for n in range(4)], [str(n) for n in range(4)])
    assert [each.result(within=10) for each in waiting] == [str(n % 4).encode() for n in range(40)]
    assert len(store._link._all) <= store.target.max_connections


def test_a_thousand_keys_are_waited_for_at_once(store, make_store):
    keys = [f"k{n}" for n in range(1000)]
    waiting = Waiting(lambda: store.wait(keys))
    assert waiting.blocks()
    other = make_store()
    for key in keys:
        other.set(key, "v")
    waiting.result(within=10)


def test_a_key_that_comes_before_the_subscription_is_not_listened_for(store, make_store, monkeypatch):
    other, plain, late = make_store(), Subscription.open, ["a"]

    def open_late(news):
        while late:
            other.set(late.pop(), "1")
        return plain(news)

    monkeypatch.setattr(Subscription, "open", open_late)
    waiting = Waiting(lambda: store.multi_get(["a", "b"]))
    assert waiting.blocks()
    other.set("b", "2")
    assert waiting.result(within=10) == [b"1", b"2"]


def test_a_key_that_was_there_and_went_is_waited_for_again(store, make_store):
    other = make_store()
    other.set("a", "old")
    waiting = Waiting(lambda: store.multi_get(["a", "b"]))
    assert waiting.blocks()
    other.delete_key("a")
    other.set("b", "2")
    assert waiting.blocks()
    other.set("a", "new")
    assert waiting.result(within=10) == [b"new", b"2"]


def test_a_key_that_came_unheard_is_found_when_the_time_is_up(make_store, raw, run_id):
    store = make_store(timeout=timedelta(seconds=1))
    waiting = Waiting(lambda: store.get("a"))
    assert waiting.blocks()
    raw.hset(f"rdzv:{{{run_id}}}:store", "a", "there")
    assert waiting.result(within=10) == b"there"


def test_a_key_may_be_asked_for_twice(store, make_store):
    waiting = Waiting(lambda: store.multi_get(["d", "d"]))
    eventually("it listens", lambda: store._link._listening, within=10)
    make_store().set("d", "v")
    assert waiting.result(within=10) == [b"v", b"v"]
    assert len(store._link._idle) == 2, "the connection that listened may be used again"


def test_any_number_of_threads_may_wait(make_store):
    store = make_store(options={"max_connections": 2})
    waiting = [Waiting(lambda: store.get("k")) for _ in range(8)]
    assert all(each.blocks() for each in waiting)
    store.set("k", "v")
    assert [each.result(within=10) for each in waiting] == [b"v"] * 8
    assert len(store._link._all) <= 2


def test_queues_hand_each_value_to_one(store, make_store):
    takers = [Waiting(lambda: make_store().queue_pop("q")) for _ in range(4)]
    assert takers[0].blocks()
    for n in range(4):
        store.queue_push("q", str(n))
    assert sorted(taker.result(within=10) for taker in takers) == [b"0", b"1", b"2", b"3"]
    assert store.queue_len("q") == 0


def test_a_wait_survives_a_lost_connection(make_store, valkey):
    with FaultProxy(valkey.host, valkey.port) as proxy:
        store, other = make_store(proxy.endpoint), make_store()
        waiting = Waiting(lambda: store.get("k"))
        assert waiting.blocks()
        proxy.cut()
        other.set("k", "v")
        assert waiting.result(within=3) == b"v"


def test_closing_wakes_who_waits(store):
    waiting = Waiting(lambda: store.get("never"))
    assert waiting.blocks()
    store.close()
    with pytest.raises(dist.DistNetworkError, match="closed"):
        waiting.result(within=10)


# --- trouble


def test_an_add_is_not_made_twice(make_store, valkey):
    """The default of the client library makes it two or three."""
    with FaultProxy(valkey.host, valkey.port) as proxy:
        store = make_store(proxy.endpoint)
        store.add("warm", 1)
        proxy.lose_replies(1)
        with pytest.raises(dist.DistNetworkError, match="read again"):
            store.add("n", 1)
        assert store.add("n", 0) == 1


def test_a_server_that_is_not_there_is_torchs_error(run_id, own_server):
    own_server.kill()
    store = RedisStore(own_server.endpoint, run_id, options={"read_timeout": 0.2})
    with pytest.raises(dist.DistNetworkError, match="was not reached"):
        store.get("k")


def test_it_refuses_pickling_with_a_sentence(store):
    with pytest.raises(TypeError, match="RedisStore holds connections and cannot be pickled"):
        pickle.dumps(store)


# --- keys and times


def test_every_key_expires_and_use_renews(make_store, raw, run_id):
    store = make_store(ttl=timedelta(seconds=60))
    store.set("k", "v")
    store.queue_push("q", "v")
    store.queue_push("q", "w")
    names = [f"rdzv:{{{run_id}}}:{part}" for part in ("store", "queues")]
    assert sorted(raw.scan_iter(match=f"rdzv:{{{run_id}}}:*")) == sorted(name.encode() for name in names)
    for call in (lambda: store.get("k"), lambda: store.check(["k"]), lambda: store.add("n", 1)):
        raw.pexpire(names[0], 5000)
        call()
        assert 50_000 < raw.pttl(names[0]) <= 60_001
    raw.pexpire(names[1], 5000)
    store.queue_pop("q")
    assert 50_000 < raw.pttl(names[1]) <= 60_001


def test_forgetting_the_run_takes_the_store_along(store, connect, valkey, raw, run_id):
    store.set("k", "v")
    store.queue_push("q", "v")
    connect(valkey.endpoint).forget()
    assert list(raw.scan_iter(match=f"rdzv:{{{run_id}}}:*")) == []


def test_the_timeout_is_torchs_and_can_be_set(store):
    assert store.timeout == timedelta(seconds=300)
    store.set_timeout(SHORT)
    assert store.timeout == store.clone().timeout == SHORT
    with pytest.raises(dist.DistStoreError, match=r"1 of 1 \('never'\)"):
        store.get("never")


def test_threads_add_up(store):
    def add():
        return [store.add("n", 1) for _ in range(25)]

    answers = [n for part in together([add] * 8) for n in part]
    assert sorted(answers) == list(range(1, 201))


# --- a process group


def work(rank, world, endpoint, run_id, answers):
    import torch

    # Nobody here holds on to the store: that is one of the traps.
    dist.init_process_group(
        "gloo", rank=rank, world_size=world, store=dist.PrefixStore("group", RedisStore(endpoint, run_id))
    )
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    pair = dist.new_group([0, 1])
    gathered = [None] * world
    dist.all_gather_object(gathered, {"rank": rank})
    told = ["from 0" if rank == 0 else None]
    dist.broadcast_object_list(told)
    dist.monitored_barrier()
    dist.barrier()
    if rank == 0:
        dist.send(torch.tensor([7]), 1)
    received = torch.tensor([0])
    if rank == 1:
        dist.recv(received, 0)
    in_pair = torch.tensor([1])
    if rank < 2:
        dist.all_reduce(in_pair, group=pair)
    dist.destroy_process_group()
    answers.put((rank, total.item(), [each["rank"] for each in gathered], told, received.item(), in_pair.item()))


def test_a_process_group_of_four(valkey, run_id):
    spawn = torch_context()
    answers = spawn.SimpleQueue()
    processes = [spawn.Process(target=work, args=(rank, 4, valkey.endpoint, run_id, answers)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * 4
    found = sorted(answers.get() for _ in range(4))
    assert found == [
        (rank, 10, [0, 1, 2, 3], ["from 0"], 7 if rank == 1 else 0, 2 if rank < 2 else 1) for rank in range(4)
    ]


def torch_context():
    import multiprocessing

    return multiprocessing.get_context("forkserver" if os.name == "posix" else "spawn")
