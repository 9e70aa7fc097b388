"""Level 1 over any c10d store: one key, written by compare-and-set.

A c10d store compares contents, not versions: a stale token would win again once the old bytes have come back, and of
two rivals that write the same bytes both would be told yes. Each stored value therefore begins with a random word of
its write, so that no two writes store the same, and the whole value is the token.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn

from rdzv_core.backend import RendezvousBackend, Token
from rdzv_core.errors import RendezvousConnectionError, RendezvousStateError

from .keys import RunKeys
from .options import C10D_OPTIONS
from .stores import fits, peek, replace

__all__ = ["C10dRendezvousBackend"]

_FORM = b"rdzv1 "
_WORD = 16
_HEAD = len(_FORM) + _WORD + 1


class C10dRendezvousBackend(RendezvousBackend):
    """One run in one c10d store.

    Over a TCPStore that can be cloned, or a PrefixStore of one, what you get is a
    :class:`rdzv_c10d.coordination.C10dCoordinationBackend`, which is this and level 2 besides.

    Args:
        store: A ``torch.distributed.Store``. Who made it keeps it; it must outlive this backend.
        run_id: The run; any text but the empty one.

    Raises:
        ValueError: The run id is empty.
    """

    options = C10D_OPTIONS

    def __new__(cls, store: Any = None, *_: Any, **__: Any) -> C10dRendezvousBackend:
        """Choose the class that makes the most of ``store``."""
        if cls is C10dRendezvousBackend and store is not None:
            from .source import is_cloneable

            if is_cloneable(store):
                from .coordination import C10dCoordinationBackend

                return super().__new__(C10dCoordinationBackend)
        return super().__new__(cls)

    def __init__(self, store: Any, run_id: str) -> None:
        self._store = store
        self._keys = RunKeys(run_id)
        self._run_id = run_id

    @property
    def name(self) -> str:
        """``c10d``."""
        return "c10d"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} run {self._run_id!r} in a {type(self._store).__name__}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} (run {self._run_id!r}) holds a store's connection and cannot be pickled: make a "
            "store and a backend in the other process."
        )

    def get_state(self) -> tuple[bytes, Token] | None:
        """Read the register. One round trip, and no wait for a register that is empty."""
        try:
            stored = peek(self._store, self._keys.register)
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise self._broken("read the register", error, maybe_applied=False) from error
        return None if stored is None else self._read(stored)

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        """Write the register if it carries ``token``. One round trip."""
        if token is not None and not (isinstance(token, bytes) and token.startswith(_FORM)):
            held = self.get_state()  # a foreign token is a lost race
            return None if held is None else (*held, False)
        word = secrets.token_hex(_WORD // 2).encode()
        value = fits(_FORM + word + b" " + bytes(state), f"The register of run {self._run_id!r}")
        try:
            stored, did = replace(self._store, self._keys.register, token, value)
        except (RuntimeError, ValueError, TimeoutError) as error:
            raise self._broken("write the register", error, maybe_applied=True) from error
        return None if stored is None else (*self._read(stored), did)

    def _read(self, stored: bytes) -> tuple[bytes, Token]:
        if not stored.startswith(_FORM) or stored[_HEAD - 1 : _HEAD] != b" ":
            raise RendezvousStateError(
                f"The register of run {self._run_id!r} (key '{self._keys.register}') was not written by rdzv-c10d: it "
                f"begins with {stored[:16]!r}. Another program uses this store; choose another store or run id.",
                run_id=self._run_id,
                backend=self.name,
            )
        return stored[_HEAD:], stored

    def _broken(self, what: str, error: Exception, *, maybe_applied: bool) -> RendezvousConnectionError:
        first_line = str(error).partition("\n")[0]
        return RendezvousConnectionError(
            f"Could not {what} of run {self._run_id!r} in the {type(self._store).__name__}: {first_line}. The process "
            "that hosts the store may have ended.",
            maybe_applied=maybe_applied,
            run_id=self._run_id,
            backend=self.name,
        )
