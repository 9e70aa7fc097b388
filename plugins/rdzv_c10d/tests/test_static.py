"""The static rendezvous: ranks are given, rank 0 hosts, and what is wrong is said in a sentence."""

from __future__ import annotations

import socket
import time

import pytest
from rdzv_c10d import StaticTCPRendezvous, create_static_handler

from rdzv_core import RendezvousParameters, get_rendezvous_handler
from rdzv_core.errors import RendezvousConnectionError, RendezvousTimeoutError
from rdzv_core.servers import free_port
from rdzv_core.testing.suite import together

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(120)]


def parameters(endpoint: str, nodes: int = 2, **options) -> RendezvousParameters:
    return RendezvousParameters("static", endpoint, "run", nodes, nodes, **options)


@pytest.fixture
def here():
    return f"127.0.0.1:{free_port()}"


def test_the_registry_makes_it(here):
    handler = get_rendezvous_handler(parameters(here, rank=1))
    assert isinstance(handler, StaticTCPRendezvous)
    assert handler.get_backend() == "static"
    assert (handler.rank, handler.world_size, handler.timeout.total_seconds()) == (1, 2, 600)


def test_all_meet_and_share_the_store(here):
    handlers = [create_static_handler(parameters(here, 3, rank=rank, timeout="40")) for rank in range(3)]
    infos = together([handler.next_rendezvous for handler in handlers], within=50)
    assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
    infos[2].store.set("key", b"value")
    assert infos[0].store.get("key") == b"value"
    addresses = {(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}
    assert addresses == {("127.0.0.1", int(here.rpartition(":")[2]))}
    assert handlers[0].use_agent_store


def test_nothing_changes_in_it(here):
    handler = create_static_handler(parameters(here, nodes=1, rank=0))
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    first.store.set("key", b"value")
    assert second.store.get("key") == b"value"
    assert handler.num_nodes_waiting() == 0
    handler.set_closed()
    assert not handler.is_closed()
    assert handler.shutdown()
    assert handler.get_run_id() == "run"


@pytest.mark.parametrize(
    ("endpoint", "options", "said"),
    [
        ("127.0.0.1:1", {}, "--node-rank"),
        ("", {"rank": 0}, "endpoint is empty"),
        ("127.0.0.1", {"rank": 0}, "has no port"),
        ("127.0.0.1:0", {"rank": 0}, "has no port"),
        ("127.0.0.1:1", {"rank": 2}, "not one of 0 to 1"),
        ("127.0.0.1:1", {"rank": -1}, "rank"),
        ("127.0.0.1:1", {"rank": 0, "timeout": "soon"}, "timeout"),
        ("127.0.0.1:1", {"rank": 0, "last_call_timeout": 3}, "no option 'last_call_timeout'"),
    ],
)
def test_what_is_wrong_is_said(endpoint, options, said):
    with pytest.raises(ValueError, match=said):
        create_static_handler(parameters(endpoint, **options))


def test_the_rank_is_taken_from_torchruns_environment(here, monkeypatch):
    monkeypatch.setenv("PET_NODE_RANK", "1")
    assert create_static_handler(parameters(here)).rank == 1


def test_who_is_missing_is_no_riddle_for_rank_0(here):
    handler = create_static_handler(parameters(here, rank=0, timeout=1))
    began = time.monotonic()
    with pytest.raises(RendezvousTimeoutError, match="not all of the 2 nodes came within 1 s"):
        handler.next_rendezvous()
    assert time.monotonic() - began < 30


def test_who_cannot_reach_rank_0_is_told_where_it_was_sought(here):
    handler = create_static_handler(parameters(here, rank=1, timeout=1))
    with pytest.raises(RendezvousConnectionError, match=f"did not reach rank 0's store at {here}"):
        handler.next_rendezvous()


def test_a_port_that_is_taken_is_told(here):
    with (
        socket.create_server(("127.0.0.1", int(here.rpartition(":")[2]))),
        pytest.raises(RendezvousConnectionError, match="cannot host the store"),
    ):
        create_static_handler(parameters(here, nodes=1, rank=0, timeout=2)).next_rendezvous()
