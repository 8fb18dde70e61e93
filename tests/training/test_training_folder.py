"""Folders of `train`: one run at a time, answers of one target, listed by `ls` and removed by `rm`."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from doubles.canned_client import CannedClient

from eaglelocal import locations
from eaglelocal.cli import main
from eaglelocal.core.request import ChatRequest
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError
from eaglelocal.training.conversations import read_conversations
from eaglelocal.training.gathering import AnswerGoal, gather_answers
from eaglelocal.training.training_folder import ANSWERS, QUESTIONS, TARGET, enter_folder, list_folders

pytestmark = pytest.mark.full


@pytest.fixture(autouse=True)
def _homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def folder() -> Path:
    return locations.training_dir() / "one"


def test_one_run_works_in_a_folder_and_the_next_may_when_it_has_ended(folder: Path) -> None:
    with enter_folder(folder, "a model", "f1"):
        assert list_folders()[0].is_in_use
        with (
            pytest.raises(ResourceError, match="another `eaglelocal train` is using"),
            enter_folder(folder, "a model", "f1"),
        ):
            pass
    assert not list_folders()[0].is_in_use
    with enter_folder(folder, "a model", "f1"):
        assert (folder / TARGET).read_text() == "a model\nf1\n"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_a_killed_run_was_writing_goes_and_what_it_had_written_stays(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("a.partial", "a.checkpoint", ANSWERS):
        (folder / name).write_text("x")
    with enter_folder(folder, "a model", "f1"):
        assert sorted(path.name for path in folder.iterdir()) == ["a.checkpoint", ANSWERS, TARGET]


@pytest.mark.parametrize(
    ("before", "name", "is_same"),
    [
        ("old\nf1\n", "new", True),
        ("a model\nf2\n", "a model", False),
        ("a model\n", "b", False),
    ],
)
def test_a_target_is_known_by_its_content(before: str, name: str, is_same: bool, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / TARGET).write_text(before)
    allowed = nullcontext() if is_same else pytest.raises(UsageError, match="another target: a model")
    with allowed, enter_folder(folder, name, "f1"):
        assert list_folders()[0].target == before.splitlines()[0]
    if is_same:  # from now on it is known by that
        with pytest.raises(UsageError), enter_folder(folder, name, "f3"):
            pass


def other_target(folder: Path) -> None:
    with enter_folder(folder, "another model", "f2"):
        pass


def file_above(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")


def folder_for_a_file(folder: Path) -> None:
    (folder / TARGET).mkdir(parents=True)


@pytest.mark.parametrize(
    ("made", "kind", "says"),
    [
        (other_target, UsageError, "the answers of another target: another model"),
        (file_above, ResourceError, "cannot write"),
        (folder_for_a_file, ResourceError, "cannot write"),
    ],
)
def test_a_folder_that_cannot_be_used_is_reported(
    made: Callable[[Path], None], kind: type[EagleLocalError], says: str, folder: Path
) -> None:
    made(folder)
    with pytest.raises(kind, match=says), enter_folder(folder, "a model", "f1"):
        pass


def test_ls_lists_what_is_kept_and_rm_removes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with enter_folder(folder, "a model", "f1"):
        (folder / ANSWERS).write_text("x" * 900)
        (folder / QUESTIONS).write_text("x" * 92)
        with pytest.raises(ResourceError, match="another process trains in"):
            main.run(["rm", str(folder), "--yes"])
    assert main.run(["ls"]) == 0
    assert "one\n    1.0 kB, a model" in capsys.readouterr().err
    assert main.run(["ls", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out.splitlines()[-1])["training"]
    assert report == {"path": str(folder), "target": "a model", "size_bytes": 1003, "is_in_use": False}
    assert main.run(["rm", str(folder), "--yes"]) == 0
    assert not folder.exists() and folder.parent.is_dir()


def test_rm_leaves_what_people_put_there(folder: Path) -> None:
    with enter_folder(folder, "a model", "f1"):
        (folder / "mine.txt").write_text("x")
    assert main.run(["rm", str(folder), "--yes"]) == 0
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


def test_an_answer_that_the_disk_does_not_hold_is_reported_and_those_before_are_whole(folder: Path) -> None:
    """The limit on a file's size stands for the disk."""
    requests = [ChatRequest(id="", text=f"question {number}") for number in range(40)]
    client = CannedClient(lambda request: ((1, 2, 3), tuple(range(20))), block_size=1, num_questions=40)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ResourceError, match="cannot write") as report:
            gather_answers(
                requests,
                folder / ANSWERS,
                client.opened,
                concurrency=1,
                goal=AnswerGoal(9999),
                on_progress=lambda num_tokens, num_conversations: None,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert report.value.hint
    whole = read_conversations(folder / ANSWERS)
    assert 0 < len(whole) < 40
    assert {one.tokens for one in whole.values()} == {(1, 2, 3, *range(20))}


def test_lines_that_no_reader_could_hold_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / ANSWERS
    good = json.dumps({"key": "a", "num_prompt": 1, "tokens": [1, 2]}).encode()
    path.write_bytes(b"\n".join([b"[" * 100_000, b"\xff\x00", os.urandom(50).replace(b"\n", b""), good]))
    assert list(read_conversations(path)) == ["a"]
