"""The door for torchrun, knocked at by hand: no launcher is started here."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rdzv_core import RendezvousInfo, errors
from rdzv_core.endpoint import parse_endpoint
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.testing.memory import MemoryBackend, MemoryStore
from rdzv_core.testing.suite import Waiting, eventually, together
from tests.runtime.party import SOON, Party, Stores

if importlib.util.find_spec("torch") is not None:
    import torch.distributed as dist
    from torch.distributed.elastic import events as torch_events
    from torch.distributed.elastic.events import NodeState, RdzvEvent
    from torch.distributed.elastic.events import handlers as torch_recorders
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing import api as torch_processes
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TorchParameters
    from torch.distributed.elastic.rendezvous import api as torch_api
    from torch.distributed.elastic.utils import store as torch_store

    from rdzv_core.torchrun import arrival, entry
    from rdzv_core.torchrun import handler as torchrun_handler
    from rdzv_core.torchrun.arrival import all_arrive
    from rdzv_core.torchrun.failures import as_torch_error, torch_errors, under_the_launcher
    from rdzv_core.torchrun.handler import TorchrunHandler, ending
    from rdzv_core.torchrun.signals import LeaveSignals
    from rdzv_core.torchrun.store import AgentStore

pytestmark = pytest.mark.needs_torch

ROOT = Path(__file__).parents[2]
BARRIER = "torchelastic/agent/terminal_state"


@pytest.fixture(autouse=True)
def _no_thread_of_the_door_stays() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(
        "only the threads that were there before",
        lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("rdzv-")],
        within=SOON,
    )


@pytest.fixture
def party() -> Iterator[Party]:
    party = Party()
    yield party
    party.end()


# --- errors -----------------------------------------------------------------------------------------------------

KINDS = [
    "RendezvousError",
    "RendezvousClosedError",
    "RendezvousTimeoutError",
    "RendezvousConnectionError",
    "RendezvousStateError",
    "RendezvousGracefulExitError",
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_ours_is_torchs_of_the_same_name_and_text(kind: str):
    ours = getattr(errors, kind)("What happened.", story=("  12:00  joined",))
    theirs = as_torch_error(ours)
    assert type(theirs) is getattr(torch_api, kind)
    assert str(theirs) == str(ours)
    assert str(theirs).splitlines()[0] == str(theirs).splitlines()[-1] == "What happened."


def test_an_error_that_torch_does_not_know_is_its_base():
    class Strange(errors.RendezvousError):
        pass

    assert type(as_torch_error(Strange("?"))) is torch_api.RendezvousError


@pytest.mark.parametrize("kind", KINDS)
def test_only_torchs_error_is_seen(kind: str):
    with pytest.raises(getattr(torch_api, kind)) as seen, torch_errors():
        raise getattr(errors, kind)("What happened.")
    assert seen.value.__suppress_context__


@pytest.mark.parametrize("other", [ValueError("x"), KeyboardInterrupt(), SystemExit(3)])
def test_what_is_not_of_the_rendezvous_passes(other: BaseException):
    with pytest.raises(type(other)) as seen, torch_errors():
        raise other
    assert seen.value is other


def called_from(file: str, call: Callable[[], Any]) -> Any:
    """Call through a frame that says it is of this file."""
    names = {"call": call}
    exec(compile("answer = call()", file, "exec"), names)
    return names["answer"]


@pytest.mark.parametrize(
    ("file", "launcher"),
    [
        ("/site-packages/torch/distributed/run.py", True),
        (r"C:\site-packages\torch\distributed\run.py", True),
        ("/site-packages/torch/distributed/launcher/api.py", False),
        ("/home-made/run.py", False),
    ],
)
def test_the_launcher_is_known_by_its_file(file: str, launcher: bool):
    assert called_from(file, under_the_launcher) is launcher


def spare() -> None:
    with torch_errors():
        raise errors.RendezvousGracefulExitError("This node was a spare.")


def test_a_spare_ends_torchrun_with_status_0():
    with pytest.raises(SystemExit) as seen:
        called_from("/site-packages/torch/distributed/run.py", spare)
    assert seen.value.code == 0


def test_a_spare_does_not_end_a_program_that_uses_torchs_agent_itself():
    with pytest.raises(torch_api.RendezvousGracefulExitError, match="was a spare"):
        spare()


def failed_workers() -> Exception:
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file="<none>")
    return ChildFailedError("train.py", {0: failure})


# --- why shutdown() is called -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "outcome", "closes", "words"),
    [
        (lambda: None, "success", True, "its workers have succeeded"),
        (failed_workers, "failed", True, "no restart was left"),
        (KeyboardInterrupt, "left", False, "interrupted"),
        (lambda: SignalException("x", signal.SIGTERM), "left", False, "interrupted"),
        (lambda: SystemExit(143), "left", False, "exits with status 143"),
        (lambda: SystemExit(0), "left", False, "exits with status 0"),
        (lambda: torch_api.RendezvousClosedError("x"), "left", False, "failed: RendezvousClosedError"),
        (lambda: torch_api.RendezvousTimeoutError("x"), "left", False, "failed: RendezvousTimeoutError"),
        (AttributeError, "left", False, "failed: AttributeError"),
    ],
)
def test_the_exception_in_flight_is_the_reason_of_a_shutdown(make, outcome: str, closes: bool, words: str):
    end = ending(make())
    assert (end.outcome, end.closes) == (outcome, closes)
    assert words in end.reason


def test_the_page_tells_the_same_endings():
    page = (ROOT / "docs" / "torchrun.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (yes|no), (?:`(\w+)`|it leaves) \|$", page, flags=re.MULTILINE)
    of_the_page = {
        "nothing": [None],
        "`ChildFailedError`": [failed_workers()],
        "`KeyboardInterrupt`, `SignalException`": [KeyboardInterrupt(), SignalException("x", signal.SIGTERM)],
        "`SystemExit`": [SystemExit(0)],
        "anything else": [RuntimeError()],
    }
    assert {what for what, _, _ in rows} == set(of_the_page)
    for what, closes, outcome in rows:
        for error in of_the_page[what]:
            end = ending(error)
            assert (end.closes, end.outcome) == (closes == "yes", outcome or "left")


# --- the handler --------------------------------------------------------------------------------------------------


def dressed(party: Party, *arguments: Any, **more: Any) -> TorchrunHandler:
    return TorchrunHandler(party.guest(*arguments, **more).handler, "redis")


def hash_stores() -> Stores:
    """Rank 0's store without a network."""

    class HashStores(Stores):
        shared = dist.HashStore()

        def connect(self, seat: Any, address: Any) -> Any:
            return dist.PrefixStore(seat.round_id, self.shared)

    return HashStores()


