"""The backend keeps every law of the contract: natively over a TCPStore, by the adapter over all other stores."""

from __future__ import annotations

import msgspec
import pytest
import torch.distributed as dist
from rdzv_c10d import C10dRendezvousBackend
from rdzv_c10d.coordination import CALL_TIMEOUT, C10dCoordinationBackend
from rdzv_c10d.hosting import EndpointSource
from rdzv_c10d.keys import RunKeys
from rdzv_c10d.target import Target

from rdzv_core import CoordinationBackend, RegisterCoordination
from rdzv_core.endpoint import parse_endpoint
from rdzv_core.runtime.register_coordination.value import EMPTY, Kept, decode, encode
from rdzv_core.testing.conformance import CoordinationConformance, Power, RegisterConformance
from rdzv_core.testing.proxy import FaultProxy

from .stores import BoardBackDoor, open_client, open_server

pytestmark = pytest.mark.needs_torch

PATIENT = 20.0
"""Seconds that a call may take where its store is not cut off: such a law is not about the time of a call."""


class TCPStoreLaws(CoordinationConformance):
    """Level 2, natively; clients reach the store through a proxy that can be cut."""

    powers = frozenset(Power)

    @pytest.fixture
    def server(self):
        return open_server()

    @pytest.fixture
    def proxy(self, server):
        with FaultProxy("127.0.0.1", server.port) as proxy:
            yield proxy

    @pytest.fixture
    def back_door(self, server, proxy):
        return BoardBackDoor(open_client(server.port), proxy)

    @pytest.fixture
    def make_backend(self, proxy, request):
        is_cut = Power.CUT in getattr(request.function, "needs", ())
        seconds = CALL_TIMEOUT if is_cut else PATIENT

        def make(run_id: str) -> C10dCoordinationBackend:
            target = Target(endpoint=parse_endpoint(proxy.endpoint, default_port=0), is_host=False)
            return C10dCoordinationBackend.at(EndpointSource(target, run_id), run_id, call_timeout=seconds)

        return make


class TestOnTCPStoreWithLibuv(TCPStoreLaws):
    pass


@pytest.mark.exhaustive
class TestOnTCPStoreWithoutLibuv(TCPStoreLaws):
    @pytest.fixture
    def server(self):
        return open_server(use_libuv=False)


@pytest.mark.exhaustive
class TestOnPrefixOfTCPStore(CoordinationConformance):
    """Given a store of somebody else's, level 2 is found and used, inside the prefix."""

    powers = frozenset({Power.ROLL_BACK})

    @pytest.fixture
    def server(self):
        return open_server()

    @pytest.fixture
    def back_door(self, server):
        return BoardBackDoor(dist.PrefixStore("p", open_client(server.port)))

    @pytest.fixture
    def make_backend(self, server):
        def make(run_id: str) -> C10dRendezvousBackend:
            store = dist.PrefixStore("p", open_client(server.port))
            backend = C10dRendezvousBackend(store, run_id, call_timeout=PATIENT)
            assert isinstance(backend, CoordinationBackend)
            return backend

        return make


class RegisterBackDoor:
    """Past the backend, by the store's own methods."""

    def __init__(self, store):
        self.store = store

    def _key(self, run_id):
        return RunKeys(run_id).register

    def read_value(self, run_id):
        return self.store.get(self._key(run_id)) if self.store.check([self._key(run_id)]) else None

    def read_register(self, run_id):
        value = self.read_value(run_id)
        return None if value is None else value.split(b" ", 2)[2]

    def write_register(self, run_id, state):
        self.store.set(self._key(run_id), b"rdzv1 " + b"stranger00000000" + b" " + state)

    def wipe(self, run_id):
        self.store.delete_key(self._key(run_id))


class LiftedBackDoor(RegisterBackDoor):
    """Reads and edits what the adapter keeps in the register."""

    def read_register(self, run_id):
        stored = super().read_register(run_id)
        register = None if stored is None else decode(stored).register
        return None if register is None else register.state

    def write_register(self, run_id, state):
        stored = super().read_register(run_id)
        value = EMPTY if stored is None else decode(stored)
        register = Kept(state=state, token="a-stranger")
        super().write_register(run_id, encode(msgspec.structs.replace(value, register=register)))


class LawsOfLevel1(RegisterConformance):
    @pytest.fixture
    def store(self, tmp_path):
        raise NotImplementedError

    @pytest.fixture
    def back_door(self, store):
        return RegisterBackDoor(store)

    @pytest.fixture
    def make_backend(self, store):
        def make(run_id: str) -> C10dRendezvousBackend:
            backend = C10dRendezvousBackend(store, run_id)
            assert not isinstance(backend, CoordinationBackend)
            return backend

        return make


class LawsOfTheAdapter(CoordinationConformance):
    @pytest.fixture
    def store(self, tmp_path):
        raise NotImplementedError

    @pytest.fixture
    def back_door(self, store):
        return LiftedBackDoor(store)

    @pytest.fixture
    def make_backend(self, store):
        return lambda run_id: RegisterCoordination(C10dRendezvousBackend(store, run_id), run_id=run_id)


class OnFileStore:
    @pytest.fixture
    def store(self, tmp_path):
        return dist.FileStore(str(tmp_path / "store"))


class OnPrefixOfFileStore:
    @pytest.fixture
    def store(self, tmp_path):
        return dist.PrefixStore("p", dist.FileStore(str(tmp_path / "store")))


class OnHashStore:
    @pytest.fixture
    def store(self):
        return dist.HashStore()


class OnPrefixOfHashStore:
    @pytest.fixture
    def store(self):
        return dist.PrefixStore("p", dist.HashStore())


class TestLevel1OnFileStore(OnFileStore, LawsOfLevel1):
    pass


@pytest.mark.exhaustive
class TestLevel1OnPrefixOfFileStore(OnPrefixOfFileStore, LawsOfLevel1):
    pass


class TestLevel1OnHashStore(OnHashStore, LawsOfLevel1):
    pass


@pytest.mark.exhaustive
class TestLevel1OnPrefixOfHashStore(OnPrefixOfHashStore, LawsOfLevel1):
    pass


class TestLiftedOnFileStore(OnFileStore, LawsOfTheAdapter):
    pass


@pytest.mark.exhaustive
class TestLiftedOnPrefixOfFileStore(OnPrefixOfFileStore, LawsOfTheAdapter):
    pass


class TestLiftedOnHashStore(OnHashStore, LawsOfTheAdapter):
    pass


@pytest.mark.exhaustive
class TestLiftedOnPrefixOfHashStore(OnPrefixOfHashStore, LawsOfTheAdapter):
    pass
