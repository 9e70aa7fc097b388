"""What a Redis server or its connection may answer in place of an answer, and what to do about it.

The one place where exceptions of the client library become errors of the rendezvous. Programming errors
(arguments that no server ever saw) pass as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rdzv_core.errors import RendezvousConnectionError, RendezvousError, RendezvousStateError

__all__ = ["Attempt", "RetryableError", "is_answer", "is_demoted", "translated"]


class RetryableError(Exception):
    """The server was not reached, or did not answer; the same call may be made again, it does no harm twice."""


@dataclass(slots=True, kw_only=True)
class Attempt:
    """How far a call has come; decides what may be said about it when it fails."""

    where: str
    """The endpoint, password masked."""
    what: str
    """The call, in the words of the contract."""
    writes: bool = False
    in_flight: bool = False
    """It is being sent, or has been and nothing has come back yet."""
    unsure: bool = False
    """An earlier try was broken off while in flight."""

    @property
    def maybe_applied(self) -> bool:
        """Whether the store may have changed although nobody has said so."""
        return self.writes and (self.unsure or self.in_flight)


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What a code in the server's error means, and what to do about it."""

    advice: str
    permanent: bool = False
    """Trying again cannot help: whoever waits is told at once. Of the others, those that pass by themselves
    (:data:`_TRANSIENT`) are tried again before anybody is told."""
    kind: type[RendezvousError] = RendezvousConnectionError


_REFUSALS: dict[str, _Refusal] = {
    "WRONGPASS": _Refusal(
        "user name or password is wrong. Check the endpoint's user:password, RDZV_REDIS_USERNAME, "
        "RDZV_REDIS_PASSWORD and the option password_file",
        permanent=True,
    ),
    "NOAUTH": _Refusal(
        "the server asks for a password and none was given. Set RDZV_REDIS_PASSWORD, or the option password_file",
        permanent=True,
    ),
    "NOPERM": _Refusal(
        "this user may not run the command, or not touch the run's keys or channels. The README of rdzv-redis "
        "lists the rule that is needed ('~rdzv:*', '&rdzv:*' and a few commands)",
        permanent=True,
    ),
    "NOCOMMAND": _Refusal(
        "the server does not know the command: it was renamed, or a proxy stands before it that does not pass it on. "
        "The README of rdzv-redis lists the commands that are needed",
        permanent=True,
    ),
    "FOREIGN": _Refusal(
        "what answers there does not speak Redis's protocol, or only in TLS. Check the port, and whether the endpoint "
        "is to begin with rediss://",
        permanent=True,
    ),
    "WRONGTYPE": _Refusal(
        "a key of this run holds another kind of value, so something else has written there. "
        "Choose another run id, database or the option key_prefix, or delete the key",
        kind=RendezvousStateError,
    ),
    "NONUMBER": _Refusal(
        "what is stored there is no number, or the sum would need more than 64 bits", kind=RendezvousStateError
    ),
    "OOM": _Refusal("the server is out of memory (maxmemory). Raise maxmemory, or use a server that is not a cache"),
    "READONLY": _Refusal("the server is a read-only replica. Point the endpoint at the primary"),
    "LOADING": _Refusal("the server is still loading its data. Wait, then try again"),
    "BUSY": _Refusal("the server is held up by somebody's long script. Wait, or kill that script"),
    "MASTERDOWN": _Refusal("the server is a replica that has lost its primary"),
    "CLUSTERDOWN": _Refusal("the cluster is down: part of its slots is not served"),
    "TRYAGAIN": _Refusal("the cluster is moving the slot of this run. Try again"),
    "MOVED": _Refusal(
        "the server is one node of a Redis Cluster and the run's slot is on another. "
        "Redis Cluster is not supported yet: use a single server, or the node that serves this run",
        permanent=True,
    ),
    "NOREPLICAS": _Refusal("the server refuses writes for want of replicas (min-replicas-to-write)"),
    "MISCONF": _Refusal("the server refuses writes since it cannot save to disk. See its log"),
    "MAXCLIENTS": _Refusal(
        "the server has no connection left. Raise maxclients: a node needs two, the leader three",
    ),
    "NODB": _Refusal("the server has no database of that number. Check the /db of the endpoint", permanent=True),
    "NOAUTHSET": _Refusal(
        "a password was given, but the server has none set. Remove it from endpoint and environment",
        permanent=True,
    ),
    "DENIED": _Refusal(
        "the server is in protected mode and we are not on its loopback. Give it a password, or bind it",
        permanent=True,
    ),
}
_UNEXPECTED = _Refusal(
    "nothing that is known to go wrong explains it. If a proxy stands before the server, look at its log. If something "
    "else has written to the keys of this run, delete them or choose another run id"
)
_ELSEWHERE = frozenset({"READONLY", "MASTERDOWN"})
"""The name of the endpoint may lead to another server by now, and this one still hold our connections."""
_TRANSIENT = frozenset({*_ELSEWHERE, "LOADING", "BUSY", "TRYAGAIN", "CLUSTERDOWN"})
_BY_TEXT = {
    "max number of clients": "MAXCLIENTS",
    "db index is out of range": "NODB",
    "without any password configured": "NOAUTHSET",
    "no password is set": "NOAUTHSET",
    "protected mode": "DENIED",
    "invalid password": "WRONGPASS",
    "invalid username-password": "WRONGPASS",
    "authentication required": "NOAUTH",
    "protocol error: unauthenticated": "NOAUTH",  # a command of many words, or of a long one
    "no permissions": "NOPERM",
    "can't access": "NOPERM",
    "wrong kind of value": "WRONGTYPE",
    "read only replica": "READONLY",
    "command not allowed when used memory": "OOM",
    "loading the dataset": "LOADING",
    "not an integer": "NONUMBER",
    "increment or decrement would overflow": "NONUMBER",
    "unknown command": "NOCOMMAND",
    "unknown redis command": "NOCOMMAND",
}
_BY_CLASS = {
    "BusyLoadingError": "LOADING",
    "ReadOnlyError": "READONLY",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
    "MovedError": "MOVED",
    "AskError": "MOVED",
    "MasterDownError": "MASTERDOWN",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "AuthenticationError": "WRONGPASS",
    "InvalidResponse": "FOREIGN",
}


