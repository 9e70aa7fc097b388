"""Play many schedules of a run with faults, and check the invariants after each step.

``python -m rdzv_core.testing.simulate --schedules 10000`` plays the schedules of seeds 0 to 9,999. For one that breaks
an invariant it prints the smallest plan that still does, and what happened in it; ``--seed`` plays one seed again, and
``--plan`` one plan. See ``docs/simulator.md``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from rdzv_core.testing.simulation.draw import KINDS, draw
from rdzv_core.testing.simulation.plan import NodePlan, Plan
from rdzv_core.testing.simulation.shrink import shrink
from rdzv_core.testing.simulation.world import Outcome, play

__all__ = ["crowd", "main", "play_seed", "story"]

CHUNK = 20


def play_seed(
    seed: int, *, nodes: int | None = None, faults: int | None = None, kinds: Sequence[str] | None = None
) -> Outcome:
    """Draw the plan of a seed, and play it; see :func:`rdzv_core.testing.simulation.draw.draw`."""
    return play(draw(seed, nodes=nodes, faults=faults, kinds=kinds))


def crowd(seed: int, nodes: int) -> Plan:
    """A plan without faults: so many nodes arrive within 0.3 s, run for a while, and end."""
    return Plan(
        seed=seed,
        nodes=tuple(NodePlan(start=round(0.3 * n / nodes, 6)) for n in range(nodes)),
        min_nodes=nodes,
        max_nodes=nodes,
        work=2.0,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if an invariant broke."""
    options = _parse(argv)
    began = time.perf_counter()
    if options.plan is not None:
        text = sys.stdin.read() if options.plan == "-" else Path(options.plan).read_text()
        outcomes: Iterable[Outcome] = [play(Plan.from_json(text))]
        total = 1
    elif options.crowd is not None:
        outcomes, total = [play(crowd(options.seed or 0, options.crowd))], 1
    else:
        first, total = (options.seed, 1) if options.seed is not None else (options.first, options.schedules)
        one = partial(play_seed, nodes=options.nodes, faults=options.faults, kinds=options.kind)
        outcomes = _play_all(one, range(first, first + total), options.processes)
    counts: Counter[str] = Counter()
    broken: list[Outcome] = []
    for number, outcome in enumerate(outcomes, 1):
        counts.update(
            schedules=1,
            rounds=outcome.rounds,
            returns=outcome.returns,
            events=outcome.events,
            virtual_seconds=int(outcome.seconds),
        )
        if not outcome.ok:
            broken.append(outcome)
            sys.stderr.write(f"seed {outcome.plan.seed}: {outcome.law}: {outcome.sentence.splitlines()[0]}\n")
        _progress(number, total, len(broken), began)
    report = {**counts, "broken": len(broken), "seconds": round(time.perf_counter() - began, 2)}
    if options.json:
        report["broken_seeds"] = [{"seed": o.plan.seed, "law": o.law, "sentence": o.sentence} for o in broken]  # type: ignore[assignment]
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        for outcome in broken[: options.show]:
            sys.stdout.write(story(outcome, shrunk=not options.no_shrink) + "\n")
        if options.transcript and total == 1 and not broken:
            sys.stdout.write(story(outcome, shrunk=False) + "\n")
        sys.stdout.write(" ".join(f"{key}={value}" for key, value in report.items()) + "\n")
    return 1 if broken else 0


def _play_all(one: partial[Outcome], seeds: range, processes: int) -> Iterator[Outcome]:
    if processes <= 1:
        yield from map(one, seeds)
        return
    with multiprocessing.Pool(processes) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=CHUNK)


def _progress(number: int, total: int, broken: int, began: float) -> None:
    if total > 1 and (number % 500 == 0 or number == total):
        rate = number / (time.perf_counter() - began)
        sys.stderr.write(f"{number} of {total} schedules, {broken} broken, {rate:.0f} per second\n")


def story(outcome: Outcome, *, shrunk: bool = True) -> str:
    """What happened, told for the smallest plan that breaks the same law, and how to play it again."""
    plan = outcome.plan
    if shrunk:
        plan = shrink(plan, lambda smaller: play(smaller).law == outcome.law)
    told = play(plan, transcript=True)
    return "\n".join(
        [
            *told.transcript,
            f"seed {plan.seed}: {told.law or 'nothing broke'}: {told.sentence}",
            *(f"  {ending}" for ending in told.endings),
            f"closed: {told.closed}; {told.rounds} rounds, {told.returns} returns, {told.seconds:.1f} s",
            "Play it again: python -m rdzv_core.testing.simulate --plan - <<'END'",
            plan.to_json(),
            "END",
        ]
    )


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rdzv_core.testing.simulate", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--schedules", type=int, default=1000, metavar="N", help="play so many seeds (default: 1000)")
    what.add_argument("--seed", type=int, help="play this seed only")
    what.add_argument("--plan", metavar="FILE", help="play the plan in this file; - for standard input")
    parser.add_argument("--crowd", type=int, metavar="N", help="play one round of N nodes without faults")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="begin with this seed")
    parser.add_argument("--nodes", type=int, help="places for nodes (default: 2 to 5, by seed)")
    parser.add_argument("--faults", type=int, help="faults in a schedule (default: 1 to 4, by seed)")
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="faults of this kind only; may repeat")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1), help="play side by side")
    parser.add_argument("--show", type=int, default=1, metavar="N", help="tell the story of the first N that broke")
    parser.add_argument("--no-shrink", action="store_true", help="tell the story of the plan as it was drawn")
    parser.add_argument("--transcript", action="store_true", help="tell the story of a schedule that went well, too")
    parser.add_argument("--json", action="store_true", help="report as one line of JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
