"""The message for a target that neither the catalog nor the disk has. Of a name as Ollama writes it, it says more."""

from __future__ import annotations

from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.reference import is_ollama_tag


def describe_unknown_target(id: str, tag: str | None) -> str:
    """Return `unknown target 'ID:TAG'`; of a name of Ollama's also where it was looked for, and what puts it there."""
    written = f"{id}:{tag}" if tag else id
    if not is_ollama_tag(tag):
        return f"unknown target {written!r}"
    stores = ", ".join(map(_name_store, locations.ollama_store_paths()))
    return (
        f"unknown target {written!r}: it is neither in the catalog nor among the models of Ollama, "
        f"looked for in {stores}; `ollama pull {written}` puts it there, "
        "because eaglelocal downloads from Hugging Face only"
    )


def _name_store(path: Path) -> str:
    home = locations.find_home()
    name = f"~/{path.relative_to(home)}" if home and path.is_relative_to(home) else str(path)
    return name if path.is_dir() else f"{name} (missing)"
