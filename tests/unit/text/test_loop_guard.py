"""Loops are noticed after some hundred tokens of one passage; what differs anywhere is none."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.loop_guard import CHECKED_EVERY, NUM_DATA_TOKENS, NUM_TOKENS, LoopGuard, find_period


def noticed_at(pieces: Iterable[str]) -> int | None:
    guard = LoopGuard()
    return next((n for n, piece in enumerate(pieces, start=1) if guard.push(piece)), None)


PASSAGES = [["🙂"], ["", "", "🙂"], [" ha"], ["\n"], ["I", " am", ".\n"], list("abcdefgh" * 8)]


@pytest.mark.parametrize("passage", PASSAGES)
def test_a_loop_is_noticed(passage: list[str]) -> None:
    before = [f"word{n} " for n in range(77)]
    found = noticed_at([*before, *passage * 2000])
    assert found is not None and found <= len(before) + NUM_TOKENS + CHECKED_EVERY


@pytest.mark.parametrize(
    "pieces",
    [
        [f"{n}. item\n" for n in range(3000)],
        [piece for n in range(300) for piece in ("| ", str(n % 10), " | ", str(n * n % 7), " |\n")],
        [f"row {n}: " + "0 " * 20 for n in range(600)],
        ["0", ", "] * 1500,  # data need more
        ["```", "\n", *["null", ",", "\n"] * 1000],  # and code
        ["-", "-"] * 200 + [""] * 3000,  # tokens without text, as those of a call
        ["na "] * (NUM_TOKENS - 1),
        [letter for n in range(30) for letter in "x" * 99 + str(n)],
    ],
)
def test_honest_repetition_is_no_loop(pieces: list[str]) -> None:
    assert noticed_at(pieces) is None


def test_data_without_end_are_a_loop_later() -> None:
    found = noticed_at(["0", ", "] * 5000)
    assert found is not None and NUM_DATA_TOKENS <= found <= NUM_DATA_TOKENS + 2 * CHECKED_EVERY


def test_a_loop_after_code_is_noticed_as_usual() -> None:
    code = ["``", "`", "\n", "x = 1", "\n", "`", "``", "\n"]
    found = noticed_at([*code, *[" tea"] * 2000])
    assert found is not None and found < 700


def test_a_loop_is_noticed_once() -> None:
    guard = LoopGuard()
    assert sum(guard.push("tea ") for _ in range(5000)) == 1
    assert guard.is_looping


def test_text_after_thoughts_is_judged_by_itself() -> None:
    """The thoughts alone would be too few tokens, and the text continues them letter by letter."""
    guard = LoopGuard()
    assert not any([guard.push("", " tea") for _ in range(300)] + [guard.push(" tea") for _ in range(300)])


@pytest.mark.parametrize("budget", [0, 100, 2000])
def test_thoughts_are_judged_after_their_budget(budget: int) -> None:
    guard = LoopGuard(budget)
    found = next(n for n in range(1, 4000) if guard.push("", " tea"))
    assert budget + NUM_TOKENS <= found <= budget + NUM_TOKENS + 4 * CHECKED_EVERY


@given(st.text(alphabet="ab", min_size=1, max_size=12))
def test_the_period_is_the_shortest(text: str) -> None:
    periods = [n for n in range(1, len(text) + 1) if all(text[i] == text[i - n] for i in range(n, len(text)))]
    assert find_period(text) == periods[0]
