"""Hooks watch, describe, veto and order; no plugin can harm the rendezvous or another plugin."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rdzv_core.discovery import HOOKS, Discovery, Offer, PluginError
from rdzv_core.events import Event, NodeSpare
from rdzv_core.hooks import Hooks, Member, hookimpl
from rdzv_core.machine.record import Record

EVENT = NodeSpare(run_id="job-7", node_id="n1", backend="redis", round=3)


def hooks_of(environ: dict[str, str] | None = None, strict: bool = False, **plugins: Any) -> Hooks:
    """Hooks with these plugins installed, by name; an exception is a plugin that cannot be imported."""

    def load(plugin: Any) -> Any:
        if isinstance(plugin, BaseException):
            raise plugin
        return plugin

    def read(group: str) -> list[Offer]:
        assert group == HOOKS
        return [
            Offer(
                group=group,
                name=name,
                target=f"mod:{name}",
                distribution=f"{name} 1.0",
                load=lambda plugin=plugin: load(plugin),
            )
            for name, plugin in plugins.items()
        ]

    return Hooks(Discovery(read, strict=strict), environ=environ or {})


class Plugin:
    """A plugin that implements hooks by these functions."""

    def __init__(self, functions: dict[str, Any], **marks: Any) -> None:
        for name, function in functions.items():
            setattr(self, name, hookimpl(**marks)(function))


def plugin(**functions: Any) -> Plugin:
    return Plugin(functions)


def record(node_id: str, **values: Any) -> Record:
    about = {"addr": "192.0.2.1", "pid": 1, "local_id": 0, "seq": 1, "min_nodes": 1, "max_nodes": 4}
    return Record(node_id=node_id, **{**about, **values})


OURS = ("rdzv_core.hooks", "rdzv_core.discovery")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the hooks say; threads of other tests may speak of other things."""
    return [entry.getMessage() for entry in caplog.records if entry.name.startswith(OURS)]


# --- the hooks ----------------------------------------------------------------------------------------------


def test_hook_rdzv_event():
    got: list[tuple[Event, str]] = []

    def rdzv_event(event: Event) -> None:
        got.append((event, threading.current_thread().name))

    hooks = hooks_of(watcher=plugin(rdzv_event=rdzv_event))
    for number in range(3):
        hooks.event(NodeSpare(run_id="job-7", node_id="n1", backend="redis", round=number))
    assert hooks.drain(30)
    assert [event.round for event, _ in got] == [0, 1, 2]
    assert {thread for _, thread in got} == {"rdzv-event-hooks"}


def test_a_slow_watcher_delays_nobody_and_loses_events_rather_than_memory(caplog: pytest.LogCaptureFixture):
    entered, go_on = threading.Event(), threading.Event()
    got: list[Event] = []

    def rdzv_event(event: Event) -> None:
        entered.set()
        assert go_on.wait(30)
        got.append(event)

    hooks = hooks_of(slow=plugin(rdzv_event=rdzv_event))
    hooks.event(EVENT)
    assert entered.wait(30)
    for _ in range(1005):
        hooks.event(EVENT)
    assert hooks.drain(0.01) is False
    go_on.set()
    assert hooks.drain(30)
    assert len(got) == 1001
    assert len([text for text in said(caplog) if "too slow" in text]) == 1


def test_a_broken_watcher_is_told_once_and_others_see_all(caplog: pytest.LogCaptureFixture):
    got: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no disk")

    hooks = hooks_of(
        a=plugin(rdzv_event=lambda event: got.append(event)),
        b=plugin(rdzv_event=broken),
        c=plugin(rdzv_event=lambda event: got.append(event)),
    )
    hooks.event(EVENT)
    hooks.event(EVENT)
    assert hooks.drain(30)
    assert got == [EVENT] * 4
    assert len([text for text in said(caplog) if "'b' raised in rdzv_event" in text]) == 1


def test_hook_rdzv_node_attributes():
    hooks = hooks_of(
        slurm=plugin(rdzv_node_attributes=lambda: {"switch": "s1", "job": "9"}),
        rack=plugin(rdzv_node_attributes=lambda: {"rack": "r7"}),
        silent=plugin(rdzv_node_attributes=lambda: None),
    )
    assert hooks.node_attributes() == {"switch": "s1", "job": "9", "rack": "r7"}


def test_of_two_answers_the_plugin_that_is_called_first_wins():
    first = Plugin({"rdzv_node_attributes": lambda: {"rack": "mine", "x": "1"}}, tryfirst=True)
    hooks = hooks_of(a=first, b=plugin(rdzv_node_attributes=lambda: {"rack": "theirs", "y": "2"}))
    assert hooks.node_attributes() == {"rack": "mine", "x": "1", "y": "2"}


