"""What tools ask of a server, beyond the one run that a backend is for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .connection import target_of
from .keys import RunKeys
from .link import Link

__all__ = ["runs"]

_AT_A_TIME = 1000  # keys that one SCAN looks at; the server goes on with others in between


def runs(endpoint: str, options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The ids of the runs of which a server holds a register or records, in order of their names.

    Looks at every key of the database; other clients are not held up.

    Args:
        endpoint: The server, in any form that ``--rdzv-endpoint`` takes.
        options: Options of the connection.

    Raises:
        ValueError: Endpoint or options are not understood.
        RendezvousConnectionError: The server does not answer, or does not allow ``SCAN``.
    """
    target = target_of(endpoint, options or {}, os.environ)
    link = Link(target)
    found: set[str] = set()
    try:
        cursor = b"0"
        while True:
            command = ("SCAN", cursor, "MATCH", f"{target.prefix}:{{*}}:*", "COUNT", _AT_A_TIME)
            cursor, keys = link.command("list the runs", *command)
            for key in keys:
                run_id = RunKeys.run_id_of(key.decode("utf-8", "replace"))
                if run_id is not None and key.endswith((b":register", b":nodes")):
                    found.add(run_id)
            if cursor == b"0":
                return tuple(sorted(found))
    finally:
        link.close()
