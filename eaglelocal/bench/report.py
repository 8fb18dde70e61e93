"""The report of a measurement for people, at 80 columns: a table, the means, and notes on their limits.

Tokens per second are medians, speed-ups geometric means over prompts. `?` and `~` mark an interval that does
not support its mean. Only formats: results.py computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import chain, groupby

from eaglelocal.bench.prompt_run import MIN_TOKENS
from eaglelocal.bench.results import Bound, CategoryResult, Comparison, Evaluation, Summary
from eaglelocal.bench.text_identity import Difference, DifferenceVerdict
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import make_printable

HEAD = (
    f"{'category':<11}{'spec':>7}{'pairs':>6}{'plain':>8}{'spec':>8}  "
    f"{'speed-up, 95 %':<18}{'length':>7}{'ttft':>6}{'same':>6}"
)
UNSURE, WIDE = "?", "~"
MARKS = {
    UNSURE: "the interval holds 1.00: no difference is shown",
    WIDE: "the interval is wider than the difference itself",
}
MORE_PAIRS = "more --pairs make it narrower"
HOPELESS = 100.0  # an interval that ends above this says nothing
LEGEND = "tok/s: medians; length: acceptance length; ttft: seconds to the first token"
SHOWN_DIFFERENCES = 6
WHY_TEXTS_DIFFER = {
    DifferenceVerdict.NEAR_TIE: "rounding chose the other of two almost equally likely tokens",
    DifferenceVerdict.DIFFERENT: "further apart than rounding usually moves them; please report this",
    DifferenceVerdict.UNKNOWN: "sampled texts, or neither came again when repeated",
}
SAME_TEXT_HINT = "texts may be the same with --flash-attn on, which rounds alike for any number of rows"
ROWS_ROUND_APART = ("Q4_K", "Q5_K")  # weights of which llama.cpp computes several rows otherwise than one, as measured
ROWS_HINT = "without AVX2, several rows of {} round otherwise than one, by 2 and more in logits"
NAME_COLUMNS = 10


def format_report(evaluation: Evaluation, *, flash_attn: str = "auto", weights: str = "") -> str:
    """Return the whole report, the most important lines last.

    flash_attn  how the target ran: auto, on, off
    weights     type of most of its weights, such as Q4_K
    """
    parts = [
        format_table(evaluation.runs),
        format_comparisons(evaluation.shown_comparisons),
        "\n".join((*list_notes(evaluation), *same_text_hint(evaluation, flash_attn, weights))),
        "\n".join(chain.from_iterable(map(summary_lines, evaluation.summaries))),
    ]
    return "\n\n".join(filter(None, parts))


def format_table(runs: Sequence[CategoryResult]) -> str:
    """Return the table: one line a category and mode; tok/s are medians, the time to the first token in seconds."""
    return "\n".join([HEAD, *map(format_row, runs)])


def format_row(run: CategoryResult) -> str:
    start = f"{row_label(run.category, run.concurrency):<11}{run.side:>7}{run.num_pairs:>6}"
    identical = f"{run.num_identical}/{run.num_answers}"
    length = f"{run.acceptance_length:.2f}" if run.num_drafts else "-"
    end = f"{length:>7}{format_seconds(run.ttft_s):>6}{identical:>6}"
    if run.speedup is None:
        return f"{start}{'-':>8}{'-':>8}  {'answers too short':<18}{end}"
    rates = f"{format_rate(run.plain_tok_s):>8}{format_rate(run.tok_s):>8}"
    return f"{start}{rates}  {format_interval(run.speedup):<18}{end}"


def row_label(category: str, concurrency: int) -> str:
    """Return the row label of a category, such as `chat` or `mixed x4`."""
    return category[:NAME_COLUMNS] if concurrency == 1 else f"{category} x{concurrency}"


def format_rate(tok_s: float | None) -> str:
    """Format a speed with about four digits: 1234, 123.4, 1.23; `-` if there is none."""
    if tok_s is None:
        return "-"
    return f"{tok_s:.0f}" if tok_s >= 1000 else f"{tok_s:.1f}" if tok_s >= 10 else f"{tok_s:.2f}"


def format_seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def format_interval(bound: Bound) -> str:
    """Format a mean and its interval, `1.52x 1.40..1.65`, with `?` or `~` if the interval does not support it."""
    if not bound.is_known:
        return f"{format_ratio(bound.mean)}x one prompt"
    if bound.high >= HOPELESS:
        return f"{format_ratio(bound.mean)}x too few ?"
    return f"{format_ratio(bound.mean)}x {format_ends(bound)} {choose_mark(bound)}".rstrip()


def format_ends(bound: Bound) -> str:
    return f"{format_ratio(bound.low)}..{format_ratio(bound.high)}"


def format_ratio(value: float) -> str:
    """Format a ratio with four characters: 1.52, 15.2; from 100 on without decimals."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def choose_mark(bound: Bound) -> str:
    if not bound.shows_difference:
        return UNSURE
    return WIDE if bound.is_wide else ""


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the mean of a side, and a warning if its interval does not support it."""
    where = "" if summary.concurrency == 1 else f" with {summary.concurrency} at once"
    bound = summary.speedup
    worst = summary.worst.speedup if summary.concurrency == 1 else None
    bounds = f", 95 %: {format_ends(bound)}, at least {format_ratio(bound.least)}" if bound.high < HOPELESS else ""
    tail = f"; worst: {summary.worst.category[:NAME_COLUMNS]} {format_ratio(worst.mean)}x" if worst else ""
    yield f"{summary.side}{where}: {format_ratio(bound.mean)}x plain{bounds}{tail}"
    if warning := explain_doubt(bound):
        yield f"  warning: {warning}"


def explain_doubt(bound: Bound) -> str:
    """Return why the interval does not support the mean; "" if it does."""
    if not bound.is_known:
        return "this is one prompt, so its error is unknown"
    if bound.high >= HOPELESS:
        return "too few prompts to distinguish it from plain"
    if not bound.shows_difference:
        return "not distinguishable from plain"
    return "the interval is wider than the gain itself" if bound.is_wide else ""


def format_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Return the table of sides against the best fixed length in hindsight, or against another server."""
    if not comparisons:
        return ""
    head = f"{'category':<11}{'spec':>7}{'against':>10}  {'ratio, 95 %':<19}{'at least':>9}"
    return "\n".join([head, *map(comparison_line, comparisons)])


