"""The simulator itself: the same plan is the same story, plans can be written down, stories can be read."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from rdzv_core.testing.simulate import main
from rdzv_core.testing.simulation.draw import KINDS, draw
from rdzv_core.testing.simulation.plan import FAULTS, Crash, NodePlan, Pause, Plan, Wipe
from rdzv_core.testing.simulation.shrink import shrink
from rdzv_core.testing.simulation.world import play

PAIR = Plan(seed=1, nodes=(NodePlan(), NodePlan(start=0.1)), min_nodes=2, max_nodes=2, last_call=1.0, work=5.0)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_same_plan_is_the_same_story(kind: str):
    plan = draw(7, kinds=[kind])
    first, second = play(plan, transcript=True), play(Plan.from_json(plan.to_json()), transcript=True)
    assert first == second
    assert first.transcript


def test_a_story_does_not_depend_on_how_python_hashes():
    """Sets of names have another order in another process; nothing may follow from it."""
    program = "import sys; from rdzv_core.testing.simulate import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "--seed", "11", "--transcript"]
    runs = [
        subprocess.run(command, env={"PYTHONHASHSEED": salt}, capture_output=True, text=True, timeout=60, check=True)
        for salt in ("1", "2")
    ]
    stories = [run.stdout.rsplit("\n", 2)[0] for run in runs]  # the last line says how long it took
    assert len(stories[0].splitlines()) > 20
    assert stories[0] == stories[1]


def test_every_fault_can_be_drawn_and_written_down():
    drawn = {type(fault).__name__ for kind in KINDS for seed in range(20) for fault in draw(seed, kinds=[kind]).faults}
    assert drawn == set(FAULTS)
    for kind in KINDS:
        plan = draw(3, kinds=[kind])
        assert Plan.from_json(plan.to_json()) == plan


def test_shrinking_keeps_what_breaks_and_drops_the_rest():
    crash, wipe, pause = Crash(at=3.0, node=0), Wipe(at=4.0), Pause(at=5.0, seconds=1.0, node=1)
    plan = replace(PAIR, nodes=(*PAIR.nodes, NodePlan(start=9.0)), uneven=3.0, faults=(crash, wipe, pause))
    smallest = shrink(plan, lambda p: wipe in p.faults)
    assert smallest.faults == (wipe,)
    assert len(smallest.nodes) == 2
    assert smallest.uneven == 0.0


def test_a_transcript_can_be_read():
    transcript = play(replace(PAIR, faults=(Crash(at=3.0, node=1),)), transcript=True).transcript
    story = "\n".join(transcript)
    for piece in ("launcher: joining", "asks announce: seq 1, left 0", "written life", "FAULT   Crash(node=1)"):
        assert piece in story, piece
    times = [float(line.split()[0]) for line in transcript]
    assert times == sorted(times)


def test_the_command_line_reports_and_fails_if_a_law_broke(capsys: pytest.CaptureFixture[str]):
    assert main(["--schedules", "3", "--processes", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schedules"] == 3
    assert report["broken"] == 0
    assert report["broken_seeds"] == []


def test_the_command_line_tells_the_smallest_story(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rdzv_core.machine.decide._lost", lambda *_: 0)  # nobody is told of a lost member
    arguments = ["--kind", "Crash", "--processes", "1", "--schedules", "100", "--json"]
    assert main(arguments) == 1
    seed = json.loads(capsys.readouterr().out)["broken_seeds"][0]["seed"]
    assert main(["--seed", str(seed), "--kind", "Crash", "--processes", "1"]) == 1
    told = capsys.readouterr().out
    assert f"seed {seed}: I7: " in told
    plan = Plan.from_json(next(line for line in told.splitlines() if line.startswith("{")))
    assert [type(fault) for fault in plan.faults] == [Crash]
    assert play(plan).law == "I7"
