"""The backend ``etcd`` of old: torch's names and options over today's protocol.

torch's ``etcd`` handler has a protocol of its own, which stops a job when a node is lost. The name is kept for
scripts that have it; what runs is :class:`rdzv_core.DynamicRendezvousHandler`, so nodes of both cannot meet.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from rdzv_core import DynamicRendezvousHandler

from .options import LEGACY_OPTIONS
from .v2.backend import EtcdRendezvousBackend

if TYPE_CHECKING:
    from rdzv_core.api import RendezvousParameters

__all__ = ["EtcdRendezvousHandler", "create_rdzv_handler"]

_SUCCESSOR = (
    "The rendezvous backend 'etcd' is there for old scripts only: it needs etcd's v2 API, which etcd 3.6 no longer "
    "has. Use 'etcd-v3' (--rdzv-backend=etcd-v3) with the same endpoint."
)


class EtcdRendezvousHandler(DynamicRendezvousHandler):
    """A node's handler under the old name; see :func:`create_rdzv_handler`."""


class _LegacyBackend(EtcdRendezvousBackend):
    """The v2 backend under the old name."""

    options = LEGACY_OPTIONS

    @property
    def name(self) -> str:
        """``etcd``."""
        return "etcd"


def create_rdzv_handler(params: RendezvousParameters) -> EtcdRendezvousHandler:
    """Make the handler of the backend ``etcd``, from the parameters that torch's took.

    These are ``timeout``, ``last_call_timeout``, ``etcd_prefix``, ``protocol``, ``cacert``, ``cert`` and ``key``;
    all options of ``etcd-v2`` are understood too.

    Raises:
        ValueError: Endpoint or options are not understood.
        RendezvousConnectionError: python-etcd is not installed or does not work.
    """
    from rdzv_core import create_handler

    from . import _target
    from .v2.access import clients_of

    warnings.warn(_SUCCESSOR, DeprecationWarning, stacklevel=2)
    target = _target(params, LEGACY_OPTIONS)
    backend = _LegacyBackend(clients_of(target.cluster), params.run_id, target.key_prefix)
    made: Any = create_handler(None, backend, params, endpoint=target.endpoint, kind=EtcdRendezvousHandler)
    handler: EtcdRendezvousHandler = made
    return handler
