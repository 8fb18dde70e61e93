"""What `python -m guide.build` plans: budgets, row lengths, and where a head without a target ends."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch")

from guide.build import (
    BuildOptions,
    claim_work_folder,
    documents,
    load_trained_target,
    make_stages,
    parse_arguments,
)
from guide.held_out import HeldOutEvaluation
from guide.llama_target import LlamaTarget, TargetShape
from guide.tokenizer import train_tokenizer

from eaglelocal.errors import UsageError

pytestmark = pytest.mark.full


def test_the_last_tenth_at_least_is_trained_at_the_full_context() -> None:
    short, long = make_stages(40_000_000)
    assert long.row_length == TargetShape().max_context == 2048
    assert long.num_steps * long.tokens_per_step >= 0.1 * 40_000_000
    assert abs((short.num_steps + long.num_steps) * 8192 - 40_000_000) < 2 * 8192


def test_more_hours_buy_more_tokens() -> None:
    one, _ = parse_arguments(["--hours", "1", "--work", "w", "--out", "o"])
    three, only = parse_arguments(["--hours", "3", "--only", "head"])
    assert only == "head"
    assert one.out == Path("o")
    tokens = [sum(stage.num_tokens for stage in build.target_stages()) for build in (one, three)]
    assert tokens[1] == pytest.approx(3 * tokens[0], rel=1e-6)


def test_a_work_folder_goes_on_only_as_the_build_that_began_it(tmp_path: Path) -> None:
    build = BuildOptions(tmp_path, tmp_path / "work", 1.0, 1)
    claim_work_folder(build)
    claim_work_folder(BuildOptions(tmp_path, tmp_path / "work", 3.0, 1))  # more hours train on
    with pytest.raises(UsageError, match="another seed"):
        claim_work_folder(BuildOptions(tmp_path, tmp_path / "work", 1.0, 2))
    (tmp_path / "work" / "build.json").write_text('{"seed": 1, "corpus": "of yesterday"}')
    with pytest.raises(UsageError, match="another corpus"):
        claim_work_folder(build)


def test_a_head_needs_a_trained_target(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["some text"], 300)
    with pytest.raises(UsageError, match="no trained target") as caught:
        load_trained_target(BuildOptions(tmp_path, tmp_path, 1.0, 1), tokenizer)
    assert "--only target" in caught.value.hint


def test_documents_end_each_answer_with_the_turns_end_and_are_seeded() -> None:
    first = list(islice(documents(5), 20))
    assert first == list(islice(documents(5), 20))
    assert first != list(islice(documents(6), 20))
    answers = [text for pieces in first for text, is_assistant in pieces if is_assistant]
    assert answers
    assert all(text.endswith("<|im_end|>") for text in answers)


def test_an_examination_distinguishes_every_kind() -> None:
    pieces = [("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", False), ("Hello there<|im_end|>", True)]
    tokenizer = train_tokenizer([text for text, _ in pieces] * 3, 300)
    examination = HeldOutEvaluation.of([("greeting", pieces)] * 4 + [("silence", pieces[:1])], tokenizer)
    assert list(examination.batches) == ["greeting"]
    shape = TargetShape(vocab=tokenizer.num_tokens, width=64, num_layers=1, num_heads=1, num_kv_heads=1, ffn=64)
    assert examination.evaluate_target(LlamaTarget(shape)).startswith("greeting ")
