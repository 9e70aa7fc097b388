"""EtcdStore as torch uses it: call by call beside a HashStore, through a PrefixStore, and under a gloo group."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

import etcd
import pytest
from rdzv_etcd.gateway import Gateway
from rdzv_etcd.target import target_of

from rdzv_core.testing.conformance import Waiting, eventually, together
from rdzv_core.testing.proxy import FaultProxy

pytestmark = [
    pytest.mark.needs_torch,
    pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning"),
]

SHORT, LONG = timedelta(seconds=0.3), timedelta(seconds=60)


@pytest.fixture(autouse=True, scope="module")
def _torch():
    """Imported when the first of these tests runs: where there is no torch they are deselected, not broken."""
    import torch.distributed
    from rdzv_etcd import EtcdStore as store

    global dist, EtcdStore
    dist, EtcdStore = torch.distributed, store


def by_v3(server, timeout=timedelta(seconds=10)):
    return EtcdStore(Gateway(target_of(server.endpoint, {}, {}).cluster), f"stores/{uuid.uuid4().hex}", timeout)


def by_v2(server, timeout=timedelta(seconds=10)):
    return EtcdStore(server.get_client(), f"/stores/{uuid.uuid4().hex}", timeout)


@pytest.fixture(params=[by_v3, by_v2], ids=["v3", "v2"])
def store(request, etcd35):
    store = request.param(etcd35)
    yield store
    store.close()


@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: dist.PrefixStore("p", s)], ids=["bare", "prefixed"])
def test_it_does_what_a_hash_store_does(store, wrap):
    """The same calls, in the same order, on torch's own store and on ours."""

    def play(s):
        yield s.check(["a"])
        s.set("a", "text")
        yield s.get("a")
        s.set("a", b"")
        yield s.get("a")
        s.set("bytes/with:all", bytes(range(256)))
        yield s.get("bytes/with:all")
        yield s.add("n", 5), s.add("n", -2), s.get("n")
        yield s.compare_set("c", "", "first"), s.compare_set("c", "wrong", "second"), s.compare_set("c", "first", "2")
        yield s.compare_set("absent", "expected", "x"), s.check(["absent"])
        s.append("log", "one")
        s.append("log", "two")
        yield s.get("log")
        s.multi_set(["m1", "m2"], [b"1", b"2"])
        yield s.multi_get(["m2", "m1"])
        yield s.check(["m1", "m2"]), s.check(["m1", "m3"])
        s.wait(["m1", "m2"])
        yield s.delete_key("m1"), s.delete_key("m1"), s.check(["m1"])
        yield s.has_extended_api()

    theirs = list(play(wrap(dist.HashStore())))
    assert list(play(wrap(store))) == theirs


def test_it_lists_and_counts_its_own_keys(store):
    names = ["a", "b/c", "d:e", "ü %"]
    for name in names:
        store.set(name, name)
    assert sorted(store.list_keys()) == sorted(names)
    assert store.num_keys() == 4
    assert dist.PrefixStore("p", store).num_keys() == 4


@pytest.mark.parametrize("call", [lambda s: s.get("never"), lambda s: s.wait(["there", "never"], SHORT)])
def test_a_wait_ends_at_its_timeout_and_names_what_is_missing(store, call):
    store.set("there", "x")
    store.set_timeout(SHORT)
    began = time.monotonic()
    with pytest.raises(dist.DistStoreError) as caught:
        call(store)
    assert 0.25 < time.monotonic() - began < 8  # its timeout of before was 10 s
    assert "'never'" in str(caught.value)
    assert "'there'" not in str(caught.value)


def test_a_set_wakes_a_get_and_a_wait_of_several_keys(store):
    store.set_timeout(LONG)
    getting = Waiting(lambda: store.get("k2"))
    waiting = Waiting(lambda: store.wait(["k1", "k2"]))
    assert getting.blocks()
    assert waiting.blocks()
    store.set("k2", "value")
    assert getting.result(within=20) == b"value"
    store.set("k1", "value")
    waiting.result(within=20)


def test_a_waiting_thread_holds_up_no_other(store):
    store.set_timeout(LONG)
    waiting = Waiting(lambda: store.get("later"))
    assert waiting.blocks()
    began = time.monotonic()
    store.set("x", "1")
    assert store.get("x") == b"1"
    assert time.monotonic() - began < 20
    store.set("later", "2")
    assert waiting.result(within=20) == b"2"


def test_adds_of_many_threads_all_count(store):
    totals = together([lambda: [store.add("n", 1) for _ in range(5)]] * 4)
    assert sorted(n for total in totals for n in total) == list(range(1, 21))


