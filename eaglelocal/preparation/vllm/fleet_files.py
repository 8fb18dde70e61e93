"""Write the files of a fleet: alerts, a dashboard, an Argo CD ApplicationSet, and the Kueue queue of a pair. Pure.

eaglelocal's metrics have vLLM's names after another prefix, so one function writes the alerts of both, and one the
panels. An element of the ApplicationSet holds whole Helm values: target and draft change in one commit, and no value of
a person stands in a template.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.preparation.vllm.exports import (
    VllmPlan,
    get_field,
    list_problems,
    make_helm_values,
    make_model_spec,
    make_name,
)

OURS, VLLM = "eaglelocal:", "vllm:"
Fields = dict[str, object]

# ---- alerts: rules of Prometheus
#
# Acceptance of the first drafted token is compared, because that of all tokens depends on the length of the draft. Our
# server compares it with its history itself, for each kind of text. Of vLLM, an hour is compared with a week.
LOW_ACCEPTANCE = ((0.7, "warning"), (0.6, "critical"))  # of the history, as in learning/drift.py
MIN_DRAFTS = 500  # in an hour, before it is compared
COLLAPSED = 0.1  # accepted tokens of a draft
FIRST_TOKEN_S, MAX_WAITING, MAX_RESTARTS = 10, 10, 2  # assumed: what people notice


def make_alerts(label: str = "") -> Fields:
    """Return a rule file for Prometheus. `label`: the value of the label `model` of each alert; empty: no label."""
    groups = [(OURS, [*list_drift_alerts(), *list_alerts(OURS)]), (VLLM, [*list_vllm_alerts(), *list_alerts(VLLM)])]
    more = {"model": label} if label else {}
    return {
        "groups": [
            {
                "name": prefix.rstrip(":"),
                "interval": "1m",
                "rules": [make_rule(prefix, *alert, more) for alert in alerts],
            }
            for prefix, alerts in groups
        ]
    }


Alert = tuple[str, str, str, str, str]  # name after its prefix, expression, how long it must hold, severity, summary


def make_rule(
    prefix: str, name: str, expression: str, duration: str, severity: str, summary: str, more: Mapping[str, str]
) -> Fields:
    return {
        "alert": prefix.rstrip(":").capitalize() + name,
        "expr": expression,
        "for": duration,
        "labels": {"severity": severity, **more},
        "annotations": {"summary": summary},
    }


def list_drift_alerts() -> Iterator[Alert]:
    """Yield the alerts that only our server has metrics for."""
    summary = "{{ $labels.target }}: acceptance of {{ $labels.kind }} is {{ $value | humanizePercentage }} of its past"
    for share, severity in LOW_ACCEPTANCE:
        yield "AcceptanceLow", f"{OURS}acceptance_of_history < {share}", "15m", severity, summary
    restarts = f"increase({OURS}engine_restarts_total[1h]) > {MAX_RESTARTS}"
    yield "Restarts", restarts, "0m", "warning", "{{ $labels.instance }}: engines restarted in the last hour"


def list_vllm_alerts() -> Iterator[Alert]:
    """Yield the same alerts for vLLM, from its counters."""

    def first_acceptance(span: str) -> str:
        accepted = f'{VLLM}spec_decode_num_accepted_tokens_per_pos_total{{position="0"}}[{span}]'
        drafts = f"{VLLM}spec_decode_num_drafts_total[{span}]"
        return f"(sum by (job, model_name) (rate({accepted})) / sum by (job, model_name) (rate({drafts})))"

    share = f"{first_acceptance('1h')} / {first_acceptance('1w')}"
    enough = f"sum by (job, model_name) (increase({VLLM}spec_decode_num_drafts_total[1h])) > {MIN_DRAFTS}"
    summary = "{{ $labels.model_name }}: acceptance is {{ $value | humanizePercentage }} of the last week's"
    for least, severity in LOW_ACCEPTANCE:
        yield "AcceptanceLow", f"{share} < {least} and {enough}", "15m", severity, summary
    restarts = f"resets({VLLM}generation_tokens_total[1h]) > {MAX_RESTARTS}"
    yield "Restarts", restarts, "0m", "warning", "{{ $labels.instance }}: vLLM restarted in the last hour"


def list_alerts(prefix: str) -> Iterator[Alert]:
    """Yield the alerts whose metrics both servers have."""
    draft = f"{prefix}spec_decode_num_"
    accepted = f"rate({draft}accepted_tokens_total[15m]) / rate({draft}drafts_total[15m])"
    collapse = f"{accepted} < {COLLAPSED} and rate({draft}draft_tokens_total[15m]) > 1"
    yield "AcceptanceCollapsed", collapse, "15m", "critical", "{{ $labels.instance }}: nearly all drafts are rejected"
    buckets = f"sum by (job, instance, le) (rate({prefix}time_to_first_token_seconds_bucket[10m]))"
    slow = f"histogram_quantile(0.99, {buckets}) > {FIRST_TOKEN_S}"
    summary = "{{ $labels.instance }}: 1% of requests wait {{ $value | humanizeDuration }} for the first token"
    yield "FirstTokenSlow", slow, "10m", "warning", summary
    queue = f"{prefix}num_requests_waiting > {MAX_WAITING}"
    yield "QueueLong", queue, "10m", "warning", "{{ $labels.instance }}: {{ $value }} requests wait"
    down = f"up == 0 and on (job, instance) last_over_time({prefix}num_requests_running[1d])"
    yield "Down", down, "2m", "critical", "{{ $labels.instance }} does not answer"


# ---- dashboard: JSON of Grafana
COLUMNS, WIDTH, HEIGHT = 4, 6, 8  # of panels; a row of Grafana has 24 units
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
Queries = Sequence[tuple[str, str]]  # expressions with their legends
PanelRow = tuple[str, str, Queries]  # title, unit


def make_dashboard(label: str = "") -> Fields:
    """Return a dashboard with a row for eaglelocal and one for vLLM. `label`: ends its title."""
    panels: list[Fields] = []
    top = 0
    for title, rows in (("eaglelocal", list_our_panels()), ("vLLM", list_vllm_panels())):
        place = {"h": 1, "w": COLUMNS * WIDTH, "x": 0, "y": top}
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []})
        for number, row in enumerate(rows):
            line, column = divmod(number, COLUMNS)
            place = {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": top + 1 + line * HEIGHT}
            panels.append(make_panel(*row, place))
        top = place["y"] + HEIGHT
    datasource = {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"}
    return {
        "uid": f"eaglelocal-{hashlib.blake2b(label.encode(), digest_size=6).hexdigest()}",
        "title": f"Speculative decoding: {label}" if label else "Speculative decoding",
        "tags": ["eaglelocal", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [datasource]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }


def make_panel(title: str, unit: str, queries: Queries, place: Mapping[str, int]) -> Fields:
    return {
        "type": "timeseries",
        "title": title,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "datasource": DATASOURCE, "expr": expression, "legendFormat": legend}
            for number, (expression, legend) in enumerate(queries)
        ],
    }


def list_our_panels() -> Iterator[PanelRow]:
    yield from list_panels(OURS)
    history = (f"{OURS}acceptance_of_history", "{{target}} {{kind}}")
    yield "Acceptance by kind, of its history", "percentunit", [history]
    yield "Gain over plain decoding", "none", [(f"{OURS}predicted_speedup > 0", "{{instance}}")]
    stored = [(f"{OURS}{name}_bytes", f"{{{{instance}}}} {name}") for name in ("swapped", "stored")]
    yield "Memory of conversations", "bytes", stored


def list_vllm_panels() -> Iterator[PanelRow]:
    yield from list_panels(VLLM)
    accepted, drafts = (
        sum_rate(f"{VLLM}spec_decode_num_{of}_total", "model_name") for of in ("accepted_tokens", "drafts")
    )
    drafted = sum_rate(f"{VLLM}spec_decode_num_draft_tokens_total", "model_name")
    yield "Acceptance of drafted tokens", "percentunit", [(f"{accepted} / {drafted}", "{{model_name}}")]
    yield "Gain: tokens of a step", "none", [(f"1 + {accepted} / {drafts}", "{{model_name}}")]


def list_panels(prefix: str) -> Iterator[PanelRow]:
    """Yield the panels whose metrics both servers have."""
    yield "Tokens a second", "none", [(sum_rate(f"{prefix}generation_tokens_total", "instance"), "{{instance}}")]
    accepted = sum_rate(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total", "position")
    drafts = f"sum(rate({prefix}spec_decode_num_drafts_total[$__rate_interval]))"
    yield "Acceptance by position", "percentunit", [(f"{accepted} / scalar({drafts})", "{{position}}")]
    buckets = sum_rate(f"{prefix}time_to_first_token_seconds_bucket", "le")
    latency = [(f"histogram_quantile({share}, {buckets})", f"p{share * 100:.0f}") for share in (0.5, 0.99)]
    yield "Time to the first token", "s", latency
    yield "KV cache in use", "percentunit", [(f"{prefix}kv_cache_usage_perc", "{{instance}}")]
    load = [(f"sum({prefix}num_requests_{state})", state) for state in ("running", "waiting")]
    yield "Requests", "none", load


def sum_rate(metric: str, label: str) -> str:
    return f"sum by ({label}) (rate({metric}[$__rate_interval]))"


# ---- Argo CD: the chart of vLLM's production-stack, with whole values in an element of a list
CHART_REPO, CHART, CHART_VERSION = "https://vllm-project.github.io/production-stack", "vllm-stack", "0.1.12"
NAMESPACE = "vllm"  # of pods and their queue
FROM_ELEMENT = {"values": "{{ toYaml .values }}"}


def make_application_set(plan: VllmPlan, queue: str) -> Fields:
    """Return the ApplicationSet that deploys the values of `export helm`. `queue`: as there."""
    name = make_name(plan.pair.target.id)
    source = {"repoURL": CHART_REPO, "chart": CHART, "targetRevision": CHART_VERSION, "helm": FROM_ELEMENT}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "ApplicationSet",
        "metadata": {"name": name, "namespace": "argocd"},
        "spec": {
            "goTemplate": True,
            "goTemplateOptions": ["missingkey=error"],
            "generators": [{"list": {"elements": [{"name": name, "values": make_helm_values(plan, queue)}]}}],
            "template": {
                "metadata": {"name": "{{ .name }}"},
                "spec": {
                    "project": "default",
                    "source": source,
                    "destination": {"server": "https://kubernetes.default.svc", "namespace": NAMESPACE},
                    "syncPolicy": {"automated": {"prune": True}, "syncOptions": ["CreateNamespace=true"]},
                },
            },
        },
    }


def list_set_problems(content: object, catalog: Catalog) -> Iterator[str]:
    """Yield the problems of an ApplicationSet: of the values of its elements, and of values that stand elsewhere."""
    if get_field(content, "spec", "template", "spec", "source", "helm") != FROM_ELEMENT:
        yield f"spec.template.spec.source.helm must have one key, values: {FROM_ELEMENT['values']}"
    generators = get_field(content, "spec", "generators")
    for generator in generators if isinstance(generators, list) and generators else [None]:
        elements = get_field(generator, "list", "elements")
        for element in elements if isinstance(elements, list) and elements else [None]:
            yield from list_problems(get_field(element, "values"), catalog)


# ---- Kueue: a queue that admits one pair
PRIORITIES = {"interactive": 1000, "batch": 100}
KUEUE = "kueue.x-k8s.io/v1beta2"


def list_queue_objects(plan: VllmPlan, queue: str) -> list[Fields]:
    """Return the flavor, queues and priorities that admit one pod of the pair. `queue`: the name of both queues."""
    spec = make_model_spec(plan, queue)
    flavor = make_name(f"{plan.fit.device.label} {plan.fit.slice}")
    amounts = {
        "cpu": spec["requestCPU"],
        "memory": spec["requestMemory"],
        str(spec.get("requestGPUType", "nvidia.com/gpu")): spec["requestGPU"],
    }
    quotas = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    admission = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [
            {"coveredResources": [*amounts], "flavors": [{"name": flavor, "resources": quotas}]},
        ],
    }
    return [
        make_object("ResourceFlavor", flavor),
        make_object("ClusterQueue", queue, spec=admission),
        make_object("LocalQueue", queue, spec={"clusterQueue": queue}),
        *(make_object("WorkloadPriorityClass", name, value=value) for name, value in PRIORITIES.items()),
    ]


def make_object(kind: str, name: str, **fields: object) -> Fields:
    """Return an object of Kueue. A LocalQueue is the only kind that stands in a namespace."""
    where = {"namespace": NAMESPACE} if kind == "LocalQueue" else {}
    return {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name, **where}, **fields}


# ---- texts
LABEL = re.compile(r"[\w./:@+-]{1,128}", re.ASCII)  # nothing that Prometheus, Grafana or YAML would replace
# Readers in Go take more texts for numbers and booleans than PyYAML: 1e3, 0o7, y.
NOT_TEXT = re.compile(r"[-+]?(0[xobXOB]\w*|[\d._]*([eE][-+]?\d+)?)|[yYnN]")


def format_yaml(documents: Sequence[object]) -> str:
    """Return the documents as YAML; a text stays the same text in every reader."""
    import yaml

    dumper = type("Dumper", (yaml.SafeDumper,), {})  # so that the representer is of no other YAML

    def represent(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if NOT_TEXT.fullmatch(text) else None)

    yaml.add_representer(str, represent, Dumper=dumper)
    # U+0085 must be escaped
    return str(
        yaml.dump_all(documents, Dumper=dumper, sort_keys=False, width=1 << 16, explicit_start=len(documents) > 1)
    )
