"""The rendezvous handler that users and agents call: API calls become messages to the session.

No method here does I/O. The session's thread does; the caller waits for a promise, so that an exception raised by a
signal handler can come out of any line without leaving a half-read answer or a held lock behind.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from random import Random, SystemRandom
from typing import Any

from rdzv_core.api import (
    Observers,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousSettings,
    RendezvousStoreInfo,
    RendezvousTimeout,
)
from rdzv_core.backend import CoordinationBackend, RendezvousBackend
from rdzv_core.endpoint import Endpoint
from rdzv_core.errors import RendezvousError, RendezvousTimeoutError
from rdzv_core.events import Event, JoinVetoed, fan_out
from rdzv_core.machine.rules import Policy, Rules
from rdzv_core.options import HANDLER_OPTIONS, Option, OptionValues, describe, doubts, read_options, ttl_of
from rdzv_core.runtime.bootstrap import BootstrapStores, TCPBootstrap, shares_agent_store
from rdzv_core.runtime.clock import SystemClock
from rdzv_core.runtime.knowledge import Identity, SessionSettings
from rdzv_core.runtime.orders import Abandon, Close, Finish, Join, Joined, Leave, Look
from rdzv_core.runtime.register_coordination import RegisterCoordination
from rdzv_core.runtime.runner import Runner
from rdzv_core.runtime.session import Session

__all__ = ["DynamicRendezvousHandler", "create_handler"]

logger = logging.getLogger(__name__)

LEAVE_SECONDS = 2.0
"""Seconds that leaving may take when the process is about to end."""

SLACK_SECONDS = 5.0
"""Seconds beyond a deadline after which the session itself must be stuck."""

_local_ids = itertools.count()


class DynamicRendezvousHandler(RendezvousHandler):
    """A node's handler in an elastic run. Build it with :meth:`from_backend` or :func:`create_handler`.

    One instance is one node: it has an id of its own, and threads that start with the first call and end with
    :meth:`shutdown`, with the last reference to the handler, or with the process; each of these withdraws the node.

    Attributes:
        endpoint: Where the store is; None if the backend has none.
        options: The handler's options, as they were understood.
    """

    def __init__(
        self,
        *,
        settings: RendezvousSettings,
        session: Session,
        runner: Runner,
        stores: BootstrapStores,
        backend_name: str,
        endpoint: Endpoint | None,
        options: OptionValues,
    ) -> None:
        self._settings = settings
        self._session = session
        self._runner = runner
        self._stores = stores
        self._backend_name = backend_name
        self._close_timeout: float = options["close_timeout"]
        self.endpoint = endpoint
        self.options = options
        self._before_join: Callable[[str, str], str | None] | None = None
        self._joined_well = False
        self._finalizer = weakref.finalize(self, _withdraw_at_exit, runner)
        self._finalizer.atexit = False
        _runners.add(runner)

    @classmethod
    def from_backend(
        cls,
        run_id: str,
        store: Any,
        backend: RendezvousBackend,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        timeout: RendezvousTimeout | None = None,
        keep_alive_interval: float = 5,
        keep_alive_max_attempt: int = 3,
        *,
        options: Mapping[str, Any] | None = None,
        endpoint: Endpoint | None = None,
        stores: BootstrapStores | None = None,
    ) -> DynamicRendezvousHandler:
        """Make a handler over ``backend``.

        Args:
            run_id: The run that the node is to join.
            store: A c10d ``Store`` to return, scoped per round; None for a new TCPStore of rank 0 each round.
            backend: Level 1 or 2; a level-1 backend is lifted by :class:`rdzv_core.RegisterCoordination`.
            min_nodes: The fewest nodes that make a round.
            max_nodes: The most.
            local_addr: Where other nodes reach this one; None finds the address that leads to the store.
            timeout: Join, last call, close and heartbeat.
            keep_alive_interval: Seconds between signs of life.
            keep_alive_max_attempt: Missed signs of life after which a node counts as dead; at least 3.
            options: More of :data:`rdzv_core.options.HANDLER_OPTIONS`, by name.
            endpoint: Where the store is, to find the local address by; None if it is nowhere.
            stores: Opens and connects the stores of rounds; None for TCPStores.

        Raises:
            ValueError: A number is out of range, or an option is wrong.
        """
        if not run_id:
            raise ValueError("The run id must be a non-empty string.")
        timeout = timeout or RendezvousTimeout()
        given = {
            "join_timeout": timeout.join,
            "last_call_timeout": timeout.last_call,
            "close_timeout": timeout.close,
            "heartbeat_timeout": timeout.heartbeat,
            "keep_alive_interval": keep_alive_interval,
            "keep_alive_max_attempt": keep_alive_max_attempt,
            **(options or {}),
        }
        values = read_options(HANDLER_OPTIONS, config=given)
        clock = SystemClock()
        node_id = f"{SystemRandom().getrandbits(48):012x}"
        session = Session(
            _identity(node_id, local_addr or "", values),
            _session_settings(run_id, backend.name, min_nodes, max_nodes, values),
            clock=clock,
            chance=Random(SystemRandom().getrandbits(128)),  # its own: a fork would share the global one
            emit=_nobody,
        )
        if stores is None:
            stores = TCPBootstrap(
                run_id=run_id,
                local_addr=local_addr or "",
                endpoint=endpoint,
                shared=max_nodes > 1,
                timeout=values["bootstrap_timeout"],
                store=store,
                ports=values["bootstrap_ports"],
            )
        level2 = backend if isinstance(backend, CoordinationBackend) else RegisterCoordination(backend, run_id=run_id)
        settings = RendezvousSettings(
            run_id,
            min_nodes,
            max_nodes,
            _timeouts(values),
            keep_alive_interval=timedelta(seconds=values["keep_alive_interval"]),
            keep_alive_max_attempt=values["keep_alive_max_attempt"],
        )
        return cls(
            settings=settings,
            session=session,
            runner=Runner(session, level2, stores, clock),
            stores=stores,
            backend_name=backend.name,
            endpoint=endpoint,
            options=values,
        )

    # --- torch's interface -------------------------------------------------------------------------------

    @property
    def settings(self) -> RendezvousSettings:
        """What this handler was told."""
        return self._settings

    @property
    def use_agent_store(self) -> bool:
        """Whether workers may use the returned store; see ``TORCH_DISABLE_SHARE_RDZV_TCP_STORE``."""
        return shares_agent_store()

    def get_backend(self) -> str:
        """The name of the backend."""
        return self._backend_name

    def get_run_id(self) -> str:
        """The id of the run."""
        return self._settings.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Go to the barrier, and return when a round has completed with this node.

        Raises:
            RendezvousClosedError: The run is closed.
            RendezvousGracefulExitError: This node was a spare, and the run has been closed.
            RendezvousTimeoutError: No round completed with this node within the join timeout.
            RendezvousConnectionError: The store could not be reached.
            RendezvousStateError: What is stored cannot be read, or the run is played by other rules.
        """
        self._joined_well = False
        self._ask_before_joining()
        limit = self._settings.timeout.join.total_seconds()
        try:
            joined: Joined = self._ask(lambda promise: Join(limit, promise), None)
        except RendezvousError:
            raise
        except BaseException:  # out of a signal handler, such as Ctrl-C
            self.abandon()
            raise
        self._joined_well = True
        seat, address = joined.seat, joined.address
        return RendezvousInfo(joined.store, seat.rank, seat.world, RendezvousStoreInfo(address.addr, address.port))

    def is_closed(self) -> bool:
        """Read the register, and say whether the run is closed."""
        timeout = self._settings.timeout.heartbeat.total_seconds()
        return bool(self._ask(lambda promise: Look(timeout, promise), timeout))

    def set_closed(self) -> None:
        """Close the run for everybody, whatever round it is in."""
        timeout = self._close_timeout
        self._ask(lambda promise: Close("closed", "set_closed() was called", False, timeout, promise), timeout)

    def num_nodes_waiting(self) -> int:
        """For how many nodes the members should re-form: those at the barrier, and those lost.

        Answers from what was last pushed, without I/O. Raises only if the store has been away for longer than
        ``store_outage_timeout``, or the session has ended by a fault of its own.
        """
        if self._session.failure is not None:
            raise self._session.failure
        return self._session.waiting

    def shutdown(self) -> bool:
        """End the job: close the run if it is still in the round that this node last returned from; then leave.

        Returns:
            Whether the store took note of it in time.
        """
        return self.end("closed", "shutdown() was called")

    def observe(self, observers: Observers) -> None:
        """Let ``observers`` watch this node, and ask them; call it before the first join. May be called again."""
        if observers.events is not None:
            self._session.emit = fan_out(self._session.emit, observers.events)
        self._session.describe(observers.attributes)
        self._before_join = observers.before_join or self._before_join
        self._runner.place = observers.place or self._runner.place

    # --- what a launcher can tell more ---------------------------------------------------------------------

    def end(self, outcome: str, reason: str, *, close: bool = True, timeout: float | None = None) -> bool:
        """Leave, and before that close the run as :meth:`shutdown` does, unless ``close`` is False.

        A node whose round was re-formed by others after it had finished does not close their run, nor one whose last
        ``next_rendezvous()`` raised. Never raises.
        """
        timeout = self._close_timeout if timeout is None else timeout
        well = True
        heard = self._runner.started and self._runner.here and not self._runner.ended
        if close and heard and self._joined_well and self._session.left_behind is None:
            try:
                self._ask(lambda promise: Close(outcome, reason, True, timeout, promise), timeout)
            except RendezvousError:
                well = False
        return self.leave(reason, timeout) and well

    def leave(self, reason: str, timeout: float = LEAVE_SECONDS) -> bool:
        """Withdraw this node, and end the session; the run goes on. Returns whether the store was told in time."""
        if not self._runner.started or not self._runner.here:
            return True
        self.post_leave(reason, timeout)
        ended = self._runner.join(timeout + SLACK_SECONDS)
        self._finalizer.detach()
        self._stores_closed()
        return ended and self._session.took_leave

    def post_leave(self, reason: str, timeout: float = LEAVE_SECONDS) -> None:
        """Ask the session to leave, and return at once. Safe in a signal handler."""
        self._runner.post(Leave(reason, timeout))

    def abandon(self) -> None:
        """Give back the seat that this node has or waits for: its user was interrupted, and will not take it."""
        self._joined_well = False
        self._runner.post(Abandon())

    def finish(self) -> None:
        """Tell the others that this node's workers have succeeded; see :attr:`released`."""
        self._runner.post(Finish())

    @property
    def stands(self) -> bool:
        """Whether the round that this node last returned from still stands, as far as is known without asking."""
        return not self._runner.ended and not self._session.closed and self.num_nodes_waiting() == 0

    @property
    def released(self) -> str | None:
        """After :meth:`finish`: why this node need not wait for the others any longer; None if it must."""
        return self._session.released

    @property
    def node_id(self) -> str:
        """The id of this node, fresh per handler."""
        return self._session.node_id

    @property
    def story(self) -> tuple[str, ...]:
        """The last decisions of this node, oldest first."""
        return self._session.journal.story()

    # --- pieces ------------------------------------------------------------------------------------------

    def _ask(self, message: Callable[[Future[Any]], Any], timeout: float | None) -> Any:
        self._runner.start()
        if not self._runner.here:
            raise RendezvousError(
                f"This handler of run '{self._settings.run_id}' lives in the process that made it, not in this child "
                f"of fork(); make a handler here, or hand on what the parent's returned.",
                run_id=self._settings.run_id,
                node_id=self.node_id,
                backend=self._backend_name,
            )
        promise: Future[Any] = Future()
        self._runner.post(message(promise))
        try:
            return promise.result(None if timeout is None else timeout + SLACK_SECONDS)
        except FutureTimeout:
            if promise.done():
                raise
            raise RendezvousTimeoutError(
                f"The store of run '{self._settings.run_id}' (backend '{self._backend_name}') did not answer "
                f"within {timeout:g} s.",
                run_id=self._settings.run_id,
                node_id=self.node_id,
                backend=self._backend_name,
                story=self.story,
            ) from None

    def _ask_before_joining(self) -> None:
        if self._before_join is None:
            return
        veto = self._before_join(self._settings.run_id, self.node_id)
        if veto is not None:
            about = {"run_id": self._settings.run_id, "node_id": self.node_id, "backend": self._backend_name}
            self._session.emit(JoinVetoed(reason=veto, **about))
            raise RendezvousError(
                f"This node may not join run '{self._settings.run_id}': {veto}", story=self.story, **about
            )

    def _stores_closed(self) -> None:
        self._stores.close()


