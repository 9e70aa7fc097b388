"""One HTTP connection to one member: a request, an answer, and nothing that lasts longer than it may."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from dataclasses import dataclass
from time import monotonic
from typing import Any

from rdzv_core.dialling import dial

from .errors import Broken, broken_by

__all__ = ["Answer", "Connection"]

_LARGEST_ANSWER = 256 * 1024 * 1024  # bytes; no list of ours comes near, and a stranger's endless stream ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a member answered: HTTP's status, and the JSON of the body, None if it is not JSON."""

    status: int
    json: Any
    body: bytes


class Connection:
    """A connection to one member, for one thread at a time. Connects when made.

    Args:
        member: Which member, by its place in the list; for those who keep connections.
        address: Host and port.
        context: How to speak TLS; None to speak plainly.
        deadline: By ``time.monotonic``; connecting takes no longer.

    Raises:
        Broken: The member was not reached.
    """

    def __init__(self, member: int, address: tuple[str, int], context: ssl.SSLContext | None, deadline: float) -> None:
        self.member = member
        host, port = address
        self._tls = context is not None
        self._http = http.client.HTTPConnection(host, port)
        self._http.auto_open = 0
        try:
            plain = dial(host, port, _left(deadline))
        except OSError as error:
            raise broken_by(error, sent=False, tls=False) from error
        try:
            plain.settimeout(_left(deadline))
            self.socket: socket.socket = plain if context is None else context.wrap_socket(plain, server_hostname=host)
        except OSError as error:
            plain.close()
            raise broken_by(error, sent=False, tls=self._tls) from error
        self._http.sock = self.socket

    def send(self, path: str, body: bytes, token: str | None, deadline: float) -> None:
        """Send a POST request.

        Raises:
            Broken: It could not be sent whole.
        """
        try:
            self.socket.settimeout(_left(deadline))
            self._http.putrequest("POST", path, skip_accept_encoding=True)
            self._http.putheader("Content-Length", str(len(body)))
            if token is not None:
                self._http.putheader("Authorization", token)
            self._http.endheaders(body)
        except OSError as error:
            raise broken_by(error, sent=True, tls=self._tls) from error

    def ask(self, path: str, body: bytes, token: str | None, deadline: float) -> Answer:
        """Send a POST request, and read the answer whole.

        Raises:
            Broken: There was none, or only a part.
        """
        self.send(path, body, token, deadline)
        try:
            self.socket.settimeout(_left(deadline))
            response = self._http.getresponse()
            content = response.read(_LARGEST_ANSWER)
        except OSError as error:
            raise broken_by(error, sent=True, tls=self._tls) from error
        except http.client.HTTPException as error:
            raise Broken(f"it does not speak HTTP as etcd does ({type(error).__name__})", sent=True) from error
        try:
            answer = json.loads(content)
        except ValueError:
            answer = None
        return Answer(status=response.status, json=answer, body=content)

    def is_quiet(self) -> bool:
        """False if the other end has closed it, or says what nobody asked for."""
        try:
            self.socket.settimeout(0)
            self.socket.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            pass
        return False

    def shut(self) -> None:
        """End the conversation, so that a thread that reads is woken; the socket stays its owner's to close."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(OSError):
            self._http.close()
        with contextlib.suppress(OSError):
            self.socket.close()


def _left(deadline: float) -> float:
    return max(deadline - monotonic(), 0.001)
