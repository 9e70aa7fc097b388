"""Our events in torch's recorder, for programs that collect the rendezvous events of torch's own handlers there."""

from __future__ import annotations

import logging
import os

from torch.distributed.elastic.events import NodeState, RdzvEvent, get_logging_handler, record_rdzv_event

from rdzv_core.events import Event, JoinVetoed, NodeJoining, RoundCompleted, RunClosed

__all__ = ["TorchRecorder"]

DESTINATION = "dynamic_rendezvous"
"""Under this name torch looks for who takes rendezvous events; by default nobody does."""


class TorchRecorder:
    """A sink that hands each event on to torch, if anybody listens there."""

    def __init__(self) -> None:
        self._addr = ""
        self._rank: int | None = None

    def __call__(self, event: Event) -> None:
        """Record the event."""
        if isinstance(event, NodeJoining):
            self._addr, self._rank = event.addr, None
        elif isinstance(event, RoundCompleted):
            self._rank = event.rank
        if isinstance(get_logging_handler(DESTINATION), logging.NullHandler):
            return
        record_rdzv_event(
            RdzvEvent(
                name=f"rdzv_core:{event.name}",
                run_id=event.run_id,
                message=event.sentence,
                hostname=self._addr,  # torch would ask DNS for a name
                pid=os.getpid(),
                node_state=_state_after(event),
                rank=self._rank,
            )
        )


def _state_after(event: Event) -> NodeState:
    if isinstance(event, NodeJoining):
        return NodeState.INIT
    if isinstance(event, JoinVetoed):
        return NodeState.FAILED
    if isinstance(event, RunClosed):
        return NodeState.SUCCEEDED if event.outcome == "success" else NodeState.FAILED
    return NodeState.RUNNING
