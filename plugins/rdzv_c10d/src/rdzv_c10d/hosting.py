"""The store at an endpoint: reached where somebody hosts it, hosted where it falls to us.

One address: the process that can listen there hosts; if several could, the first that does, and the others become
clients. Several addresses: who finds none of them answering waits for as many ``failover_timeout`` as its own address
has before it, and then hosts. Two that do so at the same moment see each other's listening socket before either store
is *established*; then the earlier address stands, and an established store always does.
"""

from __future__ import annotations

import atexit
import errno
import logging
import math
import os
import select
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

from rdzv_core.endpoint import Address, Endpoint
from rdzv_core.errors import RendezvousConnectionError
from rdzv_core.tcp_store import BACKLOG, listen_everywhere, serve_tcp_store

from .departures import await_departures
from .detection import Machine, Verdict, judge
from .plug import Plug, plugged
from .stores import peek
from .target import Target

__all__ = ["EndpointSource", "connected"]

logger = logging.getLogger("rdzv_core.c10d")

PROBE_TIMEOUT = 1.0
"""Seconds to knock at one address."""
STORE_TIMEOUT = timedelta(seconds=10)
"""For clients of our own, which never wait in ``get``."""
ESTABLISHED = "rdzv/established"
"""A key of a store whose host is sure that it is the only one."""
LISTENING_FOR_RESET = 0.05
"""Seconds that a connection must stay open to be believed in, when there was trouble."""
FRESH_ANSWER = 1.0
"""Seconds during which an address that has answered is not knocked at again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Seconds between tries to connect."""
LONGEST_LINGER = 10.0
"""Seconds that a process stays for others at its end, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trouble:
    """Why an address did not answer."""

    what: str
    error: OSError


class EndpointSource:
    """Clients of the store at an endpoint, which is hosted here if need be.

    Args:
        target: The endpoint, and what was said about hosting.
        run_id: Named in errors.
        machine: What this machine says of itself.
    """

    def __init__(self, target: Target, run_id: str, *, machine: Machine | None = None) -> None:
        self._target = target
        self._run_id = run_id
        self._machine = machine or Machine()
        self._lock = threading.Lock()
        self._verdicts: dict[Address, Verdict] = {}
        self._server: Any = None
        self._address = target.addresses[0]
        self._had_store = False
        self._lost_since: float | None = None
        self._answered_at = -math.inf
        self._careful = False
        self._lingers = 0.0
        self._serving: threading.Thread | None = None
        self._process_ends = threading.Event()
        self._closed = False

    @property
    def where(self) -> str:
        """The address of the store, or the last that was tried."""
        return f"the store at {self._address}"

    @property
    def endpoint(self) -> Endpoint:
        """What the user asked for."""
        return self._target.endpoint

    @property
    def hosts(self) -> bool:
        """Whether the store is hosted here."""
        return self._server is not None

    def open(self) -> tuple[Any, Plug | None]:
        """Connect a client, and host the store before that if it falls to this process.

        Raises:
            RendezvousConnectionError: Nobody hosts a store that can be reached; says why for each address, what this
                node made of it, and what to do. ``permanent`` if this node was told to host and cannot.
        """
        with self._lock:
            if self._closed:
                raise RendezvousConnectionError("The client was closed.", backend="c10d")
            if self._server is None and monotonic() - self._answered_at > FRESH_ANSWER:
                if len(self._target.addresses) == 1:
                    self._find_single(self._target.addresses[0])
                else:
                    self._find_listed()
            address, hosted = self._address, self._server is not None
        host = _inside(address) if hosted else address.host
        try:
            return plugged(lambda: self._client(host, address.port))
        except RuntimeError as error:
            self.doubt()
            if "ping failed" not in str(error).lower():
                raise
            raise RendezvousConnectionError(
                f"What listens at {address} is no TCPStore: it does not answer as one. Another program has the port; "
                "choose another endpoint for this job.",
                backend="c10d",
            ) from error

    def doubt(self) -> None:
        """A client could not be had, or was lost: the next is made with more care."""
        self._answered_at = -math.inf
        self._careful = True

    # --- one address

    def _find_single(self, address: Address) -> None:
        verdict = self._verdict(address)
        self._address = address
        if verdict.mine and self._host(address):
            return
        trouble = _knock(address, careful=self._careful)
        if trouble is not None:
            raise self._unreachable({address: trouble})
        self._joined(address)

    # --- several

    def _find_listed(self) -> None:
        """Find the store that answers; host one if none has answered for long enough."""
        troubles: dict[Address, _Trouble] = {}
        answering = []
        for address in self._target.addresses:
            self._verdict(address)
            trouble = _knock(address, careful=self._careful)
            if trouble is None:
                answering.append(address)
            else:
                troubles[address] = trouble
        if answering:
            self._joined(min(answering, key=self._is_fresh) if len(answering) > 1 else answering[0])
            return
        now = monotonic()
        self._lost_since = self._lost_since if self._lost_since is not None else now
        mine = self._next_to_host(now - self._lost_since)
        if mine is None or not self._host(mine) or not self._stands(mine):
            raise self._unreachable(troubles)

    def _next_to_host(self, lost_for: float) -> Address | None:
        for place, address in enumerate(self._target.addresses):
            patience = self._target.failover_timeout * (place + (1 if self._had_store else 0))
            if self._verdicts[address].mine and lost_for >= patience:
                return address
        return None

    def _is_fresh(self, address: Address) -> bool:
        """Whether the store there is not established; a foreign program's never is."""
        try:
            return peek(self._client(address.host, address.port), ESTABLISHED) is None
        except (RuntimeError, RendezvousConnectionError):
            return True

    def _stands(self, mine: Address) -> bool:
        """Whether the store that was just opened here is the one; else it is closed again."""
        before_mine = True
        for address in self._target.addresses:
            if address == mine:
                before_mine = False
            elif _knock(address, careful=True) is None and (before_mine or not self._is_fresh(address)):
                logger.info("run '%s': gives way to the store at %s", self._run_id, address)
                self._server = None
                return False
        self._server.set(ESTABLISHED, b"yes")
        return True

    # --- joining and hosting

    def _joined(self, address: Address) -> None:
        if not self._had_store or address != self._address:
            logger.info("run '%s': uses the store at %s", self._run_id, address)
        self._address, self._had_store, self._lost_since = address, True, None
        self._answered_at, self._careful = monotonic(), False

    def _host(self, address: Address) -> bool:
        """Open a store at ``address``; False if another process has the port, and may."""
        try:
            listener = _listen(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise self._cannot_host(address, error) from error
            if self._target.is_host:
                raise self._cannot_host(address, error) from error
            return False
        port = listener.getsockname()[1]
        self._server = serve_tcp_store(
            _inside(address), listener, timeout=STORE_TIMEOUT, use_libuv=self._target.use_libuv
        )
        self._address = Address(host=address.host, port=port)
        self._had_store, self._lost_since = True, None
        self._hosting_pid = os.getpid()
        atexit.register(self._end_with_process)
        logger.info("run '%s': this process hosts the store at %s", self._run_id, self._address)
        return True

    def _client(self, host: str, port: int) -> Any:
        from torch.distributed import TCPStore

        return TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=STORE_TIMEOUT)

    def _verdict(self, address: Address) -> Verdict:
        """Whether the store at ``address`` is for this node to host; told once, and anew when it changes."""
        known = self._verdicts.get(address)
        if known is not None and known.mine is not None:
            return known
        if self._target.is_host is not None and (len(self._target.addresses) == 1 or not self._target.is_host):
            said = "true" if self._target.is_host else "false"
            verdict = Verdict(mine=self._target.is_host, reason=f"is so by the option is_host={said}")
        else:
            verdict = judge(address.host, self._machine)
        self._verdicts[address] = verdict
        if verdict != known:
            does = {True: "may host", False: "does not host", None: "cannot tell yet whether to host"}[verdict.mine]
            logger.info(
                "run '%s': this node %s the store at %s: '%s' %s",
                self._run_id,
                does,
                address,
                address.host,
                verdict.reason,
            )
        return verdict

    # --- errors

    def _unreachable(self, troubles: dict[Address, _Trouble]) -> RendezvousConnectionError:
        parts = [
            f"{address} {trouble.what} (this node {self._hosts_or_not(address)})"
            for address, trouble in troubles.items()
        ]
        first = next(iter(troubles.values()))
        lost = " The store was there before: the process that hosted it has ended, or its machine is cut off."
        advice = (
            " If no node says that it hosts the store, nobody does: set is_host=true on the node that has this "
            "address (--rdzv-conf=is_host=true), or give the address of a node as endpoint."
        )
        raise_from = RendezvousConnectionError(
            f"The store of run '{self._run_id}' cannot be reached: {'; '.join(parts)}."
            f"{lost if self._had_store else advice}",
            backend="c10d",
        )
        raise_from.__cause__ = first.error
        return raise_from

    def _hosts_or_not(self, address: Address) -> str:
        verdict = self._verdicts[address]
        does = {True: "may host", False: "does not host", None: "does not host yet"}[verdict.mine]
        return f"{does} it: '{address.host}' {verdict.reason}"

    def _cannot_host(self, address: Address, error: OSError) -> RendezvousConnectionError:
        taken = error.errno == errno.EADDRINUSE
        why = "another program listens there" if taken else f"{error.strerror or error}"
        advice = (
            "Find it with 'ss -ltnp', or choose another port; if it is the store of this very run, leave is_host out."
            if taken
            else "Give an address of one of this machine's interfaces as endpoint, or leave is_host out."
        )
        return RendezvousConnectionError(
            f"This node is to host the store of run '{self._run_id}' at {address}, and cannot listen there: {why}. "
            f"{advice}",
            permanent=bool(self._target.is_host),
            backend="c10d",
        )

    # --- the end

    def linger(self, seconds: float) -> None:
        """The run has ended: the store, if it is hosted here, stays for the others, for so long at most."""
        self._lingers = min(seconds, LONGEST_LINGER)

    def close(self) -> None:
        """Let go of the store. One that is hosted here goes on until the other nodes have left, or the process ends."""
        if self._closed:
            return
        self._closed = True
        if self._server is not None and not self._process_ends.is_set():
            self._serving = threading.Thread(target=self._serve_on, name="rdzv-c10d-host", daemon=True)
            self._serving.start()

    def _serve_on(self) -> None:
        await_departures(self._server, self._run_id, math.inf, self._process_ends)
        if not self._process_ends.is_set():
            atexit.unregister(self._end_with_process)
            self._server = None

    def _end_with_process(self) -> None:
        """At the end of the process: a run that has ended is to end well for all, and no thread of ours to go on."""
        if os.getpid() != self._hosting_pid:
            return  # a child of fork(): the store is its parent's
        if self._server is not None and self._lingers > 0:
            await_departures(self._server, self._run_id, self._lingers, self._process_ends)
        self._process_ends.set()
        if self._serving is not None:
            self._serving.join()


