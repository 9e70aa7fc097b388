"""What is found out about an endpoint before a job is: names, who listens, and how soon DNS says a name."""

from __future__ import annotations

import json
import socket
import time

import pytest
from rdzv_c10d import doctor
from rdzv_c10d.detection import Machine
from rdzv_c10d.doctor import examine, main


class Elsewhere(Machine):
    """A machine that has none of the addresses in question, and a name server of the test's."""

    def __init__(self, **names: tuple[str, ...]) -> None:
        self.names = names

    def name(self) -> str:
        return "elsewhere"

    def resolve(self, host: str) -> tuple[str, ...]:
        if host not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        return self.names[host]

    def owns(self, address: str) -> bool:
        return False


@pytest.fixture
def reverse(monkeypatch: pytest.MonkeyPatch):
    """Names by address, found after so many seconds."""
    names: dict[str, tuple[str, float]] = {"127.0.0.1": ("localhost", 0.0)}

    def getnameinfo(address: tuple[str, int], _flags: int) -> tuple[str, str]:
        if address[0] not in names:
            raise socket.gaierror(-2, "Name or service not known")
        name, seconds = names[address[0]]
        time.sleep(seconds)
        return name, "0"

    monkeypatch.setattr(socket, "getnameinfo", getnameinfo)
    return names


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_all_is_well_where_somebody_listens_and_names_are_quick(listener, reverse):
    findings = examine(listener)
    assert all(finding.well for finding in findings), findings
    assert [finding.what for finding in findings] == [
        "the address of 127.0.0.1",
        f"a store at {listener}",
        "the name of 127.0.0.1",
    ]
    assert findings[1].seen == "somebody listens"
    assert findings[2].seen.startswith("localhost (0.")


def test_nobody_listens_on_this_machine_yet(reverse):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = examine(f"127.0.0.1:{port}")[1]
    assert found.well
    assert found.seen.endswith("127.0.0.1 is an address of this machine: this node would host it")


def test_nobody_listens_elsewhere(reverse):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    machine = Elsewhere(localhost=("127.0.0.1",), **{"127.0.0.1": ("127.0.0.1",)})
    found = examine(f"127.0.0.1:{port}", machine=machine)[1]
    assert not found.well
    assert "nobody listens (Connection refused); 127.0.0.1 is on no interface of this machine" in found.seen
    assert "is_host=true" in found.advice


def test_a_name_that_is_unknown(reverse):
    (found,) = examine("zeta.example", machine=Elsewhere())
    assert (found.well, found.what) == (False, "the address of zeta.example")
    assert found.seen.startswith("Name or service not known after 0.")
    assert found.advice == "Correct the name, or give the address itself."


def test_a_name_server_that_is_slow_to_say_a_name(listener, reverse, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW", 0.05)
    reverse["127.0.0.1"] = ("localhost", 0.2)
    found = examine(listener)[-1]
    assert not found.well
    assert found.seen.startswith("localhost after 0.")
    assert "'::ffff:127.0.0.1 NAME'" in found.advice
    assert 'RES_OPTIONS="timeout:1 attempts:1"' in found.advice


def test_a_name_server_that_does_not_answer(listener, reverse, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW", 0.05)
    reverse["127.0.0.1"] = ("localhost", 30.0)
    began = time.monotonic()
    found = examine(listener, patience=0.3)[-1]
    assert time.monotonic() - began < 10
    assert not found.well
    assert found.seen.startswith("no answer after 0.3 s; torch asks for it at every connect")


def test_as_a_program(listener, reverse, capsys):
    assert main([listener]) == 0
    assert capsys.readouterr().out.splitlines()[1] == f"ok   a store at {listener}: somebody listens"
    assert main([listener, "--json"]) == 0
    assert [finding["well"] for finding in json.loads(capsys.readouterr().out)] == [True, True, True]
    assert main(["127.0.0.1:65536"]) == 2
    assert "65536" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main([f"192.0.2.1:{port}", "--json"]) == 1, "an address for documentation, that nobody has"
