"""The Lua scripts of this distribution: read once from ``scripts/``, named by their SHA-1.

Lua in Redis has no ``include``; each script is sent with ``prelude.lua`` before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = ["Script", "script"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One script as the server knows it."""

    name: str
    source: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """The script of that name."""
    folder = files("rdzv_redis") / "scripts"
    source = (folder / "prelude.lua").read_bytes() + (folder / f"{name}.lua").read_bytes()
    # SHA-1 is how EVALSHA names a script; nothing here depends on its strength.
    return Script(name=name, source=source, sha=hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())
