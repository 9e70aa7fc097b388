"""What this machine is called by others: its address as they can reach it.

No name of this machine is looked up: a fully qualified name may take seconds to find and may not be known to the
others, while the address of the interface that leads to the store is reachable from where the store is.
"""

from __future__ import annotations

import socket

from rdzv_core.endpoint import Address, Endpoint
from rdzv_core.errors import RendezvousConnectionError

__all__ = ["check_own_address", "own_address"]

LOOPBACK = "127.0.0.1"

ABROAD = (Address(host="192.0.2.1", port=9), Address(host="2001:db8::1", port=9))
"""Addresses that no machine has (RFC 5737, RFC 3849), so that the way to them is the way to anywhere."""


def own_address(endpoint: Endpoint | None, *, shared: bool) -> str:
    """The local address from which packets to the store would leave. Nothing is sent; names of the store are resolved.

    Args:
        endpoint: Where the store is; None if it is no place in a network.
        shared: Whether other nodes are to reach this one.

    Returns:
        A numeric address. If the endpoint is None, or its name means this machine itself (as ``127.0.1.1`` in
        ``/etc/hosts`` does), the address that leads abroad, if there is one. Loopback if the endpoint says so.

    Raises:
        RendezvousConnectionError: The store's name is not known, or no interface leads to it, at present; or, and that
            is permanent, only loopback leads to a store that others are to reach too.
    """
    if endpoint is None:
        return _way_abroad() or LOOPBACK
    if endpoint.is_unix_socket:
        return LOOPBACK
    last: OSError | None = None
    for address in endpoint.addresses:
        try:
            found = _leaving_for(address)
        except OSError as error:
            last = error
            continue
        if address.is_loopback or not Address(host=found, port=0).is_loopback:
            return found
        abroad = _way_abroad()
        if abroad is None and shared:
            raise RendezvousConnectionError(
                f"This node cannot tell the address by which others reach it: '{address.host}', where the store is, is "
                f"this machine itself ({found}), and it has no route to anywhere else. Give --local-addr an address of "
                f"one of its interfaces that the other nodes can reach.",
                permanent=True,
            )
        return abroad or found
    raise RendezvousConnectionError(
        f"This node cannot tell the address by which others reach it: no way leads from here to the store at "
        f"'{endpoint}' ({last}). A name may not be known to DNS yet; else check the endpoint, or give --local-addr."
    ) from last


def _way_abroad() -> str | None:
    for address in ABROAD:
        try:
            return _leaving_for(address)
        except OSError:
            continue
    return None


def _leaving_for(address: Address) -> str:
    last: OSError | None = None
    for family, kind, protocol, _, target in socket.getaddrinfo(
        address.host, address.port or 1, type=socket.SOCK_DGRAM
    ):
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(target)  # a datagram socket: this chooses a route and sends nothing
                return str(probe.getsockname()[0])
        except OSError as error:
            last = error
    raise last or OSError(f"'{address.host}' has no address")


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
