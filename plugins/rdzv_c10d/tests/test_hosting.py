"""The store at an endpoint: who hosts it, what is said when nobody does, and how it moves on."""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from rdzv_c10d import C10dServer, create_backend, create_handler, hosting, server
from rdzv_c10d.coordination import C10dCoordinationBackend
from rdzv_c10d.detection import Machine
from rdzv_c10d.hosting import EndpointSource, connected
from rdzv_c10d.target import Target

from rdzv_core import RendezvousParameters
from rdzv_core.endpoint import parse_endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.servers import free_port
from rdzv_core.testing.suite import eventually, together

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(120)]


PATIENT = 20.0
"""Seconds that a call may take where no call is to end for lack of time."""


class Pretended(Machine):
    """A machine that owns these addresses only, and knows these names after so many questions."""

    def __init__(self, *owned: str, late: int = 0) -> None:
        self._owned = owned
        self._late = late

    def name(self) -> str:
        return "pretended"

    def resolve(self, host: str) -> tuple[str, ...]:
        self._late -= 1
        if self._late >= 0:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return super().resolve("localhost")

    def owns(self, address: str) -> bool:
        return address in self._owned


@pytest.fixture
def open_source():
    with ExitStack() as stack:

        def open_one(endpoint: str, machine: Machine | None = None, **settings) -> EndpointSource:
            target = Target(endpoint=parse_endpoint(endpoint, default_port=0, allow_list=True), **settings)
            return stack.enter_context(closing(EndpointSource(target, "run", machine=machine)))

        yield open_one


@pytest.fixture
def here():
    return f"127.0.0.1:{free_port()}"


def refusal(source: EndpointSource) -> RendezvousConnectionError:
    with pytest.raises(RendezvousConnectionError) as failure:
        source.open()
    return failure.value


def told(caplog) -> list[str]:
    """What this test's own thread had logged; threads of other tests may still be about."""
    records = [record for record in caplog.records if record.threadName == threading.current_thread().name]
    return [record.getMessage() for record in records if record.name == hosting.logger.name]


# --- one address


def test_of_several_processes_on_the_host_one_hosts(open_source, here):
    sources = [open_source(here) for _ in range(5)]
    clients = [client for client, _ in together([source.open for source in sources], within=60)]
    assert sum(source.hosts for source in sources) == 1
    clients[0].set("key", b"value")
    assert [client.get("key") for client in clients] == [b"value"] * 5


def test_who_is_told_to_host_must(open_source, here):
    with socket.create_server(("127.0.0.1", int(here.rpartition(":")[2]))):
        failure = refusal(open_source(here, is_host=True))
    assert failure.permanent
    assert "another program listens there" in str(failure)
    assert here in str(failure)


def test_who_is_told_not_to_host_does_not(open_source, here):
    failure = refusal(open_source(here, is_host=False))
    assert "nobody hosts a store there" in str(failure)
    assert "option is_host=false" in str(failure)
    assert "--rdzv-conf=is_host=true" in str(failure)
    assert not failure.permanent


def test_an_address_of_nobody_is_told_from_a_host_that_is_late(open_source, here):
    failure = refusal(open_source(here, Pretended()))
    assert "refuses connections" in str(failure)
    assert "is on no interface of this machine" in str(failure)
    assert "If no node says that it hosts the store, nobody does" in str(failure)


def test_an_address_that_does_not_answer_is_told_so(open_source):
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):  # when its queue is full, the kernel lets further knocks go unanswered
            knock = stack.enter_context(socket.socket())
            knock.setblocking(False)
            knock.connect_ex(listener.getsockname())
        failure = refusal(open_source(f"127.0.0.1:{listener.getsockname()[1]}", Pretended()))
    assert "does not answer" in str(failure)
    assert "is_host=true" in str(failure)
    assert isinstance(failure.__cause__, TimeoutError)


def test_a_program_that_is_no_store_is_told_so(open_source, here):
    with socket.create_server(("127.0.0.1", int(here.rpartition(":")[2]))) as listener:

        def chat() -> None:
            with ExitStack() as connections, suppress(OSError):
                while True:
                    connection = connections.enter_context(listener.accept()[0])
                    with suppress(ConnectionError):
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        chatting = threading.Thread(target=chat, daemon=True)
        chatting.start()
        failure = refusal(open_source(here, is_host=False))
        listener.shutdown(socket.SHUT_RDWR)
        chatting.join(10)
    assert "is no TCPStore" in str(failure)


