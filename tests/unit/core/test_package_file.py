"""Packages are found and their versions read without importing them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from eaglelocal.core.user_paths import find_package_file, read_package_version


def install(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, *, metadata: str = "") -> None:
    """Put a package `strange` into a folder of the import path, whose import would fail."""
    (folder / "strange").mkdir()
    (folder / "strange" / "__init__.py").write_text(f"{text}\nraise RuntimeError\n")
    if metadata:
        info = folder / f"strange_things-{metadata}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: strange-things\nVersion: {metadata}\n")
        (info / "top_level.txt").write_text("strange\n")
    monkeypatch.syspath_prepend(str(folder))


@pytest.mark.parametrize(
    ("text", "metadata", "version"),
    [
        ('__version__ = "1.2.3"', "", "1.2.3"),
        ("import os\n__version__='0.3.36+cu124'  # generated", "", "0.3.36+cu124"),
        ("from strange._version import __version__", "4.5", "4.5"),
        ("", "", None),
        ("print('\\udcff')", "", None),
    ],
)
def test_the_version_is_the_packages_own_or_that_of_its_metadata(
    text: str, metadata: str, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, text, monkeypatch, metadata=metadata)
    assert read_package_version("strange") == version
    assert find_package_file("strange") == tmp_path / "strange" / "__init__.py"


def test_what_is_not_installed_or_has_no_place_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_package_version("a_package_of_nobody") is None
    monkeypatch.setitem(sys.modules, "placeless", ModuleType("placeless"))
    assert find_package_file("placeless") is None
