"""`eaglelocal export alerts|dashboard|argocd|kueue` as people run it; no hub is asked, since the commits are stated."""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from doubles.commands import run_command
from doubles.scripted_client import ScriptedClient, says
from prometheus_client.parser import text_string_to_metric_families

from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.core.stats import SpeculationStats
from eaglelocal.learning.drift import BOUNDS
from eaglelocal.preparation.vllm.exports import make_name
from eaglelocal.preparation.vllm.fleet_files import LOW_ACCEPTANCE, format_yaml, list_set_problems
from eaglelocal.server.metrics import MetricGauges, Metrics

pytestmark = pytest.mark.full

TARGET_COMMIT, DRAFT_COMMIT, OTHER = "1a" * 20, "2b" * 20, "3c" * 20
PINS = ("--revision", TARGET_COMMIT, "--draft-revision", DRAFT_COMMIT)
PAIR = ("qwen3-8b", "--machine", "h100-sxm", "--draft", "e3-qwen3-8b-angelslim", *PINS)
HAS_PROMTOOL = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
# of vllm/v1/metrics/loggers.py and vllm/v1/spec_decode/metrics.py
VLLM_METRICS = {
    *("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total"),
    *("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
    *("vllm:time_to_first_token_seconds_bucket", "vllm:num_requests_waiting", "vllm:num_requests_running"),
    *("vllm:generation_tokens_total", "vllm:kv_cache_usage_perc"),
}
# Nothing is accepted from minute 1440 on, and the server ends at minute 1560.
SERIES = {
    "spec_decode_num_drafts_total": "0+600x1560 _x10",
    "spec_decode_num_draft_tokens_total": "0+2400x1560 _x10",
    "spec_decode_num_accepted_tokens_total": "0+600x1440 864000+0x120 _x10",
    "spec_decode_num_accepted_tokens_per_pos_total": "0+300x1440 432000+0x120 _x10",
    "num_requests_running": "1x1560 _x10",
}
PLACE = {"job": "j", "instance": "i"}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def write(*arguments: str) -> str:
    done = run_command("export", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_rules(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def list_expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in read_rules(write("alerts")))
    for panel in json.loads(write("dashboard"))["panels"]:
        yield from (query["expr"] for query in panel.get("targets", ()))


# ---- alerts and dashboard
def list_our_metrics() -> set[str]:
    """The names in /metrics of a server that has answered."""
    snapshot = replace(ScriptedClient((says("x"),)).snapshot(), speculation=SpeculationStats("on", "", 1, 1, 1, (1,)))
    metrics = Metrics()
    metrics.read_gauges = lambda: MetricGauges((snapshot,), {"m": 0}, speedup=1.0, drift=(("m", "code", 0.5),))
    families = text_string_to_metric_families(metrics.text().decode())
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_is_one_of_the_servers() -> None:
    named = {name for text in list_expressions() for name in re.findall(r"(?:eaglelocal|vllm):\w+", text)}
    assert named <= list_our_metrics() | VLLM_METRICS
    assert named >= VLLM_METRICS
    assert named >= {f"eaglelocal:{name}" for name in ("acceptance_of_history", "predicted_speedup", "swapped_bytes")}


def test_each_server_has_a_group_with_all_alerts() -> None:
    assert {share for share, _ in LOW_ACCEPTANCE} == {share for share, _ in BOUNDS}
    ours, vllm = yaml.safe_load(write("alerts"))["groups"]
    for group, prefix in ((ours, "Eaglelocal"), (vllm, "Vllm")):
        names = [(rule["alert"].removeprefix(prefix), rule["labels"]["severity"]) for rule in group["rules"]]
        assert names[:2] == [("AcceptanceLow", "warning"), ("AcceptanceLow", "critical")]
        assert {name for name, _ in names[2:]} == {
            *("Restarts", "AcceptanceCollapsed", "FirstTokenSlow", "QueueLong", "Down"),
        }


@HAS_PROMTOOL
def test_promtool_takes_the_rules_and_the_expressions_of_panels(tmp_path: Path) -> None:
    queries = [text.replace("$__rate_interval", "5m") for text in list_expressions()]
    panels = {"groups": [{"name": "panels", "rules": [{"record": "x", "expr": text} for text in queries]}]}
    (tmp_path / "panels.yaml").write_text(format_yaml([panels]))
    write("alerts", "Qwen/Qwen3-8B", "--out", str(tmp_path / "rules.yaml"))
    for name in ("rules.yaml", "panels.yaml"):
        command = ["promtool", "check", "rules", "--lint=none", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


@HAS_PROMTOOL
@pytest.mark.parametrize("prefix", ["eaglelocal", "vllm"])
def test_alerts_begin_when_acceptance_falls_and_not_before(prefix: str, tmp_path: Path) -> None:
    write("alerts", "--out", str(tmp_path / "rules.yaml"))
    labels = 'job="j",instance="i",model_name="m"'
    series = {f'{prefix}:{name}{{{labels},position="0"}}': values for name, values in SERIES.items()}
    series |= {'up{job="j",instance="i"}': "1x1560 0x10"}
    series |= {'eaglelocal:acceptance_of_history{target="m",kind="code"}': "1x1440 0.65x130"}
    engine = {**PLACE, "model_name": "m", "position": "0"}
    low: list[tuple[dict[str, str], str]] = [
        ({"target": "m", "kind": "code"}, "m: acceptance of code is 65% of its past")
    ]
    if prefix == "vllm":
        low = [({"job": "j", "model_name": "m"}, "m: acceptance is 0% of the last week's")]
    tests = [
        *((name, 1430, []) for name in ("AcceptanceLow", "AcceptanceCollapsed", "Down")),
        ("AcceptanceCollapsed", 1500, [("critical", engine, "i: nearly all drafts are rejected")]),
        ("AcceptanceLow", 1540, [("warning", *one) for one in low]),
        ("Down", 1568, [("critical", PLACE, "i does not answer")]),
    ]
    if prefix == "vllm":
        tests[4][2].extend(("critical", *one) for one in low)
    cases = [
        {
            "eval_time": f"{minute}m",
            "alertname": f"{prefix.capitalize()}{name}",
            "exp_alerts": [
                {"exp_labels": {"severity": severity, **of}, "exp_annotations": {"summary": summary}}
                for severity, of, summary in alerts
            ],
        }
        for name, minute, alerts in tests
    ]
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": cases,
    }
    (tmp_path / "tests.yaml").write_text(format_yaml([{"rule_files": ["rules.yaml"], "tests": [test]}]))
    command = ["promtool", "test", "rules", "tests.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_panels_do_not_overlap_and_ask_the_chosen_source() -> None:
    board = json.loads(write("dashboard", "Qwen/Qwen3-8B"))
    assert board["title"].endswith(": Qwen/Qwen3-8B")
    assert [each["name"] for each in board["templating"]["list"]] == ["datasource"]
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert len(cells) == place["w"] * place["h"] and not cells & taken and max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    assert [panel["title"] for panel in board["panels"] if panel["type"] == "row"] == ["eaglelocal", "vLLM"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize(
    "label", ["Qwen/Qwen3-8B", "no", "y", "1e3", "0o7", "0X1F", "12:30:00", "2026-01-01", ".5", "x" * 128]
)
def test_a_label_stays_the_same_text(label: str) -> None:
    text = write("alerts", label)
    assert {rule["labels"]["model"] for rule in read_rules(text)} == {label}
    assert json.loads(write("dashboard", label))["title"] == f"Speculative decoding: {label}"
    if label in ("y", "1e3", "0o7", "0X1F"):
        assert f"model: '{label}'" in text  # which readers in Go would not take for a text


HOSTILE = ["{{ .x }}", "$job", "[[x]]", "a\nb: c", 'a"b', "a'b", "a b", "a#b", "a\x85b", "é", "x" * 129]


@pytest.mark.parametrize("label", HOSTILE)
@pytest.mark.parametrize("form", ["alerts", "dashboard"])
def test_a_label_that_would_be_replaced_is_refused(form: str, label: str) -> None:
    done = run_command("export", form, label)
    assert done.returncode == 2 and "error: the label" in done.stderr and done.stdout == ""


@pytest.mark.parametrize("name", [*HOSTILE, "A", "-a", "a.b", "x" * 64])
@pytest.mark.parametrize("form", ["argocd", "kueue"])
def test_a_queue_that_is_no_name_is_refused(form: str, name: str) -> None:
    done = run_command("export", form, *PAIR, "--queue", name)
    assert done.returncode == 2 and done.stdout == ""


def test_a_flag_that_does_nothing_is_refused(tmp_path: Path) -> None:
    for form in ("alerts", "dashboard"):
        done = run_command("export", form, "--machine", "h100-sxm")
        assert done.returncode == 2 and "takes only a label" in done.stderr
    done = run_command("export", "alerts", "--check", str(tmp_path))
    assert done.returncode == 2 and "can be checked" in done.stderr
    file = tmp_path / "rules.yaml"
    write("alerts", "--out", str(file))
    done = run_command("export", "alerts", "--out", str(file))
    assert done.returncode == 2 and "`--force` replaces it" in done.stderr
    assert json.loads(write("alerts", "--json"))["text"] == file.read_text()


# ---- Argo CD
@pytest.fixture
def application_set(offline: None) -> dict[str, Any]:
    return dict(yaml.safe_load(write("argocd", *PAIR, "--mig", "--queue", "1e3")))


def find_values(content: dict[str, Any]) -> dict[str, Any]:
    [generator] = content["spec"]["generators"]
    [element] = generator["list"]["elements"]
    return dict(element["values"])


def test_an_application_set_has_the_values_of_helm_in_one_element(application_set: dict[str, Any]) -> None:
    values = find_values(application_set)
    assert values == yaml.safe_load(write("helm", *PAIR, "--mig", "--queue", "1e3"))
    template = json.dumps(application_set["spec"]["template"])
    assert TARGET_COMMIT not in template and DRAFT_COMMIT not in template
    assert re.findall(r"{{.*?}}", template) == ["{{ .name }}", "{{ toYaml .values }}"]
    source = application_set["spec"]["template"]["spec"]["source"]
    assert (source["chart"], source["helm"]) == ("vllm-stack", {"values": "{{ toYaml .values }}"})
    assert application_set["spec"]["goTemplate"] is True


def test_an_application_set_is_checked_as_its_values_are(application_set: dict[str, Any], tmp_path: Path) -> None:
    catalog, file = load_catalog(), tmp_path / "set.yaml"
    assert not list(list_set_problems(application_set, catalog))
    spoiled = copy.deepcopy(application_set)
    find_values(spoiled)["servingEngineSpec"]["modelSpec"][0]["modelRevision"] = OTHER
    assert any("changed alone" in problem for problem in list_set_problems(spoiled, catalog))
    file.write_text(yaml.safe_dump(spoiled))
    done = run_command("export", "argocd", "--check", str(file))
    assert done.returncode == 1 and "export argocd TARGET" in done.stderr
    spoiled = copy.deepcopy(application_set)
    spoiled["spec"]["template"]["spec"]["source"]["helm"]["parameters"] = [{"name": "x", "value": "y"}]
    assert any("must have one key" in problem for problem in list_set_problems(spoiled, catalog))
    for content in (
        None,
        3,
        [],
        {},
        {"spec": {"generators": [3]}},
        {"spec": {"generators": [{"list": {"elements": 3}}]}},
    ):
        assert any("has no model" in problem for problem in list_set_problems(content, catalog))


# ---- Kueue
def test_a_queue_admits_one_pod_of_the_pair(offline: None) -> None:
    flavor, cluster, local, *priorities = yaml.safe_load_all(write("kueue", *PAIR, "--mig", "--queue", "1e3"))
    [spec] = yaml.safe_load(write("helm", *PAIR, "--mig", "--queue", "1e3"))["servingEngineSpec"]["modelSpec"]
    [group] = cluster["spec"]["resourceGroups"]
    requested = {"cpu": spec["requestCPU"], "memory": spec["requestMemory"], spec["requestGPUType"]: spec["requestGPU"]}
    assert group["coveredResources"] == [*requested]
    [used] = group["flavors"]
    assert {one["name"]: one["nominalQuota"] for one in used["resources"]} == requested
    assert (flavor["kind"], flavor["metadata"]["name"]) == ("ResourceFlavor", used["name"])
    assert local["spec"]["clusterQueue"] == cluster["metadata"]["name"] == local["metadata"]["name"] == "1e3"
    assert spec["labels"] == {"kueue.x-k8s.io/queue-name": local["metadata"]["name"]}
    deployed = yaml.safe_load(write("argocd", *PAIR))["spec"]["template"]["spec"]["destination"]["namespace"]
    assert local["metadata"]["namespace"] == deployed
    assert cluster["spec"]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": deployed}
    values = {each["metadata"]["name"]: each["value"] for each in priorities}
    assert values.keys() == {"interactive", "batch"} and values["interactive"] > values["batch"]


def test_a_queue_of_whole_cards_counts_them(offline: None) -> None:
    pinned = ("--machine", "2x-rtx-3090", "--draft", "none", "--revision", TARGET_COMMIT)
    flavor, cluster, *_ = yaml.safe_load_all(write("kueue", "qwen3-14b", *pinned))
    resources = cluster["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
    assert resources[-1] == {"name": "nvidia.com/gpu", "nominalQuota": 2}
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", flavor["metadata"]["name"])


def test_a_name_that_is_cut_does_not_end_with_a_dash() -> None:
    assert make_name("a" * 39 + "-b") == "a" * 39
