"""Time limits of tests that wait for other processes, on a machine that may be overloaded."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 30.0
PROMPTLY_S = 5.0  # a tenth of a second on a quiet machine; what fails takes far longer, or never ends


def wait_until(condition: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {patience_s} s: {what}"
        time.sleep(0.002)
