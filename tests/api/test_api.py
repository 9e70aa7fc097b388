"""The contract with callers, where it says more than torch's."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta

import pytest

from rdzv_core.api import (
    RendezvousInfo,
    RendezvousParameters,
    RendezvousSettings,
    RendezvousStoreInfo,
    RendezvousTimeout,
    Store,
)
from rdzv_core.errors import RendezvousStateError, RendezvousTimeoutError

QUICK = timedelta(milliseconds=50)


class ImpatientStore:
    """Its get raises at once, in its own words, if a key is not there."""

    def __init__(self, absent: Exception) -> None:
        self.absent = absent
        self.values: dict[str, bytes] = {}
        self.misses = threading.Semaphore(0)

    def set(self, key: str, value: bytes, /) -> None:
        self.values[key] = value

    def get(self, key: str, /) -> bytes:
        try:
            return self.values[key]
        except KeyError:
            self.misses.release()
            raise self.absent from None


class EtcdKeyNotFound(Exception):
    """Stands for the error of that name in python-etcd."""


ABSENT = [
    KeyError("MASTER_ADDR"),
    LookupError("MASTER_ADDR"),
    EtcdKeyNotFound("100"),
    RuntimeError("Key MASTER_ADDR not found in the store"),
    TimeoutError(),
    RuntimeError("wait timeout after 300ms, keys: /MASTER_ADDR"),
    RuntimeError("Socket Timed Out"),
]


@pytest.mark.parametrize("absent", ABSENT, ids=repr)
def test_others_wait_for_rank_0_whatever_the_store_calls_absence(absent: Exception):
    store = ImpatientStore(absent)
    found: list[RendezvousStoreInfo] = []
    other = threading.Thread(target=lambda: found.append(RendezvousStoreInfo.build(1, store, None)))
    other.start()
    assert store.misses.acquire(timeout=30)  # it looked too early, and is patient
    RendezvousStoreInfo.build(0, store, "192.0.2.1", 1234)
    other.join(30)
    assert found == [RendezvousStoreInfo("192.0.2.1", 1234)]


@pytest.mark.parametrize("absent", ABSENT, ids=repr)
def test_patience_ends_and_names_the_key(absent: Exception):
    with pytest.raises(RendezvousTimeoutError) as caught:
        RendezvousStoreInfo.build(3, ImpatientStore(absent), None, timeout=QUICK)
    assert "Rank 3 waited 0.05 s for the key MASTER_ADDR" in str(caught.value)
    assert "rank 0" in str(caught.value)
    assert caught.value.__cause__ is absent


def test_the_second_key_is_named_too():
    store = ImpatientStore(KeyError("x"))
    store.set("MASTER_ADDR", b"h")
    with pytest.raises(RendezvousTimeoutError, match="the key MASTER_PORT"):
        RendezvousStoreInfo.build(1, store, None, timeout=QUICK)


def test_other_errors_of_the_store_pass_at_once():
    with pytest.raises(ConnectionResetError):
        RendezvousStoreInfo.build(1, ImpatientStore(ConnectionResetError("gone")), None)


@pytest.mark.parametrize(("addr", "port"), [(b"h", b"http"), (b"\xff", b"1")])
def test_nonsense_in_the_store_is_a_state_error(addr: bytes, port: bytes):
    store = ImpatientStore(KeyError("x"))
    store.set("MASTER_ADDR", addr)
    store.set("MASTER_PORT", port)
    with pytest.raises(RendezvousStateError, match="MASTER_ADDR and MASTER_PORT hold"):
        RendezvousStoreInfo.build(1, store, None)


def test_the_own_name_is_looked_up_by_rank_0_without_local_addr_only(monkeypatch: pytest.MonkeyPatch):
    asked: list[int] = []
    monkeypatch.setattr("socket.getfqdn", lambda *args: asked.append(1) or "me.example")
    store = ImpatientStore(KeyError("x"))
    RendezvousStoreInfo.build(0, store, "192.0.2.1")
    RendezvousStoreInfo.build(1, store, None)
    assert asked == []
    assert RendezvousStoreInfo.build(0, store, None).master_addr == "me.example"
    assert asked == [1]


def test_a_free_port_is_found_without_asking_for_names(monkeypatch: pytest.MonkeyPatch):
    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("a name server was asked")

    monkeypatch.setattr("socket.getaddrinfo", fail)
    monkeypatch.setattr("socket.getfqdn", fail)
    ports = {RendezvousStoreInfo.build(0, ImpatientStore(KeyError()), "h").master_port for _ in range(3)}
    assert all(0 < port < 65536 for port in ports)


def test_without_ipv6_there_is_a_free_port_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("socket.has_dualstack_ipv6", lambda: False)
    assert RendezvousStoreInfo.build(0, ImpatientStore(KeyError()), "h").master_port > 0


def test_a_store_is_what_gets_and_sets():
    assert isinstance(ImpatientStore(KeyError()), Store)
    assert not isinstance(object(), Store)


def test_info_cannot_be_changed():
    info = RendezvousInfo("store", 1, 2, None)
    for name in ("store", "rank", "world_size", "bootstrap_store_info"):
        with pytest.raises(AttributeError):
            setattr(info, name, 3)
    with pytest.raises(AttributeError):
        info.other = 1
    assert repr(info) == "RendezvousInfo(rank=1, world_size=2, bootstrap_store_info=None)"


def test_parameters_show_no_secret():
    params = RendezvousParameters("redis", "redis://u:hunter2@h:1", "job-7", 1, 2, ssl_password="hunter2", db=3)
    assert "hunter2" not in repr(params)
    assert "job-7" in repr(params)
    assert "1:2" in repr(params)
    assert "db=3" in repr(params)


@pytest.mark.parametrize(
    ("min_nodes", "max_nodes", "why"),
    [(0, 1, "minimum number of nodes is 0"), (3, 2, r"maximum number of nodes \(2\) is below the minimum \(3\)")],
)
def test_node_numbers_that_cannot_be(min_nodes: int, max_nodes: int, why: str):
    with pytest.raises(ValueError, match=why):
        RendezvousParameters("redis", "h", "job-7", min_nodes, max_nodes)


def test_timeouts_and_settings_are_values():
    assert RendezvousTimeout() == RendezvousTimeout(join=timedelta(seconds=600))
    assert RendezvousTimeout() != RendezvousTimeout(join=timedelta(seconds=1))
    assert RendezvousTimeout() != 600
    assert repr(RendezvousTimeout()) == "RendezvousTimeout(join=600 s, last_call=30 s, close=30 s, heartbeat=5 s)"
    one = RendezvousSettings("job-7", 1, 2, RendezvousTimeout(), timedelta(seconds=5), 3)
    assert one == RendezvousSettings("job-7", 1, 2, RendezvousTimeout(), timedelta(seconds=5), 3)
    assert len({one, RendezvousSettings("job-7", 1, 2, RendezvousTimeout(), timedelta(seconds=5), 3)}) == 1


def test_no_name_is_looked_up_while_importing():
    program = (
        "import socket, sys\n"
        "def fail(*a, **k): sys.exit('a name server was asked')\n"
        "for n in ('getaddrinfo', 'gethostbyname', 'gethostbyaddr', 'getfqdn', 'gethostname', 'getnameinfo'):\n"
        "    setattr(socket, n, fail)\n"
        "import rdzv_core, rdzv_core.api, rdzv_core.registry, rdzv_core.hooks\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
