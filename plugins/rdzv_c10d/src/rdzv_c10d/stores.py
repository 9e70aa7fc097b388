"""What every c10d store can do, and how to ask for it so that the answer is always the same.

Stores differ where it hurts: ``get`` of a key that is not there waits for it, and of all the others some say so at
once. The one operation that behaves alike on all of them, and never waits, is ``compare_set``:

* expecting *nothing* (the empty text) it creates a key, and answers what is there;
* expecting what cannot be there it changes nothing, and answers what is there, or on a missing key what was expected.

So reading is a ``compare_set`` that cannot succeed: one round trip where ``get`` takes two. Values are never empty.
"""

from __future__ import annotations

from typing import Any, Protocol

from rdzv_core.errors import RendezvousStateError

__all__ = ["LARGEST", "NOTHING", "C10dStore", "fits", "peek", "replace"]

NOTHING = b""
"""What to expect of a key that is not there."""

LARGEST = 8_000_000
"""Bytes. A TCPStore with libuv ends the connection of a client that sends 8 MiB or more in one value."""

_NEVER = b"\0no value is this one"


class C10dStore(Protocol):
    """The part of ``torch.distributed.Store`` that every store has."""

    def compare_set(self, key: str, expected: Any, desired: Any, /) -> bytes:
        """Write ``desired`` where ``expected`` is."""
        ...


def peek(store: C10dStore, key: str) -> bytes | None:
    """Read a key without waiting for it; None if it is not there. One round trip."""
    found = bytes(store.compare_set(key, _NEVER, _NEVER))
    return None if found in (_NEVER, NOTHING) else found


def replace(store: C10dStore, key: str, expected: bytes | None, desired: bytes) -> tuple[bytes | None, bool]:
    """Write ``desired`` if the key holds ``expected`` (None: if it is not there). One round trip.

    Each ``desired`` must be unlike all that the key ever held, or a loser is told that it has won.

    Returns:
        What the key holds now, None if it is not there; and whether this call wrote it.
    """
    found = bytes(store.compare_set(key, expected or NOTHING, desired))
    if found == desired:
        return found, True
    missing = found in (expected, NOTHING)  # a store answers what was expected of a key that it does not have
    return None if missing else found, False


def fits(value: bytes, what: str) -> bytes:
    """Make sure that a store takes ``value``.

    Raises:
        RendezvousStateError: It is too large.
    """
    if len(value) > LARGEST:
        raise RendezvousStateError(
            f"{what} has {len(value)} bytes, and a TCPStore takes {LARGEST} at most in one value. "
            "Use another backend for a run of this size, such as redis.",
            backend="c10d",
        )
    return value
