"""Ours and the installed torch's, asked the same: equal answers, equal kinds of error."""

from __future__ import annotations

import importlib.util
import inspect
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdzv_core import api as ours
from rdzv_core import errors as our_errors
from rdzv_core.registry import RendezvousHandlerRegistry

if importlib.util.find_spec("torch") is not None:
    import torch.distributed as dist
    from torch.distributed.elastic import rendezvous as theirs
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous as their_dynamic

pytestmark = pytest.mark.needs_torch

TEXTS = st.text(max_size=6) | st.sampled_from(
    ["1", "0", "true", "True", "T", "yes", "Y", "false", "F", "no", "N", "on", "off", " 5 ", "-3", "1_0", "0x1", "٣"]
)
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.integers(), st.floats(), TEXTS, st.just([1]))
DURATIONS = st.none() | st.timedeltas(min_value=timedelta(days=-1), max_value=timedelta(days=9)) | st.just(5)


def outcome(call: Any, *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """What a call comes to: its answer with its type, or the kind of its error."""
    try:
        answer = call(*args, **kwargs)
    except Exception as error:
        return "raised", type(error).__name__
    return "answered", (type(answer), answer)


@given(VALUES, VALUES, st.sampled_from(["get", "get_as_bool", "get_as_int"]), st.sampled_from(["key", "other"]))
def test_parameters_are_read_alike(value: Any, default: Any, getter: str, key: str):
    about = {"backend": "b", "endpoint": "e", "run_id": "r", "min_nodes": 1, "max_nodes": 2, "key": value}
    our, their = ours.RendezvousParameters(**about), theirs.RendezvousParameters(**about)
    assert outcome(getattr(our, getter), key, default) == outcome(getattr(their, getter), key, default)
    assert outcome(getattr(our, getter), key) == outcome(getattr(their, getter), key)


@given(st.sampled_from(["", "b"]), st.integers(-2, 4), st.integers(-2, 4), st.none() | st.text(max_size=3))
def test_parameters_are_made_alike(backend: str, low: int, high: int, addr: str | None):
    def make(kind: Any) -> tuple[str, Any]:
        seen = outcome(kind, backend, "e", "r", low, high, addr, x="1")
        return (seen[0], vars(seen[1][1])) if seen[0] == "answered" else seen

    assert make(ours.RendezvousParameters) == make(theirs.RendezvousParameters)


@given(DURATIONS, DURATIONS, DURATIONS, DURATIONS)
def test_timeouts_are_made_alike(join: Any, last_call: Any, close: Any, heartbeat: Any):
    def make(kind: Any) -> tuple[str, Any]:
        seen = outcome(kind, join, last_call, close, heartbeat)
        if seen[0] == "raised":
            return seen
        made = seen[1][1]
        return seen[0], (made.join, made.last_call, made.close, made.heartbeat)

    assert make(ours.RendezvousTimeout) == make(their_dynamic.RendezvousTimeout)


def test_settings_are_made_alike():
    given = ("job-7", 1, 2, "timeout", timedelta(seconds=5), 3)
    our, their = ours.RendezvousSettings(*given), their_dynamic.RendezvousSettings(*given)
    names = list(inspect.signature(their_dynamic.RendezvousSettings).parameters)
    assert list(inspect.signature(ours.RendezvousSettings).parameters) == names
    assert [getattr(our, name) for name in names] == [getattr(their, name) for name in names]
    for settings in (our, their):
        with pytest.raises(AttributeError):
            settings.run_id = "x"


@given(st.integers(), st.integers(), st.none() | st.just("where"))
def test_infos_are_alike(rank: int, world: int, where: Any):
    our, their = (api.RendezvousInfo("store", rank, world, where) for api in (ours, theirs))
    names = ("store", "rank", "world_size", "bootstrap_store_info")
    assert [getattr(our, name) for name in names] == [getattr(their, name) for name in names]
    for info in (our, their):
        with pytest.raises(AttributeError):
            info.rank = 1


@pytest.mark.parametrize("port", [None, 4321])
@pytest.mark.parametrize("addr", [None, "192.0.2.1"])
def test_store_infos_are_read_by_one_another(addr: str | None, port: int | None):
    for writer, reader in ((ours, theirs), (theirs, ours)):
        store = dist.PrefixStore("round-1", dist.HashStore())
        wrote = writer.RendezvousStoreInfo.build(0, store, addr, port)
        read = reader.RendezvousStoreInfo.build(1, store, None)
        assert (read.master_addr, read.master_port) == (wrote.master_addr, wrote.master_port)
        assert 0 < wrote.master_port < 65536
        assert addr in (None, wrote.master_addr)
        assert port in (None, wrote.master_port)


def test_store_infos_have_the_same_keys_and_fields():
    assert ours.RendezvousStoreInfo.MASTER_ADDR_KEY == theirs.RendezvousStoreInfo.MASTER_ADDR_KEY
    assert ours.RendezvousStoreInfo.MASTER_PORT_KEY == theirs.RendezvousStoreInfo.MASTER_PORT_KEY
    assert repr(ours.RendezvousStoreInfo("h", 1)) == repr(theirs.RendezvousStoreInfo("h", 1))
    assert ours.RendezvousStoreInfo("h", 1) == ours.RendezvousStoreInfo(master_addr="h", master_port=1)


def test_a_store_of_torch_that_gave_up_waiting_is_asked_again_until_our_own_deadline():
    store = dist.HashStore()
    store.set_timeout(timedelta(milliseconds=20))
    with pytest.raises(dist.DistStoreError):
        theirs.RendezvousStoreInfo.build(1, store, None)
    with pytest.raises(our_errors.RendezvousTimeoutError, match="the key MASTER_ADDR") as caught:
        ours.RendezvousStoreInfo.build(1, store, None, timeout=timedelta(milliseconds=100))
    assert isinstance(caught.value.__cause__, dist.DistStoreError)


def test_a_store_of_torch_is_a_store():
    assert isinstance(dist.HashStore(), ours.Store)


def test_every_public_name_of_torch_is_ours_too():
    import rdzv_core

    assert set(theirs.__all__) <= set(rdzv_core.__all__)
    for name in theirs.__all__:
        their, our = getattr(theirs, name), getattr(rdzv_core, name)
        if inspect.isclass(their):
            members = {n for n in vars(their) if not n.startswith("_")}
            assert members <= {n for n in dir(our) if not n.startswith("_")}, name
            assert issubclass(our, Exception) == issubclass(their, Exception), name


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("RendezvousParameters", "__init__"),
        ("RendezvousParameters", "get"),
        ("RendezvousParameters", "get_as_bool"),
        ("RendezvousParameters", "get_as_int"),
        ("RendezvousStoreInfo", "build"),
        ("RendezvousInfo", "__init__"),
        ("RendezvousHandlerRegistry", "register"),
        ("RendezvousHandlerRegistry", "create_handler"),
    ],
)
def test_a_call_that_torch_takes_is_taken(name: str, member: str):
    """Same names, order and defaults; ours may take more by keyword."""
    import rdzv_core

    def shape(owner: Any) -> list[tuple[str, Any, Any]]:
        found = inspect.signature(getattr(getattr(owner, name), member)).parameters.values()
        return [(p.name, p.kind, p.default) for p in found]

    our = shape(rdzv_core)
    assert [p for p in our if p[1] is not inspect.Parameter.KEYWORD_ONLY] == shape(theirs)


