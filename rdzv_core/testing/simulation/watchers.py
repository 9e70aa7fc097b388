"""The two calls that block at the store: for the register, and for the roster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rdzv_core.backend import Roster, Token
from rdzv_core.runtime.orders import Nudge, StateSeen

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node

__all__ = ["RosterWatcher", "StateWatcher"]

BLIND = 60.0
"""Seconds for which a watcher hears nothing after a push to it was lost: it then asks anew."""

NUDGE_EVERY = 1.0


class _Watcher:
    """Asks, is answered when there is news, and asks again. ``turn`` tells a question from the ones before it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.blocked = False
        """The question lies at the store, unanswered."""
        self._turn = 0
        self._on = False

    def arm(self) -> None:
        """Ask."""
        self._on = True
        self._turn += 1
        self.blocked = False
        self._ask(self._turn)

    def stop(self) -> None:
        """Ask no more."""
        self._on = False
        self.blocked = False
        self._turn += 1

    def cut(self) -> None:
        """The connection is gone: the question with it."""
        self.blocked = False
        self._turn += 1

    def mend(self) -> None:
        """The connection can be made again; that takes a moment."""
        if self._on:
            self._turn += 1
            self.blocked = False
            wait = self.node.world.network.chance.uniform(0.1, 1.0)
            self.node.world.agenda.after(wait, self._ask, self._turn)

    def _ask(self, turn: int) -> None:
        network = self.node.world.network
        if turn == self._turn:
            self.node.world.agenda.after(network.latency(self.node), self._arrives, turn)

    def _arrives(self, turn: int) -> None:
        if turn == self._turn and self._on and self.node.world.network.reaches(self.node):
            self.blocked = True
            self.check()

    def check(self) -> None:
        """Answer, if there is news."""
        if not self.blocked or self.node.world.network.stalled:
            return
        news = self._news()
        if news is None:
            return
        self.blocked = False
        network, agenda = self.node.world.network, self.node.world.agenda
        if network.loses_push(self.node):
            agenda.after(BLIND, self._ask, self._turn)
            return
        agenda.after(network.latency(self.node), self.node.happen, self._told, self._turn, news)

    def _told(self, turn: int, news: Any) -> None:
        if turn != self._turn:
            return
        self._take(news)
        self._ask(turn)

    def _news(self) -> Any:
        raise NotImplementedError

    def _take(self, news: Any) -> None:
        raise NotImplementedError


class StateWatcher(_Watcher):
    """Blocks in ``wait_state`` for as long as the node lives."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._token: Token | None = None
        self._nudged_at = -NUDGE_EVERY
        self._owed = False
        self.nudge = False
        """The store will answer without a register: it was lost, or a leader gave its lease up."""

    def _news(self) -> Any:
        state, token = self.node.world.register_now
        if state is not None and token != self._token:
            return state, token
        if self.nudge:
            self.nudge = False
            return Nudge()
        return None

    def _take(self, news: Any) -> None:
        world = self.node.world
        if isinstance(news, Nudge):
            self._owe_nudge()
            return
        state, self._token = news
        if world.transcript is not None:
            world.transcript.pushed(self.node, state)
        self.node.post(StateSeen(state, self._token))
        if world.network.duplicates_push(self.node):
            world.agenda.after(world.network.chance.uniform(0.0, 5.0), self.node.post, StateSeen(state, self._token))

    def _owe_nudge(self) -> None:
        """Nudge the session, but once in a while only."""
        world, due = self.node.world, self._nudged_at + NUDGE_EVERY
        if world.agenda.now >= due:
            self._nudged_at = world.agenda.now
            self.node.post(Nudge())
        elif not self._owed:
            self._owed = True
            world.agenda.at(due, self.node.happen, self._pay_nudge)

    def _pay_nudge(self) -> None:
        self._owed = False
        self._owe_nudge()


class RosterWatcher(_Watcher):
    """Blocks in ``roster`` while the node leads."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._roster: Roster | None = None

    def switch(self, on: bool, roster: Roster | None) -> None:
        """Begin or end."""
        if not on:
            self.stop()
            return
        self._roster = roster
        self.node.world.watching_roster[self.node.node_id] = None
        self.arm()

    def stop(self) -> None:
        """Ask no more."""
        super().stop()
        self.node.world.watching_roster.pop(self.node.node_id, None)

    def cut(self) -> None:
        """The connection is gone; what was seen cannot be relied on for a change."""
        super().cut()
        self._roster = None

    def _news(self) -> Any:
        seen = self._roster.version if self._roster is not None else None
        return self.node.world.backend.roster(seen, 0.0)

    def _take(self, news: Any) -> None:
        self._roster = news.onto(self._roster)
        assert self._roster is not None
        self.node.roster_seen(self._roster)
