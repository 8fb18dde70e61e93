"""A person for commands, and what those that run in the test's own process leave behind is put back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.commands import restored_loggers
from doubles.empty_home import home_variables

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    with restored_loggers():
        yield


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A person without files or variables of ours."""
    ours = ("EAGLELOCAL_", "XDG_", "HF_")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    own = {"PYTHONPATH": str(ROOT), "HF_HOME": str(tmp_path / "hf"), "COLUMNS": "80"}
    return {**plain, **home_variables(tmp_path), **own}
