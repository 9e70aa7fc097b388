"""What this machine is called by others: its address as they can reach it.

No name is looked up here: a fully qualified name may take seconds to find and may not be known to the others, while
the address of the interface that leads to the store is reachable from where the store is.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

__all__ = ["check_own_address", "own_address"]


def own_address(towards: Sequence[tuple[str, int]]) -> str:
    """The local address from which packets to the first reachable of these hosts would leave.

    Args:
        towards: Hosts and ports, numeric or named; names are resolved as a connection to them would do.

    Returns:
        A numeric address; ``127.0.0.1`` if no host can be reached from any interface. Nothing is sent.
    """
    for host, port in towards:
        address = _leaving_from(host, port)
        if address is not None:
            return address
    return "127.0.0.1"


def _leaving_from(host: str, port: int) -> str | None:
    try:
        candidates = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, target in candidates:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # a datagram socket: this chooses a route and sends nothing
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return None


def check_own_address(address: str) -> None:
    """Make sure that this machine can listen at ``address``.

    Raises:
        ValueError: It cannot; torch's store would take seconds to say so, in thirty lines.
    """
    try:
        family, _, _, _, target = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(target)
    except OSError as error:
        raise ValueError(
            f"This machine cannot listen at its own address '{address}' ({error}). Other nodes would be sent there "
            f"to find rank 0. Give --local-addr an address of one of this machine's interfaces."
        ) from error
