"""Plans for each machine of a table of recommendations and for machines of every size: nothing that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.backend.fit import RAM, load_of
from eaglelocal.catalog.catalog import Catalog, load
from eaglelocal.planner.asked import Asked
from eaglelocal.planner.goals import GOALS
from eaglelocal.planner.machine import Device, Rig, rig_of_known
from eaglelocal.planner.memory import estimate, safe_rooms
from eaglelocal.planner.options import Option, options_of
from eaglelocal.planner.plan import Outcome, plan
from eaglelocal.planner.reasons import reasons
from eaglelocal.planner.way import Chosen
from eaglelocal.planner.weighing import Scale, Setup

GIB = 2**30


@cache
def catalog() -> Catalog:
    return load(user_folder=Path("/nonexistent"))


@cache
def every_option() -> tuple[Option, ...]:
    return tuple(option for target in catalog().targets.values() for option in options_of(target, catalog()))


def option(target: str, quant: str) -> Option:
    return next(each for each in every_option() if (each.target, each.quant) == (target, quant))


def rig(name: str) -> Rig:
    return rig_of_known(catalog().machine(name))


@cache
def planned(machine: str, goal: str = "balanced") -> Outcome:
    return plan(every_option(), rig(machine), Asked(goal=GOALS[goal]))


def check_fits(outcome: Outcome) -> None:
    """Weighed once more, by the arithmetic of memory alone."""
    assert outcome.chosen is not None
    way = outcome.chosen.way
    scale = Scale(outcome.rig, num_slots=outcome.asked.num_slots, measured={})
    settled = scale.plan_of(way.option, way.draft, way.setup, way.gpu_layers)
    rooms = safe_rooms(outcome.rig.rooms)
    buffers = estimate(settled, way.option.shape, way.draft.shape, rooms)
    for room in rooms:
        assert load_of(room, buffers, rooms).missing_bytes <= 0, room
    assert outcome.chosen.weighed.sum.total_bytes <= outcome.chosen.weighed.budget_bytes


# ---- the table: machine, target, quantization, draft, tokens, cache, sum in GiB
@dataclass(frozen=True)
class Row:
    machine: str
    target: str
    quant: str
    draft: str | None
    ctx: int
    kv_type: str
    gib: float

    @property
    def id(self) -> str:
        return f"{self.machine}-{self.target}-{self.quant}"


ROWS = [
    Row("cuda-8gb", "qwen3-8b", "Q4_K_M", "e3-qwen3-8b-angelslim", 8192, "q8_0", 5.82),
    Row("cuda-8gb", "qwen3-4b", "Q6_K", "e3-qwen3-4b-angelslim", 16384, "q8_0", 4.99),
    Row("cuda-12gb", "qwen3-8b", "Q6_K", "e3-qwen3-8b-angelslim", 16384, "q8_0", 7.90),
    Row("cuda-12gb", "qwen3-14b", "Q4_K_M", "e3-qwen3-14b-angelslim", 8192, "q8_0", 9.71),
    Row("cuda-12gb", "llama-3.1-8b", "Q6_K", "e3-llama31-8b-specforge", 16384, "q8_0", 7.61),
    Row("cuda-16gb", "qwen3-14b", "Q5_K_M", "e3-qwen3-14b-angelslim", 16384, "q8_0", 11.72),
    Row("cuda-16gb", "gpt-oss-20b", "MXFP4", "e3-gpt-oss-20b-redhat", 32768, "f16", 12.34),
    Row("rtx-3090", "qwen3-32b", "Q4_K_M", "e3-qwen3-32b-angelslim", 16384, "q8_0", 21.37),
    Row("rtx-4090", "qwen3.6-27b", "Q4_K_M", "mtp-qwen3.6-27b", 65536, "q8_0", 18.82),
    Row("rtx-4090", "gemma-4-31b", "IQ4_XS", "e3-gemma4-31b-redhat", 16384, "q8_0", 17.89),
    Row("rtx-5090", "qwen3.6-27b", "Q6_K", "mtp-qwen3.6-27b", 65536, "f16", 25.77),
    Row("rtx-5090", "qwen3-32b", "Q5_K_M", "e3-qwen3-32b-angelslim", 32768, "q8_0", 26.67),
    Row("a6000", "llama-3.3-70b", "Q4_K_M", "e3-llama33-70b-yuhuili", 16384, "q8_0", 44.57),
    Row("a6000", "qwen3.6-27b", "Q8_0", "mtp-qwen3.6-27b", 131072, "f16", 35.53),
    Row("2x-rtx-3090", "llama-3.3-70b", "IQ4_XS", "e3-llama33-70b-yuhuili", 16384, "q8_0", 40.52),
    Row("2x-rtx-3090", "qwen3.6-27b", "Q8_0", "mtp-qwen3.6-27b", 65536, "f16", 31.76),
    Row("m2-16gb", "qwen3-8b", "Q4_K_M", "e3-qwen3-8b-angelslim", 8192, "f16", 6.67),
    Row("m2-max-32gb", "qwen3-14b", "Q6_K", "e3-qwen3-14b-angelslim", 16384, "f16", 14.89),
    Row("m2-max-32gb", "gpt-oss-20b", "MXFP4", None, 32768, "f16", 12.46),
    Row("m2-max-64gb", "qwen3-32b", "Q6_K", "e3-qwen3-32b-angelslim", 16384, "f16", 30.26),
    Row("m2-max-64gb", "qwen3.6-27b", "Q6_K", "mtp-qwen3.6-27b", 65536, "f16", 26.60),
    Row("m3-max-128gb", "gpt-oss-120b", "MXFP4", "e3-gpt-oss-120b-lmsys", 65536, "f16", 62.22),
    Row("m3-max-128gb", "llama-3.3-70b", "Q6_K", "e3-llama33-70b-yuhuili", 16384, "f16", 61.77),
    Row("cpu-16gb", "qwen3-4b", "Q4_K_M", "ngram", 8192, "f16", 3.74),
    Row("cpu-16gb", "qwen3-8b", "Q4_K_M", "plain-qwen3-0.6b", 8192, "f16", 7.72),
    Row("cpu-32gb", "qwen3-30b-a3b", "Q4_K_M", "ngram", 16384, "f16", 19.12),
    Row("cpu-32gb", "qwen3-14b", "Q4_K_M", "plain-qwen3-0.6b", 8192, "f16", 11.54),
]
ids = [row.id for row in ROWS]


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_the_plan_for_each_machine_fits_and_is_no_worse_than_the_row(row: Row) -> None:
    """By the goal's own score; a row whose draft is not run yet is compared without it."""
    outcome = planned(row.machine)
    check_fits(outcome)
    assert outcome.chosen is not None
    alone = plan((option(row.target, row.quant),), rig(row.machine), Asked(goal=GOALS["balanced"]))
    if alone.chosen is not None:
        assert outcome.chosen.way.score >= alone.chosen.way.score - 1e-9


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_where_the_plan_differs_the_row_is_among_the_rejected_with_a_reason(row: Row) -> None:
    outcome = planned(row.machine)
    assert outcome.chosen is not None
    chosen = outcome.chosen.way.option
    found = [each.reason for each in outcome.rejected if each.option is option(row.target, row.quant)]
    assert chosen is option(row.target, row.quant) or (found and all(found))
    drafts = {each.draft: each.reason for each in outcome.rejected if each.option.target == row.target}
    if row.draft is not None and row.draft.startswith("mtp-"):
        assert drafts[row.draft] == "MTP drafting is not run yet"


