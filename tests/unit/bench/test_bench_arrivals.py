"""The measurement under load: arrivals, queues and saturation, the statistics, and the report at 80 columns."""

from __future__ import annotations

import heapq
import math
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from doubles.timed_client import UncontrolledClient
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelocal.bench.arrivals import (
    MAX_RATES,
    ROUNDS,
    ArrivalPlan,
    LoadWindow,
    RequestTimes,
    evaluate_rates,
    parse_rates,
    plan_arrivals,
    run_plans,
    run_window,
)
from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.prompt_run import Side
from eaglelocal.bench.rate_report import draw_rates, format_rates, rates_object
from eaglelocal.bench.results import WHOLE
from eaglelocal.cli.output import format_json
from eaglelocal.client.client import OnEvent
from eaglelocal.core.events import Failed, Finished, Started, TextPiece, Tokens
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest
from eaglelocal.core.sampling import GREEDY
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, RequestError, UsageError

COLUMNS = 79
SVG = "{http://www.w3.org/2000/svg}"
PROMPTS = {kind: [BenchPrompt(kind, tokens=(i,)) for i in range(5)] for kind in ("chat", "math")}


# ---- rates and arrivals
def test_rates_are_sorted_and_have_three_digits() -> None:
    assert parse_rates("4, 0.5,1.23456") == (0.5, 1.23, 4.0)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "1,0", "1,1", "1.0001,1", "nan", "inf", "1e9", "1,,2", "0.001"])
def test_wrong_rates_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--rate must be up to 7 different requests per second") as caught:
        parse_rates(text)
    assert caught.value.hint == "--rate 0.5,1,2,4"


def test_more_rates_than_columns_are_refused() -> None:
    most = [str(n + 1) for n in range(MAX_RATES)]
    assert len(parse_rates(",".join(most))) == MAX_RATES
    with pytest.raises(UsageError, match="up to 7"):
        parse_rates(",".join([*most, "99"]))


@given(st.lists(st.floats(0.01, 20), min_size=1, max_size=4, unique=True), st.integers(0, 9))
@settings(max_examples=20, deadline=None)
def test_every_window_has_just_its_rate_and_every_category(rates: list[float], seed: int) -> None:
    plans = plan_arrivals(PROMPTS, rates, seed=seed)
    assert plans == plan_arrivals(PROMPTS, rates, seed=seed)
    assert [(plan.round, plan.rate) for plan in plans] == [(n, rate) for n in range(ROUNDS) for rate in rates]
    for plan in plans:
        assert len(plan.times_s) == len(plan.prompts) == pytest.approx(plan.rate * plan.length_s)
        assert list(plan.times_s) == sorted(plan.times_s)
        assert plan.times_s[0] >= 0 and plan.times_s[-1] <= plan.length_s < plan.cut_s
        assert {prompt.category for prompt in plan.prompts} == {"chat", "math"}
    assert plans[0].times_s != plans[len(rates)].times_s, "every round draws anew"


def test_gaps_between_arrivals_are_those_of_a_poisson_process() -> None:
    (plan,) = plan_arrivals(PROMPTS, [1.0], rounds=1, num_requests=4000)
    gaps = [b - a for a, b in zip(plan.times_s, plan.times_s[1:], strict=False)]
    assert sum(gap > 1.0 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)


def test_given_prompts_are_each_sent_once_in_a_window() -> None:
    plans = plan_arrivals(PROMPTS, [1, 8], rounds=2, num_requests=10)
    assert all(len(set(plan.prompts)) == 10 for plan in plans)


# ---- statistics
def serve(plan: ArrivalPlan, service_s: float, num_slots: int, *, side: str = "plain") -> LoadWindow:
    """A queue in the order of arrival: each answer takes as long, in one of the slots."""
    free = [0.0] * num_slots
    requests = []
    for arrived_s, prompt in zip(plan.times_s, plan.prompts, strict=True):
        ended_s = max(heapq.heappop(free), arrived_s) + service_s
        heapq.heappush(free, ended_s)
        requests.append(RequestTimes(prompt.category, arrived_s, ended_s - service_s, ended_s, 10))
    length_s = max(plan.length_s, *(one.ended_s for one in requests))
    return LoadWindow(side, plan.rate, plan.round, length_s, tuple(requests))


