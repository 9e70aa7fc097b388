"""Our errors as torch's: the agent catches torch's classes, and people read the last line of a long trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.elastic.rendezvous import api as torch_api

from rdzv_core.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)

__all__ = ["as_torch_error", "torch_errors", "under_the_launcher"]

_COUNTERPARTS: dict[type[RendezvousError], type[Exception]] = {
    RendezvousClosedError: torch_api.RendezvousClosedError,
    RendezvousTimeoutError: torch_api.RendezvousTimeoutError,
    RendezvousConnectionError: torch_api.RendezvousConnectionError,
    RendezvousStateError: torch_api.RendezvousStateError,
    RendezvousGracefulExitError: torch_api.RendezvousGracefulExitError,
}


def as_torch_error(error: RendezvousError) -> Exception:
    """The same error in torch's class, with the same text."""
    kinds = (_COUNTERPARTS[kind] for kind in type(error).__mro__ if kind in _COUNTERPARTS)
    return next(kinds, torch_api.RendezvousError)(str(error))


@contextmanager
def torch_errors() -> Iterator[None]:
    """Let our errors out as torch's.

    A spare whose job has ended leaves torchrun by ``SystemExit(0)``, which is the only way to end it with status 0
    and without a trace. A library that runs torch's agent itself gets torch's graceful-exit error instead, since
    that exit would be its own end.
    """
    try:
        yield
    except RendezvousGracefulExitError as error:
        if under_the_launcher():
            raise SystemExit(0) from None
        raise as_torch_error(error) from None
    except RendezvousError as error:
        raise as_torch_error(error) from None


def under_the_launcher() -> bool:
    """Whether the program that calls us is torchrun, and not a library that uses torch's agent."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith("torch/distributed/run.py"):
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False
