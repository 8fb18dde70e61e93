"""Which head a run loads: the learned version that is pinned or current, or the base head with a note."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.random_models import HeadShape, write_head, write_target
from doubles.real_engine import TINY

from eaglelocal.catalog.reference import File
from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.gguf import writer
from eaglelocal.hub.draft_resolver import FoundDraft, find_files, note_paths
from eaglelocal.hub.heads.version_records import LearnedFrom
from eaglelocal.hub.heads.versions import RECORDS, HeadVersions, find_versions
from eaglelocal.preparation.decision import resolve

HEAD = HeadShape(width=64, fc_norm=True, norm_output=True)


class Pair:
    """A target, its head, and one learned version of that, which is current."""

    def __init__(self, folder: Path) -> None:
        self.target, self.head = write_target(folder / "target.gguf", TINY), write_head(folder / "h.gguf", HEAD, TINY)
        self.store: HeadVersions = find_versions(self.target, self.head)
        self.store.folder.mkdir(parents=True)
        made = write_head(self.store.scratch_path(), HEAD, TINY)
        self.store.add_candidate(made, made_at=0.0, learned_from=LearnedFrom())
        self.store.make_current(1, "better")

    def options(self, *, learns: bool) -> RunOptions:
        return RunOptions(target=str(self.target), draft=str(self.head), draft_type="file", learns=learns)

    def find(self, *, learns: bool) -> FoundDraft:
        return find_files(File(self.target), self.options(learns=learns)).draft

    def plan(self, *, learns: bool) -> Plan:
        return resolve(self.options(learns=learns), on_progress=lambda fraction, what: None)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    return Pair(tmp_path)


def test_the_current_version_drafts_only_where_the_user_lets_heads_learn(pair: Pair) -> None:
    learned, base = pair.plan(learns=True), pair.plan(learns=False)
    assert (learned.draft, learned.draft_version, learned.draft_base) == (pair.store.path(1), 1, pair.head)
    assert learned.draft_label.split(" + ")[0].endswith(", learned version 1")
    assert (base.draft, base.draft_version, base.draft_base) == (pair.head, 0, None)
    assert learned.base_head == base.base_head == pair.head
    assert learned.draft_kind == base.draft_kind == "eagle3"


def test_a_model_that_was_moved_has_its_versions_which_know_it_once_it_was_loaded_there(pair: Pair) -> None:
    before = pair.target
    pair.store.name(target=before, target_label="a model", base=pair.head, base_label="a head")
    pair.target = before.rename(before.with_name("moved.gguf"))
    assert pair.store.find_orphan_reason() == f"{before} is not there any more"
    plans = [pair.plan(learns=learns) for learns in (True, False)]
    assert plans[0].draft == pair.store.path(1)
    record = (pair.store.folder / RECORDS).read_text()
    for plan in plans:
        (pair.store.folder / RECORDS).write_text(record)
        assert pair.store.find_orphan_reason() == f"{before} is not there any more"  # planning writes nothing
        note_paths(plan)
        assert pair.store.find_orphan_reason() == ""
    assert pair.store.read()[0].target_path == str(pair.target)


def test_a_pinned_version_drafts_anyway(pair: Pair) -> None:
    pair.store.pin(1)
    assert pair.plan(learns=False).draft_version == 1
    pair.store.pin(0)
    assert pair.plan(learns=True).draft_version == 0


@pytest.mark.parametrize("damage", ["missing", "cut short", "for another target"])
def test_a_version_that_cannot_be_used_is_a_note_and_the_base_head_drafts(pair: Pair, damage: str) -> None:
    path = pair.store.path(1)
    if damage == "missing":
        path.unlink()
    elif damage == "cut short":
        path.write_bytes(path.read_bytes()[:100])
    else:
        write_head(path, HeadShape(width=64, taps=(1, 2, 9)), TINY)
    draft = pair.find(learns=True)
    assert (draft.path, draft.version) == (pair.head, 0)
    assert draft.note.startswith("learned version 1 is not used: ")


def test_a_damaged_record_is_a_note(pair: Pair) -> None:
    (pair.store.folder / RECORDS).write_text("[]")
    draft = pair.find(learns=True)
    assert (draft.path, draft.version) == (pair.head, 0)
    assert "cannot be read" in draft.note


def test_other_drafts_and_other_heads_are_left_alone(pair: Pair, tmp_path: Path) -> None:
    other = write_head(tmp_path / "other.gguf", HeadShape(width=64, seed=9), TINY)
    for draft in (str(other), "ngram", "none"):
        options = RunOptions(target=str(pair.target), draft=draft, draft_type="file", learns=True)
        assert find_files(File(pair.target), options).draft.version == 0


def test_a_copy_in_fewer_bits_of_a_learned_version_keeps_its_number(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MIN_BYTES", 1)
    options = RunOptions(target=str(pair.target), draft=str(pair.head), draft_type="q8_0", learns=True)
    plan = resolve(options, on_progress=lambda fraction, what: None)
    assert (plan.draft_version, plan.draft_base, plan.draft_origin) == (1, pair.head, pair.store.path(1))
    assert plan.draft not in (pair.head, pair.store.path(1))


def test_a_plan_with_another_head_says_so(pair: Pair) -> None:
    plan = pair.plan(learns=True)
    later = plan.with_head(Path("v0002.gguf"), 2)
    assert (later.draft_version, later.draft_base, later.base_head) == (2, pair.head, pair.head)
    assert "learned version 2" in later.draft_label and "version 1" not in later.draft_label
    base = later.with_head(pair.head, 0)
    assert (base.draft, base.draft_base, base.draft_version) == (pair.head, None, 0)
    assert base.draft_label == pair.plan(learns=False).draft_label