def test_attributes_that_cannot_be_kept_are_left_out_and_told(caplog: pytest.LogCaptureFixture):
    def fail() -> dict[str, str]:
        raise OSError("no such file")

    hooks = hooks_of(
        a=plugin(rdzv_node_attributes=lambda: {"count": 3, "big": "x" * 2000, "good": "yes"}),
        b=plugin(rdzv_node_attributes=fail),
    )
    assert hooks.node_attributes() == {"good": "yes"}
    text = "\n".join(said(caplog))
    assert "the attribute 'count'=3 is no text" in text
    assert "the attribute 'big' does not fit into 1024 bytes" in text
    assert "'b' raised in rdzv_node_attributes" in text


def test_attributes_that_are_no_dictionary_are_told(caplog: pytest.LogCaptureFixture):
    assert hooks_of(a=plugin(rdzv_node_attributes=lambda: ["x"])).node_attributes() == {}
    assert "'a' answered ['x'] to rdzv_node_attributes" in "\n".join(said(caplog))


def test_hook_rdzv_before_join():
    asked: list[tuple[str, str]] = []

    def healthy(run_id: str, node_id: str) -> None:
        asked.append((run_id, node_id))

    hooks = hooks_of(
        a=plugin(rdzv_before_join=healthy), b=plugin(rdzv_before_join=lambda node_id: f"GPU 3 of {node_id} is lost.")
    )
    assert hooks.veto("job-7", "n1") == "GPU 3 of n1 is lost."
    assert hooks_of(a=plugin(rdzv_before_join=healthy)).veto("job-7", "n1") is None
    assert asked[-1] == ("job-7", "n1")
    assert hooks_of().veto("job-7", "n1") is None


def test_a_check_that_breaks_is_a_veto():
    def broken() -> None:
        raise RuntimeError("driver gone")

    text = hooks_of(gpu=plugin(rdzv_before_join=broken)).veto("job-7", "n1")
    assert text == "The check of hook plugin 'gpu' broke: RuntimeError: driver gone"


def test_a_veto_without_words_is_a_veto():
    assert "'gpu' objects" in (hooks_of(gpu=plugin(rdzv_before_join=lambda: "")).veto("job-7", "n1") or "")


MEMBERS = (
    record("n1", addr="h1", attrs={"rack": "r1"}, domain="d", rank_hint=4),
    record("n2", addr="h2"),
)


def test_hook_rdzv_place():
    seen: list[Any] = []

    def rdzv_place(run_id: str, members: tuple[Member, ...]) -> list[str]:
        seen.extend([run_id, *members])
        return [member.node_id for member in reversed(members)]

    placed = hooks_of(topology=plugin(rdzv_place=rdzv_place)).place("job-7", MEMBERS, {"n2": 5})
    assert (placed.order, placed.failure) == (("n2", "n1"), None)
    assert seen == [
        "job-7",
        Member(node_id="n1", addr="h1", attributes={"rack": "r1"}, domain="d", rank_hint=4, previous_rank=None),
        Member(node_id="n2", addr="h2", attributes={}, domain="", rank_hint=None, previous_rank=5),
    ]


def test_without_an_opinion_there_is_no_order_and_no_failure():
    for hooks in (hooks_of(), hooks_of(a=plugin(rdzv_place=lambda: None))):
        placed = hooks.place("job-7", MEMBERS, {})
        assert (placed.order, placed.failure) == (None, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (["n1"], "missing ['n2'], unknown []"),
        (["n1", "n1"], "missing ['n2'], unknown []"),
        (["n1", "n2", "n2"], "3 ids for 2 members"),
        (["n1", "n2", "n3"], "missing [], unknown ['n3']"),
        ([], "0 ids for 2 members"),
        (5, "TypeError"),
    ],
)
def test_an_order_must_hold_each_member_once(answer: Any, why: str):
    placed = hooks_of(a=plugin(rdzv_place=lambda: answer)).place("job-7", MEMBERS, {})
    assert placed.order is None
    assert why in (placed.failure or "")


@pytest.mark.parametrize("error", [RuntimeError("no map"), SystemExit("no map")])
def test_a_placement_that_raises_is_a_failure_with_its_reason(error: BaseException):
    def rdzv_place() -> Sequence[str]:
        raise error

    placed = hooks_of(a=plugin(rdzv_place=rdzv_place)).place("job-7", MEMBERS, {})
    assert (placed.order, placed.failure) == (None, f"It raised {type(error).__name__}: no map")


def test_a_placement_that_hangs_is_left_to_itself_and_not_asked_twice():
    go_on = threading.Event()
    asked: list[int] = []

    def rdzv_place(members: tuple[Member, ...]) -> list[str]:
        asked.append(1)
        assert go_on.wait(30)
        return [member.node_id for member in members]

    hooks = hooks_of(a=plugin(rdzv_place=rdzv_place))
    assert hooks.place("job-7", MEMBERS, {}, deadline=0.05).failure == "It took longer than 0.05 s."
    assert "not come back" in (hooks.place("job-7", MEMBERS, {}, deadline=0.05).failure or "")
    assert asked == [1]
    go_on.set()
    assert hooks._placing.acquire(timeout=30)
    hooks._placing.release()
    assert hooks.place("job-7", MEMBERS, {}).order == ("n1", "n2")


