"""A page about one measurement that can be posted: the machine, the model, what was predicted and what was measured.

As Markdown, and as plain data. Holds no names of people, files, folders, hosts or processes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.report import format_interval, format_rate
from eaglelocal.bench.results import Summary, collect_answers, select_measured
from eaglelocal.core.byte_sizes import GIB, count_noun
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import sum_stats
from eaglelocal.core.terminal_text import make_printable

NOT_KNOWN = "not known"
MARKUP = str.maketrans({char: f"\\{char}" for char in "\\`*[]<>&|"})  # of Markdown, in names
MODE_HEADINGS = ("mode", "at once", "plain tok/s", "tok/s", "speed-up, 95 %", "acceptance length", "accepted by depth")
LEGEND = "Tokens a second are medians, speed-ups geometric means over prompts. Written by `eaglelocal bench --report`."


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """A machine as it may be posted."""

    gpus: tuple[str, ...]
    cpu: str
    ram_bytes: int | None
    system: str
    llama_cpp: str  # version and backends
    eaglelocal: str  # version


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedFacts:
    """The prediction of `plan` without measurements of this machine."""

    plain_tok_s: float
    spec_tok_s: float
    num_draft_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """The engine that was measured."""

    target: str
    draft: str
    n_ctx: int
    num_slots: int
    kv_type: str
    flash_attn: str
    threads: int
    weights_bytes: int
    cache_bytes: int
    buffers_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFacts:
    """A mode of drafting beside plain decoding.

    by_depth  [depth], the share of the drafts that had an accepted token there
    """

    mode: str
    concurrency: int
    plain_tok_s: float | None
    tok_s: float | None
    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    acceptance_length: float
    by_depth: tuple[float, ...]
    num_answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFacts:
    """The facts of the page. `predicted` is None if nothing was planned, as for the embedded model."""

    machine: MachineFacts
    model: ModelFacts
    answers: str  # how they were asked for
    predicted: PredictedFacts | None
    modes: tuple[ModeFacts, ...]
    summaries: tuple[Summary, ...]

    @property
    def best_length(self) -> str | None:
        """Return the fixed draft length that was fastest alone; None if none was measured."""
        fixed = [mode for mode in self.modes if mode.mode.isdecimal() and mode.concurrency == 1]
        return max(fixed, key=lambda mode: mode.speedup).mode if fixed else None


def make_modes(results: Sequence[TaskResult], summaries: Sequence[Summary]) -> tuple[ModeFacts, ...]:
    """Return the facts of the sides that were summarized, in their order."""
    return tuple(make_mode(results, summary) for summary in summaries)


def make_mode(results: Sequence[TaskResult], summary: Summary) -> ModeFacts:
    own = [result for result in results if result.task.concurrency == summary.concurrency]
    pairs = select_measured(own, summary.side, PLAIN)
    stats = sum_stats([answer.speculation for answer in collect_answers(own, summary.side)])
    known = summary.speedup if summary.speedup.is_known else None
    return ModeFacts(
        mode=summary.side,
        concurrency=summary.concurrency,
        plain_tok_s=median([pair.phases[PLAIN].tok_s for pair in pairs]) if pairs else None,
        tok_s=median([pair.phases[summary.side].tok_s for pair in pairs]) if pairs else None,
        speedup=summary.speedup.mean,
        speedup_low=known.low if known else None,
        speedup_high=known.high if known else None,
        acceptance_length=stats.acceptance_length,
        by_depth=tuple(count / stats.drafts for count in stats.accepted_per_position) if stats.drafts else (),
        num_answers=len(collect_answers(own, summary.side)),
    )


def report_object(facts: ReportFacts) -> dict[str, object]:
    """Return the page as a JSON object."""
    return {
        "format": 1,
        "machine": asdict(facts.machine),
        "model": asdict(facts.model),
        "answers": facts.answers,
        "predicted": asdict(facts.predicted) if facts.predicted else None,
        "modes": [asdict(mode) for mode in facts.modes],
        "best_length": facts.best_length,
    }


def format_page(facts: ReportFacts) -> str:
    """Return the page as Markdown."""
    parts = [
        f"### {escape_markdown(f'{facts.model.target}, {facts.model.draft}')}",
        format_table(("", ""), list_facts(facts)),
        format_table(
            MODE_HEADINGS,
            [format_mode(mode, summary) for mode, summary in zip(facts.modes, facts.summaries, strict=True)],
        ),
        LEGEND,
    ]
    return "\n\n".join(parts) + "\n"


def list_facts(facts: ReportFacts) -> Iterator[tuple[str, str]]:
    machine, model = facts.machine, facts.model
    for gpu in machine.gpus or ("none",):
        yield "GPU", gpu
    yield "processor", machine.cpu
    yield "main memory", f"{machine.ram_bytes / GIB:.0f} GiB" if machine.ram_bytes else NOT_KNOWN
    yield "system", machine.system
    yield "llama.cpp, eaglelocal", f"{machine.llama_cpp}; {machine.eaglelocal}"
    slots = f"{model.num_slots} x {model.n_ctx}" if model.num_slots > 1 else f"{model.n_ctx}"
    yield (
        "context",
        f"{slots} tokens, cache {model.kv_type}, flash attention {model.flash_attn}, "
        f"{count_noun(model.threads, 'thread')}",
    )
    sizes = (model.weights_bytes, model.cache_bytes, model.buffers_bytes)
    weights, cache, buffers = (f"{size / GIB:.2f}" for size in sizes)
    yield "memory", f"{sum(sizes) / GIB:.2f} GiB: weights {weights}, caches {cache}, buffers {buffers}"
    yield "answers", facts.answers
    if predicted := facts.predicted:
        ahead = f"at {predicted.num_draft_tokens} ahead" if predicted.num_draft_tokens else "no draft planned"
        yield "predicted", f"{predicted.plain_tok_s:.1f} tok/s plain, {predicted.spec_tok_s:.1f} with drafts ({ahead})"
    if facts.best_length:
        yield "best fixed length", facts.best_length


def format_mode(mode: ModeFacts, summary: Summary) -> tuple[str, ...]:
    return (
        mode.mode,
        str(mode.concurrency),
        format_rate(mode.plain_tok_s),
        format_rate(mode.tok_s),
        format_interval(summary.speedup),
        f"{mode.acceptance_length:.2f}",
        " ".join(f"{share:.0%}" for share in mode.by_depth) or "-",
    )


def format_table(head: Sequence[str], rows: Iterator[tuple[str, ...]] | Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(escape_markdown, line))} |" for line in lines)


def escape_markdown(text: str) -> str:
    """Return the text on one line, without a meaning in Markdown or HTML: names in a model's file are not trusted."""
    return make_printable(text).translate(MARKUP)
