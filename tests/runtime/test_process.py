"""The end of a process, and its children: each story is a program of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PRELUDE = """
import atexit, os, sys, threading, time
from rdzv_core.testing.memory import MemoryStore

store = MemoryStore()

def look():  # registered first, so it is called last
    run = store._swept("job-7")
    closed = b'"closed"' in (store.peek("job-7") or b"")
    print(len(run.records), "records,", len(run.tombstones), "withdrawn,", "closed" if closed else "open", flush=True)

atexit.register(look)

from tests.runtime.party import Stores
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.testing.memory import MemoryBackend

def make():
    backend = MemoryBackend(store, "job-7")
    return DynamicRendezvousHandler.from_backend("job-7", None, backend, 1, 1, "host-a", stores=Stores())

handler = make()
"""


def run(program: str) -> tuple[int, str, str]:
    """Status, output and errors of a program that ends by itself within the time."""
    ended = subprocess.run(
        [sys.executable, "-c", PRELUDE + program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("ending", "status"),
    [("", 0), ("sys.exit(3)", 3), ("1 / 0", 1), ("raise KeyboardInterrupt", -signal.SIGINT)],
)
def test_a_process_that_ends_withdraws_its_node_and_closes_nothing(ending: str, status: int):
    ended, said, _ = run(f"handler.next_rendezvous()\n{ending}")
    assert (ended, said) == (status, "0 records, 1 withdrawn, open\n")


def test_a_process_that_was_shut_down_has_nothing_left_to_say():
    assert run("handler.next_rendezvous(); print(handler.shutdown())") == (
        0,
        "True\n0 records, 1 withdrawn, closed\n",
        "",
    )


def test_a_process_in_the_middle_of_a_join_ends_when_it_is_told_to():
    status, said, _ = run(
        "waiter = make()\n"
        "handler.next_rendezvous()\n"
        "threading.Thread(target=waiter.next_rendezvous, daemon=True).start()\n"
        "while len(store._swept('job-7').records) < 2: time.sleep(0.01)\n"
    )
    assert (status, said) == (0, "0 records, 2 withdrawn, open\n")


def test_a_process_whose_store_is_away_ends_all_the_same():
    status, said, _ = run("handler.next_rendezvous(); store.cut()")
    assert (status, said) == (0, "1 records, 0 withdrawn, open\n")


FORKED = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and up, where threads are running
handler.next_rendezvous()
child = os.fork()
if child == 0:
    {child}
began = time.monotonic()
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status), "soon" if time.monotonic() - began < 20 else "late")
print(handler.num_nodes_waiting(), handler.is_closed())
"""


@pytest.mark.parametrize(
    "child",
    [
        "sys.exit(0)",
        "handler.num_nodes_waiting(); sys.exit(0)",
        "handler.shutdown(); sys.exit(0)",
        "handler.leave('here'); sys.exit(0)",
        "del handler; sys.exit(0)",
    ],
)
def test_a_child_of_fork_neither_hangs_nor_speaks_for_its_parent(child: str):
    atexit_of_the_child_is_silent = "atexit.unregister(look); "
    status, said, errors = run(FORKED.format(child=atexit_of_the_child_is_silent + child))
    assert (status, said.splitlines()) == (
        0,
        ["child 0 soon", "0 False", "0 records, 1 withdrawn, open"],
    ), errors


def test_a_handler_in_a_child_of_fork_says_where_it_lives():
    child = "atexit.unregister(look)\n    handler.next_rendezvous()"
    status, said, errors = run(FORKED.format(child=child))
    assert (status, said.splitlines()[0]) == (0, "child 1 soon")
    assert "lives in the process that made it, not in this child of fork()" in errors


def test_a_handler_that_was_made_before_the_fork_and_not_used_works_in_the_child():
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    print(handler.next_rendezvous().world_size, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
"""
    status, said, errors = run(program)
    assert (status, said.splitlines()) == (
        0,
        ["1", "0 records, 1 withdrawn, open", "0 records, 0 withdrawn, open"],
    ), errors
