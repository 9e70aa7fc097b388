"""The memory backend keeps every law: it is the reference that the others are compared with."""

import pytest

from rdzv_core.testing.conformance import CoordinationConformance, Power, RegisterConformance
from rdzv_core.testing.memory import MemoryBackend, MemoryRegister, MemoryStore, Snapshot


class MemoryBackDoor:
    """The store itself, which in memory needs no other door."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.snapshots: list[Snapshot] = []

    def read_register(self, run_id: str) -> bytes | None:
        return self.store.peek(run_id)

    def write_register(self, run_id: str, state: bytes) -> None:
        self.store.poke(run_id, state)

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


class TestMemoryRegister(RegisterConformance):
    powers = frozenset(Power)

    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def make_backend(self, store):
        return lambda run_id: MemoryRegister(store, run_id)

    @pytest.fixture
    def back_door(self, store):
        return MemoryBackDoor(store)


class TestMemoryBackend(CoordinationConformance):
    powers = frozenset(Power)

    @pytest.fixture
    def store(self):
        return MemoryStore()

    @pytest.fixture
    def make_backend(self, store):
        return lambda run_id: MemoryBackend(store, run_id)

    @pytest.fixture
    def back_door(self, store):
        return MemoryBackDoor(store)
