"""Test the tests: each repair of the protocol that is taken out is missed, and a named invariant says so."""

from __future__ import annotations

import pytest

from rdzv_core.testing.simulation.draw import draw
from rdzv_core.testing.simulation.world import play
from tests.simulated.mutations import MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_repair_that_is_taken_out_breaks_an_invariant(name: str):
    mutation = MUTATIONS[name]
    others: dict[str, int] = {}
    with mutation.applied():
        for seed in range(mutation.within):
            outcome = play(draw(seed, kinds=mutation.kinds), make_backend=mutation.make_backend)
            if outcome.law in mutation.laws:
                return
            if outcome.law is not None:
                others[outcome.law] = others.get(outcome.law, 0) + 1
    pytest.fail(
        f"rule {mutation.rule} ({mutation.says}) was taken out, and none of {', '.join(sorted(mutation.laws))} broke "
        f"in {mutation.within} schedules of {', '.join(mutation.kinds)}; others that did: {others or 'none'}"
    )
