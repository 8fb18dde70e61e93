"""Whether a draft fits its target, asked once for the hub and once for the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.hybrid_model import write_hybrid
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.pair import DraftInfo, branch_problem, head_obstacle, read_draft, read_model
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.shape import shape_of

SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)
HEAD = HeadShape(width=64, n_ff=64)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf", SHAPE)


def asked(draft: Path, target: Path, kind: str | None = None) -> DraftInfo:
    beside = read_header(target)
    return read_draft(read_header(draft), beside=beside, target=ModelInfo.from_header(beside), kind=kind)


@pytest.mark.parametrize("kind", [None, "eagle3"])
def test_a_head_is_told_by_its_file(target: Path, tmp_path: Path, kind: str | None) -> None:
    assert isinstance(asked(write_head(tmp_path / "head.gguf", HEAD, SHAPE), target, kind), EagleInfo)


@pytest.mark.parametrize("kind", [None, "draft_model"])
def test_a_draft_model_with_the_same_tokens(target: Path, tmp_path: Path, kind: str | None) -> None:
    small = write_target(tmp_path / "small.gguf", replace(SHAPE, n_layer=2))
    assert isinstance(asked(small, target, kind), ModelInfo)


def test_a_file_of_another_kind_than_was_said(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf", HEAD, SHAPE)
    for draft, kind, says in (
        (head, "draft_model", "is an eagle3 draft head"),
        (target, "eagle3", "not an eagle3 head"),
    ):
        with pytest.raises(ModelFileError, match=says):
            asked(draft, target, kind)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [(b"w17", b"z17", "their 300 tokens differ from token 273 on"), (b"w42", b"W42", "differ from token 298 on")],
)
def test_the_first_token_that_differs_is_named(target: Path, tmp_path: Path, old: bytes, new: bytes, says: str) -> None:
    raw = target.read_bytes()
    assert raw.count(old) == 1
    other = tmp_path / "other.gguf"
    other.write_bytes(raw.replace(old, new))
    with pytest.raises(IncompatibleError, match=says):
        asked(other, target)


def test_what_stands_in_the_way_of_any_head(tmp_path: Path) -> None:
    described = {
        arch: ModelInfo.from_header(read_header(write_target(tmp_path / f"{arch}.gguf", replace(SHAPE, arch=arch))))
        for arch in ("llama", "qwen2", "lfm2")
    }
    assert head_obstacle(described["llama"]) == ""
    assert "no layer inputs for the architecture qwen2" in head_obstacle(described["qwen2"])
    assert "lfm2 keeps recurrent state" in head_obstacle(described["lfm2"])


def test_what_stands_in_the_way_of_trees(tmp_path: Path) -> None:
    plain = shape_of(read_header(write_target(tmp_path / "llama.gguf", SHAPE)))
    hybrid = shape_of(read_header(write_hybrid(tmp_path / "lfm2.gguf")))
    assert branch_problem(plain) == ""
    assert "sliding window" in branch_problem(replace(plain, windows=(128, *plain.windows[1:])))
    assert "recurrent state" in branch_problem(hybrid)


def test_a_head_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(EagleLocalError, match="not a model that can answer") as caught:
        read_model(read_header(write_head(tmp_path / "head.gguf", HEAD, SHAPE)))
    assert "--draft" in caught.value.hint