@pytest.mark.parametrize("row", ROWS, ids=ids)
def test_memory_of_each_row_as_its_table_sums_it(row: Row) -> None:
    """Without the process and drivers, which the table leaves to its budget; of an MTP row without its draft."""
    chosen = option(row.target, row.quant)
    way = next((each for each in chosen.drafts if each.id == row.draft), chosen.drafts[-1])
    windows = not chosen.shape.has_windows
    scale = Scale(rig(row.machine), num_slots=1, measured={})
    weighed = scale.weigh(chosen, way, Setup(n_ctx=row.ctx, kv_type=row.kv_type, whole_windows=windows), None)
    device = weighed.loads[-1].room.device if weighed.loads[1:] else RAM
    counted = [each for each in weighed.buffers if each.kind != "runtime" and (device == RAM or each.device != RAM)]
    used = sum(each.num_bytes for each in counted)
    assert used / GIB == pytest.approx(row.gib, rel=0.10)


def test_a_runnable_row_that_is_tight_fits_as_the_table_says() -> None:
    """Rows with little room left: the arithmetic must neither refuse what works nor take what does not."""
    for row in ROWS:
        if row.draft is None or row.draft.startswith("mtp-"):
            continue
        chosen = option(row.target, row.quant)
        way = next(each for each in chosen.drafts if each.id == row.draft)
        setup = Setup(n_ctx=row.ctx, kv_type=row.kv_type, whole_windows=not chosen.shape.has_windows)
        scale = Scale(rig(row.machine), num_slots=1, measured={})
        assert scale.weigh(chosen, way, setup, None).fits, row.id


