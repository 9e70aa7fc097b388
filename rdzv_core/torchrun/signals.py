"""Signals to a launcher: the node's leave is told at the moment of the signal.

Survivors' workers fail on a broken collective half a second after a peer's workers have died, and with
``--max-restarts=0`` that ends their job. If the leave comes first, they re-form instead. So while torch has no
handlers yet we install our own, and afterwards torch's are wrapped; they are installed anew at
every start of workers, so they are wrapped again whenever the main thread passes by.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["LeaveSignals"]

_DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
"""torch's own default for ``TORCHELASTIC_SIGNALS_TO_HANDLE``."""

_TORCHS_MODULE = "torch.distributed.elastic.multiprocessing.api"


class LeaveSignals:
    """Calls ``leave`` when this process gets a signal that ends its agent.

    Args:
        leave: Called with a sentence, from a signal handler: must not block or take a lock.
    """

    def __init__(self, leave: Callable[[str], None]) -> None:
        self._leave = leave
        self._pid = os.getpid()
        self._replaced: dict[int, Any] = {}

    def wrap(self) -> None:
        """Put the leave in front of torch's handlers, where they are not wrapped already."""
        if not self._may_install():
            return
        for number in _signals():
            present = signal.getsignal(number)
            if callable(present) and getattr(present, "__module__", "") == _TORCHS_MODULE:
                signal.signal(number, _Wrapped(self, present))

    @contextmanager
    def stand_in(self) -> Iterator[None]:
        """While nobody handles a signal, leave and end the process by it, with the status that a shell expects.

        That goes on after the block, until torch installs its own handlers or :meth:`restore` is called.
        """
        if self._may_install():
            for number in _signals():
                if signal.getsignal(number) is signal.SIG_DFL:
                    self._replaced[number] = signal.signal(number, self._exit)
        try:
            yield
        except BaseException:
            self.restore()
            raise

    def restore(self) -> None:
        """Put back what :meth:`stand_in` has replaced and nobody else has since."""
        if not self._may_install():
            return
        for number, before in self._replaced.items():
            if signal.getsignal(number) == self._exit:
                signal.signal(number, before)
        self._replaced.clear()

    def told(self, number: int) -> None:
        """Leave because of this signal, unless this is a child that fork() made."""
        if os.getpid() == self._pid:
            self._leave(f"its launcher got {signal.Signals(number).name}")

    def _exit(self, number: int, _frame: FrameType | None) -> None:
        self.told(number)
        raise SystemExit(128 + number)

    def _may_install(self) -> bool:
        return threading.current_thread() is threading.main_thread() and os.getpid() == self._pid


class _Wrapped:
    """A handler of torch's, with the leave in front of it."""

    def __init__(self, signals: LeaveSignals, handler: Callable[[int, FrameType | None], Any]) -> None:
        self._signals = signals
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        self._signals.told(number)
        return self._handler(number, frame)


def _signals() -> list[int]:
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", _DEFAULT_SIGNALS).split(",")
    found = (getattr(signal, name.strip(), None) for name in names)
    return [number for number in found if isinstance(number, signal.Signals)]