def _code(error: Exception) -> str | None:
    """The server's own word for what is wrong; None if it said nothing that we know."""
    text = str(error)
    for words, code in _BY_TEXT.items():
        if words in text.lower():
            return code
    for kind in type(error).__mro__:
        if kind.__name__ in _BY_CLASS:
            return _BY_CLASS[kind.__name__]
    found = re.search(r"\b([A-Z]{3,})\b", text)
    return found[1] if found and found[1] in _REFUSALS else None


def is_answer(error: Exception) -> bool:
    """Whether a server answered, if only to refuse: then the call has done nothing.

    The client library takes some answers for a broken connection.
    """
    from redis.exceptions import ResponseError

    return isinstance(error, ResponseError) or _code(error) not in (None, "FOREIGN")


def is_demoted(error: Exception) -> bool:
    """Whether the server says that it is not the one that takes writes: look the endpoint up anew."""
    return _code(error) in _ELSEWHERE


@contextmanager
def translated(attempt: Attempt, *, again: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn what the client library raises into an error of the rendezvous.

    Args:
        attempt: The call under way.
        again: Asked when something failed that passes by itself; True makes it a :class:`RetryableError`.
    """
    from redis import exceptions as theirs

    try:
        yield
    except theirs.RedisError as error:
        code = _code(error)
        if code in _TRANSIENT and again():
            raise RetryableError from error
        if code is not None:
            raise _refused(attempt, _REFUSALS[code], error) from error
        if isinstance(error, theirs.ResponseError):
            raise _refused(attempt, _UNEXPECTED, error) from error
        if not isinstance(error, (theirs.ConnectionError, theirs.TimeoutError)):
            raise
        raise _broken_off(attempt, error, again()) from error
    except OSError as error:
        raise _broken_off(attempt, error, again()) from error


def _refused(attempt: Attempt, refusal: _Refusal, error: Exception) -> RendezvousError:
    quoted = str(error).partition(", with args beginning with")[0]  # of AUTH these are user and password
    said = f"Redis at {attempt.where} refused to {attempt.what}: {refusal.advice}. It said: {quoted}"
    if refusal.kind is RendezvousConnectionError:
        return RendezvousConnectionError(
            said, maybe_applied=attempt.maybe_applied, permanent=refusal.permanent, backend="redis"
        )
    return refusal.kind(said, backend="redis")


def _broken_off(attempt: Attempt, error: Exception, again: bool) -> Exception:
    if again:
        attempt.unsure = attempt.unsure or attempt.in_flight
        attempt.in_flight = False
        return RetryableError()
    permanent = False
    if not attempt.in_flight and not attempt.unsure:
        said = f"Could not {attempt.what}: Redis at {attempt.where} was not reached ({error}). "
        permanent = "certificate" in str(error).lower()
        if permanent:
            advice = "The certificates do not fit: see the options ssl_ca_certs, ssl_certfile and ssl_check_hostname."
        else:
            advice = "Does a server run there, may this node reach it, and is TLS on at both ends or at none?"
    elif attempt.maybe_applied:
        said = f"Lost the answer when asking Redis at {attempt.where} to {attempt.what} ({error}). "
        advice = (
            "It may have been done all the same: read again before you decide. If it is so each time, another program "
            "than Redis may listen there."
        )
    else:
        said = f"Redis at {attempt.where} did not answer when asked to {attempt.what} ({error}). "
        advice = (
            "Nothing was changed. Check the server's load and the network, or raise the option read_timeout; and that "
            "it is Redis that listens there."
        )
    return RendezvousConnectionError(
        said + advice, maybe_applied=attempt.maybe_applied, permanent=permanent, backend="redis"
    )
