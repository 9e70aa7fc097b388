"""What development servers of all plugins share: a free port, and a process that does not outlive us."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rdzv_core.servers import DevServer, free_port, spawn
from rdzv_core.testing.conformance import eventually


def test_a_free_port_can_be_listened_on_and_leaves_room_for_a_cluster_bus():
    for host, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
        port = free_port(host)
        assert port + 10000 < 65536
        with socket.create_server((host, port), family=family):
            pass


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "Nothing can listen on '192.0.2.1': Cannot assign requested address. Give an address of this"),
        ("no host", "Nothing can listen on 'no host': .+. Give an address of this machine."),  # as the resolver says it
        ("", "The host to listen on is empty; is a variable unset?"),
    ],
)
def test_no_port_is_free_where_nothing_can_listen(host, why):
    with pytest.raises(ValueError, match=f"^{why}"):
        free_port(host)


def test_what_is_spawned_says_into_the_file_and_runs_in_the_directory(tmp_path):
    with (tmp_path / "log").open("wb") as output:
        process = spawn(
            ["/bin/sh", "-c", "pwd; echo $WORD; echo oops >&2"],
            directory=tmp_path,
            output=output,
            environment={**os.environ, "WORD": "heard"},
        )
    assert process.wait(10) == 0
    assert (tmp_path / "log").read_text() == f"{tmp_path}\nheard\noops\n"


PARENT = """
import sys, time
from rdzv_core.servers import spawn
with open(sys.argv[1], "wb") as output:
    process = spawn(["/bin/sh", "-c", "echo ready; exec sleep 60"], directory=".", output=output)
print(process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels have no signal for the death of a parent")
def test_what_is_spawned_dies_with_a_parent_that_is_killed(tmp_path):
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)], stdout=subprocess.PIPE)
    with parent.stdout:
        pid = int(parent.stdout.readline())
    eventually("it runs", lambda: log.read_text() == "ready\n", within=10)
    parent.send_signal(signal.SIGKILL)
    parent.wait()

    def gone():
        try:
            return Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX"
        except FileNotFoundError:
            return True

    eventually("it is gone", gone, within=10)


class Recorder(DevServer):
    host, port, endpoint = "here", 7, "here:7"

    def __init__(self):
        self.calls = []

    def start(self):
        self.calls.append("start")

    def stop(self):
        self.calls.append("stop")


def test_a_server_starts_on_entry_and_stops_whatever_happens():
    server = Recorder()
    with pytest.raises(KeyError), server as entered:
        assert entered is server
        assert server.calls == ["start"]
        raise KeyError
    assert server.calls == ["start", "stop"]


def test_a_server_answers_by_torchs_names_too():
    server = Recorder()
    assert (server.get_host(), server.get_port(), server.get_endpoint()) == ("here", 7, "here:7")


# --- as a program


@pytest.mark.parametrize(
    "module",
    ["rdzv_redis.server", "rdzv_etcd.server", pytest.param("rdzv_c10d.server", marks=pytest.mark.needs_torch)],
)
def test_a_server_runs_as_a_program_until_it_is_told_to_end(module):
    port = free_port("127.0.0.1")
    where = [f"127.0.0.1:{port}"] if module == "rdzv_c10d.server" else ["--port", str(port)]
    program = subprocess.Popen(
        [sys.executable, "-m", module, *where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline() == f"ready at 127.0.0.1:{port}\n"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        program.send_signal(signal.SIGTERM)
        assert program.communicate(timeout=20)[1] == ""
        assert program.returncode == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        program.kill()
        program.communicate()


def test_a_server_that_cannot_have_its_port_says_so():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tried = subprocess.run(
            [sys.executable, "-m", "rdzv_redis.server", "--port", str(port)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert tried.returncode == 1
    assert tried.stderr == (
        f"Port {port} of 127.0.0.1 is taken by another program. Stop it, or leave the port to us with port=0.\n"
    )


def test_a_server_that_ends_by_itself_ends_the_program():
    program = subprocess.Popen(
        [sys.executable, "-m", "rdzv_redis.server"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout.readline().startswith("ready at 127.0.0.1:")
        (server,) = psutil.Process(program.pid).children()
        server.kill()
        assert "has ended. It said: " in program.communicate(timeout=20)[1]
        assert program.returncode == 1
    finally:
        program.kill()
        program.communicate()
