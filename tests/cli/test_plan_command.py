"""`eaglelocal plan`: screens of 80 columns, one JSON object, errors with a hint."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from doubles.lora_files import write_lora
from doubles.mtp_models import TRUNKS, add_mtp
from doubles.projectors import projector_bytes
from doubles.random_models import TargetShape, write_target
from doubles.runnable_models import write_runnable
from doubles.tiers import some_of
from doubles.weightless_models import REAL, write_sketch

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.cli import main
from eaglelocal.cli.output import WIDTH
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.model_shape import read_shape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.target_resolver import demo_sources

MACHINES = ("rtx-3090", "rtx-4090", "a6000", "m2-max-32gb", "2x-rtx-3090", "cpu-16gb", "cuda-8gb", "m1-8gb")
MEMORY_KEYS = ("weights_bytes", "kv_bytes", "draft_bytes", "draft_kv_bytes", "compute_bytes", "images_bytes")


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))


def screen(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main.run(["plan", *arguments]) == 0
    return capsys.readouterr().out


def plan_report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    lines = screen(capsys, *arguments, "--json").splitlines()
    content: dict[str, Any] = json.loads(lines[-1])
    return content


@pytest.mark.parametrize("machine", MACHINES)
def test_the_object_of_the_interface(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    content = plan_report(capsys, "--machine", machine)
    assert {"machine", "chosen", "rejected"} <= content.keys()
    chosen = content["chosen"]
    assert {"target", "quant", "draft", "num_draft_tokens", "ctx", "memory", "predicted", "reasons"} <= chosen.keys()
    memory = chosen["memory"]
    assert memory["total_bytes"] == sum(memory[key] for key in MEMORY_KEYS)
    assert memory["total_bytes"] <= memory["budget_bytes"]
    assert all(device["used_bytes"] <= device["budget_bytes"] for device in memory["devices"])
    assert chosen["predicted"]["spec_tok_s"] >= chosen["predicted"]["plain_tok_s"] > 0
    assert chosen["predicted"]["certainty"].keys() == {"within", "is_seen", "device"}
    assert (chosen["num_draft_tokens"] == 0) == (chosen["draft"] == "none")
    assert chosen["reasons"] and len(content["rejected"]) > 100
    assert all(each["target"] and each["quant"] and each["reason"] for each in content["rejected"])
    assert any("no GGUF of it is published" in each["reason"] for each in content["rejected"])


@pytest.mark.parametrize("machine", ["rtx-3060", "m2-max-32gb"])
def test_a_screen_fits_a_narrow_terminal(machine: str) -> None:
    command = [sys.executable, "-m", "eaglelocal", "plan", "qwen3-8b", "--machine", machine]
    narrow = {**os.environ, "COLUMNS": "40", "PYTHONIOENCODING": "utf-8"}
    shown = subprocess.run(command, env=narrow, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    wide = [line for line in shown.splitlines() if len(line) >= 40]
    assert all(len(line.split()) == 2 and line.endswith("\\") for line in wide), shown  # one word that is longer
    assert "█" in shown


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("goal", some_of(["balanced", "speed", "quality"]))
def test_screens_fit_80_columns(capsys: pytest.CaptureFixture[str], machine: str, goal: str) -> None:
    shown = screen(capsys, "--machine", machine, "--goal", goal)
    assert all(len(line) <= WIDTH for line in shown.splitlines()), shown
    assert "tokens/s" in shown and "█" in shown and "run it" in shown
    assert "not taken" in shown and "--all" in shown


def test_everything_that_was_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    few, every = (screen(capsys, "--machine", "rtx-3090", *more) for more in ((), ("--all",)))
    assert len(every.splitlines()) > 200 > 40 > len(few.splitlines())
    words = " ".join(every.split())
    assert "no GGUF of it is published" in words
    assert all(len(line) <= WIDTH for line in every.splitlines())
    for target in load_catalog().targets:
        assert target in every


def test_it_shows_when_models_came_out_and_what_that_is_worth(capsys: pytest.CaptureFixture[str]) -> None:
    content = plan_report(capsys, "--machine", "2x-rtx-3090")
    chosen = content["chosen"]
    assert chosen["released"] == "2026-08"
    assert chosen["terms"]["age"] > 0 and sum(chosen["terms"].values()) == pytest.approx(chosen["score"])
    old = [each for each in content["rejected"] if each["target"] == "llama-3.3-70b" and "older" in each["reason"]]
    assert old and all(each["released"] == "2024-12" for each in old)
    words = " ".join(screen(capsys, "--machine", "2x-rtx-3090", "--all").split())
    assert "B, times 1.6 for its release in 2026-08" in words
    assert "older: 2024-12, the plan 2026-08" in words and "(though rated 63.5 B" in words
    assert "for its release" not in screen(capsys, "ministral-3-14b", "--machine", "dgx-spark")  # as old as usual


def test_the_goal_is_named_only_where_it_decides_something(capsys: pytest.CaptureFixture[str]) -> None:
    assert "- balanced: " in screen(capsys, "qwen3-8b", "--machine", "rtx-3090")
    assert "- balanced: " not in screen(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-3090")


def test_machines_may_be_named_one_by_one(capsys: pytest.CaptureFixture[str]) -> None:
    table = screen(capsys, "--machine", "rtx-3090", "--machine", "rtx-4090")
    assert [line[:8] for line in table.splitlines()[1:3]] == ["RTX 3090", "RTX 4090"]
    assert table == screen(capsys, "--machine", "rtx-3090,rtx-4090")


def test_machines_are_listed_by_kind_and_number(capsys: pytest.CaptureFixture[str]) -> None:
    machines, _, note = screen(capsys, "--machine", "list").partition("\n\n")
    names = [line.split()[0] for line in machines.splitlines()[1:]]
    assert "2x-rtx-3090" in note and "rtx-3090+rtx-3060" in note
    first = ("rtx-3090", "rtx-4090", "rx-7900-xtx", "m2-max-32gb", "cpu-ddr4-3200-16gb")
    assert sorted(first, key=names.index) == list(first)
    assert names.index("cuda-8gb") < names.index("cuda-12gb")


def test_commands_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = plan_report(capsys, "qwen3-32b", "--machine", "rtx-3090")["chosen"]
    reference = f"{chosen['target']}:{chosen['quant']}"
    assert chosen["commands"]["pull"] == f"eaglelocal pull {reference} --draft {chosen['draft']}"
    repo = load_catalog().drafts[chosen["draft"]].repo
    assert chosen["commands"]["import"] == f"eaglelocal import {repo} --target {reference}"
    assert f"--target {reference} --ctx {chosen['ctx']} --kv-type {chosen['kv_type']}" in chosen["commands"]["run"]


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["qwen3-8b:Q8_0", "--parallel", "4"], "serve --target qwen3-8b:Q8_0 --ctx 32768 --kv-type q8_0 --parallel 4"),
        (["phi-4:Q5_K_M", "--kv-type", "q8_0"], "--kv-type q8_0"),
        (["qwen3-8b:Q4_K_M", "--draft", "none"], "--draft none"),
        (["qwen3-8b:Q4_K_M", "--draft", "ngram"], "--draft ngram"),
        (["qwen3-8b:Q4_K_M", "--draft", "lookahead,ngram"], "--draft lookahead,ngram"),
        (["qwen3-8b:Q4_K_M", "--draft", "auto,lookahead"], "--draft auto,lookahead"),
        (["qwen3-8b:Q4_K_M", "--kv-type", "f16"], "--kv-type f16"),
        (["qwen3-8b:Q4_K_M", "--gpu-layers", "10", "--ctx", "4096"], "--ctx 4096 --gpu-layers 10"),
        (["qwen3-30b-a3b:Q4_K_M", "--n-cpu-moe", "30", "--ctx", "4096"], "--ctx 4096 --n-cpu-moe 30"),
        (["qwen3-30b-a3b:Q4_K_M", "--n-cpu-moe", "0", "--ctx", "4096"], "--ctx 4096 --n-cpu-moe 0"),
        (["qwen3-8b:Q4_K_M", "--device", "CUDA0", "--flash-attn", "off"], "--device CUDA0 --flash-attn off"),
    ],
)
def test_the_command_runs_what_was_planned(
    capsys: pytest.CaptureFixture[str], arguments: list[str], flags: str
) -> None:
    chosen = plan_report(capsys, *arguments, "--machine", "rtx-3090")["chosen"]
    assert flags in chosen["commands"]["run"]
    assert ("chat" in chosen["commands"]["run"]) == (chosen["parallel"] == 1)


def test_a_file_whose_layer_reads_parallel_states_drafts_for_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = write_sketch(tmp_path / "v4.gguf", add_mtp(TRUNKS["deepseek4"]))
    chosen = plan_report(capsys, str(path), "--machine", "rtx-3090", "--draft", "mtp")["chosen"]
    assert chosen["draft"] == "its own MTP layer" and chosen["memory"]["draft_bytes"] > 0
    keys = TRUNKS["deepseek4"].keys | {"attention.compress_ratios": [0, 4, 128, 4, 128]}
    trunk = replace(TRUNKS["deepseek4"], n_layer=5, keys=keys | {"nextn_predict_layers": 1})
    deadly = write_sketch(tmp_path / "compressed.gguf", trunk)
    with pytest.raises(IncompatibleError, match=r"it keeps 128 tokens as one \(compress_ratios\)"):
        main.run(["plan", str(deadly), "--machine", "rtx-3090", "--draft", "mtp"])


def test_a_command_says_nothing_that_goes_without_saying(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = plan_report(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-3090")["chosen"]
    assert chosen["commands"]["run"] == "eaglelocal chat --target qwen3-8b:Q4_K_M --ctx 40960"
    hybrid = plan_report(capsys, "qwen3.6-27b:Q4_K_M", "--machine", "rtx-3090")["chosen"]
    assert hybrid["draft"] == "mtp-qwen3.6-27b" and "--draft" not in hybrid["commands"]["run"]
    plain = plan_report(capsys, "qwen3-next-80b:IQ4_XS", "--machine", "rtx-3090")["chosen"]
    assert plain["draft"] == "none" and "--draft" not in plain["commands"]["run"]


def test_several_answers_say_that_the_speed_is_that_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert "for an answer alone" in " ".join(
        screen(capsys, "qwen3-8b", "--machine", "a6000", "--parallel", "4").split()
    )
    assert "alone" not in screen(capsys, "qwen3-8b", "--machine", "a6000")


@pytest.mark.parametrize("kv_type", ["q5_1", "q8_0,q5_1"])
def test_a_cache_without_a_fast_kernel_is_not_said_to_be_as_fast_as_f16(
    capsys: pytest.CaptureFixture[str], kv_type: str
) -> None:
    words = " ".join(screen(capsys, "qwen3-8b", "--machine", "rtx-3090", "--kv-type", kv_type).split())
    assert f"predicted for a cache of f16; one of {kv_type} is slower here" in words
    assert "is slower here" not in screen(capsys, "qwen3-8b", "--machine", "rtx-3090", "--kv-type", "q8_0")


def test_the_other_drafts_of_the_chosen_model_are_weighed(capsys: pytest.CaptureFixture[str]) -> None:
    content = plan_report(capsys, "qwen3.8-27b", "--machine", "rtx-3090")
    chosen = content["chosen"]
    reasons = [
        each["reason"]
        for each in content["rejected"]
        if (each["target"], each["quant"]) == (chosen["target"], chosen["quant"])
    ]
    assert reasons and not any("at best" in reason for reason in reasons)


def test_what_people_settled_is_planned_with(capsys: pytest.CaptureFixture[str]) -> None:
    free = plan_report(capsys, "qwen3-32b:Q4_K_M", "--machine", "rtx-3090")["chosen"]
    said = plan_report(capsys, "qwen3-32b:Q4_K_M", "--machine", "rtx-3090", "--kv-type", "f16")["chosen"]
    assert (free["kv_type"], said["kv_type"]) == ("q8_0", "f16") and said["ctx"] < free["ctx"]
    layers = plan_report(capsys, "qwen3-32b:Q4_K_M", "--machine", "rtx-3090", "--gpu-layers", "10")["chosen"]
    assert layers["gpu_layers"] == 10 and layers["predicted"]["plain_tok_s"] < 5
    one = plan_report(capsys, "qwen3-8b:Q8_0", "--machine", "2x-rtx-3090", "--device", "CUDA1")["chosen"]
    assert [each["device"] for each in one["memory"]["devices"]] == ["RAM", "CUDA1"]


def test_the_config_is_planned_with_but_its_gpus_are_of_this_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "config" / "eaglelocal"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        'kv_type = "q4_0"\ndraft = "none"\ndevice = "Vulkan3"\ngpu_layers = 3\nn_cpu_moe = 4\nsplit = "2,1"\n'
    )
    chosen = plan_report(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-3090")["chosen"]
    assert (chosen["kv_type"], chosen["draft"], chosen["gpu_layers"]) == ("q4_0", "none", None)
    with pytest.raises(UsageError, match="Vulkan3"):
        main.run(["plan", "qwen3-8b:Q4_K_M"])


def test_a_draft_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    content = plan_report(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-3090", "--draft", "e3-qwen3-8b-tengyunw")
    assert content["chosen"]["draft"] == "e3-qwen3-8b-tengyunw"
    every = plan_report(capsys, "--machine", "rtx-3090", "--draft", "e3-qwen3-8b-tengyunw")
    assert every["chosen"]["target"] == "qwen3-8b"


def test_one_token_of_context_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert " 1 token of context" in screen(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-3090", "--ctx", "1")


def test_a_target_a_quantization_and_a_context(capsys: pytest.CaptureFixture[str]) -> None:
    content = plan_report(capsys, "qwen3-8b:q5_k_m", "--machine", "rtx-3090", "--ctx", "12345", "--parallel", "3")
    chosen = content["chosen"]
    assert (chosen["target"], chosen["quant"], chosen["ctx"], chosen["parallel"]) == ("qwen3-8b", "Q5_K_M", 12345, 3)
    assert {each["target"] for each in content["rejected"]} == {"qwen3-8b"}


def test_a_repository_of_the_catalogue_is_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    chosen = plan_report(capsys, "qwen/qwen3-8b-gguf:Q8_0", "--machine", "rtx-3090")["chosen"]
    assert (chosen["target"], chosen["quant"]) == ("qwen3-8b", "Q8_0")


def test_the_embedded_model_is_planned_without_being_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chosen = plan_report(capsys, "demo@8b:q4_0", "--machine", "rtx-3090")["chosen"]
    assert chosen["draft_kind"] == "eagle3" and chosen["num_draft_tokens"] >= 1
    assert 4.0 < chosen["memory"]["weights_bytes"] / 2**30 < 4.7  # 8e9 values of 4.5 bits
    assert chosen["commands"]["pull"] is None
    assert not list(tmp_path.rglob("*.gguf"))


def test_a_file_is_planned_from_its_header(capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = demo_sources()
    chosen = plan_report(capsys, str(path), "--machine", "cpu-16gb")["chosen"]
    assert chosen["reference"] == str(path)
    assert chosen["memory"]["weights_bytes"] == pytest.approx(path.stat().st_size, rel=0.05)


def test_what_is_on_disk_need_not_be_fetched(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--Qwen--Qwen3-8B-GGUF" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    sketch = replace(REAL["qwen3-8b"], type="Q4_K")
    path = write_sketch(snapshot / "Qwen3-8B-Q4_K_M.gguf", sketch)
    arguments = ("qwen3-8b:q4_k_m", "--machine", "rtx-3090", "--goal", "quality")
    chosen = plan_report(capsys, *arguments)["chosen"]
    assert chosen["memory"]["weights_bytes"] == read_shape(read_header(path)).weights_bytes
    assert chosen["draft_kind"] == "eagle3" and chosen["commands"]["pull"]  # the head is not here
    chosen = plan_report(capsys, *arguments, "--draft", "ngram")["chosen"]
    assert chosen["draft_kind"] == "ngram"
    assert chosen["commands"]["pull"] is None
    assert "get it" not in screen(capsys, *arguments, "--draft", "ngram")


def test_a_machine_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "config" / "eaglelocal" / "machines"
    folder.mkdir(parents=True)
    (folder / "shed.toml").write_text(
        '[shed]\nname = "The one in the shed"\nkind = "cpu"\nmemory_mib = 16384\nbandwidth_gb_s = 60\n'
    )
    assert plan_report(capsys, "--machine", "shed")["machine"] == "The one in the shed"


def test_main_memory_next_to_a_card_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    content = plan_report(capsys, "gpt-oss-120b", "--machine", "rtx-3090", "--ram", "64")
    assert content["devices"][-1]["total_bytes"] == 64 * 2**30
    assert content["chosen"]["gpu_layers"] is None and 0 < content["chosen"]["n_cpu_moe"] < 36
    assert "(64 GiB at 51 GB/s, as assumed), prompts slowly" in content["chosen"]["reasons"][1]
    shown = " ".join(screen(capsys, "gpt-oss-120b", "--machine", "rtx-3090", "--ram", "64").split())
    assert f"37 of 37 layers on the GPU, experts of {content['chosen']['n_cpu_moe']} of 36 in main memory" in shown


def test_a_table_says_what_lies_where(capsys: pytest.CaptureFixture[str]) -> None:
    """GiB of the file, the cache's type and slots, and that a part stays in main memory."""
    lines = screen(capsys, "qwen3-next-80b", "qwen3-8b:Q4_K_M", "--machine", "rtx-3090", "--parallel", "2").splitlines()
    split, whole = lines[3], lines[4]
    assert "*" in split and "*" not in whole
    gib = next(float(word) for word in split.split() if re.fullmatch(r"\d+\.\d", word))
    assert gib > 24
    assert " 2 x " in whole
    assert any(line.startswith("tok/s*: a part of the model stays in main memory") for line in lines)
    alone = screen(capsys, "qwen3-8b:Q4_K_M", "qwen3-4b:Q4_K_M", "--machine", "rtx-3090")
    assert "tok/s*" not in alone and max(map(len, alone.splitlines())) <= 80


