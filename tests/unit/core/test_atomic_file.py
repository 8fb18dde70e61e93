"""Files are written whole or not at all: permissions, leftovers of killed processes, and syncing to disk."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.core import atomic_file
from eaglelocal.core.atomic_file import (
    PRIVATE,
    SHARED,
    flush_and_rename,
    make_folder,
    remove_abandoned,
    write_atomically,
)
from eaglelocal.hub import download

WRITER = """
import os, sys
from pathlib import Path
from eaglelocal.core import atomic_file

def stop(*_):
    print("writing", flush=True)
    sys.stdin.read()

os.replace = stop
atomic_file.write_atomically(Path(sys.argv[1]), "half")
"""


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
@pytest.mark.parametrize("mode", [PRIVATE, SHARED])
def test_folders_have_their_rights_whatever_the_umask(mode: int, tmp_path: Path) -> None:
    make_folder(tmp_path / "a" / "b", mode)
    make_folder(tmp_path / "a" / "b", mode)
    assert rights(tmp_path / "a") == rights(tmp_path / "a" / "b") == mode


def test_a_stricter_umask_and_a_folder_that_is_there_stay(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        make_folder(tmp_path / "strict", SHARED)
    finally:
        os.umask(before)
    make_folder(tmp_path / "strict", SHARED)
    assert rights(tmp_path / "strict") == 0o700


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "file" / "below")


def test_two_processes_may_make_a_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one makes the parent just after this one has missed it."""
    mkdir = os.mkdir

    def missing_once(folder: Path, mode: int) -> None:
        monkeypatch.setattr(os, "mkdir", mkdir)
        mkdir(tmp_path / "locks")
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))

    monkeypatch.setattr(os, "mkdir", missing_once)
    make_folder(tmp_path / "locks" / "repo")
    assert (tmp_path / "locks" / "repo").is_dir()


@pytest.mark.usefixtures("open_umask")
def test_only_the_owner_writes_what_is_put_in_place(tmp_path: Path) -> None:
    write_atomically(tmp_path / "keys" / "own", "secret")
    write_atomically(tmp_path / "keys" / "told", "public", mode=0o644)
    (tmp_path / "made").write_text("model")
    flush_and_rename(tmp_path / "made", tmp_path / "model")
    assert rights(tmp_path / "keys") == 0o700
    names = [tmp_path / "keys" / "own", tmp_path / "keys" / "told", tmp_path / "model"]
    assert [rights(path) for path in names] == [0o600, 0o644, 0o644]
    assert not (tmp_path / "made").exists()


def test_the_bytes_reach_the_disk_before_the_name_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old file or the new one, never an empty one."""
    done: list[str] = []
    replace, fsync = os.replace, os.fsync

    def seen_replace(source: str | Path, target: Path) -> None:
        done.append("renamed")
        replace(source, target)

    def seen_fsync(handle: int) -> None:
        mode = os.fstat(handle).st_mode
        done.append("folder synced" if stat.S_ISDIR(mode) else f"{os.fstat(handle).st_size} bytes synced")
        fsync(handle)

    monkeypatch.setattr(os, "replace", seen_replace)
    monkeypatch.setattr(os, "fsync", seen_fsync)
    write_atomically(tmp_path / "one", "12345")
    (tmp_path / "made").write_text("123")
    flush_and_rename(tmp_path / "made", tmp_path / "two")
    assert done == ["5 bytes synced", "renamed", "folder synced", "3 bytes synced", "renamed", "folder synced"]


def test_what_fails_leaves_nothing_and_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "x", "\udc80")
    assert [path.name for path in tmp_path.iterdir()] == ["x"] and (tmp_path / "x").read_text() == "old"


def test_the_files_of_killed_writers_go_and_those_of_living_ones_stay(tmp_path: Path) -> None:
    """The one is killed while it writes, the other one is still at it."""
    (tmp_path / ".gitkeep").touch()
    killed, living = (
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("killed", "living")
    )
    try:
        for process in (killed, living):
            assert process.stdout is not None and process.stdout.readline() == "writing\n"
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.glob(".*.part"))) == 2
        write_atomically(tmp_path / "mine", "whole")
        (left,) = tmp_path.glob(".*.part")
        assert left.read_text() == "half" and (tmp_path / ".gitkeep").exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.communicate()
    remove_abandoned(tmp_path)
    assert list(tmp_path.glob(".*.part")) == []


def test_concurrent_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    path, failed = tmp_path / "x", []

    def write(number: int) -> None:
        try:
            for _ in range(50):
                write_atomically(path, str(number) * 1000)
        except OSError as problem:
            failed.append(problem)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == [] and [file.name for file in tmp_path.iterdir()] == ["x"]
    assert len(set(path.read_text())) == 1 and len(path.read_text()) == 1000


def test_a_file_that_was_taken_for_abandoned_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its making and its locking somebody else may sweep."""
    make, made = atomic_file.tempfile.mkstemp, []

    def swept_once(**where: str) -> tuple[int, str]:
        handle, name = make(**where)
        made.append(name)
        if len(made) == 1:
            remove_abandoned(tmp_path)
        return handle, name

    monkeypatch.setattr(atomic_file.tempfile, "mkstemp", swept_once)
    write_atomically(tmp_path / "x", "whole")
    assert len(made) == 2 and (tmp_path / "x").read_text() == "whole"


def test_files_of_others_stay_whatever_their_suffix(tmp_path: Path) -> None:
    (tmp_path / ".mine.part").write_text("a download of somebody else")
    os.mkfifo(tmp_path / ".eaglelocal-pipe.part")
    (tmp_path / ".eaglelocal-link.part").symlink_to(".mine.part")
    (tmp_path / ".eaglelocal-folder.part").mkdir()
    before = set(os.listdir(tmp_path))
    write_atomically(tmp_path / "x", "whole")
    assert set(os.listdir(tmp_path)) == before | {"x"}


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes of what reaches the disk."""
    fsync, inodes = os.fsync, []

    def seen(handle: int) -> None:
        inodes.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", seen)
    return inodes


def inodes_of(*paths: Path) -> list[int]:
    return [path.stat().st_ino for path in paths]


def test_the_first_file_in_a_new_folder_outlives_a_power_cut_with_it(tmp_path: Path, synced: list[int]) -> None:
    make_folder(tmp_path / "a" / "b")
    assert synced == inodes_of(tmp_path, tmp_path / "a")
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_a_conversation_that_is_removed_stays_removed(tmp_path: Path, synced: list[int]) -> None:
    conversation_file.save(Conversation(turns=[Turn("a", "b")]), tmp_path / "talk.json", target="m")
    synced.clear()
    conversation_file.delete(tmp_path, "talk")
    assert synced == inodes_of(tmp_path)


def test_the_name_of_a_download_outlives_a_power_cut(tmp_path: Path, synced: list[int]) -> None:
    (tmp_path / "blob").write_text("model")
    download._make_link(tmp_path / "blob", tmp_path / "snapshots" / "model.gguf")
    assert (tmp_path / "snapshots" / "model.gguf").read_text() == "model"
    assert synced == inodes_of(tmp_path, tmp_path / "snapshots")
