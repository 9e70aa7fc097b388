"""What a call costs: commands counted by the server, bytes by a proxy."""

from __future__ import annotations

import uuid
from contextlib import contextmanager

import pytest
import redis

from rdzv_core.testing.conformance import Waiting, eventually
from rdzv_core.testing.proxy import FaultProxy

LONG = 60.0


class Counter:
    """Commands that the server ran for clients, those inside scripts not counted; and bytes either way."""

    def __init__(self, client, proxy):
        self.client = client
        self.proxy = proxy
        self.commands = {}
        self.bytes = 0

    def _commands(self):
        stats = self.client.info("commandstats")
        counted = {name.removeprefix("cmdstat_"): value["calls"] for name, value in stats.items()}
        outside = ("evalsha", "eval", "subscribe", "unsubscribe", "ping", "hello", "auth", "select", "client|setinfo")
        return {name: counted.get(name, 0) for name in outside} | {"all": sum(counted.values())}

    def count(self, name):
        """How often the server has run a command."""
        return self._commands()[name]

    @contextmanager
    def __call__(self):
        before, moved = self._commands(), self.proxy.to_server + self.proxy.to_client
        yield
        after = self._commands()
        self.commands = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        self.bytes = self.proxy.to_server + self.proxy.to_client - moved


@pytest.fixture
def proxy(own_server):
    with FaultProxy(own_server.host, own_server.port) as proxy:
        yield proxy


@pytest.fixture
def counting(own_server, proxy):
    with redis.Redis(host=own_server.host, port=own_server.port) as client:
        counter = Counter(client, proxy)
        with counter():
            pass  # connects
        with counter():
            pass
        counter.own = counter.commands.pop("all")  # INFO itself
        yield counter


def calls(counting):
    """Commands of ours by name; EVALSHA stands for the commands inside."""
    return {name: count for name, count in counting.commands.items() if name != "all"}


@pytest.fixture
def node(connect, proxy):
    """A backend that has used every script once, under a run id of the length of a UUID."""
    backend = connect(proxy.endpoint, run=str(uuid.uuid4()))
    backend.set_state(b"state")
    backend.publish("g" * 16, [b"page"], LONG)
    backend.announce("node-0123456789ab", 1, b"x" * 300, LONG)
    backend.announce("other", 1, b"x" * 300, LONG)
    backend.withdraw("other", 2, LONG)
    backend.pulse("node-0123456789ab", 1, LONG)
    backend.roster()
    return backend


def test_connecting_sends_nothing_but_the_first_call(proxy, counting, connect):
    backend = connect(proxy.endpoint)
    with counting():
        backend.get_state()
    assert counting.commands == {"all": 1 + counting.own}


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.announce("n1", 1, b"record", LONG),
        lambda b: b.pulse("node-0123456789ab", 1, LONG, keep=60.0, group="g"),
        lambda b: b.withdraw("n1", 1, LONG, keep=60.0),
        lambda b: b.set_state(b"state", "1.x"),
        lambda b: b.publish("h", [b"page"] * 8, LONG),
        lambda b: b.roster(),
    ],
    ids=["announce", "pulse", "withdraw", "set_state", "publish", "roster"],
)
def test_a_call_is_one_command(node, counting, call):
    with counting():
        call(node)
    assert calls(counting) == {"evalsha": 1}


@pytest.mark.parametrize("call", [lambda b: b.get_state(), lambda b: b.page("g", 0)], ids=["get_state", "page"])
def test_a_read_is_one_command(node, counting, call):
    with counting():
        call(node)
    assert counting.commands == {"all": 1 + counting.own}


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_steady_pulse_is_cheap(node, counting, leads):
    node.pulse("node-0123456789ab", 1, LONG, lead=leads)
    with counting():
        answer = node.pulse("node-0123456789ab", 1, LONG, lead=leads, keep=60.0, group="g" * 16)
    assert answer.leads == leads
    assert counting.bytes <= (520 if leads else 400), f"{counting.bytes} bytes"


def test_a_wait_asks_nothing_while_it_waits_and_nothing_afterwards(node, proxy, counting):
    token = node.get_state()[1]
    with counting():
        assert node.wait_state(token, 0.0) is None
    assert calls(counting) == {"subscribe": 1}
    assert counting.commands["all"] == 2 + counting.own, "to subscribe, and to read once"
    for turn in range(3):
        with counting():
            waiting = Waiting(lambda token=token: node.wait_state(token, LONG))
            assert waiting.blocks()
            token = node.set_state(b"state %d" % turn, token)[1]
            assert waiting.result(within=10) == (b"state %d" % turn, token)
            assert node.wait_state(token, 0.2) is None
        assert calls(counting) == {"evalsha": 1}, "only the write"


def test_a_roster_wait_asks_once_for_each_change(node, counting):
    seen = node.roster()
    assert node.roster(seen.version, 0.01) is None
    with counting():
        before = counting.count("evalsha")
        waiting = Waiting(lambda: node.roster(seen.version, LONG))
        eventually("it has asked", lambda: counting.count("evalsha") > before, within=10)
        assert waiting.blocks()
    assert calls(counting) == {"evalsha": 1}
    with counting():
        node.announce("n2", 1, b"record", LONG)
        assert waiting.result(within=10) is not None
    assert calls(counting) == {"evalsha": 2}, "the announce, and the reading of it"


def test_a_burst_of_changes_is_read_in_few_commands(node, connect, proxy, counting, own_server):
    other = connect(own_server.endpoint, run=node._run_id)
    seen = node.roster()
    node.roster(seen.version, 0.01)
    for n in range(100):
        other.announce(f"burst-{n}", 1, b"record", LONG)
    with counting():
        assert len(node.roster(seen.version, LONG).onto(seen).records) == 101
    assert calls(counting) == {"evalsha": 1}


def test_a_node_needs_two_connections_and_a_leader_three(connect, proxy):
    backend = connect(proxy.endpoint)
    for _ in range(5):
        backend.announce("n1", 1, b"", LONG)
        backend.wait_state(None, 0.0)
    assert proxy.open_connections == 2
    version = backend.roster().version
    for _ in range(5):
        backend.roster(version, 0.01)
    assert proxy.open_connections == 3


def test_a_round_costs_a_node_at_most_six_commands_and_two_kilobytes(connect, proxy, counting, own_server):
    """Announce, wait, read the page, read the register again, wait for the next: what a session does.

    The sizes are the usual ones: a record, a page of 8 members, a register.
    """
    run = str(uuid.uuid4())
    leader = connect(own_server.endpoint, run=run)
    leader.announce("leader", 1, b"x" * 120, LONG)
    leader.publish("a-round-id-12", [b"x" * 220], LONG)
    node = connect(proxy.endpoint, run=run)
    with counting():
        token = node.announce("node-0123456789ab", 1, b"x" * 120, LONG).token
        waiting = Waiting(lambda: node.wait_state(token, LONG))
        assert waiting.blocks()
    before = sum(calls(counting).values()) + 1  # the reading after subscribing is a plain HMGET
    spent, moved = counting.bytes, proxy.to_server + proxy.to_client
    leader.set_state(b"x" * 260)
    token = waiting.result(within=10)[1]
    with counting():
        assert node.page("a-round-id-12", 0) is not None
        assert node.get_state()[1] == token
    assert before + counting.commands["all"] - counting.own <= 6
    spent += proxy.to_server + proxy.to_client - moved
    assert spent <= 2000, "the message to it among them"
