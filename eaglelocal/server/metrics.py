"""Prometheus metrics: vLLM's names, so that its dashboards fit, and some of ours. No prompts, keys or owners.

An engine's totals restart with its process; these metrics do not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from eaglelocal.core.events import NOTHING_YET, EngineSnapshot
from eaglelocal.core.records import dataclass
from eaglelocal.core.stats import LEARNING_OFF, LearningStatus
from eaglelocal.core.stats import STATES as LEARNING_STATES
from eaglelocal.server.answer_state import AnswerState

PREFIX = "eaglelocal:"
FIRST_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
GAP_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
ANSWER_BUCKETS_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
STATES = ("on", "asleep", "off")
LOAD = ("num_requests_running", "num_requests_waiting", "engine_restarts")
PUBLIC_METRICS = tuple(f"{PREFIX}{name}" for name in LOAD)


@dataclass(frozen=True, slots=True)
class MetricGauges:
    """The current values of the server, besides the engines' own totals."""

    snapshots: tuple[EngineSnapshot, ...] = ()  # of each engine; empty while no model is loaded
    restarts: Mapping[str, int] = field(default_factory=dict)  # engine restarts by model
    running: int = 0
    waiting: int = 0
    refused: int = 0
    failed: int = 0
    speedup: float | None = None
    learning: LearningStatus = LEARNING_OFF
    drift: tuple[tuple[str, str, float], ...] = ()  # (target, kind of text, recent acceptance / its history)


class PublicMetrics(Collector):
    """The metrics that every key may read."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._registry.collect() if metric.name in PUBLIC_METRICS)


class Metrics(Collector):
    """The metrics of one server, in a registry of its own: two servers in one process do not mix.

    Its totals continue across restarts of engine processes.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_BUCKETS_S
        )
        self._gap = self._histogram(
            "inter_token_latency_seconds", "Between arrivals of an answer's tokens.", GAP_BUCKETS_S
        )
        self._answer = self._histogram(
            "e2e_request_latency_seconds", "From the request to the end of its answer.", ANSWER_BUCKETS_S
        )
        self.read_gauges: Callable[[], MetricGauges] = MetricGauges  # called whenever the metrics are read
        self._lock = threading.Lock()  # several threads may read at once
        self._ended = count_totals(NOTHING_YET)  # of engines that have ended
        self._last: dict[int, dict[str, float]] = {}  # of each engine, by its process id
        self._restarts: Counter[str] = Counter()  # of each model's engine
        self._restarts_before = 0
        self.registry.register(self)

    def record_answer(self, choice: AnswerState) -> None:
        """Record an answer that is complete or was cancelled."""
        if choice.first_token_at:
            self._first_token.observe(choice.first_token_at - choice.requested_at)
        for gap in choice.token_gaps_s:
            self._gap.observe(gap)
        if choice.finished is not None:
            self._answer.observe(choice.ended_at - choice.requested_at)

    def text(self, is_operator: bool = True) -> bytes:
        """Return the metrics. Non-operators get only the load, because totals would reveal the requests of others."""
        return generate_latest(self.registry if is_operator else PublicMetrics(self.registry))

    def _histogram(self, name: str, what: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, what, buckets=buckets, registry=self.registry)

    def describe(self) -> Iterator[Metric]:
        """Return nothing: gauges are not available while the server is being built."""
        return iter(())

    def read_totals(self) -> tuple[MetricGauges, dict[str, float]]:
        """Read the engines' totals, also before an engine ends, because its last totals would be lost."""
        with self._lock:
            gauges = self.read_gauges()
            return gauges, self._totals(gauges)

    def collect(self) -> Iterator[Metric]:
        gauges, totals = self.read_totals()
        for name, value in totals.items():
            if "{" not in name:
                yield CounterMetricFamily(PREFIX + name, name.replace("_", " "), value=value)
        yield self._per_position(totals)
        yield from self._gauge_metrics(gauges)

    def _totals(self, gauges: MetricGauges) -> dict[str, float]:
        for name, count in gauges.restarts.items():
            if count < self._restarts[name]:  # the model was reloaded
                self._restarts_before += self._restarts[name]
            self._restarts[name] = count
        restarts = {"engine_restarts": float(self._restarts_before + self._restarts.total())}
        now = {snapshot.engine_pid: count_totals(snapshot) for snapshot in gauges.snapshots}
        self._ended = add_totals(self._ended, *(self._last[pid] for pid in self._last.keys() - now.keys()))
        self._last = now
        return add_totals(self._ended, *now.values()) | restarts

    def _per_position(self, totals: dict[str, float]) -> Metric:
        what = "Accepted draft tokens by their depth in the draft."
        family = CounterMetricFamily(PREFIX + "spec_decode_num_accepted_tokens_per_pos", what, labels=["position"])
        for name, value in totals.items():
            if "{" in name:
                family.add_metric([name.partition("{")[2]], value)
        return family

    def _gauge_metrics(self, gauges: MetricGauges) -> Iterator[Metric]:
        snapshots = gauges.snapshots or (NOTHING_YET,)  # a missing counter has no rate
        cells = sum(snapshot.cache_cells for snapshot in snapshots)
        usage = sum(snapshot.cached_tokens for snapshot in snapshots) / cells if cells else 0.0
        drafts = sum(snapshot.speculation.drafts for snapshot in snapshots)
        drafted = sum(snapshot.speculation.draft_tokens for snapshot in snapshots)
        states = {snapshot.speculation.state for snapshot in snapshots}
        swapped = sum(snapshot.swapped_bytes for snapshot in snapshots)
        stored = sum(snapshot.stored_bytes for snapshot in snapshots)
        speedup_help = "Estimated speedup of recent answers over plain decoding; 0: unknown."
        yield make_gauge("kv_cache_usage_perc", "Share of the KV cache that holds tokens, 0 to 1.", usage)
        yield make_gauge("swapped_bytes", "Bytes of conversations swapped out to RAM.", swapped)
        yield make_gauge("stored_bytes", "Bytes of conversations kept on disk.", stored)
        yield make_gauge("num_requests_running", "Requests that have a slot.", gauges.running)
        yield make_gauge("num_requests_waiting", "Requests that wait for a slot or a model.", gauges.waiting)
        yield make_gauge("draft_length", "Tokens of a draft, on average.", drafted / drafts if drafts else 0.0)
        yield make_gauge("predicted_speedup", speedup_help, gauges.speedup or 0.0)
        refused = "Calls that could not be answered as they were sent, or not then."
        yield CounterMetricFamily(PREFIX + "calls_refused", refused, value=float(gauges.refused))
        yield CounterMetricFamily(PREFIX + "calls_failed", "Calls that failed here.", value=float(gauges.failed))
        present = next((name for name in STATES if name in states), "")  # of several models the most active
        yield make_state("speculation_state", STATES, present)
        if gauges.learning.on:
            yield from make_learning_metrics(gauges.learning)
        what = "Recent acceptance of first drafted tokens, divided by its history."
        drift = GaugeMetricFamily(PREFIX + "acceptance_of_history", what, labels=["target", "kind"])
        for target, kind, share in gauges.drift:
            drift.add_metric([target, kind], share)
        yield drift


