"""Imported heads on disk, and which of them `--draft auto` takes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
from doubles.imported_heads import imported, understood
from doubles.random_models import TargetShape, write_target

from eaglelocal.cli import main
from eaglelocal.core.amounts import format_disk
from eaglelocal.errors import ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.eagle_info import ACCEPTANCE_LENGTH_KEY
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import patch_header
from eaglelocal.hub.draft_resolver import find_draft
from eaglelocal.hub.heads import head_store
from eaglelocal.hub.heads.convert import make_entries, make_tensors
from eaglelocal.hub.heads.head_folder import find_published_folder
from eaglelocal.hub.heads.head_store import find_unfinished_heads, list_fitting_heads, make_head_path, write_head_file
from eaglelocal.hub.target_resolver import read_target

SHAPE = TargetShape(n_embd=128, n_layer=4, n_ff=128)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf", SHAPE)


def keep(name: str, target: Path, folder: Path, kind: Kind | None = None) -> Path:
    header = read_header(target)
    published = write_checkpoint(folder / name, random_checkpoint(kind or Kind()), "SpecForge")
    return imported(published, target, make_head_path(ModelInfo.from_header(header), name, "bf16"), kind="bf16")


def names(target: Path) -> list[str]:
    header = read_header(target)
    return [head.info.name for head in list_fitting_heads(ModelInfo.from_header(header))]


def test_none_to_begin_with(target: Path) -> None:
    assert names(target) == []
    assert find_draft("auto", read_target(target)).reason == "no head is known for this target"


@pytest.mark.parametrize(("length", "is_taken"), [(0.0, True), (1.1, False), (1.3, True)])
def test_a_weak_head_is_passed_by(length: float, is_taken: bool, target: Path, tmp_path: Path) -> None:
    """One that was not measured has a length of 0."""
    path = keep("one", target, tmp_path)
    patch_header(read_header(path), {ACCEPTANCE_LENGTH_KEY: length})
    found = find_draft("auto", read_target(target))
    assert found.path == (path if is_taken else None)
    assert find_draft(str(path), read_target(target)).path == path


def test_an_imported_head_is_found_by_itself(target: Path, tmp_path: Path) -> None:
    path = keep("one", target, tmp_path)
    found = find_draft("auto", read_target(target))
    assert (found.kind, found.path) == ("eagle3", path)
    assert "EAGLE-3 head one" in found.label


def test_the_newest_is_taken(target: Path, tmp_path: Path) -> None:
    for age, name in ((100, "old"), (0, "new"), (50, "middle")):
        path = keep(name, target, tmp_path)
        os.utime(path, (1e9 - age, 1e9 - age))
    assert names(target) == ["new", "middle", "old"]


def test_one_for_this_name_comes_before_a_newer_one_of_a_sibling(tmp_path: Path) -> None:
    """A fine-tune has the same tokens and shape: its heads are the second choice."""
    ours, theirs = write_target(tmp_path / "ours.gguf", SHAPE), write_target(tmp_path / "theirs.gguf", SHAPE)
    os.utime(keep("own", ours, tmp_path), (1, 1))
    keep("sibling", theirs, tmp_path)
    assert names(ours) == ["own", "sibling"]
    assert names(theirs) == ["sibling", "own"]


def test_a_damaged_head_is_reported_and_does_not_draft(target: Path, tmp_path: Path) -> None:
    path = keep("one", target, tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    found = find_draft("auto", read_target(target))
    assert (found.kind, found.path) == ("ngram", None)
    assert path.name in found.reason and "cut short" in found.reason


@pytest.mark.parametrize("other", [replace(SHAPE, n_embd=64), replace(SHAPE, n_layer=5), replace(SHAPE, n_vocab=320)])
def test_targets_of_another_kind_have_other_heads(other: TargetShape, target: Path, tmp_path: Path) -> None:
    keep("one", target, tmp_path)
    assert names(write_target(tmp_path / "other.gguf", other)) == []


def test_damaged_files_are_passed_over(target: Path, tmp_path: Path) -> None:
    good = keep("good", target, tmp_path)
    cut = keep("cut", target, tmp_path)
    cut.write_bytes(cut.read_bytes()[:1000])
    (good.parent / "text.gguf").write_text("no head")
    (good.parent / "folder.gguf").mkdir()
    assert names(target) == ["good"]


def test_a_head_appears_complete_or_not_at_all(target: Path, tmp_path: Path) -> None:
    header = read_header(target)
    info = ModelInfo.from_header(header)
    head = understood(write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "NeMo", shards=2), target)
    path = tmp_path / "deep" / "head.gguf"
    shares: list[float] = []
    with (
        pytest.raises(RuntimeError),
        write_head_file(
            path,
            make_entries(head, head.stated, info, "f16"),
            make_tensors(head, info, "f16"),
            on_progress=shares.append,
        ) as partial,
    ):
        assert partial.is_file() and not path.exists()
        raise RuntimeError("the trial went wrong")
    assert list(path.parent.iterdir()) == []
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_no_room_on_the_disk(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_store, "SPARE_DISK_BYTES", 10**18)
    published = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SafeAILab")
    with pytest.raises(ResourceError, match="GB are free"):
        imported(published, target, tmp_path / "head.gguf")
    assert not list(tmp_path.glob("head*"))


@pytest.mark.parametrize("name", ["../../x", "a b/c", ".hidden", "ü", "a" * 300])
def test_names_stay_in_their_folder(name: str, target: Path) -> None:
    header = read_header(target)
    info = ModelInfo.from_header(header)
    path = make_head_path(info, name, "bf16")
    assert path.parent == head_store.make_target_folder(info)
    assert not path.name.startswith(".") and len(path.name) < 100


def test_where_a_head_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Some-Head").mkdir()
    assert find_published_folder(str(tmp_path / "Some-Head")) == (tmp_path / "Some-Head", "Some-Head")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFileError, match="somebody/head is not on this machine"):
        find_published_folder("somebody/head")
    with pytest.raises(ModelFileError, match="does not exist"):
        find_published_folder("./nowhere")


@pytest.mark.parametrize("name", ["a/b--c", "a/b..c", "a--b/c", "a/b-", "a/b.git", f"a/{'x' * 120}"])
def test_invalid_repository_names_are_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is not the name of a repository"):
        find_published_folder(name)


def killed_import(target: Path, folder: Path) -> Path:
    """What is on disk when a process dies in the middle of it."""
    kept = keep("half", target, folder)
    partial = kept.with_name(f"{kept.name}.999999999-1{head_store.PARTIAL}")
    os.replace(kept, partial)
    return partial


def test_what_a_killed_import_left_is_seen_and_removed(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    partial = killed_import(target, tmp_path)
    assert main.run(["ls"]) == 0
    assert f"unfinished: an imported head, {format_disk(partial.stat().st_size)} so far" in capsys.readouterr().err
    assert main.run(["ls", "--json"]) == 0
    (report,) = json.loads(capsys.readouterr().out.splitlines()[-1])["unfinished"]
    assert report == {"repo": None, "size_bytes": partial.stat().st_size, "path": str(partial)}
    assert main.run(["rm", str(partial), "--yes"]) == 0
    assert not partial.exists()


def test_leftovers_of_other_heads_go_too_and_files_of_others_stay(target: Path, tmp_path: Path) -> None:
    partial = killed_import(target, tmp_path)
    other = partial.with_name(f"other-bf16.gguf.999999999-1{head_store.PARTIAL}")
    foreign = partial.with_name(f"my.notes{head_store.PARTIAL}")
    for path in (other, foreign):
        path.write_bytes(b"x")
    keep("half", target, tmp_path / "again")
    assert not other.exists() and foreign.exists()


def test_what_is_being_written_is_left_alone(target: Path, tmp_path: Path) -> None:
    header = read_header(target)
    read = understood(write_checkpoint(tmp_path / "one", random_checkpoint(Kind()), "SpecForge"), target)
    info = ModelInfo.from_header(header)
    entries, tensors = make_entries(read, read.stated, info, "bf16"), make_tensors(read, info, "bf16")
    place = make_head_path(info, "one", "bf16")
    with write_head_file(place, entries, tensors, on_progress=lambda fraction: None) as partial:
        (head,) = find_unfinished_heads()
        assert (head.path, head.is_being_written) == (partial, True)
        with pytest.raises(ResourceError, match="another process is writing"):
            main.run(["rm", str(partial), "--yes"])
    assert find_unfinished_heads() == []


def test_the_next_import_takes_the_leftovers_away(target: Path, tmp_path: Path) -> None:
    partial = killed_import(target, tmp_path)
    keep("half", target, tmp_path / "again")
    assert not partial.exists()
