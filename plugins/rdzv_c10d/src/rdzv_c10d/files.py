"""A FileStore as the store of a run: for a file system that all nodes share, with locks that work."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from rdzv_core.errors import RendezvousConnectionError

__all__ = ["open_file_store"]


def open_file_store(path: str) -> Any:
    """Open a FileStore; without a path, in a new file of this process's user alone, for a node on its own.

    Raises:
        RendezvousConnectionError: The file cannot be made, read or written.
    """
    from torch.distributed import FileStore

    path = path.strip()
    try:
        if path:
            with open(path, "ab"):
                pass  # FileStore itself tells no more than that it failed
        else:
            handle, path = tempfile.mkstemp(prefix="rdzv-")
            os.close(handle)
        return FileStore(path)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise RendezvousConnectionError(
            f"The file '{path}' cannot be used as a store: {reason}. With store_type=file the endpoint is the path of "
            "a file, which every node can read and write.",
            permanent=True,
            backend="c10d",
        ) from error