def test_torch_gets_its_own_classes(party: Party):
    handler = dressed(party, 1, 1, stores=hash_stores())
    info = handler.next_rendezvous()
    assert isinstance(handler, torch_api.RendezvousHandler)
    assert isinstance(info, torch_api.RendezvousInfo)
    assert isinstance(info.bootstrap_store_info, torch_api.RendezvousStoreInfo)
    assert (info.rank, info.world_size) == (0, 1)
    assert info.bootstrap_store_info.master_port == party.register.bootstrap.port
    assert isinstance(info.store, dist.Store)
    assert (handler.get_backend(), handler.get_run_id(), handler.use_agent_store) == ("redis", "job-7", True)
    assert (handler.num_nodes_waiting(), handler.is_closed()) == (0, False)
    handler.set_closed()
    assert handler.is_closed()


def test_torch_gets_its_own_errors(party: Party):
    with pytest.raises(torch_api.RendezvousTimeoutError, match="did not complete"):
        dressed(party, 2, 2, join=0.2).next_rendezvous()
    party.store.cut()
    cut_off = dressed(party, 1, 1, join=0.2, close_timeout=0.2)
    for call in (cut_off.next_rendezvous, cut_off.set_closed, cut_off.is_closed):
        with pytest.raises(torch_api.RendezvousConnectionError, match="could not be reached"):
            call()


def run_and_shut_down(handler: TorchrunHandler, error: BaseException | None) -> None:
    """As torch's launcher does it."""
    try:
        handler.next_rendezvous()
        if error is not None:
            raise error
    finally:
        assert handler.shutdown() is True


