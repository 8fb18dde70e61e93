"""Figures and words of drafting: no gain where nothing was drafted, and the same words everywhere."""

from __future__ import annotations

import pytest

from eaglelocal.core.draft import MEASURING, NOT_REPORTED, SWITCHED_OFF, describe_drafting
from eaglelocal.core.stats import SpeculationCounter, encode_stats


def test_an_answer_without_drafts_has_no_gain() -> None:
    """`--spec off` is a little slower than estimated, which is no gain of 0.93x."""
    counter = SpeculationCounter()
    counter.add(0, 0, 1)
    plain = counter.stats(state="off", reason=SWITCHED_OFF, speedup_estimate=0.93)
    assert (plain.speedup_estimate, encode_stats(plain)["speedup_estimate"]) == (None, None)
    counter.add(3, 2, 3)
    assert counter.stats(state="on", reason="", speedup_estimate=1.4).speedup_estimate == 1.4


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        ("on", "", "drafting"),
        ("on", "it pays again (1.20x)", "drafting"),
        ("asleep", "it would be slower (0.68x)", "drafting paused: it would be slower (0.68x)"),
        ("asleep", MEASURING, "measuring whether drafting pays"),
        ("asleep", "", "drafting paused"),
        ("off", SWITCHED_OFF, "drafting off (your setting)"),
        ("off", "no head is known", "drafting off: no head is known"),
        ("off", NOT_REPORTED, ""),
        ("", "", ""),
        ("something new", "why", ""),
    ],
)
def test_the_words_of_a_state(state: str, reason: str, words: str) -> None:
    assert describe_drafting(state, reason) == words