def serve_all(services_s: Mapping[str, float], rates: Sequence[float], num_slots: int) -> list[LoadWindow]:
    plans = plan_arrivals(PROMPTS, rates, num_requests=40)
    return [serve(plan, seconds, num_slots, side=side) for plan in plans for side, seconds in services_s.items()]


def test_times_queue_and_tokens_of_a_window_by_hand() -> None:
    """One slot: the second request waits from 1 to 3, and one request ends meanwhile."""
    requests = (RequestTimes("x", 0.0, 1.0, 3.0, 20), RequestTimes("x", 1.0, 4.0, 5.0, 10, is_fresh=False))
    window = LoadWindow("plain", 0.5, 0, 6.0, requests)
    assert window.measure_queue(1) == (2.0, 1)
    assert window.measure_queue(2) == (0.0, 0)
    (result,), (best,) = evaluate_rates([window], 1)
    assert (result.tok_s, result.mean_s, result.p95_s, result.ttft_p95_s) == (5.0, 3.5, 4.0, 3.0)
    assert (result.queued_share, result.is_saturated, result.num_reused) == (pytest.approx(1 / 3), False, 1)
    assert best.spec == "plain"


@given(st.floats(0.1, 0.6), st.integers(1, 8), st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_a_rate_that_is_held_is_not_called_saturated(load: float, num_slots: int, rate: float) -> None:
    (result,), _ = evaluate_rates(serve_all({"plain": load * num_slots / rate}, [rate], num_slots), num_slots)
    assert not result.is_saturated


@given(st.floats(1.4, 10.0), st.integers(1, 8), st.floats(0.1, 10))
@settings(max_examples=60, deadline=None)
def test_a_rate_that_is_not_held_is_saturated(load: float, num_slots: int, rate: float) -> None:
    (result,), (best,) = evaluate_rates(serve_all({"plain": load * num_slots / rate}, [rate], num_slots), num_slots)
    assert result.is_saturated and best.spec is None
    if result.capacity is not None:
        assert result.capacity == pytest.approx(rate / load, rel=0.35)


def test_a_window_that_was_cut_is_saturated() -> None:
    window = LoadWindow("plain", 1.0, 0, 6.0, (RequestTimes("x", 0.0, math.inf, math.inf, 3),))
    (result,), _ = evaluate_rates([window], 1)
    assert result.is_saturated and result.capacity is None


def test_gains_are_ratios_of_mean_times_and_the_best_is_named() -> None:
    results, best = evaluate_rates(serve_all({"plain": 2.0, "auto": 1.0, "4": 1.001, "8": 3.0}, [0.1, 20], 4), 4)
    gains = {(one.rate, one.spec): one.gains for one in results}
    assert gains[0.1, "auto"][WHOLE].mean == pytest.approx(2.0, rel=0.05)
    assert gains[0.1, "8"]["math"].mean == pytest.approx(0.66, rel=0.05)
    assert gains[0.1, "plain"] == gains[20, "auto"] == {}
    assert [one.spec for one in best] == ["auto", None]
    assert [one.spec for one in results] == ["plain", "auto", "4", "8"] * 2


def test_settings_without_a_difference_are_named_beside_the_best() -> None:
    windows = serve_all({"plain": 1.0}, [0.1], 4)
    windows += [
        LoadWindow(
            "auto",
            window.rate,
            window.round,
            window.length_s,
            tuple(
                RequestTimes(one.category, one.arrived_s, one.arrived_s, one.ended_s + shift, 10)
                for one in window.requests
            ),
        )
        for window, shift in zip(windows, (-0.3, 0.2, -0.3, 0.2), strict=True)
    ]
    _, (best,) = evaluate_rates(windows, 4)
    assert (best.spec, best.not_distinguishable) == ("auto", ("plain",))


def test_a_setting_that_holds_what_plain_decoding_does_not_is_best_without_a_gain() -> None:
    results, best = evaluate_rates(serve_all({"plain": 8.0, "auto": 1.0}, [1.0], 4), 4)
    assert [one.is_saturated for one in results] == [True, False]
    assert results[1].gains == {}
    text = format_rates(results, best, num_slots=4)
    assert "best at 1/s: auto; saturated: plain" in text
    assert "saturated, holds 0.5" in text
    assert "plain is saturated" in text.splitlines()[2]
    assert "plain: saturated" in draw_rates(results, title="t", subtitle="s")


# ---- the report
def test_the_report_says_everything_and_ends_with_the_best() -> None:
    results, best = evaluate_rates(serve_all({"plain": 2.0, "auto": 1.0}, [0.1, 20], 4), 4)
    text = format_rates(results, best, num_slots=4)
    assert "0.1  plain" in text and "2.00x" in text and "slots: 4" in text
    assert "chat          auto   2.00x    sat." in text
    assert text.splitlines()[-2].startswith("best at 0.1/s: auto, 2.00x plain")
    assert text.splitlines()[-1].startswith("best at 20/s: none holds this rate; most tokens with auto")


services = st.dictionaries(
    st.sampled_from(["auto", "pid", *map(str, range(1, 17))]), st.floats(0.01, 20.0), min_size=1, max_size=12
)
many_rates = st.lists(st.floats(0.01, 99.0), min_size=1, max_size=MAX_RATES)


@given(services, many_rates)
@settings(max_examples=25, deadline=None)
def test_tables_fit_80_columns_and_the_chart_is_well_formed(by_side: dict[str, float], drawn: list[float]) -> None:
    rates = sorted({float(f"{rate:.3g}") for rate in drawn})
    results, best = evaluate_rates(serve_all({"plain": 1.0, **by_side}, rates, 4), 4)
    text = format_rates(results, best, num_slots=4)
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert text.isascii()
    root = ElementTree.fromstring(draw_rates(results, title="a <model>", subtitle="a head"))
    for element in root.iter():
        for name in ("y1", "y2", "cy"):
            assert 0 <= float(element.attrib.get(name, 0)) <= float(root.attrib["height"])
    assert "Infinity" not in format_json(rates_object(results, best))


def test_a_single_round_says_so() -> None:
    windows = [window for window in serve_all({"plain": 2.0, "auto": 1.0}, [0.1], 4) if window.round == 0]
    assert "2.00x one round" in format_rates(*evaluate_rates(windows, 4), num_slots=4)


# ---- the run
@dataclass
class SlowServer(UncontrolledClient):
    """A client that answers on threads: each answer takes `service_s` in one of the slots."""

    num_slots: int
    service_s: float
    fails: bool = False
    too_long: frozenset[tuple[int, ...]] = frozenset()  # prompts
    requests: list[ChatRequest] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    state: str = "ready"

    def __post_init__(self) -> None:
        self._free = threading.Semaphore(self.num_slots)

    def submit(self, request: ChatRequest, on_event: OnEvent) -> None:
        self.requests.append(request)
        threading.Thread(target=self._answer, args=(request, on_event), daemon=True).start()

    def _answer(self, request: ChatRequest, on_event: OnEvent) -> None:
        with self._free:
            if self.fails:
                on_event(Failed(request.id, EngineError("the engine crashed")))
                return
            if request.tokens in self.too_long:
                on_event(Failed(request.id, RequestError("2 tokens are too many", code="context_length_exceeded")))
                return
            reason = "cancelled" if request.id in self.cancelled else "length"
            if reason == "length":
                on_event(Started(request.id, 10, 0))
                on_event(Tokens(request.id, (TextPiece(1, "a", False),)))
                time.sleep(self.service_s / (2 if request.spec == AUTO_SPEC else 1))
        on_event(Finished(request.id, reason, "", 10, 8, Timings(), SpeculationStats()))

    def cancel(self, request_id: str) -> None:
        self.cancelled.add(request_id)


def plan(rate: float, count: int, cut_s: float = 9.0) -> ArrivalPlan:
    times_s = tuple(number / rate for number in range(count))
    return ArrivalPlan(rate, 0, count / rate, cut_s, times_s, (BenchPrompt("x", tokens=(1,)),) * count)


def test_requests_are_sent_when_they_arrive_and_timed_from_there() -> None:
    server = SlowServer(1, 0.05)
    window = run_window(Side("plain", server, OFF), plan(40.0, 4), GREEDY, num_slots=1)
    assert [one.arrived_s for one in window.requests] == [0.0, 0.025, 0.05, 0.075]
    assert all(0.04 < one.total_s < 9.0 for one in window.requests)
    assert window.requests[-1].total_s > window.requests[0].total_s, "it waited"
    assert [request.params.seed for request in server.requests] == [0, 1, 2, 3]
    assert len({request.owner for request in server.requests}) == 4
    assert server.cancelled == set()


def test_a_queue_that_does_not_end_is_cut() -> None:
    server = SlowServer(1, 0.1)
    window = run_window(Side("plain", server, OFF), plan(200.0, 12, cut_s=0.25), GREEDY, num_slots=1)
    assert len(server.cancelled) == 12
    assert math.inf in [one.ended_s for one in window.requests]
    assert 0.25 <= window.length_s < 9.0
    (result,), _ = evaluate_rates([window], 1)
    assert result.is_saturated


def test_a_failure_is_raised_and_the_rest_is_cancelled() -> None:
    server = SlowServer(2, 0.0, fails=True)
    with pytest.raises(EngineError, match="crashed"):
        run_window(Side("plain", server, OFF), plan(200.0, 3), GREEDY, num_slots=2)
    assert len(server.cancelled) == 3


def test_prompts_longer_than_the_context_are_left_out() -> None:
    short, long = BenchPrompt("x", tokens=(1,)), BenchPrompt("x", tokens=(1, 2))
    server = SlowServer(2, 0.0, too_long=frozenset([(1, 2)]))
    mixed = replace(plan(200.0, 3), prompts=(long, short, long))
    windows: list[LoadWindow] = []
    sides = [Side("plain", server, OFF), Side("auto", server, AUTO_SPEC)]
    run_plans(sides, [mixed], GREEDY, windows, num_slots=2, warm_up=[long], on_window=lambda _, done: None)
    assert [(len(window.requests), window.num_too_long) for window in windows] == [(1, 2), (1, 2)]
    results, best = evaluate_rates(windows, 2)
    assert "left out: 4 requests, whose prompts are longer than the context" in format_rates(results, best, num_slots=2)
    with pytest.raises(RequestError, match="too many"):
        run_window(sides[0], replace(mixed, prompts=(long,) * 3), GREEDY, num_slots=2)


def test_settings_take_turns_on_the_same_arrivals() -> None:
    server = SlowServer(4, 0.2)
    sides = [Side("plain", server, OFF), Side("auto", server, AUTO_SPEC)]
    plans = plan_arrivals(PROMPTS, [40.0], rounds=2, num_requests=4)
    windows: list[LoadWindow] = []
    shares: list[float] = []
    warm_up = [BenchPrompt("x", tokens=(3,))]
    run_plans(
        sides,
        plans,
        GREEDY,
        windows,
        num_slots=4,
        warm_up=warm_up,
        on_window=lambda _, done: shares.append(done),
    )
    assert [window.side for window in windows] == ["plain", "auto", "auto", "plain"]
    assert shares == pytest.approx([0.0, 0.25, 0.5, 0.75])
    for one, other in zip(windows[::2], windows[1::2], strict=True):
        assert [r.arrived_s for r in one.requests] == [r.arrived_s for r in other.requests]
    assert [request.tokens for request in server.requests[:8]] == [(3,)] * 8
    results, _ = evaluate_rates(windows, 4)
    assert results[1].gains[WHOLE].mean > 1.0