@pytest.mark.parametrize(
    ("make", "outcome"),
    [
        (lambda: None, "success"),
        (failed_workers, "failed"),
        (KeyboardInterrupt, None),
        (lambda: SystemExit(143), None),
        (lambda: RuntimeError("of the launcher"), None),
    ],
)
def test_a_shutdown_closes_the_run_only_if_its_reason_ends_the_job(party: Party, make, outcome: str | None):
    handler, error = dressed(party, 1, 1, stores=hash_stores()), make()
    if error is None:
        run_and_shut_down(handler, error)
    else:
        with pytest.raises(type(error)):
            run_and_shut_down(handler, error)
    closed = party.register.closed
    assert (closed.outcome if closed else None) == outcome
    assert not party.records


def test_a_shutdown_never_raises(party: Party, caplog, monkeypatch: pytest.MonkeyPatch):
    handler = dressed(party, 1, 1, stores=hash_stores())
    handler.next_rendezvous()
    monkeypatch.setattr(handler._handler, "end", lambda *args, **kwargs: 1 / 0)
    assert handler.shutdown() is False
    assert "the others will notice after the keep-alive TTL" in caplog.text


def test_a_shutdown_is_over_in_seconds_when_the_store_is_away(party: Party):
    handler = dressed(party, 1, 1, stores=hash_stores(), close_timeout=600.0)
    handler.next_rendezvous()
    party.store.cut()
    began = time.monotonic()
    assert handler.shutdown() is False
    assert time.monotonic() - began < 10


# --- signals ------------------------------------------------------------------------------------------------------

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass
class Told:
    """What a leave was told, and what torch's handler did after it."""

    said: list[str] = field(default_factory=list)

    def __call__(self, sentence: str) -> None:
        self.said.append(sentence)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.delenv("TORCHELASTIC_SIGNALS_TO_HANDLE", raising=False)
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield Told()
    for number, handler in before.items():
        signal.signal(number, handler)


def kill(number: int) -> None:
    """Send the main thread a signal. One to the process may reach another thread, and later, when nobody handles it."""
    signal.pthread_kill(threading.main_thread().ident, number)
    time.sleep(0)  # a bytecode boundary, where Python runs the handler


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_in_the_first_wait_a_signal_is_a_leave_and_then_an_exit(told: Told, number: signal.Signals):
    """torch has no handlers yet: without ours the process would die without a word to anybody."""
    with pytest.raises(SystemExit) as seen, LeaveSignals(told).stand_in():
        kill(number)
    assert seen.value.code == 128 + number
    assert told.said == [f"its launcher got {number.name}"]
    assert signal.getsignal(number) is signal.SIG_DFL, "as it was before"


def test_in_the_first_wait_ctrl_c_stays_a_keyboard_interrupt(told: Told):
    """torch calls shutdown() for it, which leaves."""
    with LeaveSignals(told).stand_in():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_the_first_wait_handlers_of_others_stay(told: Told):
    def mine(*_: Any) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    with LeaveSignals(told).stand_in():
        assert signal.getsignal(signal.SIGTERM) is mine
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL


def test_after_the_first_wait_a_handler_that_came_in_between_stays(told: Told):
    def mine(*_: Any) -> None: ...

    with LeaveSignals(told).stand_in():
        signal.signal(signal.SIGTERM, mine)
    assert signal.getsignal(signal.SIGTERM) is mine


def test_between_the_first_wait_and_torchs_own_handlers_a_signal_is_still_a_leave(told: Told):
    signals = LeaveSignals(told)
    with signals.stand_in():
        pass
    with pytest.raises(SystemExit) as seen:
        kill(signal.SIGTERM)
    assert (seen.value.code, told.said) == (143, ["its launcher got SIGTERM"])
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    as_torch_installs_them()
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is torch_processes._terminate_process_handler


def test_the_signals_are_those_that_torch_was_told(told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGHUP, SIGNONSENSE,SIGUSR1")
    before = signal.getsignal(signal.SIGUSR1)
    signals = LeaveSignals(told)
    with signals.stand_in():
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGUSR1) is not before
    signals.restore()
    assert signal.getsignal(signal.SIGUSR1) is before


