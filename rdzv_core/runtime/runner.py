"""Drives a session with real threads, a real clock and a real backend.

Three threads at most: one runs the session and makes every short call; one is blocked in ``wait_state`` for as long
as the node takes part; one is blocked in ``roster`` while the node leads. What they see, and what users want, is put
into one reentrant queue, so that a signal handler may put a message there too.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from queue import Empty, SimpleQueue
from random import SystemRandom
from typing import Any

from rdzv_core.api import Placed, PlacementHook
from rdzv_core.backend import CoordinationBackend, Roster
from rdzv_core.errors import RendezvousError
from rdzv_core.runtime.bootstrap import BootstrapStores, shares_agent_store
from rdzv_core.runtime.clock import Clock
from rdzv_core.runtime.orders import (
    Call,
    Connect,
    Connected,
    Host,
    Hosted,
    Locate,
    Message,
    Nudge,
    Order,
    Place,
    RosterSeen,
    Sleep,
    StateSeen,
    WatchRoster,
)
from rdzv_core.runtime.session import Session

__all__ = ["Runner"]

logger = logging.getLogger(__name__)

WATCH_SECONDS = 60.0
"""Seconds that a watcher blocks before it blocks again; nothing is lost in between."""

QUICK_SECONDS = 0.1
"""Seconds; a wait that ends without news within this time is not begun again before it has passed."""

FAULT_PAUSE = 1.0
"""Seconds before a session that broke is begun anew."""

RETRY_SECONDS = 1.0
"""Seconds that a watcher pauses after an error, about; the session has its own, quicker retries."""


class Runner:
    """One session, its threads, and its mail.

    Args:
        session: What to drive.
        backend: What it talks to; closed when the session ends.
        stores: Opens and connects the stores of rounds.
        clock: The session's clock.

    Attributes:
        place: Asked for the order of members; None for nobody. Set before :meth:`start`.
    """

    def __init__(
        self,
        session: Session,
        backend: CoordinationBackend,
        stores: BootstrapStores,
        clock: Clock,
    ) -> None:
        self.session = session
        self._pid = os.getpid()
        self._backend = backend
        self._stores = stores
        self._clock = clock
        self.place: PlacementHook | None = None
        self._mail: SimpleQueue[Message] = SimpleQueue()
        self._start_lock = threading.Lock()
        self._started = False
        self._ended = threading.Event()
        self._gone = threading.Event()
        self._leads = threading.Event()
        self._watches_roster = False

    @property
    def started(self) -> bool:
        """The threads have been started."""
        return self._started

    @property
    def here(self) -> bool:
        """The threads are in this process, or will be. A child that fork() made has none of them."""
        return not self._started or os.getpid() == self._pid

    @property
    def ended(self) -> bool:
        """The session is over; nothing that is posted is heard any more."""
        return self._ended.is_set()

    def post(self, message: Message) -> None:
        """Hand a message to the session. Safe from any thread and from a signal handler.

        A promise in it is always kept: by the session, or, if that is over, by an error that says so.
        """
        self._mail.put(message)
        if self._ended.is_set():
            self._return_mail()

    def start(self) -> None:
        """Start the threads, once."""
        with self._start_lock:
            if self._started:
                return
            self._pid = os.getpid()
            self._thread("session", self._run)
            self._started = True
        self._thread("register", self._watch, "register", self._watch_state)

    def join(self, timeout: float) -> bool:
        """Wait until the session is over, and its backend has let go of its threads; returns whether that is so."""
        return not self._started or self._gone.wait(timeout)

    def _thread(self, what: str, target: Callable[..., None], *args: Any) -> None:
        threading.Thread(target=target, args=args, name=f"rdzv-{what}", daemon=True).start()

    # --- the session -------------------------------------------------------------------------------------

    def _run(self) -> None:
        told: set[str] = set()
        try:
            while True:
                try:
                    self._drive(self.session.run())
                    break
                except Exception as error:
                    if repr(error) not in told:
                        told.add(repr(error))
                        logger.exception("the rendezvous session met a fault of its own; it goes on")
                    self.session.bear_fault(error)
                    time.sleep(FAULT_PAUSE)
        finally:
            self._ended.set()
            self._return_mail()
            self._leads.set()
            try:
                self._backend.close()
            finally:
                self._gone.set()

    def _return_mail(self) -> None:
        """Let the session refuse what it can no longer do."""
        inbox = self.session.inbox
        with suppress(Empty):
            while True:
                inbox.append(self._mail.get_nowait())
        self.session.refuse_mail()

    def _drive(self, steps: Generator[Order, Any, None]) -> None:
        answer: Any = None
        error: RendezvousError | None = None
        while True:
            try:
                order = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration:
                return
            answer, error = None, None
            try:
                answer = self._obey(order)
            except RendezvousError as failure:
                error = failure

    def _obey(self, order: Order) -> Any:
        match order:
            case Call():
                return getattr(self._backend, order.name)(*order.args, **order.kwargs)
            case Sleep():
                self._sleep(order.until)
            case WatchRoster():
                self._watch_roster(order)
            case Locate():
                return self._stores.locate()
            case Host():
                self._thread("host", self._host, order)
            case Connect():
                self._thread("connect", self._connect, order)
            case Place():
                return self.place(order.members, order.previous) if self.place is not None else Placed()
        return None

    def _sleep(self, until: float | None) -> None:
        inbox = self.session.inbox
        timeout = None if until is None else max(0.0, until - self._clock.monotonic())
        with suppress(Empty):
            inbox.append(self._mail.get(timeout=timeout))
            while True:
                inbox.append(self._mail.get_nowait())

    # --- watchers and side tasks -------------------------------------------------------------------------

    def _watch(self, what: str, watcher: Callable[..., None], *args: Any) -> None:
        try:
            watcher(*args)
        except Exception:
            logger.exception(
                "The watcher of the %s ended by a fault of its own; this node hears of changes with its next sign of "
                "life now. Please report it.",
                what,
            )

    def _watch_state(self) -> None:
        token: Any = None
        nudged_at = 0.0
        owed = False
        while not self._ended.is_set():
            asked_at = self._clock.monotonic()
            timeout = max(0.0, nudged_at + RETRY_SECONDS - asked_at) if owed else WATCH_SECONDS
            try:
                seen = self._backend.wait_state(token, timeout)
            except RendezvousError:
                self._ended.wait(SystemRandom().uniform(0.1, RETRY_SECONDS))
                continue
            now = self._clock.monotonic()
            if seen is not None:
                token = seen[1]
                self.post(StateSeen(*seen))
            else:
                owed = owed or now - asked_at < timeout
            if owed and now - nudged_at >= RETRY_SECONDS:
                owed, nudged_at = False, now
                self.post(Nudge())
            elif owed and seen is None and now - asked_at < QUICK_SECONDS:
                self._ended.wait(QUICK_SECONDS)  # some backends say at each call that the register is lost

    def _watch_roster(self, order: WatchRoster) -> None:
        if not order.on:
            self._leads.clear()
            return
        self._leads.set()
        if not self._watches_roster:
            self._watches_roster = True
            self._thread("roster", self._watch, "roster", self._follow_roster, order.roster)

    def _follow_roster(self, roster: Roster | None) -> None:
        while not self._ended.is_set():
            if not self._leads.wait(WATCH_SECONDS):
                continue
            try:
                change = self._backend.roster(roster.version if roster is not None else None, WATCH_SECONDS)
            except RendezvousError:
                roster = None
                self._ended.wait(SystemRandom().uniform(0.1, RETRY_SECONDS))
                continue
            if change is None:
                continue
            seen_at = self._clock.monotonic()
            roster = change.onto(roster)
            if self._leads.is_set():
                self.post(RosterSeen(roster, seen_at))
            # In a storm of joins, let at least as much time pass as this took: the next read brings more at once.
            self._ended.wait(self._clock.monotonic() - seen_at)

    def _host(self, order: Host) -> None:
        try:
            address = self._stores.host(order.seat)
        except Exception as error:
            self.post(Hosted(order.seat.round_id, None, error))
        else:
            self.post(Hosted(order.seat.round_id, address))

    def _connect(self, order: Connect) -> None:
        try:
            store = self._stores.connect(order.seat, order.address)
            address = None if shares_agent_store() else self._stores.address_for_workers(order.seat, store)
        except Exception as error:
            self.post(Connected(order.seat.round_id, None, error))
        else:
            self.post(Connected(order.seat.round_id, store, address=address))
