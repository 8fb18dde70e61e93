"""What people settled themselves: the plan is made with it, not changed afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.catalogue_plans import (
    check_fits,
    chosen_of,
    option,
    rig,
    some_options,
)

from eaglelocal.backend.fit import RAM
from eaglelocal.errors import UsageError
from eaglelocal.planner.asked import Asked, rig_with
from eaglelocal.planner.goals import GOALS
from eaglelocal.planner.plan import plan
from eaglelocal.planner.reasons import reasons


def test_a_cache_that_was_asked_for_decides_over_the_context() -> None:
    alone = (option("qwen3-32b", "Q4_K_M"),)
    free = chosen_of(plan(alone, rig("rtx-3090"), Asked(goal=GOALS["balanced"])))
    outcome = plan(alone, rig("rtx-3090"), Asked(goal=GOALS["balanced"], kv_type="f16"))
    check_fits(outcome)
    said = chosen_of(outcome)
    assert (free.way.setup.kv_type, said.way.setup.kv_type) == ("q8_0", "f16")
    assert said.way.setup.n_ctx < free.way.setup.n_ctx
    assert "the cache is f16, as asked" in reasons(outcome, said)


@pytest.mark.parametrize("layers", [0, 10, 64, 65, 999])
def test_layers_that_were_asked_for_stay_on_the_gpu(layers: int) -> None:
    outcome = plan((option("qwen3-32b", "Q4_K_M"),), rig("rtx-3090"), Asked(goal=GOALS["balanced"], gpu_layers=layers))
    check_fits(outcome)
    assert chosen_of(outcome).way.gpu_layers == (layers if layers < 65 else None)


def test_without_layers_on_the_gpu_it_is_as_fast_as_the_processor() -> None:
    asked, name = Asked(goal=GOALS["balanced"], ctx=8192), ("qwen3-8b", "Q4_K_M")
    machine = rig("rtx-3090")
    on_card = chosen_of(plan((option(*name),), machine, replace(asked, gpu_layers=0)))
    no_card = chosen_of(plan((option(*name),), replace(machine, gpus=()), asked))
    assert on_card.way.prediction == no_card.way.prediction
    assert all(load.total == 0 for load in on_card.weighed.loads if load.room.device != RAM)


def test_more_layers_than_fit_are_refused_with_the_number_that_does() -> None:
    outcome = plan(
        (option("llama-3.3-70b", "Q4_K_M"),), rig("rtx-3090"), Asked(goal=GOALS["balanced"], gpu_layers=60, ctx=4096)
    )
    assert outcome.chosen is None
    assert "GiB on CUDA0" in outcome.rejected[0].reason and "60 of 81 layers" in outcome.rejected[0].reason


def test_only_the_named_card_is_used() -> None:
    asked = Asked(goal=GOALS["balanced"], device="CUDA1")
    outcome = plan((option("qwen3-32b", "Q4_K_M"),), rig("2x-rtx-3090"), asked)
    check_fits(outcome)
    assert [load.room.device for load in chosen_of(outcome).weighed.used] == [RAM, "CUDA1"]
    same = plan((option("qwen3-32b", "Q4_K_M"),), rig("rtx-3090"), Asked(goal=GOALS["balanced"]))
    assert chosen_of(outcome).way.score == pytest.approx(chosen_of(same).way.score)


@pytest.mark.parametrize("device", ["CPU", "CUDA0", "CUDA0,CUDA1"])
def test_devices_by_name(device: str) -> None:
    used = rig_with(rig("2x-rtx-3090"), Asked(goal=GOALS["balanced"], device=device))
    assert ",".join(gpu.name for gpu in used.gpus) == device.replace("CPU", "")


def test_one_card_where_nothing_is_split() -> None:
    used = rig_with(rig("2x-rtx-3090"), Asked(goal=GOALS["balanced"], split="none"))
    assert [gpu.name for gpu in used.gpus] == ["CUDA0"]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Asked(goal=GOALS["balanced"], device="CUDA7"), "CUDA0, CUDA1, CPU"),
        (Asked(goal=GOALS["balanced"], shares=(1.0, 2.0, 3.0)), "--split 1,2,3 names shares of 3 GPUs"),
        (Asked(goal=GOALS["balanced"], shares=(1.0, 2.0), device="CUDA1"), "leave --split out"),
    ],
)
def test_cards_that_there_are_not(asked: Asked, words: str) -> None:
    with pytest.raises(UsageError) as wrong:
        plan(some_options(), rig("2x-rtx-3090"), asked)
    assert words in f"{wrong.value.message} {wrong.value.hint}"


def test_shares_decide_what_lies_where() -> None:
    asked = Asked(goal=GOALS["balanced"], ctx=8192, shares=(3.0, 1.0))
    outcome = plan((option("qwen3-14b", "Q8_0"),), rig("2x-rtx-3090"), asked)
    check_fits(outcome)
    loads = {load.room.device: load.weights for load in chosen_of(outcome).weighed.used}
    assert 2.4 < loads["CUDA0"] / loads["CUDA1"] < 4.2


def test_without_flash_attention_the_cache_is_not_quantized() -> None:
    asked = Asked(goal=GOALS["balanced"], flash_attention="off")
    outcome = plan((option("qwen3-32b", "Q4_K_M"),), rig("rtx-3090"), asked)
    assert chosen_of(outcome).way.setup.kv_type == "f16"


def test_a_long_context_is_not_taken_where_it_is_not_wanted() -> None:
    outcome = plan((option("qwen3-8b", "Q4_K_M"),), rig("a6000"), Asked(goal=GOALS["balanced"], most_ctx=4096))
    assert chosen_of(outcome).way.setup.n_ctx == 4096
