"""The fault proxy does to a connection what each knob says, and nothing else."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from rdzv_core.testing.conformance import eventually
from rdzv_core.testing.proxy import FaultProxy


@pytest.fixture
def echo():
    """A server that says back what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))
    heard = []

    def serve(connection):
        with connection:
            while data := _receive(connection):
                heard.append(data)
                connection.sendall(data)

    def accept():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname(), heard
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(5)


def _receive(connection):
    try:
        return connection.recv(65536)
    except OSError:
        return b""


@pytest.fixture
def proxy(echo):
    with FaultProxy(*echo[0]) as proxy:
        yield proxy


@contextmanager
def connected(proxy):
    with socket.create_connection((proxy.host, proxy.port), timeout=5) as connection:
        yield connection


def hears_nothing(connection):
    connection.settimeout(1)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    connection.settimeout(5)


def echoed(connection, data):
    connection.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = connection.recv(65536)
        if not piece:
            break
        got += piece
    return got


def test_it_carries_all_bytes_and_counts_them(proxy):
    data = bytes(range(256)) * 4000
    with connected(proxy) as one, connected(proxy) as two:
        assert (echoed(one, data), echoed(two, b"two")) == (data, b"two")
        assert (proxy.connections, proxy.open_connections) == (2, 2)
        assert proxy.to_server == proxy.to_client == len(data) + 3
    eventually("both are closed", lambda: proxy.open_connections == 0, within=5)


def test_a_delay_goes_for_both_ways(proxy):
    with connected(proxy) as connection:
        assert echoed(connection, b"fast") == b"fast"
        proxy.delay = 0.1
        began = time.monotonic()
        assert echoed(connection, b"slow") == b"slow"
        assert 0.2 <= time.monotonic() - began < 2


def test_dropped_replies_leave_the_connection(proxy, echo):
    with connected(proxy) as connection:
        proxy.drop_replies = True
        connection.sendall(b"lost")
        hears_nothing(connection)
        eventually("the server has heard it", lambda: echo[1] == [b"lost"], within=5)
        proxy.mend()
        assert echoed(connection, b"heard") == b"heard"


def test_dropped_requests_leave_the_connection(proxy, echo):
    with connected(proxy) as connection:
        proxy.half_open()
        connection.sendall(b"lost")
        hears_nothing(connection)
        proxy.mend()
        assert echoed(connection, b"heard") == b"heard"
        assert echo[1] == [b"heard"]


def test_a_lost_reply_reaches_the_server_and_cuts(proxy, echo):
    with connected(proxy) as connection:
        proxy.lose_replies(1)
        connection.sendall(b"applied")
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
        assert echo[1] == [b"applied"]
    with connected(proxy) as connection:
        assert echoed(connection, b"next") == b"next"


def test_a_cut_is_a_reset_or_an_end(proxy):
    with connected(proxy) as connection:
        assert echoed(connection, b"x") == b"x"
        proxy.cut(reset=False)
        assert connection.recv(1) == b""
    with connected(proxy) as connection:
        assert echoed(connection, b"x") == b"x"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_refused_connections_are_reset(proxy):
    proxy.refuse = True
    with pytest.raises(ConnectionResetError), connected(proxy) as connection:
        connection.recv(1)
    proxy.mend()
    with connected(proxy) as connection:
        assert echoed(connection, b"x") == b"x"


def test_leaving_it_ends_all_connections(echo):
    with FaultProxy(*echo[0]) as proxy:
        connection = socket.create_connection((proxy.host, proxy.port), timeout=5)
        assert echoed(connection, b"x") == b"x"
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
