"""Calls are bounded and errors name the host, whatever becomes of it."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

import pytest
from rdzv_c10d import C10dServer
from rdzv_c10d.coordination import C10dCoordinationBackend
from rdzv_c10d.hosting import EndpointSource
from rdzv_c10d.line import LostPatience, Promise
from rdzv_c10d.stores import LARGEST
from rdzv_c10d.target import Target

from rdzv_core.endpoint import parse_endpoint
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError
from rdzv_core.testing.suite import Waiting, eventually

pytestmark = [pytest.mark.needs_torch, pytest.mark.timeout(120)]

CALL_TIMEOUT = 1.0
PATIENT = 20.0
"""Seconds for what is to succeed, however busy the machine is."""


@pytest.fixture
def server():
    with C10dServer() as server:
        yield server


@pytest.fixture
def open_backend(server):
    opened = []

    def open_one(call_timeout: float) -> C10dCoordinationBackend:
        target = Target(endpoint=parse_endpoint(server.endpoint, default_port=0), is_host=False)
        opened.append(C10dCoordinationBackend.at(EndpointSource(target, "run"), "run", call_timeout=call_timeout))
        return opened[-1]

    yield open_one
    for backend in opened:
        backend.close()


def fails(call) -> RendezvousConnectionError:
    began = time.monotonic()
    with pytest.raises(RendezvousConnectionError) as failure:
        call()
    assert time.monotonic() - began < CALL_TIMEOUT + 7, "a client of torch's gives up after 10 s"
    return failure.value


def test_a_host_that_hangs_is_told_in_time_and_named(server, open_backend):
    backend = open_backend(CALL_TIMEOUT)
    open_backend(PATIENT).announce("n1", 1, b"", 300.0)

    def is_known() -> bool | None:
        with suppress(RendezvousConnectionError):
            return backend.pulse("n1", 1, 300.0).known
        return None

    eventually("it is connected", is_known, within=30)
    server.pause()
    failure = fails(lambda: backend.pulse("n1", 1, 300.0))
    assert server.endpoint in str(failure)
    assert "did not answer within 1 s" in str(failure)
    assert failure.maybe_applied
    server.resume()
    eventually("it answers again", is_known, within=30)


def test_a_host_that_has_ended_is_told_in_time_and_named(server, open_backend, monkeypatch):
    """At once, however long a call may take."""
    monkeypatch.setattr("rdzv_c10d.plug.TURN", PATIENT)  # who finds no plug for its client does not sleep
    backend = open_backend(PATIENT)
    backend.announce("n1", 1, b"", 60.0)
    waiting = Waiting(lambda: backend.wait_state(None, 60.0))
    eventually("it waits", lambda: backend._board_bell.sleeps, within=30)
    server.kill()
    with pytest.raises(RendezvousConnectionError, match="hosts the store has ended"):
        waiting.result(within=20)
    assert server.endpoint in str(fails(lambda: backend.pulse("n1", 1, 60.0)))
    failure = fails(backend.get_state)
    assert "nobody hosts a store there" in str(failure)
    assert "The store was there before" in str(failure)

    server.start()
    answer = backend.pulse("n1", 1, 60.0)
    assert not answer.known
    assert answer.token is None


def test_a_value_that_a_store_would_choke_on_is_refused_before_it_is_sent(open_backend):
    backend = open_backend(PATIENT)
    with pytest.raises(RendezvousStateError, match="takes 8000000 at most"):
        backend.announce("n1", 1, b"x" * (LARGEST + 1), 60.0)
    with pytest.raises(RendezvousStateError, match="takes 8000000 at most"):
        backend.set_state(b"x" * LARGEST)
    assert backend.set_state(b"a small one")[2]


def test_a_promise_is_kept_once():
    promise = Promise()
    with pytest.raises(LostPatience):
        promise.result(0.0)
    threading.Timer(0.05, promise.settle, ["first"]).start()
    assert promise.result(20.0) == "first"
    promise.settle("second")
    assert promise.result(0.0) == "first"