def test_compare_set_has_one_winner(store):
    answers = together([lambda n=n: store.compare_set("k", "", f"rank {n}") for n in range(8)])
    assert len(set(answers)) == 1


def test_clones_share_keys_and_live_without_a_reference(store):
    prefixed = dist.PrefixStore("p", store.clone())
    gc.collect()
    prefixed.set("k", "v")
    assert store.get("p/k") == b"v"


def test_it_refuses_to_be_pickled(store):
    with pytest.raises(TypeError, match="EtcdStore holds connections"):
        pickle.dumps(store)


def test_keys_end_with_the_store(etcd35, raw):
    prefix = f"stores/{uuid.uuid4().hex}"
    store = EtcdStore(Gateway(target_of(etcd35.endpoint, {}, {}).cluster), prefix, ttl=timedelta(seconds=4))
    store.set("k", "v")
    store.add("n", 1)
    assert {int(kv["lease"]) for kv in raw.all(prefix).values()} & set(raw.leases())
    deadline = time.monotonic() + 30
    while raw.all(prefix):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    store.set("k", "again")  # its lease has ended: another is made
    assert store.get("k") == b"again"
    store.close()


def test_a_lost_answer_is_found_again_and_counts_once(etcd35):
    with FaultProxy(etcd35.host, etcd35.port) as proxy:
        store = EtcdStore.connect(proxy.endpoint, f"run-{uuid.uuid4().hex}", options={"read_timeout": 10})
        assert store.add("n", 1) == 1
        for expected in range(2, 8):
            proxy.lose_replies(1)
            assert store.add("n", 1) == expected
        store.close()


def test_without_etcd_it_is_a_network_error_of_torch():
    store = EtcdStore.connect("127.0.0.1:1", "run", options={"read_timeout": 0.3})
    for call in (lambda: store.set("k", "v"), lambda: store.get("k"), lambda: store.add("n", 1)):
        with pytest.raises(dist.DistNetworkError, match=r"127\.0\.0\.1:1"):
            call()


def test_adding_to_a_text_is_torchs_error(store):
    store.set("k", "text")
    with pytest.raises(dist.DistStoreError, match="holds b'text', which is no number"):
        store.add("k", 1)


def test_a_wait_by_v2_goes_on_at_another_member(etcd35):
    """The wait was under way for longer than a call may take when its member died."""
    with FaultProxy(etcd35.host, etcd35.port) as proxy:
        clients = [etcd.Client(host=at.host, port=at.port, read_timeout=1) for at in (proxy, etcd35)]
        store = EtcdStore(clients, f"/stores/{uuid.uuid4().hex}", LONG)
        store._keys._access._present = 0
        waiting = Waiting(lambda: store.get("k"))
        eventually("it waits at the first", lambda: proxy.open_connections == 1, within=20)
        began = time.monotonic()
        eventually("it waits for longer than a call may take", lambda: time.monotonic() - began > 1.5, within=20)
        proxy.refuse = True
        proxy.cut()
        store.set("k", "v")
        assert waiting.result(within=20) == b"v"
        store.close()


def test_close_wakes_who_waits(etcd35):
    store = by_v3(etcd35, LONG)
    waiting = Waiting(lambda: store.get("never"))
    assert waiting.blocks()
    store.close()
    with pytest.raises(dist.DistNetworkError, match="closed"):
        waiting.result(within=20)


WORKER = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from rdzv_etcd import EtcdStore
endpoint, prefix, api, rank = *sys.argv[1:4], int(sys.argv[4])
if api == "v3":
    store = EtcdStore.connect(endpoint, prefix, timeout=timedelta(seconds=60))
else:
    import etcd
    host, port = endpoint.split(":")
    store = EtcdStore(etcd.Client(host=host, port=int(port)), prefix, timedelta(seconds=60))
dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=rank, world_size=4)
total = torch.tensor([rank])
dist.all_reduce(total)
assert int(total) == 6
group = dist.new_group([0, 1])
if rank < 2:
    dist.barrier(group)
dist.monitored_barrier()
gathered = [None] * 4
dist.all_gather_object(gathered, {"rank": rank})
assert [g["rank"] for g in gathered] == [0, 1, 2, 3]
dist.destroy_process_group()
print("fine", rank)
"""


@pytest.mark.parametrize("api", ["v3", "v2"])
def test_four_processes_form_a_gloo_group_over_it(etcd35, api, tmp_path: Path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    prefix = f"gloo-{uuid.uuid4().hex}"
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), etcd35.endpoint, prefix, api, str(rank)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(4)
    ]
    try:
        said = [worker.communicate(timeout=90)[0].decode() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0] * 4, "\n".join(said)
