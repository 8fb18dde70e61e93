"""The folders of a user who has nothing yet."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog


def enter_empty_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Have this process find settings, state, caches and the models of other programs below an empty folder."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
    return folder


def home_variables(folder: Path) -> dict[str, str]:
    """Variables of an empty home for a process. The catalog is parsed there: that takes longer than most commands."""
    homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("CONFIG", "STATE", "CACHE")}
    shutil.copytree(parsed_catalog(), folder / "cache/eaglelocal/profiles", dirs_exist_ok=True)
    return homes


@cache
def parsed_catalog() -> Path:
    """Return the folder in which this process keeps the catalog parsed (tests/conftest.py says where)."""
    load_catalog()
    return locations.parsed_profiles_dir()
