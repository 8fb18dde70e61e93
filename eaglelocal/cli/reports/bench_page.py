"""Gather and write the page of `bench --report FILE`: FILE in Markdown, and the same as JSON beside it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.core.byte_sizes import count_noun
from eaglelocal.errors import ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.bench.measure import TaskResult
    from eaglelocal.bench.report_page import MachineFacts, ModelFacts, PredictedFacts, ReportFacts
    from eaglelocal.bench.results import Summary
    from eaglelocal.cli.reports.bench import BenchSubject
    from eaglelocal.core.run_options import RunOptions
    from eaglelocal.probe.machine import Gpu, Machine

JSON_SUFFIX = ".json"


def check_report_file(file: Path | None) -> None:
    """Raise UsageError if the page could not be written: before the measurement, not after minutes of it."""
    if file is None:
        return
    if not file.absolute().parent.is_dir():
        raise UsageError(f"the folder of the report {file} does not exist")
    if file.suffix == JSON_SUFFIX or file.is_dir():
        raise UsageError(f"--report {file} is not the name of a Markdown file", hint="--report FILE.md")


def write_page(
    file: Path, subject: BenchSubject, results: Sequence[TaskResult], summaries: Sequence[Summary], answers: str
) -> None:
    """Write the page and its JSON. Raises ResourceError."""
    from eaglelocal.bench.report_page import format_page, report_object

    facts = gather_facts(subject, results, summaries, answers)
    content = {
        file: format_page(facts),
        file.with_suffix(JSON_SUFFIX): json.dumps(report_object(facts), indent=1) + "\n",
    }
    for path, text in content.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ResourceError(f"cannot write the report {path}: {error.strerror}") from error


def gather_facts(
    subject: BenchSubject, results: Sequence[TaskResult], summaries: Sequence[Summary], answers: str
) -> ReportFacts:
    from eaglelocal.bench.report_page import ReportFacts, make_modes
    from eaglelocal.probe.probe import probe

    return ReportFacts(
        machine=describe_machine(probe()),
        model=describe_model(subject),
        answers=answers,
        predicted=subject.predicted,
        modes=make_modes(results, summaries),
        summaries=tuple(summaries),
    )


def describe_machine(machine: Machine) -> MachineFacts:
    """Return what may be posted of a machine: nothing that names its owner, its processes or its folders."""
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
    from eaglelocal.core.byte_sizes import format_memory

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
        kv_type=subject.kv_type,
        flash_attn=subject.flash_attn,
        threads=info.threads,
        weights_bytes=info.model_bytes,
        cache_bytes=info.cache_bytes,
        buffers_bytes=info.compute_bytes,
    )


def predict_unmeasured(options: RunOptions) -> PredictedFacts | None:
    """Return what `plan` says of the model without measurements of this machine; None if it does not plan it."""
    from eaglelocal.bench.report_page import PredictedFacts
    from eaglelocal.catalog.catalog import load_machines
    from eaglelocal.planning.autoplan import autoplan, this_machine
    from eaglelocal.planning.plan_search import make_evaluator

    candidate = autoplan(options).candidate
    if candidate is None:
        return None
    evaluator = make_evaluator(this_machine(load_machines()), options)
    said = evaluator.predict(candidate.option, candidate.draft, candidate.offload)
    return PredictedFacts(
        plain_tok_s=said.plain_tok_s, spec_tok_s=said.spec_tok_s, num_draft_tokens=said.num_draft_tokens
    )
