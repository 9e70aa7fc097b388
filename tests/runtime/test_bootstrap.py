"""Rank 0's store: a new one for each round, at an address that the others can reach."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from rdzv_core import tcp_store
from rdzv_core.api import RendezvousInfo
from rdzv_core.endpoint import Endpoint, parse_endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.events import RoundGivenUp
from rdzv_core.machine.follow import Seat
from rdzv_core.machine.register import Bootstrap
from rdzv_core.runtime.bootstrap import TCPBootstrap, shares_agent_store
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.runtime.localhost import check_own_address, own_address
from rdzv_core.tcp_store import listen_everywhere, serve_tcp_store
from rdzv_core.testing.memory import MemoryBackend
from rdzv_core.testing.suite import Waiting, together
from tests.runtime.party import PATIENT, RUN, SOON, Guest, Party

HERE = "127.0.0.1"


def seat(number: int, rank: int = 0, round_id: str = "") -> Seat:
    return Seat(life="life", round=number, round_id=round_id or f"id-{number}", rank=rank, world=2)


def tcp(run_id: str = RUN, local_addr: str = HERE, store: Any = None, ports: range | None = None) -> TCPBootstrap:
    return TCPBootstrap(run_id=run_id, local_addr=local_addr, timeout=5.0, store=store, ports=ports)


@pytest.fixture
def rank0() -> Iterator[TCPBootstrap]:
    stores = tcp()
    yield stores
    stores.close()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HERE, port)) == 0


# --- TCPStores ------------------------------------------------------------------------------------------------


@pytest.mark.needs_torch
def test_members_of_a_round_share_what_they_write(rank0: TCPBootstrap):
    address = rank0.host(seat(1))
    mine, theirs = rank0.connect(seat(1), address), tcp().connect(seat(1, rank=1), address)
    theirs.set("key", "value")
    assert mine.get("key") == b"value"
    assert mine.timeout == timedelta(seconds=5)


@pytest.mark.needs_torch
def test_a_store_that_is_lost_before_workers_were_told_costs_a_round_and_no_more(party: Party, monkeypatch):
    """With stores of their own for workers, rank 0 tells where by the round's store; it may die before it does."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

    class Dead:
        """A store whose host has gone."""

        def get(self, key: str) -> bytes:
            raise ConnectionResetError("Connection reset by peer")

        def set(self, key: str, value: bytes) -> None:
            raise ConnectionResetError("Connection reset by peer")

    class DiesInRound1(TCPBootstrap):
        def connect(self, seat: Seat, address: Bootstrap) -> Any:
            return Dead() if seat.round == 1 else super().connect(seat, address)

    guests = [party.guest(2, 2, HERE, stores=DiesInRound1(run_id=RUN, local_addr=HERE, timeout=5.0)) for _ in range(2)]
    rounds: dict[Guest, int] = {}

    def met() -> bool:
        return len(rounds) == 2 and len(set(rounds.values())) == 1

    def meet(guest: Guest) -> RendezvousInfo:
        """Join again when it is told to, as a launcher does: one may be seated anew before the other has given up."""
        while True:
            info = guest.handler.next_rendezvous()
            rounds[guest] = guest.handler._session.seat.round
            party.until("both are in a round", lambda: met() or guest.handler.num_nodes_waiting() > 0)
            if met():
                return info

    assert {info.world_size for info in together([partial(meet, guest) for guest in guests])} == {2}
    reasons = [event.reason for guest in guests for event in guest.events if isinstance(event, RoundGivenUp)]
    assert any("the store of round 1 could not be reached: Connection reset by peer" in reason for reason in reasons)
    assert party.register.round >= 2


@pytest.mark.needs_torch
def test_each_round_has_a_new_server_also_when_rank_0_stays(rank0: TCPBootstrap):
    """torch's c10d keeps it: restarted workers then meet the keys of those before them, and hang."""
    ports = []
    for number in (1, 2):
        address = rank0.host(seat(number))
        store = rank0.connect(seat(number), address)
        assert not store.check(["key"])
        store.set("key", "old")
        ports.append(address.port)
    assert ports[0] != ports[1]
    assert all(accepts(port) for port in ports), "workers of the last round may still be talking to it"


@pytest.mark.needs_torch
def test_a_server_lives_until_the_round_after_its_own_is_complete(rank0: TCPBootstrap):
    ports = []
    for number in (1, 2, 3):
        address = rank0.host(seat(number))
        rank0.connect(seat(number), address)
        ports.append(address.port)
    gc.collect()
    assert [accepts(port) for port in ports] == [False, True, True]
    rank0.close()
    gc.collect()
    assert not any(accepts(port) for port in ports)


