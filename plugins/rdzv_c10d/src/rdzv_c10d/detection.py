"""Is this endpoint me? Decided by addresses, not by names.

An address is this machine's if a socket can be bound to it: that holds for every interface, for IPv6, for addresses
that no name leads to; and asks nobody. A name is looked up as a connection would, with the search domains of this
machine, and is ours if one of its addresses is. No address is ever turned back into a name.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

__all__ = ["Machine", "Verdict", "judge"]

_NOBODYS = ("192.0.2.1", "198.51.100.1", "203.0.113.1")
"""Addresses for documentation (RFC 5737). A machine that can bind all three can bind anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether this machine has an address, and why we think so."""

    mine: bool | None
    """None if it cannot be said yet."""
    reason: str
    """The rest of a sentence that begins with the host: ``resolves to 192.0.2.7, which ...``."""


class Machine:
    """What this machine says of itself; tests give another one."""

    def name(self) -> str:
        """Its host name."""
        return socket.gethostname()

    def resolve(self, host: str) -> tuple[str, ...]:
        """The addresses of a name.

        Raises:
            OSError: It has none, or nobody answers.
        """
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return tuple(dict.fromkeys(str(entry[4][0]) for entry in found))

    def owns(self, address: str) -> bool:
        """Whether an interface of this machine has the address."""
        if not _can_bind(address):
            return False
        if not all(_can_bind(other) for other in _NOBODYS):
            return True
        try:  # net.ipv4.ip_nonlocal_bind is on: a bind proves nothing, names must do
            return address in self.resolve(self.name()) or ipaddress.ip_address(address).is_loopback
        except (OSError, ValueError):
            return False


def judge(host: str, machine: Machine) -> Verdict:
    """Whether ``host``, as it stands in an endpoint, is this machine."""
    if host.lower().rstrip(".") == "localhost":
        return Verdict(mine=True, reason="is the loopback address")
    try:
        literal = str(ipaddress.ip_address(host))
    except ValueError:
        return _judge_name(host, machine)
    if machine.owns(literal):
        return Verdict(mine=True, reason="is an address of this machine")
    return Verdict(mine=False, reason="is on no interface of this machine")


def _judge_name(host: str, machine: Machine) -> Verdict:
    own = machine.name()
    if host.lower().rstrip(".") == own.lower().rstrip("."):
        return Verdict(mine=True, reason="is the name of this machine")
    try:
        addresses = machine.resolve(host)
    except OSError as error:
        return Verdict(mine=None, reason=f"cannot be resolved ({error.strerror or error})")
    for address in addresses:
        if machine.owns(address):
            return Verdict(mine=True, reason=f"resolves to {address}, an address of this machine")
    listed = ", ".join(addresses)
    return Verdict(mine=False, reason=f"resolves to {listed}, on no interface of this machine (named '{own}')")


def _can_bind(address: str) -> bool:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(target)
    except OSError:
        return False
    return True
