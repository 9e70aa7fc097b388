"""The backend keeps every law of the contract, on two servers, and behind TLS with a user who may do little."""

from __future__ import annotations

from urllib.parse import quote

import pytest
import redis
from rdzv_redis import RedisRendezvousBackend

from rdzv_core.testing.conformance import CoordinationConformance, Power
from rdzv_core.testing.proxy import FaultProxy


class RedisBackDoor:
    """Plain commands past the backend; a proxy in front of the server to spoil the backend's own."""

    def __init__(self, client: redis.Redis, proxy: FaultProxy) -> None:
        self.client = client
        self.proxy = proxy
        self.saved: dict[bytes, tuple[int, bytes]] = {}

    def _register(self, run_id: str) -> str:
        return f"rdzv:{{{quote(run_id, safe='')}}}:register"

    def _keys(self, run_id: str) -> list[bytes]:
        mine = f"rdzv:{{{quote(run_id, safe='')}}}:".encode()
        return [key for key in self.client.scan_iter(count=1000) if key.startswith(mine)]

    def read_register(self, run_id: str) -> bytes | None:
        return self.client.hget(self._register(run_id), "state")

    def write_register(self, run_id: str, state: bytes) -> None:
        token = b"77.a-stranger"
        self.client.hset(self._register(run_id), mapping={"state": state, "token": token})
        self.client.publish(self._register(run_id), token + b" " + state)

    def wipe(self, run_id: str) -> None:
        for key in self._keys(run_id):
            self.client.delete(key)

    def snapshot(self) -> None:
        found = {key: (self.client.pttl(key), self.client.dump(key)) for key in self.client.scan_iter(count=1000)}
        self.saved = {key: (ttl, value) for key, (ttl, value) in found.items() if value is not None}  # not expired yet

    def roll_back(self) -> None:
        for key in self.client.scan_iter(count=1000):
            self.client.delete(key)
        for key, (ttl, value) in self.saved.items():
            self.client.restore(key, max(ttl, 0), value)

    def cut(self) -> None:
        self.proxy.refuse = True
        self.proxy.cut()

    def mend(self) -> None:
        self.proxy.mend()

    def lose_next_answer(self) -> None:
        self.proxy.lose_replies(1)


PATIENT = {"read_timeout": 20.0}
"""For laws that do not cut the store off, however busy the machine is."""


class RedisLaws(CoordinationConformance):
    powers = frozenset(Power)

    @pytest.fixture
    def server(self):
        raise NotImplementedError

    @pytest.fixture
    def proxy(self, server):
        with FaultProxy(server.host, server.port) as proxy:
            yield proxy

    @pytest.fixture
    def back_door(self, server, proxy):
        with redis.Redis(host=server.host, port=server.port) as client:
            yield RedisBackDoor(client, proxy)

    @pytest.fixture
    def speed(self, request):
        return {} if Power.CUT in getattr(request.function, "needs", ()) else PATIENT

    @pytest.fixture
    def make_backend(self, proxy, speed):
        return lambda run_id: RedisRendezvousBackend.connect(proxy.endpoint, run_id, speed)


class TestOnValkey(RedisLaws):
    @pytest.fixture
    def server(self, valkey):
        return valkey


class TestOnRedis(RedisLaws):
    @pytest.fixture
    def server(self, debian_redis):
        return debian_redis


class TlsBackDoor(RedisBackDoor):
    def cut(self) -> None:
        # Not refused, but met with silence: CPython leaves a socket that is reset before its handshake unclosed
        # until it is collected, and says so as a warning.
        self.proxy.drop_replies = True
        self.proxy.cut()


class TestBehindTlsAsGuardedUser(RedisLaws):
    @pytest.fixture
    def server(self, guarded_redis):
        return guarded_redis

    @pytest.fixture
    def back_door(self, server, proxy, certificates):
        with redis.Redis(
            host=server.host, port=server.port, username="root", password="root", ssl=True, **certificates.options
        ) as client:
            yield TlsBackDoor(client, proxy)

    @pytest.fixture
    def make_backend(self, proxy, certificates, trainer, speed):
        endpoint = f"rediss://{trainer}@{proxy.endpoint}"
        return lambda run_id: RedisRendezvousBackend.connect(endpoint, run_id, {**speed, **certificates.options})
