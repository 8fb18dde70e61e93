"""Files in our own folders: only regular ones of this user are opened, and no other makes anybody wait."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from eaglelocal.core.own_files import (
    _warn_once,
    append_own,
    is_own,
    list_own,
    open_own,
    open_regular,
    read_own,
    read_regular,
)


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """Paths of tests may be used again, and each warning comes once."""
    _warn_once.cache_clear()


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(path))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (lambda path: os.mkfifo(path), "it is a pipe"),
    "socket": (bind_socket, "it is a socket"),
    "folder": (lambda path: path.mkdir(), "a"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "pipe behind a link": (lambda path: (os.mkfifo(f"{path}.pipe"), path.symlink_to(f"{path}.pipe")), "it is a pipe"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    make, what = ODD[kind]
    path = tmp_path / f"{kind}.json"  # its own name: a word is said once for each path
    make(path)
    for use in (open_regular, read_regular, open_own, read_own, append_own):
        with pytest.raises(OSError) as raised:  # the kind is checked below
            use(path)
        assert what in (raised.value.strerror or "").lower() or kind in ("folder", "loop")
    assert not is_own(path) and list_own(tmp_path, "*.json") == []
    assert caplog.text.count(f"{path} is skipped: ") in (1, 2)  # once for each reason


def test_a_missing_file_causes_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "dangling.json").symlink_to("nowhere")
    for name in ("none.json", "dangling.json"):
        with pytest.raises(FileNotFoundError):
            read_own(tmp_path / name)
    assert list_own(tmp_path, "*.json") == [] and list_own(tmp_path / "nowhere", "*") == []
    assert caplog.text == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_skipped_unless_the_folder_is_that_users(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    os.chown(path, 12345, -1)
    with pytest.raises(OSError, match="belongs to another user"):
        read_own(path)
    assert list_own(tmp_path, "*") == [] and "belongs to another user (12345)" in caplog.text
    assert read_regular(path) == b"{}"
    os.chown(tmp_path, 12345, -1)
    assert read_own(path) == b"{}" and list_own(tmp_path, "*") == [path]


def test_a_usual_file_is_read_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with append_own(path) as file:
        file.write(b"a")
    with append_own(path) as file:
        file.write(b"b")
    (tmp_path / "link.json").symlink_to(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_own(tmp_path / "link.json", 2) == b"ab" and list_own(tmp_path, "*") == [tmp_path / "link.json", path]
    with pytest.raises(OSError, match="more than 1 bytes"):
        read_own(path, 1)