def test_several_answers_at_once_have_a_speed_in_all(capsys: pytest.CaptureFixture[str]) -> None:
    alone = plan_report(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-4090")["chosen"]["predicted"]
    assert alone["together_tok_s"] is None
    speeds = [
        plan_report(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-4090", "--parallel", str(slots))["chosen"]["predicted"]
        for slots in (2, 4, 8)
    ]
    together = [speed["together_tok_s"] for speed in speeds]
    assert alone["plain_tok_s"] < together[0] < together[1] < together[2] < 8 * alone["plain_tok_s"]
    shown = " ".join(screen(capsys, "qwen3-8b:Q4_K_M", "--machine", "rtx-4090", "--parallel", "4").split())
    assert f"for an answer alone; 4 at once {together[1]:.0f} in all, without drafts" in shown


def test_costs_of_a_plan_are_explained_before_its_drafts(capsys: pytest.CaptureFixture[str]) -> None:
    """Three reasons are shown: layers in main memory are among them."""
    shown = " ".join(screen(capsys, "gpt-oss-20b:MXFP4", "--machine", "rtx-3060").split())
    assert "of 25 layers fit the GPU" in shown and "1 looked-up token is safe" in shown
    apple = " ".join(screen(capsys, "qwen3.6-27b:Q4_K_M", "--machine", "m2-24gb").split())
    assert "iogpu.wired_limit_mb" in apple


@pytest.mark.parametrize("machine", ["cpu-32gb", "cuda-8gb"])
def test_what_is_chosen_is_not_rejected_too(capsys: pytest.CaptureFixture[str], machine: str) -> None:
    content = plan_report(capsys, "qwen3.6-35b-a3b", "--machine", machine)
    chosen = content["chosen"]
    ours = [
        each
        for each in content["rejected"]
        if each["quant"] == chosen["quant"] and (each["draft"] or "none") == chosen["draft"]
    ]
    assert not ours


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert plan_report(capsys, "qwen3-0.6b")["chosen"]["target"] == "qwen3-0.6b"


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--machine", "rtx3091"], UsageError, "rtx-3090"),
        (["--goal", "balance"], UsageError, "--goal balanced"),
        (["--machine", "rtx-3090,list"], UsageError, "list goes alone --machine list"),
        (["--machine", " , "], UsageError, "--machine list"),
        (["--ctx", "0"], UsageError, "whole number of at least 1"),
        (["--ctx", "many"], UsageError, "ctx"),
        (["--parallel", "99"], UsageError, "64"),
        (["qwen3-8x"], UsageError, "qwen3-8b"),
        (["qwen3-8b:Q9"], UsageError, "Q4_K_M"),
        (["nobody/knows-this"], ModelFileError, "nobody/knows-this"),
        (["a b"], UsageError, "unknown target 'a-b'"),
        (["missing.gguf"], EagleLocalError, "does not exist"),
        (["llama-3.3-70b", "--machine", "m1-8gb"], ResourceError, "nothing fits Apple M1"),
        (
            ["qwen3-8b", "--ctx", "99999999", "--machine", "a6000"],
            ResourceError,
            "for 40960 tokens --ctx 40960",
        ),
        (["--ctx", "99999999", "--machine", "a6000"], ResourceError, "the most of all --ctx 10485760"),
        (["--ram", "64"], UsageError, "--machine rtx-3090 --ram 64"),
        (["--machine", "cpu-16gb", "--ram", "64"], UsageError, "has no separate RAM"),
        (["qwen3-8b", "--machine", "rtx-3090", "--device", "CUDA1"], UsageError, "one of: CUDA0, CPU"),
        (["qwen3-8b", "--machine", "rtx-3090", "--split", "3,1"], UsageError, "leave --split out"),
        (["qwen3-8b", "--machine", "rtx-3090", "--split", "half"], UsageError, "layer, tensor, row, none"),
        (["qwen3-8b", "--machine", "rtx-3090", "--split", "tensor"], UsageError, "this run uses 1 GPU"),
        (["qwen3-8b", "--kv-type", "q6_k"], UsageError, "f16, q8_0, q5_1"),
        (["qwen3-8b", "--machine", "rtx-3090", "--kv-type", "iq4_nl"], UsageError, "no kernel for iq4_nl on CUDA0"),
        (["qwen3-8b", "--machine", "m1-8gb", "--kv-type", "q8_0,q5_1"], UsageError, "--kv-type q8_0"),
        (["qwen3-8b", "--gpu-layers", "some"], UsageError, "--gpu-layers must be auto or a whole number"),
        (["qwen3-8b", "--machine", "rtx-3090", "--n-cpu-moe", "4"], ResourceError, "this model has no experts"),
        (["qwen3-8b", "--draft", "e3-nobody"], UsageError, "e3-qwen3-8b-angelslim"),
        (["qwen3-8b", "--draft", "lokahead"], UsageError, "--draft lookahead"),
        (
            ["qwen3-32b:Q4_K_M", "--machine", "rtx-3090", "--gpu-layers", "65", "--ctx", "40960", "--kv-type", "f16"],
            ResourceError,
            "--kv-type q",
        ),
    ],
)
def test_errors_have_a_way_out(arguments: list[str], kind: type[EagleLocalError], words: str) -> None:
    with pytest.raises(kind) as wrong:
        main.run(["plan", *arguments])
    assert words in f"{wrong.value.message} {wrong.value.hint}"


