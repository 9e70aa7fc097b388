"""What the two sets of laws have in common: how a backend is opened, what its author declares, how to wait.

A law is a test whose docstring states what is promised. An author declares two things about the backend, and
both are verified: *powers* of the back door (a law that needs an undeclared one is skipped, and says so), and
*weaknesses*, laws that the backend is known to break (one that it keeps after all is a failure, so that no
declaration outlives its reason).
"""

from __future__ import annotations

import enum
import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import pytest

from rdzv_core.backend import RendezvousBackend

__all__ = ["BackDoor", "ConformanceSuite", "Power", "Waiting", "eventually", "needs", "together"]

T = TypeVar("T")
Law = TypeVar("Law", bound=Callable[..., None])
MakeBackend = Callable[[str], Any]

ENTERING = 0.15
"""Seconds given to a thread to get into a blocking call. Too short only makes a law weaker, never wrong."""


class BackDoor(Protocol):
    """A way to the store that does not lead through the backend, so that a backend cannot vouch for itself."""

    def read_register(self, run_id: str) -> bytes | None:
        """What the register of the run holds; None if it is empty."""

    def write_register(self, run_id: str, state: bytes) -> None:
        """Write the register whatever it holds, as a client would that the backend knows nothing of."""

    def wipe(self, run_id: str) -> None:
        """Lose everything of the run."""


class Power(enum.Enum):
    """What a back door may be able to do besides; the value lists the methods that it then must have."""

    ROLL_BACK = ("snapshot", "roll_back")
    """``snapshot()`` remembers what the store holds, ``roll_back()`` brings it back, losing later writes."""
    CUT = ("cut", "mend")
    """``cut()`` makes the store unreachable for every backend, ``mend()`` makes it reachable again."""
    LOSE_ANSWER = ("lose_next_answer",)
    """``lose_next_answer()``: the next write is applied, but the connection breaks before its answer."""


def needs(*powers: Power) -> Callable[[Law], Law]:
    """Mark a law that can only be tried with these powers of the back door."""

    def mark(law: Law) -> Law:
        law.needs = powers  # type: ignore[attr-defined]
        return law

    return mark


class ConformanceSuite:
    """The base of both suites: override :meth:`make_backend` and :meth:`back_door`, and declare."""

    powers: ClassVar[frozenset[Power]] = frozenset()
    """What the back door can do."""
    weaknesses: ClassVar[Mapping[str, str]] = {}
    """Names of laws that this backend is known to break, each with the reason."""
    deadline: ClassVar[float] = 5.0
    """Seconds within which a call fails whose store cannot be reached."""
    slack: ClassVar[float] = 3.0
    """Seconds allowed on top of every promise about time, for a busy machine."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, reason in cls.__dict__.get("weaknesses", {}).items():
            law = getattr(cls, name, None)
            if law is None or not name.startswith("test_"):
                raise TypeError(f"{cls.__name__} declares a weakness in {name!r}, but there is no such law")
            setattr(cls, name, _expected_to_fail(law, reason))

    @pytest.fixture
    def make_backend(self) -> MakeBackend:
        """Override: a function from a run id to a new backend; two calls are two clients of one store."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture make_backend")

    @pytest.fixture
    def back_door(self) -> BackDoor:
        """Override: a way to the same store that avoids the backend."""
        raise NotImplementedError(f"{type(self).__name__} must override the fixture back_door")

    @pytest.fixture
    def run_id(self) -> str:
        """A run that nobody else uses."""
        return f"law-{uuid.uuid4().hex[:12]}"

    @pytest.fixture
    def open_backend(self, make_backend: MakeBackend) -> Iterator[MakeBackend]:
        """As ``make_backend``; closes what it opened when the law has been tried."""
        opened: list[Any] = []

        def open_one(run_id: str) -> Any:
            opened.append(make_backend(run_id))
            return opened[-1]

        yield open_one
        for backend in opened:
            close(backend)

    @pytest.fixture
    def backend(self, open_backend: MakeBackend, run_id: str) -> Any:
        """A client of the run."""
        return open_backend(run_id)

    @pytest.fixture
    def other(self, open_backend: MakeBackend, run_id: str) -> Any:
        """A second client of the same run."""
        return open_backend(run_id)

    @pytest.fixture(autouse=True)
    def _only_declared_powers(self, request: pytest.FixtureRequest) -> None:
        missing = [p.name for p in getattr(request.function, "needs", ()) if p not in self.powers]
        if missing:
            pytest.skip(f"{type(self).__name__} declares no back door with {', '.join(missing)}")

    def test_the_back_door_has_the_powers_that_it_declares(self, back_door: BackDoor) -> None:
        """A declared power is there."""
        lacking = {p.name: m for p in self.powers for m in p.value if not callable(getattr(back_door, m, None))}
        assert not lacking, f"declared powers without their methods: {lacking}"


def _expected_to_fail(law: Callable[..., None], reason: str) -> Callable[..., None]:
    @functools.wraps(law)
    def weak(*args: Any, **kwargs: Any) -> None:
        law(*args, **kwargs)

    marked: Callable[..., None] = pytest.mark.xfail(reason=reason, strict=True)(weak)
    return marked


def close(backend: RendezvousBackend) -> None:
    """Close a backend of either level; at level 1 it is no duty to have anything to close."""
    closing = getattr(backend, "close", None)
    if closing is not None:
        closing()


def eventually(
    what: str, look: Callable[[], T | None], *, within: float, every: float = 0.01, until: Callable[[T], bool] = bool
) -> T:
    """Look again and again until what is seen satisfies ``until``.

    Args:
        what: What is awaited; for the failure's text.
        look: Looks once.
        within: Seconds after which it is a failure.
        every: Seconds between two looks.
        until: Whether what was seen is it; by default, whether it is true.
    """
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() >= deadline
        seen = look()
        if seen is not None and until(seen):
            return seen
        if late:
            pytest.fail(f"not within {within:g} s: {what}; last seen: {seen!r}")
        time.sleep(every)


class Waiting(Generic[T]):
    """A call that runs in a thread of its own, because it is expected to block."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._outcome: tuple[T | None, BaseException | None] = (None, None)
        self.began = time.monotonic()
        self.ended = 0.0
        """When the call returned, by ``time.monotonic``."""
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._outcome = call(), None
        except BaseException as error:
            self._outcome = None, error
        self.ended = time.monotonic()

    def blocks(self, seconds: float = ENTERING) -> bool:
        """Whether the call is still under way after so many seconds; it has had the time to get into its wait."""
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self, *, within: float) -> T | None:
        """What the call returned or raised; a failure if it goes on for longer."""
        self._thread.join(within)
        if self._thread.is_alive():
            pytest.fail(f"a blocked call was not woken within {within:g} s")
        value, error = self._outcome
        if error is not None:
            raise error
        return value


def together(calls: Sequence[Callable[[], T]], *, within: float = 60.0) -> list[T]:
    """Run the calls at the same time, each in its own thread; their answers, in the order of the calls."""
    start = threading.Barrier(len(calls))

    def begin(call: Callable[[], T]) -> T:
        start.wait(within)
        return call()

    threads = [Waiting(functools.partial(begin, call)) for call in calls]
    return [thread.result(within=within) for thread in threads]  # type: ignore[misc]