def test_a_service_address_works_when_one_node_is_told_to_host(open_source, here):
    port = here.rpartition(":")[2]
    host = open_source(f"service.invalid:{port}", Pretended(), is_host=True)
    host.open()[0].set("key", b"value")
    assert open_source(here, Pretended()).open()[0].get("key") == b"value"


def test_a_name_that_dns_does_not_know_is_told_so(open_source):
    failure = refusal(open_source("no-such-host.invalid:29400"))
    assert "DNS does not know 'no-such-host.invalid'" in str(failure)
    assert isinstance(failure.__cause__, socket.gaierror)


def test_a_name_that_dns_knows_late_is_asked_for_again(open_source, here, caplog):
    port = here.rpartition(":")[2]
    source = open_source(f"localhost.localdomain:{port}", Pretended("127.0.0.1", "::1", late=3), is_host=None)
    # The system knows the name or not: what counts is that it is asked again until this machine recognises itself.
    with caplog.at_level(logging.INFO, "rdzv_core.c10d"):
        connected(source, 20.0).set("key", b"value")
    assert source.hosts
    assert any("cannot tell yet whether to host the store" in line for line in told(caplog))
    assert sum("may host the store" in line for line in told(caplog)) == 1


def test_the_decision_is_told_once(open_source, here, caplog):
    source = open_source(here, Pretended())
    with caplog.at_level(logging.INFO, "rdzv_core.c10d"):
        for _ in range(3):
            refusal(source)
    (line,) = told(caplog)
    assert "does not host the store" in line


def test_a_program_that_turns_away_is_no_store(open_source, here):
    """A TCPStore's client would hang there; its caller does not."""
    with socket.create_server(("127.0.0.1", int(here.rpartition(":")[2]))) as listener:

        def turn_away() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=turn_away, daemon=True).start()
        source = open_source(here, is_host=False)
        source.doubt()
        failure = refusal(source)
    assert "closed as soon as it was open" in str(failure)


def test_a_torch_without_libuv_is_done_without(open_source, here, monkeypatch, caplog):
    import torch.distributed as dist

    real, asked = dist.TCPStore, []

    def without_libuv(*args, **options):
        if options.get("is_master"):
            asked.append(options.get("use_libuv"))
        if options.get("is_master") and options.get("use_libuv") is not False:
            raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")
        return real(*args, **options)

    monkeypatch.setattr(dist, "TCPStore", without_libuv)
    monkeypatch.setattr("rdzv_core.tcp_store._libuv_refused", threading.Event())
    source = open_source(here, is_host=True)
    source.open()[0].set("key", b"value")
    assert asked == [None, False]
    assert caplog.text.count("built without libuv") == 1


def test_a_child_of_fork_leaves_the_store_to_its_parent(open_source, here, monkeypatch):
    source = open_source(here, is_host=True)
    source.open()
    source._lingers = 60.0
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(hosting, "await_departures", lambda *_: asked.append("the store"))
        parent = os.getpid()
        patch.setattr(os, "getpid", lambda: parent + 1)
        source._end_with_process()
    assert not asked
    assert not source._process_ends.is_set()


def test_libuv_can_be_declined(open_source, here):
    source = open_source(here, is_host=True, use_libuv=False)
    source.open()
    assert not source._server.libuvBackend


# --- several addresses


def two_addresses() -> tuple[str, str]:
    return f"127.0.0.1:{free_port()}", f"127.0.0.2:{free_port('127.0.0.2')}"


FIRST, SECOND = Pretended("127.0.0.1"), Pretended("127.0.0.2")


def test_the_first_of_a_list_hosts_and_the_others_find_it(open_source):
    endpoint = ",".join(two_addresses())
    second = open_source(endpoint, SECOND, failover_timeout=5.0)
    assert "refuses connections" in str(refusal(second))
    first = open_source(endpoint, FIRST, failover_timeout=5.0)
    first.open()
    second.open()
    assert (first.hosts, second.hosts) == (True, False)


def test_the_second_hosts_when_the_first_is_not_there_for_long(open_source):
    endpoint = ",".join(two_addresses())
    second = open_source(endpoint, SECOND, failover_timeout=0.3)
    began = time.monotonic()
    connected(second, 20.0)
    assert second.hosts
    assert time.monotonic() - began >= 0.3
    first = open_source(endpoint, FIRST, failover_timeout=0.3)
    first.open()
    assert not first.hosts, "who comes late joins the store that is there"


