"""`show`, `ls`, `plan` and `chat` say the same about a head that was imported, and `import` ends with the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
from doubles.imported_heads import imported
from doubles.random_models import TargetShape, write_target

from eaglelocal.cli import main
from eaglelocal.cli.import_head import make_chat_command
from eaglelocal.core.run_options import RunOptions
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.draft_resolver import find_draft
from eaglelocal.hub.heads.head_store import make_head_path
from eaglelocal.hub.target_resolver import demo_sources, read_target
from eaglelocal.preparation.autoplan import autoplan
from eaglelocal.preparation.decision import make_plan

MACHINES = (None, "cpu-16gb", "rtx-3090")


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return write_target(tmp_path / "target.gguf", TargetShape(n_embd=128, n_layer=4, n_ff=128))


def keep_head(target: Path, folder: Path, name: str = "somebodys-head") -> Path:
    header = read_header(target)
    published = write_checkpoint(folder / name, random_checkpoint(Kind()), "SpecForge")
    return imported(published, target, make_head_path(ModelInfo.from_header(header), name, "bf16"), kind="bf16")


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run([*arguments, "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out.splitlines()[-1]))


def lines(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(arguments) == 0
    return capsys.readouterr().out


def test_show_lists_the_head_that_chat_takes(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "drafts    none known" in lines(capsys, "show", str(target))
    head = keep_head(target, tmp_path)
    shown = lines(capsys, "show", str(target))
    assert "none known" not in shown and head.name in shown and "(eagle3, imported, used by default)" in shown
    (draft,) = report(capsys, "show", str(target))["drafts"]
    assert (draft["reference"], draft["imported"], draft["used_by_default"]) == (str(head), True, True)


def test_show_says_why_no_head_drafts_and_what_does(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windowed = write_target(tmp_path / "windowed.gguf", TargetShape(arch="gemma3"))
    shown = " ".join(lines(capsys, "show", str(windowed)).split())
    assert "drafts no head: llama.cpp gives no layer inputs for the architecture gemma3; --draft ngram drafts" in shown


@pytest.mark.parametrize("machine", MACHINES)
def test_the_command_of_plan_does_not_switch_the_head_off(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], machine: str | None
) -> None:
    keep_head(target, tmp_path)
    label = find_draft("auto", read_target(target)).label
    chosen = report(capsys, "plan", str(target), *(("--machine", machine) if machine else ()))["chosen"]
    assert chosen["draft"] == label and "--draft" not in chosen["commands"]["run"]
    rejected = lines(capsys, "plan", str(target), "--all", *(("--machine", machine) if machine else ()))
    assert f"with {label}" not in rejected.partition("not taken")[2]


def test_plan_and_chat_decide_alike(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keep_head(target, tmp_path)
    chosen = report(capsys, "plan", str(target))["chosen"]
    plan = make_plan(autoplan(RunOptions(target=str(target), draft_type="file")), on_progress=lambda share, what: None)
    assert (chosen["draft"], chosen["ctx"], chosen["kv_type"]) == (plan.draft_label, plan.n_ctx, plan.kv_type)


def test_a_lookup_is_named_only_if_it_was_asked_for(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--draft" not in report(capsys, "plan", str(target))["chosen"]["commands"]["run"]
    assert "--draft ngram" in report(capsys, "plan", str(target), "--draft", "ngram")["chosen"]["commands"]["run"]


def test_ls_says_whose_head_each_is(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = keep_head(target, tmp_path)
    name = ModelInfo.from_header(read_header(target)).name
    listed = lines(capsys, "ls").splitlines()
    assert f"  drafts for {name}" in listed[[head.name in line for line in listed].index(True) :]
    (entry,) = [entry for entry in report(capsys, "ls")["models"] if entry["is_draft"]]
    assert entry["drafts_for"] == [name]


def test_the_command_to_run_next_names_a_head_only_where_another_would_be_taken(target: Path, tmp_path: Path) -> None:
    found = read_target(target)
    head = keep_head(target, tmp_path)
    assert make_chat_command("my model.gguf", found, head) == "eaglelocal chat --target 'my model.gguf'"
    elsewhere = tmp_path / "head.gguf"
    elsewhere.write_bytes(head.read_bytes())
    assert make_chat_command("m.gguf", found, elsewhere) == f"eaglelocal chat --target m.gguf --draft {elsewhere}"


def test_import_ends_with_the_command(target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published = write_checkpoint(tmp_path / "published", random_checkpoint(Kind()), "SpecForge")
    arguments = ("import", str(published), "--target", str(target), "--no-trial")
    assert lines(capsys, *arguments).splitlines()[-1] == f"next     eaglelocal chat --target {target}"
    assert report(capsys, *arguments)["next"] == f"eaglelocal chat --target {target}"


def test_an_imported_head_goes_before_the_embedded_one(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "drafts    its own EAGLE-3.1 head" in lines(capsys, "show", "demo@native")
    header = read_header(demo_sources()[0])
    path = make_head_path(ModelInfo.from_header(header), "mine", "bf16")
    path.parent.mkdir(parents=True)
    path.write_bytes(demo_sources()[1].read_bytes())
    shown = lines(capsys, "show", "demo@native")
    assert path.name in shown and "its own EAGLE-3.1 head" not in shown
