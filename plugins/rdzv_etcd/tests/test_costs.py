"""What a call costs: requests counted by the client, bytes by a proxy."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

import pytest
from rdzv_etcd import EtcdV3RendezvousBackend
from rdzv_etcd.gateway import LONGEST_LEASE, seconds_of

from rdzv_core.testing.conformance import Waiting
from rdzv_core.testing.proxy import FaultProxy

LONG = 60.0


@pytest.fixture
def proxy(etcd35):
    with FaultProxy(etcd35.host, etcd35.port) as proxy:
        yield proxy


class Counter:
    """Requests of one backend, and bytes either way."""

    def __init__(self, backend, proxy):
        self.usage = backend.usage
        self.proxy = proxy
        self.calls = self.bytes = 0

    @contextmanager
    def __call__(self):
        calls, moved = self.usage.calls, self.proxy.to_server + self.proxy.to_client
        yield
        self.calls = self.usage.calls - calls
        self.bytes = self.proxy.to_server + self.proxy.to_client - moved


@pytest.fixture
def node(connect, proxy):
    """A backend with a run id of the length of a UUID, and a node that has announced itself."""
    backend = connect(proxy.endpoint, run=str(uuid.uuid4()))
    backend.set_state(b"state")
    backend.publish("g" * 16, [b"page"], LONG)
    backend.announce("node-0123456789ab", 1, b"x" * 300, LONG, lead=False)
    backend.announce("other", 1, b"x" * 300, LONG)
    return backend


@pytest.fixture
def counting(node, proxy):
    return Counter(node, proxy)


@pytest.mark.parametrize(
    ("call", "calls"),
    [
        (lambda b: b.announce("node-0123456789ab", 2, b"record", LONG), 2),
        (lambda b: b.announce("n1", 1, b"record", LONG), 2),
        (lambda b: b.pulse("node-0123456789ab", 1, LONG, keep=60.0, group="g"), 2),
        (lambda b: b.withdraw("node-0123456789ab", 2, LONG), 2),
        (lambda b: b.get_state(), 1),
        (lambda b: b.set_state(b"new", b.get_state()[1]), 2),
        (lambda b: b.publish("h", [b"page"] * 60, LONG), 2),
        (lambda b: b.page("g" * 16, 0), 1),
        (lambda b: b.roster(), 1),
    ],
    ids=["announce", "first announce", "pulse", "withdraw", "read", "read and write", "publish", "page", "roster"],
)
def test_requests_of_a_call(node, counting, call, calls):
    with counting():
        call(node)
    assert counting.calls == calls


def test_a_steady_pulse_writes_nothing(node, counting, raw):
    node.pulse("node-0123456789ab", 1, LONG)
    before = {key: kv["mod_revision"] for key, kv in raw.all(f"rdzv/{node._run_id}/").items()}
    with counting():
        assert not node.pulse("node-0123456789ab", 1, LONG, keep=60.0).leads
    assert counting.calls == 2
    assert counting.bytes <= 2800, f"{counting.bytes} bytes"
    assert {key: kv["mod_revision"] for key, kv in raw.all(f"rdzv/{node._run_id}/").items()} == before


def test_a_leaders_pulse_writes_one_key_that_nobody_watches(node, raw):
    node.pulse("other", 1, LONG, keep=60.0, group="g" * 16)
    before = {key: kv["mod_revision"] for key, kv in raw.all(f"rdzv/{node._run_id}/").items()}
    assert node.pulse("other", 1, LONG, keep=60.0, group="g" * 16).leads
    after = {key: kv["mod_revision"] for key, kv in raw.all(f"rdzv/{node._run_id}/").items()}
    assert {key for key in after if after[key] != before.get(key)} == {f"rdzv/{node._run_id}/run/beat"}


def test_a_leader_renews_register_and_pages_now_and_then(node, counting):
    for _ in range(3):
        node.pulse("other", 1, LONG, keep=60.0, group="g" * 16)
    with counting():
        for _ in range(5):
            node.pulse("other", 1, LONG, keep=60.0, group="g" * 16)
    assert counting.calls == 10


def test_a_wait_asks_nothing_while_it_waits_and_nothing_afterwards(node, counting):
    token = node.get_state()[1]
    with counting():
        assert node.wait_state(token, 0.01) is None
    assert counting.calls == 2, "to read once, and to listen"
    for turn in range(3):
        with counting():
            waiting = Waiting(lambda token=token: node.wait_state(token, LONG))
            assert waiting.blocks()
            token = node.set_state(b"state %d" % turn, token)[1]
            assert waiting.result(within=20) == (b"state %d" % turn, token)
            assert node.wait_state(token, 0.2) is None
        assert counting.calls == 1, "only the write"


def test_a_roster_wait_asks_nothing_either(node, counting, connect, etcd35):
    other = connect(etcd35.endpoint, run=node._run_id)
    seen = node.roster()
    assert node.roster(seen.version, 0.01) is None
    with counting():
        waiting = Waiting(lambda: node.roster(seen.version, LONG))
        assert waiting.blocks()
        other.announce("n2", 1, b"record", LONG)
        assert len(waiting.result(within=20).records) == 3
    assert counting.calls == 0


def test_an_unchanged_roster_is_read_in_few_bytes(node, counting, connect, etcd35):
    other = connect(etcd35.endpoint, run=node._run_id)
    for n in range(100):
        other.announce(f"node-{n}", 1, b"x" * 300, LONG, lead=False)
    seen = node.roster()
    with counting():
        assert node.roster(seen.version) is None
    assert counting.bytes < 1200
    other.announce("node-7", 2, b"y" * 300, LONG, lead=False)
    other.withdraw("node-8", 2, LONG)
    assert len(node.roster(seen.version).records) == 101


def test_every_key_ends_with_a_lease(node, raw):
    node.withdraw("node-0123456789ab", 2, 20.0, keep=20.0)
    node.set_state(b"again", node.get_state()[1])
    keys = raw.all(f"rdzv/{node._run_id}/")
    assert len(keys) >= 6
    assert [key for key, kv in keys.items() if not seconds_of(int(kv.get("lease", 0)))] == []


def test_what_is_to_stay_for_ever_stays_for_as_long_as_a_lease_can(node, raw):
    for _ in range(2):
        assert node.pulse("other", 1, LONG, keep=1e9, group="g" * 16).leads
    node.withdraw("node-0123456789ab", 2, 1e9)
    leases = {
        key.rpartition("/")[2]: seconds_of(int(kv["lease"])) for key, kv in raw.all(f"rdzv/{node._run_id}/").items()
    }
    assert leases["register"] == leases["0"] == leases["node-0123456789ab"] == LONGEST_LEASE


def test_a_node_needs_two_connections_and_a_leader_three(connect, proxy):
    backend = connect(proxy.endpoint)
    for _ in range(5):
        backend.announce("n1", 1, b"", LONG)
        backend.wait_state(None, 0.01)
    assert proxy.open_connections == 2
    version = backend.roster().version
    for _ in range(5):
        backend.roster(version, 0.01)
    assert proxy.open_connections == 3


def test_a_round_costs_a_node_six_requests(connect, proxy, etcd35):
    """Announce, wait, read the page, read the register again, wait for the next: what a session does."""
    run = str(uuid.uuid4())
    leader = connect(etcd35.endpoint, run=run)
    leader.announce("leader", 1, b"x" * 300, LONG)
    leader.publish("a-round-id-12", [b"x" * 1000], LONG)
    node = connect(proxy.endpoint, run=run)
    counting = Counter(node, proxy)
    for turn, allowed in enumerate((6, 4)):  # a later round needs no lease and no new watch
        with counting():
            token = node.announce("node-0123456789ab", 1 + turn, b"x" * 300, LONG).token
            waiting = Waiting(lambda token=token: node.wait_state(token, LONG))
            assert waiting.blocks()
            leader.set_state(b"x" * 300, token)
            token = waiting.result(within=20)[1]
            assert node.page("a-round-id-12", 0) is not None
            assert node.get_state()[1] == token
        assert counting.calls <= allowed
        assert counting.bytes <= 12_000, "JSON, base64 and HTTP's headers: see the README"


def test_the_counter_counts(etcd35):
    backend = EtcdV3RendezvousBackend.connect(etcd35.endpoint, "count")
    backend.get_state()
    assert backend.usage.calls == 1
    assert backend.usage.sent > 0
    backend.close()
