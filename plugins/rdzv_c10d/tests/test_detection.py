"""Who hosts: what users reported as wrong, with the names and addresses of their reports."""

from __future__ import annotations

import socket

import pytest
from rdzv_c10d.detection import Machine, judge


class Pretended(Machine):
    """A machine with these names and addresses."""

    def __init__(self, name: str, *, names: dict[str, list[str]] | None = None, interfaces: tuple[str, ...] = ()):
        self._name = name
        self._names = names or {}
        self._interfaces = interfaces
        self.looked_up: list[str] = []

    def name(self) -> str:
        return self._name

    def resolve(self, host: str) -> tuple[str, ...]:
        self.looked_up.append(host)
        if host not in self._names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return tuple(self._names[host])

    def owns(self, address: str) -> bool:
        return address in self._interfaces


WORKER = {"w-0-0.w": ["192.0.2.46"]}  # by the search domain default.svc.cluster.local


@pytest.mark.parametrize(("interface", "mine"), [("192.0.2.46", True), ("192.0.2.47", False)])
def test_a_short_name_with_a_search_domain_is_judged_by_its_address(interface, mine):
    assert judge("w-0-0.w", Pretended("w-0-0", names=WORKER, interfaces=(interface,))).mine is mine


@pytest.mark.parametrize("host", ["node0i", "node0i.cluster", "198.51.100.10"])
def test_a_second_interface_is_this_machine_too(host):
    names = {"node0i": ["198.51.100.10"], "node0i.cluster": ["198.51.100.10"]}
    machine = Pretended("node0", names=names, interfaces=("192.0.2.10", "198.51.100.10"))
    assert judge(host, machine).mine is True


def test_a_service_address_is_nobodys():
    machine = Pretended("pod-0", names={"train-svc": ["203.0.113.5"]}, interfaces=("192.0.2.10",))
    verdict = judge("train-svc", machine)
    assert verdict.mine is False
    assert "203.0.113.5" in verdict.reason
    assert "pod-0" in verdict.reason


def test_a_literal_address_is_never_looked_up():
    machine = Pretended("fake-host", names={"fake-host": ["192.0.2.99"]}, interfaces=("192.0.2.99",))
    assert judge("192.0.2.99", machine).mine is True
    assert judge("192.0.2.98", machine).mine is False
    assert machine.looked_up == []


def test_ipv6_addresses_are_compared_as_addresses():
    machine = Pretended("n", interfaces=("2001:db8::1",))
    assert judge("2001:0db8:0:0::1", machine).mine is True
    assert judge("2001:db8::2", machine).mine is False


def test_its_own_name_is_this_machine_though_nobody_knows_it():
    machine = Pretended("Node7")
    assert judge("node7", machine).mine is True
    assert judge("node7.", machine).mine is True
    assert machine.looked_up == []


def test_a_name_that_is_not_known_yet_is_undecided():
    verdict = judge("late.example", Pretended("n"))
    assert verdict.mine is None
    assert "cannot be resolved" in verdict.reason


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "localhost."])
def test_localhost_needs_no_name_server(host):
    machine = Pretended("n")
    assert judge(host, machine).mine is True
    assert machine.looked_up == []


def test_the_real_machine_has_its_loopback_and_no_documentation_address():
    machine = Machine()
    assert machine.owns("127.0.0.1")
    assert not machine.owns("203.0.113.77")
    assert not machine.owns("no address")


def test_where_everything_can_be_bound_names_decide(monkeypatch):
    """net.ipv4.ip_nonlocal_bind: a bind then proves nothing."""
    monkeypatch.setattr("rdzv_c10d.detection._can_bind", lambda address: True)
    monkeypatch.setattr(Machine, "resolve", lambda self, host: ("192.0.2.10",))
    machine = Machine()
    assert machine.owns("192.0.2.10")
    assert machine.owns("127.0.0.1")
    assert not machine.owns("192.0.2.11")
