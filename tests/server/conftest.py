"""Servers for tests that leave them unchanged: a real engine, a directed one, and a directed one that reads images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles.running_server import Server, directed, served, typing


@pytest.fixture(scope="session")
def typist() -> Iterator[Server]:
    """The real engine over a scripted model."""
    with served(typing()) as server:
        yield server


@pytest.fixture(scope="session")
def actor() -> Iterator[Server]:
    """An engine that does what the last message says."""
    with served(directed()) as server:
        yield server


@pytest.fixture(scope="session")
def seer() -> Iterator[Server]:
    """The same, and it reads images."""
    with served(directed("seer")) as server:
        yield server
