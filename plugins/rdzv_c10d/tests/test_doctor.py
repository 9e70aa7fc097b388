"""What is found out about an endpoint before a job is: names, who listens, and how soon DNS says a name."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from rdzv_c10d import doctor
from rdzv_c10d.detection import Machine
from rdzv_c10d.doctor import examine, main
from rdzv_redis import RedisServer

from .stores import open_client, open_server

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(180)]


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
    """Names by address, found after so many seconds; none is slow, however slow the machine is."""
    names: dict[str, tuple[str, float]] = {"127.0.0.1": ("localhost", 0.0)}
    test_is_over = threading.Event()

    def getnameinfo(address: tuple[str, int], _flags: int) -> tuple[str, str]:
        if address[0] not in names:
            raise socket.gaierror(-2, "Name or service not known")
        name, seconds = names[address[0]]
        test_is_over.wait(seconds)
        return name, "0"

    monkeypatch.setattr(socket, "getnameinfo", getnameinfo)
    monkeypatch.setattr(doctor, "SLOW", 30.0)
    yield names
    test_is_over.set()


@pytest.fixture(scope="module")
def store():
    server = open_server()
    yield f"127.0.0.1:{server.port}"
    del server


@contextmanager
def silent() -> Iterator[str]:
    """Takes connections, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def chatty() -> Iterator[str]:
    """Answers everybody in HTTP, at once."""
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def chat() -> None:
            with suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])
                    with suppress(ConnectionError):
                        kept[-1].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        chatting = threading.Thread(target=chat, daemon=True)
        chatting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        chatting.join(10)
    for connection in kept:
        connection.close()


@contextmanager
def redis() -> Iterator[str]:
    """A store of another kind."""
    with RedisServer() as server:
        yield server.endpoint


def test_all_is_well_where_somebody_listens_and_names_are_quick(store, reverse):
    findings = examine(store, patience=60.0)
    assert all(finding.well for finding in findings), findings
    assert [finding.what for finding in findings] == [
        "the address of 127.0.0.1",
        f"a store at {store}",
        "the name of 127.0.0.1",
    ]
    assert findings[1].seen == "somebody listens, and answers as a TCPStore"
    assert re.fullmatch(r"localhost \(\d+\.\d\d s\)", findings[2].seen)


def test_nothing_is_left_in_a_store_that_was_looked_at(store, reverse):
    client = open_client(int(store.rpartition(":")[2]))
    before = client.num_keys()
    examine(store)
    assert client.num_keys() == before


@pytest.mark.parametrize("other", [silent, redis])
def test_a_program_that_never_answers_is_no_store(other, reverse):
    with other() as endpoint:
        began = time.monotonic()
        found = examine(endpoint, patience=4.0)[1]
        assert time.monotonic() - began < doctor.IMPORT + 20, "a client of torch's would wait for ever"
    assert not found.well
    assert found.seen == "somebody listens there, but it does not answer as a TCPStore within 4 s"
    assert found.advice == ("Another program has the port: choose another port; or the store's host hangs: look at it.")


PATIENTLY = """
import sys
from functools import partial
from rdzv_c10d import doctor
doctor.examine = partial(doctor.examine, patience=60.0)  # however slow the machine is
sys.exit(doctor.main(sys.argv[1:]))
"""


def test_a_program_that_answers_otherwise_is_no_store():
    """In a process of its own, where no thread of another test can say anything."""

    def says(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-c", PATIENTLY, *arguments]
        return subprocess.run(program, capture_output=True, text=True, timeout=170, check=False)

    with chatty() as endpoint:
        said, told = says(endpoint), says(endpoint, "--json")
    (_, found, _) = json.loads(told.stdout)
    assert (said.returncode, told.returncode) == (1, 1)
    assert said.stdout.splitlines()[1:3] == [
        f"FAIL a store at {endpoint}: somebody listens there, but it does not answer as a TCPStore",
        "     Another program has the port: choose another port.",
    ]
    assert said.stderr == "", "torch's own words are no help"
    assert (found["well"], found["advice"]) == (False, "Another program has the port: choose another port.")


@pytest.mark.parametrize(
    ("client", "why"),
    [
        ("import no_such_torch", "ModuleNotFoundError: No module named 'no_such_torch'"),
        ("import time; time.sleep(600)", "it was not imported in 0.2 s"),
    ],
)
def test_a_store_cannot_be_told_without_torch(client, why, store, reverse, monkeypatch):
    monkeypatch.setattr(doctor, "_CLIENT", client)
    if "sleep" in client:
        monkeypatch.setattr(doctor, "IMPORT", 0.2)
    found = examine(store, patience=3.0)[1]
    assert not found.well
    assert found.seen == f"somebody listens there; whether it is a TCPStore cannot be told without torch ({why})"
    assert found.advice.startswith("Install a torch that ")


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
    assert re.fullmatch(r"Name or service not known after \d+\.\d s", found.seen)
    assert found.advice == "Correct the name, or give the address itself."


def test_a_name_server_that_is_slow_to_say_a_name(store, reverse, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW", 0.05)
    reverse["127.0.0.1"] = ("localhost", 0.2)
    found = examine(store)[-1]
    assert not found.well
    assert re.match(r"localhost after \d+\.\d s; torch asks", found.seen)
    assert "'::ffff:127.0.0.1 NAME'" in found.advice
    assert 'RES_OPTIONS="timeout:1 attempts:1"' in found.advice


def test_a_name_server_that_does_not_answer(store, reverse, monkeypatch):
    monkeypatch.setattr(doctor, "SLOW", 0.05)
    reverse["127.0.0.1"] = ("localhost", 600.0)
    began = time.monotonic()
    found = examine(store, patience=2.0)[-1]
    assert time.monotonic() - began < doctor.IMPORT + 20
    assert not found.well
    assert re.match(r"no answer after \d+\.\d s; torch asks for it at every connect", found.seen)


def test_as_a_program(store, reverse, capsys, monkeypatch):
    monkeypatch.setattr(doctor, "examine", partial(examine, patience=60.0))
    assert main([store]) == 0
    assert (
        capsys.readouterr().out.splitlines()[1]
        == f"ok   a store at {store}: somebody listens, and answers as a TCPStore"
    )
    assert main([store, "--json"]) == 0
    assert [finding["well"] for finding in json.loads(capsys.readouterr().out)] == [True, True, True]
    assert main(["127.0.0.1:65536"]) == 2
    assert "65536" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert main([f"192.0.2.1:{port}", "--json"]) == 1, "an address for documentation, that nobody has"
