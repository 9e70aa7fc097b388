"""What is particular to level 2 over a TCPStore."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from rdzv_c10d import C10dRendezvousBackend, link, reader
from rdzv_c10d.board import decode
from rdzv_c10d.coordination import C10dCoordinationBackend
from rdzv_c10d.keys import RunKeys
from rdzv_c10d.plug import Plug, plugged
from rdzv_c10d.stores import peek

from rdzv_core.errors import RendezvousStateError
from rdzv_core.testing.suite import Waiting, eventually

from .stores import open_client, open_server

pytestmark = pytest.mark.needs_torch

LONG = 60.0
PATIENT = 20.0
"""Seconds that a call may take: none of these tests is about that."""


@pytest.fixture(autouse=True)
def _each_client_finds_its_plug(monkeypatch):
    """However many are made at once, and however slowly: who has none looks again and again where others sleep."""
    monkeypatch.setattr("rdzv_c10d.plug.TURN", LONG)


@pytest.fixture(scope="module")
def server():
    return open_server()


@pytest.fixture
def open_backend(server, request):
    opened = []

    def open_one(run_id: str = request.node.name) -> C10dRendezvousBackend:
        opened.append(C10dRendezvousBackend(open_client(server.port), run_id, call_timeout=PATIENT))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


@pytest.fixture
def store(server):
    return open_client(server.port)


@pytest.fixture
def keys(request):
    return RunKeys(request.node.name)


class Counting:
    """A client that counts the calls that it passes on."""

    def __init__(self, client: Any, calls: list[str], waits: threading.Event) -> None:
        self._client = client
        self._calls = calls
        self._waits = waits

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self._calls.append(name)
            if name == "wait":
                self._waits.set()
            return getattr(self._client, name)(*args)

        return call


class CountingSource:
    """Counts what all its clients are asked."""

    where = "a store that counts"

    def __init__(self, port: int) -> None:
        self._port = port
        self.calls: list[str] = []
        self.waits = threading.Event()

    def open(self) -> tuple[Any, Plug | None]:
        client, plug = plugged(lambda: open_client(self._port))
        return Counting(client, self.calls, self.waits), plug

    def doubt(self) -> None: ...

    def linger(self, seconds: float) -> None: ...

    def close(self) -> None: ...


def test_it_is_chosen_for_a_store_that_can_be_cloned(store):
    assert isinstance(C10dRendezvousBackend(store, "run"), C10dCoordinationBackend)


def test_the_commands_of_a_node_are_few_and_counted(server, open_backend, request):
    """What a node asks of the store, in a round and in between; a number that must not grow unnoticed."""
    leader = open_backend()
    leader.announce("leader", 1, b"", LONG)
    source = CountingSource(server.port)
    node = C10dCoordinationBackend.at(source, request.node.name, call_timeout=PATIENT)

    def asked(call) -> int:
        before = len(source.calls)
        call()
        return len(source.calls) - before

    assert asked(lambda: node.announce("n1", 1, b"record", LONG)) == 4
    assert asked(lambda: node.announce("n1", 2, b"record", LONG)) == 4
    assert asked(lambda: node.pulse("n1", 2, LONG)) == 2
    assert asked(node.get_state) == 1
    assert asked(lambda: node.page("g", 0)) == 1
    leader.set_state(b"state")
    assert asked(lambda: node.wait_state(None, LONG)) == 1, "a register that differs is answered by one look"
    token = node.get_state()[1]

    def woken() -> None:
        waiting = Waiting(lambda: node.wait_state(token, LONG))
        assert source.waits.wait(PATIENT)
        leader.set_state(b"next", token)
        assert waiting.result(within=PATIENT)[0] == b"next"

    assert asked(woken) == 3, "a look, a wait, and a look"
    node.close()


QUIETLY = """
import sys, time
import torch.distributed as dist
from rdzv_c10d import link, plug
from rdzv_c10d.coordination import C10dCoordinationBackend
from rdzv_c10d.source import GivenStore
from rdzv_core.testing.suite import Waiting, eventually

LONG, SOON = 60.0, 20.0
link.GENTLE = plug.TURN = SOON  # a busy machine too has the time to let threads end by themselves
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)

def open_one():
    source = GivenStore(client)
    if sys.argv[1] == "unplugged":
        source.open = lambda: (client.clone(), None)
    return C10dCoordinationBackend.at(source, "run", call_timeout=SOON)

def wait(node, token):
    waiting = Waiting(lambda: node.wait_state(token, LONG))
    eventually("it waits", lambda: listens(node._board_bell), within=SOON)
    return waiting

def listens(bell):
    return bell.sleeps if sys.argv[1] == "plugged" else bell._key and bell._line.opened.settled

