"""Events: one sentence each, plain values for machines, sinks that cannot hurt each other."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from typing import Any

import pytest

from rdzv_core import events
from rdzv_core.events import EVENTS, Event, fan_out, log_events

ABOUT = {"run_id": "job-7", "node_id": "n1", "backend": "redis"}
VALUES: dict[str, Any] = {
    "addr": "192.0.2.1",
    "left": 2,
    "leads": True,
    "round": 4,
    "round_id": "r4",
    "world": 3,
    "rank": 1,
    "rank_hint": 1,
    "waited": 0.5,
    "reason": "The last call has ended.",
    "lost": 2,
    "node_ids": ("n2", "n3"),
    "waiting": 1,
    "by": "n9",
    "outcome": "success",
    "error": "connection refused.",
    "outage": 12.34,
    "at_work": True,
    "patience": 299.6,
    "revision": 17,
}


def sample(kind: type[Event], **values: Any) -> Event:
    names = {field.name for field in dataclasses.fields(kind)} - ABOUT.keys()
    return kind(**ABOUT, **{name: values.get(name, VALUES[name]) for name in names})


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
class TestEveryEvent:
    def test_its_sentence_names_run_and_values(self, kind: type[Event]):
        event = sample(kind)
        assert "job-7" in event.sentence
        assert event.sentence.endswith(".")
        assert "\n" not in event.sentence
        shown = {"round_id", "node_ids", "left", "leads", "outage", "waited", "at_work", "patience"}
        for field in dataclasses.fields(kind):
            if field.name not in ABOUT and field.name not in shown:
                assert str(getattr(event, field.name)) in event.sentence

    def test_machines_can_read_it(self, kind: type[Event]):
        values = json.loads(json.dumps(sample(kind).to_dict()))
        assert values["event"] == sample(kind).name
        assert values["sentence"] == sample(kind).sentence
        assert values["level"] in ("DEBUG", "INFO", "WARNING", "ERROR")
        for field in dataclasses.fields(kind):
            expected = getattr(sample(kind), field.name)
            assert values[field.name] == (list(expected) if isinstance(expected, tuple) else expected)

    def test_it_does_not_change(self, kind: type[Event]):
        event = sample(kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            event.run_id = "other"
        assert not hasattr(event, "__dict__")
        assert event == sample(kind)

    def test_it_is_public(self, kind: type[Event]):
        assert kind.__name__ in events.__all__


def test_every_kind_is_listed():
    here = {thing for thing in vars(events).values() if inspect.isclass(thing) and issubclass(thing, Event)}
    assert set(EVENTS) == here - {Event}


@pytest.mark.parametrize(
    ("kind", "values", "sentence"),
    [
        (events.NodeJoining, {"left": 0}, "Node n1 (192.0.2.1) joins run 'job-7' for the first time."),
        (events.NodeJoining, {}, "Node n1 (192.0.2.1) joins run 'job-7' after round 2."),
        (events.LeaderChanged, {"leads": False}, "Node n1 no longer leads run 'job-7'."),
        (events.MembersLost, {}, "Round 4 of run 'job-7' lost 2 nodes (n2, n3)."),
        (events.MembersLost, {"lost": 1, "node_ids": ()}, "Round 4 of run 'job-7' lost 1 node."),
        (
            events.RunClosed,
            {"reason": "its workers have succeeded"},
            "Run 'job-7' was closed by node n9 (success): its workers have succeeded.",
        ),
        (events.NodeLeft, {}, "Node n1 leaves run 'job-7': The last call has ended."),
        (events.NodeLeft, {"reason": ""}, "Node n1 leaves run 'job-7'."),
        (events.NodesWaiting, {}, "1 node waits to join run 'job-7' after round 4."),
        (
            events.HintShared,
            {},
            "2 nodes (n2, n3) wish for rank 1 in round 4 of run 'job-7' and were ordered by address: give each a "
            "rank_hint of its own.",
        ),
        (
            events.StoreLost,
            {},
            "Node n1 cannot reach the redis store of run 'job-7': connection refused. Running workers are not "
            "disturbed. It goes on trying for 300 s.",
        ),
        (
            events.StoreLost,
            {"error": "Is there a server?", "at_work": False},
            "Node n1 cannot reach the redis store of run 'job-7': Is there a server? It goes on trying for 300 s.",
        ),
        (
            events.StoreLost,
            {"error": "a password is wanted", "at_work": False, "patience": 0.0},
            "Node n1 cannot reach the redis store of run 'job-7': a password is wanted.",
        ),
        (events.StoreBack, {}, "Node n1 reaches the redis store of run 'job-7' again after 12.3 s."),
    ],
)
def test_sentences(kind: type[Event], values: dict[str, Any], sentence: str):
    assert sample(kind, **values).sentence == sentence


def test_a_sentence_names_a_few_of_many_nodes():
    many = sample(events.MembersLost, lost=100, node_ids=tuple(f"n{i}" for i in range(100)))
    assert "n7 and 92 more)" in many.sentence
    assert len(many.to_dict()["node_ids"]) == 100


def test_a_failing_sink_hurts_nobody_and_is_told_once(caplog: pytest.LogCaptureFixture):
    got: list[Event] = []

    def broken(event: Event) -> None:
        raise RuntimeError("no disk")

    sink = fan_out(got.append, broken, got.append)
    event = sample(events.NodeSpare)
    sink(event)
    sink(event)
    assert got == [event] * 4
    told = [record for record in caplog.records if "failed on node_spare" in record.getMessage()]
    assert len(told) == 1
    assert "no disk" in caplog.text


def test_two_failing_sinks_are_both_told(caplog: pytest.LogCaptureFixture):
    def one(event: Event) -> None:
        raise RuntimeError("one")

    def two(event: Event) -> None:
        raise RuntimeError("two")

    fan_out(one, two)(sample(events.NodeSpare))
    assert len([record for record in caplog.records if record.name == "rdzv_core.events"]) == 2


def test_the_end_of_the_process_passes_through():
    def leave(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fan_out(leave)(sample(events.NodeSpare))


def test_the_log_gets_sentence_level_and_values(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("test.rdzv.events")
    with caplog.at_level(logging.INFO, logger=logger.name):
        log_events(logger)(sample(events.MembersLost))
        log_events(logger)(sample(events.LeaderChanged))  # DEBUG
    (record,) = [record for record in caplog.records if record.name == logger.name]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == sample(events.MembersLost).sentence
    assert record.rdzv_event["lost"] == 2