def comparison_line(one: Comparison) -> str:
    start = f"{row_label(one.category, one.concurrency):<11}{one.side:>7}{one.other:>10}"
    least = f"{one.ratio.least:.2f}" if one.ratio.is_known else "-"
    return f"{start}  {format_interval(one.ratio):<19}{least:>9}"


def list_notes(evaluation: Evaluation) -> Iterator[str]:
    """Yield the legend, then notes on wide intervals, short answers, cached prompts and differing texts."""
    yield LEGEND
    bounds = [run.speedup for run in evaluation.runs if run.speedup is not None and run.speedup.is_known]
    bounds += [one.ratio for one in evaluation.shown_comparisons if one.ratio.is_known]
    used = [sign for sign in MARKS if any(choose_mark(bound) == sign for bound in bounds)]
    yield from (f"{sign} {MARKS[sign]}" for sign in used)
    if used:
        yield f"  {MORE_PAIRS}"
    yield from list_short_answers(evaluation.runs)
    if evaluation.num_other_prompts:
        yield f"the server counted {evaluation.num_other_prompts} prompts differently: perhaps another chat template"
    num_reused = max((run.num_reused for run in evaluation.runs), default=0)
    if num_reused:
        yield f"up to {num_reused} prompts of a row were partly cached, and left out of its ttft"
    yield from explain_texts(evaluation)
    yield from list_differences([difference for run in evaluation.runs for difference in run.differences])


def same_text_hint(evaluation: Evaluation, flash_attn: str, weights: str) -> Iterator[str]:
    """Yield why some of our modes' texts differ from plain ones, or the setting under which they do not."""
    ours = [one for run in evaluation.runs if run.side in evaluation.modes for one in run.differences]
    if ours and flash_attn != "on":
        yield SAME_TEXT_HINT
    if ours and weights in ROWS_ROUND_APART:
        yield ROWS_HINT.format(weights)