def test_nothing_fits_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ResourceError) as wrong:
        main.run(["plan", "llama-3.3-70b", "--machine", "m1-8gb", "--json"])
    content = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert content["chosen"] is None
    assert len(content["rejected"]) >= 6 and all(each["reason"] for each in content["rejected"])
    assert wrong.value.hint == "a smaller model"


def test_what_reads_images_is_a_part_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "llama.gguf"
    write_sketch(path, REAL["llama-3.1-8b"])
    assert plan_report(capsys, str(path))["chosen"]["memory"]["images_bytes"] == 0
    width = read_shape(read_header(path)).n_embd
    (tmp_path / "mmproj-F16.gguf").write_bytes(projector_bytes(width=width))
    assert ", images 0." in screen(capsys, str(path))
    assert plan_report(capsys, str(path), "--mmproj", "none")["chosen"]["memory"]["images_bytes"] == 0
    assert "--mmproj none" in plan_report(capsys, str(path), "--mmproj", "none")["chosen"]["commands"]["run"]
    (tmp_path / "mmproj-F16.gguf").rename(tmp_path / "eyes.gguf")
    named = plan_report(capsys, str(path), "--mmproj", str(tmp_path / "eyes.gguf"))
    assert named["chosen"]["memory"]["images_bytes"] > 0


