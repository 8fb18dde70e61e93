"""Requests that the OpenAPI document allows, and many that it does not: documented answers, no 5xx, no hang."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from doubles.running_server import Server, directed, served
from doubles.running_server_process import running_server_process
from doubles.timeouts import wait_until
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from eaglelocal.core.plan import Plan
from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve

pytestmark = pytest.mark.full

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
TIMEOUT_S = 10.0
ENDLESS = "/v1/events"
LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", "num_predict")
MAX_TOKENS = 4
MAX_GROWTH_BYTES = 16 * 2**20
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


def document(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.http.get("/openapi.json").json()
    return found


def cases(url: str, without: str) -> st.SearchStrategy[Case]:
    """Questions of every kind, as they should be and not."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations() if found.ok().path not in (ENDLESS, without)]
    assert len(operations) >= 9
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    return st.one_of([one.as_strategy(generation_mode=mode) for one in operations for mode in modes])


def fuzz(url: str, count: int, *, timeout_s: float = TIMEOUT_S, without: str = "") -> None:
    session = requests.Session()

    @settings(max_examples=count, suppress_health_check=QUIET, phases=[Phase.generate], database=None)
    @given(case=cases(url, without))
    def answers_as_documented(case: Case) -> None:
        if isinstance(case.body, dict):
            for asked in (case.body, case.body.get("options")):
                bound(asked)
        case.call_and_validate(checks=CHECKS, timeout=timeout_s, session=session)

    answers_as_documented()
    wait_until(lambda: is_idle(session, url), "no request is left")
    asked = {"messages": [{"role": "user", "content": "say x"}]}
    assert session.post(f"{url}/v1/chat/completions", json=asked, timeout=timeout_s).status_code == 200
    session.close()


def bound(asked: object) -> None:
    if isinstance(asked, dict):
        for name in LIMITS:
            if isinstance(asked.get(name), int):
                asked[name] = min(asked[name], MAX_TOKENS)


def is_idle(session: requests.Session, url: str) -> bool:
    reply = session.get(f"{url}/v1/snapshot", timeout=TIMEOUT_S).json()
    return (reply["running"], reply["waiting"], len(reply["requests"])) == (0, 0, 0)


def test_every_answer_is_a_documented_one(actor: Server) -> None:
    fuzz(actor.url, 300)
    actor.wait_until_idle()


def test_the_document_names_what_is_served(actor: Server) -> None:
    reply = document(actor)
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/models"} <= set(
        reply["paths"]
    )
    assert {"/api/chat", "/api/generate", "/api/embed", "/api/tags", "/api/show", "/api/ps"} <= set(reply["paths"])
    assert {"/completion", "/infill", "/tokenize", "/detokenize", "/apply-template", "/props", "/slots"} <= set(
        reply["paths"]
    )
    fields = reply["components"]["schemas"]["ChatBody"]["properties"]
    assert {"messages", "tools", "response_format", "stop", "logit_bias", "spec", "top_k"} <= set(fields)


def test_the_document_names_no_status_that_never_comes(actor: Server) -> None:
    reply = document(actor)
    statuses = {status for path in reply["paths"].values() for one in path.values() for status in one["responses"]}
    assert {"200", "400", "503"} <= statuses and "422" not in statuses
    assert "HTTPValidationError" not in reply["components"]["schemas"]


def list_references(value: object) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(list_references, value.values()))
    return set().union(*map(list_references, value)) if isinstance(value, list) else set()


def test_the_document_is_complete(actor: Server) -> None:
    """Each reference leads to a schema, and operations have names of their own."""
    reply = document(actor)
    assert list_references(reply) <= {f"#/components/schemas/{name}" for name in reply["components"]["schemas"]}
    operations = [one for path in reply["paths"].values() for one in path.values()]
    assert len({one["operationId"] for one in operations}) == len(operations) >= 32
    posts = {path for path, methods in reply["paths"].items() if "requestBody" in methods.get("post", {})}
    assert {"/v1/chat/completions", "/api/show", "/v1/speculation"} <= posts


def test_the_document_names_parameters_of_paths_and_queries(actor: Server) -> None:
    paths = document(actor)["paths"]
    assert [one["name"] for one in paths["/v1/models/{name}"]["get"]["parameters"]] == ["name"]
    asked = {one["name"]: (one["in"], one["required"]) for one in paths["/slots"]["get"]["parameters"]}
    assert asked == {"model": ("query", False), "fail_on_no_slot": ("query", False)}


@pytest.mark.slow
def test_ten_thousand_questions_leave_the_memory_as_it_was() -> None:
    """Of the server and of its engine, each a process of its own; what asks keeps all that it has asked."""
    with running_server_process() as server:
        fuzz(server.url, 1000)
        before = server.rss_bytes()
        fuzz(server.url, 10_000)
        growth = [now - then for now, then in zip(server.rss_bytes(), before, strict=True)]
    print(f"of {[each >> 20 for each in before]} MiB grown by {[each / 2**20 for each in growth]} MiB")
    assert max(growth) < MAX_GROWTH_BYTES


@pytest.mark.slow
def test_the_embedded_model_answers_as_documented(embedded: Plan) -> None:
    defaults = SamplingParams(max_tokens=MAX_TOKENS)
    with served(
        directed(plans={"demo": embedded}, builder="eaglelocal.loading.engine_builder:build", defaults=defaults)
    ) as server:
        fuzz(server.url, 300, timeout_s=60.0, without="/infill")  # which is 501: it has no tokens for that
        server.wait_until_idle()


@pytest.fixture
def embedded() -> Iterator[Plan]:
    plan = resolve(RunOptions(target="demo", parallel=4), on_progress=lambda fraction, what: None)
    assert Path(plan.target).exists()
    yield plan
