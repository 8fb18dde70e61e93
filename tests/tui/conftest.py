"""Tests of screens wait for less than Textual's pilot would, which was a third of their time."""

from __future__ import annotations

import pytest
from textual import _wait

WAIT_S = 0.01  # the pilot waits twice after a key: together longer than a frame, after which the layout is new


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_wait, "SLEEP_GRANULARITY", WAIT_S)
    monkeypatch.setattr(_wait, "SLEEP_IDLE", WAIT_S / 20)
