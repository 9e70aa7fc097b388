"""What pytest loads in every session where rdzv-core is installed: next to nothing.

It lets failing laws show the values that they compared, in the project of whoever inherits them, and marks
them, so that ``-m rdzv_register`` or ``-m rdzv_coordination`` picks them out.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "rdzv_core.testing.suite", "rdzv_core.testing.register_laws", "rdzv_core.testing.coordination_laws"
)

_LEVELS = {
    "rdzv_register": "a law of RendezvousBackend, from rdzv_core.testing.conformance",
    "rdzv_coordination": "a law of CoordinationBackend, from rdzv_core.testing.conformance",
}


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known, also under ``--strict-markers``."""
    for name, meaning in _LEVELS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each law with its level."""
    level = getattr(getattr(item, "function", None), "level", None)
    if level in _LEVELS:
        item.add_marker(level)
