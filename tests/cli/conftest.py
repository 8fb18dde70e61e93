"""What commands that run in the test's own process leave behind is put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles.commands import restored_loggers


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    with restored_loggers():
        yield
