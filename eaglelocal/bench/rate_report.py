"""Reports of a measurement under load (arrivals.py): tables in plain text, an object, and a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from textwrap import fill

from eaglelocal.bench.arrivals import BestSetting, RateResult
from eaglelocal.bench.measure import PLAIN
from eaglelocal.bench.report import (
    NAME_COLUMNS,
    bound_ends,
    choose_mark,
    format_interval,
    format_rate,
    format_ratio,
    format_ttft,
)
from eaglelocal.bench.report_page import COLOURS, LEFT, RIGHT, TOP, WIDTH, Axis, choose_axis, draw_text, wrap_svg
from eaglelocal.bench.results import WHOLE
from eaglelocal.core.terminal_text import make_printable

COLUMNS = 79
LEGEND = """gain: mean time of a request in plain decoding / in this setting, over rounds
? no difference is shown, ~ the interval is wider than it; more --repeats help
queue: share of the time in which more requests are there than the slots: {}"""

# ---- for people
HEAD = f"{'rate':>6}{'spec':>7}{'tok/s':>8}{'mean s':>8}{'p95 s':>8}{'ttft p95':>10}{'queue':>7}  gain, 95 %"


def format_rates(results: Sequence[RateResult], best: Sequence[BestSetting], *, num_slots: int) -> str:
    """Return the tables, the notes and the best settings, these last."""
    num_reused = sum(one.num_reused for one in results)
    num_too_long = sum(one.num_too_long for one in results)
    notes = [f"{num_reused} prompts were partly cached"] * bool(num_reused)
    notes += [f"left out: {num_too_long} requests, whose prompts are longer than the context"] * bool(num_too_long)
    parts = [
        "\n".join([HEAD, *map(format_result, results)]),
        format_categories(results),
        "\n".join([LEGEND.format(num_slots), *notes]),
        "\n".join(format_best(one, results) for one in best),
    ]
    return "\n\n".join(filter(None, parts))


def format_result(one: RateResult) -> str:
    times = "".join(f"{format_ttft(value):>8}" for value in (one.mean_s, one.p95_s))
    times += f"{format_ttft(one.ttft_p95_s):>10}"
    no_gain = "" if one.spec == PLAIN else "plain is saturated"
    end = format_interval(one.gains[WHOLE], unit="round") if one.gains else no_gain
    if one.is_saturated:
        times = f"{'-':>8}{'-':>8}{'-':>10}"
        end = "saturated" + (f", holds {one.capacity:.2g}/s" if one.capacity else "")
    return f"{one.rate:>6g}{one.spec:>7}{format_rate(one.tok_s):>8}{times}{one.queued_share:>7.0%}  {end}".rstrip()


def list_rates_and_modes(results: Sequence[RateResult]) -> tuple[list[float], list[str]]:
    """Return the rates, and the settings beside plain decoding."""
    modes = dict.fromkeys(one.spec for one in results if one.spec != PLAIN)
    return list(dict.fromkeys(one.rate for one in results)), list(modes)


def list_categories(results: Sequence[RateResult]) -> list[str]:
    """Return WHOLE, and the categories if there are several."""
    found = list(dict.fromkeys(category for one in results for category in one.gains))
    return found if len(found) > 2 else [WHOLE]


def format_categories(results: Sequence[RateResult]) -> str:
    """Return the gain of each category by rate; "" if there is only one."""
    (rates, modes), found = list_rates_and_modes(results), {(one.rate, one.spec): one for one in results}
    lines = [f"{'gain':<11}{'spec':>7}" + "".join(f"{f'{rate:g}/s':>8}" for rate in rates)]
    for category in list_categories(results)[1:]:
        for mode in modes:
            cells = "".join(f"{format_cell(found.get((rate, mode)), category):>8}" for rate in rates)
            lines.append(f"{make_printable(category)[:NAME_COLUMNS]:<11}{mode:>7}{cells}")
    return "\n".join(lines) if len(lines) > 1 else ""


def format_cell(result: RateResult | None, category: str) -> str:
    if result is None or (bound := result.gains.get(category)) is None:
        return "sat." if result and result.is_saturated else "-"
    return f"{format_ratio(bound.mean)}x{choose_mark(bound)}"


def format_best(best: BestSetting, results: Sequence[RateResult]) -> str:
    """Return a line on the best setting at a rate, and which others may be as good."""
    own = {one.spec: one for one in results if one.rate == best.rate}
    start = f"best at {best.rate:g}/s: "
    if best.spec is None:
        most = max(own.values(), key=lambda one: one.tok_s)
        return f"{start}none holds this rate; most tokens with {most.spec}, {format_rate(most.tok_s)} tok/s"
    gains = own[best.spec].gains
    gain = f", {format_ratio(gains[WHOLE].mean)}x plain" if gains else ""
    saturated = ", ".join(one.spec for one in own.values() if one.is_saturated)
    similar = ", ".join(best.not_distinguishable)
    parts = [f"{start}{best.spec}{gain}", f"saturated: {saturated}" * bool(saturated)]
    parts.append(f"not distinguishable from {similar}" * bool(similar))
    return fill("; ".join(filter(None, parts)), COLUMNS, subsequent_indent="  ")


# ---- for programs
def rates_object(results: Sequence[RateResult], best: Sequence[BestSetting]) -> dict[str, object]:
    """Return the object. Times of a saturated setting are None."""
    entries = []
    for one in results:
        gains = {name: {"gain": bound.mean, **bound_ends(bound, "gain_")} for name, bound in one.gains.items()}
        unknown = dict.fromkeys(("mean_s", "p95_s", "ttft_p95_s")) if one.is_saturated else {}
        entries.append({**asdict(one), **unknown, "gains": gains})
    return {"rates": entries, "best": [asdict(one) for one in best]}


# ---- chart: a panel of gain by rate for all, and one for each category
PANEL, PANEL_GAP = 150, 56


def draw_rates(results: Sequence[RateResult], *, title: str, subtitle: str) -> str:
    """Return the text of an SVG file. A setting that is saturated at a rate says so there."""
    categories = list_categories(results)
    axis = choose_axis([one.gains[name] for one in results for name in categories if name in one.gains])
    tops = [TOP + 20 + place * (PANEL + PANEL_GAP) for place in range(len(categories) + 1)]
    panels = [draw_panel(results, category, axis, top) for category, top in zip(categories, tops, strict=False)]
    return wrap_svg(chain.from_iterable(panels), tops[-1], title=title, subtitle=subtitle)


def draw_panel(results: Sequence[RateResult], category: str, axis: Axis, top: float) -> Iterator[str]:
    """Yield the elements of one panel: its grid, then a line with whiskers for each setting."""
    (rates, modes), right, bottom = list_rates_and_modes(results), WIDTH - RIGHT, top + PANEL
    x = {rate: LEFT + (place + 0.5) * (right - LEFT) / len(rates) for place, rate in enumerate(rates)}

    def y(gain: float) -> str:
        return f"{bottom - min(gain / axis.most, 1.0) * PANEL:.1f}"

    yield draw_text(LEFT, top - 8, category, weight="bold")
    for tick in (*axis.ticks, 1.0):
        kind = 'class="line" stroke-dasharray="4 3"' if tick == 1.0 else 'class="grid"'
        yield f'<line {kind} x1="{LEFT}" x2="{right}" y1="{y(tick)}" y2="{y(tick)}"/>'
        yield draw_text(LEFT - 8, float(y(tick)) + 4, f"{tick:g}x", anchor="end", shade="faint")
    for rate in rates:
        yield draw_text(x[rate], bottom + 16, f"{rate:g}/s", anchor="middle", shade="faint")
    for one in results:
        if one.is_saturated:
            line_y = bottom - 6 - 14 * [PLAIN, *modes].index(one.spec)
            yield draw_text(x[one.rate], line_y, f"{one.spec}: saturated", anchor="middle", shade="faint")
    for place, mode in enumerate(modes):
        colour = COLOURS[place % len(COLOURS)]
        points = [(x[one.rate], one.gains[category]) for one in results if one.spec == mode and category in one.gains]
        line = " ".join(f"{at:.1f},{y(bound.mean)}" for at, bound in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for at, bound in points:
            yield f'<circle cx="{at:.1f}" cy="{y(bound.mean)}" r="4" fill="{colour}"/>'
            yield f'<path class="whisker" fill="none" d="M{at:.1f} {y(bound.low)}V{y(bound.high)}"/>' * bound.is_known
        gains = ", ".join(f"{bound.mean:.2f}x" for _, bound in points)
        yield f'<rect x="{right + 12}" y="{top + 18 * place:.1f}" width="10" height="10" fill="{colour}"/>'
        yield draw_text(right + 28, top + 18 * place + 10, f"{mode}  {gains}")
