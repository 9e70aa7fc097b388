from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.torchrun.launcher import Job


def free_port() -> int:
    """A port on loopback that was free just now; below 55536, where clusters of Redis can use it."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 55536:
            return port


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs that are killed, with all their workers, when the test is over."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Job:
            folder = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(Job(folder=folder, **settings))

        yield make