# ---- several machines or models
def test_several_machines_are_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = screen(capsys, "--machine", "rtx-3090,m2-max-32gb, cpu-16gb").splitlines()
    assert lines[0].split() == ["machine", "model", "quant", "GiB", "context", "tok/s", "quality"]
    assert len(lines) == 1 + 3 + 3
    assert all(len(line) <= WIDTH for line in lines)
    for line in lines[1:4]:
        *_, gib, context, tok_s, quality = line.split()
        assert float(gib) > 0 and int(context) >= 4096 and float(tok_s) > 0 and float(quality) > 0


def test_several_models_are_a_short_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = screen(capsys, "qwen3-8b", "qwen3-32b", "--machine", "cuda-8gb").splitlines()
    assert lines[0].startswith("machine  ") and [line.split()[0] for line in lines[3:5]] == ["qwen3-8b", "qwen3-32b"]
    content = plan_report(capsys, "qwen3-8b", "qwen3-4b", "--machine", "rtx-3090,cuda-8gb")
    assert [each["chosen"]["target"] for each in content["plans"]] == ["qwen3-8b", "qwen3-4b"] * 2
    assert len({each["machine"] for each in content["plans"]}) == 2


def test_what_does_not_fit_stays_in_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = screen(
        capsys, "qwen3-8b", "--machine", "m1-8gb,rtx-3090", "--ctx", "32768", "--kv-type", "f16"
    ).splitlines()
    assert ["no room" in line for line in lines[1:3]] == [True, False]
    with pytest.raises(ResourceError, match="none of these fits"):
        main.run(["plan", "qwen3-32b", "qwen3-8b", "--machine", "m1-8gb", "--ctx", "32768", "--kv-type", "f16"])


