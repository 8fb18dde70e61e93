"""The page of a measurement: what may be posted of a machine, and its tables."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal.bench.report_page import (
    MachineFacts,
    ModeFacts,
    ModelFacts,
    PredictedFacts,
    ReportFacts,
    format_page,
    report_object,
)
from eaglelocal.bench.results import Bound, CategoryResult, Summary
from eaglelocal.cli.bench_report import describe_machine
from eaglelocal.probe.machine import Cpu, Gpu, GpuProcess, LlamaCpp, Machine, MainMemory, System

GIB = 2**30
CARD = Gpu(
    index=0,
    name="NVIDIA GeForce RTX 3090",
    total_bytes=24 * GIB,
    driver="580.1",
    uuid="GPU-secret",
    processes=(GpuProcess(pid=7, name="/home/ada/game"),),
)
MACHINE = Machine(
    gpus=(CARD, replace(CARD, index=1, name=None, total_bytes=None, capability="8.6", driver=None)),
    unified=None,
    cpu=Cpu(name="Ryzen 9 5950X", usable_threads=16),
    memory=MainMemory(total_bytes=64 * GIB),
    cache_free_bytes=None,
    llama_cpp=LlamaCpp(version="0.3.36", backends=("cuda", "cpu"), folder=Path("/home/ada/venv")),
    system=System(name="Debian 13", kernel="6.12-ada"),
)
MODEL = ModelFacts(
    target="qwen3-8b:Q4_K_M",
    draft="head",
    n_ctx=8192,
    num_slots=1,
    kv_type="f16",
    flash_attn="on",
    threads=8,
    weights_bytes=5 * GIB,
    cache_bytes=GIB,
    buffers_bytes=GIB // 2,
)


def make_mode(mode: str, speedup: float, *, concurrency: int = 1) -> ModeFacts:
    return ModeFacts(
        mode=mode,
        concurrency=concurrency,
        plain_tok_s=100.0,
        tok_s=100.0 * speedup,
        speedup=speedup,
        speedup_low=None,
        speedup_high=None,
        acceptance_length=2.5,
        by_depth=(0.8, 0.5),
        num_answers=12,
    )


def make_summary(mode: ModeFacts) -> Summary:
    run = CategoryResult(
        category="chat",
        concurrency=mode.concurrency,
        side=mode.mode,
        speedup=Bound(mode.speedup),
        plain_tok_s=mode.plain_tok_s,
        tok_s=mode.tok_s,
        acceptance_length=mode.acceptance_length,
        plain_ttft_s=None,
        ttft_s=None,
        num_pairs=12,
        num_short=0,
        num_answers=12,
        num_identical=12,
        num_reused=0,
        num_drafts=9,
        num_asleep=0,
        differences=(),
    )
    return Summary(mode.mode, mode.concurrency, Bound(mode.speedup, mode.speedup - 0.1, mode.speedup + 0.1), run, 12)


def make_facts(*modes: ModeFacts, machine: MachineFacts | None = None) -> ReportFacts:
    return ReportFacts(
        machine=machine or describe_machine(MACHINE),
        model=MODEL,
        answers="greedy, at most 64 tokens, prompts not cached",
        predicted=PredictedFacts(plain_tok_s=110.0, spec_tok_s=180.0, num_draft_tokens=3),
        modes=modes,
        summaries=tuple(map(make_summary, modes)),
    )


def test_a_machine_is_described_without_its_owner() -> None:
    facts = describe_machine(MACHINE)
    assert facts.gpus == ("NVIDIA GeForce RTX 3090, 24.0 GiB, driver 580.1", "GPU")
    assert facts.cpu == "Ryzen 9 5950X, 16 threads"
    single = replace(MACHINE, cpu=replace(MACHINE.cpu, usable_threads=1))
    assert describe_machine(single).cpu == "Ryzen 9 5950X, 1 thread"
    assert facts.llama_cpp == "llama-cpp-python 0.3.36 (cuda, cpu)"
    page = format_page(make_facts(make_mode("auto", 1.6), machine=facts)) + str(report_object(make_facts()))
    for personal in ("ada", "secret", "/home"):
        assert personal not in page


def test_the_best_fixed_length_is_the_fastest_alone() -> None:
    modes = (make_mode("auto", 1.9), make_mode("2", 1.4), make_mode("4", 1.7), make_mode("8", 3.0, concurrency=4))
    assert make_facts(*modes).best_length == "4"
    assert make_facts(make_mode("auto", 1.9)).best_length is None


def test_the_page_has_a_row_for_each_mode() -> None:
    page = format_page(make_facts(make_mode("auto", 1.6), make_mode("4", 1.5)))
    assert "| auto | 1 | 100.0 | 160.0 | 1.60x 1.50..1.70 | 2.50 | 80% 50% |" in page
    assert "| predicted | 110.0 tok/s plain, 180.0 with drafts (at 3 ahead) |" in page
    assert "| memory | 6.50 GiB: weights 5.00, caches 1.00, buffers 0.50 |" in page
    widths = {line.count("|") for line in page.splitlines() if line.startswith("|")}
    assert widths == {3, 8}


@pytest.mark.parametrize("name", ["x\n# evil", "x\r\n\n![a](https://x)", "<img src=x>", "x\u2028y", "`x", "x\udcff"])
def test_a_name_writes_no_markup(name: str) -> None:
    plain = replace(make_facts(make_mode("auto", 1.1)), model=replace(MODEL, target="harmless"))
    page = format_page(replace(plain, model=replace(MODEL, target=name)))
    assert len(page.split("\n")) == len(format_page(plain).split("\n")) and page.encode()
    assert not re.search(r"(?<!\\)[<>`\[\]]", page.partition("\n")[0])


def test_a_bar_in_a_name_does_not_break_the_table() -> None:
    odd = replace(describe_machine(MACHINE), cpu="A | B")
    assert "| processor | A \\| B |" in format_page(make_facts(make_mode("auto", 1.1), machine=odd))
