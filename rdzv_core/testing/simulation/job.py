"""The workers: what a round of training does, and what breaks it."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from rdzv_core.testing.simulation.agenda import Agenda

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.agent import Agent

__all__ = ["Crew", "Job"]

SHORTEST_WORK = 0.3
COLLECTIVE_TIMEOUT = 60.0
"""Seconds after which workers that hang in a collective fail, as they do with NCCL's watchdog."""


class Job:
    """The work of the whole run. What one round has done need not be done by the next."""

    def __init__(self, agenda: Agenda, chance: Random, *, work: float, uneven: float, collective: str) -> None:
        self.agenda = agenda
        self.chance = chance
        self.work = work
        self.uneven = uneven
        self.collective = collective
        self._crews: dict[str, Crew] = {}

    def crew(self, round_id: str, world: int) -> Crew:
        """The workers of a round."""
        if round_id not in self._crews:
            self._crews[round_id] = Crew(self, world)
        return self._crews[round_id]


class Crew:
    """The workers of one round on all its nodes, and the exit barrier of their launchers."""

    def __init__(self, job: Job, world: int) -> None:
        self.job = job
        self.world = world
        self.broken = False
        self.began: float | None = None
        self._running: list[Agent] = []
        self._ended = 0
        self._barrier: list[Agent] = []
        self._host_gone = False

    def start(self, agent: Agent) -> None:
        """The workers of one node begin."""
        job = self.job
        self._running.append(agent)
        if self.broken:
            self._suffer(agent)
        elif len(self._running) + self._ended == self.world:
            self.began = job.agenda.now
            early = job.chance.randrange(self.world)
            for number, member in enumerate(self._running):
                ahead = job.uneven * job.chance.random() if number == early else 0.0
                seconds = max(SHORTEST_WORK, job.work - ahead) + job.chance.uniform(0.0, 0.3)
                job.agenda.after(seconds, self._succeed, member)
        elif len(self._running) == 1:
            job.agenda.after(COLLECTIVE_TIMEOUT, self._nobody_came)

    def stop(self, agent: Agent) -> None:
        """The workers of one node are stopped, or have died."""
        if agent not in self._running:
            return
        self._running.remove(agent)
        self._break()

    def _nobody_came(self) -> None:
        if self.began is None:
            self._break()

    def _break(self) -> None:
        if self.broken:
            return
        self.broken = True
        if self.began is not None:
            self.job.work = max(SHORTEST_WORK, self.job.work - (self.job.agenda.now - self.began))
        if self.job.collective != "independent" or self.began is None:
            for agent in self._running:
                self._suffer(agent)

    def _suffer(self, agent: Agent) -> None:
        job = self.job
        hangs = job.collective == "hang"
        job.agenda.after(COLLECTIVE_TIMEOUT if hangs else job.chance.uniform(0.1, 2.0), self.fail, agent)

    def fail(self, agent: Agent) -> None:
        """A worker of this node fails."""
        if agent in self._running:
            self._running.remove(agent)
            self._break()
            agent.workers_ended(self, success=False)

    def _succeed(self, agent: Agent) -> None:
        if agent in self._running and (not self.broken or self.job.collective == "independent"):
            self._running.remove(agent)
            self._ended += 1
            if self._ended == self.world:
                self.job.work = SHORTEST_WORK
            agent.workers_ended(self, success=True)

    # --- the exit barrier --------------------------------------------------------------------------------

    def sign_in(self, agent: Agent) -> None:
        """A launcher comes to the exit barrier."""
        self._barrier.append(agent)
        if self.open:
            for waiting in self._barrier:
                waiting.look()

    def host_died(self) -> None:
        """The node that serves the store of this round is gone: nobody can wait in the barrier any more."""
        self._host_gone = True
        for waiting in self._barrier:
            waiting.look()

    @property
    def open(self) -> bool:
        """The exit barrier does not hold anybody."""
        return self._host_gone or len(self._barrier) >= self.world
