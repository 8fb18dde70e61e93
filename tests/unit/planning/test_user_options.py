"""Options that the user set are part of the search; the plan is not changed afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.catalog_plans import (
    GIB,
    check_fits,
    chosen_of,
    machine_named,
    option,
    some_options,
)

from eaglelocal.core.run_options import RunOptions
from eaglelocal.errors import UsageError
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.placement import WHOLE
from eaglelocal.planning.machine_spec import MachineSpec, replace_ram, select_gpus
from eaglelocal.planning.no_fit_hints import explain_choice, explain_no_fit
from eaglelocal.planning.plan_search import search_plan


def test_a_cache_that_was_asked_for_decides_over_the_context() -> None:
    alone = (option("qwen3-32b", "Q4_K_M"),)
    free = chosen_of(search_plan(alone, machine_named("rtx-3090"), RunOptions(goal="balanced")))
    outcome = search_plan(alone, machine_named("rtx-3090"), RunOptions(goal="balanced", kv_type="f16"))
    check_fits(outcome)
    said = chosen_of(outcome)
    assert (free.setup.kv_type, said.setup.kv_type) == ("q8_0", "f16")
    assert said.setup.n_ctx < free.setup.n_ctx
    assert "the cache is f16, as asked" in explain_choice(outcome, said)


@pytest.mark.parametrize("asked", [None, "q5_1"])
def test_a_cache_that_a_processor_reads_slowly_is_left_to_the_user(asked: str | None) -> None:
    """Layers in RAM beside a card whose kernels read all types."""
    options = RunOptions(goal="balanced", ctx=32768, kv_type=asked)
    outcome = search_plan((option("qwen3-32b", "Q4_K_M"),), machine_named("arc-b580"), options)
    check_fits(outcome)
    chosen = chosen_of(outcome)
    said = [reason for reason in explain_choice(outcome, chosen) if "our own kernel does not read it" in reason]
    assert chosen.gpu_layers is not None
    assert (chosen.setup.kv_type == "q5_1", bool(said)) == (asked is not None, asked is not None)


@pytest.mark.parametrize("layers", [0, 10, 64, 65, 999])
def test_layers_that_were_asked_for_stay_on_the_gpu(layers: int) -> None:
    outcome = search_plan(
        (option("qwen3-32b", "Q4_K_M"),), machine_named("rtx-3090"), RunOptions(goal="balanced", gpu_layers=layers)
    )
    check_fits(outcome)
    assert chosen_of(outcome).gpu_layers == (layers if layers < 65 else None)


@pytest.mark.parametrize(
    ("target", "name", "asked", "used"),
    [
        ("qwen3-8b", "ctx", 10**6, 40960),
        ("glm-4.7-flash", "kv_type", "q8_0,q4_0", "f16"),
        ("qwen3-8b", "n_cpu_moe", 3, 0),
        ("qwen3-30b-a3b", "n_cpu_moe", 99, 48),
    ],
)
def test_options_for_every_model_are_cut_to_what_a_model_takes(
    target: str, name: str, asked: object, used: object
) -> None:
    model = option(target, "Q4_K_M")
    machine = replace_ram(machine_named("rtx-3090"), 64 * GIB)
    by_flag = search_plan((model,), machine, replace(RunOptions(), **{name: asked}))
    assert by_flag.chosen is None
    options = replace(by_flag.options, origins=((name, "EAGLELOCAL_X"),))
    outcome = search_plan((model,), machine, options)
    chosen = chosen_of(outcome)
    assert {"ctx": chosen.setup.n_ctx, "kv_type": chosen.setup.kv_type, "n_cpu_moe": chosen.n_cpu_moe}[name] == used
    cut = f"{model.target} takes {name} {used}, not the {asked} of EAGLELOCAL_X"
    assert cut in explain_choice(outcome, chosen)


def test_without_layers_on_the_gpu_it_is_as_fast_as_the_processor() -> None:
    asked, name = RunOptions(goal="balanced", ctx=8192), ("qwen3-8b", "Q4_K_M")
    machine = machine_named("rtx-3090")
    on_card = chosen_of(search_plan((option(*name),), machine, replace(asked, gpu_layers=0)))
    no_card = chosen_of(search_plan((option(*name),), replace(machine, gpus=()), asked))
    assert on_card.prediction == no_card.prediction
    assert all(load.total == 0 for load in on_card.memory.loads if load.device != RAM)


def test_more_layers_than_fit_are_refused_with_the_number_that_does() -> None:
    outcome = search_plan(
        (option("llama-3.3-70b", "Q4_K_M"),),
        machine_named("rtx-3090"),
        RunOptions(goal="balanced", gpu_layers=60, ctx=4096),
    )
    assert outcome.chosen is None
    assert "GiB on CUDA0" in outcome.rejected[0].reason and "60 of 81 layers" in outcome.rejected[0].reason


def test_only_the_named_card_is_used() -> None:
    asked = RunOptions(goal="balanced", device="CUDA1")
    outcome = search_plan((option("qwen3-32b", "Q4_K_M"),), machine_named("2x-rtx-3090"), asked)
    check_fits(outcome)
    assert [load.device for load in chosen_of(outcome).memory.used] == [RAM, "CUDA1"]
    same = search_plan((option("qwen3-32b", "Q4_K_M"),), machine_named("rtx-3090"), RunOptions(goal="balanced"))
    assert chosen_of(outcome).score == pytest.approx(chosen_of(same).score)


@pytest.mark.parametrize("device", ["CPU", "CUDA0", "CUDA0,CUDA1"])
def test_devices_by_name(device: str) -> None:
    used = select_gpus(machine_named("2x-rtx-3090"), RunOptions(goal="balanced", device=device))
    assert ",".join(gpu.name for gpu in used.gpus) == device.replace("CPU", "")


def test_one_card_where_nothing_is_split() -> None:
    used = select_gpus(machine_named("2x-rtx-3090"), RunOptions(goal="balanced", split="none"))
    assert [gpu.name for gpu in used.gpus] == ["CUDA0"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (RunOptions(goal="balanced", device="CUDA7"), "CUDA0, CUDA1, CPU"),
        (RunOptions(goal="balanced", split="1,2,3"), "--split 1,2,3 gives 3 shares"),
        (RunOptions(goal="balanced", split="1,2", device="CUDA1"), "leave --split out"),
    ],
)
def test_cards_that_there_are_not(asked: RunOptions, words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        search_plan(some_options(), machine_named("2x-rtx-3090"), asked)
    assert words in f"{wrong.value.message} {wrong.value.hint}"


def test_shares_decide_what_lies_where() -> None:
    asked = RunOptions(goal="balanced", ctx=8192, split="3,1")
    outcome = search_plan((option("qwen3-14b", "Q8_0"),), machine_named("2x-rtx-3090"), asked)
    check_fits(outcome)
    loads = {load.device: load.weights for load in chosen_of(outcome).memory.used}
    assert 2.4 < loads["CUDA0"] / loads["CUDA1"] < 4.2


def test_without_flash_attention_the_cache_is_not_quantized() -> None:
    asked = RunOptions(goal="balanced", flash_attn="off")
    outcome = search_plan((option("qwen3-32b", "Q4_K_M"),), machine_named("rtx-3090"), asked)
    assert chosen_of(outcome).setup.kv_type == "f16"


def test_a_long_context_is_not_taken_where_it_is_not_wanted() -> None:
    short = replace(option("qwen3-8b", "Q4_K_M"), max_context=4096)
    outcome = search_plan((short,), machine_named("a6000"), RunOptions(goal="balanced"))
    assert chosen_of(outcome).setup.n_ctx == 4096


# ---- experts in main memory
MOE = ("gpt-oss-120b", "MXFP4")


def with_64_gib(name: str) -> MachineSpec:
    return replace_ram(machine_named(name), 64 * GIB)


def test_experts_leave_the_card_before_layers_do() -> None:
    """The roofline of whole layers gives 12.3 tokens/s there."""
    outcome = search_plan((option(*MOE),), with_64_gib("rtx-3090"), RunOptions(goal="balanced"))
    check_fits(outcome)
    candidate = chosen_of(outcome)
    assert candidate.gpu_layers is None and 20 <= candidate.n_cpu_moe <= 28
    assert candidate.prediction.plain_tok_s > 14
    memory = "main memory (64 GiB at 51 GB/s, as assumed)"
    report = f"the experts of {candidate.n_cpu_moe} of 36 layers run from {memory}, prompts"
    assert any(reason.startswith(report) for reason in explain_choice(outcome, chosen_of(outcome)))


def test_layers_follow_where_the_card_cannot_hold_them_without_experts() -> None:
    machine = replace_ram(machine_named("cuda-8gb"), 128 * GIB)
    tiny = replace(machine, gpus=(replace(machine.gpus[0], free_bytes=int(3.8 * GIB)),))
    outcome = search_plan((option(*MOE),), tiny, RunOptions(goal="balanced", ctx=4096))
    check_fits(outcome)
    candidate = chosen_of(outcome)
    assert candidate.n_cpu_moe == 36 and candidate.gpu_layers is not None and 0 < candidate.gpu_layers < 36


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"n_cpu_moe": 30}, (None, 30)),
        ({"n_cpu_moe": 30, "gpu_layers": 99}, (None, 30)),
        ({"gpu_layers": 37}, (None, 24)),  # what is open is found
        ({"gpu_layers": 0}, (0, 0)),
        ({"n_cpu_moe": 30, "gpu_layers": 20}, (20, 30)),
    ],
)
def test_experts_stay_as_asked(asked: dict[str, int], expected: tuple[int | None, int]) -> None:
    machine = replace_ram(machine_named("rtx-3090"), 128 * GIB)
    outcome = search_plan((option(*MOE),), machine, RunOptions(goal="balanced", ctx=8192, **asked))
    check_fits(outcome)
    assert (chosen_of(outcome).gpu_layers, chosen_of(outcome).n_cpu_moe) == expected


def test_whole_layers_where_no_experts_are_to_move() -> None:
    candidate = chosen_of(
        search_plan((option(*MOE),), with_64_gib("rtx-3090"), RunOptions(goal="balanced", n_cpu_moe=0))
    )
    assert candidate.n_cpu_moe == 0 and candidate.gpu_layers is not None


@pytest.mark.parametrize(
    ("name", "count", "says"),
    [
        (("qwen3-8b", "Q4_K_M"), 4, "this model has no experts, --n-cpu-moe asks for 4"),
        (MOE, 37, "this model has 36 layers, --n-cpu-moe asks for 37"),
    ],
)
def test_experts_that_there_are_not_are_refused(name: tuple[str, str], count: int, says: str) -> None:
    outcome = search_plan((option(*name),), with_64_gib("rtx-3090"), RunOptions(goal="balanced", n_cpu_moe=count))
    assert outcome.chosen is None and says in explain_no_fit(outcome)[0]


def test_fewer_experts_apart_than_fit_are_refused_with_the_number_that_does() -> None:
    asked = RunOptions(goal="balanced", n_cpu_moe=4, gpu_layers=37, ctx=4096)
    message, hint = explain_no_fit(search_plan((option(*MOE),), with_64_gib("rtx-3090"), asked))
    assert "experts of 4 of 36 layers in main memory" in message and "--n-cpu-moe 2" in hint


def test_without_a_card_all_is_in_main_memory_anyway() -> None:
    asked = RunOptions(goal="balanced", n_cpu_moe=5)
    candidate = chosen_of(search_plan((option("qwen3-30b-a3b", "Q4_K_M"),), machine_named("cpu-32gb"), asked))
    assert candidate.offload == WHOLE