@pytest.mark.needs_torch
def test_a_late_connection_of_a_round_that_was_given_up_takes_no_newer_store_away(rank0: TCPBootstrap):
    other = tcp()
    slow = other.host(seat(1))
    ours = rank0.host(seat(2))
    rank0.connect(seat(1, rank=1), slow)
    gc.collect()
    assert accepts(ours.port)
    rank0.connect(seat(2), ours)
    rank0.connect(seat(1, rank=1), slow)
    later = rank0.host(seat(3))
    gc.collect()
    assert accepts(ours.port), "that of the round before may still be in use"
    assert accepts(later.port)
    other.close()


@pytest.mark.needs_torch
def test_the_same_store_is_another_one_for_each_run_and_round():
    from torch.distributed import HashStore

    shared = HashStore()
    first = tcp(store=shared).connect(seat(1), Bootstrap(addr=HERE, port=1))
    first.set("key", "value")
    again = Seat(life="life", round=1, round_id="another", rank=0, world=2)
    for stores, place in (
        (tcp(store=shared), seat(2)),
        (tcp("job-8", store=shared), seat(1)),
        (tcp(store=shared), again),
    ):
        assert not stores.connect(place, Bootstrap(addr=HERE, port=1)).check(["key"])
    assert tcp(store=shared).connect(seat(1, rank=1), Bootstrap(addr=HERE, port=1)).check(["key"])


@pytest.mark.needs_torch
def test_a_store_of_the_callers_is_used_in_place_of_rank_0s(party: Party):
    from torch.distributed import HashStore

    shared = HashStore()
    (info,) = party.meet(party.guest(1, 1, HERE, stores=tcp(store=shared)))
    info.store.set("key", "value")
    assert shared.num_keys() == 1


@pytest.mark.needs_torch
def test_handlers_meet_over_tcp_stores(party: Party):
    guests = [party.guest(2, 2, HERE, stores=tcp()) for _ in range(2)]
    ports = set()
    for _ in range(2):
        infos = party.meet(*guests)
        assert not any(info.store.check(["key"]) for info in infos)
        infos[0].store.set("key", "value")
        assert infos[1].store.get("key") == b"value"
        ports.add(infos[0].bootstrap_store_info.master_port)
        assert infos[0].bootstrap_store_info.master_addr == HERE
    assert len(ports) == 2


