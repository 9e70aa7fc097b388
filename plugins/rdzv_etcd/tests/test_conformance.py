"""The v3 backend keeps every law of the contract: on two versions, behind TLS, and behind a password."""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import ClassVar
from urllib.parse import quote

import etcd
import pytest
from rdzv_etcd import EtcdRendezvousBackend, EtcdV3RendezvousBackend
from rdzv_etcd.target import target_of
from rdzv_etcd.v2.access import clients_of
from rdzv_etcd.v2.names import RunNames

from rdzv_core.testing.conformance import CoordinationConformance, Power
from rdzv_core.testing.proxy import FaultProxy


class EtcdBackDoor:
    """The API by hand, past the backend; a proxy in front of the server to spoil the backend's own calls."""

    def __init__(self, raw, proxy):
        self.raw = raw
        self.proxy = proxy

    def _run(self, run_id):
        return f"rdzv/{quote(run_id, safe='')}/"

    def read_register(self, run_id):
        return self.raw.get(self._run(run_id) + "run/register")

    def write_register(self, run_id, state):
        self.raw.put(self._run(run_id) + "run/register", state)

    def wipe(self, run_id):
        self.raw.delete(self._run(run_id))

    def snapshot(self):
        """Stop the server, keep a copy of what is on its disk, and go on."""
        self._restart(lambda data, copy: shutil.copytree(data, copy))

    def roll_back(self):
        """Go on from the copy: revisions are counted anew from there."""

        def bring_back(data, copy):
            shutil.rmtree(data)
            shutil.move(copy, data)

        self._restart(bring_back)

    def _restart(self, change):
        server = self.raw.server
        server.kill()
        change(server.folder / "data", server.folder / "copy")
        server.start()

    def cut(self):
        self.proxy.refuse = True
        self.proxy.cut()

    def mend(self):
        self.proxy.mend()

    def lose_next_answer(self):
        self.proxy.lose_replies(1)


PATIENT = {"read_timeout": 10.0}
"""For laws that do not cut the store off, however busy the machine is."""


class EtcdLaws(CoordinationConformance):
    powers = frozenset(Power)
    ttl = 2.0  # etcd makes no shorter lease
    when_cut: ClassVar = {"read_timeout": 1.5}
    """Options of the clients whose calls are to fail before the deadline."""

    @pytest.fixture
    def server(self):
        raise NotImplementedError

    @pytest.fixture
    def proxy(self, server):
        with FaultProxy(server.host, server.port) as proxy:
            yield proxy

    @pytest.fixture
    def back_door(self, server, proxy, make_raw):
        return EtcdBackDoor(make_raw(server), proxy)

    @pytest.fixture
    def speed(self, request):
        return self.when_cut if Power.CUT in getattr(request.function, "needs", ()) else PATIENT

    @pytest.fixture
    def make_backend(self, proxy, speed):
        return lambda run_id: EtcdV3RendezvousBackend.connect(proxy.endpoint, run_id, speed)


@pytest.mark.exhaustive
@pytest.mark.needs_etcd_server
class TestOnEtcd34(EtcdLaws):
    @pytest.fixture
    def server(self, etcd34):
        return etcd34


class TestOnEtcd35(EtcdLaws):
    @pytest.fixture
    def server(self, etcd35):
        return etcd35


# A connection that is reset before the TLS handshake: CPython leaves that socket to the garbage collector.
@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
class TestBehindTls(EtcdLaws):
    @pytest.fixture
    def server(self, tls_etcd):
        return tls_etcd

    @pytest.fixture
    def back_door(self, server, proxy, make_raw, certificates):
        return EtcdBackDoor(make_raw(server, context=certificates.context), proxy)

    @pytest.fixture
    def make_backend(self, proxy, certificates, speed):
        return lambda run_id: EtcdV3RendezvousBackend.connect(
            f"https://{proxy.endpoint}", run_id, speed | certificates.options
        )


