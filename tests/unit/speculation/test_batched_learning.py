"""Steps whose costs are learned several at a time teach the same as steps learned one by one."""

from __future__ import annotations

import random

import pytest
from doubles.drafts import chain

from eaglelocal.core.draft import Verdict
from eaglelocal.core.request import AUTO_SPEC, fixed_spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.cost_learner import AT_ONCE, EARLY_STEPS, LATER_AT_ONCE
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.speculation.policy.step_report import StepReport

ROWS, ONE_S, PER_KILOCELL = 5, 0.07, 0.27


def true_seconds(num_cells: int) -> float:
    return ONE_S * (1.4 + PER_KILOCELL * num_cells / 1000)


@pytest.mark.parametrize("num_steps", [10, 60, 64, 300])
def test_a_short_text_after_a_long_one_teaches_of_its_own_context(num_steps: int) -> None:
    chance = random.Random(num_steps)
    costs = StepCosts()
    costs.calibrate({1: [ONE_S] * 3, ROWS: [1.4 * ONE_S] * 3})
    controller = Controller(fixed_spec(ROWS - 1), DrafterSet(primary="eagle3"), costs)
    found = []
    for number in range(1200 // num_steps):
        controller.begin(0, None)
        first = (100, 6000)[number % 2]
        for step in range(num_steps):
            num_cells = first + 2 * step
            controller.learn(
                StepReport(
                    num_rows=ROWS,
                    num_prefill_rows=0,
                    num_cells=num_cells,
                    decode_s=true_seconds(num_cells) * chance.gauss(1.0, 0.02),
                    draft_calls=(),
                    other_s=0.001,
                    verdicts={0: (chain(1, 2, 3, 4), Verdict((), (Sampled(7),)))},
                )
            )
            found += [abs(costs.seconds(ROWS, cells) / true_seconds(cells) - 1) for cells in (100, num_cells)]
    assert sum(found[len(found) // 2 :]) / (len(found) / 2) < 0.04
    assert costs.num_samples(ROWS) > 1100


def drafted_step(controller: Controller, num_slots: int) -> None:
    verdicts = {slot: (chain(5), Verdict((), (Sampled(7, 0.0),))) for slot in range(num_slots)}
    controller.learn(
        StepReport(
            num_rows=2 * num_slots,
            num_prefill_rows=0,
            num_cells=100,
            decode_s=ONE_S,
            draft_calls=(),
            other_s=0.001,
            verdicts=verdicts,
        )
    )


def test_at_first_costs_are_learned_soon_and_so_they_are_when_others_join() -> None:
    """Sizes that never ran are tried then: whether they pay is to be known before they have run many times."""
    costs = StepCosts()
    costs.calibrate({1: [ONE_S] * 3, ROWS: [1.4 * ONE_S] * 3})
    controller = Controller(AUTO_SPEC, DrafterSet(lookups=("ngram",)), costs)
    for slot in range(2):
        controller.begin(slot, None)
    for num_slots in (1, 2):
        num_rows = 2 * num_slots
        known, gaps = costs.num_samples(num_rows), [0]
        for _ in range(EARLY_STEPS + 4 * LATER_AT_ONCE):
            drafted_step(controller, num_slots)
            gaps[-1] += 1
            if costs.num_samples(num_rows) > known:
                known = costs.num_samples(num_rows)
                gaps.append(0)
        assert set(gaps[: EARLY_STEPS // AT_ONCE]) == {AT_ONCE}
        assert set(gaps[EARLY_STEPS // AT_ONCE + 1 : -1]) == {LATER_AT_ONCE}
