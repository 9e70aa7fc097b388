"""Stores for the tests, and ways to them that do not lead through a backend."""

from __future__ import annotations

import socket
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from rdzv_c10d.board import EMPTY, Board, decode, encode, word
from rdzv_c10d.keys import RunKeys
from rdzv_c10d.stores import peek

from rdzv_core.servers import free_port
from rdzv_core.testing.proxy import FaultProxy

TIMEOUT = timedelta(seconds=20)


def open_server(*, use_libuv: bool = True) -> Any:
    """A TCPStore that this process hosts on loopback."""
    while True:
        try:
            listener = socket.create_server(("127.0.0.1", free_port()), backlog=1024)
            break
        except OSError:  # somebody was quicker
            continue
    port = listener.getsockname()[1]
    return dist.TCPStore(
        "127.0.0.1",
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=TIMEOUT,
        use_libuv=use_libuv,
        master_listen_fd=listener.detach(),
    )


def open_client(port: int) -> Any:
    """A client of a TCPStore on loopback."""
    return dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False, timeout=TIMEOUT)


class BoardBackDoor:
    """Reads and writes what level 2 keeps in a TCPStore, with a client and a prefix of its own."""

    def __init__(self, store: Any, proxy: FaultProxy | None = None) -> None:
        self.store = store
        self.proxy = proxy
        self.saved: dict[str, bytes] = {}

    def _board(self, run_id: str) -> Board:
        key = RunKeys(run_id).board
        stored = peek(self.store, key)
        return EMPTY if stored is None else decode(stored, key)

    def read_register(self, run_id: str) -> bytes | None:
        board = self._board(run_id)
        return None if board.token is None else board.register

    def write_register(self, run_id: str, state: bytes) -> None:
        board = replace(self._board(run_id).written(state, word()), write=word())
        self.store.set(RunKeys(run_id).board, encode(board))
        self.store.set(RunKeys(run_id).news(board.news), b"!")

    def _keys(self) -> list[str]:
        return [key.removeprefix("/") for key in self.store.list_keys() if "init/" not in key]

    def wipe(self, run_id: str) -> None:
        for key in self._keys():
            if key.startswith(f"{RunKeys(run_id).prefix}/"):
                self.store.delete_key(key)

    def snapshot(self) -> None:
        keys = self._keys()
        self.saved = dict(zip(keys, self.store.multi_get(keys), strict=True)) if keys else {}

    def roll_back(self) -> None:
        for key in self._keys():
            self.store.delete_key(key)
        for key, value in self.saved.items():
            self.store.set(key, value)
        self.store.check(list(self.saved))  # an answer: all of the above has been done

    def cut(self) -> None:
        assert self.proxy is not None
        self.proxy.refuse = True
        self.proxy.cut()

    def mend(self) -> None:
        assert self.proxy is not None
        self.proxy.mend()

    def lose_next_answer(self) -> None:
        assert self.proxy is not None
        self.proxy.lose_replies(1)