def close(node):
    began = time.monotonic()
    node.close()
    assert time.monotonic() - began < SOON - 5, "a thread did not end by itself"

nodes = [open_one() for _ in range(4)]
for number, node in enumerate(nodes):
    node.announce(f"n{number}", 1, b"", LONG)
token = nodes[0].set_state(b"state")[1]
version = nodes[0].roster().version
print("begin", file=sys.stderr, flush=True)

waiting = [wait(node, token) for node in nodes]
leading = Waiting(lambda: nodes[0].roster(version, LONG))
eventually("it leads", lambda: listens(nodes[0]._roll_bell), within=SOON)
assert all(each.blocks() for each in (*waiting, leading))
for number in (3, 2):
    nodes[number].withdraw(f"n{number}", 2, LONG)
    close(nodes[number])
    assert waiting[number].result(within=SOON) is None
assert leading.result(within=SOON) is not None
assert waiting[0].blocks()
assert waiting[1].blocks()
after = nodes[1].set_state(b"more", token)[1]
assert [waiting[n].result(within=SOON) for n in (0, 1)] == [(b"more", after)] * 2
waiting = [wait(node, after) for node in nodes[:2]]
assert all(each.blocks() for each in waiting)
for node in nodes[:2]:
    close(node)
assert [each.result(within=SOON) for each in waiting] == [None, None]

print("end", file=sys.stderr, flush=True)
"""


@pytest.mark.parametrize("how", ["plugged", "unplugged"])
def test_nothing_is_said_on_stderr_while_nodes_wait_and_when_they_leave(how):
    """torch prints two lines for each wait whose time is over, and thirty for one that is ended by force.

    In a process of its own, where no thread of another test can say anything.
    """
    done = subprocess.run(
        [sys.executable, "-c", QUIETLY, how], capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.partition("begin\n")[2].partition("end\n")[:2] == ("", "end\n")


def test_a_node_that_leaves_wakes_the_others_once_though_many_leave(server, request, monkeypatch):
    """They look for themselves for a while then, so that who leaves next need not wake anybody."""
    monkeypatch.setattr(link, "SETTLING", LONG)
    monkeypatch.setattr(link, "GENTLE", PATIENT)
    sources = [CountingSource(server.port) for _ in range(5)]
    nodes = [C10dCoordinationBackend.at(source, request.node.name, call_timeout=PATIENT) for source in sources]
    token = nodes[0].set_state(b"state")[1]
    waiting = [Waiting(lambda node=node: node.wait_state(token, LONG)) for node in nodes]
    eventually("all sleep", lambda: all(node._board_bell.sleeps for node in nodes), within=PATIENT)
    before = decode(peek(open_client(server.port), RunKeys(request.node.name).board), "board")
    for node, wait in zip(nodes, waiting, strict=True):
        node.close()
        assert wait.result(within=PATIENT) is None
        eventually("the others are awake", lambda: not any(n._board_bell.sleeps for n in nodes), within=PATIENT)
    after = decode(peek(open_client(server.port), RunKeys(request.node.name).board), "board")
    assert after.news == before.news + 1


def test_a_leader_asks_no_more_when_nothing_happens(server, open_backend, request, monkeypatch):
    """While the roster is watched, only beats are read; and not more often than so many times in a TTL."""
    source = CountingSource(server.port)
    leader = C10dCoordinationBackend.at(source, request.node.name, call_timeout=PATIENT)
    for name in ("a", "b", "c"):
        leader.announce(name, 1, b"", LONG)
    version = leader.roster().version
    before = len(source.calls)
    assert leader.roster(version, 1.2) is None
    asked = len(source.calls) - before
    assert asked <= 4 * (1.2 / reader.LONGEST_LISTEN + 2), f"{source.calls[before:]}"
    leader.close()


def test_a_death_is_decided_once_though_the_node_speaks_again(open_backend):
    """A node that was marked dead learns so from its next sign of life, and so does every other reader."""
    node, reader_, later = open_backend(), open_backend(), open_backend()
    node.announce("slow", 1, b"", 0.3)
    node._beaten.clear()  # as if the node's own clock had stood still
    eventually("the record expires", lambda: not reader_.roster().records, within=20)
    assert not node.pulse("slow", 1, LONG).known
    assert not later.roster().records


def test_an_heir_of_a_silent_leader_need_not_wait_for_another_ttl(open_backend):
    """The lease told it that the owner was silent; the owner's record goes with it."""
    leader, heir = open_backend(), open_backend()
    ttl = 3.0
    leader.announce("leader", 1, b"", ttl)
    heir.announce("heir", 1, b"", LONG, lead=False)
    heir.pulse("heir", 1, LONG)
    began = time.monotonic()
    eventually("the lease falls to the heir", lambda: heir.pulse("heir", 1, LONG).leads, within=2 * ttl)
    assert [entry.node_id for entry in heir.roster().records] == ["heir"]
    assert time.monotonic() - began < 2 * ttl


