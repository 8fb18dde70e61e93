"""`eaglelocal heads` as people run it: the list, JSON, pins, and what it says when there is nothing."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from doubles.commands import run_command

from eaglelocal import locations
from eaglelocal.cli import heads as heads_command
from eaglelocal.cli.heads import KnownHead, head_lines, learned_text
from eaglelocal.cli.load_model import LoadingEngine
from eaglelocal.cli.output import standard_output
from eaglelocal.client import engine_client
from eaglelocal.core.plan import Plan
from eaglelocal.hub.heads.version_records import HeldBackFigures, LearnedFrom, VersionList
from eaglelocal.hub.heads.versions import HeadVersions, find_versions
from eaglelocal.hub.target_resolver import demo_sources

pytestmark = pytest.mark.full

FROM = LearnedFrom(num_answers=12, num_tokens=9000, num_owners=2, kinds={"code": 2000, "prose": 7000})
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command in folders of its own, which this process uses too."""
    for kind in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(tmp_path / kind.lower()))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EAGLELOCAL_")}

    return partial(run_command, "heads", environ=environ)


def learn(target: Path, base: Path, *, num_versions: int = 2, label: str = "the demo") -> HeadVersions:
    store = find_versions(target, base)
    store.folder.mkdir(parents=True, exist_ok=True)
    store.name(target=target, target_label=label, base=base, base_label=base.stem)
    for n in range(num_versions):
        made = store.scratch_path()
        made.write_bytes(base.read_bytes())
        figures = HeldBackFigures(acceptance=0.6 + n / 10, predecessor=0.5 + n / 10, num_tokens=400)
        version = store.add_candidate(made, made_at=1e9, learned_from=FROM, figures=figures)
        store.make_current(version.number, "better by 0.1")
    return store


def test_nothing_learned(run: Run) -> None:
    done = run()
    assert (done.returncode, done.stdout) == (0, "")
    assert "eaglelocal serve --learn" in done.stderr
    assert json.loads(run("--json").stdout) == {"heads": []}
    pinned = run("--pin", "1")
    assert pinned.returncode == 2 and "no head has learned anything here" in pinned.stderr


def test_versions_are_listed_with_what_they_learned_from(run: Run) -> None:
    store = learn(*demo_sources())
    lines = run().stdout.splitlines()
    assert lines[0] == "the demo, guide-head"
    assert lines[1].startswith("* version 2  current, made ")
    assert "70.0% of its first tokens accepted, 60.0% before (400 tokens" in lines[2]
    assert lines[3].strip() == "learned from 12 answers of 2 keys, 9000 tokens: prose 78%, code 22%"
    assert lines[4].strip() == "better by 0.1"
    assert lines[5].startswith("  version 1  old, made ")
    (head,) = json.loads(run("demo@native", "--json").stdout)["heads"]
    assert (head["used"], head["current"], head["pinned"], head["folder"]) == (2, 2, None, str(store.folder))
    assert [version["number"] for version in head["versions"]] == [1, 2]
    assert head["versions"][0]["kinds"] == {"code": 2000, "prose": 7000}


def test_a_version_is_pinned_and_unpinned(run: Run) -> None:
    store = learn(*demo_sources())
    done = run("demo@native", "--pin", "1")
    assert "* version 1  old, made " in done.stdout and ", pinned" in done.stdout
    assert "version 1 drafts from the next start on" in done.stderr
    assert store.read()[0].used == 1
    run("--pin", "0")
    assert store.read()[0].used == 0
    assert "the current version drafts from" in run("--unpin").stderr
    assert (store.read()[0].used, store.read()[0].pinned) == (2, None)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--pin", "7"), "there is no learned version 7: 1, 2 on disk"),
        (("--pin", "1", "--unpin"), "contradict"),
        (("--prune", "--unpin"), "contradict"),
        (("--prune", "--json"), "contradict"),
        (("--yes",), "--yes confirms --prune"),
        (("--pin", "-1"), "greater than or equal to 0"),
        (("no-such-model",), "no-such-model"),
    ],
)
def test_usage_errors(run: Run, arguments: tuple[str, ...], complaint: str) -> None:
    store = learn(*demo_sources())
    done = run(*arguments)
    assert done.returncode == 2 and complaint in done.stderr
    assert store.read()[0].pinned is None


def test_a_pin_needs_a_target_where_several_heads_have_learned(run: Run, tmp_path: Path) -> None:
    target, head = demo_sources()
    learn(target, head)
    other = tmp_path / "other.gguf"
    other.write_bytes(b"another model")
    store = learn(other, head, label="another one")
    done = run("--pin", "1")
    assert done.returncode == 2 and "several heads have learned, for" in done.stderr and "another one" in done.stderr
    assert run("demo@native", "--pin", "1").returncode == 0
    assert store.read()[0].pinned is None
    assert len(json.loads(run("--json").stdout)["heads"]) == 2


