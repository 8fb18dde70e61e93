"""The folders of a user who has nothing yet."""

from __future__ import annotations

from pathlib import Path

import pytest


def enter_empty_home(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Have this process find settings, state, caches and the models of other programs below an empty folder."""
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
    return folder