def test_the_machines_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = screen(capsys, "--machine", "list").splitlines()
    names = [line.split()[0] for line in lines[1:-2]]
    assert set(names) == set(load_catalog().machines)
    assert any(line.startswith("rtx-3090 ") and "24 GiB" in line for line in lines)
    assert [each["id"] for each in plan_report(capsys, "--machine", "list")["machines"]] == names


def test_an_unknown_model_is_a_row_and_an_error_after_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["qwen3-8b", "qwen3-8x", "./nowhere.gguf", "--machine", "rtx-3090"]
    with pytest.raises(EagleLocalError) as wrong:
        main.run(["plan", *arguments])
    machine, _, _, *rows = capsys.readouterr().out.splitlines()[:6]
    assert machine == "machine  RTX 3090 24GB"
    assert ["error" in row for row in rows] == [False, True, True]
    assert "unknown target 'qwen3-8x'" in wrong.value.message and "nowhere.gguf does not exist" in wrong.value.message
    assert wrong.value.exit_code != 0 and "qwen3-8b" in wrong.value.hint
    with pytest.raises(UsageError):
        main.run(["plan", *arguments, "--json"])
    planned, unknown, missing = json.loads(capsys.readouterr().out)["plans"]
    assert planned["chosen"]["target"] == "qwen3-8b"
    assert (unknown["chosen"], unknown["target"]) == (None, "qwen3-8x")
    assert unknown["error"]["message"] == "unknown target 'qwen3-8x'"
    assert "nowhere.gguf" in missing["error"]["message"]


