"""How many examples a property test tries: all in the full run, a fifth in the plain one."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def examples(count: int, *, suppress_health_check: list[HealthCheck] | None = None) -> settings:
    """Settings with `count` examples where the profile has 100, and as much less where it has less."""
    share = settings.default.max_examples / 100
    suppressed = [*settings.default.suppress_health_check, *(suppress_health_check or ())]
    return settings(max_examples=max(5, round(count * share)), deadline=None, suppress_health_check=suppressed)
