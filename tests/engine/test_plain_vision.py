"""The vision doubles: llama.cpp and libmtmd accept each pair of files, and the answers depend on the picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles.plain_vision import MARKER, Answer, picture, reference_answer
from doubles.vision_models import KINDS, asked, write_vision_pair

RED, BLUE = (255, 0, 0), (0, 0, 255)
ROWS = {"idefics3": 20, "gemma3": 16, "gemma4": 77, "gemma4e": 77}  # of a picture 48 by 32; else 24
# tokens around it; idefics3 writes some around each of its five tiles
MARKS = {"phi4": 0, "idefics3": 13}
MROPE = {"qwen2vl", "qwen3vl", "qwen35", "qwen35mtp"}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    folder = tmp_path_factory.mktemp("vision")
    return {kind: write_vision_pair(folder, kind) for kind in KINDS}


def answer(pair: tuple[Path, Path], *pictures: bytes, n: int = 16) -> Answer:
    return reference_answer(*pair, asked(f"what is {MARKER * len(pictures)} this?"), pictures, n)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_follow_the_picture(pairs: dict[str, tuple[Path, Path]], kind: str) -> None:
    answers = [answer(pairs[kind], *shown) for shown in ([], [picture(RED)], [picture(BLUE)], [picture(1)])]
    assert len({tuple(each.tokens) for each in answers}) == len(answers)
    assert all(np.isfinite(each.logits).all() and len(set(each.tokens)) > 3 for each in answers[1:])
    again = answer(pairs[kind], picture(RED))
    assert again.tokens == answers[1].tokens
    np.testing.assert_array_equal(again.logits, answers[1].logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_takes_its_rows_and_positions(pairs: dict[str, tuple[Path, Path]], kind: str) -> None:
    blind, seeing = answer(pairs[kind], n=1), answer(pairs[kind], picture(RED), n=1)
    rows, marks = ROWS.get(kind, 24), MARKS.get(kind, 2)
    assert seeing.num_tokens - blind.num_tokens == rows + marks
    positions = 6 if kind in MROPE else rows  # of M-RoPE: the longer side of 6 by 4
    assert seeing.num_positions - blind.num_positions == positions + marks


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_pictures_matters(pairs: dict[str, tuple[Path, Path]], kind: str) -> None:
    red, noise = picture(RED), picture(1, 64, 40)
    assert answer(pairs[kind], red, noise).tokens != answer(pairs[kind], noise, red).tokens


def test_another_seed_makes_another_pair(tmp_path: Path, pairs: dict[str, tuple[Path, Path]]) -> None:
    other = write_vision_pair(tmp_path, "phi4", seed=1)
    assert answer(other, picture(RED)).tokens != answer(pairs["phi4"], picture(RED)).tokens
