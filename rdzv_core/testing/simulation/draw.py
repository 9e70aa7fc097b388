"""Plans by seed: a number becomes a schedule, always the same one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from rdzv_core.testing.simulation.plan import (
    FAULTS,
    ClockStep,
    Crash,
    CrashHost,
    Deaf,
    FailHost,
    FailWorkers,
    Fault,
    ForgetPages,
    ForgetRound,
    HangHost,
    Leave,
    LoseLease,
    LosePages,
    LoseRegister,
    NodePlan,
    Partition,
    Pause,
    PauseDecider,
    Plan,
    Rival,
    Rollback,
    SlowShutdown,
    Stall,
    Weather,
    Wipe,
)

__all__ = ["KINDS", "draw"]

FAULTY_FOR = 40.0
"""Seconds within which faults strike."""


def draw(seed: int, *, nodes: int | None = None, faults: int | None = None, kinds: Sequence[str] | None = None) -> Plan:
    """Draw a plan.

    Args:
        seed: Any number.
        nodes: How many places for nodes; 2 to 5 if not said.
        faults: How many faults; 0 to 4 if not said.
        kinds: Of which kinds; see :data:`KINDS`.
    """
    chance = Random(f"plan {seed}")
    count = chance.randint(2, 5) if nodes is None else nodes
    number = chance.choice((1, 1, 2, 2, 3, 4)) if faults is None else faults
    min_nodes = chance.randint(1, count)
    max_nodes = max(min_nodes, count + chance.choice((-1, 0, 0, 0, 1)))
    special = (kinds or [*KINDS]) if number else []
    plan = Plan(
        seed=seed,
        nodes=tuple(NodePlan(start=_start(chance, place, min_nodes)) for place in range(count)),
        min_nodes=min_nodes,
        max_nodes=max_nodes,
        last_call=chance.choice((1.0, 6.0)),
        placement=chance.choice(("sorted", "sorted", "stable")),
        work=chance.choice((5.0, 30.0, 50.0, 70.0)),
        uneven=chance.choice((0.0, 0.0, 15.0)),
        collective=chance.choice(("fail", "hang", "independent")),
        max_restarts=chance.choice((0, 3, 100, 100)),
        leave_timeout=chance.choice((12.0, 60.0)),
        restart_on_node_loss=chance.choice(("always", "always", "always", "if_possible", "never")),
    )
    for _ in range(number):
        plan = KINDS[chance.choice(list(special))](chance, plan)
    return plan


def _start(chance: Random, place: int, min_nodes: int) -> float:
    if place < min_nodes or chance.random() < 0.6:
        return round(chance.uniform(0.0, 2.0), 3)
    return round(chance.uniform(2.0, 50.0), 3)


# --- one fault ------------------------------------------------------------------------------------------------


def _at(chance: Random) -> float:
    """Early faults meet the first round while it forms, later ones meet it while it runs."""
    return round(chance.choice((chance.uniform(0.0, 8.0), chance.uniform(0.0, FAULTY_FOR))), 3)


def _short_or_long(chance: Random) -> float:
    """Shorter than a TTL, about one, or longer."""
    return round(chance.choice((chance.uniform(0.5, 6.0), chance.uniform(6.0, 20.0), chance.uniform(20.0, 45.0))), 3)


def _place(chance: Random, plan: Plan) -> int:
    return chance.randrange(len(plan.nodes))


def _places(chance: Random, plan: Plan) -> tuple[int, ...]:
    count = len(plan.nodes)
    return tuple(sorted(chance.sample(range(count), chance.randint(1, count))))


def _back(chance: Random) -> float | None:
    return chance.choice((None, round(chance.uniform(0.5, 5.0), 3), round(chance.uniform(5.0, 30.0), 3)))


def _odds(chance: Random) -> float:
    return chance.choice((0.0, 0.1, 0.5))


def _weather(chance: Random, plan: Plan) -> Weather:
    return Weather(
        at=_at(chance),
        seconds=_short_or_long(chance),
        nodes=_places(chance, plan),
        lose_request=_odds(chance),
        lose_reply=_odds(chance),
        duplicate=_odds(chance),
        late=_odds(chance),
        slow=_odds(chance),
        lose_push=_odds(chance),
    )


_DRAW: dict[type[Fault], Callable[[Random, Plan], Fault]] = {
    ClockStep: lambda c, p: ClockStep(at=_at(c), node=_place(c, p), by=c.choice((-3600.0, -5.0, 5.0, 1e6))),
    Crash: lambda c, p: Crash(at=_at(c), node=_place(c, p), orphans=c.random() < 0.3, back_after=_back(c)),
    CrashHost: lambda c, _: CrashHost(at=_at(c), back_after=_back(c)),
    Deaf: lambda c, p: Deaf(at=_at(c), seconds=_short_or_long(c), node=_place(c, p)),
    FailHost: lambda c, _: FailHost(at=_at(c)),
    FailWorkers: lambda c, p: FailWorkers(at=_at(c), node=_place(c, p)),
    ForgetPages: lambda c, _: ForgetPages(at=_at(c)),
    ForgetRound: lambda c, _: ForgetRound(at=_at(c), after=c.choice((0.0, 0.005, 0.02, 1.0))),
    HangHost: lambda c, _: HangHost(at=_at(c)),
    Leave: lambda c, p: Leave(at=_at(c), node=_place(c, p), back_after=_back(c)),
    LoseLease: lambda c, _: LoseLease(at=_at(c)),
    LosePages: lambda c, _: LosePages(at=_at(c)),
    LoseRegister: lambda c, _: LoseRegister(at=_at(c)),
    Partition: lambda c, p: Partition(
        at=_at(c),
        seconds=_short_or_long(c),
        nodes=_places(c, p),
        way=c.choice(("both", "requests", "replies", "refused")),
    ),
    Pause: lambda c, p: Pause(at=_at(c), seconds=_short_or_long(c), node=_place(c, p)),
    PauseDecider: lambda c, _: PauseDecider(at=_at(c), seconds=_short_or_long(c)),
    Rival: lambda c, _: Rival(at=_at(c)),
    Rollback: lambda c, _: Rollback(at=1.0 + _at(c), lost=c.choice((0.01, 1.0, 10.0))),
    SlowShutdown: lambda c, p: SlowShutdown(at=_at(c), node=_place(c, p), seconds=round(c.uniform(1.0, 30.0), 3)),
    Stall: lambda c, _: Stall(at=_at(c), seconds=_short_or_long(c), drop=c.random() < 0.5),
    Weather: _weather,
    Wipe: lambda c, _: Wipe(at=_at(c)),
}


def _one(kind: type[Fault]) -> Callable[[Random, Plan], Plan]:
    return lambda chance, plan: replace(plan, faults=(*plan.faults, _DRAW[kind](chance, plan)))


# --- stories: faults that belong together ------------------------------------------------------------------------


def _flapping(chance: Random, plan: Plan) -> Plan:
    """A newcomer that crashes again and again."""
    start, flaps = round(chance.uniform(5.0, 20.0), 3), chance.randint(2, 6)
    return replace(plan, nodes=(*plan.nodes, NodePlan(start=start, flaps=flaps)))


def _other_rules(chance: Random, plan: Plan) -> Plan:
    """A node that was started with other rules."""
    start = round(chance.uniform(0.0, 20.0), 3)
    return replace(plan, nodes=(*plan.nodes, NodePlan(start=start, min_nodes=plan.min_nodes + 1)))


def _another_life(chance: Random, plan: Plan) -> Plan:
    """All but one vanish for so long that every key expires, then others start; the one may wake in the new life."""
    at = round(chance.uniform(2.0, 20.0), 3)
    outage = plan.store_outage_timeout + 2 * plan.ttl
    gone = outage + chance.uniform(1.0, 20.0)
    asleep = chance.randrange(len(plan.nodes))
    faults: list[Fault] = [
        Crash(at=round(at + 0.1 * place, 3), node=place, back_after=round(gone + chance.uniform(0.0, 2.0), 3))
        for place in range(len(plan.nodes))
        if place != asleep
    ]
    faults.append(Pause(at=at, seconds=round(gone + chance.uniform(0.0, 20.0), 3), node=asleep))
    return replace(plan, work=max(plan.work, 50.0), faults=(*plan.faults, *faults))


def _lost_with_a_death(chance: Random, plan: Plan) -> Plan:
    """The store loses data about when a node dies."""
    at = round(chance.uniform(8.0, 40.0), 3)
    loss: Fault = chance.choice((LosePages(at=at), LoseRegister(at=at), Wipe(at=at), Rollback(at=at, lost=5.0)))
    near = round(at + chance.uniform(-6.0, 6.0), 3)
    death: Fault = chance.choice(
        (Crash(at=near, node=_place(chance, plan)), Pause(at=near, seconds=20.0, node=_place(chance, plan)))
    )
    return replace(plan, faults=(*plan.faults, loss, death))


def _late_shutdown(chance: Random, plan: Plan) -> Plan:
    """A node whose workers have failed for good takes its time to say so, and others re-form meanwhile."""
    node, at = _place(chance, plan), round(chance.uniform(8.0, 30.0), 3)
    others = [p for p in range(len(plan.nodes)) if p != node]
    leaver = chance.choice(others) if others else node
    faults: tuple[Fault, ...] = (
        SlowShutdown(at=at - 1.0, node=node, seconds=round(chance.uniform(5.0, 40.0), 3)),
        FailWorkers(at=at, node=node),
        Crash(at=round(at + chance.uniform(0.0, 3.0), 3), node=leaver, back_after=chance.choice((None, 1.0))),
    )
    if chance.random() < 0.5:
        bad = Weather(at=at, seconds=50.0, nodes=(node,), slow=0.5, lose_push=0.8)
        return replace(plan, max_restarts=0, faults=(*plan.faults, *faults, bad))
    return replace(plan, max_restarts=chance.choice((0, plan.max_restarts)), faults=(*plan.faults, *faults))


def _uneven_end(chance: Random, plan: Plan) -> Plan:
    """Some nodes have ended when another, which has not, is lost or fails."""
    node = _place(chance, plan)
    at = round(plan.work + chance.uniform(-20.0, 5.0), 3)
    kind = chance.choice((Crash, Crash, FailWorkers, Leave))
    return replace(plan, uneven=40.0, faults=(*plan.faults, kind(at=max(3.0, at), node=node)))


def _stubborn(chance: Random, plan: Plan) -> Plan:
    """A launcher is stuck while others want to re-form."""
    at, node = round(chance.uniform(5.0, 20.0), 3), _place(chance, plan)
    others = [p for p in range(len(plan.nodes)) if p != node]
    cause = chance.choice((Crash, Leave, FailWorkers))(at=at + 2.0, node=chance.choice(others))
    deaf = Deaf(at=at, seconds=round(chance.uniform(10.0, 90.0), 3), node=node)
    return replace(
        plan,
        min_nodes=min(plan.min_nodes, max(1, len(plan.nodes) - 2)),
        leave_timeout=12.0,
        collective="hang",
        restart_on_node_loss="always",
        faults=(*plan.faults, deaf, cause),
    )


def _old_roster(chance: Random, plan: Plan) -> Plan:
    """A member is back from the dead just after a leader, which is then stopped, has decided without it."""
    at, node = round(chance.uniform(8.0, 20.0), 3), _place(chance, plan)
    away = Partition(at=at, seconds=round(chance.uniform(15.5, 17.5), 3), nodes=(node,))
    stop = PauseDecider(at=at, seconds=round(chance.uniform(6.0, 9.8), 3))
    return replace(
        plan,
        min_nodes=1,
        work=70.0,
        collective=chance.choice(("hang", "independent")),
        restart_on_node_loss="always",
        faults=(*plan.faults, away, stop),
    )


def _forgotten_member(chance: Random, plan: Plan) -> Plan:
    """A failover drops the last member's arrival, and the round that formed with it, but not the leader's record."""
    *first, _ = plan.nodes
    last = round(chance.uniform(20.0, 35.0), 3)
    nodes = (*(replace(node, start=min(node.start, 2.0)) for node in first), NodePlan(start=last))
    fall_back = Rollback(at=round(last + chance.uniform(0.2, 4.0), 3), lost=5.0)
    faults = (*plan.faults, fall_back)
    return replace(plan, nodes=nodes, min_nodes=len(nodes), max_nodes=len(nodes), work=50.0, faults=faults)


def _no_pages(chance: Random, plan: Plan) -> Plan:
    """Newcomers come after the pages of members were lost."""
    at = round(chance.uniform(8.0, 20.0), 3)
    extra = tuple(NodePlan(start=round(at + chance.uniform(0.0, 10.0), 3)) for _ in range(chance.randint(1, 2)))
    return replace(plan, nodes=(*plan.nodes, *extra), work=100.0, faults=(*plan.faults, LosePages(at=at)))


def _lost_race_of_a_shutdown(chance: Random, plan: Plan) -> Plan:
    """A node closes its round as the others, tired of waiting for it, form another, and does not hear of it."""
    node, at = _place(chance, plan), round(chance.uniform(8.0, 20.0), 3)
    return replace(
        plan,
        min_nodes=min(plan.min_nodes, max(1, len(plan.nodes) - 1)),
        leave_timeout=12.0,
        max_restarts=0,
        collective="hang",
        work=70.0,
        faults=(
            *plan.faults,
            Weather(at=at - 1.0, seconds=40.0, nodes=(node,), lose_push=1.0),
            SlowShutdown(at=at - 1.0, node=node, seconds=round(chance.uniform(12.0, 20.0), 3)),
            FailWorkers(at=at, node=node),
            Leave(
                at=round(at + 0.5, 3), node=chance.choice([p for p in range(len(plan.nodes)) if p != node] or [node])
            ),
        ),
    )


def _newcomer_at_the_end(chance: Random, plan: Plan) -> Plan:
    """A newcomer has come to stay at about the moment at which the workers succeed."""
    members = min(len(plan.nodes), chance.choice((1, 1, 2)))
    start = plan.last_call + plan.work - plan.scale_up_delay + chance.uniform(-0.1, 0.7)
    nodes = (*(NodePlan() for _ in range(members)), NodePlan(start=round(max(start, plan.last_call + 1.0), 3)))
    faults = tuple(f for f in plan.faults if getattr(f, "node", 0) < len(nodes))
    return replace(plan, nodes=nodes, min_nodes=members, max_nodes=members + 1, uneven=0.0, faults=faults)


def _spares(chance: Random, plan: Plan) -> Plan:
    """A full round that runs for longer than the join timeout, and nodes that wait for a place in it."""
    count = len(plan.nodes)
    extra = tuple(NodePlan(start=round(chance.uniform(5.0, 20.0), 3)) for _ in range(chance.randint(1, 2)))
    return replace(
        plan,
        nodes=(*plan.nodes, *extra),
        max_nodes=max(plan.min_nodes, count),
        join_timeout=40.0,
        work=chance.choice((60.0, 120.0)),
    )


def _too_few(chance: Random, plan: Plan) -> Plan:
    """A join times out at about the moment at which the last node comes."""
    *first, _ = plan.nodes
    timeout = round(chance.uniform(15.0, 40.0), 3)
    starts = [NodePlan(start=0.0) for _ in first]
    late = round(timeout - plan.last_call + chance.uniform(-0.03, 0.0), 4)
    nodes = (*starts, NodePlan(start=max(0.0, late)))
    return replace(plan, nodes=nodes, min_nodes=len(nodes), max_nodes=len(nodes) + 1, join_timeout=timeout)


def _leaving(chance: Random, plan: Plan) -> Plan:
    """Nodes leave one after the other, and come back."""
    at, faults = 10.0, []
    for _ in range(chance.randint(1, 4)):
        at = round(at + chance.uniform(0.0, 15.0), 3)
        first = min(range(len(plan.nodes)), key=lambda place: plan.nodes[place].start)  # it leads, as likely as not
        leaver = chance.choice((first, _place(chance, plan)))
        faults.append(Leave(at=at, node=leaver, back_after=_back(chance)))
    return replace(plan, work=45.0, faults=(*plan.faults, *faults))


KINDS: dict[str, Callable[[Random, Plan], Plan]] = {
    **{name: _one(kind) for name, kind in FAULTS.items()},
    "flapping": _flapping,
    "other rules": _other_rules,
    "another life": _another_life,
    "loss and death": _lost_with_a_death,
    "late shutdown": _late_shutdown,
    "uneven end": _uneven_end,
    "stubborn": _stubborn,
    "old roster": _old_roster,
    "forgotten member": _forgotten_member,
    "no pages": _no_pages,
    "lost race of a shutdown": _lost_race_of_a_shutdown,
    "newcomer at the end": _newcomer_at_the_end,
    "spares": _spares,
    "too few": _too_few,
    "leaving": _leaving,
}
"""What may be added to a plan, by name."""
