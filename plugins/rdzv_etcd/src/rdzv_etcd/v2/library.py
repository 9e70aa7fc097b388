"""The client library of the v2 API, imported when it is asked for and not before."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rdzv_core.errors import RendezvousConnectionError

__all__ = ["python_etcd"]


def python_etcd() -> Any:
    """The module ``etcd`` of python-etcd.

    Raises:
        RendezvousConnectionError: It is not installed, or does not work with what else is.
    """
    try:
        library = import_module("etcd")
        library.Client  # noqa: B018 - another distribution may own the name
    except Exception as error:  # a library of 2017 may fail in any way beside the libraries of today
        raise RendezvousConnectionError(
            f"etcd's v2 API needs python-etcd, which cannot be imported here ({type(error).__name__}: {error}): "
            "pip install python-etcd==0.4.5, or use the backend etcd-v3, which needs no library.",
            permanent=True,
            backend="etcd-v2",
        ) from error
    return library