def create_handler(
    store: Any,
    backend: RendezvousBackend,
    params: RendezvousParameters,
    *,
    backend_options: Sequence[Option] | None = None,
    endpoint: Endpoint | None = None,
    kind: type[DynamicRendezvousHandler] = DynamicRendezvousHandler,
) -> DynamicRendezvousHandler:
    """Make a handler from the parameters that a launcher collected.

    Args:
        store: See :meth:`DynamicRendezvousHandler.from_backend`.
        backend: The backend, ready to be used.
        params: Run, numbers of nodes, local address, and options.
        backend_options: The options that the backend has read from ``params``, so that they are known here; None for
            those that it names itself.
        endpoint: Where the store is, to find the local address by.
        kind: The class of the handler.

    Raises:
        OptionError: An option is unknown, or its value is wrong; names all of them.
        ValueError: A number is out of range.
    """
    theirs = backend.options if backend_options is None else backend_options
    values = read_options(HANDLER_OPTIONS, theirs, config=params.config, environ=os.environ)
    for doubt in (*values.warnings, *doubts(values), *_doubts_on_reach(params, endpoint)):
        logger.warning("run '%s': %s", params.run_id, doubt)
    logger.info("run '%s' on backend '%s': %s", params.run_id, backend.name, describe(values))
    own = {option.name for option in HANDLER_OPTIONS}
    return kind.from_backend(
        params.run_id,
        store,
        backend,
        params.min_nodes,
        params.max_nodes,
        params.local_addr,
        _timeouts(values),
        values["keep_alive_interval"],
        values["keep_alive_max_attempt"],
        options={name: value for name, value in values.items() if name in own and value is not None},
        endpoint=endpoint,
    )


