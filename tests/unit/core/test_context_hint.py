"""The hint of a prompt that is too long: a --ctx with which it would fit, and none beyond what the model knows."""

from __future__ import annotations

import pytest

from eaglelocal.core.run_options import suggest_ctx, suggest_smaller_ctx


@pytest.mark.parametrize(
    ("num_tokens", "trained", "hint"),
    [
        (5000, 0, "--ctx 6144"),  # with 1024 tokens for the answer, in steps of 256
        (5000, 8192, "--ctx 6144"),
        (8000, 8192, "--ctx 8192"),
        (8192, 8192, "use a shorter prompt: the model was trained for 8192 tokens"),
    ],
)
def test_the_number_has_room_for_an_answer(num_tokens: int, trained: int, hint: str) -> None:
    assert suggest_ctx(num_tokens, trained_ctx=trained) == hint


def test_a_text_without_an_answer_takes_its_own_length() -> None:
    assert suggest_ctx(8192, trained_ctx=8192, answer_tokens=0) == "--ctx 8192"
    assert suggest_ctx(600, answer_tokens=0) == "--ctx 768"


def test_a_length_that_is_not_known_asks_for_all_that_the_model_has() -> None:
    assert suggest_ctx(5000, trained_ctx=8192, is_lower_bound=True) == "--ctx 8192, or a shorter prompt"
    assert suggest_ctx(9000, trained_ctx=8192, is_lower_bound=True).startswith("use a shorter prompt")


@pytest.mark.parametrize(
    ("n_ctx", "num_slots", "hint"),
    [
        (8192, 4, "--ctx 4096 or --parallel 2"),
        (8192, 1, "--ctx 4096"),
        (1300, 1, "--ctx 512"),
        (300, 1, "--ctx 150"),
        (1, 3, "--parallel 1"),
        (1, 1, ""),
    ],
)
def test_little_memory_asks_for_half(n_ctx: int, num_slots: int, hint: str) -> None:
    assert suggest_smaller_ctx(n_ctx, num_slots) == hint
