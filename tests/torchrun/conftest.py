from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.torchrun.launcher import Job

pytest.register_assert_rewrite("tests.torchrun.looking", "tests.torchrun.stories")


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs that are killed, with all their workers, when the test is over."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Job:
            folder = tmp_path / f"job-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(Job(folder=folder, **settings))

        yield make


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """A file; workers that were started with ``--until`` end well when it exists."""
    return tmp_path / "end"