def as_torch_installs_them() -> None:
    """torch does so whenever it starts workers."""
    for number in SIGNALS:
        signal.signal(number, torch_processes._terminate_process_handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_wrapped_signal_is_a_leave_and_then_torchs(told: Told, number: signal.Signals):
    as_torch_installs_them()
    LeaveSignals(told).wrap()
    with pytest.raises(SignalException) as seen:
        kill(number)
    assert seen.value.sigval == number
    assert told.said == [f"its launcher got {number.name}"]


def test_torchs_handlers_are_wrapped_once_and_anew_when_they_are_installed_anew(told: Told):
    signals = LeaveSignals(told)
    as_torch_installs_them()
    signals.wrap()
    first = signal.getsignal(signal.SIGTERM)
    signals.wrap()
    assert signal.getsignal(signal.SIGTERM) is first
    as_torch_installs_them()
    signals.wrap()
    second = signal.getsignal(signal.SIGTERM)
    assert second is not first
    with pytest.raises(SignalException):
        kill(signal.SIGTERM)
    assert len(told.said) == 1


def test_handlers_of_others_are_not_wrapped(told: Told):
    def mine(*_: Any) -> None: ...

    signal.signal(signal.SIGTERM, mine)
    LeaveSignals(told).wrap()
    assert signal.getsignal(signal.SIGTERM) is mine
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_only_the_main_thread_touches_signals(told: Told):
    as_torch_installs_them()
    signals = LeaveSignals(told)

    def elsewhere() -> Any:
        signals.wrap()
        with signals.stand_in():
            return signal.getsignal(signal.SIGTERM)

    (handler,) = together([elsewhere])
    assert handler is torch_processes._terminate_process_handler


def test_a_signal_to_a_child_of_fork_is_no_leave_of_the_parents(told: Told, monkeypatch: pytest.MonkeyPatch):
    as_torch_installs_them()
    signals = LeaveSignals(told)
    signals.wrap()
    wrapped = signal.getsignal(signal.SIGTERM)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(SignalException):
        wrapped(signal.SIGTERM, None)
    signal.signal(signal.SIGHUP, torch_processes._terminate_process_handler)
    signals.wrap()
    monkeypatch.undo()
    assert told.said == []
    assert signal.getsignal(signal.SIGHUP) is torch_processes._terminate_process_handler


def test_the_handler_wraps_when_the_main_thread_passes_by(party: Party, told: Told):
    handler = dressed(party, 1, 1, stores=hash_stores())
    handler.next_rendezvous()
    as_torch_installs_them()
    assert handler.num_nodes_waiting() == 0
    with pytest.raises(SignalException):
        kill(signal.SIGTERM)
    eventually("the record is withdrawn", lambda: not party.records, within=SOON)
    assert party.register.closed is None


def test_a_signal_in_the_first_wait_withdraws_the_node(party: Party, told: Told):
    handler = dressed(party, 2, 2)

    def once_it_waits() -> None:
        eventually("its record is there", lambda: party.records, within=SOON)
        kill(signal.SIGTERM)

    killer = Waiting(once_it_waits)
    with pytest.raises(SystemExit) as seen:
        handler.next_rendezvous()
    killer.result(within=SOON)
    assert seen.value.code == 143
    eventually("the record is withdrawn", lambda: not party.records, within=SOON)


# --- the store ----------------------------------------------------------------------------------------------------


@dataclass
class Rendezvous:
    """Stands in for the handler behind a store."""

    finished: int = 0
    released: str | None = None

    def finish(self) -> None:
        self.finished += 1


def agent_store(below: Any = None) -> tuple[AgentStore, Rendezvous]:
    rendezvous = Rendezvous()
    return AgentStore(below if below is not None else dist.HashStore(), rendezvous), rendezvous


def test_a_store_passes_everything_on():
    below = dist.HashStore()
    store, rendezvous = agent_store(below)
    store.set("a", "1")
    assert below.get("a") == store.get("a") == b"1"
    assert store.add("n", 2) == 2
    assert store.add("n", 3) == 5
    assert store.compare_set("a", "1", "2") == b"2"
    assert store.check(["a"])
    assert not store.check(["b"])
    store.append("a", "3")
    assert store.get("a") == b"23"
    store.multi_set(["x", "y"], ["8", "9"])
    assert store.multi_get(["x", "y"]) == [b"8", b"9"]
    store.wait(["a", "x"])
    assert store.num_keys() == below.num_keys() == 4
    assert store.delete_key("x")
    assert not store.check(["x"])
    store.set_timeout(timedelta(seconds=7))
    assert store.timeout == below.timeout == timedelta(seconds=7)
    assert store.has_extended_api() == below.has_extended_api()
    assert rendezvous.finished == 0


def test_a_store_works_under_torchs_prefix():
    """PrefixStore is C++, and calls the Python methods of what is below it."""
    store, rendezvous = agent_store()
    prefixed = dist.PrefixStore("p", store)
    prefixed.set("a", "1")
    assert prefixed.get("a") == store.get("p/a") == b"1"
    assert prefixed.add("n", 1) == 1
    assert rendezvous.finished == 0


def test_an_ordinary_wait_has_its_own_timeout():
    store, rendezvous = agent_store()
    rendezvous.released = "nobody else is there"
    began = time.monotonic()
    with pytest.raises(dist.DistStoreError):
        store.wait(["not there"], timedelta(seconds=0.6))
    assert time.monotonic() - began >= 0.5, "a release is for the exit barrier only"


def exit_barrier(store: Any, world: int, timeout: float = 60.0) -> None:
    """As torch's agent does it at the end of a job."""
    torch_store.barrier(store=store, world_size=world, key_prefix=BARRIER, barrier_timeout=timeout)


def test_the_exit_barrier_of_torch_says_that_this_node_is_done():
    store, rendezvous = agent_store()
    exit_barrier(store, 1)
    assert rendezvous.finished == 1


def test_the_last_member_of_the_exit_barrier_lets_all_go_at_once():
    below = dist.HashStore()
    stores = [agent_store(below)[0] for _ in range(2)]
    first = Waiting(lambda: exit_barrier(stores[0], 2))
    assert first.blocks()
    arrived = time.monotonic()
    exit_barrier(stores[1], 2)
    left = time.monotonic()
    first.result(within=SOON)
    assert max(first.ended, left) - arrived < 5


def test_a_released_node_leaves_the_exit_barrier_with_an_error_that_torch_bears():
    store, rendezvous = agent_store()
    waiting = Waiting(lambda: exit_barrier(store, 2))
    assert waiting.blocks()
    rendezvous.released = "round 1 lost its other members"
    with pytest.raises(
        dist.DistStoreError, match="ends early, and this node ends well: round 1 lost its other members"
    ):
        waiting.result(within=SOON)


def test_the_exit_barrier_has_an_end_of_its_own():
    store, _ = agent_store()
    began = time.monotonic()
    with pytest.raises(dist.DistStoreError):
        exit_barrier(store, 2, timeout=0.6)
    assert 0.5 <= time.monotonic() - began < 30


def test_a_whole_round_passes_the_exit_barrier(party: Party):
    stores = hash_stores()
    handlers = [dressed(party, 2, 2, stores=stores) for _ in range(2)]
    infos = together([handler.next_rendezvous for handler in handlers])
    together([lambda info=info: exit_barrier(info.store, info.world_size) for info in infos])
    eventually("both say that they are done", lambda: all(r.done for r in party.records.values()), within=SOON)
    assert [handler.shutdown() for handler in handlers] == [True, True]
    assert party.register.closed.outcome == "success"


# --- all members are to reach the store ----------------------------------------------------------------------------


def test_nobody_returns_before_all_members_have_reached_the_store():
    store = dist.HashStore()
    first = Waiting(lambda: all_arrive(store, 3, lambda: True, SOON))
    second = Waiting(lambda: all_arrive(store, 3, lambda: True, SOON))
    assert first.blocks()
    assert second.blocks()
    assert all_arrive(store, 3, lambda: True, SOON)
    assert first.result(within=SOON)
    assert second.result(within=SOON)


def test_a_round_that_does_not_stand_any_more_is_not_waited_for():
    broken = threading.Event()
    waiting = Waiting(lambda: all_arrive(dist.HashStore(), 2, lambda: not broken.is_set(), SOON))
    assert waiting.blocks()
    broken.set()
    assert waiting.result(within=SOON) is False
    assert all_arrive(dist.HashStore(), 2, lambda: True, 0.1) is False


def test_once_one_has_given_up_nobody_completes_the_round():
    store, broken = dist.HashStore(), threading.Event()
    first = Waiting(lambda: all_arrive(store, 3, lambda: not broken.is_set(), SOON))
    second = Waiting(lambda: all_arrive(store, 3, lambda: True, SOON))
    assert second.blocks()
    broken.set()
    assert first.result(within=SOON) is False
    assert second.result(within=SOON) is False, "it is told by the verdict, and not by its own look"
    assert all_arrive(store, 3, lambda: True, SOON) is False, "the last to come is too late"


def test_once_all_have_come_nobody_gives_up():
    store = dist.HashStore()
    assert together([lambda: all_arrive(store, 2, lambda: True, SOON)] * 2) == [True, True]
    assert all_arrive(store, 4, lambda: False, SOON), "who comes or gives up later finds the verdict"


def test_a_store_whose_host_has_frozen_holds_nobody(monkeypatch: pytest.MonkeyPatch):
    """A call of it does not come back, whatever its timeout; the main thread is to stay free for signals."""
    monkeypatch.setattr(arrival, "VERDICT_SECONDS", 1.0)
    program = (
        "import sys, torch.distributed as d\n"
        "store = d.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
        "print(store.port, flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True) as host:
        try:
            port = int(host.stdout.readline())
            store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=SOON))
            stood = threading.Event()
            waiting = Waiting(lambda: all_arrive(store, 2, lambda: not stood.is_set(), SOON))
            assert waiting.blocks()
            host.send_signal(signal.SIGSTOP)
            stood.set()
            assert waiting.result(within=SOON) is False
        finally:
            host.kill()


