"""Whether a draft fits its target, asked once for the hub and once for the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.hybrid_model import write_hybrid
from doubles.random_models import HeadShape, TargetShape, write_head, write_target

from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.gguf.draft_pairing import (
    DraftInfo,
    branch_problem,
    draft_warnings,
    head_problem,
    is_same_model,
    read_draft,
    read_model,
)
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header

SHAPE = TargetShape(n_embd=64, n_layer=4, n_ff=64)
HEAD = HeadShape(width=64, n_ff=64)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target.gguf", SHAPE)


def asked(draft: Path, target: Path, kind: str | None = None) -> DraftInfo:
    beside = read_header(target)
    return read_draft(read_header(draft), ModelInfo.from_header(beside), kind=kind)


@pytest.mark.parametrize("kind", [None, "eagle3"])
def test_a_head_is_recognized_by_its_file(target: Path, tmp_path: Path, kind: str | None) -> None:
    assert isinstance(asked(write_head(tmp_path / "head.gguf", HEAD, SHAPE), target, kind), EagleInfo)


@pytest.mark.parametrize("kind", [None, "draft_model"])
def test_a_draft_model_with_the_same_tokens(target: Path, tmp_path: Path, kind: str | None) -> None:
    small = write_target(tmp_path / "small.gguf", replace(SHAPE, n_layer=2))
    assert isinstance(asked(small, target, kind), ModelInfo)


def test_a_file_of_another_kind_than_was_said(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head.gguf", HEAD, SHAPE)
    for draft, kind, says in (
        (head, "draft_model", r"is a draft head \(eagle3\)"),
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
        for arch in ("llama", "qwen2", "lfm2", "jamba", "kimi-k3")
    }
    assert head_problem(described["llama"]) == ""
    assert "no layer inputs for the architecture qwen2" in head_problem(described["qwen2"])
    assert head_problem(described["lfm2"]) == ""
    assert "jamba keeps recurrent state, whose rollback llama.cpp does not support" in head_problem(described["jamba"])
    assert "kimi-k3 keeps recurrent state, whose rollback has not been tested" in head_problem(described["kimi-k3"])


def test_what_stands_in_the_way_of_trees(tmp_path: Path) -> None:
    plain = read_shape(read_header(write_target(tmp_path / "llama.gguf", SHAPE)))
    hybrid = read_shape(read_header(write_hybrid(tmp_path / "lfm2.gguf")))
    assert branch_problem(plain) == ""
    assert "sliding window" in branch_problem(replace(plain, windows=(128, *plain.windows[1:])))
    assert "recurrent state" in branch_problem(hybrid)


def test_a_head_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(EagleLocalError, match="not a model that can answer") as caught:
        read_model(read_header(write_head(tmp_path / "head.gguf", HEAD, SHAPE)))
    assert "--draft" in caught.value.hint


def respelled(path: Path, tokens: list[int], folder: Path) -> Path:
    """The same file with other letters in some tokens w0, w1, ... (of three bytes and more)."""
    raw = path.read_bytes()
    for token in tokens:
        assert raw.count(f"w{token}".encode()) == 1
        raw = raw.replace(f"w{token}".encode(), f"Z{token}".encode())
    changed = folder / "respelled.gguf"
    changed.write_bytes(raw)
    return changed


def test_a_head_for_other_tokens_is_refused(target: Path, tmp_path: Path) -> None:
    head = respelled(write_head(tmp_path / "head.gguf", HEAD, SHAPE), [17, 18, 19, 20], tmp_path)
    with pytest.raises(IncompatibleError, match="4 of 300 tokens differ, from token 273 on"):
        asked(head, target)


def test_a_few_renamed_tokens_are_a_fine_tune(target: Path, tmp_path: Path) -> None:
    head = respelled(write_head(tmp_path / "head.gguf", HEAD, SHAPE), [17, 18], tmp_path)
    assert isinstance(asked(head, target), EagleInfo)
    assert warned(head, target) == ("2 of 300 tokens have another text in the draft",)


def warned(draft: Path, target: Path) -> tuple[str, ...]:
    return draft_warnings(asked(draft, target), ModelInfo.from_header(read_header(target)))


def test_a_head_made_for_this_target_needs_no_word(target: Path, tmp_path: Path) -> None:
    assert warned(write_head(tmp_path / "head.gguf", HEAD, SHAPE), target) == ()


def test_a_head_for_another_name_is_named(target: Path, tmp_path: Path) -> None:
    from doubles.eagle_checkpoints import Kind, random_checkpoint, write_checkpoint
    from doubles.imported_heads import imported

    kind = Kind(width=64, target_width=64, n_ff=64, n_head=1)
    folder = write_checkpoint(tmp_path / "published", random_checkpoint(kind), "SafeAILab")
    head = imported(folder, target, tmp_path / "head.gguf")
    assert warned(head, target) == ()
    renamed = write_target(tmp_path / "renamed.gguf", SHAPE)
    assert warned(head, renamed) == ("the head was made for target and may predict renamed less well",)


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "Llama 3.1 8B Instruct", True),
        ("Qwen/Qwen3-8B", "Qwen3 8B", True),
        ("Qwen/Qwen3-8B", "Qwen3 8B abliterated", False),
        ("Qwen/Qwen3-8B", "Qwen3 4B", False),
        ("Llama-3.1-8B", "Llama-3.3-8B", False),
        ("Hermes 3", "Llama 3", False),
    ],
)
def test_names_of_one_model(name: str, other: str, same: bool) -> None:
    assert is_same_model(name, other) is same
    assert is_same_model(other, name) is same
