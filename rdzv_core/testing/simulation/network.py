"""Between the nodes and the store: latency, loss, delay, duplication, partitions, and a store that stalls."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.runtime.orders import Call
from rdzv_core.testing.simulation.plan import CALL_SECONDS, Partition, Stall, Weather

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node
    from rdzv_core.testing.simulation.world import World

__all__ = ["Network"]

WRITES = frozenset({"announce", "pulse", "withdraw", "set_state", "publish"})
"""Calls that a bad network may apply late, or twice."""


class Network:
    """Carries each call to the store and its answer back, each way in its own time.

    Attributes:
        stalled: The store answers nobody.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self.world = world
        self.chance = chance
        self.stalled = False
        self._drops_while_stalled = False
        self._queue: list[tuple[Node, int, Call, Any]] = []
        self._partitions: dict[int, list[Partition]] = {}
        self._weather: dict[int, Weather] = {}
        self._pauses: list[float] = []

    # --- faults ------------------------------------------------------------------------------------------

    def cut(self, partition: Partition) -> None:
        """Cut nodes off."""
        for place in partition.nodes:
            self._partitions.setdefault(place, []).append(partition)
            node = self.world.at_place(place)
            if node is not None:
                node.state_watcher.cut()
                node.roster_watcher.cut()

    def mend(self, partition: Partition) -> None:
        """Undo :meth:`cut`."""
        for place in partition.nodes:
            here = self._partitions[place]
            here.remove(partition)
            if not here:
                del self._partitions[place]
            node = self.world.at_place(place)
            if node is not None and not here:
                node.state_watcher.mend()
                node.roster_watcher.mend()

    def turn(self, weather: Weather) -> None:
        """Let the weather turn bad."""
        for place in weather.nodes:
            self._weather[place] = weather

    def clear(self, weather: Weather) -> None:
        """Undo :meth:`turn`."""
        for place in weather.nodes:
            if self._weather.get(place) is weather:
                del self._weather[place]

    def stall(self, stall: Stall) -> None:
        """Let the store stop answering."""
        self.stalled = True
        self._drops_while_stalled = stall.drop

    def go_on(self) -> None:
        """Undo :meth:`stall`: what waited at the store is done now, in order."""
        self.stalled = False
        queue, self._queue = self._queue, []
        for request in queue:
            self._apply(*request)
        self.world.store_changed()
        for node in self.world.nodes:
            node.state_watcher.check()
            node.roster_watcher.check()

    def pause_next_decider(self, seconds: float) -> None:
        """Stop the next leader that publishes pages, before it writes the round."""
        self._pauses.append(seconds)

    # --- what may happen to a message ----------------------------------------------------------------------

    def latency(self, node: Node) -> float:
        """Seconds for one way."""
        chance = self.chance.random
        weather = self._weather.get(node.place)
        if weather is not None and weather.slow and chance() < weather.slow:
            return 2.0 * chance()
        return 0.0005 + 0.003 * chance() * chance()

    def reaches(self, node: Node) -> bool:
        """Whether the node's requests reach the store, and answers the node."""
        return node.place not in self._partitions

    def fair(self, node: Node) -> bool:
        """The node's own network is as it should be."""
        return node.place not in self._partitions and node.place not in self._weather

    def loses_push(self, node: Node) -> bool:
        """Whether this push to the node gets lost."""
        weather = self._weather.get(node.place)
        return weather is not None and self.chance.random() < weather.lose_push

    def duplicates_push(self, node: Node) -> bool:
        """Whether this push to the node comes twice."""
        weather = self._weather.get(node.place)
        return weather is not None and self.chance.random() < weather.duplicate

    # --- calls -------------------------------------------------------------------------------------------

    def call(self, node: Node, number: int, call: Call) -> None:
        """Carry a call to the store."""
        world = self.world
        if world.transcript is not None:
            world.transcript.called(node, call)
        context = world.laws.asked(node, call) if call.name == "set_state" else None
        way = self.latency(node)
        if self._partitions or self._weather:
            for partition in self._partitions.get(node.place, ()):
                if partition.way == "refused":
                    refused = RendezvousConnectionError("connection refused")
                    world.agenda.after(way, node.happen, node.answered, number, None, refused)
                    return
                if partition.way in ("both", "requests"):
                    self._give_up(node, number)
                    return
            weather = self._weather.get(node.place)
            if weather is not None and self._suffers(weather, node, number, call, context):
                return
        world.agenda.after(way, self._arrive, node, number, call, context)
        if way > CALL_SECONDS / 2:
            self._give_up(node, number)

    def _suffers(self, weather: Weather, node: Node, number: int, call: Call, context: Any) -> bool:
        chance, agenda = self.chance, self.world.agenda
        if chance.random() < weather.lose_request:
            self._give_up(node, number)
            return True
        if call.name in WRITES:
            if chance.random() < weather.late:
                agenda.after(chance.uniform(CALL_SECONDS, weather.tail), self._arrive, node, -1, call, context)
                self._give_up(node, number)
                return True
            if chance.random() < weather.duplicate:
                agenda.after(chance.uniform(0.0, weather.tail), self._arrive, node, -1, call, context)
        return False

    def _give_up(self, node: Node, number: int) -> None:
        self.world.agenda.after(CALL_SECONDS, node.happen, node.gave_up, number)

    def _arrive(self, node: Node, number: int, call: Call, context: Any) -> None:
        if self.stalled:
            if not self._drops_while_stalled:
                self._queue.append((node, number, call, context))
            self._give_up(node, number)
            return
        self._apply(node, number, call, context)
        self.world.store_changed()

    def _apply(self, node: Node, number: int, call: Call, context: Any) -> None:
        """The one instant at which the store does it."""
        world = self.world
        answer: Any = None
        error: RendezvousError | None = None
        try:
            answer = world.apply(node, call, context)
        except RendezvousError as failure:
            error = failure
        if number < 0:
            return
        if call.name == "publish" and self._pauses:
            world.pause(node, self._pauses.pop())
        weather = self._weather.get(node.place)
        lost = weather is not None and self.chance.random() < weather.lose_reply
        if lost or node.place in self._partitions:
            self._give_up(node, number)
            return
        way = self.latency(node)
        world.agenda.after(way, node.happen, node.answered, number, answer, error)
        if way > CALL_SECONDS / 2:
            self._give_up(node, number)
