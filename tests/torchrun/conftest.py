from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.torchrun.launcher import Job

FLOOD = "waitForInput"
"""What torch's warnings of a wait that has ended without an answer have in common."""


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs that are killed, with all their workers, when the test is over.

    Whatever becomes of a job, its log is to be readable: torch says something each time that a wait at a TCPStore ends
    without an answer, and we wait for hours.
    """
    jobs = []
    with ExitStack() as stack:

        def make(**settings: Any) -> Job:
            folder = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            jobs.append(stack.enter_context(Job(folder=folder, **settings)))
            return jobs[-1]

        yield make
    flooded = {node.name: node.log() for job in jobs for node in job.nodes.values() if FLOOD in node.log()}
    assert not flooded


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """A file; workers that were started with ``--until`` end well when it exists."""
    return tmp_path / "end"
