"""The costs that the scheduler gets: passes, contexts, usual drafts, and expensive prompts."""

from __future__ import annotations

import pytest

from eaglelocal.core.draft import ROOT, Draft
from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.sequence import Sequence
from eaglelocal.engine.step_learning import StepEstimate
from eaglelocal.scheduler.scheduler import Chunk
from eaglelocal.speculation.costs.step_costs import StepCosts


def costs() -> StepCosts:
    """0.9 s a decode and 0.1 s a row."""
    known = StepCosts()
    known.calibrate({rows: [0.9 + 0.1 * rows] * 3 for rows in (1, 2, 4, 8, 16, 32)})
    return known


def draft(length: int) -> Draft:
    return Draft(tuple([1] * length), tuple(range(ROOT, length - 1)), (0.5,) * length)


def chunk(slot: int, count: int) -> Chunk:
    request = Request(id="r", prompt=(1,) * 100, params=SamplingParams())
    return Chunk(Sequence(request, slot, 200), 0, count)


def no_cells(slot: int) -> int:
    return 0


def test_nothing_measured_costs_nothing() -> None:
    assert StepEstimate(StepCosts(), no_cells, is_unified=True).seconds({0: 5}) == 0.0


def test_slots_with_caches_of_their_own_pay_for_each_pass() -> None:
    rows = {0: 1, 1: 1, 2: 7}
    assert StepEstimate(costs(), no_cells, is_unified=True).seconds(rows) == pytest.approx(1.8, rel=0.05)
    assert StepEstimate(costs(), no_cells, is_unified=False).seconds(rows) == pytest.approx(1.2 + 1.5, rel=0.05)


@pytest.mark.parametrize(("is_unified", "cells"), [(True, 3000), (False, (1 * 1000 + 1 * 2000) // 2)])
def test_rows_attend_to_all_cells_of_one_cache_or_to_their_own(is_unified: bool, cells: int) -> None:
    known = costs()
    pacing = StepEstimate(known, lambda slot: 1000 * (slot + 1), is_unified=is_unified)
    assert pacing.seconds({0: 1, 1: 1}) == known.seconds(2, cells)


def test_the_usual_length_of_drafts_is_that_of_quiet_steps() -> None:
    pacing = StepEstimate(costs(), no_cells, is_unified=True)
    for _ in range(40):
        pacing.learn({0: draft(4), 1: draft(0)}, (), 1.0)
    assert pacing.pace.drafted == {0: 4, 1: 0}
    for _ in range(40):
        pacing.learn({0: draft(1), 1: draft(0)}, (chunk(2, 8),), 1.0)
    assert pacing.pace.drafted == {0: 4, 1: 0}
    pacing.learn({1: draft(0)}, (), 1.0)
    assert pacing.pace.drafted == {1: 0}  # whoever has the slot next has another text


@pytest.mark.parametrize("dearer", [0.5, 1.0, 3.0])
def test_what_prompts_take_beyond_the_curve_is_believed(dearer: float) -> None:
    pacing = StepEstimate(costs(), no_cells, is_unified=True)
    for _ in range(30):
        pacing.learn({0: draft(0)}, (chunk(1, 8),), 1.0 + dearer * 0.8)
    assert pacing.pace.prompt_factor == pytest.approx(dearer, rel=0.05)
    pacing.learn({}, (chunk(1, 8),), 99.0)  # with no answer beside it a prompt has no pace to keep
    pacing.learn({0: draft(0)}, (), 99.0)
    assert pacing.pace.prompt_factor == pytest.approx(dearer, rel=0.05)