def test_a_store_that_has_gone_is_no_fault_of_the_launcher():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, timeout=timedelta(seconds=2))
    waiting = Waiting(lambda: all_arrive(client, 2, lambda: True, SOON))
    assert waiting.blocks()
    del server
    gc.collect()
    assert waiting.result(within=SOON) is False


def test_when_a_member_never_reaches_the_store_the_others_join_again(party: Party):
    """It was seated, and died or was cut off before it could reach rank 0. torch's agents would wait, and fail."""
    stores = hash_stores()
    doomed = party.guest(2, 3, stores=stores)
    handlers = [dressed(party, 2, 3, stores=stores) for _ in range(2)]
    joining = [doomed.joins(), *(Waiting(handler.next_rendezvous) for handler in handlers)]
    assert joining[0].result(within=SOON).world_size == 3
    assert all(waiting.blocks() for waiting in joining[1:])
    doomed.handler.leave("its machine is cut off")
    infos = [waiting.result(within=SOON) for waiting in joining[1:]]
    assert sorted((info.rank, info.world_size) for info in infos) == [(0, 2), (1, 2)]
    assert party.register.round == 2


def test_who_is_interrupted_while_members_arrive_gives_its_seat_back(party: Party, told: Told):
    stores = hash_stores()
    missing = party.guest(2, 2, stores=stores)
    handler = dressed(party, 2, 2, stores=stores)
    joining = missing.joins()

    def once_it_waits() -> None:
        joining.result(within=SOON)
        eventually("it has its seat", lambda: handler._handler._session.seat is not None, within=SOON)
        kill(signal.SIGINT)

    interrupting = Waiting(once_it_waits)
    with pytest.raises(KeyboardInterrupt):
        handler.next_rendezvous()
    interrupting.result(within=SOON)
    eventually("the other is told", lambda: missing.handler.num_nodes_waiting() == 1, within=SOON)
    assert handler.shutdown() is True
    assert party.register.closed is None, "it has not ended the job for the other"


