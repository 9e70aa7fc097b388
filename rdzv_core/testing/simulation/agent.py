"""The launcher on a node, as torch's elastic agent behaves: join, run workers, ask, restart, and the exit barrier."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING

from rdzv_core.errors import RendezvousGracefulExitError
from rdzv_core.runtime.orders import Close, Finish, Join, Joined
from rdzv_core.runtime.orders import Leave as LeaveOrder
from rdzv_core.testing.simulation.job import Crew

if TYPE_CHECKING:
    from rdzv_core.testing.simulation.node import Node

__all__ = ["Agent"]

MONITOR_INTERVAL = 0.1
"""Seconds between two looks at workers and at ``num_nodes_waiting()``; torch's default."""

BARRIER_TIMEOUT = 300.0
"""Seconds for which torch's exit barrier waits."""

LEAVE_SECONDS = 2.0


class Agent:
    """One launcher.

    Attributes:
        state: ``joining``, ``running``, ``stopping``, ``barrier``, ``closing``, ``leaving`` or ``gone``.
        since: Since when it is in that state.
        deaf: The main thread is stuck.
        outcome: How it ended, for people.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.state = "new"
        self.since = node.world.agenda.now
        self.deaf_until = 0.0
        self.outcome = ""
        self.joined: Joined | None = None
        self.crew: Crew | None = None
        self.shutdown_delay = 0.0
        self.finished = ""
        """The round in which its workers have succeeded."""
        self.could_close = True
        """The store answered when the run was to be closed."""
        self._joined_well = False
        self._restarts_left = node.world.plan.max_restarts
        self._workers: str | None = None
        self._looking = False

    def _turn(self, state: str) -> None:
        self.state = state
        self.since = self.world.agenda.now
        if self.world.transcript is not None:
            self.world.transcript.agent(self.node, state)

    @property
    def is_in_round(self) -> bool:
        """It has returned from a round, and has neither gone back to the barrier nor left."""
        return self.state in ("running", "stopping", "barrier", "closing")

    # --- joining -----------------------------------------------------------------------------------------

    def join(self) -> None:
        """``next_rendezvous()``."""
        self._turn("joining")
        self._joined_well = False
        self.joined = self.crew = self._workers = None
        promise: Future[Joined] = Future()
        promise.add_done_callback(self.world.guarded(self._join_ended))
        self.world.laws.joins(self.node)
        self.node.post(Join(self.world.plan.join_timeout, promise))

    def _join_ended(self, promise: Future[Joined]) -> None:
        if self.state != "joining" or not self.node.alive:
            return
        error = promise.exception()
        if error is not None:
            self.world.laws.join_failed(self.node, error)
            spare = isinstance(error, RendezvousGracefulExitError)
            self.outcome = f"{'was not needed' if spare else 'did not join'}: {str(error).splitlines()[0]}"
            self._leave("its join failed")
            return
        self.joined = joined = promise.result()
        self.world.laws.returned(self.node, joined)
        self._joined_well = True
        self._turn("running")
        self.crew = self.world.job.crew(joined.seat.round_id, joined.seat.world)
        self.world.agenda.after(self.world.chance.uniform(0.02, 0.3), self.node.happen, self._spawn, self.crew)

    def _spawn(self, crew: Crew) -> None:
        if self.state == "running" and self.crew is crew:
            crew.start(self)
            self.look()

    # --- running -----------------------------------------------------------------------------------------

    def workers_ended(self, crew: Crew, *, success: bool) -> None:
        """The workers of a round have ended here."""
        if crew is self.crew:
            self._workers = "succeeded" if success else "failed"
            self.look()

    def look(self) -> None:
        """Something may have changed: the next turn of the monitor loop will see it."""
        session = self.node.session
        news = (self.state == "running" and (self._workers or session.waiting or session.failure)) or (
            self.state == "barrier" and self.crew is not None and (self.crew.open or session.released)
        )
        if news and not self._looking and self.node.alive:
            self._looking = True
            self.world.agenda.after(self.world.chance.random() * MONITOR_INTERVAL, self.node.happen, self._monitor)

    def _monitor(self) -> None:
        now, session = self.world.agenda.now, self.node.session
        if now < self.deaf_until:
            self.world.agenda.at(self.deaf_until + MONITOR_INTERVAL, self.node.happen, self._monitor)
            return
        self._looking = False
        if self.state == "running":
            if self._workers == "succeeded":
                self._finish()
            elif self._workers == "failed":
                if self._restarts_left:
                    self._restarts_left -= 1
                    self._restart()
                else:
                    self._shutdown("failed", "workers failed")
            elif session.failure is not None:
                self._shutdown("failed", "the store was away for too long")
            elif session.waiting > 0:
                self._restart()
        elif self.state == "barrier" and self.crew is not None and (self.crew.open or session.released):
            self._shutdown("success", "workers succeeded")

    def _restart(self) -> None:
        self._turn("stopping")
        self._stop_workers()
        self.world.agenda.after(self.world.chance.uniform(0.02, 0.3), self.node.happen, self._again)

    def _again(self) -> None:
        if self.state == "stopping":
            self.join()

    def _stop_workers(self) -> None:
        if self.crew is not None:
            self.crew.stop(self)

    # --- ending ------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        self._turn("barrier")
        self.node.post(Finish())
        assert self.crew is not None
        assert self.joined is not None
        self.finished = self.joined.seat.round_id
        crew = self.crew
        crew.sign_in(self)
        self.world.agenda.after(BARRIER_TIMEOUT, self.node.happen, self._barrier_timed_out, crew)

    def _barrier_timed_out(self, crew: Crew) -> None:
        if self.state == "barrier" and self.crew is crew:
            self.world.laws.barrier_timed_out(self.node)
            self._shutdown("success", "workers succeeded")

    def _shutdown(self, outcome: str, reason: str) -> None:
        """``shutdown()``, as :meth:`rdzv_core.DynamicRendezvousHandler.end` does it."""
        self._turn("closing")
        self._stop_workers()
        self.outcome = outcome
        self.world.laws.disturb(self.world.agenda.now + self.shutdown_delay)
        self.world.agenda.after(self.shutdown_delay, self.node.happen, self._close, outcome, reason)

    def _close(self, outcome: str, reason: str) -> None:
        if self.state != "closing":
            return
        if not self._joined_well or self.node.session.left_behind is not None:
            self._leave(reason)
            return
        promise: Future[bool] = Future()
        promise.add_done_callback(lambda _: self._closed(promise, reason))
        self.node.post(Close(outcome, reason, True, self.world.plan.close_timeout, promise))

    def _closed(self, promise: Future[bool], reason: str) -> None:
        self.could_close = promise.exception() is None
        self._leave(reason)

    def _leave(self, reason: str) -> None:
        if self.state in ("leaving", "gone"):
            return
        self._turn("leaving")
        self.node.post(LeaveOrder(reason, LEAVE_SECONDS))

    def leave(self, reason: str) -> None:
        """SIGTERM: withdraw at once; the workers are stopped a moment later."""
        if self.state in ("leaving", "gone"):
            return
        self.outcome = self.outcome or reason
        self._leave(reason)
        self.world.agenda.after(self.world.chance.uniform(0.0, 0.5), self._stop_workers)

    def session_ended(self) -> None:
        """The session is over, and with it the process."""
        if self.state != "gone":
            self._turn("gone")
            self._stop_workers()

    def died(self, *, orphans: bool) -> None:
        """SIGKILL."""
        self.state = "gone"
        self.outcome = "killed"
        if not orphans:
            self._stop_workers()
