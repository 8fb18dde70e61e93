"""The models that a server plans: those that are named, and the usable ones in folders."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from doubles.empty_home import enter_empty_home
from doubles.gguf_bytes import STRING, GgufBytes

from eaglelocal import locations
from eaglelocal.cli.output import Output
from eaglelocal.cli.serve import list_requested, plan_all
from eaglelocal.errors import EagleLocalError
from eaglelocal.settings import Settings

GUIDE = "guide-target.gguf"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    models = enter_empty_home(monkeypatch, tmp_path) / "models"
    models.mkdir()
    (models / "guide.gguf").symlink_to(locations.profiles_dir() / "demo" / GUIDE)
    (models / "picture.gguf").write_bytes(GgufBytes().put("general.architecture", STRING, "flux").build())
    return models


def plan(models: list[str]) -> tuple[set[str], str]:
    """Return the names of the planned models, and what was said about them."""
    said = io.StringIO()
    output = Output(stdout=io.StringIO(), stderr=said, environ={})
    settings = Settings.load({"target": "demo@native", "models": models}, {}, Path("none"))
    return set(plan_all(settings, output)), said.getvalue()


def test_a_file_in_a_folder_that_cannot_run_is_left_out(folder: Path) -> None:
    names, said = plan([str(folder)])
    assert names == {"demo@native", "guide"}
    assert "picture is left out: " in said


def test_without_a_target_the_models_of_other_programs_are_offered_too(folder: Path) -> None:
    studio = folder.parent / ".lmstudio" / "models" / "a" / "b-GGUF"
    studio.mkdir(parents=True)
    (studio / "other.gguf").symlink_to(locations.profiles_dir() / "demo" / "guide-head.gguf")
    (studio / "small.gguf").write_bytes((locations.profiles_dir() / "demo" / GUIDE).read_bytes())
    bare = Settings.load({}, {}, Path("none"))
    assert list_requested(bare) == ["small"], "a draft head does not answer"
    named = Settings.load({"target": "demo"}, {}, Path("none"))
    assert list_requested(named) == []
    with_folder = Settings.load({"models": ["demo@1b", str(folder)]}, {}, Path("none"))
    assert list_requested(with_folder)[:2] == ["demo@1b", "guide"] and "small" in list_requested(with_folder)


def test_a_model_that_is_named_must_run(folder: Path) -> None:
    with pytest.raises(EagleLocalError, match="flux"):
        plan([str(folder / "picture.gguf")])
