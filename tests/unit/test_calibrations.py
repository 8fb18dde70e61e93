"""Costs on disk: found again under the same key only, whole or not at all, never too many."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from eaglelocal import calibrations
from eaglelocal.calibrations import MAX_FILE_BYTES, MAX_FILES, Key, load, save
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.targets import demo_sources
from eaglelocal.probe.probe import probe

KEY = Key(
    machine="a card, a processor",
    model="0123",
    weights="Q4_0",
    draft="4567",
    threads=2,
    num_slots=1,
    kv_type="f16",
    flash_attention="auto",
    placement="None, None, layer",
    unified=True,
    library="llama-cpp-python 0.0.0",
)
STATE = {"level": -2.5, "sizes": [[1, 1.0, 0.0, 3]]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(calibrations.locations, "state_dir", lambda: tmp_path / "state")
    return tmp_path / "state" / "calibrations"


def test_what_is_saved_is_found_again(folder: Path) -> None:
    assert load(KEY) is None
    assert save(KEY, STATE)
    assert load(KEY) == STATE
    assert save(KEY, {"level": 1.0})
    assert load(KEY) == {"level": 1.0}
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Key)])
def test_every_part_of_the_key_counts(field: str) -> None:
    save(KEY, STATE)
    value = getattr(KEY, field)
    other = not value if isinstance(value, bool) else value + (1 if isinstance(value, int) else "x")
    assert load(dataclasses.replace(KEY, **{field: other})) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"format": 1}',
        b'{"format": 1, "key": {}, "state": {}}',
        b"[" * 100_000,
        b" " * (MAX_FILE_BYTES + 1) + b"{}",
    ],
)
def test_foreign_content_is_as_good_as_none(folder: Path, content: bytes) -> None:
    save(KEY, STATE)
    path = folder / KEY.file_name
    path.write_bytes(content)
    assert load(KEY) is None
    assert save(KEY, STATE)
    assert load(KEY) == STATE


def test_a_file_under_the_wrong_name_is_not_believed(folder: Path) -> None:
    save(KEY, STATE)
    other = dataclasses.replace(KEY, threads=9)
    (folder / KEY.file_name).rename(folder / other.file_name)
    assert load(other) is None


def test_the_oldest_are_dropped(folder: Path) -> None:
    for number in range(MAX_FILES + 5):
        key = dataclasses.replace(KEY, threads=number)
        save(key, STATE)
        os.utime(folder / key.file_name, (1000 + number, 1000 + number))
    save(KEY, STATE)
    assert len(list(folder.iterdir())) == MAX_FILES
    assert load(KEY) == STATE
    assert load(dataclasses.replace(KEY, threads=0)) is None


def test_a_disk_that_will_not_have_it(folder: Path) -> None:
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder should be")
    assert not save(KEY, STATE)
    assert load(KEY) is None


def test_a_failed_write_leaves_the_old_file(folder: Path) -> None:
    save(KEY, STATE)
    with pytest.raises(TypeError):
        save(KEY, {"not": object()})
    assert load(KEY) == STATE
    assert len(list(folder.iterdir())) == 1


def test_a_key_says_what_a_person_can_read(folder: Path) -> None:
    save(KEY, STATE)
    content = json.loads((folder / KEY.file_name).read_text())
    assert content["key"]["machine"] == "a card, a processor"


def test_the_key_of_the_embedded_model() -> None:
    target, head = map(read_header, demo_sources())
    plan = Plan(target=target.path, target_label="demo")
    key = calibrations.key_of(plan, probe(), target, head, threads=2, unified=True, library="x")
    assert key.weights in ("F32", "BF16", "F16")
    assert key.model != key.draft
    alone = calibrations.key_of(plan, probe(), target, None, threads=2, unified=True, library="x")
    assert alone.draft == plan.draft_kind
    assert alone.file_name != key.file_name
