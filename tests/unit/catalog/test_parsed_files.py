"""The catalog's files are parsed once: a changed file counts at once, and a damaged copy is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eaglelocal import locations
from eaglelocal.catalog import catalog
from eaglelocal.catalog.catalog import FileVersion, read_tables
from eaglelocal.catalog.toml_table import TomlTable
from eaglelocal.errors import UsageError


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(locations, "parsed_profiles_dir", lambda: tmp_path / "kept")
    return tmp_path / "kept"


def version(path: Path) -> FileVersion:
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


def read(*paths: Path) -> list[object]:
    return [table.content for table in read_tables([version(path) for path in paths])]


def test_what_is_kept_is_read_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "a.toml", tmp_path / "b.toml"]
    paths[0].write_text('name = "a"\nsize = 1.5\nlist = [1, 2]\n')
    paths[1].write_text("[part]\nflag = true\n")
    first = read(*paths)
    monkeypatch.setattr(TomlTable, "of_file", None)
    assert read(*paths) == first == [{"name": "a", "size": 1.5, "list": [1, 2]}, {"part": {"flag": True}}]


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = 1\n")
    read(path)
    path.write_text("a = 2\n")
    os.utime(path, ns=(1, 1))
    assert read(path) == [{"a": 2}]


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"files": 1}', b"\xff", b"[" * 5000])
def test_a_damaged_copy_is_none(tmp_path: Path, kept: Path, content: bytes) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = 1\n")
    read(path)
    (copy,) = kept.iterdir()
    copy.write_bytes(content)
    assert read(path) == [{"a": 1}]


def test_what_cannot_be_kept_is_read_all_the_same(tmp_path: Path, kept: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = nan\nday = 2026-01-01\n")
    assert set(*map(dict, read(path))) == {"a", "day"}  # type: ignore[call-overload]
    assert not list(kept.glob("*"))
    kept.write_text("no folder") if not kept.exists() else None
    path.write_text("a = 3\n")
    assert read(path) == [{"a": 3}]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text("a = ")
    with pytest.raises(UsageError, match=r"a\.toml"):
        read(path)
    assert catalog.find_kept([version(path)]).exists() is False
