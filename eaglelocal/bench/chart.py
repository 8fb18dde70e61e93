"""The chart of speed-ups: SVG without a library, bars with the 95 % interval as whiskers, by category and mode.

The SVG has its own background and two sets of colours, for light and dark pages. Every bar has its figure
beside it, so colour is never the only signal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

from eaglelocal.bench.report import format_interval, row_label
from eaglelocal.bench.results import CategoryResult
from eaglelocal.bench.statistics import Bound
from eaglelocal.core.records import dataclass
from eaglelocal.core.surrogates import make_printable

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
