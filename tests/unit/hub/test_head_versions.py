"""Versions of a learned head: what is used, what is kept, and what a kill or a damaged record leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eaglelocal.core.own_files import fingerprint
from eaglelocal.errors import UsageError
from eaglelocal.hub.heads import versions
from eaglelocal.hub.heads.version_records import (
    BASE,
    HeldBackFigures,
    LearnedFrom,
    VersionState,
    read_versions,
    write_versions,
)
from eaglelocal.hub.heads.versions import RECORDS, HeadVersions, find_versions, list_learned_heads

FROM = LearnedFrom(num_answers=4, num_tokens=900, num_owners=2, kinds={"prose": 700, "code": 200})
FIGURES = HeldBackFigures(acceptance=0.62, predecessor=0.5, num_tokens=400)


@pytest.fixture
def store(tmp_path: Path) -> HeadVersions:
    return HeadVersions(tmp_path / "learned" / "0123")


def add(store: HeadVersions, content: bytes = b"weights") -> int:
    made = store.scratch_path()
    made.parent.mkdir(parents=True, exist_ok=True)
    made.write_bytes(content)
    return store.add_candidate(made, made_at=1.0, learned_from=FROM, figures=FIGURES).number


def states(store: HeadVersions) -> dict[int, str]:
    return {each.number: str(each.state) for each in store.read()[0].versions}


def files(store: HeadVersions) -> list[str]:
    return sorted(path.name for path in store.folder.glob("*.gguf"))


def test_nothing_learned_means_the_base_head(store: HeadVersions) -> None:
    known, note = store.read()
    assert (known.used, known.versions, note) == (BASE, (), "")
    assert not store.folder.exists()


def test_a_candidate_is_not_used_before_it_is_current(store: HeadVersions) -> None:
    number = add(store, b"first")
    assert (number, store.read()[0].used) == (1, BASE)
    assert store.path(1).read_bytes() == b"first"
    store.make_current(1, "better by 0.12")
    (version,) = store.read()[0].versions
    assert (version.learned_from, version.figures, version.why) == (FROM, FIGURES, "better by 0.12")
    assert store.read()[0].used == 1


def test_roll_back_returns_to_the_version_before_then_to_the_base_head(store: HeadVersions) -> None:
    for _ in range(2):
        store.make_current(add(store), "better")
    assert states(store) == {1: "old", 2: "current"}
    assert store.roll_back("worse in use") == 1
    assert states(store) == {1: "current", 2: "rolled back"}
    assert store.roll_back("worse again") == BASE
    assert states(store) == {1: "rolled back", 2: "rolled back"}
    assert store.roll_back("nothing is current") == BASE


def test_roll_back_skips_a_version_whose_file_is_missing(store: HeadVersions) -> None:
    for _ in range(3):
        store.make_current(add(store), "better")
    store.path(2).unlink()
    assert store.roll_back("worse") == 1


def test_a_candidate_that_was_judged_worse_is_not_returned_to(store: HeadVersions) -> None:
    store.make_current(add(store), "better")
    store.refuse(add(store), "worse on held-back answers")
    store.make_current(add(store), "better")
    assert states(store) == {1: "old", 2: "rolled back", 3: "current"}
    assert store.roll_back("worse in use") == 1


def test_three_versions_are_kept_and_numbers_are_never_used_again(store: HeadVersions) -> None:
    for _ in range(5):
        store.make_current(add(store), "better")
    assert states(store) == {3: "old", 4: "old", 5: "current"}
    assert files(store) == ["v0003.gguf", "v0004.gguf", "v0005.gguf"]
    assert add(store) == 6


def test_neither_the_pinned_nor_the_current_version_is_deleted(store: HeadVersions) -> None:
    store.make_current(add(store), "better")
    store.pin(1)
    store.make_current(add(store), "better")
    for _ in range(4):
        add(store)
    assert states(store) == {1: "old", 2: "current", 6: "candidate"}
    assert store.read()[0].used == 1
    store.pin(None)
    assert store.read()[0].used == 2


def test_versions_rolled_back_are_deleted_first(store: HeadVersions) -> None:
    store.make_current(add(store), "better")
    store.make_current(add(store), "better")
    store.refuse(add(store), "worse")
    add(store)
    assert states(store) == {1: "old", 2: "current", 4: "candidate"}


def test_the_base_head_can_be_pinned(store: HeadVersions) -> None:
    store.make_current(add(store), "better")
    store.pin(BASE)
    assert (store.read()[0].used, store.read()[0].current) == (BASE, 1)


@pytest.mark.parametrize("number", [2, 9])
def test_pinning_a_version_that_is_not_on_disk_is_an_error(store: HeadVersions, number: int) -> None:
    add(store), add(store)
    store.path(2).unlink()
    with pytest.raises(UsageError):
        store.pin(number)
    assert store.read()[0].pinned is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 99, "versions": []}',
        b'{"format": 1}',
        b'{"format": 1, "last_number": 1, "versions": [{"number": 1}]}',
        b'{"format": 1, "last_number": 0, "versions": [], "pinned": 4}',
        b"\xff\xfe",
    ],
)
def test_a_damaged_record_is_one_note_and_counts_as_none(store: HeadVersions, damage: bytes) -> None:
    store.make_current(add(store), "better")
    (store.folder / RECORDS).write_bytes(damage)
    known, note = store.read()
    assert (known.used, known.versions) == (BASE, ())
    assert "cannot be read" in note and RECORDS in note
    assert add(store) == 2  # the file of version 1 may still be in use


@pytest.mark.parametrize("change", [{"number": 0}, {"number": True}, {"made_at": "today"}, {"state": "best"}])
def test_a_record_with_a_wrong_field_is_refused(store: HeadVersions, change: dict[str, object]) -> None:
    add(store)
    content = json.loads((store.folder / RECORDS).read_text())
    assert read_versions(json.dumps(content)) == store.read()[0]
    content["versions"][0] |= change
    with pytest.raises(ValueError):
        read_versions(json.dumps(content))


def test_records_come_back_as_they_were_written(store: HeadVersions, tmp_path: Path) -> None:
    store.make_current(add(store), "better")
    (tmp_path / "t.gguf").write_bytes(b"t")
    store.name(target=tmp_path / "t.gguf", target_label="Qwen3 8B", base=tmp_path / "h.gguf", base_label="its head")
    known, _ = store.read()
    assert (known.target, known.base_path) == ("Qwen3 8B", str(tmp_path / "h.gguf"))
    assert known.target_key == fingerprint(tmp_path / "t.gguf")
    assert read_versions(write_versions(known)) == known


def test_another_second_part_of_a_split_target_has_versions_of_its_own(tmp_path: Path) -> None:
    base, parts = tmp_path / "head.gguf", [tmp_path / f"big-0000{number}-of-00002.gguf" for number in (1, 2)]
    for path in (base, *parts):
        path.write_bytes(b"weights")
    before = find_versions(parts[0], base).folder
    assert find_versions(parts[0], base).folder == before
    parts[1].write_bytes(b"trained on")
    assert find_versions(parts[0], base).folder != before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("call", ["flush_and_rename", "write_atomically"])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_kill_while_a_candidate_is_added_leaves_the_state_before_or_after(
    store: HeadVersions, monkeypatch: pytest.MonkeyPatch, call: str, is_before: bool
) -> None:
    store.make_current(add(store), "better")
    real = getattr(versions, call)

    def killed(*arguments: object) -> None:
        if not is_before:
            real(*arguments)
        raise Killed

    monkeypatch.setattr(versions, call, killed)
    with pytest.raises(Killed):
        add(store, b"second")
    monkeypatch.undo()
    known, note = store.read()
    assert (known.used, note) == (1, "")
    is_added = call == "write_atomically" and not is_before
    assert [each.number for each in known.versions] == ([1, 2] if is_added else [1])
    number = add(store, b"third")
    assert store.path(number).read_bytes() == b"third"
    assert files(store) == sorted(each.file_name for each in store.read()[0].versions)


def test_candidates_of_processes_that_ended_are_deleted(store: HeadVersions) -> None:
    add(store)
    abandoned, own = store.folder / "candidate-1-0.gguf", store.scratch_path()
    other = store.folder / "notes.gguf"
    for path in (abandoned, own, other):
        path.write_bytes(b"x")
    store.make_current(1, "better")
    assert files(store) == sorted([own.name, other.name, "v0001.gguf"])
    assert str(os.getpid()) in own.name


def test_the_folder_depends_on_the_contents_of_both_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions.locations, "learned_dir", lambda: tmp_path / "learned")
    paths = [tmp_path / name for name in ("target", "copy", "head", "other")]
    for path, content in zip(paths, [b"t", b"t", b"h", b"o"], strict=True):
        path.write_bytes(content)
    target, copy, head, other = paths
    folder = find_versions(target, head).folder
    assert folder == find_versions(copy, head).folder
    assert folder != find_versions(target, other).folder != find_versions(other, head).folder
    assert list_learned_heads() == []
    add(find_versions(target, head))
    assert [each.folder for each in list_learned_heads()] == [folder]


def test_states_are_words_that_people_read() -> None:
    assert [str(state) for state in VersionState] == ["candidate", "current", "old", "rolled back"]


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeadVersions:
    """The versions of a head that are known by paths relative to the folder of both files."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    for name in ("t.gguf", "h.gguf"):
        Path(name).write_text(name)
    found = find_versions(Path("t.gguf"), Path("h.gguf"))
    found.name(target=Path("t.gguf"), target_label="", base=Path("h.gguf"), base_label="")
    return found