# ---- machines of every size
SOME = ("qwen3-0.6b", "qwen3-8b", "qwen3-30b-a3b", "qwen3.6-27b", "gemma-4-31b", "llama-3.3-70b")


@cache
def some_options() -> tuple[Option, ...]:
    quants = ("Q4_K_M", "Q8_0")
    return tuple(each for each in every_option() if each.target in SOME and each.quant in quants)


def machine_of(ram_gib: float, gpus_gib: tuple[float, ...]) -> Rig:
    cards = tuple(
        Device(
            name=f"CUDA{index}",
            label="card",
            kind="cuda",
            total_bytes=int(free * GIB),
            free_bytes=int(free * GIB),
            bytes_s=500e9,
            flops=40e12,
        )
        for index, free in enumerate(gpus_gib)
    )
    ram = int(ram_gib * GIB)
    host = Device(name=RAM, label="RAM", kind="cpu", total_bytes=ram, free_bytes=ram, bytes_s=40e9, flops=100e9)
    return Rig(name="random", host=host, gpus=cards)


memory = st.floats(0.5, 100.0)
cards = st.lists(st.floats(0.5, 90.0), max_size=3).map(tuple)
goals = st.sampled_from(sorted(GOALS))


@settings(max_examples=20, deadline=None)
@given(memory, cards, goals, st.none() | st.integers(256, 32768), st.integers(1, 4))
def test_what_is_chosen_always_fits(
    ram_gib: float, gpus: tuple[float, ...], goal: str, ctx: int | None, num_slots: int
) -> None:
    outcome = plan(some_options(), machine_of(ram_gib, gpus), Asked(goal=GOALS[goal], ctx=ctx, num_slots=num_slots))
    if outcome.chosen is not None:
        check_fits(outcome)
        assert ctx is None or outcome.chosen.way.setup.n_ctx == ctx
    else:
        assert outcome.nearest is not None
        message, hint = nearest_miss(outcome, outcome.nearest)
        assert "nothing fits" in message and hint.startswith("free ")
    for each in outcome.rejected:
        assert each.reason


@settings(max_examples=12, deadline=None)
@given(memory, st.floats(0.5, 90.0), goals, st.floats(0.0, 40.0), st.booleans())
def test_more_memory_is_never_worse(ram_gib: float, gpu_gib: float, goal: str, more: float, on_card: bool) -> None:
    asked = Asked(goal=GOALS[goal])
    small = plan(some_options(), machine_of(ram_gib, (gpu_gib,)), asked)
    large = plan(some_options(), machine_of(ram_gib + more * (not on_card), (gpu_gib + more * on_card,)), asked)
    if small.chosen is not None:
        assert large.chosen is not None
        assert large.chosen.way.score >= small.chosen.way.score - 1e-9


