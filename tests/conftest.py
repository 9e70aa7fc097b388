"""What holds for all tests of the core."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.torchrun.looking", "tests.torchrun.stories")  # before anybody imports them

# The machine may be busy with other rings, so an example's time says nothing about the code.
settings.register_profile("rdzv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rdzv")