def test_an_unknown_machine_does_not_hide_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown machine 'rtx-3091'"):
        main.run(["plan", "qwen3-8b", "--machine", "rtx-3091,rtx-3090"])
    rows = capsys.readouterr().out.splitlines()[1:3]
    assert ["error" in row for row in rows] == [True, False]


def test_a_table_of_errors_alone_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="unknown target 'x-1'; unknown target 'x-2'"):
        main.run(["plan", "x-1", "x-2", "--machine", "rtx-3090"])
    assert capsys.readouterr().out == ""


def test_rejected_candidates_are_listed_below_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    few, every = (screen(capsys, "qwen3-8b", "qwen3-4b", "--machine", "rtx-3090", *more) for more in ((), ("--all",)))
    assert every.startswith(few) and len(every.splitlines()) > len(few.splitlines()) + 10
    assert "not taken, RTX 3090 24GB, qwen3-8b" in every and "not taken, RTX 3090 24GB, qwen3-4b" in every
    assert all(len(line) <= WIDTH for line in every.splitlines())


def test_where_nothing_fits_the_reasons_are_shown_and_then_what_helps(capsys: pytest.CaptureFixture[str]) -> None:
    tight = ["qwen3-32b", "qwen3-8b", "--machine", "m1-8gb", "--ctx", "32768", "--kv-type", "f16"]
    with pytest.raises(ResourceError) as wrong:
        main.run(["plan", *tight])
    assert wrong.value.hint == "--all"  # the whole command, with the models and machines, once it is shown
    with pytest.raises(ResourceError) as wrong:
        main.run(["plan", *tight, "--all"])
    assert "of weights" in capsys.readouterr().out
    assert wrong.value.hint.startswith("--ctx ")
    with pytest.raises(ResourceError):
        main.run(["plan", "llama-3.3-70b", "--machine", "m1-8gb", "--all"])
    assert "not taken, Apple M1" in capsys.readouterr().out


