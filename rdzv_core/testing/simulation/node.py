"""Drives one real session under the virtual clock: obeys its orders as the runner's threads would."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator
from random import Random
from typing import TYPE_CHECKING, Any

from rdzv_core.api import Placed
from rdzv_core.backend import Roster
from rdzv_core.errors import RendezvousConnectionError, RendezvousError
from rdzv_core.events import Event
from rdzv_core.machine.register import Bootstrap
from rdzv_core.runtime.knowledge import Identity
from rdzv_core.runtime.leading import Leading
from rdzv_core.runtime.orders import (
    Call,
    Connect,
    Connected,
    Host,
    Hosted,
    Message,
    Order,
    Place,
    RosterSeen,
    Sleep,
    WatchRoster,
)
from rdzv_core.runtime.session import Session
from rdzv_core.testing.simulation.agenda import NodeClock
from rdzv_core.testing.simulation.watchers import RosterWatcher, StateWatcher

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.agent import Agent
    from rdzv_core.testing.simulation.world import World

__all__ = ["Node"]

CONNECT_TIMEOUT = 8.0
"""Seconds after which a connection to a store that is not there is given up."""

BUSY = 200
"""Orders of one node at one instant above which it must be spinning."""


class Node:
    """One instance of a node: a session, its mail, and its place in the world.

    Attributes:
        alive: It has not been killed, and has not ended.
        paused: It is stopped; whatever happens to it is put off until it goes on.
        fine_since: Since when nothing has kept this node from the store; None while something does.
    """

    def __init__(self, world: World, place: int, number: int) -> None:
        plan = world.plan
        self.world = world
        self.place = place
        self.node_id = f"n{place}.{number}"
        self.clock = NodeClock(world.agenda, origin=world.chance.uniform(0.0, 1e5))
        self.chance = Random(f"{plan.seed}/{self.node_id}")
        self.alive = True
        self.paused = False
        self.unwell = False
        """It is paused, cut off, or its network is bad."""
        self.unwell_at = -math.inf
        """When something other than the store itself last kept this node from it."""
        self.resumed_at = 0.0
        """When the last pause ended, on this node's clock: no deadline within it counts."""
        self.fine_since: float | None = world.agenda.now
        self.mail: deque[Message] = deque()
        self.leading: Leading | None = None
        """The last tenure of the lease; outlives it, since a leader that leaves decides once more."""
        self.agent: Agent
        self.session = Session(
            Identity(node_id=self.node_id, addr=world.address(place), pid=100 + number, local_id=0),
            world.settings_of(place),
            clock=self.clock,
            chance=self.chance,
            emit=self._emit,
        )
        self.calls: dict[str, int] = {}
        """Calls on the store, by name."""
        self._asked_at = 0.0
        self._steps: Generator[Order, Any, None] = self.session.run()
        self._call_number = 0
        self._asleep = False
        self._sleep_number = 0
        self._put_off: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._orders_at = (-1.0, 0)
        self.state_watcher = StateWatcher(self)
        self.roster_watcher = RosterWatcher(self)

    def __str__(self) -> str:
        return self.node_id

    def start(self) -> None:
        """Begin: the session and the watcher of the register."""
        self._step(None, None)
        self.state_watcher.arm()

    def happen(self, do: Callable[..., None], *args: Any) -> None:
        """Let something happen to this node, now, or when it goes on; never if it is dead."""
        if not self.alive:
            return
        if self.paused:
            self._put_off.append((do, args))
        else:
            do(*args)

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self.resumed_at = self.clock.monotonic()
        put_off, self._put_off = self._put_off, []
        for do, args in put_off:
            self.happen(do, *args)

    def kill(self) -> None:
        """SIGKILL."""
        if self.alive:
            self.alive = False
            self.state_watcher.stop()
            self.roster_watcher.stop()
            self.world.forget(self)

    def post(self, message: Message) -> None:
        """Hand a message to the session, as the runner does."""
        if not self.alive:
            return
        self.mail.append(message)
        if self._asleep:
            self._asleep = False
            self.world.agenda.after(0.0, self.happen, self._woken_by_mail, self._sleep_number)

    # --- driving -----------------------------------------------------------------------------------------

    def _woken_by_mail(self, number: int) -> None:
        if number == self._sleep_number:
            self._wake()

    def _woken_by_time(self, number: int) -> None:
        if self._asleep and number == self._sleep_number:
            self._wake()

    def _wake(self) -> None:
        self._asleep = False
        self._sleep_number += 1
        self.session.inbox.extend(self.mail)
        self.mail.clear()
        self._step(None, None)

    def answered(self, number: int, answer: Any, error: RendezvousError | None) -> None:
        """The answer to a call came in; too late, if the call was given up."""
        if number != self._call_number:
            return
        self._call_number += 1
        if self.world.transcript is not None:
            self.world.transcript.answered(self, answer, error)
        self._step(answer, error)

    def gave_up(self, number: int) -> None:
        """No answer came in time."""
        lost = RendezvousConnectionError("no answer in time", maybe_applied=True)
        self.answered(number, None, lost)

    def _step(self, answer: Any, error: RendezvousError | None) -> None:
        world = self.world
        steps = self._steps
        while True:
            self._count_order()
            try:
                order = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration:
                self._settle()
                self.kill()
                self.agent.session_ended()
                return
            except Exception as fault:
                if isinstance(fault, world.broken):
                    raise
                world.laws.session_fault(self, fault)
                return
            answer, error = None, None
            if self.session._leading is not None:
                self.leading = self.session._leading
                if world.transcript is not None:
                    world.transcript.decided(self)
            kind = type(order)
            if kind is Sleep:
                assert isinstance(order, Sleep)
                if self.mail:
                    self.session.inbox.extend(self.mail)
                    self.mail.clear()
                    continue
                self._asleep = True
                self._sleep_number += 1
                if order.until is not None:
                    until = self.clock.virtual(order.until)
                    world.agenda.at(until, self.happen, self._woken_by_time, self._sleep_number)
                break
            if kind is Call:
                assert isinstance(order, Call)
                self._call_number += 1
                self.calls[order.name] = self.calls.get(order.name, 0) + 1
                world.network.call(self, self._call_number, order)
                break
            answer = self._obey(order)
        self._settle()

    def _count_order(self) -> None:
        at, count = self._orders_at
        now = self.world.agenda.now
        self._orders_at = (now, count + 1 if at == now else 1)
        if count > BUSY:
            self.world.laws.spins(self)

    def _settle(self) -> None:
        self.agent.look()

    def _obey(self, order: Order) -> Placed | None:
        match order:
            case WatchRoster():
                self.roster_watcher.switch(order.on, order.roster)
            case Host():
                self.world.bootstrap.host(self, order)
            case Connect():
                self.world.bootstrap.connect(self, order)
            case Place():
                return Placed()
        return None

    def _emit(self, event: Event) -> None:
        if self.world.transcript is not None:
            self.world.transcript.event(self, event)

    # --- what the world looks at --------------------------------------------------------------------------

    @property
    def believed_live(self) -> tuple[str, ...]:
        """The ids that this node, as leader, last saw in the roster."""
        return tuple(record.node_id for record in self.leading.records) if self.leading is not None else ()

    def roster_seen(self, roster: Roster) -> None:
        """The roster watcher brings the roster."""
        self.post(RosterSeen(roster, self.clock.monotonic()))