def connected(source: EndpointSource, timeout: float) -> Any:
    """Connect a client, trying for ``timeout`` seconds; names that DNS does not know yet and hosts that start late.

    Raises:
        RendezvousConnectionError: The last reason, and how long was tried.
    """
    deadline = monotonic() + timeout
    pause = FIRST_PAUSE
    attempts = 0
    while True:
        attempts += 1
        try:
            store, _ = source.open()
            store.set_timeout(timedelta(seconds=timeout))
            return store
        except (RendezvousConnectionError, RuntimeError) as error:
            left = deadline - monotonic()
            if getattr(error, "permanent", False) or left <= 0:
                source.close()
                said = str(error).partition("\n")[0]
                raise RendezvousConnectionError(
                    f"{said} Tried {attempts} times in {timeout:g} s (read_timeout).",
                    permanent=getattr(error, "permanent", False),
                    backend="c10d",
                ) from error
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def _inside(address: Address) -> str:
    """Where the host itself finds its own store; needs no name server, and no route."""
    return address.host if address.is_loopback and address.host != "localhost" else "127.0.0.1"


def _listen(address: Address) -> socket.socket:
    """Listen at the loopback address if that is what was asked for, else on all interfaces."""
    if address.is_loopback:
        host = "127.0.0.1" if address.host.lower().rstrip(".") == "localhost" else address.host
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, address.port), family=family, backlog=BACKLOG)
    return listen_everywhere(address.port)


def _knock(address: Address, *, careful: bool) -> _Trouble | None:
    """Whether somebody listens at ``address``: None, or why not.

    With ``careful`` also whether the connection is kept: a TCPStore's client that is turned away at the door hangs.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=PROBE_TIMEOUT) as connection:
            if careful and select.select([connection], [], [], LISTENING_FOR_RESET)[0] and not connection.recv(1):
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed as soon as it was open")
            return None
    except socket.gaierror as error:
        return _Trouble(what=f"cannot be looked up: DNS does not know '{address.host}' ({error.strerror})", error=error)
    except TimeoutError as error:
        return _Trouble(
            what="does not answer: its machine is down or cut off, a firewall drops the packets, or no machine has the "
            "address",
            error=error,
        )
    except ConnectionRefusedError as error:
        return _Trouble(what="refuses connections: nobody hosts a store there (yet)", error=error)
    except OSError as error:
        return _Trouble(what=f"cannot be reached: {error.strerror or error}", error=error)
