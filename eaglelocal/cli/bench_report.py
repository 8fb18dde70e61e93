"""The output of `bench`: what was measured, the table, the chart, the JSON object.

This file decides where each part goes; eaglelocal/bench makes the parts.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.output import Output
from eaglelocal.core.amounts import count_noun, format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.bench.arrivals import LoadWindow
    from eaglelocal.bench.measure import TaskResult
    from eaglelocal.bench.report_page import MachineFacts, ModelFacts, PredictedFacts
    from eaglelocal.bench.results import CategoryResult, Summary
    from eaglelocal.core.events import EngineInfo
    from eaglelocal.core.request import Spec
    from eaglelocal.core.run_options import RunOptions
    from eaglelocal.core.sampling import SamplingParams
    from eaglelocal.probe.machine import Gpu, Machine

SERVER_SIDE = "server"
DEFAULT_PAIRS = 5  # prompts of each category
JSON_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a run: modes, numbers of requests at once, sampling, and the limit of time."""

    modes: tuple[Spec, ...]
    levels: tuple[int, ...]
    params: SamplingParams
    limit_s: float = math.inf  # for each mode
    skip: int = 0  # tokens at the beginning of each answer that its speed leaves out
    rates: tuple[float, ...] = ()  # requests per second; () measures by levels


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The results of a run, and why some are missing."""

    task_results: list[TaskResult]
    num_tasks: int
    error: EagleLocalError | None
    too_long: Sequence[EagleLocalError] = ()  # one per skipped task: a prompt does not fit the context
    windows: Sequence[LoadWindow] = ()  # of --rate, which has no other results


@dataclass(frozen=True, slots=True)
class BenchSubject:
    """The description of a run: the engine, the options, and another server if one was measured."""

    info: EngineInfo
    options: BenchOptions
    server: EngineInfo | None  # another server that was measured; its `library` is the URL
    weights: str  # type of most weights of the target
    tie_bound: float  # largest gap of logits that counts as a near-tie
    kv_type: str = "f16"
    predicted: PredictedFacts | None = None  # what `plan` says without measurements, for --report


def check_files(svg: Path | None, page: Path | None) -> None:
    """Raise UsageError if chart or page could not be written: before the measurement, not after minutes of it."""
    for what, file in (("chart", svg), ("report", page)):
        if file is not None and not file.absolute().parent.is_dir():
            raise UsageError(f"the folder of the {what} {file} does not exist")
    if page is not None and (page.suffix == JSON_SUFFIX or page.is_dir()):
        raise UsageError(f"--report {page} is not the name of a Markdown file", hint="--report FILE.md")


def show_result(
    result: BenchResult,
    subject: BenchSubject,
    output: Output,
    *,
    as_json: bool,
    svg: Path | None = None,
    page: Path | None = None,
) -> None:
    """Print the report and the JSON object, and write the chart and the page, for the results so far."""
    from eaglelocal.bench.report import format_report, result_object
    from eaglelocal.bench.results import evaluate

    num_results = len(result.task_results)
    if result.too_long and num_results:
        output.message(f"left out: {count_noun(len(result.too_long), 'comparison')}, for {result.too_long[0].message}")
    if result.error is not None:
        output.message(f"stopped after {num_results} of {result.num_tasks} comparisons")
    elif num_results + len(result.too_long) < result.num_tasks:
        done = f"{num_results} of {result.num_tasks} comparisons"
        output.message(f"time limit after {done}; --pairs {DEFAULT_PAIRS} runs all")
    if not num_results:
        return
    evaluation = evaluate(result.task_results, subject.options.modes, server=SERVER_SIDE if subject.server else None)
    output.data("\n".join(head_lines(subject)))
    output.data(f"\n{format_report(evaluation, flash_attn=subject.info.flash_attn, weights=subject.weights)}")
    try:
        if svg is not None:
            write_chart(svg, evaluation.runs, subject)
            output.message(f"chart: {svg}")
        if page is not None:
            own = [summary for summary in evaluation.summaries if summary.side in evaluation.modes]
            write_page(page, subject, result.task_results, own)
            output.message(f"report: {page}, and the same as JSON beside it")
    finally:
        if as_json:  # also if the chart cannot be written
            counts = {"complete": num_results == result.num_tasks, "too_long": len(result.too_long)}
            output.object({**head_object(subject), **result_object(evaluation), **counts})


def show_rates(
    result: BenchResult,
    subject: BenchSubject,
    output: Output,
    *,
    as_json: bool,
    svg: Path | None = None,
    page: Path | None = None,
) -> None:
    """Print the report by rates and its JSON object, and write the chart and the page, for the windows so far."""
    from eaglelocal.bench.arrivals import evaluate_rates
    from eaglelocal.bench.rate_report import draw_rates, format_rates, rates_object

    if result.error is not None:
        output.message(f"stopped after {len(result.windows)} of {result.num_tasks} windows")
    if not result.windows:
        return
    num_slots = subject.info.num_slots
    results, best = evaluate_rates(result.windows, num_slots)
    report, found = format_rates(results, best, num_slots=num_slots), rates_object(results, best)
    output.data("\n".join([*head_lines(subject), "", report]))
    try:
        if svg is not None:
            title = f"{subject.info.target}: gain over plain decoding by requests per second"
            subtitle = f"{subject.info.draft}, {machine_name()}, {count_noun(num_slots, 'slot')}"
            write_text(svg, draw_rates(results, title=title, subtitle=subtitle), "chart")
            output.message(f"chart: {svg}")
        if page is not None:
            write_page(page, subject, [], [], report=report, more=found)
            output.message(f"report: {page}, and the same as JSON beside it")
    finally:
        if as_json:  # also if the chart cannot be written
            output.object({**head_object(subject), **found, "complete": len(result.windows) == result.num_tasks})


def head_lines(subject: BenchSubject) -> list[str]:
    info = subject.info
    return [
        f"target   {info.target}",
        f"draft    {info.draft}",
        f"machine  {machine_name()}, {count_noun(info.threads, 'thread')}, {info.library}",
        f"answers  {describe_answers(subject)}",
        *([f"server   {subject.server.library}: {subject.server.target}"] if subject.server else []),
    ]


def describe_answers(subject: BenchSubject) -> str:
    """Return how answers were asked for: `greedy, at most 64 tokens, prompts not cached`."""
    params = subject.options.params
    sampling = "greedy" if params.is_greedy else f"temperature {params.temperature:g}"
    limit = "to" if params.ignore_eos else "at most"
    skipped = f"first {subject.options.skip} not counted, " if subject.options.skip else ""
    return f"{sampling}, {limit} {params.max_tokens} tokens, {skipped}prompts not cached"


def head_object(subject: BenchSubject) -> dict[str, object]:
    info, params = subject.info, subject.options.params
    return {
        "target": info.target,
        "draft": info.draft,
        "threads": info.threads,
        "library": info.library,
        "machine": machine_name(),
        "slots": info.num_slots,
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        "ignore_eos": params.ignore_eos,
        "skipped_tokens": subject.options.skip,
        "tie_bound": subject.tie_bound,
        "server": subject.server.library if subject.server else None,
        "server_model": subject.server.target if subject.server else None,
    }


def write_chart(file: Path, runs: Sequence[CategoryResult], subject: BenchSubject) -> None:
    from eaglelocal.bench.report_page import draw_chart

    chart = draw_chart(
        runs,
        title=f"{subject.info.target}: speed over plain decoding",
        subtitle=f"{subject.info.draft}, {machine_name()}",
    )
    write_text(file, chart, "chart")


def write_text(file: Path, text: str, what: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"cannot write the {what} {file}: {error.strerror}") from error


@functools.cache
def machine_name() -> str:
    """Return the names of the GPUs that this build of llama.cpp supports, and of the CPU."""
    from eaglelocal.probe.probe import probe

    machine = probe()
    used = [gpu for gpu in machine.gpus if not gpu.hidden_by and not gpu.is_unresponsive and machine.backend_of(gpu)]
    names = [gpu.name or "GPU" for gpu in used] + ([machine.cpu.name] if machine.cpu.name else [])
    return ", ".join(names) or "unknown"


# ---- the page of --report FILE: FILE in Markdown, and the same as JSON beside it
def write_page(
    file: Path,
    subject: BenchSubject,
    results: Sequence[TaskResult],
    summaries: Sequence[Summary],
    *,
    report: str = "",
    more: Mapping[str, object] | None = None,
) -> None:
    """Write the page and its JSON. Raises ResourceError.

    report  text that replaces the table of modes
    more    entries of the JSON object
    """
    from eaglelocal.bench.report_page import ReportFacts, format_page, make_mode, report_object
    from eaglelocal.probe.probe import probe

    facts = ReportFacts(
        machine=describe_machine(probe()),
        model=describe_model(subject),
        answers=describe_answers(subject),
        predicted=subject.predicted,
        modes=tuple(make_mode(results, summary) for summary in summaries),
        summaries=tuple(summaries),
    )
    write_text(file, format_page(facts, report), "report")
    entries = {**report_object(facts), **(more or {})}
    write_text(file.with_suffix(JSON_SUFFIX), json.dumps(entries, indent=1) + "\n", "report")


def describe_machine(machine: Machine) -> MachineFacts:
    """Return the facts of a machine that may be posted: none names its owner, its processes or its folders."""
    from eaglelocal import __version__
    from eaglelocal.bench.report_page import NOT_KNOWN, MachineFacts

    gpus = [describe_gpu(gpu) for gpu in machine.gpus if not gpu.is_unresponsive]
    if machine.unified is not None and machine.unified.chip:
        gpus.append(f"{machine.unified.chip}, {machine.unified.gpu_cores or NOT_KNOWN} GPU cores")
    cpu, build = machine.cpu, machine.llama_cpp
    return MachineFacts(
        gpus=tuple(gpus),
        cpu=f"{cpu.name or cpu.architecture or NOT_KNOWN}, {count_noun(cpu.usable_threads, 'thread')}",
        ram_bytes=machine.memory.total_bytes,
        system=machine.system.name or NOT_KNOWN,
        llama_cpp=f"llama-cpp-python {build.version or NOT_KNOWN} ({', '.join(build.backends) or NOT_KNOWN})",
        eaglelocal=f"eaglelocal {__version__}",
    )


def describe_gpu(gpu: Gpu) -> str:
    facts = [gpu.name or "GPU", format_memory(gpu.total_bytes) if gpu.total_bytes else "", f"driver {gpu.driver}"]
    limit = f"limit {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else ""
    return ", ".join(fact for fact in (*facts, limit) if fact and fact != "driver None")


def describe_model(subject: BenchSubject) -> ModelFacts:
    from eaglelocal.bench.report_page import ModelFacts

    info = subject.info
    return ModelFacts(
        target=info.target,
        draft=info.draft,
        n_ctx=info.n_ctx,
        num_slots=info.num_slots,
        flash_attn=info.flash_attn,
        threads=info.threads,
        cache_bytes=info.cache_bytes,
        kv_type=subject.kv_type,
        weights_bytes=info.model_bytes,
        buffers_bytes=info.compute_bytes,
    )


def predict_unmeasured(options: RunOptions) -> PredictedFacts | None:
    """Return the prediction of `plan` without measurements of this machine; None if it does not plan the model."""
    from eaglelocal.bench.report_page import PredictedFacts
    from eaglelocal.catalog.catalog import load_machines
    from eaglelocal.planning.candidate_evaluation import CandidateEvaluator
    from eaglelocal.preparation.autoplan import autoplan
    from eaglelocal.preparation.machines import this_machine

    candidate = autoplan(options).candidate
    if candidate is None:
        return None
    evaluator = CandidateEvaluator(this_machine(load_machines()), options)
    said = evaluator.predict(candidate.option, candidate.draft, candidate.offload)
    return PredictedFacts(
        plain_tok_s=said.plain_tok_s, spec_tok_s=said.spec_tok_s, num_draft_tokens=said.num_draft_tokens
    )