def test_the_news_of_a_writer_that_died_is_told_by_the_next(open_backend, store, keys, monkeypatch):
    """A board that was written and not told of: who waits for that very number is woken by the write after it."""
    writer, waiter = open_backend(), open_backend()
    _, token, _ = writer.set_state(b"one")
    with monkeypatch.context() as dying:
        dying.setattr(writer, "_follow_up", lambda *args: None)
        _, token, _ = writer.set_state(b"two", token)
    assert not store.check([keys.news(2)])
    writer.set_state(b"three", token)
    assert store.check([keys.news(2), keys.news(3)])
    assert waiter.get_state()[0] == b"three"


def test_an_entry_that_was_never_written_holds_nobody_up(open_backend, store, keys):
    """A node that took its number in the log and died: others are read all the same, and it too if it comes late."""
    backend, late = open_backend(), open_backend()
    backend.announce("a", 1, b"", LONG)
    hole = store.add(keys.log, 1)
    backend.announce("c", 1, b"", LONG)
    assert [entry.node_id for entry in backend.roster().records] == ["a", "c"]
    late.announce("b", 1, b"", LONG)
    entry = store.get(keys.entry(hole + 2))
    store.delete_key(keys.entry(hole + 2))
    store.set(keys.entry(hole), entry)
    assert [entry.node_id for entry in backend.roster().records] == ["a", "c", "b"]


def test_a_long_log_is_shortened_and_still_read(open_backend, store, keys, monkeypatch):
    monkeypatch.setattr(reader, "ENTRIES_LEAST", 20)
    leader, node = open_backend(), open_backend()
    for seq in range(1, 40):
        node.announce("n1", seq, b"record %d" % seq, LONG)
    node.announce("n2", 1, b"other", LONG)
    node.withdraw("n2", 2, LONG)
    before = leader.roster()
    assert leader.roster(before.version, 0.05) is None
    assert not store.check([keys.entry(1)])
    assert store.check([keys.base])
    newcomer = open_backend().roster()
    assert [(e.node_id, e.record) for e in newcomer.records] == [("n1", b"record 39")]
    assert newcomer.withdrawn == {"n2"}
    node.announce("n3", 1, b"new", LONG)
    for each in (leader, open_backend()):
        assert [e.node_id for e in each.roster().records] == ["n1", "n3"]
    assert leader.announce("n4", 1, b"", LONG).known


def test_pages_of_old_rounds_are_dropped(open_backend, store, keys):
    backend = open_backend()
    groups = [f"round-{n}" for n in range(20)]
    for group in groups:
        backend.publish(group, [b"page"], LONG)
    assert backend.page(groups[0], 0) is None
    assert not store.check([keys.page(groups[0], 0)])
    assert backend.page(groups[-1], 0) == b"page"


@pytest.mark.parametrize("stored", [b"", b"{}", b"{}\n", b'{"v":2}\n', b"pickle\n", b"[]\nx", b'{"v":1,"write":"x"}\n'])
def test_what_others_wrote_is_refused_in_a_sentence(stored):
    with pytest.raises(RendezvousStateError, match="was not written by rdzv-c10d"):
        decode(stored, "some/key")


def test_a_foreign_value_on_the_board_is_a_state_error(open_backend, store, keys):
    store.set(keys.board, b"something else\n")
    with pytest.raises(RendezvousStateError, match="Another program uses this store"):
        open_backend().get_state()


def test_a_foreign_value_in_a_register_is_a_state_error():
    import torch.distributed as dist

    store = dist.HashStore()
    backend = C10dRendezvousBackend(store, "run")
    store.set(RunKeys("run").register, b"gASVBQAA")
    with pytest.raises(RendezvousStateError, match="Another program uses this store"):
        backend.get_state()


def test_a_run_needs_a_name(store):
    with pytest.raises(ValueError, match="run id"):
        C10dRendezvousBackend(store, "")


def test_nothing_is_left_of_a_run_that_is_forgotten(open_backend, store, keys):
    backend = open_backend()
    backend.announce("n1", 1, b"", LONG)
    backend.set_state(b"state")
    backend.publish("g", [b"page"], LONG)
    backend.withdraw("n1", 2, LONG)
    backend.forget()
    assert [key for key in store.list_keys() if keys.prefix in key] == []
    assert peek(store, keys.board) is None