@pytest.mark.needs_torch
def test_workers_may_be_told_to_open_a_store_of_their_own(party: Party, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    guests = [party.guest(2, 2, HERE, stores=tcp()) for _ in range(2)]
    infos = party.meet(*guests)
    told = {(i.bootstrap_store_info.master_addr, i.bootstrap_store_info.master_port) for i in infos}
    assert len(told) == 1, "all learn the same"
    ((_, port),) = told
    assert port != party.register.bootstrap.port
    assert not guests[0].handler.use_agent_store


# --- ports that a firewall lets through -----------------------------------------------------------------------


@pytest.fixture
def free_ports() -> range:
    """Three neighbours that are free now."""
    for first in range(20011 + 3 * (os.getpid() % 3000), 32000, 3):
        ports = range(first, first + 3)
        with suppress(OSError), ExitStack() as held:
            for port in ports:
                held.enter_context(listen_everywhere(port))
            return ports
    raise AssertionError("no three neighbouring ports are free")


def test_where_ipv6_is_switched_off_ipv4_is_listened_on_alone(monkeypatch: pytest.MonkeyPatch):
    def without_ipv6(address: Any, *, family: int = socket.AF_INET, **more: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return real(address, family=family, **more)

    real = socket.create_server
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: True)
    monkeypatch.setattr(socket, "create_server", without_ipv6)
    with listen_everywhere(0) as listener:
        assert listener.family == socket.AF_INET


@pytest.mark.needs_torch
def test_a_socket_that_libuv_does_not_take_is_not_left_open(monkeypatch: pytest.MonkeyPatch):
    """torch 2.6 has it so: libuv by default, and a refusal that forgets the socket. The port would be lost for good."""
    import torch.distributed as dist

    def as_in_torch_26(*args: Any, **options: Any) -> Any:
        asked.append(options.get("use_libuv"))
        if options.get("use_libuv") is not False:
            raise NotImplementedError("The libuv TCPStore backend does not support initialization with an listen fd.")
        return real(*args, **options)

    real, asked = dist.TCPStore, []
    monkeypatch.setattr(dist, "TCPStore", as_in_torch_26)
    monkeypatch.setattr(tcp_store, "_libuv_refused", threading.Event())
    ports = []
    for _ in range(2):
        listener = listen_everywhere(0)
        ports.append(listener.getsockname()[1])
        server = serve_tcp_store(HERE, listener, timeout=timedelta(seconds=5))
        server.set("key", "value")
        del server
    gc.collect()
    for port in ports:
        listen_everywhere(port).close()
    assert asked == [None, False, False], "it is not asked again what it has refused"


@pytest.mark.needs_torch
def test_stores_open_at_the_ports_that_were_allowed(free_ports: range):
    stores = tcp(ports=free_ports[:2])
    found = []
    for number in (1, 2, 3, 4):
        given_up = stores.host(seat(number, round_id=f"given-up-{number}"))
        assert given_up.port in free_ports
        address = stores.host(seat(number))
        found.append(address.port)
        mine, theirs = stores.connect(seat(number), address), tcp().connect(seat(number, rank=1), address)
        theirs.set("key", "value")
        assert mine.get("key") == b"value"
        del mine, theirs
        gc.collect()
    assert found == [*free_ports[:2], *free_ports[:2]], "that of the round before the last is free again"
    stores.close()


@pytest.mark.needs_torch
def test_when_all_allowed_ports_are_taken_the_error_says_how_many_it_takes(free_ports: range, party: Party):
    with ExitStack() as others:
        for port in free_ports[:2]:
            others.enter_context(listen_everywhere(port))
        guest = party.guest(1, 1, HERE, stores=tcp(ports=free_ports[:2]))
        with pytest.raises(RendezvousConnectionError) as told:
            guest.joins().result(within=SOON)
    text = told.value.message
    assert f"no port of bootstrap_ports ({free_ports[0]}-{free_ports[1]}) can be had on this machine" in text
    assert "Address already in use" in text
    assert "allow at least two for each agent of a machine" in text
    assert told.value.permanent


@pytest.mark.needs_torch
def test_the_port_for_workers_is_an_allowed_one(free_ports: range, party: Party, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    (info,) = party.meet(party.guest(1, 1, HERE, stores=tcp(ports=free_ports)))
    assert info.bootstrap_store_info.master_port in free_ports
    assert info.bootstrap_store_info.master_port != party.register.bootstrap.port


@pytest.mark.needs_torch
def test_the_option_reaches_the_stores(free_ports: range, party: Party):
    handler = DynamicRendezvousHandler.from_backend(
        RUN,
        None,
        MemoryBackend(party.store, RUN),
        1,
        1,
        HERE,
        options={**PATIENT, "bootstrap_ports": f"{free_ports[0]}-{free_ports[-1]}"},
    )
    assert handler.next_rendezvous().bootstrap_store_info.master_port in free_ports
    handler.shutdown()


@pytest.mark.parametrize(("said", "shares"), [(None, True), ("0", True), ("", True), ("true", True), ("1", False)])
def test_use_agent_store_follows_torchs_switch(party: Party, monkeypatch: pytest.MonkeyPatch, said, shares):
    monkeypatch.delenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", raising=False)
    if said is not None:
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", said)
    assert shares_agent_store() is shares
    assert party.guest(1, 1).handler.use_agent_store is shares


def test_without_torch_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.distributed", None)
    with pytest.raises(RendezvousConnectionError, match=r'pip install "rdzv-core\[torch\]"') as told:
        tcp().host(seat(1))
    assert told.value.permanent


# --- what this machine is called ------------------------------------------------------------------------------


def test_a_local_addr_that_is_not_ours_is_refused_in_one_sentence(party: Party):
    """torch's store would take seconds to say so, in thirty lines."""
    guest = party.guest(1, 1, "192.0.2.1", stores=tcp(local_addr="192.0.2.1"))
    with pytest.raises(RendezvousConnectionError) as told:
        guest.joins().result(within=SOON)
    assert told.value.message.startswith("This machine cannot listen at its own address '192.0.2.1' (")
    assert "Give --local-addr an address of one of this machine's interfaces." in told.value.message
    assert told.value.permanent


@pytest.mark.parametrize("address", [HERE, "127.0.0.2", "localhost"])
def test_our_own_addresses_are_ours(address: str):
    check_own_address(address)


@pytest.mark.parametrize("address", ["192.0.2.1", "no such name.invalid", ""])
def test_other_addresses_are_not(address: str, monkeypatch: pytest.MonkeyPatch):
    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:
        if host == "192.0.2.1":
            return real(host, *args, **kwargs)
        raise socket.gaierror(-2, "Name or service not known")

    real = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ValueError, match=f"cannot listen at its own address '{address}'"):
        check_own_address(address)


def at(*hosts: str) -> Endpoint:
    return parse_endpoint(",".join(hosts), default_port=6379, allow_list=True)


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names and the addresses that they have; of others nothing is known. All ways but those to loopback are shut."""

    def resolve(host: str, *args: Any, **kwargs: Any) -> Any:
        if host not in known:
            raise socket.gaierror(-2, "Name or service not known")
        return real(known[host], *args, **kwargs)

    real, known = socket.getaddrinfo, {HERE: HERE, "127.0.0.9": "127.0.0.9", "localhost": HERE}
    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


@pytest.mark.parametrize("shared", [True, False])
def test_the_own_address_is_the_one_that_leads_to_the_store(dns, shared: bool):
    assert own_address(at(HERE), shared=shared) == HERE
    assert own_address(at("127.0.0.9:0"), shared=shared) == HERE
    assert own_address(at("localhost"), shared=shared) == HERE


@pytest.mark.parametrize("shared", [True, False])
def test_the_own_address_is_loopback_if_the_store_is_no_place_and_nothing_leads_abroad(dns, shared: bool):
    assert own_address(None, shared=shared) == HERE
    assert own_address(parse_endpoint("unix:///run/x", default_port=0, schemes=("unix",)), shared=shared) == HERE


def test_the_second_host_is_asked_if_the_first_is_not_known(dns):
    dns["alpha.example"] = HERE
    assert own_address(at("zeta.example", "alpha.example"), shared=False) == HERE


def test_a_name_that_is_not_known_yet_is_no_reason_to_be_called_loopback(dns):
    with pytest.raises(RendezvousConnectionError) as told:
        own_address(at("zeta.example", "alpha.example"), shared=True)
    assert "no way leads from here to the store at 'zeta.example:6379,alpha.example:6379'" in told.value.message
    assert "Name or service not known" in told.value.message
    assert "give --local-addr" in told.value.message
    assert not told.value.permanent, "DNS may know it in a moment"


def test_a_name_that_means_this_machine_alone_is_no_address_for_others(dns):
    """As 127.0.1.1 in Debian's /etc/hosts: the others would look for rank 0 at home."""
    dns["node-0"] = "127.0.1.1"
    with pytest.raises(RendezvousConnectionError) as told:
        own_address(at("node-0:29400"), shared=True)
    assert "'node-0', where the store is, is this machine itself (127.0.0.1)" in told.value.message
    assert "Give --local-addr an address of one of its interfaces" in told.value.message
    assert told.value.permanent
    assert own_address(at("node-0:29400"), shared=False) == HERE
    dns["192.0.2.1"] = "127.0.0.5"  # stands in for a default route
    assert own_address(at("node-0:29400"), shared=True) == HERE


@pytest.mark.needs_torch
def test_a_node_waits_for_the_name_of_its_store(party: Party, dns):
    endpoint, options = at("zeta.example"), {**PATIENT, "store_outage_timeout": 600}
    backend = MemoryBackend(party.store, RUN)
    handler = DynamicRendezvousHandler.from_backend(RUN, None, backend, 1, 1, endpoint=endpoint, options=options)
    try:
        joining = Waiting(handler.next_rendezvous)
        party.until("it has asked", lambda: any("no way leads from here" in line for line in handler.story))
        assert not party.records
        dns["zeta.example"] = HERE
        assert joining.result(within=SOON).bootstrap_store_info.master_addr == HERE
        assert [record.addr for record in party.records.values()] == [HERE]
    finally:
        handler.leave("the test is over")


def test_no_name_of_this_machine_is_looked_up(party: Party, monkeypatch: pytest.MonkeyPatch):
    """A fully qualified name may take seconds to find, and may not be known to the others."""

    def slow(*args: Any) -> str:
        raise AssertionError("asked DNS for a name")

    for name in ("getfqdn", "gethostname", "gethostbyname", "gethostbyaddr", "getnameinfo"):
        monkeypatch.setattr(socket, name, slow)
    guest = party.guest(1, 1, options=PATIENT)
    assert party.meet(guest)[0].world_size == 1
