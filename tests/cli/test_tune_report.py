"""What measured costs imply for the draft length, and how the report shows it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import pytest
from doubles.simulated_machine import BF16, Q8_0
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.cli.tune import Implications, find_cliffs, report_lines, report_object
from eaglelocal.core.events import EngineInfo
from eaglelocal.core.stats import ContextCost, MeasuredCosts, SizeCost

INFO = EngineInfo("embedded guide, 1 B bf16", "its own head", "", 2048, 1, 4096, True, 2, 0, 1.0, "llama-cpp-python")


def costs_of(ratios: Sequence[float], *, draft_s: float = 0.003, one_s: float = 0.06) -> MeasuredCosts:
    return MeasuredCosts(
        decodes=tuple(SizeCost(rows, one_s * ratio, 9) for rows, ratio in enumerate(ratios, 1)),
        draft_steps=(("head", SizeCost(1, draft_s, 9)), ("head", SizeCost(4, 2 * draft_s, 9))),
    )


@pytest.mark.parametrize(
    ("draft", "row", "acceptance", "length", "speedup"),
    [
        (0.05, 0.03, 0.3, 1, 1.20),
        (0.05, 0.03, 0.7, 5, 2.10),
        (0.05, 0.03, 0.9, 11, 3.82),
        (0.15, 0.10, 0.5, 1, 1.20),
        (0.1, 0.3, 0.3, 0, 1.0),
        (0.1, 0.3, 0.7, 2, 1.22),
    ],
)
def test_the_published_formula(draft: float, row: float, acceptance: float, length: int, speedup: float) -> None:
    costs = costs_of([1 + row * extra for extra in range(17)], draft_s=draft * 0.06)
    best = Implications.of(costs).best(acceptance)
    assert (best.num_draft_tokens, round(best.speedup, 2)) == (length, speedup)


@pytest.mark.parametrize(("block_size", "max_depth", "length"), [(1, 16, 16), (1, 3, 3), (5, 5, 5), (1, 1, 1)])
def test_no_length_is_deeper_than_the_draft_model_can_draft(block_size: int, max_depth: int, length: int) -> None:
    costs = dataclasses.replace(
        costs_of([1 + 0.01 * extra for extra in range(17)]), block_size=block_size, max_depth=max_depth
    )
    assert Implications.of(costs).best(0.99).num_draft_tokens == length


def test_after_a_cliff_lies_the_best_length() -> None:
    implications = Implications.of(costs_of(Q8_0, draft_s=0.0))
    assert implications.best(0.9).num_draft_tokens > 7
    climbed = max(range(4), key=lambda k: implications.speedup(k, 0.9))
    assert implications.best(0.9).speedup > implications.speedup(climbed, 0.9)


@given(st.lists(st.floats(0.5, 20), min_size=2, max_size=17), st.floats(0, 1))
def test_plain_is_never_beaten_by_less(ratios: list[float], acceptance: float) -> None:
    assert Implications.of(costs_of([1.0, *ratios])).best(acceptance).speedup >= 1.0


def test_where_it_begins_to_pay() -> None:
    assert Implications.of(costs_of([1.0, 1.5], draft_s=0.0)).break_even() == pytest.approx(0.51, abs=0.011)
    assert Implications.of(costs_of([1.0, 2.5])).break_even() is None


def test_cliffs() -> None:
    assert find_cliffs(costs_of(BF16)) == []
    assert find_cliffs(costs_of(Q8_0)) == [2, 4, 5, 13, 14]


def test_noise_is_no_cliff() -> None:
    measured = [1.0, 1.02, 1.23, 0.84, 1.75, 2.04, 1.87, 1.93, 2.11, 2.35, 2.43, 2.32, 2.22, 1.67, 2.42, 2.55, 2.67]
    assert find_cliffs(costs_of(measured)) == [5]  # a decode of 4 rows, and one of 14, met a quiet moment
    spread = dataclasses.replace(costs_of([1.0, 1.1, 1.6, 1.7]), noise=0.05)
    assert find_cliffs(spread) == [3]
    assert find_cliffs(dataclasses.replace(spread, noise=0.9)) == []


def test_further_rows_do_not_count_as_free_on_a_noisy_machine() -> None:
    quiet = costs_of([1.0, 0.9])
    assert "drafting always pays" in "\n".join(report_lines(quiet, INFO, "a processor"))
    noisy = dataclasses.replace(quiet, noise=1.5)
    assert "drafting always pays" not in "\n".join(report_lines(noisy, INFO, "a processor"))


def test_the_report_fits_eighty_columns() -> None:
    noisy = dataclasses.replace(costs_of(Q8_0), noise=1.5)
    lines = report_lines(noisy, dataclasses.replace(INFO, target="a long name " * 9), "a processor " * 9)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "   5    282.00        4.70            +117.60   ████" in text
    assert "draft step   head: 3.00 ms" in text
    assert "for 4 nodes" in text
    assert "drafting pays if more than about" in text
    assert "no long context" in text


def test_drafting_that_cannot_pay_is_reported() -> None:
    text = "\n".join(report_lines(costs_of([1.0, 3.0]), INFO, "a processor"))
    assert "cannot pay here" in text
    assert "none         1.00x" in text


def test_a_missing_drafter_is_reported() -> None:
    costs = MeasuredCosts(decodes=(SizeCost(1, 0.06, 3), SizeCost(2, 0.07, 3)), noise=0.9)
    text = "\n".join(report_lines(costs, INFO, "a processor"))
    assert "none was measured" in text
    assert "is something else running" in text


def test_the_object() -> None:
    costs = MeasuredCosts(decodes=costs_of(BF16).decodes, context=ContextCost(1e-6, 2e-6))
    report = json.loads(json.dumps(report_object(costs, INFO, "a processor")))
    assert report["rows"][4] == {
        "rows": 5,
        "seconds": pytest.approx(0.0762),
        "ratio": pytest.approx(1.27),
        "samples": 9,
    }
    assert [entry["acceptance"] for entry in report["implied"]] == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert report["context_s"] == {"per_cell": 1e-6, "per_row_and_cell": 2e-6}
    assert json.loads(json.dumps(report_object(costs_of(BF16), INFO, "x")))["context_s"] is None