class BootstrapWorld:
    """The stores of rounds: opened by rank 0, reached by the rest; gone with the node that serves them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.servers: dict[Bootstrap, Node] = {}
        self.fail_next = self.hang_next = 0
        self.crash_next: list[Callable[[Node], None]] = []
        self._ports = 10000

    def host(self, node: Node, order: Host) -> None:
        """Open a store, a moment later."""
        if self.crash_next:
            crash = self.crash_next.pop(0)
            self.world.agenda.after(0.0, crash, node)
            return
        if self.hang_next:
            self.hang_next -= 1
            self.world.laws.disturb(self.world.agenda.now + self.world.plan.bootstrap_timeout)
            return
        self.world.agenda.after(self.world.chance.uniform(0.001, 0.02), node.happen, self._opened, node, order)

    def _opened(self, node: Node, order: Host) -> None:
        if self.fail_next:
            self.fail_next -= 1
            error = RendezvousConnectionError("cannot listen at its own address", permanent=True)
            node.post(Hosted(order.seat.round_id, None, error))
            return
        self._ports += 1
        address = Bootstrap(addr=self.world.address(node.place), port=self._ports)
        self.servers[address] = node
        node.post(Hosted(order.seat.round_id, address))

    def connect(self, node: Node, order: Connect) -> None:
        """Connect to a store, a moment later; to one that is gone, in vain."""
        self.world.agenda.after(self.world.chance.uniform(0.001, 0.02), node.happen, self._reach, node, order)

    def _reach(self, node: Node, order: Connect) -> None:
        server = self.servers.get(order.address)
        if server is not None and server.alive and not server.paused:
            node.post(Connected(order.seat.round_id, order.address))
        else:
            self.world.agenda.after(CONNECT_TIMEOUT, node.happen, self._not_reached, node, order)

    def _not_reached(self, node: Node, order: Connect) -> None:
        server = self.servers.get(order.address)
        if server is not None and server.alive and not server.paused:
            node.post(Connected(order.seat.round_id, order.address))
        else:
            node.post(Connected(order.seat.round_id, None, RendezvousConnectionError("nobody listens there")))