def make_gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, what, value=float(value))


def make_state(name: str, states: Sequence[str], present: str) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, "1 for the present state.", labels=["state"])
    for state in states:
        family.add_metric([state], float(state == present))
    return family


def make_learning_metrics(status: LearningStatus) -> Iterator[Metric]:
    """Yield the amount of kept answers, and the state of learning."""
    yield make_gauge("learning_kept_answers", "Answers that are kept to learn from.", status.kept_answers)
    yield make_gauge("learning_kept_bytes", "Bytes of answers that are kept to learn from.", status.kept_bytes)
    what = "Learned version of the head that drafts; 0: the base head."
    yield make_gauge("learning_head_version", what, status.version)
    yield make_state("learning_state", LEARNING_STATES, status.state)


def count_totals(snapshot: EngineSnapshot) -> dict[str, float]:
    """Return an engine's totals by name, including accepted tokens by depth under the name `{depth`."""
    stats = snapshot.speculation
    totals: dict[str, float] = {
        "spec_decode_num_drafts": stats.drafts,
        "spec_decode_num_draft_tokens": stats.draft_tokens,
        "spec_decode_num_accepted_tokens": stats.accepted_tokens,
        "prompt_tokens": snapshot.prompt_tokens,
        "generation_tokens": snapshot.generated_tokens,
        "draft_seconds": snapshot.draft_s,
        "verify_seconds": snapshot.verify_s,
        "host_seconds": snapshot.host_s,
    }
    return totals | {f"{{{depth}": count for depth, count in enumerate(stats.accepted_per_position)}


def add_totals(*totals: Mapping[str, float]) -> dict[str, float]:
    names = dict.fromkeys(name for one in totals for name in one)
    return {name: sum(one.get(name, 0.0) for one in totals) for name in names}
