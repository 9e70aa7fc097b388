"""A backend in one small file: the register is a file that all nodes share, replaced as a whole under a lock.

Three members are enough: ``name``, ``get_state``, ``set_state``. rdzv-core makes the rest of them (nodes that expire,
a leader, waiting), and runs torchrun on it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rdzv_core import RendezvousBackend, RendezvousConnectionError
from rdzv_core import create_handler as create

WORD = 16
PATIENCE = 2.0
"""Seconds to wait for the lock; one node that hangs must not hang the others."""


class FileBackend(RendezvousBackend):
    """One run in a folder of a file system that all nodes share, with locks that hold across machines.

    Args:
        folder: The folder; made if it is not there.
        run_id: The run.
    """

    def __init__(self, folder: str, run_id: str) -> None:
        self._path = Path(folder, hashlib.sha256(run_id.encode()).hexdigest()[:32])

    @property
    def name(self) -> str:
        return "file"

    def get_state(self) -> tuple[bytes, Any] | None:
        """Read the file. It begins with a random word of its write, which is the token: no two writes share one."""
        with self._translated(writes=False):
            try:
                stored = self._path.read_bytes()
            except FileNotFoundError:
                return None
        return stored[WORD:], stored[:WORD]

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        """Replace the file if it still carries ``token``; who reads sees the old file or the new, nothing between."""
        with self._translated(writes=True), self._locked():
            held = self.get_state()
            if (None if held is None else held[1]) != token:
                return None if held is None else (*held, False)
            word = secrets.token_hex(WORD // 2).encode()
            new = self._path.with_suffix(".new")
            new.write_bytes(word + state)
            os.replace(new, self._path)
            return state, word, True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + PATIENCE
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            while True:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when the file is closed, or we die
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0.002)
            yield

    @contextmanager
    def _translated(self, *, writes: bool) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RendezvousConnectionError(
                f"The file '{self._path}' cannot be used: {error}. Is the endpoint a folder that every node can write?",
                maybe_applied=writes,
                backend="file",
            ) from error


def create_handler(params: Any) -> Any:
    """Make the handler of ``--rdzv-backend=rdzv-file``; the endpoint is the folder."""
    if not params.endpoint.startswith("/"):
        raise ValueError(f"The endpoint '{params.endpoint}' is no folder; give one that begins with '/'.")
    return create(None, FileBackend(params.endpoint, params.run_id), params)
