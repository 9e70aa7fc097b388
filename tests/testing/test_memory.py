"""The memory store under a clock of one's own: no thread, no wait, every moment told."""

from __future__ import annotations

import random

import pytest

from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.testing.memory import Change, MemoryBackend, MemoryRegister, MemoryStore

RUN = "job-7"
TTL = 15.0


class Time:
    now = 0.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(time: Time) -> MemoryStore:
    return MemoryStore(now=lambda: time.now, rng=random.Random(1))


@pytest.fixture
def backend(store: MemoryStore) -> MemoryBackend:
    return MemoryBackend(store, RUN)


@pytest.fixture
def changes(store: MemoryStore) -> list[tuple[str, Change]]:
    noted: list[tuple[str, Change]] = []
    store.on_change(lambda run_id, change: noted.append((run_id, change)))
    return noted


def test_each_change_is_told_as_it_is_made(backend: MemoryBackend, changes: list):
    backend.announce("n1", 1, b"", TTL)
    backend.announce("n1", 0, b"", TTL)
    backend.pulse("n1", 1, TTL)
    token = backend.set_state(b"one")[1]
    backend.set_state(b"two", "stale")
    backend.set_state(b"two", token)
    backend.pulse("n1", 1, TTL, lead=False)
    backend.withdraw("n1", 2, TTL)
    kinds = [change for _, change in changes]
    assert kinds == [Change.ROSTER, Change.REGISTER, Change.REGISTER, Change.LEASE, Change.ROSTER]
    assert {run_id for run_id, _ in changes} == {RUN}


def test_a_subscription_can_be_ended(store: MemoryStore, backend: MemoryBackend):
    noted: list[object] = []
    end = store.on_change(lambda *change: noted.append(change))
    end()
    end()
    backend.announce("n1", 1, b"", TTL)
    assert noted == []


def test_next_expiry_is_when_somebody_should_sweep(
    store: MemoryStore, backend: MemoryBackend, time: Time, changes: list
):
    assert store.next_expiry() is None
    backend.announce("n1", 1, b"", 20.0)
    backend.announce("n2", 1, b"", 10.0)
    assert store.next_expiry() == 10.0
    time.now = 9.0
    backend.pulse("n2", 1, 10.0)
    assert store.next_expiry() == 19.0
    backend.pulse("n1", 1, 1.0)
    assert (store.next_expiry(), store.next_expiry("another run")) == (10.0, None)
    changes.clear()
    time.now = 10.0
    store.sweep()
    assert changes == [(RUN, Change.ROSTER)]
    assert [e.node_id for e in backend.roster().records] == ["n2"]
    assert store.next_expiry() == 19.0


def test_next_expiry_knows_of_the_register(store: MemoryStore, backend: MemoryBackend, time: Time, changes: list):
    backend.announce("n1", 1, b"", TTL)
    backend.set_state(b"state")
    backend.withdraw("n1", 2, TTL, keep=5.0)
    assert store.next_expiry(RUN) == 5.0
    changes.clear()
    time.now = 5.0
    store.sweep()
    assert changes == [(RUN, Change.REGISTER)]
    assert backend.get_state() is None
    assert store.next_expiry() is None


def test_nothing_expires_before_its_moment(store: MemoryStore, backend: MemoryBackend, time: Time):
    backend.announce("n1", 1, b"", TTL)
    time.now = TTL - 1e-6
    assert backend.pulse("n1", 1, TTL).known
    time.now += TTL
    assert not backend.pulse("n1", 1, TTL).known


def test_forms_that_do_not_block_answer_at_once(backend: MemoryBackend):
    version = backend.roster().version
    assert backend.roster(version) is None
    assert backend.wait_state(None, 0.0) is None
    _, token, _ = backend.set_state(b"state")
    assert backend.wait_state(None, 0.0) == (b"state", token)
    assert backend.wait_state(token, 0.0) is None


def test_a_restored_store_gives_out_no_token_and_no_version_again(store: MemoryStore, backend: MemoryBackend):
    token = backend.set_state(b"base")[1]
    backend.announce("n1", 1, b"", TTL)
    snapshot = store.snapshot()
    given: set[object] = set()
    for turn in range(3):
        _, token, did_set = backend.set_state(b"next", backend.get_state()[1])
        backend.announce("n2", turn, b"", TTL)
        assert did_set
        now = {token, backend.roster().version}
        assert not now & given
        given |= now
        store.restore(snapshot)
        assert backend.get_state()[0] == b"base"
        assert [e.node_id for e in backend.roster().records] == ["n1"]
        assert backend.roster().version not in given


def test_a_snapshot_is_not_touched_by_what_comes_after(store: MemoryStore, backend: MemoryBackend):
    backend.announce("n1", 1, b"", TTL)
    snapshot = store.snapshot()
    for _ in range(2):
        backend.withdraw("n1", 2, TTL)
        store.restore(snapshot)
        assert [e.node_id for e in backend.roster().records] == ["n1"]


def test_a_wipe_is_of_one_run_or_of_all(store: MemoryStore, backend: MemoryBackend, changes: list):
    other = MemoryBackend(store, "other")
    for client in (backend, other):
        client.set_state(b"state")
    assert store.runs() == (RUN, "other")
    store.wipe(RUN)
    assert (backend.get_state(), other.get_state() is None) == (None, False)
    store.wipe()
    assert store.runs() == ()


def test_a_reader_that_is_far_behind_gets_everything(backend: MemoryBackend):
    """The store forgets departures in the end; it never forgets to say so."""
    backend.announce("stays", 1, b"", 1e9)
    seen = backend.roster()
    for n in range(5000):
        backend.announce(f"n{n}", 1, b"", 1e9, lead=False)
        backend.withdraw(f"n{n}", 2, 1.0)
    answer = backend.roster(seen.version)
    assert answer.base is None
    assert [e.node_id for e in answer.records] == ["stays"]
    recent = answer
    backend.withdraw("stays", 2, 1.0)
    assert backend.roster(recent.version).gone == {"stays"}


def test_the_same_seed_tells_the_same_story():
    def tell() -> list[object]:
        backend = MemoryBackend(MemoryStore(now=lambda: 0.0, rng=random.Random(7)), RUN)
        return [backend.set_state(b"state"), backend.announce("n1", 1, b"", TTL), backend.roster()]

    assert tell() == tell()


def test_a_closed_client_says_so(backend: MemoryBackend):
    backend.close()
    for call in (backend.get_state, backend.roster, lambda: backend.announce("n1", 1, b"", TTL)):
        with pytest.raises(RendezvousConnectionError, match=r"closed \(run 'job-7', backend memory\)"):
            call()


def test_a_register_counts_and_takes_its_time(store: MemoryStore):
    slept: list[float] = []
    register = MemoryRegister(store, RUN, latency=0.25, sleep=slept.append)
    register.get_state()
    register.set_state(b"state")
    register.set_state(b"late")
    assert (register.reads, register.writes, register.wins) == (1, 2, 1)
    assert slept == [0.25] * 6
