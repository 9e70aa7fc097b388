"""Handlers with real threads that meet over a store in memory, without torch."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rdzv_core.api import Observers, RendezvousInfo, RendezvousTimeout
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.events import Event
from rdzv_core.machine.follow import Seat
from rdzv_core.machine.record import Record
from rdzv_core.machine.register import Bootstrap, Register
from rdzv_core.runtime.handler import DynamicRendezvousHandler
from rdzv_core.testing.memory import MemoryBackend, MemoryStore
from rdzv_core.testing.suite import Waiting, eventually
from rdzv_core.wire import decode_record, decode_register

RUN = "job-7"
SOON = 20.0
"""Seconds within which what must happen has happened, also on a machine that does much else."""

PATIENT = {"keep_alive_interval": 5.0, "last_call_timeout": 60.0, "scale_up_delay": 0.1, "bootstrap_timeout": 30.0}
"""Nobody is taken for dead, and no round begins without a guest that is late, whatever the machine does meanwhile."""

BRISK = {**PATIENT, "keep_alive_interval": 0.3}
"""Dead after 0.9 s."""

ports = itertools.count(20_000)


class Stores:
    """Stands in for rank 0's TCPStore, and keeps account."""

    def __init__(self) -> None:
        self.hosted: list[Seat] = []
        self.connected: list[tuple[Seat, Bootstrap]] = []
        self.closed = 0
        self.refuses_to_host: Exception | None = None
        self.refuses_to_connect: list[Exception] = []
        self.may_host = threading.Event()
        self.may_host.set()

    def host(self, seat: Seat) -> Bootstrap:
        self.hosted.append(seat)
        self.may_host.wait(SOON)
        if self.refuses_to_host is not None:
            raise self.refuses_to_host
        return Bootstrap(addr="127.0.0.1", port=next(ports))

    def connect(self, seat: Seat, address: Bootstrap) -> Any:
        self.connected.append((seat, address))
        if self.refuses_to_connect:
            raise self.refuses_to_connect.pop()
        return (seat.round, seat.round_id, address.port)

    def close(self) -> None:
        self.closed += 1


class Line(MemoryBackend):
    """A connection that can be cut for this node alone; what goes through it is noted."""

    def __init__(self, store: MemoryStore, run_id: str) -> None:
        super().__init__(store, run_id)
        self.cut = False
        self.permanent = False
        self.fault: Exception | None = None

    def _enter(self) -> Any:
        if self.fault is not None:
            raise self.fault
        if self.cut and not self._closed:
            raise RendezvousConnectionError("The cable is cut.", permanent=self.permanent)
        return super()._enter()


class Guest:
    """One handler, with all that it was made of."""

    def __init__(self, handler: DynamicRendezvousHandler, line: Line, stores: Any, events: list[Event]) -> None:
        self.handler = handler
        self.line = line
        self.stores = stores
        self.events = events

    def joins(self) -> Waiting[RendezvousInfo]:
        return Waiting(self.handler.next_rendezvous)

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]

    def event(self, kind: type[Event]) -> Any:
        """The last event of this kind, as soon as there is one."""
        found: list[Event] = eventually(
            f"{kind.__name__} on {self.handler.node_id}",
            lambda: [e for e in self.events if type(e) is kind],
            within=SOON,
        )
        return found[-1]

    def dies(self) -> None:
        """As with SIGKILL: it says nothing any more, to anybody."""
        self.line.cut = True


class Party:
    """Makes handlers of one run, and looks into their store by the back door."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.guests: list[Guest] = []
        self._strangers = set(threading.enumerate())

    def guest(
        self,
        min_nodes: int,
        max_nodes: int,
        addr: str | None = None,
        *,
        options: dict[str, Any] = PATIENT,
        join: float = 60.0,
        observers: Observers | None = None,
        stores: Any = None,
        **more: Any,
    ) -> Guest:
        line, stores, events = Line(self.store, RUN), stores or Stores(), list[Event]()
        options = {**options, **more}
        handler = DynamicRendezvousHandler.from_backend(
            RUN,
            None,
            line,
            min_nodes,
            max_nodes,
            addr or f"host-{len(self.guests)}",
            RendezvousTimeout(
                join=timedelta(seconds=join),
                last_call=timedelta(seconds=options.pop("last_call_timeout")),
                heartbeat=timedelta(seconds=0.5),
            ),
            options.pop("keep_alive_interval"),
            options={"close_timeout": SOON, **options},
            stores=stores,
        )
        handler.observe(Observers(events=events.append))
        if observers is not None:
            handler.observe(observers)
        guest = Guest(handler, line, stores, events)
        self.guests.append(guest)
        return guest

    def meet(self, *guests: Guest) -> list[RendezvousInfo]:
        """All join; their parts, by guest."""
        joining = [guest.joins() for guest in guests]
        return [waiting.result(within=SOON) for waiting in joining]

    @property
    def register(self) -> Register | None:
        data = self.store.peek(RUN)
        return None if data is None else decode_register(data)

    @property
    def records(self) -> dict[str, Record]:
        with self.store._lock:
            roster = self.store._swept(RUN).roster(None)
        return {entry.node_id: decode_record(entry.record) for entry in roster.records}

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        return eventually(what, look, within=SOON)

    def seen(self, guest: Guest) -> Record:
        """The guest's record, as soon as it is there."""
        return self.until("a record", lambda: self.records.get(guest.handler.node_id))

    def end(self) -> None:
        """Everybody goes, and no thread of theirs stays."""
        self.store.mend()
        for guest in self.guests:
            guest.line.cut, guest.line.fault = False, None
            if isinstance(guest.stores, Stores):
                guest.stores.may_host.set()
            guest.handler.post_leave("the test is over", 1.0)
        for guest in self.guests:
            guest.handler.leave("the test is over", 1.0)
        self.until("no thread is left", lambda: not self.threads())

    def threads(self) -> list[str]:
        """Threads of ours that began with this party; other tests of this process may have theirs."""
        ours = (thread for thread in threading.enumerate() if thread not in self._strangers)
        return [thread.name for thread in ours if thread.name.startswith("rdzv-")]
