"""What commands that run in the test's own process leave behind is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from eaglelocal.cli.serve_log import LOGGERS


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    """A server in this process sends its log elsewhere; later tests read theirs."""
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger, logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, handlers, propagate, level in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)