def _timeouts(values: OptionValues) -> RendezvousTimeout:
    return RendezvousTimeout(
        join=timedelta(seconds=values["join_timeout"]),
        last_call=timedelta(seconds=values["last_call_timeout"]),
        close=timedelta(seconds=values["close_timeout"]),
        heartbeat=timedelta(seconds=values["heartbeat_timeout"]),
    )


def _doubts_on_reach(params: RendezvousParameters, endpoint: Endpoint | None) -> list[str]:
    """Say that a store on this machine is none for nodes on others, who would wait alone or look for rank 0 at home."""
    if params.max_nodes == 1 or params.local_addr or endpoint is None or not endpoint.is_loopback:
        return []
    return [
        f"the endpoint '{endpoint}' is on this machine, so nodes on other machines do not meet this one, or look for "
        f"rank 0 at their own 127.0.0.1. If there are any, give all nodes one endpoint that all can reach, and "
        f"--local-addr where a tunnel leads to it."
    ]


def _identity(node_id: str, addr: str, values: OptionValues) -> Identity:
    return Identity(
        node_id=node_id,
        addr=addr,
        pid=os.getpid(),
        local_id=next(_local_ids),
        rank_hint=values["rank_hint"],
        domain=values["domain"] or "",
    )


def _session_settings(
    run_id: str, backend: str, min_nodes: int, max_nodes: int, values: OptionValues
) -> SessionSettings:
    return SessionSettings(
        run_id=run_id,
        backend=backend,
        rules=Rules(
            min_nodes=min_nodes,
            max_nodes=max_nodes,
            interval=values["keep_alive_interval"],
            ttl=ttl_of(values),
        ),
        policy=Policy(
            last_call=values["last_call_timeout"],
            regroup=values["regroup_timeout"],
            leave_timeout=values["leave_timeout"],
            restart_on_node_loss=values["restart_on_node_loss"],
            placement=values["placement"],
        ),
        bootstrap_timeout=values["bootstrap_timeout"],
        scale_up_delay=values["scale_up_delay"],
        store_outage_timeout=values["store_outage_timeout"],
        closed_ttl=values["closed_ttl"],
    )


def _nobody(event: Event) -> None:
    """Takes an event and does nothing with it."""


# --- the end of the process -----------------------------------------------------------------------------------

_runners: weakref.WeakSet[Runner] = weakref.WeakSet()


def _withdraw_at_exit(runner: Runner) -> None:
    """Withdraw a node whose handler is gone. In a child of fork() there is nobody of ours to withdraw."""
    if not runner.here or not runner.started or runner.ended:
        return
    runner.post(Leave("its handler was dropped", LEAVE_SECONDS))


@atexit.register
def _withdraw_all() -> None:
    waiting = [r for r in _runners if r.here and r.started and not r.ended]
    for runner in waiting:
        runner.post(Leave("its process ended", LEAVE_SECONDS))
    for runner in waiting:
        runner.join(LEAVE_SECONDS)