def test_rpc_servers_of_another_machine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match="--rpc box:50052: its link can only be measured from that machine"):
        main.run(["plan", "qwen3-8b", "--machine", "rtx-3090", "--rpc", "box:50052"])


def test_adapters_are_counted_with_the_weights_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "llama.gguf"
    write_sketch(target, REAL["llama-3.1-8b"])
    poems, code = (write_lora(tmp_path / f"{name}.gguf", target, seed=0) for name in ("poems", "code"))
    plain = plan_report(capsys, str(target), "--ctx", "4096")["chosen"]
    given = ("--ctx", "4096", "--lora", str(poems), "--lora", f"{code}:0.5")
    adapted = plan_report(capsys, str(target), *given)["chosen"]
    size = 2 * read_header(poems).tensor_bytes
    assert (plain["memory"]["adapters_bytes"], adapted["memory"]["adapters_bytes"]) == (0, size)
    assert adapted["memory"]["weights_bytes"] - plain["memory"]["weights_bytes"] == size
    assert [each["scale"] for each in adapted["adapters"]] == [1.0, 0.5]
    assert f"--lora {poems} --lora {code}:0.5" in adapted["commands"]["run"]
    assert "adapters 0 poems.gguf, 1 code.gguf x 0.5: " in screen(capsys, str(target), *given)
    other = write_lora(tmp_path / "other.gguf", target, seed=0, architecture="qwen3")
    with pytest.raises(IncompatibleError, match=r"other\.gguf is for the architecture qwen3"):
        main.run(["plan", str(target), "--lora", str(other)])


