"""Settings of the whole run. Machines are shared: a test may be slow, so hypothesis sets no deadlines."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