def test_best_first_finds_what_trying_everything_finds() -> None:
    """The search against an exhaustive one over whole fits."""
    chosen_rig = machine_of(16, (14.0,))
    asked = Asked(goal=GOALS["balanced"])
    found = plan(some_options(), chosen_rig, asked).chosen
    assert found is not None
    best = max(
        (alone.chosen.way.score for each in some_options() if (alone := plan((each,), chosen_rig, asked)).chosen),
        default=float("-inf"),
    )
    assert found.way.score == pytest.approx(best)


# ---- what is said
def chosen_of(outcome: Outcome) -> Chosen:
    assert outcome.chosen is not None
    return outcome.chosen


def test_only_what_the_engine_runs_is_picked() -> None:
    for machine in ("rtx-3090", "a6000", "m2-max-32gb", "cpu-16gb", "rtx-pro-6000"):
        for goal in GOALS:
            way = chosen_of(planned(machine, goal)).way
            assert way.draft.kind in ("none", "ngram", "eagle3", "draft_model")
            assert not (way.option.shape.has_state and way.draft.kind != "none")


def test_hybrid_targets_say_why_nothing_drafts_for_them() -> None:
    outcome = plan((option("qwen3.6-27b", "Q4_K_M"),), rig("rtx-3090"), Asked(goal=GOALS["balanced"]))
    said = reasons(outcome, chosen_of(outcome))
    assert "not mtp-qwen3.6-27b: MTP drafting is not run yet" in said
    assert any("e3-qwen3.6-27b-prism" in reason and "recurrent state" in reason for reason in said)


def test_layers_on_the_host_are_said_and_slow() -> None:
    large = plan((option("qwen3-32b", "Q4_K_M"),), rig("cuda-16gb"), Asked(goal=GOALS["balanced"], ctx=8192))
    way = chosen_of(large).way
    assert way.gpu_layers is not None and 0 < way.gpu_layers < 65
    assert way.prediction.plain_tok_s < 10
    assert any(reason.startswith(f"{way.gpu_layers} of 65 layers fit") for reason in reasons(large, chosen_of(large)))
    check_fits(large)


def test_two_cards_hold_what_one_cannot() -> None:
    one, two = (plan((option("llama-3.3-70b", "IQ4_XS"),), rig(name), Asked(goal=GOALS["balanced"])) for name in
                ("rtx-3090", "2x-rtx-3090"))  # fmt: skip
    assert chosen_of(one).way.gpu_layers is not None and chosen_of(two).way.gpu_layers is None
    cards = [load for load in chosen_of(two).weighed.used if load.room.device != RAM]
    assert [load.room.device for load in cards] == ["CUDA0", "CUDA1"]
    assert all(15 * GIB < load.total <= (load.room.free_bytes or 0) for load in cards)


def test_nothing_fits() -> None:
    outcome = plan((option("llama-3.3-70b", "Q4_K_M"),), rig("m1-8gb"), Asked(goal=GOALS["quality"]))
    assert outcome.chosen is None and outcome.nearest is not None
    message, hint = nearest_miss(outcome, outcome.nearest)
    assert "llama-3.3-70b Q4_K_M" in message and "GiB on RAM" in message
    assert "free" in hint and "a smaller model" in hint


def test_more_context_than_it_was_trained_for() -> None:
    outcome = plan((option("qwen3-8b", "Q4_K_M"),), rig("a6000"), Asked(goal=GOALS["quality"], ctx=50_000))
    assert outcome.chosen is None
    assert outcome.rejected[0].reason == "it was trained for 40960 tokens, --ctx asks for 50000"


def test_slots_take_memory() -> None:
    asked = Asked(goal=GOALS["quality"], ctx=8192)
    one, four = (
        plan((option("qwen3-8b", "Q4_K_M"),), rig("rtx-3090"), replace(asked, num_slots=slots)) for slots in (1, 4)
    )
    alone, shared = (chosen_of(each).weighed.sum.kv_bytes for each in (one, four))
    assert shared == 4 * alone
