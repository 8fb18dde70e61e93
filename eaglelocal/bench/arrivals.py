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
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import cycle, islice, pairwise, product
from queue import Empty, SimpleQueue

import numpy as np

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.measure import PLAIN, SEEDS, TOO_LONG, alternate, rotate
from eaglelocal.bench.prompt_run import MAX_REUSED, Arrivals, Side, ask
from eaglelocal.bench.results import WHOLE, Bound, bound_mean, geometric_mean
from eaglelocal.core.events import Failed, Finished, RequestEvent, Started
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import RequestError, UsageError

MAX_RATES = 7  # as many columns fit into 80
MIN_RATE, MAX_RATE = 0.01, 100.0  # requests per second
ROUNDS = 4
WINDOW_S = 8.0
MIN_REQUESTS = 4  # of a window
MIN_QUEUED, MIN_ENDED = 0.2, 5  # share of the time, and ends of requests: with less, a queue says nothing


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
    num_too_long: int = 0  # requests that were refused: their prompts are longer than the context

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
    """Append a window for each plan and side to `windows`. Each side first answers each warm-up prompt in all slots.

    Raises the error of a request that failed, unless its prompt is longer than the context and others' are not.
    """
    for side, prompt in product(sides, warm_up):
        with forgiving_long_prompts():
            ask(side, [prompt] * num_slots, [params] * num_slots, name=f"warm-{side.label}")
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
        recorded = list(map(record_times, sent, plan.times_s, plan.prompts, [began_at] * len(sent)))
        running.pop_all()
    requests = tuple(filter(None, recorded))
    refusal = sent[0].events[-1][1]
    if not requests and isinstance(refusal, Failed):
        raise refusal.error
    ends = [one.ended_s for one in requests]
    length_s = cut_s if math.inf in ends else max(plan.length_s, *ends)
    return LoadWindow(side.label, plan.rate, plan.round, length_s, requests, len(recorded) - len(requests))


@contextmanager
def forgiving_long_prompts() -> Iterator[None]:
    """End quietly at the refusal of a prompt that is longer than the context: a file may hold a few."""
    try:
        yield
    except RequestError as error:
        if error.code != TOO_LONG:
            raise


def listen(arrivals: Arrivals, ended: SimpleQueue[None]) -> Callable[[RequestEvent], None]:
    """Return a listener that records events, and puts an entry into `ended` after the last one."""

    def on_event(event: RequestEvent) -> None:
        arrivals.arrive(event)
        if isinstance(event, Finished | Failed):
            ended.put(None)

    return on_event


def record_times(arrivals: Arrivals, arrived_s: float, prompt: BenchPrompt, began_at: float) -> RequestTimes | None:
    """Wait for the end of a request and return its times; None if its prompt is longer than the context.

    Raises the error of one that failed otherwise.
    """
    finished = None
    with forgiving_long_prompts():
        finished = arrivals.wait()
    if finished is None:
        return None
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
    num_too_long: int
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
        num_too_long=sum(window.num_too_long for window in windows),
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