def test_a_run_that_is_closed_while_members_arrive_is_told_at_once(party: Party):
    stores = hash_stores()
    missing = party.guest(2, 2, stores=stores)
    handler = dressed(party, 2, 2, stores=stores)
    joining = [missing.joins(), Waiting(handler.next_rendezvous)]
    joining[0].result(within=SOON)
    assert joining[1].blocks()
    missing.handler.set_closed()
    with pytest.raises(torch_api.RendezvousClosedError):
        joining[1].result(within=SOON)


def test_the_time_before_the_first_failed_arrival_does_not_count(party: Party, monkeypatch: pytest.MonkeyPatch):
    """A spare may have waited for hours before a round is to be joined again."""
    clock, rounds = [0.0], []
    ours = party.guest(1, 1, join=600.0, stores=hash_stores()).handler
    handler = TorchrunHandler(ours, "redis", clock=lambda: clock[0])

    def next_rendezvous() -> Any:
        clock[0] += 5000.0 if not rounds else 200.0
        rounds.append(clock[0])
        return RendezvousInfo(dist.HashStore(), 0, 2, None)

    monkeypatch.setattr(ours, "next_rendezvous", next_rendezvous)
    monkeypatch.setattr(torchrun_handler, "all_arrive", lambda *_: False)
    with pytest.raises(torch_api.RendezvousTimeoutError, match="no round whose members all reached its store"):
        handler.next_rendezvous()
    assert rounds == [5000.0, 5200.0, 5400.0, 5600.0]


