"""The error if nothing fits: the nearest miss in figures, and suggested changes that do fit."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from doubles.catalog_plans import GIB, every_option, machine_named, machine_of, option, some_options
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.run_options import CTX_STEP, RunOptions
from eaglelocal.planning.machine_spec import MachineSpec, free_held_memory, replace_ram
from eaglelocal.planning.no_fit_hints import explain_choice, explain_no_fit, most_that
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.plan_search import SearchOutcome, search_plan
from eaglelocal.preparation import autoplan

BALANCED = RunOptions(goal="balanced")
FLAG = re.compile(r"--(ctx|parallel|gpu-layers|kv-type) (\S+)")


def missed(options: tuple[ModelOption, ...], machine: MachineSpec, asked: RunOptions) -> SearchOutcome:
    outcome = search_plan(options, machine, asked)
    assert outcome.chosen is None
    return outcome


def taken(asked: RunOptions, hint: str) -> list[RunOptions]:
    """What is asked for when each way out of a hint is taken."""
    fields = {"ctx": "ctx", "parallel": "parallel", "gpu-layers": "gpu_layers", "kv-type": "kv_type"}
    asks = []
    for name, value in FLAG.findall(hint):
        changed: dict[str, int | str] = {fields[name]: value if name == "kv-type" else int(value)}
        asks.append(replace(asked, **changed))
    return asks + ([replace(asked, gpu_layers=None)] if "no --gpu-layers" in hint else [])


CASES = [
    ("cpu-16gb", "qwen3-8b", "Q4_K_M", RunOptions(goal="balanced", ctx=16384, parallel=16), 2),
    ("cpu-16gb", "qwen3-8b", "Q4_K_M", RunOptions(goal="balanced", ctx=40960, parallel=4), 2),
    ("cuda-8gb", "qwen3-14b", "Q8_0", RunOptions(goal="balanced", ctx=40960, parallel=16), 2),
    ("rtx-3090", "llama-3.3-70b", "Q4_K_M", RunOptions(goal="balanced", gpu_layers=60, ctx=4096), 1),
    ("rtx-3090", "qwen3-32b", "Q4_K_M", RunOptions(goal="balanced", gpu_layers=65, ctx=32768, kv_type="f16"), 3),
    ("cpu-16gb", "qwen3-8b", "Q4_K_M", RunOptions(goal="balanced", ctx=40960, kv_type="f16", parallel=2), 3),
]


@pytest.mark.parametrize(("machine", "target", "quant", "asked", "least"), CASES)
def test_each_way_out_fits_and_no_more_would(
    machine: str, target: str, quant: str, asked: RunOptions, least: int
) -> None:
    alone = (option(target, quant),)
    _, hint = explain_no_fit(missed(alone, machine_named(machine), asked))
    asks = taken(asked, hint)
    assert len(asks) >= least, hint
    for other in asks:
        assert search_plan(alone, machine_named(machine), other).chosen is not None, hint
        if other.ctx != asked.ctx and other.ctx is not None:
            assert search_plan(alone, machine_named(machine), replace(other, ctx=other.ctx + CTX_STEP)).chosen is None
        if other.parallel != asked.parallel:
            assert (
                search_plan(alone, machine_named(machine), replace(other, parallel=other.parallel + 1)).chosen is None
            )


@examples(10)
@given(st.floats(0.5, 40.0), st.lists(st.floats(0.5, 20.0), max_size=2).map(tuple), st.integers(1, 16))
def test_ways_out_fit_on_any_machine(ram_gib: float, gpus: tuple[float, ...], slots: int) -> None:
    asked, machine = replace(BALANCED, ctx=32768, parallel=slots), machine_of(ram_gib, gpus)
    large = tuple(each for each in some_options() if each.quant == "Q8_0" and each.shape.weights_bytes > 8 * GIB)
    outcome = search_plan(large, machine, asked)
    if outcome.chosen is None:
        message, hint = explain_no_fit(outcome)
        assert message.startswith("nothing fits random: the nearest, ") and hint
        assert all(search_plan(large, machine, other).chosen is not None for other in taken(asked, hint))


def test_the_miss_is_that_of_the_best_division() -> None:
    """With as many layers on the card as it takes, main memory is what lacks; whole, the card would lack far more."""
    message, hint = explain_no_fit(missed((option("llama-3.3-70b", "Q8_0"),), machine_named("cuda-8gb"), BALANCED))
    found = re.search(r"needs ([\d.]+) GiB on RAM with 4096 tokens in q4_0 and (\d+) of 81 layers on the GPU", message)
    assert found is not None, message
    assert float(found[1]) < option("llama-3.3-70b", "Q8_0").shape.weights_bytes / GIB
    assert 1 < int(found[2]) < 20
    assert "(16 GiB at 51 GB/s, as assumed)" in message and hint == "--ram 96, if you have it"


def test_more_memory_than_was_assumed_next_to_a_card_is_a_way_out() -> None:
    machine = machine_named("rtx-3090")
    alone = tuple(each for each in every_option() if each.target == "gpt-oss-120b")
    message, hint = explain_no_fit(missed(alone, machine, BALANCED))
    assert "(32 GiB at 51 GB/s, as assumed)" in message and hint == "--ram 48, if you have it"
    assert search_plan(alone, replace_ram(machine, 48 * GIB), BALANCED).chosen is not None
    missed(alone, replace_ram(machine, 40 * GIB), BALANCED)
    assert "--ram" not in explain_no_fit(missed(alone, machine_named("cpu-16gb"), BALANCED))[1]


@pytest.mark.parametrize(
    ("kv_type", "warns"), [("q4_0", True), ("q4_0,q8_0", True), ("q8_0,q4_0", False), ("q5_1", False)]
)
def test_keys_of_four_bits_are_warned_of(kv_type: str, warns: bool) -> None:
    outcome = search_plan(
        (option("qwen3-8b", "Q4_K_M"),), machine_named("rtx-3090"), replace(BALANCED, kv_type=kv_type)
    )
    assert outcome.chosen is not None
    assert any("four bits harm" in reason for reason in explain_choice(outcome, outcome.chosen)) == warns


def test_less_context_than_was_tried_may_fit() -> None:
    asked = replace(BALANCED, kv_type="f16")
    tight = next(
        machine
        for tenth in range(60, 120)
        if search_plan(
            (option("qwen3-8b", "Q4_K_M"),), machine := machine_of(tenth / 10, ()), replace(asked, ctx=512)
        ).chosen
    )
    _, hint = explain_no_fit(missed((option("qwen3-8b", "Q4_K_M"),), tight, asked))
    assert FLAG.search(hint)


def with_others(machine: MachineSpec, held_gib: float, *, is_here: bool) -> MachineSpec:
    """As if other programs held so much of its main memory."""
    total = machine.host.free_bytes or 0
    host = replace(machine.host, total_bytes=total, free_bytes=total - int(held_gib * GIB))
    return replace(machine, host=host, is_here=is_here)


@pytest.mark.parametrize(("ram_gib", "card_gib", "held_gib"), [(32, 0, 16), (16, 24, 18)])
def test_a_better_model_is_named_that_fits_without_other_programs(
    ram_gib: float, card_gib: float, held_gib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = machine_of(ram_gib, (card_gib,) if card_gib else ())
    host, *gpus = (replace(device, free_bytes=0) for device in (empty.host, *empty.gpus))
    full = free_held_memory(replace(empty, host=host, gpus=tuple(gpus)))
    *_, last = full.devices if not card_gib else full.gpus
    held = replace(last, free_bytes=(last.free_bytes or 0) - int(held_gib * GIB))
    machine = replace(full, gpus=(held,), is_here=True) if card_gib else replace(full, host=held, is_here=True)
    monkeypatch.setattr(autoplan, "find_machine", lambda *_: machine)
    outcome = autoplan.plan_target(BALANCED)
    without = replace(outcome, machine=full, with_free_memory=None)
    assert outcome.chosen is not None and outcome.with_free_memory is not None
    assert outcome.with_free_memory.option.answers_b > outcome.chosen.option.answers_b
    said = f"other programs hold {held_gib:.1f} GiB; with them closed: {outcome.with_free_memory.option.reference}"
    assert said in explain_choice(outcome, outcome.chosen)
    assert said not in explain_choice(without, outcome.chosen)
    assert autoplan.plan_target(replace(BALANCED, target="qwen3-8b")).with_free_memory is None


@pytest.mark.parametrize(("held_gib", "is_here", "says"), [(8, True, True), (2, True, False), (8, False, False)])
def test_only_what_others_hold_can_be_freed(held_gib: float, is_here: bool, says: bool) -> None:
    """14B in Q8_0 needs some 17 GiB: of 20, others hold 8; of 14, no more than 2 could come free."""
    machine = with_others(machine_of(20 if held_gib == 8 else 14, ()), held_gib, is_here=is_here)
    _, hint = explain_no_fit(missed((option("qwen3-14b", "Q8_0"),), machine, replace(BALANCED, ctx=4096)))
    assert ("free " in hint and " on RAM" in hint) == says, hint
    assert "a smaller model or quantization" in hint or says


def test_nothing_of_a_target_fits() -> None:
    every = tuple(each for each in every_option() if each.target == "llama-3.3-70b")
    message, hint = explain_no_fit(missed(every, machine_named("m1-8gb"), BALANCED))
    assert "llama-3.3-70b Q3_K_M" in message and hint == "a smaller model"


def test_more_context_than_it_was_trained_for() -> None:
    asked = replace(BALANCED, ctx=50_000)
    outcome = missed((option("qwen3-8b", "Q4_K_M"),), machine_named("a6000"), asked)
    assert outcome.rejected[0].reason == "it was trained for 40960 tokens, --ctx asks for 50000"
    message, hint = explain_no_fit(outcome)
    assert (message, hint) == ("--ctx 50000 is too much: qwen3-8b was trained for 40960 tokens", "--ctx 40960")


def test_more_context_than_any_was_trained_for() -> None:
    message, hint = explain_no_fit(missed(every_option(), machine_named("a6000"), replace(BALANCED, ctx=10**8)))
    most = max(each.max_context for each in every_option())
    assert f"{most} tokens, the most of all" in message and hint == f"--ctx {most}"
    assert search_plan(every_option(), machine_named("m3-ultra-512gb"), replace(BALANCED, ctx=most)).chosen is not None


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_most_that_fits(limit: int, most: int) -> None:
    assert most_that(lambda count: count <= limit, most) == min(limit, most)
