"""The smallest plan that still breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rdzv_core.testing.simulation.plan import NodePlan, Plan

__all__ = ["shrink"]


def shrink(plan: Plan, breaks: Callable[[Plan], bool]) -> Plan:
    """Take away from a plan that breaks, as long as it still does: faults, nodes, and what makes faults worse.

    Args:
        plan: A plan that breaks.
        breaks: Plays a plan, and says whether it breaks in the same way.
    """
    smaller: Plan | None = plan
    while smaller is not None:
        plan = smaller
        smaller = next((p for p in _smaller(plan) if breaks(p)), None)
    return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    for index in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    if len(plan.nodes) > max(1, plan.min_nodes):
        last = len(plan.nodes) - 1
        if not any(getattr(f, "node", None) == last or last in getattr(f, "nodes", ()) for f in plan.faults):
            yield replace(plan, nodes=plan.nodes[:-1])
    for index, node in enumerate(plan.nodes):
        if node.flaps > 0:
            fewer = replace(node, flaps=node.flaps - 1)
            yield replace(plan, nodes=(*plan.nodes[:index], fewer, *plan.nodes[index + 1 :]))
        elif node.start > 0.0 and node.start != float(index):
            first: NodePlan = replace(node, start=0.0)
            yield replace(plan, nodes=(*plan.nodes[:index], first, *plan.nodes[index + 1 :]))
    plain = Plan(seed=plan.seed, nodes=plan.nodes, min_nodes=plan.min_nodes, max_nodes=plan.max_nodes)
    for name in ("uneven", "collective", "placement", "last_call", "work", "max_restarts", "leave_timeout"):
        if getattr(plan, name) != getattr(plain, name):
            yield replace(plan, **{name: getattr(plain, name)})
