from __future__ import annotations

import importlib.util
import os

import pytest

# Read by the C library at its first look-up: a TCPStore asks DNS for names at every connect.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["test_*.py"]
"""Without torch there is no store to test on, and these modules cannot even be imported."""


def pytest_report_header() -> str | None:
    return "rdzv_c10d: all tests left out, torch is not installed" if collect_ignore_glob else None


@pytest.fixture(scope="session", autouse=True)
def _torch() -> None:
    """Imported before the first test, whose calls may be bounded more tightly than the import takes."""
    import torch.distributed  # noqa: F401
