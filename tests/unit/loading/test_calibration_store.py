"""Stored costs: found only under the same key, written whole or not at all, limited in number."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from eaglelocal.core.own_files import fingerprint
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.loading import calibration_store
from eaglelocal.loading.calibration_store import (
    MAX_FILE_BYTES,
    MAX_FILES,
    Key,
    load,
    make_file_name,
    placement_key,
    save,
)
from eaglelocal.probe.probe import probe

KEY: Key = {
    "machine": "a card, a processor",
    "model": "0123",
    "weights": "Q4_0",
    "draft": "4567",
    "threads": 2,
    "num_slots": 1,
    "kv_type": "f16",
    "flash_attn": "auto",
    "placement": "None, None, layer",
    "is_read": False,
    "unified": True,
    "library": "llama-cpp-python 0.0.0",
}
STATE = {"level": -2.5, "sizes": [[1, 1.0, 0.0, 3]]}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(calibration_store.locations, "state_dir", lambda: tmp_path / "state")
    return tmp_path / "state" / "calibrations"


def test_what_is_saved_is_found_again(folder: Path) -> None:
    assert load(KEY) is None
    assert save(KEY, STATE)
    assert load(KEY) == STATE
    assert save(KEY, {"level": 1.0})
    assert load(KEY) == {"level": 1.0}
    assert [path.suffix for path in folder.iterdir()] == [".json"]


@pytest.mark.parametrize("field", KEY)
def test_every_part_of_the_key_counts(field: str) -> None:
    save(KEY, STATE)
    value = KEY[field]
    other = not value if isinstance(value, bool) else value + 1 if isinstance(value, int) else f"{value}x"
    assert load({**KEY, field: other}) is None


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
    path = folder / make_file_name(KEY)
    path.write_bytes(content)
    assert load(KEY) is None
    assert save(KEY, STATE)
    assert load(KEY) == STATE


def test_a_file_under_the_wrong_name_is_not_believed(folder: Path) -> None:
    save(KEY, STATE)
    other = {**KEY, "threads": 9}
    (folder / make_file_name(KEY)).rename(folder / make_file_name(other))
    assert load(other) is None


def test_the_oldest_are_dropped(folder: Path) -> None:
    for number in range(MAX_FILES + 5):
        key = {**KEY, "threads": number}
        save(key, STATE)
        os.utime(folder / make_file_name(key), (1000 + number, 1000 + number))
    save(KEY, STATE)
    assert len(list(folder.iterdir())) == MAX_FILES
    assert load(KEY) == STATE
    assert load({**KEY, "threads": 0}) is None


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
    content = json.loads((folder / make_file_name(KEY)).read_text())
    assert content["key"]["machine"] == "a card, a processor"


def test_the_key_of_the_embedded_model() -> None:
    target, head = map(read_header, demo_sources())
    plan = Plan(target=target.path, target_label="demo")
    key = calibration_store.make_cost_key(plan, probe(), target, head, threads=2, unified=True, library="x")
    assert key["weights"] in ("F32", "BF16", "F16")
    assert key["model"] != key["draft"]
    alone = calibration_store.make_cost_key(plan, probe(), target, None, threads=2, unified=True, library="x")
    assert alone["draft"] == plan.draft_kind
    assert make_file_name(alone) != make_file_name(key)


def test_acceptance_is_kept_by_what_the_files_hold(tmp_path: Path) -> None:
    """Weights that were trained on are another drafter, under whatever name; a copy is the same."""
    first, copy, other = (tmp_path / name for name in ("a.gguf", "b.gguf", "c.gguf"))
    weights = bytes(range(256)) * 4096
    first.write_bytes(weights)
    copy.write_bytes(weights)
    other.write_bytes(bytes(255 - byte for byte in weights))
    assert fingerprint(first) == fingerprint(copy) != fingerprint(other)
    (tmp_path / "empty.gguf").write_bytes(b"")
    assert fingerprint(tmp_path / "empty.gguf")
    key = {"target": fingerprint(first), "draft": fingerprint(other)}
    assert save(key, {"format": 1})
    assert load(key) == {"format": 1}
    assert load({**key, "draft": fingerprint(first)}) is None
    assert load({**key, "target": fingerprint(other)}) is None


def test_the_acceptance_key_of_a_lookup_names_its_kind() -> None:
    target, head = demo_sources()
    with_head = Plan(target=target, target_label="demo", draft_kind="eagle3", draft=head)
    lookup = Plan(target=target, target_label="demo", draft_kind="ngram")
    assert calibration_store.make_acceptance_key(lookup)["draft"] == "ngram"
    assert calibration_store.make_acceptance_key(lookup) != calibration_store.make_acceptance_key(with_head)


def test_a_plan_with_experts_apart_has_costs_of_its_own() -> None:
    plan = Plan(target=Path("m.gguf"), target_label="m")
    assert placement_key(plan) == calibration_store.USUAL_PLACEMENT
    keys = {placement_key(dataclasses.replace(plan, n_cpu_moe=count)) for count in (0, 3, 4)}
    assert len(keys) == 3
