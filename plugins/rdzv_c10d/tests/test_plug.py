"""The plug of a client: found, pulled, and never somebody else's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta

import pytest
from rdzv_c10d.line import Line
from rdzv_c10d.plug import Plug, plugged

from rdzv_core.testing.suite import Waiting

from .stores import open_client, open_server

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def server():
    return open_server()


def test_pulling_it_ends_the_call_under_way(server):
    client, plug = plugged(lambda: open_client(server.port))
    waiting = Waiting(lambda: client.wait(["never"], timedelta(seconds=50)))
    assert waiting.blocks()
    assert plug is not None
    plug.pull()
    with pytest.raises(RuntimeError):
        waiting.result(within=20)
    plug.pull()


def test_it_pulls_nobody_elses(server):
    """The descriptor may be closed and given out anew."""
    one, other = socket.socketpair()
    descriptor, stale = one.fileno(), os.fstat(one.fileno()).st_ino - 1
    with one, other:
        Plug(descriptor, stale).pull()
        one.sendall(b"still there")
        assert other.recv(64) == b"still there"
    Plug(descriptor, stale).pull()


def test_where_it_cannot_be_told_there_is_none(server):
    kept = []

    def two() -> object:
        kept.append(open_client(server.port))
        return open_client(server.port)

    assert plugged(two)[1] is None


def test_a_line_that_is_hung_up_ends(server):
    line, begun = Line(lambda: plugged(lambda: open_client(server.port))), threading.Event()
    promise = line.submit(lambda client: begun.set() or client.wait(["never"], timedelta(seconds=50)))
    line.opened.result(20)
    assert begun.wait(20)
    assert not line.join(0.2)
    line.give_up()
    line.hang_up()
    assert line.join(20)
    with pytest.raises(RuntimeError):
        promise.result(0)


END = """
import faulthandler, sys, time
faulthandler.dump_traceback_later(80)
from rdzv_core import RendezvousParameters
from rdzv_c10d import create_handler
handler = create_handler(RendezvousParameters("c10d", "", "run", 1, 1))
assert handler.next_rendezvous().rank == 0
if sys.argv[1] == "shutdown":
    assert handler.shutdown()
print(time.monotonic())
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("ending", ["shutdown", "forgotten"])
def test_a_process_ends_well_with_or_without_shutdown(ending):
    """Threads that are in a call of torch's when the interpreter ends would abort the process."""
    try:
        done = subprocess.run([sys.executable, "-c", END, ending], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"it did not end; where its threads were after 80 s:\n{(error.stderr or b'').decode()}")
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
    assert time.monotonic() - float(done.stdout) < 30
