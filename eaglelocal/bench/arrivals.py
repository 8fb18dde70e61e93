"""A measurement under load: requests arrive at given rates, and each setting answers the same arrivals in turn.

The gain of a setting is plain decoding's mean time of a request divided by the setting's. Drafts fill idle compute
units, so it falls as the rate rises. Requests are sent when they arrive, answered or not, and their times count from
there: a slow setting gets a queue, not fewer requests.

A window is what one setting does with one draw of arrivals. The windows of a round take turns, and every round draws
anew. Requests in a queue delay each other, so the statistics sample rounds, not requests. Categories share one stream
of arrivals; a stream of one category alone has another curve.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from itertools import chain, cycle, islice, pairwise
from queue import Empty, SimpleQueue
from textwrap import fill, wrap

import numpy as np

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.measure import PLAIN, SEEDS, alternate, rotate
from eaglelocal.bench.prompt_run import MAX_REUSED, Arrivals, Side, ask
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
from eaglelocal.bench.results import WHOLE, Bound, bound_mean, geometric_mean
from eaglelocal.core.events import Failed, Finished, RequestEvent, Started
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.terminal_text import make_printable
from eaglelocal.errors import UsageError

MAX_RATES = 7  # as many columns fit into 80
MIN_RATE, MAX_RATE = 0.01, 100.0  # requests per second
ROUNDS = 4
WINDOW_S = 8.0
MIN_REQUESTS = 4  # of a window
MIN_QUEUED, MIN_ENDED = 0.2, 5  # share of the time, and ends of requests: with less, a queue says nothing
COLUMNS = 79
PLOT_ROWS, PLOT_COLUMNS = 11, 66
LEGEND = """gain: mean time of a request in plain decoding / in this setting, over rounds
? no difference is shown, ~ the interval is wider than it; more --repeats help
queue: share of the time in which more requests are there than the slots: {}"""


# ---- arrivals
def parse_rates(text: str) -> tuple[float, ...]:
    """Parse `0.5,1,2` into requests per second, of three digits, in rising order. Raises UsageError."""
    try:
        rates = [float(f"{float(part):.3g}") for part in text.split(",")]
    except ValueError:
        rates = [math.nan]
    are_valid = all(MIN_RATE <= rate <= MAX_RATE for rate in rates)
    if not are_valid or len(set(rates)) < len(rates) or len(rates) > MAX_RATES:
        what = f"--rate must be up to {MAX_RATES} different requests per second, {MIN_RATE:g} to {MAX_RATE:g}"
        raise UsageError(f"{what}, not {text!r}", hint="--rate 0.5,1,2,4")
    return tuple(sorted(rates))


@dataclass(frozen=True, slots=True)
class ArrivalPlan:
    """The arrivals of one window: prompts and their times, in seconds from its start, in rising order."""

    rate: float
    round: int
    length_s: float
    cut_s: float  # if the queue is not empty then, the rest is cancelled
    times_s: tuple[float, ...]
    prompts: tuple[BenchPrompt, ...]


def plan_arrivals(
    prompts: Mapping[str, Sequence[BenchPrompt]],
    rates: Sequence[float],
    *,
    rounds: int = ROUNDS,
    num_requests: int | None = None,
    seed: int = 0,
) -> list[ArrivalPlan]:
    """Return the arrivals of every rate in each round, the categories in turn.

    They are a Poisson process of which the number of arrivals is known: they are uniform in a window of just that
    rate. So short windows do not differ in their load.

    num_requests  of each window; None: as many as WINDOW_S holds, at least MIN_REQUESTS and one of each category
    """
    rng = np.random.default_rng(seed)
    endless = cycle(prompt for _, _, prompt in alternate(prompts))
    plans: list[ArrivalPlan] = []
    for number in range(rounds):
        for rate in rates:
            count = num_requests or max(math.ceil(rate * WINDOW_S), MIN_REQUESTS, len(prompts))
            length_s, chosen = count / rate, tuple(islice(endless, count))
            times_s, cut_s = np.sort(rng.uniform(0, length_s, count)), length_s + max(length_s, WINDOW_S)
            plans.append(ArrivalPlan(rate, number, length_s, cut_s, tuple(times_s.tolist()), chosen))
    return plans


# ---- the run
@dataclass(frozen=True, slots=True)
class RequestTimes:
    """A request, in seconds from the start of its window. If it was cut off, its end is infinity."""

    category: str
    arrived_s: float
    first_token_s: float
    ended_s: float
    num_tokens: int
    is_fresh: bool = True  # its prompt was not cached

    @property
    def total_s(self) -> float:
        return self.ended_s - self.arrived_s


@dataclass(frozen=True, slots=True)
class LoadWindow:
    """The requests of one setting at one rate in one round."""

    side: str
    rate: float
    round: int
    length_s: float  # until the last end, or until it was cut
    requests: tuple[RequestTimes, ...]

    def mean_s(self, category: str) -> float | None:
        """Return the mean time of the requests of a category, or of WHOLE; None if there is none."""
        times = [one.total_s for one in self.requests if category in (WHOLE, one.category)]
        return sum(times) / len(times) if times else None

    def measure_queue(self, num_slots: int) -> tuple[float, int]:
        """Return the seconds in which there were more requests than slots, and how many ended in them."""
        changes = [(one.arrived_s, 1) for one in self.requests]
        changes += [(one.ended_s, -1) for one in self.requests if math.isfinite(one.ended_s)]
        num_running, queued_s, num_ended = 0, 0.0, 0
        for (moment_s, change), (next_s, next_change) in pairwise([*sorted(changes), (self.length_s, 0)]):
            num_running += change
            if num_running > num_slots:
                queued_s += next_s - moment_s
                num_ended += next_change < 0
        return queued_s, num_ended


OnWindow = Callable[[ArrivalPlan, float], None]  # gets the plan that starts, and the share of the work done


def run_plans(
    sides: Sequence[Side],
    plans: Sequence[ArrivalPlan],
    params: SamplingParams,
    windows: list[LoadWindow],
    *,
    num_slots: int,
    warm_up: Sequence[BenchPrompt] = (),
    on_window: OnWindow,
) -> None:
    """Append a window for each plan and side to `windows`. Each side first answers the warm-up prompts at once.

    Raises the error of a request that failed.
    """
    for side in sides if warm_up else ():
        wave = list(islice(cycle(warm_up), num_slots))
        ask(side, wave, [params] * len(wave), name=f"warm-{side.label}")
    total_s, done_s = sum(plan.length_s for plan in plans) * len(sides), 0.0
    for plan in plans:
        for side in rotate(sides, plan.round):
            on_window(plan, done_s / total_s)
            side.clear_cache()
            windows.append(run_window(side, plan, params, num_slots=num_slots))
            done_s += plan.length_s


def run_window(side: Side, plan: ArrivalPlan, params: SamplingParams, *, num_slots: int) -> LoadWindow:
    """Send the requests when they arrive, and wait for all answers, or cancel the rest at `plan.cut_s`.

    Raises the error of a request that failed. On any exception all requests are cancelled.
    """
    ended: SimpleQueue[None] = SimpleQueue()
    sent: list[Arrivals] = []
    began_at = time.perf_counter()
    with ExitStack() as running:
        for number, (at_s, prompt) in enumerate(zip(plan.times_s, plan.prompts, strict=True)):
            id = f"{side.label}-{plan.rate:g}-{plan.round}-{number}"
            sampling = replace(params, seed=((params.seed or 0) + (plan.round << 16) + number) % SEEDS)
            messages, tokens = prompt.messages, prompt.tokens
            request = ChatRequest(id=id, messages=messages, tokens=tokens, params=sampling, spec=side.spec, owner=id)
            sent.append(Arrivals(request))
            time.sleep(max(began_at + at_s - time.perf_counter(), 0.0))
            running.callback(side.client.cancel, id)
            side.client.submit(request, listen(sent[-1], ended))
        try:
            for _ in range(len(sent) - num_slots):  # then nobody waits
                ended.get(timeout=max(began_at + plan.cut_s - time.perf_counter(), 0.0))
        except Empty:
            running.pop_all().close()
        cut_s = time.perf_counter() - began_at
        requests = tuple(map(record_times, sent, plan.times_s, plan.prompts, [began_at] * len(sent)))
        running.pop_all()
    ends = [one.ended_s for one in requests]
    length_s = cut_s if math.inf in ends else max(plan.length_s, *ends)
    return LoadWindow(side.label, plan.rate, plan.round, length_s, requests)


def listen(arrivals: Arrivals, ended: SimpleQueue[None]) -> Callable[[RequestEvent], None]:
    """Return a listener that records events, and puts an entry into `ended` after the last one."""

    def on_event(event: RequestEvent) -> None:
        arrivals.arrive(event)
        if isinstance(event, Finished | Failed):
            ended.put(None)

    return on_event


def record_times(arrivals: Arrivals, arrived_s: float, prompt: BenchPrompt, began_at: float) -> RequestTimes:
    """Wait for the end of a request and return its times. Raises the error of one that failed."""
    finished = arrivals.wait()
    first_at = arrivals.arrival_time(0)
    ended_s = math.inf if finished.reason == "cancelled" else arrivals.events[-1][0] - began_at
    started = next((event for _, event in arrivals.events if isinstance(event, Started)), None)
    return RequestTimes(
        category=prompt.category,
        arrived_s=arrived_s,
        first_token_s=ended_s if first_at is None else first_at - began_at,
        ended_s=ended_s,
        num_tokens=finished.completion_tokens,
        is_fresh=started is None or started.cached_tokens <= MAX_REUSED * started.prompt_tokens,
    )


# ---- evaluation
@dataclass(frozen=True, slots=True, kw_only=True)
class RateResult:
    """A setting at one rate. Times are of the whole request, from its arrival.

    capacity  requests that ended per second while others waited; None: too few waited to know it
    gains     by category, and WHOLE; none if this setting or plain decoding is saturated
    """

    rate: float
    spec: str
    tok_s: float
    mean_s: float
    p95_s: float
    ttft_p95_s: float
    queued_share: float
    capacity: float | None
    is_saturated: bool  # the queue would grow without end
    num_requests: int
    num_reused: int
    num_rounds: int
    gains: Mapping[str, Bound]


@dataclass(frozen=True, slots=True)
class BestSetting:
    """The setting that holds a rate with the shortest mean time (None: none holds it), and others like it."""

    rate: float
    spec: str | None
    not_distinguishable: tuple[str, ...] = ()


def evaluate_rates(windows: Sequence[LoadWindow], num_slots: int) -> tuple[list[RateResult], list[BestSetting]]:
    """Return the result of each setting at each rate, and the best setting of each rate, by rising rates."""
    results: list[RateResult] = []
    best: list[BestSetting] = []
    for rate in sorted({window.rate for window in windows}):
        by_side: dict[str, list[LoadWindow]] = {PLAIN: []}
        for window in windows:
            if window.rate == rate:
                by_side.setdefault(window.side, []).append(window)
        own = [evaluate_rate(found, num_slots) for found in by_side.values() if found]
        held = {one.spec: by_side[one.spec] for one in own if not one.is_saturated}
        results += [replace(one, gains=find_gains(held, one.spec)) for one in own]
        best.append(choose_best(rate, held))
    return results, best


def evaluate_rate(windows: Sequence[LoadWindow], num_slots: int) -> RateResult:
    """Evaluate a setting's windows at one rate, without its gains.

    It is saturated if a window was cut, or if fewer requests end while others wait than arrive.
    """
    requests = [one for window in windows for one in window.requests]
    length_s, rate = sum(window.length_s for window in windows), windows[0].rate
    queued_s, num_ended = map(sum, zip(*(window.measure_queue(num_slots) for window in windows), strict=True))
    is_known = queued_s > MIN_QUEUED * length_s and num_ended >= MIN_ENDED
    capacity = num_ended / queued_s if is_known else None
    times_s = sorted(one.total_s for one in requests)
    ttfts_s = sorted(one.first_token_s - one.arrived_s for one in requests)
    p95 = math.ceil(0.95 * len(requests)) - 1
    return RateResult(
        rate=rate,
        spec=windows[0].side,
        tok_s=sum(one.num_tokens for one in requests) / length_s,
        mean_s=sum(times_s) / len(times_s),
        p95_s=times_s[p95],
        ttft_p95_s=ttfts_s[p95],
        queued_share=queued_s / length_s,
        capacity=capacity,
        is_saturated=times_s[-1] == math.inf or (capacity is not None and capacity <= rate),
        num_requests=len(requests),
        num_reused=sum(not one.is_fresh for one in requests),
        num_rounds=len(windows),
        gains={},
    )


def find_gains(held: Mapping[str, Sequence[LoadWindow]], side: str) -> dict[str, Bound]:
    """Return the gains of a setting by category; none if it or plain decoding is not among the held ones."""
    if side == PLAIN or side not in held or PLAIN not in held:
        return {}
    categories = dict.fromkeys(one.category for window in held[side] for one in window.requests)
    ratios = {name: compare_windows(held[PLAIN], held[side], name) for name in (WHOLE, *categories)}
    return {category: bound_mean([found]) for category, found in ratios.items() if found}


def compare_windows(one: Sequence[LoadWindow], other: Sequence[LoadWindow], category: str) -> list[float]:
    """Return the mean time of `one` divided by that of `other`, for each round that both have."""
    others = {window.round: window.mean_s(category) for window in other}
    pairs = [(window.mean_s(category), others.get(window.round)) for window in one]
    return [first / second for first, second in pairs if first and second]


def choose_best(rate: float, held: Mapping[str, Sequence[LoadWindow]]) -> BestSetting:
    if not held:
        return BestSetting(rate, None)
    means = {side: [window.mean_s(WHOLE) or math.inf for window in found] for side, found in held.items()}
    best = min(means, key=lambda side: geometric_mean(means[side]))
    ratios = {side: compare_windows(held[side], held[best], WHOLE) for side in held if side != best}
    bounds = {side: bound_mean([found]) for side, found in ratios.items() if found}
    return BestSetting(rate, best, tuple(side for side, bound in bounds.items() if not bound.shows_difference))


# ---- for people
HEAD = f"{'rate':>6}{'spec':>7}{'tok/s':>8}{'mean s':>8}{'p95 s':>8}{'ttft p95':>10}{'queue':>7}  gain, 95 %"


def format_rates(results: Sequence[RateResult], best: Sequence[BestSetting], *, num_slots: int) -> str:
    """Return the tables, the plot, the notes and the best settings, these last."""
    num_reused = sum(one.num_reused for one in results)
    parts = [
        "\n".join([HEAD, *map(format_result, results)]),
        format_categories(results),
        plot_gains(results),
        LEGEND.format(num_slots) + (f"\n{num_reused} prompts were partly cached" if num_reused else ""),
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


def plot_gains(results: Sequence[RateResult]) -> str:
    """Return a plot of the gain by rate in plain text, with a letter for each setting; "" if there is no gain."""
    rates, modes = list_rates_and_modes(results)
    letters = {mode: chr(ord("A") + place % 26) for place, mode in enumerate(modes)}
    points = [(one.rate, one.spec, one.gains[WHOLE].mean) for one in results if one.gains]
    gains = [1.0, *(gain for *_, gain in points)]
    low, step = min(gains), max(max(gains) - min(gains), 0.1) / (PLOT_ROWS - 1)
    grid = [[" "] * PLOT_COLUMNS for _ in range(PLOT_ROWS)]  # the first row is the lowest
    grid[round((1.0 - low) / step)] = ["-"] * PLOT_COLUMNS
    ticks = [" "] * PLOT_COLUMNS
    for place, rate in enumerate(rates):
        column = round((place + 0.5) * PLOT_COLUMNS / len(rates))
        ticks[column : column + 8] = f"{rate:g}/s".ljust(8)
        for mode, gain in [(mode, gain) for at, mode, gain in points if at == rate]:
            cells = grid[round((gain - low) / step)]
            free = (i for i in range(column, PLOT_COLUMNS) if cells[i] in " -")
            cells[next(free, column)] = letters[mode]  # beside another one of this gain
    labels = {round((gain - low) / step): f"{gain:.2f}x" for gain in (min(gains), max(gains), 1.0)}
    lines = [f"{labels.get(row, ''):>7} |{''.join(grid[row])}".rstrip() for row in reversed(range(PLOT_ROWS))]
    lines.append(" " * 9 + "".join(ticks).rstrip())
    names = ", ".join(f"{letter} {mode}" for mode, letter in letters.items())
    lines += wrap(f"gain by requests per second: {names}", COLUMNS, initial_indent=" " * 9, subsequent_indent=" " * 9)
    return "\n".join(lines) if points else ""


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
