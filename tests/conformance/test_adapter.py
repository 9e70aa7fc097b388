"""A bare register lifted to level 2 keeps the laws of level 2."""

import msgspec
import pytest

from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.runtime.register_coordination.value import EMPTY, Kept, decode, encode
from rdzv_core.testing.conformance import CoordinationConformance, Power
from rdzv_core.testing.memory import MemoryRegister, MemoryStore, Snapshot


class AdapterBackDoor:
    """Reads and edits the one value in the store, as another client with its own hands would."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.snapshots: list[Snapshot] = []
        self.strange_writes = 0

    def read_register(self, run_id: str) -> bytes | None:
        stored = self.store.peek(run_id)
        register = None if stored is None else decode(stored).register
        return None if register is None else register.state

    def write_register(self, run_id: str, state: bytes) -> None:
        stored = self.store.peek(run_id)
        value = EMPTY if stored is None else decode(stored)
        self.strange_writes += 1
        register = Kept(state=state, token=f"strange-{self.strange_writes}")
        self.store.poke(run_id, encode(msgspec.structs.replace(value, register=register)))

    def wipe(self, run_id: str) -> None:
        self.store.wipe(run_id)

    def snapshot(self) -> None:
        self.snapshots.append(self.store.snapshot())

    def roll_back(self) -> None:
        self.store.restore(self.snapshots.pop())

    def cut(self) -> None:
        self.store.cut()

    def mend(self) -> None:
        self.store.mend()

    def lose_next_answer(self) -> None:
        self.store.lose_answers()


class TestRegisterCoordination(CoordinationConformance):
    powers = frozenset(Power)

    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def make_backend(self, store):
        return lambda run_id: RegisterCoordination(MemoryRegister(store, run_id), run_id=run_id)

    @pytest.fixture
    def back_door(self, store):
        return AdapterBackDoor(store)
