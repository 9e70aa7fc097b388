"""How a handler is made, and what it says of itself."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta

import pytest

from rdzv_core.api import RendezvousParameters, RendezvousTimeout
from rdzv_core.endpoint import Endpoint, parse_endpoint
from rdzv_core.errors import RendezvousError
from rdzv_core.options import Option, OptionError
from rdzv_core.runtime.clock import SystemClock
from rdzv_core.runtime.handler import DynamicRendezvousHandler, create_handler
from rdzv_core.runtime.journal import LENGTH, Journal
from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.testing.memory import MemoryBackend, MemoryRegister, MemoryStore
from rdzv_core.testing.suite import Waiting, eventually
from rdzv_core.wire import decode_record
from tests.runtime.party import RUN, SOON, Stores


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(MemoryStore(), RUN)


def parameters(**config: object) -> RendezvousParameters:
    return RendezvousParameters("memory", "", RUN, 1, 2, None, **config)


def test_a_handler_knows_what_it_was_told(backend: MemoryBackend):
    handler = DynamicRendezvousHandler.from_backend(
        RUN, None, backend, 2, 4, "host-a", RendezvousTimeout(join=timedelta(seconds=7)), 1.5, 4
    )
    assert (handler.get_backend(), handler.get_run_id()) == ("memory", RUN)
    settings = handler.settings
    assert (settings.run_id, settings.min_nodes, settings.max_nodes) == (RUN, 2, 4)
    assert settings.timeout.join == timedelta(seconds=7)
    assert settings.keep_alive_interval == timedelta(seconds=1.5)
    assert settings.keep_alive_max_attempt == 4
    assert handler.options["join_timeout"] == 7
    assert handler.options["leave_timeout"] == 3.5, "half of the join timeout"
    assert handler.options["scale_up_delay"] == 6, "one TTL"


def test_each_handler_is_a_node_of_its_own(backend: MemoryBackend):
    handlers = [DynamicRendezvousHandler.from_backend(RUN, None, backend, 1, 1, "host-a") for _ in range(3)]
    assert len({handler.node_id for handler in handlers}) == 3
    assert all(len(handler.node_id) == 12 for handler in handlers)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("", None, 1, 1), "The run id must be a non-empty string."),
        ((RUN, None, 0, 1), "The minimum number of nodes (0) must be greater than zero."),
        ((RUN, None, 2, 1), "must be greater than or equal to the minimum number of nodes (2)"),
    ],
)
def test_what_cannot_be_is_refused_at_birth(backend: MemoryBackend, arguments, sentence: str):
    run_id, store, low, high = arguments
    with pytest.raises(ValueError, match=r".") as refused:
        DynamicRendezvousHandler.from_backend(run_id, store, backend, low, high, "host-a")
    assert sentence in str(refused.value)


def test_an_unknown_option_is_refused_with_its_neighbour(backend: MemoryBackend):
    with pytest.raises(OptionError, match="last_call_timeout"):
        DynamicRendezvousHandler.from_backend(RUN, None, backend, 1, 1, options={"last_cal_timeout": 3})


def test_a_bare_register_is_lifted(backend: MemoryBackend):
    register = MemoryRegister(MemoryStore(), RUN)
    handler = DynamicRendezvousHandler.from_backend(RUN, None, register, 1, 1, "host-a", stores=Stores())
    assert isinstance(handler._runner._backend, RegisterCoordination)
    handler = DynamicRendezvousHandler.from_backend(RUN, None, backend, 1, 1, "host-a", stores=Stores())
    assert handler._runner._backend is backend


def test_a_creator_reads_the_options_and_tells_what_is_doubtful(backend: MemoryBackend, caplog):
    caplog.set_level(logging.INFO, "rdzv_core")
    handler = create_handler(None, backend, parameters(last_call_timeout="900", timeout=900, keep_alive_interval="2"))
    assert handler.options["join_timeout"] == 900
    assert handler.settings.keep_alive_interval == timedelta(seconds=2)
    ours = [r for r in caplog.records if r.name == "rdzv_core.runtime.handler"]
    (doubt,) = [r.getMessage() for r in ours if r.levelno == logging.WARNING]
    assert doubt.startswith("run 'job-7': last_call_timeout (900 s) is not below join_timeout (900 s)")
    (told,) = [r.getMessage() for r in ours if r.levelno == logging.INFO]
    assert told.startswith("run 'job-7' on backend 'memory': ")


def test_a_backends_own_options_are_known_and_not_the_handlers(backend: MemoryBackend):
    colour = Option(name="colour", kind="text", default="red", sentence="Of the store.")
    handler = create_handler(None, backend, parameters(colour="blue"), backend_options=(colour,))
    assert "colour" not in handler.options
    with pytest.raises(OptionError, match="colour"):
        create_handler(None, backend, parameters(colour="blue"))
    backend.options = (colour,)
    assert "colour" not in create_handler(None, backend, parameters(colour="blue")).options


def test_the_local_address_is_found_by_the_endpoint():
    store = MemoryStore()
    endpoint: Endpoint = parse_endpoint("127.0.0.7:6379", default_port=6379)
    for where, given, expected in (
        (endpoint, None, "127.0.0.1"),
        (endpoint, "node-7.example", "node-7.example"),
        (None, "node-7.example", "node-7.example"),
    ):
        params = RendezvousParameters("memory", "", RUN, 2, 2, given)
        handler = create_handler(None, MemoryBackend(store, RUN), params, endpoint=where)
        look = MemoryBackend(store, RUN)
        joining = Waiting(handler.next_rendezvous)
        eventually("it is announced", lambda look=look: look.roster().records, within=SOON)
        (entry,) = look.roster().records
        assert decode_record(entry.record).addr == expected
        handler.leave("the test is over")
        with suppress(RendezvousError):
            joining.result(within=SOON)


def test_an_endpoint_that_no_other_machine_can_reach_is_doubted(backend: MemoryBackend, caplog):
    endpoint: Endpoint = parse_endpoint("", default_port=6379, allow_empty=True)
    create_handler(None, backend, RendezvousParameters("memory", "", RUN, 1, 1), endpoint=endpoint)
    create_handler(None, backend, RendezvousParameters("memory", "", RUN, 1, 2, "10.0.0.7"), endpoint=endpoint)
    assert "on this machine" not in caplog.text
    create_handler(None, backend, RendezvousParameters("memory", "", RUN, 1, 2), endpoint=endpoint)
    assert "the endpoint 'localhost:6379' is on this machine, so nodes on other machines do not meet" in caplog.text
    assert "give all nodes one endpoint that all can reach" in caplog.text


def test_an_option_by_name_counts_as_the_argument_does(backend: MemoryBackend):
    handler = DynamicRendezvousHandler.from_backend(
        RUN, None, backend, 1, 1, "host-a", options={"join_timeout": 5, "heartbeat_timeout": 2}, stores=Stores()
    )
    timeout = handler.settings.timeout
    assert (timeout.join, timeout.heartbeat) == (timedelta(seconds=5), timedelta(seconds=2))


# --- the journal ----------------------------------------------------------------------------------------------


class Clock(SystemClock):
    time = 0

    def wall(self) -> str:
        self.time += 1
        return f"{self.time} o'clock"


def test_the_journal_keeps_a_sentence_once_with_its_first_time():
    journal = Journal(Clock())
    assert journal.note("waits")
    assert not journal.note("waits")
    assert journal.note("goes")
    assert journal.note("waits")
    assert [line.split("  ")[2] for line in journal.story()] == ["waits", "goes", "waits"]
    assert journal.story()[0] == "  1 o'clock  waits"


def test_the_journal_keeps_the_last_sentences_only():
    journal = Journal(Clock())
    for number in range(3 * LENGTH):
        journal.note(str(number))
    assert len(journal.story()) == LENGTH
    assert journal.story()[-1].endswith(f"  {3 * LENGTH - 1}")