def test_handlers_have_the_same_members():
    assert ours.RendezvousHandler.__abstractmethods__ == theirs.RendezvousHandler.__abstractmethods__
    assert isinstance(inspect.getattr_static(ours.RendezvousHandler, "use_agent_store"), property)


def test_errors_have_the_same_family():
    for name in our_errors.__all__:
        our, their = getattr(our_errors, name), getattr(theirs, name)
        assert [base.__name__ for base in our.__mro__] == [base.__name__ for base in their.__mro__]


class Handler:
    def __init__(self, name: str) -> None:
        self.name = name

    def get_backend(self) -> str:
        return self.name


def echo(params: Any) -> Any:
    return Handler(params.backend)


def lie(params: Any) -> Any:
    return Handler("other")


def refuse(params: Any) -> Any:
    raise KeyError(params.backend)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["register", "create"]),
        st.sampled_from(["", "a", "b"]),
        st.sampled_from([echo, lie, refuse]),
    ),
    max_size=8,
)


@given(STEPS)
def test_registries_behave_alike(steps: list[tuple[str, str, Any]]):
    our, their = RendezvousHandlerRegistry(), theirs.RendezvousHandlerRegistry()
    for what, name, creator in steps:
        if what == "register":
            assert outcome(our.register, name, creator) == outcome(their.register, name, creator)
        elif name:
            seen = []
            for registry, api in ((our, ours), (their, theirs)):
                answer = outcome(registry.create_handler, api.RendezvousParameters(name, "e", "r", 1, 1))
                seen.append(answer[1][1].name if answer[0] == "answered" else _plain(answer[1]))
            assert seen[0] == seen[1]


def _plain(error: str) -> str:
    return "ValueError" if error == "PluginError" else error
