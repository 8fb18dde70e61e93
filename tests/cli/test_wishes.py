"""What of the settings is wished for which model."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglelocal.cli.loading import wish_of
from eaglelocal.settings import Settings
from eaglelocal.talk.session import Choice


@pytest.mark.parametrize(
    ("choice", "draft", "n_cpu_moe"),
    [
        (Choice(), "head.gguf", 24),
        (Choice(draft="ngram"), "ngram", 24),
        (Choice(target="other.gguf"), "auto", None),  # it may have other layers, and no experts at all
    ],
)
def test_a_draft_and_experts_named_at_the_start_are_the_first_targets(
    tmp_path: Path, choice: Choice, draft: str, n_cpu_moe: int | None
) -> None:
    given = {"target": "moe.gguf", "draft": "head.gguf", "n_cpu_moe": "24", "gpu_layers": "9"}
    wish = wish_of(Settings.load(given, {}, tmp_path / "config.toml"), choice)
    assert (wish.draft, wish.n_cpu_moe, wish.gpu_layers) == (draft, n_cpu_moe, 9)


@pytest.mark.parametrize(
    ("choice", "named", "wished"),
    [
        (Choice(), "eyes.gguf", "eyes.gguf"),
        (Choice(target="other.gguf"), "eyes.gguf", "auto"),  # another model has other eyes
        (Choice(target="other.gguf"), "none", "none"),
        (Choice(), None, "auto"),
    ],
)
def test_a_projector_named_at_the_start_is_the_first_targets(
    tmp_path: Path, choice: Choice, named: str | None, wished: str
) -> None:
    assert wish_of(Settings.load({"mmproj": named}, {}, tmp_path / "config.toml"), choice).mmproj == wished
