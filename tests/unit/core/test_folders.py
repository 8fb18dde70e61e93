"""Folders and files of ours are their owner's alone, whatever the umask."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import eaglelocal
from eaglelocal import locations
from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn
from eaglelocal.conversation.conversation_file import export_markdown
from eaglelocal.conversation.question_history import QuestionHistory
from eaglelocal.core.atomic_file import PRIVATE, is_gone, make_absolute, make_folder, write_atomically
from eaglelocal.server.access import write_key

PACKAGE = Path(eaglelocal.__file__).parent
# whoever builds the demo names the folders; the hub's are shared with other tools, and looked after there
OTHERS = re.compile(r"(hub|demo)/|training/(tokenizer|shards)\.py$|core/atomic_file\.py$")


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def conversation() -> Conversation:
    return Conversation(turns=[Turn("a question", "an answer")])


WRITERS: dict[str, Callable[[Path], object]] = {
    "a key file": write_key,
    "a whole file": lambda path: write_atomically(path, "x"),
    "a history": lambda path: QuestionHistory(path).add("a question"),
    "a conversation": lambda path: conversation_file.save(conversation(), path, target="demo"),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_what_is_written_is_private_with_all_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path], object]
) -> None:
    path = tmp_path / "state" / "eaglelocal" / "deep" / "file"
    monkeypatch.setattr(locations, "config_dir", lambda: path.parent)  # the only folder that is made for a key
    write(path)
    assert mode_of(path) == 0o600
    for folder in list(path.parents)[:3]:
        assert mode_of(folder) == 0o700, folder


def test_an_export_is_as_private_as_its_conversation(tmp_path: Path) -> None:
    export_markdown(conversation(), tmp_path / "it.md", target="demo")
    assert mode_of(tmp_path / "it.md") == 0o600


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o775)
    make_folder(tmp_path / "shared" / "ours", PRIVATE)
    assert mode_of(tmp_path / "shared" / "ours") == 0o700
    make_folder(tmp_path / "shared", PRIVATE)
    assert mode_of(tmp_path / "shared") == 0o775


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        make_folder(tmp_path / "file" / "folder", PRIVATE)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a file system in which nobody makes folders")
def test_a_folder_that_no_parent_takes_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        make_folder(Path("/proc/nowhere/deep/folder"), PRIVATE)


def test_folders_are_made_in_one_place() -> None:
    files = (path for path in PACKAGE.rglob("*.py") if not OTHERS.search(path.relative_to(PACKAGE).as_posix()))
    assert [path for path in files if re.search(r"\.mkdir\(|os\.makedirs\(", path.read_text(encoding="utf-8"))] == []


def test_an_absolute_path_names_the_same_file_from_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where `..` leads out of a folder that is a link; other links keep their names."""
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "deep")
    for path in (tmp_path / "m.gguf", tmp_path / "elsewhere" / "m.gguf"):
        path.write_text(str(path))
    monkeypatch.chdir(tmp_path)
    for text in ("m.gguf", "./m.gguf", "elsewhere/../m.gguf", "link/../m.gguf"):
        before = Path(text).read_text()
        path = make_absolute(Path(text))
        assert path.is_absolute() and path.read_text() == before and ".." not in path.parts
    assert make_absolute(Path("link")) == tmp_path / "link"


def test_only_a_file_that_is_missing_in_its_folder_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is not mounted has no folders, and a link to a file on it leads nowhere."""
    there, link, dangling = (tmp_path / name for name in ("there", "link", "dangling"))
    there.touch()
    link.symlink_to(tmp_path / "disk" / "folder" / "m.gguf")
    dangling.symlink_to(tmp_path / "deleted")
    found = [is_gone(path) for path in (there, tmp_path / "m.gguf", tmp_path / "disk" / "m.gguf", link, dangling)]
    assert found == [False, True, False, False, True]

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    assert not is_gone(tmp_path / "m.gguf")
