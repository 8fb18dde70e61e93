"""What `rm` says of learned heads and kept answers, which it leaves."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from doubles.commands import run_command

from eaglelocal import locations
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.hub.heads.version_records import LearnedFrom
from eaglelocal.hub.heads.versions import HeadVersions, find_versions
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.learning.kept_answers import note_target

REPO, NAME = "a/x-GGUF", "x-Q8_0.gguf"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in folders of its own, which this process uses too."""
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}

    return partial(run_command, environ=environ)


def put_in_cache(repo: str = REPO) -> Path:
    folder = locations.hub_cache_dir() / f"models--{repo.replace('/', '--')}"
    model = folder / "snapshots" / ("a" * 40) / NAME
    model.parent.mkdir(parents=True)
    (folder / "blobs").mkdir()
    blob = folder / "blobs" / "b"
    blob.write_bytes(demo_sources()[0].read_bytes())
    model.symlink_to(blob)
    return model


def learn(target: Path) -> HeadVersions:
    base = demo_sources()[1]
    store = find_versions(target, base)
    store.folder.mkdir(parents=True)
    store.name(target=target, target_label="x", base=base, base_label="head")
    made = store.scratch_path()
    made.write_bytes(base.read_bytes())
    store.make_current(store.add_candidate(made, made_at=1e9, learned_from=LearnedFrom()).number, "better")
    answers = locations.learning_dir() / fingerprint_model(target) / "answers" / "owner" / "1.tokens"
    answers.parent.mkdir(parents=True)
    answers.write_bytes(bytes(2000))
    return store


def test_what_a_removed_model_leaves_is_named_with_the_command_that_deletes_it(run: Run) -> None:
    put_in_cache("b/other-GGUF").write_bytes(b"another model")
    store = learn(put_in_cache())
    done = run("rm", f"{REPO}:Q8_0", "--yes")
    assert done.returncode == 0, done.stderr
    assert "what its heads have learned stays, " in done.stderr and "`eaglelocal heads --prune`" in done.stderr
    assert "answers kept to learn from stay, 2.0 kB: `eaglelocal forget`" in done.stderr
    listed = run("heads").stdout
    assert "drafts for nothing: " in listed and "is not there any more" in listed
    assert run("heads", "--prune", "--yes").returncode == 0
    assert not store.folder.exists()


def test_answers_whose_model_is_noted_are_named_with_a_command_of_their_own(run: Run) -> None:
    model = put_in_cache()
    learn(model)
    folder = locations.learning_dir() / fingerprint_model(model)
    note_target(folder, model, 1e6)
    done = run("rm", f"{REPO}:Q8_0", "--yes")
    assert f": `eaglelocal forget {model}` deletes them" in " ".join(done.stderr.split())
    assert run("forget", str(model), "--yes").returncode == 0
    assert not folder.exists()


def test_removal_without_leftovers_reports_none(run: Run) -> None:
    put_in_cache()
    done = run("rm", f"{REPO}:Q8_0", "--yes")
    assert done.returncode == 0 and "stay" not in done.stderr


def test_a_model_that_is_elsewhere_too_keeps_its_heads(run: Run) -> None:
    model = put_in_cache()
    learn(model)
    put_in_cache("b/copy-GGUF")
    done = run("rm", f"{REPO}:Q8_0", "--yes")
    assert done.returncode == 0 and "stay" not in done.stderr


def test_a_cache_that_may_not_be_mounted_proves_nothing(run: Run) -> None:
    store = learn(put_in_cache())
    assert store.find_doubt() == ""
    locations.hub_cache_dir().rename(locations.hub_cache_dir().with_name("elsewhere"))
    locations.hub_cache_dir().mkdir()
    assert store.find_orphan_reason() == "" and store.find_doubt().endswith(f"{NAME} is missing")
    assert "unknown whether it drafts" in run("heads").stdout
