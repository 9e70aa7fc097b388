"""Calls of python-etcd with an end: members in turn, deadlines, and errors in words.

The library's own way of changing members asks the cluster for its list in between, and its connection pool repeats
writes whose answer was lost. So there is one client per member here, told not to repeat anything, and what may be
done again is done again by us. A client that a caller brings along is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import SystemRandom
from time import monotonic, sleep
from typing import Any, TypeVar

from rdzv_core.errors import RendezvousConnectionError

from ..gateway.cluster import Cluster
from ..gateway.errors import EtcdError, broken_by
from .library import python_etcd

__all__ = ["Access", "Refused", "clients_of"]

_PAUSE = 0.05
_LONGEST_PAUSE = 0.4
_LONGEST_CALL = 6.0
_CHANCE = SystemRandom()
_T = TypeVar("_T")

_V2_IS_OFF = (
    "this server does not offer the v2 API, which etcd has off since 3.4 and no more since 3.6. Use the backend "
    "etcd-v3 (--rdzv-backend=etcd-v3), or run etcd up to 3.5 with --enable-v2"
)


def clients_of(cluster: Cluster) -> list[Any]:
    """One client of python-etcd per member; opens no connection.

    Raises:
        RendezvousConnectionError: The library does not work, or a file of passwords or certificates.
    """
    etcd = python_etcd()
    from urllib3.util import Retry

    try:
        cluster.ssl_context()  # finds files that cannot be used
        password = cluster.read_password() if cluster.user is not None else None
    except EtcdError as error:
        raise RendezvousConnectionError(str(error), permanent=True, backend="etcd-v2") from error
    cert = None if cluster.cert is None else (str(cluster.cert), str(cluster.cert_key or cluster.cert))
    clients = []
    for host, port in cluster.members:
        client = etcd.Client(
            host=f"[{host}]" if ":" in host else host,
            port=port,
            read_timeout=cluster.timeout,
            protocol="https" if cluster.tls else "http",
            cert=cert,
            ca_cert=None if cluster.ca_cert is None else str(cluster.ca_cert),
            username=cluster.user,
            password=password,
        )
        options = client.http.connection_pool_kw
        options["retries"] = Retry(total=None, connect=0, read=0, status=0, other=0, redirect=2)
        if cluster.tls:
            options["cert_reqs"] = "CERT_REQUIRED"
            options["assert_hostname"] = None if cluster.check_hostname else False
        clients.append(client)
    return clients


class Access:
    """Calls on one of several clients, the one that served last.

    Args:
        clients: Clients of python-etcd, of members of one cluster.
        timeout: Seconds that a whole call may take; None for the first client's own, 6 s at most.
    """

    def __init__(self, clients: Sequence[Any], timeout: float | None = None) -> None:
        self._clients = list(clients)
        self._present = _CHANCE.randrange(len(self._clients))
        self.timeout = min(timeout or clients[0].read_timeout or _LONGEST_CALL, _LONGEST_CALL)
        self.where = ",".join(client.base_uri for client in clients)

    def close(self) -> None:
        """Close the connections that nobody uses now."""
        for client in self._clients:
            client.http.clear()

    @property
    def clients(self) -> list[Any]:
        """The clients themselves."""
        return list(self._clients)

    def call(self, what: str, call: Callable[[Any], _T], *, writes: bool = False) -> _T:
        """Make a call; it must do no harm if it arrives twice.

        Returns:
            What it answered.

        Raises:
            Refused: etcd said no.
            RendezvousConnectionError: No member answered in time, or etcd does not let us in.
        """
        deadline = monotonic() + self.timeout
        unsure = False
        pause = _PAUSE
        failed: set[int] = set()
        while True:
            member = self._present
            try:
                return call(self._clients[member])
            except Exception as error:
                trouble = _trouble_of(error, tls=self._clients[member].protocol == "https")
                if trouble is None:
                    if _is_refusal(error):
                        raise Refused(unsure=unsure) from error
                    raise
                unsure = unsure or (writes and trouble.sent)
                failed.add(member)
                hopeless = trouble.permanent and len(failed) == len(self._clients)
                wait = pause * _CHANCE.uniform(0.5, 1.5)
                self._present = (member + 1) % len(self._clients)
                if trouble.final or hopeless or monotonic() + wait >= deadline:
                    raise self._failed(what, trouble, unsure=unsure) from error
                if len(failed) == len(self._clients):
                    sleep(wait)
                    pause = min(2 * pause, _LONGEST_PAUSE)

    def read(self, what: str, key: str, **how: Any) -> Any:
        """Read a key or a directory, from a quorum; None if it is not there."""
        try:
            return self.call(what, lambda client: client.read(key, quorum=True, **how))
        except Refused:
            return None

    def write(self, what: str, key: str, value: str | None, seconds: int | None, **condition: Any) -> Any:
        """Write a key; answers it as it then is."""
        return self.call(what, lambda client: client.write(key, value, ttl=seconds, **condition), writes=True)

    def delete(self, what: str, key: str, **condition: Any) -> None:
        """Remove a key or a directory."""
        self.call(what, lambda client: client.delete(key, **condition), writes=True)

    def _failed(self, what: str, trouble: _Trouble, *, unsure: bool) -> RendezvousConnectionError:
        advice = " It may have been done all the same: read again before you decide." if unsure else ""
        return RendezvousConnectionError(
            f"Could not {what} at etcd {self.where}: {trouble.reason}.{advice}",
            maybe_applied=unsure,
            permanent=trouble.permanent,
            backend="etcd-v2",
        )


class Refused(Exception):
    """etcd said no: the key is not, or is already there, or holds something else.

    Attributes:
        unsure: It was the answer to a second try, and the first may have been done.
    """

    def __init__(self, *, unsure: bool) -> None:
        super().__init__()
        self.unsure = unsure


class _Trouble:
    """Why a call did not reach anybody who decides."""

    def __init__(self, reason: str, *, sent: bool = False, permanent: bool = False, final: bool = False) -> None:
        self.reason = reason
        self.sent = sent
        self.permanent = permanent
        self.final = final


def _is_refusal(error: Exception) -> bool:
    import etcd

    return isinstance(error, (etcd.EtcdKeyError, etcd.EtcdCompareFailed))


def _trouble_of(error: Exception, *, tls: bool) -> _Trouble | None:
    """What the error means; None if it is an answer, or a bug."""
    import etcd
    from urllib3.exceptions import HTTPError

    if isinstance(error, etcd.EtcdInsufficientPermissions):
        return _Trouble(
            "user or password is wrong, or this user may not touch these keys. Check RDZV_ETCD_USERNAME and "
            "RDZV_ETCD_PASSWORD, and the role's rights on the option key_prefix",
            permanent=True,
            final=True,
        )
    if isinstance(error, etcd.EtcdConnectionFailed):
        cause = getattr(error, "cause", None)
        return _broken(cause if isinstance(cause, Exception) else error, tls=tls)
    if isinstance(error, (HTTPError, OSError)):
        return _broken(error, tls=tls)
    if isinstance(error, (etcd.EtcdLeaderElectionInProgress, etcd.EtcdClusterIdChanged, etcd.EtcdWatcherCleared)):
        return _Trouble(str(error), sent=True)
    if isinstance(error, etcd.EtcdException) and not isinstance(error, (etcd.EtcdKeyError, etcd.EtcdValueError)):
        said = str(error)
        if "404 page not found" in said:
            return _Trouble(_V2_IS_OFF, permanent=True)
        if "HTTP request to an HTTPS server" in said:
            return _Trouble("it speaks TLS; write https://, or give protocol=https", permanent=True)
        if said.startswith("Bad response"):
            return _Trouble(
                "it does not answer as etcd's v2 API does; it may be another kind of server", permanent=True
            )
        if not isinstance(error, etcd.EtcdEventIndexCleared):
            return _Trouble(f"it says: {said}", sent=True)
    return None


def _broken(error: Exception, *, tls: bool) -> _Trouble:
    from urllib3 import exceptions as theirs

    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error
    never_there = (theirs.NewConnectionError, theirs.ConnectTimeoutError, theirs.NameResolutionError)
    sent = not isinstance(inner, (theirs.SSLError, *never_there))
    cause = _system_error(inner)
    if cause is None:
        return _Trouble(str(inner), sent=sent)
    broken = broken_by(cause, sent=sent, tls=tls)
    return _Trouble(broken.reason, sent=broken.sent, permanent=broken.permanent)


def _system_error(error: BaseException | None) -> OSError | None:
    """The error of the operating system, or of TLS, under the library's wrappings."""
    for _ in range(6):
        if error is None or isinstance(error, OSError):
            return error
        wrapped = next((part for part in error.args if isinstance(part, BaseException)), None)
        error = wrapped or error.__cause__ or error.__context__
    return None
