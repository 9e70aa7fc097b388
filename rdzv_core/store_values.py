"""What a ``torch.distributed.Store`` of ours takes from its callers, and what it refuses as torch's own stores do."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex, TypeAlias

__all__ = ["Value", "addend", "key_list", "value_bytes"]

Value: TypeAlias = "bytes | bytearray | memoryview | str"
"""What may be stored; text is stored as UTF-8."""

_LARGEST = 2**63 - 1


def value_bytes(value: Value) -> bytes:
    """The bytes to store.

    Raises:
        TypeError: The value is neither text nor bytes. (``bytes(5)`` would be five zeros.)
    """
    return value.encode() if isinstance(value, str) else bytes(memoryview(value))


def addend(amount: SupportsIndex) -> int:
    """The number to add.

    Raises:
        TypeError: It is no whole number, or needs more than 64 bits.
    """
    number = int(operator.index(amount))
    if not -_LARGEST - 1 <= number <= _LARGEST:
        raise TypeError(f"Cannot add {number}: it needs more than 64 bits.")
    return number


def key_list(keys: Iterable[str]) -> list[str]:
    """The keys, one by one.

    Raises:
        TypeError: It is one text, whose letters would pass for keys.
    """
    if isinstance(keys, (str, bytes)):
        raise TypeError(f"Expected a list of keys, not {keys!r}; for one key write [{keys!r}].")
    return list(keys)
