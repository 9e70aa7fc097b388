"""The contract of :mod:`rdzv_core.backend` over one Redis or Valkey server.

What one call must do at once is a Lua script (``scripts/``); liveness is the server's clock; waits are pushed
over pub/sub. A message may be lost, so whoever has just subscribed reads once; a message that comes while a call
waits is believed if its token counts higher than the caller's, and anything else is read again.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Hashable, Mapping, Sequence
from time import monotonic
from typing import Any, NoReturn

from rdzv_core.backend import CoordinationBackend, Pulse, Roster, RosterEntry, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from .connection import Target, target_of
from .keys import RunKeys
from .link import Closed, Link, Subscription
from .options import REDIS_OPTIONS

__all__ = ["RedisRendezvousBackend"]

_TOKEN = re.compile(r"[0-9]{1,15}\.[A-Za-z0-9_-]{1,32}")
_NO_TOKEN = "?"  # noqa: S105 - what no register carries: a foreign token is a lost race
_EXPIRY_MARGIN = 0.005  # the server's milliseconds are whole ones
_UNKNOWN: Any = object()


class RedisRendezvousBackend(CoordinationBackend):
    """One run on one server. Connects at the first call.

    Args:
        target: The server; see :func:`rdzv_redis.connection.target_of`.
        run_id: The run; any text but the empty one.

    Raises:
        ValueError: Run id or key prefix cannot be used in key names.
    """

    options = REDIS_OPTIONS

    def __init__(self, target: Target, run_id: str) -> None:
        self._run_id = run_id
        self._keys = RunKeys(run_id=run_id, prefix=target.prefix)
        self._link = Link(target)
        self._register_news = Subscription(self._link, self._keys.register)
        self._roster_news = Subscription(self._link, self._keys.live)
        self._heard: Any = _UNKNOWN  # the register's token that the subscription has not moved on from

    @classmethod
    def connect(
        cls,
        endpoint: str,
        run_id: str,
        options: Mapping[str, Any] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
    ) -> RedisRendezvousBackend:
        """Make a backend from an endpoint's text and options, as a user writes them.

        Raises:
            ValueError: Endpoint, options or run id are not understood.
        """
        return cls(target_of(endpoint, options or {}, environ or {}), run_id)

    @property
    def name(self) -> str:
        """``redis``."""
        return "redis"

    def __repr__(self) -> str:
        return f"<RedisRendezvousBackend run {self._run_id!r} at {self._link.target}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A RedisRendezvousBackend (run {self._run_id!r}) holds connections and cannot be pickled: "
            "pass endpoint and run id to the other process, and make a backend there."
        )

    # -- level 1: the register

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One command."""
        token, state = self._link.command("read the register", "HMGET", self._keys.register, "token", "state")
        if token is None:
            return None
        if state is None or not _TOKEN.fullmatch(token.decode("ascii", "replace")):
            raise RendezvousStateError(
                f"The register of run {self._run_id!r} at {self._link.target} (key '{self._keys.register}') was not "
                "written by rdzv-redis: its token or its state is missing. Delete the key, or choose another run id.",
                run_id=self._run_id,
                backend=self.name,
            )
        return state, token.decode()

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. One command; made again if its answer was lost.

        Raises:
            RendezvousConnectionError: With ``maybe_applied`` if the answer was lost and somebody else has
                written since, or nothing more can be learnt.
        """
        if token is None:
            expected = ""
        elif isinstance(token, str) and _TOKEN.fullmatch(token):
            expected = token
        else:
            expected = _NO_TOKEN
        reply, attempt = self._link.run(
            "write the register",
            "set_state",
            (self._keys.register,),
            (bytes(state), expected, secrets.token_urlsafe(9)),
            writes=True,
        )
        if reply[0]:
            return bytes(state), reply[1].decode(), True
        if attempt.unsure:
            raise RendezvousConnectionError(
                f"The answer to writing the register of run {self._run_id!r} was lost, and when Redis at "
                f"{self._link.target} was asked again, the register held another write. Ours may have been there in "
                "between: read again before you decide.",
                maybe_applied=True,
                run_id=self._run_id,
                backend=self.name,
            )
        if len(reply) == 1:
            return None
        return reply[2], reply[1].decode("ascii", "replace"), False

    def wait_state(self, token: Token | None, timeout: float) -> tuple[bytes, Token] | None:
        """Block until the register's token differs. No command while it waits.

        After the first call the subscription stays, so that a later call needs no command at all.
        """
        end = monotonic() + timeout
        try:
            if self._register_news.open():
                self._heard = _UNKNOWN
            vacant = self._hear(self._register_news.last())
            while True:
                if self._heard != token:
                    held = self.get_state()
                    # A lost register is told once; the next wait is for the write that follows.
                    self._heard = token if held is None else held[1]
                    if held is None and token is None:
                        pass
                    elif held is None or held[1] != token:
                        return held
                message = None if vacant else self._register_news.next(end - monotonic())
                if not message:
                    return None
                self._hear([message])
                if _count(self._heard) > _count(token):
                    return message.partition(b" ")[2], self._heard
        except Closed:
            return None

    def _hear(self, messages: Sequence[bytes]) -> bool:
        """Take note of what was written; answers whether a leader gave up its lease."""
        for message in messages:
            if message:
                self._heard = message.partition(b" ")[0].decode("ascii", "replace")
        return b"" in messages

    # -- level 2: signs of life

    def announce(self, node_id: str, seq: int, record: bytes, ttl: float, *, lead: bool = True) -> Pulse:
        """Store the node's record. One command."""
        k = self._keys
        return self._pulse(
            "announce a node",
            "announce",
            (k.live, k.nodes, k.left, k.log, k.register),
            (node_id, seq, bytes(record), _ms(ttl), int(lead)),
        )

    def pulse(
        self, node_id: str, seq: int, ttl: float, *, lead: bool = True, keep: float = 0.0, group: str = ""
    ) -> Pulse:
        """Renew the node's record, and its lease. One command."""
        k = self._keys
        keys: tuple[str, ...] = (k.live, k.nodes, k.register)
        arguments: tuple[Any, ...] = (node_id, seq, _ms(ttl), int(lead))
        if lead and keep > 0:
            keys += (k.pages, k.groups)
            arguments += (_ms(keep), group)
        return self._pulse("give a sign of life", "pulse", keys, arguments)

    def _pulse(self, what: str, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Pulse:
        (known, leads, left, token), _ = self._link.run(what, name, keys, arguments, writes=True)
        return Pulse(
            known=bool(known),
            leads=bool(leads),
            lease_left=int(left) / 1000,
            token=None if token is None else token.decode("ascii", "replace"),
        )

    def withdraw(self, node_id: str, seq: int, ttl: float, *, keep: float | None = None) -> None:
        """Remove the node's record and leave a tombstone. One command."""
        k = self._keys
        self._link.run(
            "withdraw a node",
            "withdraw",
            (k.live, k.nodes, k.left, k.log, k.register, k.pages, k.groups),
            (node_id, seq, _ms(ttl), "" if keep is None else _ms(keep)),
            writes=True,
        )

    # -- level 2: the roster

    def roster(self, seen: Hashable | None = None, timeout: float = 0.0) -> Roster | None:
        """Read the live records, or what changed. While it blocks: one command per change or expected expiry."""
        end = monotonic() + timeout
        waits = seen is not None and timeout > 0
        try:
            while True:
                if waits:
                    self._roster_news.open()
                    self._roster_news.last()
                answer, next_expiry = self._read_roster(seen)
                left = end - monotonic()
                if answer is not None or not waits or left <= 0:
                    return answer
                self._roster_news.next(left if next_expiry is None else min(left, next_expiry + _EXPIRY_MARGIN))
        except Closed:
            return None

    def _read_roster(self, seen: Hashable | None) -> tuple[Roster | None, float | None]:
        """The roster unless its version is ``seen``, and the seconds until a record may expire."""
        k = self._keys
        version_seen = seen if isinstance(seen, str) and seen.isdecimal() else ""
        reply, _ = self._link.run(
            "read the roster", "roster", (k.live, k.nodes, k.left, k.log), (version_seen,), writes=False
        )
        wait = int(reply[1])
        next_expiry = None if wait < 0 else wait / 1000
        if len(reply) == 2:
            return None, next_expiry
        version, _, base, records, gone, withdrawn = reply
        entries = (_entry(node_id, stored) for node_id, stored in zip(records[::2], records[1::2], strict=True))
        roster = Roster(
            version=version.decode(),
            records=tuple(sorted(entries, key=lambda entry: entry.arrival)),
            withdrawn=frozenset(node_id.decode() for node_id in withdrawn),
            base=base.decode() or None,
            gone=frozenset(node_id.decode() for node_id in gone),
        )
        return roster, next_expiry

    # -- level 2: pages, and the end

    def publish(self, group: str, pages: Sequence[bytes], keep: float) -> None:
        """Store the pages of ``group``. One command."""
        keys = (self._keys.pages, self._keys.groups)
        arguments = (group, _ms(keep), *(bytes(page) for page in pages))
        self._link.run("publish pages", "publish", keys, arguments, writes=True)

    def page(self, group: str, index: int) -> bytes | None:
        """Read one page. One command."""
        page: bytes | None = self._link.command("read a page", "HGET", self._keys.pages, f"{index} {group}")
        return page

    def forget(self) -> None:
        """Drop every key of the run, unless nodes are alive. One command."""
        alive, _ = self._link.run("forget the run", "forget", self._keys.every, (), writes=True)
        if alive:
            names = ", ".join(sorted(node_id.decode() for node_id in alive)[:8])
            raise RendezvousStateError(
                f"Run {self._run_id!r} cannot be forgotten: {len(alive)} of its nodes are alive ({names}). "
                "Stop them first, or wait one TTL after they died.",
                run_id=self._run_id,
                backend=self.name,
            )

    def close(self) -> None:
        """Close all connections, and wake blocked waits, which then return None."""
        self._link.close()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _count(token: Any) -> int:
    """How many writes a register has seen by its token; only to tell a late message from a new one."""
    return int(token.partition(".")[0]) if isinstance(token, str) and _TOKEN.fullmatch(token) else 0


def _entry(node_id: bytes, stored: bytes) -> RosterEntry:
    _, arrival, record = stored.split(b" ", 2)
    return RosterEntry(node_id=node_id.decode(), arrival=int(arrival), record=record)