def test_paths_are_known_in_every_folder(named: HeadVersions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = named.read()[0]
    assert (known.target_path, known.base_path) == tuple(
        str(tmp_path / "models" / name) for name in ("t.gguf", "h.gguf")
    )
    written = (named.folder / RECORDS).stat().st_mtime_ns
    named.note_paths(Path("t.gguf"), Path("h.gguf"))
    assert (named.folder / RECORDS).stat().st_mtime_ns == written
    monkeypatch.chdir(tmp_path)
    assert named.find_orphan_reason() == ""
    Path("models/t.gguf").rename("moved.gguf")
    named.note_paths(Path("moved.gguf"), Path("models/h.gguf"))
    assert named.read()[0].target_path == str(tmp_path / "moved.gguf")


def test_relative_paths_of_an_earlier_version_prove_nothing(named: HeadVersions, tmp_path: Path) -> None:
    for name in ("target_path", "base_path"):
        known = json.loads((named.folder / RECORDS).read_text())
        (named.folder / RECORDS).write_text(json.dumps(known | {name: "elsewhere.gguf"}))
        assert named.find_orphan_reason() == ""


def test_a_target_that_is_found_elsewhere_was_moved_perhaps_with_its_head(named: HeadVersions, tmp_path: Path) -> None:
    for name in ("t.gguf", "h.gguf"):
        Path(name).rename(tmp_path / name)
    assert named.find_orphan_reason() == f"{tmp_path / 'models' / 't.gguf'} is not there any more"
    assert named.find_orphan_reason({"of another model"}) != ""
    key = named.read()[0].target_key
    assert named.find_orphan_reason({key}) == ""
    Path("t.gguf").write_text("another one in its place")
    assert named.find_orphan_reason().endswith("t.gguf has changed")
    assert named.find_orphan_reason({key}) == ""


@pytest.mark.parametrize("part", ["t.gguf", "h.gguf"])
@pytest.mark.parametrize("where", ["stat", "open"])
def test_a_file_that_cannot_be_read_proves_nothing(
    named: HeadVersions, monkeypatch: pytest.MonkeyPatch, part: str, where: str
) -> None:
    call = getattr(Path, where)

    def refuse(path: Path, *given: object, **named_too: object) -> object:
        if path.name == part:
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *given, **named_too)

    monkeypatch.setattr(Path, where, refuse)
    assert named.find_orphan_reason() == ""


def test_a_disk_that_is_not_mounted_proves_nothing(named: HeadVersions, tmp_path: Path) -> None:
    (tmp_path / "models").rename(tmp_path / "unmounted")
    assert named.find_orphan_reason() == ""


def test_a_split_model_without_all_its_parts_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    base = tmp_path / "h.gguf"
    for path in (*parts, base):
        path.write_text(path.name)
    found = find_versions(parts[0], base)
    found.name(target=parts[0], target_label="", base=base, base_label="")
    parts[1].unlink()
    assert found.find_orphan_reason() == ""
    parts[1].write_text("another part")
    assert found.find_orphan_reason() == f"{parts[0]} has changed"
