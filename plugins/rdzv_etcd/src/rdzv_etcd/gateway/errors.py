"""What may go wrong between us and etcd, in sentences for people.

The client knows nothing of what it is used for: its users turn these errors into their own.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
from dataclasses import dataclass

__all__ = ["Broken", "EtcdClosed", "EtcdError", "Refusal", "broken_by", "refusal_of"]

_INVALID, _NOT_FOUND, _DENIED, _EXHAUSTED, _FAILED_PRECONDITION, _UNAVAILABLE, _UNAUTHENTICATED = 3, 5, 7, 8, 9, 14, 16
_DEADLINE, _UNKNOWN = 4, 2


class EtcdError(Exception):
    """A call failed.

    Attributes:
        maybe_applied: It was a write that may have reached the store all the same.
        permanent: Trying again cannot help.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False, permanent: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied
        self.permanent = permanent


class EtcdClosed(EtcdError):
    """The client was closed."""


class Refusal(EtcdError):
    """etcd understood the call, and said no.

    Attributes:
        code: gRPC's number for the kind of refusal.
        said: etcd's own words.
    """

    def __init__(self, code: int, said: str, *, permanent: bool, advice: str = "") -> None:
        super().__init__(f"{advice}. It said: {said}" if advice else said, permanent=permanent)
        self.code = code
        self.said = said
        self.advice = advice

    @property
    def lease_not_found(self) -> bool:
        """The lease that the call named has ended."""
        return self.code == _NOT_FOUND and "lease not found" in self.said

    @property
    def lease_exists(self) -> bool:
        """The id of a lease to be granted is taken."""
        return self.code == _FAILED_PRECONDITION and "lease already exists" in self.said

    @property
    def wants_login(self) -> bool:
        """The token that came with the call is not, or no longer, valid."""
        return self.code == _UNAUTHENTICATED or "invalid auth token" in self.said or "auth store is old" in self.said

    @property
    def passes_by_itself(self) -> bool:
        """Another member, or the same one a moment later, may say yes."""
        if self.code in (_UNAVAILABLE, _DEADLINE):
            return True
        return self.code in (_UNKNOWN, _EXHAUSTED) and any(
            words in self.said for words in ("timed out", "too many requests", "leader changed", "no leader", "stopped")
        )


class Broken(Exception):
    """One member could not be reached, or broke off; another may do.

    Attributes:
        sent: The call may have reached it.
        permanent: This member will never answer us as it is set up.
    """

    def __init__(self, reason: str, *, sent: bool, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class _Known:
    words: str
    advice: str
    permanent: bool = True


# What etcd says -> what it means for whoever set us up. The first that fits is taken.
_KNOWN = (
    _Known(
        "authentication failed",
        "user name or password is wrong. Check the endpoint's user:password, RDZV_ETCD_USERNAME, RDZV_ETCD_PASSWORD "
        "and the option password_file",
    ),
    _Known(
        "user name is empty",
        "it asks for a user and a password, and none was given. Set RDZV_ETCD_USERNAME and RDZV_ETCD_PASSWORD",
    ),
    _Known(
        "authentication is not enabled",
        "a user was given, but authentication is not enabled there. Remove user and password, or enable it",
    ),
    _Known(
        "permission denied",
        "this user may not touch these keys. Grant its role readwrite on the option key_prefix, as the README of "
        "rdzv-etcd shows",
    ),
    _Known("request is too large", "the value is larger than it takes; raise its --max-request-bytes"),
    _Known(
        "database space exceeded",
        "its quota is used up and it takes no more writes. Compact and defragment it, then disarm the alarm; see "
        "--quota-backend-bytes and --auto-compaction-retention",
        permanent=False,
    ),
    _Known("too many operations", "the transaction has more steps than its --max-txn-ops allows"),
)


def refusal_of(code: int, said: str) -> Refusal:
    """The error for what etcd answered."""
    for known in _KNOWN:
        if known.words in said:
            return Refusal(code, said, permanent=known.permanent, advice=known.advice)
    return Refusal(code, said, permanent=False)


def broken_by(error: OSError, *, sent: bool, tls: bool) -> Broken:
    """Say what an operating system's error on a connection means."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message or str(error)
        return Broken(
            f"its certificate is not accepted: {why.rstrip('.')} (option ca_cert names the authorities to trust)",
            sent=False,
            permanent=True,
        )
    if isinstance(error, ssl.SSLError):
        return _broken_tls(error, sent=sent)
    if isinstance(error, socket.gaierror):
        return Broken(f"its name cannot be resolved ({error.strerror})", sent=False)
    if isinstance(error, TimeoutError):
        return Broken("no answer in time", sent=sent)
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        if isinstance(error, http.client.RemoteDisconnected):
            reason = "it closed the connection without an answer"
        # Who is spoken to in the other way answers in its own, but may hang up before that is read.
        if tls:
            reason += "; if it does not speak TLS, write http:// in place of https://"
        else:
            reason += "; if it speaks TLS, write https:// in place of http://"
    return Broken(reason[:1].lower() + reason[1:], sent=sent)


def _broken_tls(error: ssl.SSLError, *, sent: bool) -> Broken:
    said = re.sub(r"\s*\(_ssl\.c:\d+\)", "", str(error.reason or error)).replace("_", " ").lower()
    if "certificate required" in said or "bad certificate" in said or "handshake failure" in said:
        return Broken(
            f"it asks for a client certificate and does not accept ours ({said}); ssl_cert must be given, not have "
            "expired, and come from an authority that etcd trusts",
            sent=False,
            permanent=True,
        )
    if "certificate expired" in said or "unknown ca" in said or "certificate unknown" in said:
        return Broken(f"it does not accept our certificate ({said}). Renew ssl_cert", sent=False, permanent=True)
    if "wrong version number" in said or "record layer failure" in said or "unknown protocol" in said:
        return Broken("it does not speak TLS; write http:// in place of https://", sent=False, permanent=True)
    if "eof" in said:
        if sent:
            return Broken("the connection was closed", sent=True)
        return Broken(
            "it closed the connection instead of speaking TLS; if it speaks plainly, write http:// in place of https://",
            sent=False,
        )
    return Broken(f"TLS failed: {said}", sent=sent)
