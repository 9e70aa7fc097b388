"""The way to a server, over dead addresses and slow resolvers: in time, and with time left for the answer."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rdzv_etcd import EtcdServer, EtcdV3RendezvousBackend
from rdzv_redis import RedisRendezvousBackend, RedisServer

from rdzv_core.dialling import dial
from rdzv_core.errors import RendezvousConnectionError

LONG = 60.0


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], list[Any]]], None]:
    """Let something else look names up; addresses stay what they are."""
    real = socket.getaddrinfo

    def install(look_up: Callable[[], list[Any]]) -> None:
        def getaddrinfo(host: str, *rest: Any, flags: int = 0, **more: Any) -> list[Any]:
            if flags & socket.AI_NUMERICHOST:
                return real(host, *rest, flags=flags, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in look_up()]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return install


@pytest.fixture
def slow_resolver(resolve: Callable[[Callable[[], list[Any]]], None]) -> Iterator[None]:
    may_go_on = threading.Event()

    def wait() -> list[Any]:
        may_go_on.wait(LONG)
        return []

    resolve(wait)
    yield
    may_go_on.set()


@pytest.fixture
def black_hole() -> Iterator[tuple[str, int]]:
    """An address that takes no connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
        for _ in range(4):  # they fill the room of those who wait to be taken in
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def test_a_kind_of_address_that_this_machine_does_not_know_is_passed_over(monkeypatch, listener):
    found = [(family, socket.SOCK_STREAM, 6, "", listener) for family in (200, socket.AF_INET)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with dial("two.example", 7, 3.0) as connection:
        assert connection.getpeername() == listener


def test_it_goes_on_to_the_next_address(resolve, black_hole, listener):
    closed = ("127.0.0.1", 1)
    resolve(lambda: [black_hole, closed, listener])
    with dial("three.example", 7, 3.0) as connection:
        assert connection.getpeername() == listener
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("dead", [1, 3])
def test_dead_addresses_take_no_longer_than_one(resolve, black_hole, dead):
    resolve(lambda: [black_hole] * dead)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        dial("dead.example", 7, 0.4)
    assert 0.4 <= time.monotonic() - began < 10


def test_a_name_without_an_address_is_told(resolve):
    resolve(list)
    with pytest.raises(OSError, match=r"The name 'empty\.example' has no address"):
        dial("empty.example", 7, 1.0)


def test_a_name_that_is_not_known_is_told(resolve):
    def unknown() -> list[Any]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    resolve(unknown)
    with pytest.raises(socket.gaierror, match="Name or service not known"):
        dial("unknown.example", 7, 1.0)


@pytest.mark.usefixtures("slow_resolver")
def test_a_resolver_that_is_slow_is_not_waited_for():
    said = r"The name 'slow\.example' was not resolved within 0\.3 s: is DNS slow or away\?"
    with pytest.raises(OSError, match=said):
        dial("slow.example", 7, 0.3)


@pytest.fixture(params=["redis", "etcd"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    with {"redis": RedisServer, "etcd": EtcdServer}[request.param]() as server:
        yield server


@pytest.fixture
def connect(server: Any) -> Iterator[Callable[..., Any]]:
    kind: Any = RedisRendezvousBackend if server.kind == "redis" else EtcdV3RendezvousBackend
    with contextlib.ExitStack() as stack:

        def connect(seconds: float) -> Any:
            backend = kind.connect(f"some.example:{server.port}", "run", {"read_timeout": seconds})
            stack.callback(backend.close)
            return backend

        yield connect


def test_a_backend_has_time_for_the_answer_after_a_dead_address(resolve, black_hole, server, connect):
    resolve(lambda: [black_hole, (server.host, server.port)])
    assert connect(3.0).get_state() is None


def test_a_backend_tells_of_a_slow_resolver(connect, slow_resolver):
    with pytest.raises(RendezvousConnectionError, match=r"was not resolved within .* s: is DNS slow or away"):
        connect(0.3).get_state()
