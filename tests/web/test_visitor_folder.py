"""The folders of chats on pages: removed at the end, and what killed ones left at the next start, but nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from eaglelocal.web.web_middleware import LOCK, OLD_S, PREFIX, open_visitor_folder, remove_stale_folders

pytestmark = pytest.mark.full

PROGRAM = """
import sys, time
from eaglelocal.web.web_middleware import open_visitor_folder
with open_visitor_folder() as folder:
    (folder / "questions.jsonl").write_text("private")
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def start_chat() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_a_folder_goes_with_its_chat(temporary: Path) -> None:
    with open_visitor_folder() as folder:
        assert folder.parent == temporary and folder.stat().st_mode & 0o077 == 0
        remove_stale_folders()
        assert (folder / LOCK).is_file()
    assert list(temporary.iterdir()) == []


def test_what_a_killed_chat_left_goes_at_the_next_start(temporary: Path) -> None:
    process, folder = start_chat()
    other, alive = start_chat()
    try:
        remove_stale_folders()
        assert (folder / "questions.jsonl").is_file()  # it runs
        process.kill()
        process.wait()
        assert folder.is_dir()
        with open_visitor_folder():
            assert not folder.exists() and (alive / "questions.jsonl").is_file()
    finally:
        for each in (process, other):
            each.send_signal(signal.SIGKILL)
            each.communicate()


def test_folders_of_earlier_versions_go_if_they_are_old_and_empty(temporary: Path) -> None:
    fresh, old, full = (temporary / f"{PREFIX}{name}" for name in ("fresh", "old", "full"))
    for folder in (fresh, old, full):
        folder.mkdir()
    (full / "questions.jsonl").touch()
    long_ago = time.time() - 2 * OLD_S
    for folder in (old, full):
        os.utime(folder, (long_ago, long_ago))
    remove_stale_folders()
    assert (fresh.is_dir(), old.is_dir(), full.is_dir()) == (True, False, True)


def test_links_and_folders_of_others_stay(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = temporary / "kept"
    kept.mkdir()
    (kept / LOCK).touch()
    (temporary / f"{PREFIX}link").symlink_to(kept)
    remove_stale_folders()
    assert (kept / LOCK).is_file()
    theirs = temporary / f"{PREFIX}theirs"
    theirs.mkdir()
    (theirs / LOCK).touch()
    monkeypatch.setattr(os, "getuid", lambda: theirs.stat().st_uid + 1)
    remove_stale_folders()
    assert theirs.is_dir()
