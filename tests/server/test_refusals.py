"""Invalid requests get a 4xx that names the parameter, in OpenAI's format; the next request is answered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from doubles.directed_server_engine import plan
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.server.server_state import ServerLimits

SAID = '"messages": [{"role": "user", "content": "say x"}]'
JSON = {"content-type": "application/json"}


def post(server: Server, body: str | bytes, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
    answer = server.http.post(path, content=body, headers=JSON)
    return answer.status_code, answer.json().get("error", {})


@pytest.mark.parametrize(
    ("field", "parameter"),
    [
        ('"messages": []', "messages"),
        ('"messages": "hello"', "messages"),
        ('"messages": [{"content": "x"}]', "messages.0.role"),
        ('"messages": [{"role": "robot", "content": "x"}]', "messages.0.role"),
        ('"messages": [{"role": "user", "content": 5}]', "messages.0.content"),
        ('"messages": [{"role": "user", "content": null}]', "messages.0.content"),
        ('"messages": [{"role": "user", "content": [{"type": "image_url"}]}]', "messages.0.content.0.image_url"),
        ('"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]', "messages.0.content.0.text"),
        ('"messages": [{"role": "user", "tool_calls": [{"function": {"name": "a"}}]}]', "messages.0.tool_calls"),
        ('"model": 5', "model"),
        ('"n": 0', "n"),
        ('"n": 17', "n"),
        ('"n": true', "n"),
        ('"n": "2"', "n"),
        ('"max_tokens": -2', "max_tokens"),
        ('"max_tokens": 0', "max_tokens"),
        ('"max_tokens": true', "max_tokens"),
        ('"max_tokens": 1.5', "max_tokens"),
        ('"temperature": -0.1', "temperature"),
        ('"temperature": 0.0001', "temperature"),
        ('"temperature": NaN', "temperature"),
        ('"temperature": Infinity', "temperature"),
        ('"temperature": 1e999', "temperature"),
        (f'"temperature": 1{"0" * 400}', "temperature"),
        (f'"seed": 1{"0" * 400}', "seed"),
        ('"top_p": 1.5', "top_p"),
        ('"top_k": -2', "top_k"),
        ('"max_tokens": 100.5', "max_tokens"),
        ('"n": 1.5', "n"),
        ('"seed": 1e300', "seed"),
        ('"stop": 5', "stop"),
        ('"stop": ["a", 5]', "stop.1"),
        (f'"stop": {json.dumps(["a"] * 129)}', "stop"),
        (f'"stop": {json.dumps(["a" * 1000] * 17)}', "stop"),
        ('"repeat_last_n": -2', "repeat_last_n"),
        ('"logit_bias": {"a": 1}', "logit_bias.a"),
        ('"logit_bias": {"1": 101}', "logit_bias.1"),
        ('"logit_bias": [["a", 1]]', "logit_bias"),
        ('"logit_bias": [[1, 101]]', "logit_bias"),
        ('"logit_bias": [[true, 1]]', "logit_bias"),
        ('"n_predict": -2', "n_predict"),
        ('"logit_bias": {"\\ud800": 1}', "logit_bias.\ufffd"),
        ('"top_logprobs": 3', "top_logprobs"),
        ('"logprobs": true, "top_logprobs": 21', "top_logprobs"),
        ('"tool_choice": "required"', "tool_choice"),
        ('"tool_choice": "any"', "tool_choice"),
        ('"tool_choice": {"type": "any"}', "tool_choice"),
        ('"tool_choice": "perhaps"', "tool_choice"),
        ('"tool_choice": {"type": "function", "function": {"name": "a"}}', "tool_choice"),
        ('"tool_choice": {"type": "function"}', "tool_choice.function"),
        ('"tools": [{"type": "function", "function": {"name": "a b"}}]', "tools.0.function.name"),
        ('"tools": [{"type": "function", "function": {"name": "a\\ud800"}}]', "tools.0.function.name"),
        ('"chat_template_kwargs": {"a": NaN}', "chat_template_kwargs.a"),
        ('"response_format": {"type": "json_schema"}', "response_format.json_schema"),
        ('"response_format": {"type": "regex"}', "response_format.regex"),
        ('"response_format": {"type": "poem"}', "response_format.type"),
        ('"spec": 17', "spec"),
        ('"modalities": ["audio"]', "modalities"),
        ('"functions": [{}]', "functions"),
        ('"min_tokens": 5', "min_tokens"),
        ('"stop_token_ids": [2]', "stop_token_ids"),
        ('"top_n_sigma": 1.5', "top_n_sigma"),
        ('"bad_words": ["no"]', "bad_words"),
        ('"allowed_token_ids": [3]', "allowed_token_ids"),
        ('"use_beam_search": true', "use_beam_search"),
        ('"prompt_logprobs": 0', "prompt_logprobs"),
        ('"truncate_prompt_tokens": 100', "truncate_prompt_tokens"),
        ('"dynatemp_range": 0.5', "dynatemp_range"),
        ('"include_stop_str_in_output": true', "include_stop_str_in_output"),
        ('"chat_template": "{{ messages }}"', "chat_template"),
        ('"n_predict": 1.5', "n_predict"),
        ('"function_call": {"name": "a"}', "function_call"),
        ('"tools": [{"type": "function"}]', "tools.0.function"),
        ('"continue_final_message": true', "continue_final_message"),
        ('"stream": "yes"', "stream"),
    ],
)
def test_the_parameter_is_named(actor: Server, field: str, parameter: str) -> None:
    body = f"{{{field}}}" if field.startswith('"messages"') else f"{{{SAID}, {field}}}"
    status, error = post(actor, body)
    assert (status, error["param"], error["type"]) == (400, parameter, "invalid_request_error")
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ('{"prompt": 5}', "prompt"),
        ('{"prompt": [[1], "a"]}', "prompt.0"),
        ('{"prompt": "x", "echo": true}', "echo"),
        ('{"prompt": "x", "suffix": 5}', "suffix"),
        (f'{{"prompt": {json.dumps(["x"] * 60)}, "n": 2}}', "prompt"),
        ('{"prompt": "x", "best_of": 3}', "best_of"),
        ('{"prompt": "x", "logprobs": 21}', "logprobs"),
        ('{"prompt": "x", "bad_words": ["no"]}', "bad_words"),
        ("{}", "prompt"),
    ],
)
def test_the_parameter_of_a_completion_is_named(actor: Server, body: str, parameter: str) -> None:
    status, error = post(actor, body, "/v1/completions")
    assert (status, error["param"]) == (400, parameter)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body"),
        (b"{\n,", "not valid JSON: Expecting property name enclosed in double quotes at line 2, column 1"),
        (b'{"messages":', "not valid JSON"),
        (b"null", "the body"),
        (b"[]", "the body"),
        (b'"text"', "the body"),
        (b"\x00", "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "not UTF-8"),
        (f'{{{SAID}, "seed": 1{"0" * 5000}}}'.encode(), "too many digits"),
        (f'{{{SAID}, "x": {"[" * 100_000}}}'.encode(), "nested too deeply"),
        (f'{{{SAID}, "x": {"[" * 100_000}{"]" * 100_000}}}'.encode(), "nested too deeply"),
    ],
    ids=range(11),
)
def test_a_body_that_is_not_a_json_object_is_refused(actor: Server, body: bytes, said: str) -> None:
    status, error = post(actor, body)
    assert (status, error["param"]) == (400, None)
    assert said in error["message"]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_type_is_read_if_it_is_json(actor: Server, kind: str) -> None:
    """As `curl -d` sends it."""
    answer = actor.http.post("/v1/chat/completions", content=f"{{{SAID}}}", headers={"content-type": kind})
    assert (answer.status_code, answer.json()["object"]) == (200, "chat.completion")
    answer = actor.http.post("/v1/chat/completions", content="messages=hello", headers={"content-type": kind})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert "not valid JSON" in answer.json()["error"]["message"]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_of_a_foreign_page_reaches_nothing(actor: Server, site: str) -> None:
    """A browser sends forms without asking first, and an old one perhaps without Origin."""
    form = {"content-type": "text/plain", "Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate"}
    for headers in (form, {**form, "Origin": "https://evil.example"}, {**form, "Origin": "null"}):
        answer = actor.http.post("/v1/chat/completions", content=f"{{{SAID}}}", headers=headers)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert actor.http.get("/", headers=form).status_code == 200, "a link may lead here"
    own = {**form, "Sec-Fetch-Site": "same-origin", "Origin": actor.url}
    assert actor.http.post("/v1/chat/completions", content=f"{{{SAID}}}", headers=own).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "parameter", "said"),
    [
        ("chat/completions", {"tools": [{"type": "web_search"}]}, "tools.0.type", "'web_search'"),
        ("chat/completions", {"functions": [{"name": "f"}]}, "functions", "use tools"),
        ("responses", {"tool_choice": {"type": "web_search"}}, "tool_choice", "'web_search'"),
        ("responses", {"tool_choice": {"type": "mcp", "name": "apply_patch"}}, "tool_choice", "'mcp'"),
        ("responses", {"conversation": "conv_1"}, "conversation", "stores no conversations"),
        ("responses", {"input": [{"type": "poem", "id": "x"}]}, "input.0.type", "'poem'"),
    ],
)
def test_what_only_others_have_is_refused_by_its_name(
    actor: Server, path: str, body: dict[str, Any], parameter: str, said: str
) -> None:
    asked = {"input": "say x", "messages": [{"role": "user", "content": "say x"}]} | body
    status, error = post(actor, json.dumps(asked), f"/v1/{path}")
    assert (status, error["param"], error["code"]) == (400, parameter, "unsupported_parameter")
    assert said in error["message"]


def test_a_list_of_prompts_that_is_too_long_is_blamed_on_the_prompt() -> None:
    with served(directed(limits=ServerLimits(max_waiting=0), num_slots=2)) as server:
        status, error = post(server, json.dumps({"prompt": ["x"] * 3}), "/v1/completions")
        assert (status, error["param"]) == (400, "prompt")
        status, error = post(server, json.dumps({"prompt": "x", "n": 3}), "/v1/completions")
        assert (status, error["param"]) == (400, "n")


def nested(depth: int) -> str:
    return '{"properties":' * depth + '{"$ref": "#"}' + "}" * depth


@pytest.mark.parametrize("depth", [0, 200, 400])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", '{%s, "tools": [{"type": "function", "function": {"name": "a", "parameters": %s}}]}'),
        ("/v1/chat/completions", '{%s, "response_format": {"type": "json_schema", "json_schema": {"schema": %s}}}'),
        ("/v1/chat/completions", '{%s, "chat_template_kwargs": {"a": %s}}'),
        ("/v1/responses", '{%s, "input": "say x", "tools": [{"type": "function", "name": "a", "parameters": %s}]}'),
        ("/v1/messages", '{%s, "max_tokens": 9, "tools": [{"name": "a", "input_schema": %s}]}'),
    ],
)
def test_deep_and_recursive_schemas_pass_or_are_refused(actor: Server, path: str, body: str, depth: int) -> None:
    status, _ = post(actor, body % (SAID, nested(depth)), path)
    assert status in (200, 400)


def test_unknown_fields_are_ignored(actor: Server) -> None:
    answer = actor.ask("say x", cache_prompt=True, user="me", store=False, anything={"a": [1]})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "asked",
    [
        {"min_tokens": 0, "stop_token_ids": [], "top_n_sigma": -1, "mirostat": 0, "guided_json": {}},
        {"min_tokens": None, "stop_token_ids": None, "top_n_sigma": -1.0, "mirostat": None, "guided_json": None},
        {"top_n_sigma": 0.0},
        {"bad_words": [], "allowed_token_ids": None, "use_beam_search": False, "length_penalty": 0.8},
        {"prompt_logprobs": None, "truncate_prompt_tokens": None, "dynatemp_range": 0.0, "length_penalty": 0},
        {"prompt_logprobs": False, "include_stop_str_in_output": False, "chat_template": None},
        {"samplers": ["top_k"], "verbosity": "low", "chat_template_kwargs": {}},
        {"min_tokens": 4, "max_tokens": 4, "ignore_eos": True},
    ],
)
def test_what_is_switched_off_is_accepted(actor: Server, asked: dict[str, Any]) -> None:
    assert actor.ask("say x", **asked).status_code == 200


def test_an_unknown_model_is_404(actor: Server) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        actor.openai().chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "say x"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        actor.openai().models.retrieve("gpt-4")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("POST", "/nothing", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("BREW", "/v1/models", 405),
        ("GET", "/v1/messages", 405),
    ],
)
def test_paths_and_methods_that_are_not_there(actor: Server, method: str, path: str, status: int) -> None:
    answer = actor.http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/chat/completions"), ("POST", "/messages"), ("GET", "/models"), ("GET", "/snapshot")]
)
def test_a_path_without_its_version_is_reported_with_it(actor: Server, method: str, path: str) -> None:
    answer = actor.http.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (404, "not_found_error")
    assert f"but /v1{path}" in error["message"]


@pytest.mark.parametrize("path", ["/health", "/v1/models"])
def test_a_head_is_answered_without_a_body(actor: Server, path: str) -> None:
    answer = actor.http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_the_list_of_models_may_end_with_a_slash(actor: Server) -> None:
    assert actor.http.get("/v1/models/").json() == actor.http.get("/v1/models").json()


def test_a_prompt_of_five_megabytes_is_beyond_every_context(actor: Server) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        actor.openai().chat.completions.create(model="", messages=[{"role": "user", "content": "x" * 5_000_000}])
    assert (caught.value.status_code, caught.value.code) == (400, "context_length_exceeded")


def test_what_the_engine_refuses_names_its_parameter(actor: Server) -> None:
    status, error = post(actor, json.dumps({"messages": [{"role": "user", "content": "refuse stop bad_stop"}]}))
    assert (status, error["param"], error["code"]) == (400, "stop", "bad_stop")


def test_a_full_queue_is_429_with_a_time_to_wait() -> None:
    with served(directed(limits=ServerLimits(max_waiting=0), num_slots=2)) as server:
        streams = [server.openai().chat.completions.create(
            model="", messages=[{"role": "user", "content": "forever"}], stream=True
        ) for _ in range(2)]  # fmt: skip
        with pytest.raises(openai.RateLimitError) as caught:
            server.openai().chat.completions.create(model="", messages=[{"role": "user", "content": "say x"}])
        assert int(caught.value.response.headers["retry-after"]) >= 1
        assert caught.value.code == "queue_full"
        refused = server.http.post(
            "/v1/messages", json={"max_tokens": 1, "messages": [{"role": "user", "content": "x"}]}
        )
        assert (refused.status_code, refused.json()["error"]["type"]) == (429, "rate_limit_error")
        streams[0].close()
        wait_until(lambda: server.serving.admission.num_held == 1, "one has left")
        assert server.ask("say x").status_code == 200
        streams[1].close()
        assert server.ask("say x", n=3).status_code == 400  # more than there can ever be


def test_while_the_first_model_loads_questions_are_503(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with served(directed(plans={"slow": plan("hesitant", gate)}, waits=False)) as server:
        wait_until(lambda: server.serving.state == "loading", "the load has begun")
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "loading")
        refused = server.ask("say x")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "overloaded_error")
        assert int(refused.headers["retry-after"]) >= 1
        assert [row["state"] for row in server.http.get("/v1/snapshot").json()["recent"]] == ["refused"]
        assert server.http.get("/v1/models").json()["data"][0]["loaded"] is False
        gate.unlink()
        wait_until(lambda: server.http.get("/health").status_code == 200, "the model is loaded")
        assert server.ask("say x").status_code == 200
