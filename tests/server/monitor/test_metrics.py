"""Metrics for Prometheus, and the snapshot and events for monitors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from doubles.directed_server_engine import STATS
from doubles.property_tests import examples
from doubles.running_server import Server, directed, served
from doubles.scripted_client import ScriptedClient, says
from doubles.timeouts import wait_until
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families

from eaglelocal.core.stats import SpeculationStats
from eaglelocal.server.metrics import MetricGauges, Metrics
from eaglelocal.worker.supervisor import RestartPolicy

COUNTERS = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "draft_seconds_total",
    "verify_seconds_total",
    "engine_restarts_total",
)
GAUGES = (
    "kv_cache_usage_perc",
    "num_requests_running",
    "num_requests_waiting",
    "speculation_state",
    "draft_length",
    "predicted_speedup",
    "swapped_bytes",
)
HISTOGRAMS = ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds")


def samples(text: str) -> dict[str, float]:
    """By name with its labels."""
    return {
        f"{sample.name}{json.dumps(sample.labels) if sample.labels else ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(server: Server) -> dict[str, float]:
    answer = server.http.get("/metrics")
    assert answer.headers["content-type"] == CONTENT_TYPE_LATEST
    return samples(answer.text)


def test_names_are_those_that_dashboards_know(actor: Server) -> None:
    actor.ask("say x")
    families = {f.name: f.type for f in text_string_to_metric_families(actor.http.get("/metrics").text)}
    assert {families[f"eaglelocal:{name.removesuffix('_total')}"] for name in COUNTERS} == {"counter"}
    assert {families[f"eaglelocal:{name}"] for name in GAUGES} == {"gauge"}
    assert {families[f"eaglelocal:{name}"] for name in HISTOGRAMS} == {"histogram"}
    assert set(COUNTERS) <= {name.removeprefix("eaglelocal:").partition("{")[0] for name in read(actor)}


def test_values_are_the_engines(actor: Server) -> None:
    actor.ask("say x")
    reply = read(actor)
    assert reply["eaglelocal:spec_decode_num_drafts_total"] == STATS.drafts
    assert reply['eaglelocal:spec_decode_num_accepted_tokens_per_pos_total{"position": "2"}'] == 1
    assert reply["eaglelocal:kv_cache_usage_perc"] == 0.25
    assert reply["eaglelocal:draft_length"] == 4
    assert reply['eaglelocal:speculation_state{"state": "on"}'] == 1
    assert reply["eaglelocal:predicted_speedup"] == 1.5
    assert reply["eaglelocal:swapped_bytes"] == 3 * 2**20


def test_answers_are_counted_and_timed(actor: Server) -> None:
    before = read(actor)
    actor.ask("say one two three")
    after = read(actor)
    for name in ("time_to_first_token", "e2e_request_latency"):
        assert after[f"eaglelocal:{name}_seconds_count"] == before[f"eaglelocal:{name}_seconds_count"] + 1
        assert after[f"eaglelocal:{name}_seconds_sum"] > before[f"eaglelocal:{name}_seconds_sum"]
    name = "eaglelocal:generation_tokens_total"
    assert after[name] == before[name] + 3


def test_an_answer_without_tokens_still_takes_its_time(actor: Server) -> None:
    name = "eaglelocal:e2e_request_latency_seconds_sum"
    before = read(actor)[name]
    assert actor.ask("sleep 0.1").status_code == 200
    assert read(actor)[name] >= before + 0.1


def test_what_runs_and_waits_is_reported(actor: Server) -> None:
    stream = actor.openai().completions.create(model="", prompt="forever", stream=True)
    wait_until(lambda: read(actor)["eaglelocal:num_requests_running"] == 1, "it runs")
    reply = actor.snapshot()
    assert (reply["running"], reply["waiting"], len(reply["requests"])) == (1, 0, 1)
    row = reply["requests"][0]
    assert (row["state"], row["model"], row["owner"]) == ("running", "actor", "local")
    assert row["completion_tokens"] > 0
    assert row["drafting"] == "on"
    stream.close()
    actor.wait_until_idle()
    assert read(actor)["eaglelocal:num_requests_running"] == 0
    assert actor.snapshot()["requests"] == []


def test_the_snapshot_has_what_monitors_read(actor: Server) -> None:
    actor.ask("say x")
    reply = actor.snapshot()
    assert {"time", "uptime_s", "state", "model", "models", "answered", "engine", "restarts", "recent"} <= set(reply)
    assert reply["model"]["name"] == "actor"
    assert reply["engine"]["speculation"]["acceptance_length"] == STATS.acceptance_length
    assert {"steps", "host_s", "native_s", "draft_s", "verify_s", "costs"} <= set(reply["engine"])
    costs = {"decodes", "draft_steps", "at_once", "max_depth", "noise", "context"}
    assert set(reply["engine"]["costs"]) == costs | {"plain_overhead_s", "drafted_overhead_s"}
    newest = reply["recent"][0]
    assert (newest["state"], newest["completion_tokens"]) == ("stop", 1)


def test_events_are_snapshots(actor: Server) -> None:
    with actor.http.stream("GET", "/v1/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        reply = [json.loads(line.removeprefix("data: ")) for line in first_two(stream.iter_lines())]
    assert reply[0]["state"] == reply[1]["state"] == "ready"
    assert reply[0]["time"] < reply[1]["time"]


def first_two(lines: Iterator[str]) -> Iterator[str]:
    for _ in range(2):
        yield next(line for line in lines if line.startswith("data: "))


def test_counters_go_on_over_the_ends_of_engines() -> None:
    with served(directed("one", "two", restart=RestartPolicy(max_crashes=9, first_delay_s=0.01))) as server:
        last = read(server)
        for script, model in (
            ("say a b", "one"),
            ("crash", "one"),
            ("say c", "one"),
            ("say d", "two"),
            ("say e", "one"),
        ):
            server.ask(script, model=model)
            now = read(server)
            falling = [name for name in last if is_counter(name) and now[name] < last[name]]
            assert falling == []
            last = now
        assert last["eaglelocal:generation_tokens_total"] == 5
        assert last["eaglelocal:engine_restarts_total"] == 1


def is_counter(name: str) -> bool:
    return name.partition("{")[0].endswith(("_total", "_count", "_sum", "_bucket"))


engines = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(0, 2)), min_size=1, max_size=20)


@examples(20)
@given(engines)
def test_no_order_of_engines_makes_a_counter_fall(reply: list[tuple[int, int, int]]) -> None:
    """Each reads: which process, how much it has done more since it was last read, how often it was restarted."""
    totals: dict[int, int] = {}
    served_by = 0
    metrics, gauges, last = Metrics(), [gauges_of(0, 0, 0)], dict[str, float]()
    metrics.read_gauges = lambda: gauges[-1]
    for pid, more, restarts in reply:
        if pid != served_by and pid in totals:
            continue  # a process that is gone does not come back
        served_by = pid
        totals[pid] = totals.get(pid, 0) + more
        gauges.append(gauges_of(pid, totals[pid], restarts))
        now = samples(metrics.text().decode())
        assert [name for name in last if is_counter(name) and now[name] < last[name]] == []
        assert now["eaglelocal:generation_tokens_total"] == sum(totals.values())
        last = now


def gauges_of(pid: int, count: int, restarts: int) -> MetricGauges:
    snapshot = ScriptedClient((says("x"),)).snapshot()
    stats = SpeculationStats("on", "", count, count, count, (count,), None, count)
    snapshot = replace(snapshot, engine_pid=pid, generated_tokens=count, prompt_tokens=count, speculation=stats)
    return MetricGauges((snapshot,) if pid else (), {"one": restarts}, 0, 0, 0, 0, None)


def test_prefill_next_to_answers_is_safe(actor: Server) -> None:
    """Metrics are read on other threads than those that emit answers."""
    with ThreadPoolExecutor(4) as pool:
        reads = [pool.submit(actor.http.get, "/metrics") for _ in range(100)]
        answers = [pool.submit(actor.ask, "say x") for _ in range(100)]
    assert {one.result().status_code for one in (*reads, *answers)} == {200}


def test_counters_begin_with_nothing() -> None:
    metrics = Metrics()
    metrics.read_gauges = lambda: gauges_of(0, 0, 0)
    reply = samples(metrics.text().decode())
    labelled = "spec_decode_num_accepted_tokens_per_pos_total"
    assert {reply[f"eaglelocal:{name}"] for name in COUNTERS if name != labelled} == {0.0}


@pytest.mark.parametrize("path", ["/metrics", "/v1/snapshot", "/health", "/v1/models"])
def test_everything_can_be_read_while_nothing_is_loaded(path: str) -> None:
    with served(directed(loads=False)) as server:
        assert server.http.get(path).status_code == 200
