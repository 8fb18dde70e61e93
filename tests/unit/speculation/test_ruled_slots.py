"""`auto` beside slots whose draft lengths are set by a rule: the rows that those send anyway are in its prices."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from doubles.simulated_machine import GPU, Q4_0, SimulatedMachine
from doubles.simulation import CALIBRATED_ROWS, PRIMARY, DraftCosts, Profile, Simulation, curve, plain_text
from doubles.tiers import some_of

from eaglelocal.core.request import AUTO_SPEC, OFF, PID, Spec, fixed_spec
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DecodeSlot, DrafterSet
from eaglelocal.speculation.policy.step_drafts import StepDrafts

LOOKUP = "ngram"
SECONDS = {rows: 0.05 * GPU[min(rows, len(GPU)) - 1] + 0.002 * rows for rows in range(1, 65)}


def begin_step(
    specs: Mapping[int, Spec], *, leveled: bool = False, room: int = 8, max_depth: int = 16, num_prefill_rows: int = 0
) -> StepDrafts:
    costs = StepCosts()
    costs.calibrate({rows: [seconds] * 9 for rows, seconds in SECONDS.items()})
    brain = Controller(AUTO_SPEC, DrafterSet(PRIMARY, (LOOKUP,), max_depth=max_depth), costs, leveled=leveled)
    for slot, spec in specs.items():
        brain.begin(slot, spec)
    slots = [DecodeSlot(slot, room) for slot in specs]
    return brain.begin_step(slots, num_prefill_rows=num_prefill_rows, num_cells=0).drafts


def ratios(drafts: StepDrafts) -> list[float]:
    """Return the costs relative to those of the plain step."""
    return [cost / drafts.token_costs.rows(0)[0] for cost in drafts.row_costs]


@pytest.mark.parametrize(
    ("rule", "num_sent"), [(fixed_spec(4), 4), (fixed_spec(16), 8), (PID, None), (OFF, 0)], ids=str
)
def test_rows_of_other_slots_are_priced(rule: Spec, num_sent: int | None) -> None:
    """Of three slots one is set by a rule. At most eight tokens can be of use to each."""
    drafts = begin_step({0: rule, 1: AUTO_SPEC, 2: AUTO_SPEC})
    sent = drafts.policies[0].length if num_sent is None else num_sent
    expected = [SECONDS[3 + sent + extra] / SECONDS[3] for extra in range(17)]
    assert ratios(drafts) == pytest.approx(expected, rel=0.05)


def test_a_draft_that_ended_early_counts_as_it_is() -> None:
    drafts = begin_step({0: fixed_spec(6), 1: AUTO_SPEC})
    assert ratios(drafts)[0] == pytest.approx(SECONDS[8] / SECONDS[2], rel=0.05)
    drafts.add(0, PRIMARY, [5, 6], [0.9, 0.9])
    assert ratios(drafts)[0] == pytest.approx(SECONDS[8] / SECONDS[2], rel=0.05), "it goes on"
    drafts.end(0, PRIMARY)
    assert ratios(drafts)[0] == pytest.approx(SECONDS[4] / SECONDS[2], rel=0.05)


def test_a_rule_sends_no_more_than_its_drafter_can_draft() -> None:
    drafts = begin_step({0: fixed_spec(8), 1: AUTO_SPEC}, max_depth=3)
    assert ratios(drafts)[0] == pytest.approx(SECONDS[5] / SECONDS[2], rel=0.05)


def test_a_prompt_is_priced_once() -> None:
    """Slots with a cache each: 20 rows of a prompt beside a fixed draft of two and a plain row."""
    drafts = begin_step({0: fixed_spec(2), 1: AUTO_SPEC}, leveled=True, num_prefill_rows=20)
    assert ratios(drafts)[0] == pytest.approx(SECONDS[24] / SECONDS[22], rel=0.05)


@pytest.mark.parametrize("leveled", [True, False])
def test_beside_prompts_slots_with_caches_of_their_own_draft_by_rules_alone(leveled: bool) -> None:
    """Drafts of unlike lengths would take more passes over the weights, and nothing pads them to one."""
    drafts = begin_step({0: fixed_spec(2), 1: AUTO_SPEC}, leveled=leveled, num_prefill_rows=20)
    assert drafts.max_draft == {0: 2, 1: 0 if leveled else 8}
    assert begin_step({1: AUTO_SPEC}, leveled=leveled, num_prefill_rows=20).max_draft == {1: 8}


def test_levels_up_to_a_fixed_length_cost_nothing_where_slots_are_padded() -> None:
    """Four slots with a cache each, one of which drafts two tokens: 12 rows in one pass, up to two levels."""
    costs = ratios(begin_step({0: fixed_spec(2), 1: AUTO_SPEC, 2: AUTO_SPEC, 3: AUTO_SPEC}, leveled=True))
    assert costs[0] == costs[3] == costs[6] == pytest.approx(SECONDS[12] / SECONDS[4], rel=0.05)
    assert costs[9] == pytest.approx(SECONDS[16] / SECONDS[4], rel=0.05)


def test_the_price_of_a_plain_token_has_no_drafts_of_others() -> None:
    alone, beside = begin_step({0: AUTO_SPEC, 1: AUTO_SPEC}), begin_step({0: AUTO_SPEC, 1: fixed_spec(8)})
    assert alone.row_costs[0] < beside.row_costs[0]


@pytest.mark.parametrize(
    ("name", "leveled", "least"),
    some_of([("card", False, 66.0), ("card", True, 66.0), ("q4_0", False, 27.0), ("q4_0", True, 27.0)]),
)
def test_auto_keeps_to_cheap_sizes_beside_a_fixed_length(name: str, leveled: bool, least: float) -> None:
    """Simulated, heads right in 85%. Rows are cheap up to eight on the card, and up to four in q4_0."""
    ratios, costs = {"card": (GPU, DraftCosts(step_s=0.0035, row_s=0.0003)), "q4_0": (Q4_0, DraftCosts())}[name]
    num_tokens = seconds = 0.0
    for seed in range(3):
        simulation = Simulation(
            SimulatedMachine(seed=seed, ratios=curve(ratios)),
            {slot: plain_text(Profile((0.85,))) for slot in range(3)},
            costs=costs,
            specs={0: fixed_spec(4)},
            drafters=DrafterSet(PRIMARY),
            leveled=leveled,
            seed=seed,
            paired=True,
            timed=sorted({*CALIBRATED_ROWS, 3, 6, 9, 15}),  # as an engine of three slots does
        )
        simulation.run(800)
        steps = simulation.run(1200)
        num_tokens += sum(step.num_tokens for step in steps)
        seconds += sum(step.seconds for step in steps)
    assert num_tokens / seconds > least
