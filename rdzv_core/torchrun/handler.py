"""Our handler as torch's agent wants it."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import api as torch_api

from rdzv_core.api import RendezvousInfo
from rdzv_core.errors import RendezvousTimeoutError
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.torchrun.arrival import all_arrive
from rdzv_core.torchrun.failures import torch_errors
from rdzv_core.torchrun.signals import LeaveSignals
from rdzv_core.torchrun.store import AgentStore

__all__ = ["Ending", "TorchrunHandler", "ending"]

logger = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 1.0
"""Seconds for closing, and again for leaving, at the end of a launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why ``shutdown()`` is called, and whether that ends the job."""

    outcome: str
    reason: str
    closes: bool


def ending(error: BaseException | None) -> Ending:
    """Read the reason of a ``shutdown()`` from the exception that is on its way.

    torch tells ``shutdown()`` nothing. It calls it in a ``finally``, so the exception in flight is the reason: none is
    success, failed workers end the job, and whatever else happens to *this* node is no reason to end it for others.
    """
    if error is None:
        return Ending(outcome="success", reason="its workers have succeeded", closes=True)
    if isinstance(error, ChildFailedError):
        return Ending(outcome="failed", reason="its workers have failed, and no restart was left", closes=True)
    if isinstance(error, KeyboardInterrupt | SignalException):
        return Ending(outcome="left", reason="its launcher was interrupted", closes=False)
    if isinstance(error, SystemExit):
        return Ending(outcome="left", reason=f"its launcher exits with status {error.code}", closes=False)
    return Ending(outcome="left", reason=f"its launcher failed: {type(error).__name__}", closes=False)


class TorchrunHandler(torch_api.RendezvousHandler):  # type: ignore[misc] # torch has no types here
    """What torchrun calls.

    Args:
        handler: The handler to dress.
        name: The name that was asked for, which ``get_backend()`` must echo.
        clock: Monotonic seconds.
    """

    def __init__(
        self, handler: DynamicRendezvousHandler, name: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._handler = handler
        self._name = name
        self._clock = clock
        self._signals = LeaveSignals(handler.post_leave)
        self._store: AgentStore | None = None

    def get_backend(self) -> str:
        """The name that was asked for."""
        return self._name

    def get_run_id(self) -> str:
        """The id of the run."""
        return self._handler.get_run_id()

    @property
    def use_agent_store(self) -> bool:
        """Whether workers share the agents' store."""
        return self._handler.use_agent_store

    def next_rendezvous(self) -> Any:
        """Wait for a round with this node; see :meth:`DynamicRendezvousHandler.next_rendezvous`."""
        self._signals.wrap()
        with self._signals.stand_in(), torch_errors():
            info = self._meet()
        self._store = AgentStore(info.store, self._handler)  # kept: C++ holds only half of a Python store
        bootstrap = info.bootstrap_store_info
        assert bootstrap is not None  # our own handler always knows rank 0's address
        return torch_api.RendezvousInfo(
            self._store,
            info.rank,
            info.world_size,
            torch_api.RendezvousStoreInfo(bootstrap.master_addr, bootstrap.master_port),
        )

    def _meet(self) -> RendezvousInfo:
        """Join until all members of a round have reached its store; on an error give the seat back."""
        try:
            return self._join_until_all_arrive()
        except BaseException:
            self._handler.abandon()
            raise

    def _join_until_all_arrive(self) -> RendezvousInfo:
        # A member that cannot reach the store gives up within one bootstrap_timeout.
        patience = 2 * self._handler.options["bootstrap_timeout"]
        limit = self._handler.settings.timeout.join.total_seconds()
        deadline = math.inf
        while True:
            info = self._handler.next_rendezvous()
            if info.world_size == 1 or all_arrive(info.store, info.world_size, self._stands, patience):
                return info
            logger.warning("not all members reached the store of the round; this node joins again")
            deadline = min(deadline, self._clock() + limit)
            if self._clock() >= deadline:
                raise RendezvousTimeoutError(
                    f"For {limit:.0f} s run '{self.get_run_id()}' has had no round whose members all reached its "
                    f"store; see the logs of those that gave it up. Are the ports between all nodes open?"
                )

    def _stands(self) -> bool:
        return self._handler.stands

    def num_nodes_waiting(self) -> int:
        """For how many nodes to re-form; raises nothing but the end of this node."""
        self._signals.wrap()
        with torch_errors():
            return self._handler.num_nodes_waiting()

    def is_closed(self) -> bool:
        """Whether the run is closed."""
        with torch_errors():
            return self._handler.is_closed()

    def set_closed(self) -> None:
        """Close the run."""
        with torch_errors():
            self._handler.set_closed()

    def shutdown(self) -> bool:
        """Leave, and close the run if the reason for it ends the job. Bounded, and never raises."""
        end = ending(sys.exc_info()[1])
        self._signals.restore()
        try:
            return self._handler.end(end.outcome, end.reason, close=end.closes, timeout=SHUTDOWN_SECONDS)
        except Exception:
            logger.exception("leaving the rendezvous failed; the others will notice after the keep-alive TTL")
            return False
