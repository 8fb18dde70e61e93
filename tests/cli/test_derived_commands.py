"""Models made of other models on the command line: planned and shown unwritten, listed, removed, refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doubles.demo_sources import DemoSources

from eaglelocal import locations
from eaglelocal.cli import main
from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.preparation.decision import resolve


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path, _ = DemoSources().write(tmp_path)
    return path


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run([*arguments, "--json"]) == 0
    loaded: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return loaded


def test_it_is_planned_without_being_written(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = f"{target}@8b:q4_k_m"
    chosen = report(capsys, "plan", reference, "--machine", "rtx-3090")["chosen"]
    assert chosen["target"] == "source-target at the cost of an 8 B model (q4_k_m)"
    assert 4.0 < chosen["memory"]["weights_bytes"] / 2**30 < 5.0
    assert chosen["quant"] == "Q4_K_M"
    assert "inflated: it answers as source-target.gguf does" in chosen["reasons"]
    assert chosen["commands"]["pull"] is None
    assert not locations.generated_models_dir().exists()


def test_a_draft_of_fewer_layers_is_planned_as_such(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (f"{target}@1b", "--draft", f"{target}@drop2", "--machine", "rtx-3090")
    chosen = report(capsys, "plan", *arguments)["chosen"]
    assert chosen["draft_kind"] == "draft_model"
    assert "without 2 of its 6 layers" in chosen["draft"]


def test_it_is_shown_listed_and_removed(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reference = f"{target}@100m"
    shown = report(capsys, "show", reference)
    assert (shown["on_disk"], shown["quant"]) == (False, "BF16")
    assert shown["size_bytes"] == pytest.approx(200e6, rel=0.05)
    with pytest.raises(ModelFileError, match="is not on disk"):
        main.run(["rm", reference, "--yes"])
    resolve(RunOptions(target=reference), on_progress=lambda fraction, what: None)
    assert report(capsys, "show", reference)["on_disk"] is True
    (listed,) = [one for one in report(capsys, "ls")["models"] if one["origin"] == "inflated"]
    assert listed["reference"] == f"{target}@100m:bf16" and not listed["is_outdated"]
    assert main.run(["ls"]) == 0
    assert "inflated" in capsys.readouterr().out
    target.unlink()
    assert main.run(["ls"]) == 0
    assert "outdated" in capsys.readouterr().out
    assert main.run(["rm", f"{target}@100M:BF16", "--yes"]) == 0, "its source need not exist"
    assert list(locations.generated_models_dir().glob("*.gguf*")) == []


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ("2b:q9", "cannot quantize to the type 'q9'"),
        ("v2", "cannot make `@v2` of a model"),
        ("drop9", "cannot leave out 9 layers of test guide: it has 6"),
        ("drop2@q4_0", "not of a model that is made itself"),
    ],
)
def test_what_cannot_be_made_is_one_line_with_a_hint(target: Path, recipe: str, message: str) -> None:
    for command in ("show", "plan"):
        with pytest.raises(UsageError) as refused:
            main.run([command, f"{target}@{recipe}"])
        assert message in refused.value.message and "\n" not in refused.value.message and refused.value.hint
