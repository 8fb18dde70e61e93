"""The parts of a measurement that can be posted: a page on machine, model, prediction and results, and a chart. Pure.

The page is Markdown, and plain data. It holds no names of people, files, folders, hosts or processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from html import escape
from itertools import groupby
from statistics import median
from textwrap import indent

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.report import format_interval, format_rate, row_label
from eaglelocal.bench.results import Bound, CategoryResult, Summary, collect_answers, select_measured
from eaglelocal.core.amounts import GIB, count_noun
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


def format_page(facts: ReportFacts, report: str = "") -> str:
    """Return the page as Markdown. A report in plain text replaces the table of modes."""
    rows = [format_mode(mode, summary) for mode, summary in zip(facts.modes, facts.summaries, strict=True)]
    parts = [
        f"### {escape_markdown(f'{facts.model.target}, {facts.model.draft}')}",
        format_table(("", ""), list_facts(facts)),
        indent(report, " " * 4) or f"{format_table(MODE_HEADINGS, rows)}\n\n{LEGEND}",
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


# ---- chart: the chart of speed-ups: SVG without a library, bars with the 95 % interval as whiskers, by category and
# mode
#
# The SVG has its own background and two sets of colours, for light and dark pages. Every bar has its figure beside
# it, so colour is never the only signal.
WIDTH, LEFT, RIGHT = 760, 100, 200
TOP, BAR, GAP, BOTTOM = 64, 16, 10, 44
COLOURS = ("#3b82c4", "#d97a2b", "#3f9e6a", "#b0579a", "#a58a1f", "#7d7f86")
MAX_OVERSHOOT = 1.5  # whiskers longer than this many times the longest bar do not stretch the axis
STYLE = """
svg { font: 12px system-ui, sans-serif; color-scheme: light dark }
.page { fill: #ffffff } .ink { fill: #24292f } .faint { fill: #6a737d }
.line { stroke: #6a737d } .grid { stroke: #d8dee4 } .whisker { stroke: #24292f; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
  .page { fill: #16181d } .ink { fill: #e6e8eb } .faint { fill: #9aa3ad }
  .line { stroke: #9aa3ad } .grid { stroke: #2f353d } .whisker { stroke: #e6e8eb }
}
"""


@dataclass(frozen=True, slots=True)
class Axis:
    """The x axis of the chart: speed-ups from 0 to `most`, with a tick every `step`."""

    most: float
    step: float

    def x(self, value: float) -> float:
        return LEFT + min(max(value, 0.0), self.most) / self.most * (WIDTH - LEFT - RIGHT)

    @property
    def ticks(self) -> list[float]:
        return [i * self.step for i in range(round(self.most / self.step) + 1)]


def choose_axis(bounds: Sequence[Bound]) -> Axis:
    """Return an axis of at most eight steps that holds every mean and every whisker up to MAX_OVERSHOOT."""
    longest = max((bound.mean for bound in bounds), default=1.0)
    ends = [bound.high for bound in bounds if bound.high <= MAX_OVERSHOOT * longest]
    most = max(longest, 1.0, *ends)
    steps = (part * 10**power for power in range(-1, 9) for part in (0.25, 0.5, 1.0))
    step = next(step for step in steps if most / step <= 8)
    return Axis(math.ceil(most / step) * step, step)


def draw_chart(runs: Sequence[CategoryResult], *, title: str, subtitle: str) -> str:
    """Return the text of the SVG file. A run without a speed gets a row that says so."""
    axis = choose_axis([run.speedup for run in runs if run.speedup is not None])
    sides = list(dict.fromkeys(run.side for run in runs))
    rows = [(key, list(own)) for key, own in groupby(runs, key=lambda run: (run.category, run.concurrency))]
    height = TOP + sum(len(own) * BAR + GAP for _, own in rows) + BOTTOM
    body: list[str] = []
    y = float(TOP)
    for (category, concurrency), own in rows:
        body.append(draw_text(LEFT - 8, y + len(own) * BAR / 2 + 4, row_label(category, concurrency), anchor="end"))
        for run in own:
            body.extend(draw_bar(run, axis, y, COLOURS[sides.index(run.side) % len(COLOURS)]))
            y += BAR
        y += GAP
    return wrap_svg([*draw_grid(axis, bottom=y), *body], height, title=title, subtitle=subtitle)


def wrap_svg(body: Iterable[str], height: int, *, title: str, subtitle: str) -> str:
    """Return the text of an SVG file of these elements, with a title above them."""
    size = f'width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>',
            f"<title>{escape(make_printable(title))}</title><style>{STYLE}</style>",
            f'<rect class="page" {size}/>',
            draw_text(16, 22, title, weight="bold"),
            draw_text(16, 40, subtitle, shade="faint"),
            *body,
            "</svg>",
            "",
        ]
    )


def draw_grid(axis: Axis, *, bottom: float) -> Iterator[str]:
    for tick in axis.ticks:
        x = axis.x(tick)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom:.1f}"/>'
        yield draw_text(x, bottom + 16, f"{tick:g}x", anchor="middle", shade="faint")
    x = axis.x(1.0)
    yield f'<line class="line" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{bottom:.1f}" stroke-dasharray="4 3"/>'
    yield draw_text(x, bottom + 32, "plain decoding", anchor="middle", shade="faint")


def draw_bar(run: CategoryResult, axis: Axis, y: float, colour: str) -> Iterator[str]:
    """Yield the elements of one row: the bar, its whisker, and at the right the mode and its figure."""
    middle, x0 = y + BAR / 2, axis.x(0.0)
    if run.speedup is None:
        yield draw_text(x0 + 4, middle + 4, f"{run.side}: answers too short", shade="faint")
        return
    bound = run.speedup
    long = axis.x(bound.mean) - x0
    yield f'<rect x="{x0:.1f}" y="{y + 2:.1f}" width="{long:.1f}" height="{BAR - 4}" fill="{colour}"/>'
    if bound.is_known:
        yield f'<path class="whisker" fill="none" d="{whisker_path(axis, bound, middle)}"/>'
    yield draw_text(WIDTH - RIGHT + 12, middle + 4, f"{run.side}  {format_interval(bound)}")


def whisker_path(axis: Axis, bound: Bound, y: float) -> str:
    """Return the SVG path of an interval: a line with a cap at each end, or an arrow where it leaves the chart."""
    low, high = axis.x(bound.low), axis.x(bound.high)
    end = f"M{high - 5:.1f} {y - 4:.1f}l5 4l-5 4" if bound.high > axis.most else f"M{high:.1f} {y - 4:.1f}v8"
    return f"M{low:.1f} {y - 4:.1f}v8 M{low:.1f} {y:.1f}H{high:.1f} {end}"


def draw_text(
    x: float, y: float, content: str, *, anchor: str = "start", shade: str = "ink", weight: str = "normal"
) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text class="{shade}" x="{x:.1f}" y="{y:.1f}" {style}>{escape(make_printable(content))}</text>'