@pytest.mark.exhaustive
class TestBehindAPassword(EtcdLaws):
    when_cut: ClassVar = {}  # a login is checked by a slow hash, so these clients have the default time for a call

    @pytest.fixture
    def server(self, guarded_etcd):
        return guarded_etcd

    @pytest.fixture
    def back_door(self, server, proxy, make_raw):
        return EtcdBackDoor(make_raw(server, password="root"), proxy)

    @pytest.fixture
    def make_backend(self, proxy, trainer, speed):
        return lambda run_id: EtcdV3RendezvousBackend.connect(f"http://{trainer}@{proxy.endpoint}", run_id, speed)


# --- v2


class V2BackDoor:
    """python-etcd, past the backend."""

    def __init__(self, server, proxy, client):
        self.server = server
        self.proxy = proxy
        self.client = client

    def _register(self, run_id):
        return RunNames(run_id=run_id, prefix="laws").register

    def read_register(self, run_id):
        try:
            return b64decode(self.client.read(self._register(run_id)).value.partition(" ")[2])
        except etcd.EtcdKeyNotFound:
            return None

    def write_register(self, run_id, state):
        self.client.write(self._register(run_id), f"a-stranger {b64encode(state).decode()}")

    def wipe(self, run_id):
        with suppress(etcd.EtcdKeyNotFound):
            self.client.delete(RunNames(run_id=run_id, prefix="laws").all, recursive=True, dir=True)

    def snapshot(self):
        EtcdBackDoor._restart(self, lambda data, copy: shutil.copytree(data, copy))

    def roll_back(self):
        EtcdBackDoor.roll_back(self)

    _restart = EtcdBackDoor._restart
    cut = EtcdBackDoor.cut
    mend = EtcdBackDoor.mend
    lose_next_answer = EtcdBackDoor.lose_next_answer

    @property
    def raw(self):
        return self


@pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")
class V2Laws(EtcdLaws):
    @pytest.fixture
    def back_door(self, server, proxy):
        return V2BackDoor(server, proxy, server.get_client())

    @pytest.fixture
    def make_backend(self, proxy, speed):
        def make(run_id):
            clients = clients_of(target_of(proxy.endpoint, speed, {}).cluster)
            return EtcdRendezvousBackend(clients, run_id, "laws")

        return make


class TestV2OnEtcd35(V2Laws):
    @pytest.fixture
    def server(self, etcd35):
        return etcd35


@pytest.mark.exhaustive
@pytest.mark.needs_etcd_server
class TestV2OnEtcd34(V2Laws):
    @pytest.fixture
    def server(self, etcd34):
        return etcd34


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.filterwarnings("ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning")
class TestV2BehindTls(V2Laws):
    @pytest.fixture
    def server(self, tls_etcd):
        return tls_etcd

    @pytest.fixture
    def back_door(self, server, proxy, certificates):
        clients = clients_of(target_of(server.endpoint, certificates.options, {}).cluster)
        return V2BackDoor(server, proxy, clients[0])

    @pytest.fixture
    def make_backend(self, proxy, certificates, speed):
        def make(run_id):
            clients = clients_of(target_of(f"https://{proxy.endpoint}", speed | certificates.options, {}).cluster)
            return EtcdRendezvousBackend(clients, run_id, "laws")

        return make


@pytest.mark.exhaustive
class TestV2BehindAPassword(V2Laws):
    # Here etcd checks the password anew at each request, by a slow hash.
    ttl = 3.0
    slack = 2.5
    when_cut: ClassVar = {}

    @pytest.fixture
    def server(self, v2_guarded_etcd):
        return v2_guarded_etcd

    @pytest.fixture
    def back_door(self, server, proxy):
        clients = clients_of(target_of(f"http://root:root@{server.endpoint}", {}, {}).cluster)
        return V2BackDoor(server, proxy, clients[0])

    @pytest.fixture
    def make_backend(self, proxy, trainer, speed):
        def make(run_id):
            clients = clients_of(target_of(f"http://{trainer}@{proxy.endpoint}", speed, {}).cluster)
            return EtcdRendezvousBackend(clients, run_id, "laws")

        return make
