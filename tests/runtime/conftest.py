from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runtime.party import Party


@pytest.fixture
def party() -> Iterator[Party]:
    party = Party()
    yield party
    party.end()