def test_two_that_host_at_once_agree_on_one(open_source):
    endpoint = ",".join(two_addresses())
    sources = [open_source(endpoint, machine, failover_timeout=0.01) for machine in (SECOND, FIRST)]
    for source in sources:
        refusal_or_client(source)
    time_is_over = time.monotonic() + 20
    clients = together([lambda s=source: connected(s, time_is_over - time.monotonic()) for source in sources])
    assert sum(source.hosts for source in sources) == 1
    clients[0].set("key", b"value")
    assert clients[1].get("key") == b"value"


def refusal_or_client(source: EndpointSource) -> None:
    with suppress(RendezvousConnectionError):
        source.open()


HOST = """
import sys, time
from rdzv_c10d.hosting import EndpointSource
from rdzv_c10d.target import Target
from rdzv_c10d.detection import Machine
from rdzv_core.endpoint import parse_endpoint
class First(Machine):
    def owns(self, address): return address == "127.0.0.1"
endpoint = parse_endpoint(sys.argv[1], default_port=0, allow_list=True)
client = EndpointSource(Target(endpoint=endpoint), "run", machine=First()).open()[0]
client.set("rdzv/test", b"alive")
client.get("rdzv/test")
print("ready", flush=True)
time.sleep(300)
"""


def test_when_the_host_dies_the_next_one_hosts_and_nodes_say_again_what_they_hold(open_source):
    endpoint = ",".join(two_addresses())
    host = subprocess.Popen([sys.executable, "-c", HOST, endpoint], stdout=subprocess.PIPE, text=True)
    with ExitStack() as stack:
        stack.callback(host.wait)
        stack.callback(host.kill)
        assert host.stdout is not None
        stack.callback(host.stdout.close)
        assert host.stdout.readline() == "ready\n"
        second, third = (
            stack.enter_context(closing(C10dCoordinationBackend.at(source, "run", call_timeout=PATIENT)))
            for source in [open_source(endpoint, machine, failover_timeout=0.5) for machine in (SECOND, Pretended())]
        )
        second.announce("second", 1, b"", 60.0)
        third.announce("third", 1, b"", 60.0)
        assert [entry.node_id for entry in third.roster().records] == ["second", "third"]
        host.kill()
        host.wait()

        def answers(backend, node_id):
            try:
                return backend.pulse(node_id, 1, 60.0)
            except RendezvousConnectionError:
                return None

        for backend, name in ((second, "second"), (third, "third")):
            answer = eventually(
                "the new store answers", lambda b=backend, n=name: answers(b, n), within=60, until=lambda a: True
            )
            assert not answer.known, "a new store knows nobody"
            assert backend.announce(name, 2, b"", 60.0).known
        assert [entry.node_id for entry in third.roster().records] == ["second", "third"]
        assert second._source.hosts


# --- creators


def parameters(endpoint: str, max_nodes: int = 2, **options) -> RendezvousParameters:
    options = {"call_timeout": PATIENT} | options
    return RendezvousParameters("c10d", endpoint, "run", 1, max_nodes, **options)


def test_create_backend_answers_backend_and_store(here):
    backend, store = create_backend(parameters(here, read_timeout=30))
    assert backend.name == "c10d"
    assert store.timeout.total_seconds() == 30
    assert backend.set_state(b"state")[2]
    other, _ = create_backend(parameters(here, is_host="false"))
    assert other.get_state()[0] == b"state"
    other.close()
    backend.close()


def test_create_backend_gives_up_after_the_read_timeout(here):
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError, match=r"Tried \d+ times in 1 s \(read_timeout\)"):
        create_backend(parameters(here, is_host=False, read_timeout=1))
    assert time.monotonic() - began < 20


def test_create_backend_over_a_file(tmp_path):
    path = tmp_path / "store"
    backend, store = create_backend(parameters(str(path), store_type="file"))
    assert type(store).__name__ == "FileStore"
    assert backend.set_state(b"state")[2]
    other, _ = create_backend(parameters(str(path), store_type=" FILE "))
    assert other.get_state()[0] == b"state"


def test_create_backend_over_a_file_of_its_own():
    backend, _ = create_backend(parameters("", max_nodes=1, store_type="file"))
    assert backend.set_state(b"state")[2]


def test_a_file_that_cannot_be_is_told_so(tmp_path):
    with pytest.raises(RendezvousConnectionError, match=r"no-such-folder.*No such file"):
        create_backend(parameters(str(tmp_path / "no-such-folder" / "store"), store_type="file"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"store_type": "hash"}, "store_type.*tcp, file"),
        ({"read_timeout": "0"}, "read_timeout"),
        ({"read_timeout": "-1"}, "read_timeout"),
        ({"is_host": "maybe"}, "is_host"),
        ({"is_hots": "1"}, "is_host"),
    ],
)
@pytest.mark.parametrize("create", [create_backend, create_handler])
def test_options_that_are_wrong_are_named(create, options, said):
    with pytest.raises(ValueError, match=said):
        create(parameters("127.0.0.1:1", **options))