# --- the entry ----------------------------------------------------------------------------------------------------


class OneBackend:
    """Stands in for the registry."""

    def __init__(self, endpoint: str | None = None) -> None:
        self.endpoint = endpoint
        self.asked: list[Any] = []

    def create_handler(self, params: Any) -> Any:
        self.asked.append(params)
        where = None if self.endpoint is None else parse_endpoint(self.endpoint, default_port=6379)
        return DynamicRendezvousHandler.from_backend(
            params.run_id,
            None,
            MemoryBackend(MemoryStore(), params.run_id),
            params.min_nodes,
            params.max_nodes,
            "host-a",
            options=params.config,
            endpoint=where,
            stores=Stores(),
        )


def ask(
    monkeypatch: pytest.MonkeyPatch, registry: Any, run_id: str = "job-7", endpoint: str = "", **config: Any
) -> Any:
    monkeypatch.setattr(entry, "rendezvous_handler_registry", registry)
    monkeypatch.setattr(entry, "_make_log_visible", lambda: None)
    params = TorchParameters("redis", endpoint, run_id, 1, 2, "127.0.0.2", **config)
    return entry.create_handler_for_torchrun(params, "redis")


def test_the_entry_hands_on_what_torch_was_given(monkeypatch: pytest.MonkeyPatch):
    registry = OneBackend()
    handler = ask(monkeypatch, registry, endpoint="  h:1 ", timeout=900)
    (params,) = registry.asked
    assert (params.backend, params.endpoint, params.run_id) == ("redis", "h:1", "job-7")
    assert (params.min_nodes, params.max_nodes, params.local_addr) == (1, 2, "127.0.0.2")
    assert params.config == {"timeout": 900}
    assert isinstance(handler, TorchrunHandler)
    assert handler.get_backend() == "redis"


def test_a_backend_that_cannot_be_made_is_told_in_torchs_class(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def create_handler(self, params: Any) -> Any:
            raise errors.RendezvousConnectionError("python-etcd is not installed.")

    with pytest.raises(torch_api.RendezvousConnectionError, match=r"^python-etcd is not installed"):
        ask(monkeypatch, Broken())


def test_a_name_of_our_own_may_stand_for_another_of_the_registry(monkeypatch: pytest.MonkeyPatch):
    registry = OneBackend()
    monkeypatch.setattr(entry, "rendezvous_handler_registry", registry)
    params = TorchParameters("rdzv-c10d", "", "job-7", 1, 1)
    handler = entry.create_handler_for_torchrun(params, "rdzv-c10d", backend="c10d")
    assert registry.asked[0].backend == "c10d"
    assert handler.get_backend() == "rdzv-c10d"


@pytest.mark.parametrize("endpoint", [None, "db.example:6379", "10.0.0.7"])
def test_the_run_id_none_is_refused_on_a_shared_store(monkeypatch: pytest.MonkeyPatch, endpoint: str | None):
    with pytest.raises(ValueError, match="which torchrun takes when --rdzv-id is not given") as refused:
        ask(monkeypatch, OneBackend(endpoint), "none")
    assert "Give every node of this job the same --rdzv-id" in str(refused.value)
    assert "--rdzv-conf=allow_default_run_id=true" in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "run_id", "config"),
    [
        ("127.0.0.1:6379", "none", {}),
        ("localhost", "none", {}),
        ("db.example", "none", {"allow_default_run_id": "true"}),
        ("db.example", "None", {}),
        ("db.example", "job-7", {}),
    ],
)
def test_other_runs_are_let_in(monkeypatch: pytest.MonkeyPatch, endpoint: str, run_id: str, config: dict):
    assert ask(monkeypatch, OneBackend(endpoint), run_id, **config).get_run_id() == run_id


