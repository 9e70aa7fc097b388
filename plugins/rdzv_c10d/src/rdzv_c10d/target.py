"""What a user asked for, as a value: addresses, and who is to host."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rdzv_core.endpoint import Address, Endpoint, parse_endpoint

__all__ = ["DEFAULT_PORT", "Target", "target_of"]

logger = logging.getLogger("rdzv_core.c10d")  # below the logger that the launcher's door makes visible

DEFAULT_PORT = 29400
"""torch's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the store of a run is, and how it comes to be there."""

    endpoint: Endpoint
    is_host: bool | None = None
    """Whether this node is to host; None to find out."""
    failover_timeout: float = 3.0
    use_libuv: bool | None = None

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Where the store may be, in order of preference."""
        return self.endpoint.addresses

    def __str__(self) -> str:
        return str(self.endpoint)


def target_of(text: str, max_nodes: int, options: Mapping[str, Any]) -> Target:
    """Understand an endpoint.

    One node needs none, and gets a port of its own. For more the endpoint must be one that all of them can mean: it is
    refused if it is empty, or its port is 0. An explicit loopback address is let through with a warning, since several
    launchers on one machine are how people try things out.

    Raises:
        ValueError: The endpoint is not understood, or cannot be used by so many nodes.
    """
    if not text.strip() and max_nodes > 1:
        raise ValueError(
            f"The rendezvous endpoint is empty, and up to {max_nodes} nodes are to meet there; each would wait on its "
            f"own machine. Give all of them the address of one: --rdzv-endpoint=HOST:{DEFAULT_PORT}. "
            "Is a variable unset?"
        )
    endpoint = parse_endpoint(text, default_port=DEFAULT_PORT, allow_list=True, allow_empty=True)
    alone = max_nodes == 1 and endpoint.is_loopback
    if alone:
        endpoint = parse_endpoint(text, default_port=0, allow_list=True, allow_empty=True)
    elif any(address.port == 0 for address in endpoint.addresses):
        raise ValueError(
            f"The rendezvous endpoint '{endpoint}' has the port 0, which stands for any that is free; others could not "
            f"know which. Give a port, such as {DEFAULT_PORT}."
        )
    if len(set(endpoint.addresses)) < len(endpoint.addresses):
        raise ValueError(f"The rendezvous endpoint '{endpoint}' names an address twice.")
    if max_nodes > 1 and any(address.is_loopback for address in endpoint.addresses):
        logger.warning(
            "the rendezvous endpoint '%s' is on the loopback interface: only launchers on this one machine can meet "
            "there, and up to %d nodes are expected",
            endpoint,
            max_nodes,
        )
    return Target(
        endpoint=endpoint,
        is_host=options["is_host"],
        failover_timeout=options["failover_timeout"],
        use_libuv=options["use_libuv"],
    )
