"""The paths that complete a command's partly typed one."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.conversation.command_arguments import list_paths

FILES = ("cat.GGUF", "cat.gguf", "cat.png", "cat.txt", ".hidden.gguf", "cats/dog.gguf")


@pytest.mark.parametrize(
    ("name", "partial", "found"),
    [
        ("/add", "ca", ["cat.GGUF", "cat.gguf", "cat.png", "cat.txt", "cats/"]),
        ("/image", "./ca", ["./cat.png", "./cats/"]),
        ("/image", "./", ["./cat.png", "./cats/"]),
        ("/model", "./c", ["./cat.GGUF", "./cat.gguf", "./cats/"]),
        ("/model", "~/cats/", ["~/cats/dog.gguf"]),
        ("/draft", "./.h", ["./.hidden.gguf"]),
        ("/model", "cat", []),  # a name, as most are
        ("/model", "cats/", []),  # OWNER/REPO
        ("/model", "~", []),
        ("/model", "./nowhere/", []),
        ("/model", "~nobody-here/", []),
        ("/model", "/\0/", []),
        ("/load", "./c", []),
    ],
)
def test_paths_of_the_files_that_a_command_takes(
    name: str, partial: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cats").mkdir()
    for each in FILES:
        (tmp_path / each).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(list_paths(name, partial)) == found