def test_a_handler_that_is_not_ours_is_handed_on_as_it_is(monkeypatch: pytest.MonkeyPatch):
    class Registry:
        def create_handler(self, params: Any) -> str:
            return "a stranger's handler"

    assert ask(monkeypatch, Registry(), "none") == "a stranger's handler"


def test_events_reach_the_log(monkeypatch: pytest.MonkeyPatch, caplog):
    caplog.set_level(logging.INFO, "rdzv_core")
    handler = ask(monkeypatch, OneBackend())
    joining = Waiting(handler.next_rendezvous)
    eventually("it says that it joins", lambda: "joins run 'job-7'" in caplog.text, within=SOON)
    handler.shutdown()
    with pytest.raises(torch_api.RendezvousClosedError):
        joining.result(within=SOON)
    assert "leaves run 'job-7'" in caplog.text


def as_the_launcher_calls(call: Callable[[], Any], max_restarts: int) -> Any:
    """Through a frame like that of torch's own function of this name."""

    @dataclass
    class LaunchConfig:
        max_restarts: int

    def launch_agent(config: LaunchConfig) -> Any:
        return call()

    return launch_agent(LaunchConfig(max_restarts))


def test_an_elastic_job_without_restarts_is_warned_of_crashes(monkeypatch: pytest.MonkeyPatch, caplog):
    make = lambda: ask(monkeypatch, OneBackend())  # noqa: E731
    make()
    as_the_launcher_calls(make, 1)
    assert "--max-restarts" not in caplog.text
    as_the_launcher_calls(make, 0)
    assert "run 'job-7' may go on with fewer nodes (--nnodes=1:2), but not after a crash" in caplog.text


def test_events_reach_torchs_recorder_if_somebody_listens(monkeypatch: pytest.MonkeyPatch):
    heard: list[Any] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(RdzvEvent.deserialize(record.getMessage()))

    handler = ask(monkeypatch, OneBackend(), last_call_timeout=0.1)
    handler._handler.next_rendezvous()
    assert not heard
    collector = Collector()
    monkeypatch.setitem(torch_recorders._log_handlers, "dynamic_rendezvous", collector)
    monkeypatch.setattr(torch_events, "_events_loggers", {})
    handler._handler.next_rendezvous()
    handler.shutdown()
    logging.getLogger("torchelastic-events-dynamic_rendezvous").removeHandler(collector)
    told = {event.name: event for event in heard}
    done = told["rdzv_core:round_completed"]
    assert (done.run_id, done.hostname, done.pid, done.rank) == ("job-7", "host-a", os.getpid(), 0)
    assert done.node_state is NodeState.RUNNING
    assert done.message.startswith("Round 2 of run 'job-7' is complete")
    assert told["rdzv_core:node_joining"].node_state is NodeState.INIT
    assert told["rdzv_core:run_closed"].node_state is NodeState.SUCCEEDED


def log_of(program: str, **environ: str) -> str:
    """What a program writes to stderr in a process where nobody has set up logging."""
    ended = subprocess.run(
        [sys.executable, "-c", f"import logging\nfrom rdzv_core.torchrun.entry import _make_log_visible\n{program}"],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "LOGLEVEL"} | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ended.stderr


SPEAK = "_make_log_visible(); _make_log_visible(); logging.getLogger('rdzv_core.runtime').info('hello')"


def test_our_lines_are_seen_if_nobody_has_configured_logging():
    (line,) = log_of(SPEAK).splitlines()
    assert line.startswith("[rdzv] ")
    assert line.endswith(" INFO hello")


@pytest.mark.parametrize(
    ("level", "seen"), [("WARNING", False), ("debug", True), ("nonsense", True), ("Level 7", True)]
)
def test_loglevel_is_heard(level: str, seen: bool):
    assert ("hello" in log_of(SPEAK, LOGLEVEL=level)) is seen


def test_who_has_configured_logging_keeps_it():
    assert log_of("logging.basicConfig(level='INFO', format='mine: %(message)s')\n" + SPEAK) == "mine: hello\n"
    assert log_of("logging.basicConfig(level='ERROR')\n" + SPEAK) == ""
