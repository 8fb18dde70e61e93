"""The comparison of plans with published speeds, on files with holes, and on the figures that it must keep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "measures" / "public_speeds.py"
HEADER = "machine id,model,quant,engine,ctx,draft,length,plain_tok_s,spec_tok_s"
# lines as they were published: a card, a Mac, AMD, main memory shared with the GPU
GOOD = [
    "rtx-4090,qwen3.6-27b,Q4_K_M,llama.cpp,4096,none,,46.6,",
    "rtx-5070,qwen3-4b,Q4_K_M,llama.cpp (llmfit),4096,none,,156.0,",
    "m4-pro-24gb,llama-3.1-8b,Q4_K_M,llama.cpp (llmfit),4096,none,,47.25,",
    "rx-7900-xt,phi-4,Q4_K_M,llama.cpp (llmfit),4096,none,,66.04,",
    "dgx-spark,qwen3-30b-a3b,Q8_0,llama.cpp depth=8192,16384,none,,48.58,",
    "rtx-4090,qwen3.8-27b,Q4_K_M,llama.cpp,8192,mtp,2,47.7,87.1",
]


def compare(folder: Path, lines: list[str], header: str = HEADER, *flags: str) -> subprocess.CompletedProcess[str]:
    path = folder / "speeds.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return run_script(path, "--rows", *flags)


def run_script(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_published_speeds_are_predicted_within_the_bounds(tmp_path: Path) -> None:
    done = compare(tmp_path, GOOD)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "over" not in done.stdout


def test_a_speed_far_from_the_prediction_fails(tmp_path: Path) -> None:
    done = compare(tmp_path, ["rtx-4090,llama-3.1-8b,Q4_K_M,llama.cpp,4096,none,,60,"])
    assert done.returncode == 1
    assert "over 7%" in done.stdout


def test_a_planned_draft_that_lost_fails(tmp_path: Path) -> None:
    lost = "rtx-4090,qwen3.8-27b,Q4_K_M,llama.cpp,8192,mtp,2,47.7,40.0"
    done = compare(tmp_path, [lost])
    assert done.returncode == 1
    assert "line 2, rtx-4090, qwen3.8-27b:Q4_K_M: " in done.stdout


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("rtx-9999,llama-3.1-8b,Q4_K_M,llama.cpp,4096,none,,100,", "rtx-9999"),
        ("rtx-4090,llama-99b,Q4_K_M,llama.cpp,4096,none,,100,", "the catalog has no model llama-99b"),
        ("rtx-4090,llama-3.1-8b,Q1_X,llama.cpp,4096,none,,100,", "the catalog has no llama-3.1-8b in Q1_X"),
        ("rtx-4090,llama-3.1-8b,Q4_K_M,llama.cpp,4096,medusa,3,100,120", "knows no draft medusa"),
    ],
)
def test_a_line_that_cannot_be_planned_is_named(tmp_path: Path, line: str, reason: str) -> None:
    done = compare(tmp_path, [*GOOD, line])
    assert done.returncode == 0
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("lines", "header", "reason"),
    [
        (["a,b"], "machine id,model", "has no column quant"),
        (["rtx-4090,llama-3.1-8b,Q4_K_M,llama.cpp,4096,none,,fast,"], HEADER, "line 2"),
        (["rtx-4090,llama-3.1-8b,Q4_K_M,llama.cpp,4096,none,,-3,"], HEADER, "line 2: not a speed: -3"),
        (["rtx-4090,llama-3.1-8b"], HEADER, "quant missing"),
        ([], HEADER, "no line that can be planned"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, lines: list[str], header: str, reason: str) -> None:
    done = compare(tmp_path, lines, header)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_empty_fields_are_not_measured(tmp_path: Path) -> None:
    done = compare(tmp_path, [*GOOD, "rtx-4090,llama-3.1-8b,Q4_K_M,,,,,,"])
    assert done.returncode == 0, done.stdout + done.stderr


WITH_SOURCE = f"source,{HEADER}"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("table [old2024],rtx-4090,llama-3.1-8b,Q4_K_M,llama.cpp,4096,none,,127.74,", "llama.cpp of 2024"),
        ("readme [250W],rtx-3090,qwen3.8-27b,Q4_K_M,llama.cpp kv=q4_0,131072,mtp,4,31.9,52.8", "a power limit"),
        ("readme [footnote not read],rtx-4090,qwen3.8-27b,,llama.cpp,,mtp,2,47.0,68.8", "a footnote was not read"),
        ("readme,m3-ultra-512gb,qwen3.8-27b,MLX 8bit,mlx-lm fork,,mtp,2,37.6,46.8", "another engine"),
        ("issue,rtx-3090,qwen3.8-27b,Q4_K_M,llama.cpp fork kv=q4_0,4096,mtp,6,39.8,61.5", "a fork of llama.cpp"),
        ("table,a4000,gpt-oss-20b,Q4_K_M,llama.cpp vulkan,4096,none,,93.55,", "Vulkan on an NVIDIA card"),
        ("x (file: My Q4-XYZ),rtx-3090,qwen3.8-27b,Q4_K_M,llama.cpp,,mtp,4,26,59", "a publisher's own quantization"),
    ],
)
def test_an_odd_line_is_counted_by_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    done = compare(tmp_path, [*(f"table,{good}" for good in GOOD), line, line], WITH_SOURCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == f"left out, {reason}: 2\n"


@pytest.mark.parametrize(
    ("line", "planned"),
    [
        ("x (file measured: UD-Q4_K_XL 17.9GB),rtx-5090,qwen3.8-27b,Q5_K_S,llama.cpp,4096,none,,74.8,", "74."),
        ("x,3x-rtx-3060,qwen3.8-27b,Q4_K_XL,llama.cpp,4096,none,,17.3,", "17.0 "),  # three of the catalog's card
        ("x [sm tensor],2x-rtx-5090,qwen3.8-27b,Q4_K_M,llama.cpp,4096,none,,107.5,", "107."),
        ("x [45 of 66 layers on the card],rtx-4070-ti,qwen3.8-27b,IQ4_XS,llama.cpp offload,4096,none,,5.98,", "6."),
    ],
)
def test_a_line_is_mapped_to_the_catalog(tmp_path: Path, line: str, planned: str) -> None:
    done = compare(tmp_path, [line], WITH_SOURCE)
    assert f" {planned}" in done.stdout.splitlines()[0], done.stdout + done.stderr


def test_several_files_are_fitted_and_each_card_is_left_out(tmp_path: Path) -> None:
    paths = [tmp_path / "first.csv", tmp_path / "second.csv"]
    more = ["rtx-5090,qwen3.6-27b,Q4_K_M,llama.cpp,4096,none,,70.1,", "rtx-9999,qwen3-8b,Q8_0,llama.cpp,4096,none,,9,"]
    for path, lines in zip(paths, (GOOD, more), strict=True):
        path.write_text("\n".join([HEADER, *lines]) + "\n")
    done = run_script("--fit", *paths)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr.startswith("second.csv line 3, rtx-9999")
    lines = done.stdout.splitlines()
    recent = lines.index("NVIDIA, recent  3 cards")
    assert [line.split("plain")[0].strip() for line in lines[recent + 1 : recent + 9 : 2]] == [
        "as it is",
        "fitted",
        "card left out",
        "other half",
    ]
    assert "  card left out  too few cards" in lines  # of a single Mac