@pytest.mark.parametrize("part", ["target", "base"])
@pytest.mark.parametrize("how", ["has changed", "is not there any more"])
def test_heads_of_a_changed_or_lost_file_are_listed_and_deleted(run: Run, tmp_path: Path, part: str, how: str) -> None:
    kept = learn(*demo_sources())
    files = {name: tmp_path / f"{name}.gguf" for name in ("target", "base")}
    for name, path in files.items():
        path.write_bytes(f"the first {name}".encode())
    store = learn(files["target"], files["base"], label="another one")
    work = locations.learning_dir() / store.read()[0].target_key / store.folder.name
    work.mkdir(parents=True)
    assert "draft for nothing" not in run().stderr
    files[part].unlink()
    if how == "has changed":
        files[part].write_bytes(b"another file")
    listed = run()
    lines = listed.stdout.splitlines()
    assert f"  drafts for nothing: {files[part]} {how}" in lines
    assert len([line for line in lines if line.startswith("*")]) == 1
    assert "eaglelocal heads --prune" in listed.stderr
    reasons = [head["orphan"] for head in json.loads(run("--json").stdout)["heads"]]
    assert sorted(map(bool, reasons)) == [False, True]
    assert run("--pin", "1").returncode == 0 and kept.read()[0].pinned == 1  # the only head that drafts
    refused = run("--prune")
    assert "--yes is needed" in refused.stderr and str(files[part]) in refused.stderr and store.folder.exists()
    assert run("--prune", "--yes").returncode == 0
    assert not store.folder.exists() and not work.exists() and kept.path(2).is_file()
    assert "all learned heads have their model" in run("--prune", "--yes").stderr


def make_lost(folder: Path) -> tuple[HeadVersions, Path]:
    """Return versions whose model was moved after learning, and where it is now."""
    before, now = folder / "before.gguf", folder / "models" / "now.gguf"
    before.write_bytes(demo_sources()[0].read_bytes())
    store = learn(before, demo_sources()[1], label="another one")
    now.parent.mkdir()
    before.rename(now)
    return store, now


def test_the_versions_of_a_model_that_was_moved_are_not_deleted(run: Run, tmp_path: Path) -> None:
    """By its new path, or by a folder of models; a model elsewhere is found when it is loaded, which is said before."""
    store, now = make_lost(tmp_path)
    listed = run(str(now), "--prune", "--yes")
    assert "all learned heads have their model" in listed.stderr
    (tmp_path / "config" / "eaglelocal").mkdir(parents=True)
    config = tmp_path / "config" / "eaglelocal" / "config.toml"
    config.write_text(f"models = [{json.dumps(str(now.parent))}]\n")
    assert "all learned heads have their model" in run("--prune", "--yes").stderr
    assert store.path(2).is_file()
    config.unlink()
    assert "find it again once it is loaded" in run("--prune").stderr


def test_what_is_found_again_before_the_answer_is_not_deleted(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store, now = make_lost(tmp_path)
    monkeypatch.setattr(heads_command, "confirm", lambda *asked, **how: store.note_paths(now, demo_sources()[1]))
    heads_command.delete_orphans([store], frozenset(), yes=False)
    assert store.path(2).is_file() and store.find_orphan_reason() == ""
    assert "nothing was deleted" in capsys.readouterr().err


class ReadyClient:
    """An engine's client that is ready at once."""

    def __init__(self, plan: Plan, **given: object) -> None: ...

    def begin(self) -> None: ...

    def start(self) -> None: ...


def test_a_model_that_is_loaded_is_known_where_it_is(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, now = make_lost(tmp_path)
    monkeypatch.setattr(engine_client, "EngineClient", ReadyClient)
    base = demo_sources()[1]
    plan = Plan(target=now, target_label="moved", draft=base, draft_kind="eagle3")
    assert store.find_orphan_reason()
    LoadingEngine(plan).wait(standard_output())
    assert store.find_orphan_reason() == "" and store.read()[0].target_path == str(now)


def test_a_damaged_record_is_one_line(run: Run) -> None:
    learn(*demo_sources())
    (records,) = locations.learned_dir().glob("*/versions.json")
    records.write_text("{")
    lines = run().stdout.splitlines()
    assert len([line for line in lines if "cannot be read" in line]) == 1
    assert lines[1].startswith("  unknown whether it drafts: the record of learned versions cannot be read")
    assert not [line for line in lines if line.startswith("*")]


def test_a_head_with_unknown_files_is_not_listed_as_drafting(run: Run) -> None:
    store = learn(*demo_sources())
    records = store.folder / "versions.json"
    records.write_text(json.dumps(json.loads(records.read_text()) | {"target_path": "models/t.gguf"}))
    listed = run()
    assert "  unknown whether it drafts: where its files are was not kept" in listed.stdout
    assert not [line for line in listed.stdout.splitlines() if line.startswith("*")]
    (head,) = json.loads(run("--json").stdout)["heads"]
    assert head["orphan"] == "" and "was not kept" in head["unknown"]


@pytest.mark.parametrize(("part", "problem"), [("target", "is missing"), ("base", "cannot be read (")])
def test_a_head_whose_file_cannot_be_read_says_so(run: Run, tmp_path: Path, part: str, problem: str) -> None:
    files = {name: tmp_path / f"{name}.gguf" for name in ("target", "base")}
    for name, path in files.items():
        path.write_bytes(name.encode())
    store = learn(files["target"], files["base"])
    files[part].unlink()
    files[part].mkdir()  # a file without permission is readable for root
    assert store.find_doubt().startswith(f"{files[part]} {problem}")
    assert store.find_orphan_reason() == ""


@pytest.mark.parametrize(
    ("learned", "text"),
    [
        (LearnedFrom(), "learned from 0 answers, 0 tokens"),
        (
            LearnedFrom(num_answers=1, num_tokens=5, num_owners=1, kinds={"json": 5}),
            "learned from 1 answer, 5 tokens: json 100%",
        ),
    ],
)
def test_what_a_version_learned_from(learned: LearnedFrom, text: str) -> None:
    assert learned_text(learned) == text


def test_a_head_without_names_is_listed_too() -> None:
    lines = list(head_lines(KnownHead(Path("folder"), VersionList()), 0.0))
    assert lines[0] == "an unknown model, a head"
    assert lines[1].startswith("* version 0")
