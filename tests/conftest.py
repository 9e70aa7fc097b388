"""What holds for all tests of the core."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# The machine may be busy with other rings, so an example's time says nothing about the code.
settings.register_profile("rdzv", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("rdzv")