def explain_texts(evaluation: Evaluation) -> Iterator[str]:
    """Yield what share of our modes' texts is identical to plain decoding's, and how many differ for which reason."""
    runs = [run for run in evaluation.runs if run.side in evaluation.modes]
    num_answers, num_identical = sum(run.num_answers for run in runs), sum(run.num_identical for run in runs)
    if not num_answers:
        return
    share = f"{num_identical / num_answers:.0%}".replace("%", " %")
    yield f"same texts as without drafts: {num_identical} of {num_answers} ({share})"
    found = [one.verdict for run in runs for one in run.differences]
    for verdict in DifferenceVerdict:
        if number := found.count(verdict):
            yield f"  {number} {verdict.value}: {WHY_TEXTS_DIFFER[verdict]}"


def list_short_answers(runs: Sequence[CategoryResult]) -> Iterator[str]:
    sides = {run.side for run in runs}
    num_short = max((sum(run.num_short for run in runs if run.side == side) for side in sides), default=0)
    if num_short:
        counted = f"fewer than {MIN_TOKENS} tokens that count, or all at once"
        yield f"answers too short to have a speed ({counted}): to {num_short} prompts"


def list_differences(found: Sequence[Difference]) -> Iterator[str]:
    """Yield a line for each difference, wrong texts first, at most SHOWN_DIFFERENCES and then the counts."""
    order = list(DifferenceVerdict)[::-1]
    ranked = sorted(found, key=lambda one: (one.verdict is not DifferenceVerdict.DIFFERENT, order.index(one.verdict)))
    yield from map(difference_line, ranked[:SHOWN_DIFFERENCES])
    if len(ranked) > SHOWN_DIFFERENCES:
        counts = [(verdict, sum(one.verdict is verdict for one in found)) for verdict in DifferenceVerdict]
        yield "in all " + ", ".join(f"{count} {verdict.value}" for verdict, count in counts if count)


def difference_line(one: Difference) -> str:
    gap = "" if one.gap is None else f" (gap {one.gap:.3g})"
    return f"text of {one.side} differs from plain in {one.category} at token {one.index + 1}: {one.verdict.value}{gap}"


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


def choose_axis(runs: Sequence[CategoryResult]) -> Axis:
    """Return an axis of at most eight steps that holds every mean and every whisker up to MAX_OVERSHOOT."""
    bounds = [run.speedup for run in runs if run.speedup is not None]
    longest = max((bound.mean for bound in bounds), default=1.0)
    ends = [bound.high for bound in bounds if bound.high <= MAX_OVERSHOOT * longest]
    most = max(longest, 1.0, *ends)
    steps = (part * 10**power for power in range(-1, 9) for part in (0.25, 0.5, 1.0))
    step = next(step for step in steps if most / step <= 8)
    return Axis(math.ceil(most / step) * step, step)


def draw_chart(runs: Sequence[CategoryResult], *, title: str, subtitle: str) -> str:
    """Return the text of the SVG file. A run without a speed gets a row that says so."""
    axis, sides = choose_axis(runs), list(dict.fromkeys(run.side for run in runs))
    rows = [(key, list(own)) for key, own in groupby(runs, key=lambda run: (run.category, run.concurrency))]
    height = TOP + sum(len(own) * BAR + GAP for _, own in rows) + BOTTOM
    size = f'width="{WIDTH}" height="{height}"'
    body: list[str] = []
    y = float(TOP)
    for (category, concurrency), own in rows:
        body.append(draw_text(LEFT - 8, y + len(own) * BAR / 2 + 4, row_label(category, concurrency), anchor="end"))
        for run in own:
            body.extend(draw_bar(run, axis, y, COLOURS[sides.index(run.side) % len(COLOURS)]))
            y += BAR
        y += GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {size}>',
            f"<title>{escape(make_printable(title))}</title><style>{STYLE}</style>",
            f'<rect class="page" {size}/>',
            draw_text(16, 22, title, weight="bold"),
            draw_text(16, 40, subtitle, shade="faint"),
            *draw_grid(axis, bottom=y),
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