def test_a_handler_is_made_without_a_connection():
    handler = create_handler(parameters("no-such-host.invalid"))
    assert handler.get_backend() == "c10d"
    assert handler.endpoint.port == 29400


def test_one_node_meets_itself_without_an_endpoint():
    handler = create_handler(parameters("", max_nodes=1))
    info = handler.next_rendezvous()
    assert (info.rank, info.world_size) == (0, 1)
    assert handler.shutdown()


def test_the_given_address_is_published(here):
    handler = create_handler(
        RendezvousParameters("c10d", here, "run", 1, 1, local_addr="127.0.0.3", last_call_timeout=1)
    )
    info = handler.next_rendezvous()
    assert info.bootstrap_store_info.master_addr == "127.0.0.3"
    handler.shutdown()


# --- the server


def test_a_server_of_ones_own():
    with C10dServer() as server:
        backend, _ = create_backend(parameters(server.endpoint))
        assert not backend._source.hosts
        assert backend.set_state(b"state")[2]
        backend.close()
        with pytest.raises(ValueError, match="is taken"):
            C10dServer(port=server.port).start()


def test_the_server_explains_its_options(capsys):
    with pytest.raises(SystemExit) as ended:
        server.main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("usage: python -m rdzv_c10d.server [-h] [--host HOST] [--port PORT] [HOST:PORT]\n")


@pytest.mark.parametrize(
    ("arguments", "endpoint"),
    [
        ([], "127.0.0.1:0"),
        (["--port", "7000"], "127.0.0.1:7000"),
        (["--host", "::1", "--port", "7000"], "[::1]:7000"),
        (["--host", "localhost"], "localhost:0"),
        (["127.0.0.2"], "127.0.0.2:29400"),
        (["0.0.0.0:7000"], "0.0.0.0:7000"),
        (["[::]:7000"], "[::]:7000"),
    ],
)
def test_where_the_server_is_told_to_listen(arguments, endpoint):
    target = server._target_of(server._read(arguments))
    assert (str(target), target.is_host) == (endpoint, True)


def test_the_server_is_told_its_place_once(capsys):
    with pytest.raises(SystemExit) as ended:
        server.main(["127.0.0.1:7000", "--port", "7000"])
    assert ended.value.code == 2
    assert "error: give either HOST:PORT, or --host and --port\n" in capsys.readouterr().err


def test_the_server_says_in_its_own_words_that_a_port_is_taken(here, capsys):
    with socket.create_server(("127.0.0.1", int(here.rpartition(":")[2]))):
        assert server.main([here]) == 1
    assert capsys.readouterr() == (
        "",
        f"No store can be hosted at {here}: the port is in use, another program listens there. "
        "Choose another port, or find that program with 'ss -ltnp' and stop it.\n",
    )


def test_the_server_says_what_else_the_system_does_not_let_it(here, capsys, monkeypatch):
    def refuse(*_: object, **__: object) -> socket.socket:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(hosting, "_listen", refuse)
    assert server.main([here]) == 1
    assert capsys.readouterr().err == f"No store can be hosted at {here}: Permission denied. Choose another port.\n"


@pytest.mark.parametrize(
    ("host", "seen"),
    [
        ("198.51.100.7", "'198.51.100.7' is on no interface of this machine."),
        ("no-such-host.invalid", "'no-such-host.invalid' cannot be resolved ("),
    ],
)
def test_the_server_refuses_an_address_of_another_machine(host, seen, capsys):
    assert server.main([f"{host}:29400"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"No store can be hosted at {host}:29400: {seen}")
    assert said.err.endswith(". Give an address of this machine, or 0.0.0.0 for all that it has.\n")


def test_the_server_refuses_what_is_no_endpoint(capsys):
    assert server.main(["--port", "70000"]) == 1
    assert "the port '70000' is not a number from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_server_ends_quietly_when_told_to(end):
    program = subprocess.Popen(
        [sys.executable, "-m", "rdzv_c10d.server", "--host", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background of a script ignores SIGINT, and hands that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        ready = program.stdout.readline()
        assert ready.startswith("ready at 127.0.0.1:")
        with socket.create_connection(("127.0.0.1", int(ready.rpartition(":")[2])), timeout=5):
            pass
        program.send_signal(end)
        assert program.communicate(timeout=60) == ("", "")
        assert program.returncode == 0
    finally:
        program.kill()
        program.communicate()
