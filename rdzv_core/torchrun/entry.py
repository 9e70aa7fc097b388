"""What a ``torchrun.handlers`` entry point calls."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from rdzv_core.api import Observers, RendezvousHandler, RendezvousParameters
from rdzv_core.events import log_events
from rdzv_core.registry import rendezvous_handler_registry
from rdzv_core.runtime.handler import DynamicRendezvousHandler

__all__ = ["create_handler_for_torchrun"]

DEFAULT_RUN_ID = "none"
"""What torchrun calls a run that was given no ``--rdzv-id``."""


def create_handler_for_torchrun(params: Any, name: str, *, backend: str | None = None) -> Any:
    """Make the handler that torchrun asked for.

    Args:
        params: torch's ``RendezvousParameters``.
        name: The name under ``--rdzv-backend``.
        backend: The name in our registry, if it is another one.

    Raises:
        ValueError: The endpoint, an option or the run id is wrong.
        torch.distributed.elastic.rendezvous.RendezvousError: The backend cannot be made; of the class that fits.
    """
    from rdzv_core.torchrun.failures import torch_errors

    _make_log_visible()
    backend = backend or name
    ours = RendezvousParameters(
        backend=backend,
        endpoint=(params.endpoint or "").strip(),
        run_id=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        local_addr=params.local_addr,
        **params.config,
    )
    with torch_errors():
        handler: RendezvousHandler = rendezvous_handler_registry.create_handler(ours)
    if not isinstance(handler, DynamicRendezvousHandler):
        return handler
    _refuse_default_run_id(handler, params.run_id)
    from rdzv_core.torchrun.handler import TorchrunHandler
    from rdzv_core.torchrun.recorder import TorchRecorder

    log = logging.getLogger("rdzv_core")
    handler.observe(Observers(events=log_events(log)))
    handler.observe(Observers(events=TorchRecorder()))
    if params.min_nodes < params.max_nodes and _max_restarts() == 0:
        log.warning(
            "run '%s' may go on with fewer nodes (--nnodes=%d:%d), but not after a crash: the workers of the others "
            "fail with those of a lost node, and --max-restarts is 0. Give it at least 1.",
            params.run_id,
            params.min_nodes,
            params.max_nodes,
        )
    return TorchrunHandler(handler, name)


def _max_restarts() -> int | None:
    """How many restarts the launcher that calls us allows; None if nobody of that kind does. torch does not tell."""
    frame = sys._getframe()
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        if frame.f_code.co_name == "launch_agent":
            limit = getattr(frame.f_locals.get("config"), "max_restarts", None)
            return limit if isinstance(limit, int) else None
    return None


def _refuse_default_run_id(handler: DynamicRendezvousHandler, run_id: str) -> None:
    shared = handler.endpoint is None or not handler.endpoint.is_loopback
    if run_id == DEFAULT_RUN_ID and shared and not handler.options["allow_default_run_id"]:
        raise ValueError(
            f"The run id is '{run_id}', which torchrun takes when --rdzv-id is not given; on a store that other "
            f"machines share, any two jobs without an id would meet. Give every node of this job the same --rdzv-id, "
            f"or allow it with --rdzv-conf=allow_default_run_id=true."
        )


def _make_log_visible() -> None:
    """Give our log lines a way to stderr if nobody has configured one: a plugin's INFO lines are lost otherwise."""
    log = logging.getLogger("rdzv_core")
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[rdzv] %(asctime)s %(levelname)s %(message)s"))
    log.addHandler(handler)
    log.propagate = False
    level = logging.getLevelName(os.environ.get("LOGLEVEL", "INFO").upper())
    log.setLevel(level if isinstance(level, int) else logging.INFO)