def test_adapters_choose_among_the_models_of_the_catalogue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "llama.gguf"
    write_sketch(target, REAL["llama-3.1-8b"])
    poems = write_lora(tmp_path / "poems.gguf", target, seed=0)
    found = plan_report(capsys, "--machine", "rtx-3090", "--lora", str(poems))
    targets = load_catalog().targets
    shown = {found["chosen"]["target"], *(each["target"] for each in found["rejected"])}
    assert {targets[name].outline.architecture for name in shown} == {"llama"}
    with pytest.raises(IncompatibleError, match="is for the architecture llama, the target is qwen3"):
        main.run(["plan", "qwen3-8b", "--machine", "rtx-3090", "--lora", str(poems)])


def test_an_adapter_of_an_unlisted_model_fits_no_catalog_model(tmp_path: Path) -> None:
    small = write_lora(tmp_path / "small.gguf", write_target(tmp_path / "target.gguf", TargetShape()), seed=0)
    with pytest.raises(IncompatibleError, match=r"none of these \d+ models is the one that small\.gguf is for"):
        main.run(["plan", "--machine", "rtx-3090", "--lora", str(small)])
    with pytest.raises(IncompatibleError, match=r"small\.gguf is for a model of width 128, the target has 4096"):
        main.run(["plan", "llama-3.1-8b", "--machine", "rtx-3090", "--lora", str(small)])
    with pytest.raises(ModelFileError, match=r"small\.gguf is a LoRA adapter, not a model") as caught:
        main.run(["plan", str(small)])
    assert caught.value.hint == f"eaglelocal chat --target MODEL --lora {small}"


def test_tensors_on_devices_of_their_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    moe = write_runnable(tmp_path / "moe.gguf", "qwen3moe")
    given = (str(moe), "--machine", "rtx-3090", "--override-tensor", "_exps=CPU", "--override-tensor", "^output=CUDA0")
    chosen = plan_report(capsys, *given)["chosen"]
    assert chosen["overrides"] == ["_exps=CPU", "^output=CUDA0"]
    assert "--override-tensor _exps=CPU --override-tensor '^output=CUDA0'" in chosen["commands"]["run"]
    assert any("on RAM, by --override-tensor" in reason for reason in chosen["reasons"])
    for wrong, words in (("_exps=CUDA1", "one of: CUDA0, CPU"), ("_exps", "names no device")):
        with pytest.raises(UsageError) as caught:
            main.run(["plan", str(moe), "--machine", "rtx-3090", "--override-tensor", wrong])
        assert words in f"{caught.value.message} {caught.value.hint}"
