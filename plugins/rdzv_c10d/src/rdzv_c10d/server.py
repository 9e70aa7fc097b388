"""A store in a process of its own: for a laptop, a demo or a test, or where no node's end may take the store along.

``python -m rdzv_c10d.server HOST:PORT`` hosts a TCPStore until it is ended; every node then gives ``HOST:PORT`` as its
endpoint, and none of them hosts.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from rdzv_core.servers import ProgramServer

__all__ = ["C10dServer", "main"]

_READY = "ready at "


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
    """Host a store until the process is ended."""
    from rdzv_core.endpoint import parse_endpoint
    from rdzv_core.errors import RendezvousConnectionError

    from .hosting import EndpointSource
    from .target import DEFAULT_PORT, Target

    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m rdzv_c10d.server HOST:PORT\n")
        return 2
    try:
        endpoint = parse_endpoint(arguments[0], default_port=DEFAULT_PORT)
        source = EndpointSource(Target(endpoint=endpoint, is_host=True), "(any)")
        source.open()
    except (ValueError, RendezvousConnectionError) as error:
        cause = f" ({error.__cause__})" if error.__cause__ else ""
        sys.stderr.write(f"{error}{cause}\n")
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stdout.write(f"{_READY}{source.where.removeprefix('the store at ')}\n")
    sys.stdout.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