# --- what a handler is given --------------------------------------------------------------------------------


def test_a_handler_is_given_all_of_them():
    got: list[Event] = []
    hooks = hooks_of(
        a=plugin(
            rdzv_event=lambda event: got.append(event),
            rdzv_node_attributes=lambda: {"rack": "r7"},
            rdzv_before_join=lambda: "no",
            rdzv_place=lambda run_id, members: [m.node_id for m in members] if run_id == "job-7" else None,
        )
    )
    observers = hooks.observers("job-7")
    observers.events(EVENT)
    assert hooks.drain(30)
    assert got == [EVENT]
    assert observers.attributes == {"rack": "r7"}
    assert observers.before_join("job-7", "n1") == "no"
    assert observers.place(MEMBERS, {}).order == ("n1", "n2")


# --- getting in ---------------------------------------------------------------------------------------------


def test_nothing_is_loaded_before_the_first_call():
    class Loud:
        def __init__(self) -> None:
            raise AssertionError("loaded")

    hooks_of(a=Loud)


def test_a_class_is_instantiated():
    class Check:
        @hookimpl
        def rdzv_before_join(self) -> str:
            return "no"

    assert hooks_of(a=Check).veto("job-7", "n1") == "no"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (ImportError("no pynvml"), "bad 1.0 (mod:bad) cannot be imported: ImportError: no pynvml"),
        (SystemExit(1), "cannot be imported: SystemExit: 1"),
        (plugin(rdzv_evnt=lambda event: None), "cannot be used as a hook plugin: unknown hook 'rdzv_evnt'"),
        (SimpleNamespace(rdzv_event=hookimpl(lambda event: None)), "unhashable"),
        (plugin(rdzv_event=lambda even: None), "Argument(s) {'even'} are declared in the hookimpl"),
    ],
)
def test_a_bad_plugin_is_left_out_and_told(bad: Any, why: str, caplog: pytest.LogCaptureFixture):
    hooks = hooks_of(bad=bad, good=plugin(rdzv_before_join=lambda: "no"))
    assert hooks.veto("job-7", "n1") == "no"
    assert [name for name, _ in hooks.manager.list_name_plugin()] == ["good"]
    assert why in "\n".join(said(caplog))
    hooks.event(EVENT)
    assert hooks.drain(30)


def test_a_bad_plugin_is_raised_under_strict():
    with pytest.raises(PluginError, match="no pynvml"):
        hooks_of(strict=True, bad=ImportError("no pynvml")).veto("job-7", "n1")
    with pytest.raises(PluginError, match="rdzv_evnt"):
        hooks_of(strict=True, bad=plugin(rdzv_evnt=lambda event: None)).veto("job-7", "n1")


@pytest.mark.parametrize(
    ("value", "loaded"),
    [(None, ["a", "b"]), ("", []), (" , ", []), ("b", ["b"]), (" b , a ", ["b", "a"]), ("aa,b", ["b"])],
)
def test_the_environment_chooses_plugins(value: str | None, loaded: list[str], caplog: pytest.LogCaptureFixture):
    environ = {} if value is None else {"RDZV_HOOKS": value}
    hooks = hooks_of(environ, a=plugin(), b=plugin())
    assert [name for name, _ in hooks.manager.list_name_plugin()] == loaded
    assert ("Nothing is installed as 'aa'" in caplog.text) is (value == "aa,b")


def test_calls_can_be_traced(caplog: pytest.LogCaptureFixture):
    def broken() -> None:
        raise RuntimeError("driver gone")

    hooks = hooks_of({"RDZV_TRACE_HOOKS": "1"}, gpu=plugin(rdzv_before_join=lambda: "no"))
    hooks.veto("job-7", "n1")
    assert said(caplog) == [
        "Hook rdzv_before_join(run_id='job-7', node_id='n1') -> gpu",
        "Hook rdzv_before_join = ['no']",
    ]
    caplog.clear()
    hooks_of({"RDZV_TRACE_HOOKS": "1"}, gpu=plugin(rdzv_before_join=broken)).veto("job-7", "n1")
    assert said(caplog)[-1] == "Hook rdzv_before_join = RuntimeError: driver gone"
    caplog.clear()
    hooks_of({"RDZV_TRACE_HOOKS": "0"}, gpu=plugin(rdzv_before_join=lambda: "no")).veto("job-7", "n1")
    assert said(caplog) == []


def test_the_environment_of_the_process_is_read_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RDZV_HOOKS", "")
    monkeypatch.setattr(logging.getLogger("rdzv_core.discovery"), "disabled", True)
    assert Hooks().manager.list_name_plugin() == []
