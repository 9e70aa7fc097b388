"""A store in a process of its own: for a laptop, a demo or a test, or where no node's end may take the store along.

``python -m rdzv_c10d.server HOST:PORT`` hosts a TCPStore until it is ended; every node then gives ``HOST:PORT`` as its
endpoint, and none of them hosts. ``--host`` and ``--port`` say the same, as for the other development servers.
"""

from __future__ import annotations

import argparse
import errno
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rdzv_core.servers import ProgramServer

if TYPE_CHECKING:
    from .target import Target

__all__ = ["C10dServer", "main"]

_READY = "ready at "
_ALL = ("0.0.0.0", "::")  # noqa: S104 - somebody must ask for it


class C10dServer(ProgramServer):
    """A TCPStore that dies with this process.

    After :meth:`kill` or :meth:`stop`, :meth:`start` brings it back empty, on the same port.

    Args:
        host: Where to listen; an address of this machine.
        port: The port; 0 for a free one.
    """

    kind = "c10d"
    start_timeout = 60.0  # it imports torch

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(binary=Path(sys.executable), host=host, port=port)

    @property
    def endpoint(self) -> str:
        """What to give as ``--rdzv-endpoint``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def _arguments_for(self, folder: Path) -> list[str]:  # noqa: ARG002 - it keeps nothing on disk
        return ["-m", "rdzv_c10d.server", self.endpoint]

    def _is_ready(self, said: str) -> bool:
        return _READY in said


def main(arguments: list[str] | None = None) -> int:
    """Host a store until the process is told to end. The first line on standard output is ``ready at ENDPOINT``.

    Returns:
        The status to exit with: 0 when told to end, 1 if the store could not be hosted.
    """
    from rdzv_core.errors import RendezvousConnectionError

    from .hosting import EndpointSource

    text = _read(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        target = _target_of(text)
        source = EndpointSource(target, "(any)")
        source.open()
        sys.stdout.write(f"{_READY}{source.where.removeprefix('the store at ')}\n")
        sys.stdout.flush()
        while True:
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except RendezvousConnectionError as error:
        cause = error.__cause__  # the error itself speaks of runs and options, which are not here
        sys.stderr.write(f"{_refused(target, cause) if isinstance(cause, OSError) else error}\n")
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _read(arguments: list[str] | None) -> str:
    """The endpoint that a command line asks for."""
    from .target import DEFAULT_PORT

    parser = argparse.ArgumentParser(
        prog="python -m rdzv_c10d.server",
        description="A TCPStore in a process of its own; it keeps nothing, and ends with this program.",
    )
    parser.add_argument(
        "endpoint",
        nargs="?",
        metavar="HOST:PORT",
        help=f"what the nodes give as --rdzv-endpoint (default port: {DEFAULT_PORT}); instead of --host and --port",
    )
    parser.add_argument("--host", help="an address of this machine (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, help="default: a free one")
    given = parser.parse_args(arguments)
    if given.endpoint is None:
        host = "127.0.0.1" if given.host is None else given.host
        return f"{f'[{host}]' if ':' in host else host}:{given.port or 0}"
    if given.host is not None or given.port is not None:
        parser.error("give either HOST:PORT, or --host and --port")
    return str(given.endpoint)


def _target_of(text: str) -> Target:
    """Where to host.

    Raises:
        ValueError: The text is no endpoint, or its host is not this machine: the store would listen on all interfaces,
            and nobody could find it at the address that is asked for.
    """
    from rdzv_core.endpoint import parse_endpoint

    from .detection import Machine, judge
    from .target import DEFAULT_PORT, Target

    endpoint = parse_endpoint(text, default_port=DEFAULT_PORT)
    verdict = judge(endpoint.host, Machine())
    if endpoint.host not in _ALL and not verdict.mine:
        raise ValueError(
            f"No store can be hosted at {endpoint}: '{endpoint.host}' {verdict.reason}. "
            f"Give an address of this machine, or {_ALL[0]} for all that it has."
        )
    return Target(endpoint=endpoint, is_host=True)


def _refused(target: Target, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:  # "in use" is what C10dServer looks for
        return (
            f"No store can be hosted at {target}: the port is in use, another program listens there. "
            "Choose another port, or find that program with 'ss -ltnp' and stop it."
        )
    return f"No store can be hosted at {target}: {error.strerror or error}. Choose another port."


if __name__ == "__main__":
    sys.exit(main())
