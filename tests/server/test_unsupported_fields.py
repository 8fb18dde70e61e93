"""Fields that a route does not support are refused by name, with a hint; a format binds the answer or is refused.

Tested on the routes of every API, because what one of them refuses must not be 200 at another."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from doubles.running_server import Server

from eaglelocal.core.constraint import Syntax
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.request_reader import read_constraint
from eaglelocal.server.schema import AnswerFields, ResponseFormat

MESSAGES = [{"role": "user", "content": "say x"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "say x"},
    "/v1/responses": {"input": "say x"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 9},
    "/api/chat": {"messages": MESSAGES, "stream": False},
    "/api/generate": {"prompt": "say x", "stream": False},
    "/completion": {"prompt": "say x"},
    "/infill": {"input_prefix": "say x", "input_suffix": ""},
    "/apply-template": {"messages": MESSAGES},
}
OLLAMA = ("/api/chat", "/api/generate")
JSON_FORMAT = {"format": {"type": "json_object"}}
SOMETHING: dict[str, Any] = {  # elsewhere a number above zero will do
    "min_keep": 3,
    "adaptive_target": 0.5,
    "json_schema": "a text",
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "text": JSON_FORMAT,
    "output_config": JSON_FORMAT,
}
OWN = {  # of the names that only some routes know
    "/v1/responses": ("text", "max_output_tokens"),
    "/v1/messages": ("output_config", "output_format", "stop_sequences"),
    "/api/chat": ("format",),
    "/api/generate": ("format",),
}
REFUSED = (*AnswerFields.refused, "response_format")
FOREIGN = (
    *(
        (path, name)
        for path in BODIES
        for name in (*AnswerFields.refused, "response_format")
        if name not in OWN.get(path, ())
    ),
    *((path, name) for path in ("/v1/responses", "/v1/messages") for name in ("logprobs", "top_logprobs")),
    ("/v1/messages", "chat_template_kwargs"),
)
NO_CHATS = ("/v1/responses", "/v1/messages", *OLLAMA)  # which call response_format otherwise
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def post(server: Server, path: str, asked: dict[str, Any]) -> tuple[int, Any]:
    answer = server.http.post(path, json=asked)
    return answer.status_code, answer.json()


def refusal(reply: Any) -> tuple[str, str]:
    """Parameter and message. Shapes that have one text for both begin with the parameter, unless the text names it."""
    error = reply["error"]
    if isinstance(error, dict) and "param" in error:
        return error["param"], error["message"]
    message = error if isinstance(error, str) else error["message"]
    return message.partition(": ")[0], message


def is_blamed(reply: Any, parameter: str) -> bool:
    blamed, message = refusal(reply)
    is_in_text = re.search(rf"(?<![\w.-]){re.escape(parameter)}(?![\w-]|\.\w)", message) is not None
    return blamed == parameter or ("param" not in reply["error"] and is_in_text)


@pytest.mark.parametrize(
    ("parameter", "message", "placed"),
    [
        ("n", "one answer is made here", "n: one answer is made here"),
        ("stop", "it is called stop_sequences here", "stop: it is called stop_sequences here"),
        ("stop", "it is called options.stop here", "stop: it is called options.stop here"),
        ("a", "a.b is wanted", "a: a.b is wanted"),
        ("seed", "seed: a number is wanted", "seed: a number is wanted"),
        ("functions", "it has functions.", "it has functions."),
        ("system", "beside raw no system", "beside raw no system"),
    ],
)
def test_a_text_without_a_field_next_to_it_names_the_field(parameter: str, message: str, placed: str) -> None:
    problem = Problem(400, message, parameter=parameter)
    assert problem.ollama_body() == {"error": placed}
    assert problem.anthropic_body() == {"type": "error", "error": {"type": problem.type, "message": placed}}


def test_a_web_search_without_options_is_refused_too(actor: Server) -> None:
    path = "/v1/chat/completions"
    status, reply = post(actor, path, BODIES[path] | {"web_search_options": {}})
    assert (status, refusal(reply)) == (400, ("web_search_options", "this server has no web search"))


@pytest.mark.parametrize("path", BODIES)
def test_no_route_ignores_what_another_refuses(actor: Server, path: str) -> None:
    for name in {name for at, name in FOREIGN if at == path and (name != "response_format" or path in NO_CHATS)}:
        check_refusal(actor, path, name)


def check_refusal(actor: Server, path: str, name: str) -> None:
    status, reply = post(actor, path, BODIES[path] | {name: SOMETHING.get(name, 2)})
    assert status == 400 and is_blamed(reply, name), reply
    for nothing in (None, False, [], *([] if name == "web_search_options" else [{}])):  # {} asks for a web search
        status, reply = post(actor, path, BODIES[path] | {name: nothing})
        assert status == 200, (nothing, reply)
    if path in OLLAMA:
        status, reply = post(actor, path, BODIES[path] | {"options": {name: SOMETHING.get(name, 2)}})
        assert status == 400 and is_blamed(reply, f"options.{name}"), reply


@pytest.mark.parametrize(
    ("path", "name", "value", "meant"),
    [
        ("/v1/responses", "response_format", {"type": "json_object"}, "text.format"),
        ("/v1/responses", "guided_json", SCHEMA, "text.format"),
        ("/v1/responses", "max_tokens", 5, "max_output_tokens"),
        ("/v1/responses", "max_completion_tokens", 5, "max_output_tokens"),
        ("/v1/responses", "n_predict", 5, "max_output_tokens"),
        ("/v1/responses", "min_tokens", 5, "max_output_tokens"),
        ("/v1/responses", "n", 2, "one answer"),
        ("/v1/responses", "reasoning_effort", "low", "reasoning.effort"),
        ("/v1/responses", "chat_template", "{{ x }}", "own chat template"),
        ("/v1/messages", "response_format", {"type": "json_object"}, "output_config.format"),
        ("/v1/messages", "grammar", "root ::= x", "output_config.format"),
        ("/v1/messages", "max_completion_tokens", 5, "max_tokens"),
        ("/v1/messages", "max_output_tokens", 5, "max_tokens"),
        ("/v1/messages", "stop", ["a"], "stop_sequences"),
        ("/v1/messages", "stop_token_ids", [5], "stop_sequences"),
        ("/v1/messages", "n", 2, "one answer"),
        ("/v1/messages", "reasoning_effort", "low", "output_config.effort"),
        ("/v1/messages", "chat_template", "{{ x }}", "own chat template"),
        ("/api/chat", "response_format", {"type": "json_object"}, "format"),
        ("/api/chat", "max_completion_tokens", 5, "options.num_predict"),
        ("/api/chat", "n", 2, "one answer"),
        ("/v1/chat/completions", "format", "json", "response_format"),
        ("/v1/chat/completions", "text", JSON_FORMAT, "response_format"),
        ("/v1/chat/completions", "max_output_tokens", 5, "max_tokens"),
        ("/v1/chat/completions", "stop_sequences", ["a"], "stop"),
        ("/v1/responses", "format", {"type": "json_object"}, "text.format"),
        ("/v1/responses", "text_format", {"type": "json_object"}, "text.format"),
        ("/v1/responses", "functions", [{"name": "f"}], "tools"),
        ("/v1/messages", "text", JSON_FORMAT, "output_config.format"),
        ("/v1/messages", "function_call", {"name": "f"}, "tool_choice"),
        ("/api/chat", "modalities", ["audio"], "only text"),
        ("/api/chat", "stop_sequences", ["a"], "options.stop"),
        ("/api/generate", "n_predict", 5, "options.num_predict"),
        ("/v1/embeddings", "truncate_prompt_tokens", 5, "never truncated"),
        ("/v1/embeddings", "lora", "x", "LoRA"),
        ("/v1/rerank", "truncate_prompt_tokens", 5, "never truncated"),
        ("/tokenize", "prompt", "x", "content"),
        ("/tokenize", "messages", [], "content"),
        ("/v1/messages/count_tokens", "chat_template", "{{ x }}", "own chat template"),
        ("/v1/messages/count_tokens", "truncate_prompt_tokens", 5, "never truncated"),
    ],
)
def test_the_field_that_is_meant_is_named(actor: Server, path: str, name: str, value: object, meant: str) -> None:
    others: dict[str, dict[str, Any]] = {
        "/v1/embeddings": {"input": "x"},
        "/v1/rerank": {"query": "x", "documents": ["x"]},
        "/v1/messages/count_tokens": {"messages": MESSAGES},
        "/tokenize": {},
    }
    status, reply = post(actor, path, (BODIES | others)[path] | {name: value})
    error = reply["error"] if isinstance(reply["error"], str) else reply["error"]["message"]
    assert status == 400 and meant in error, reply
    assert is_blamed(reply, name)


OFF = {
    "functions": [],
    "function_call": "auto",
    "modalities": ["text"],
    "logprobs": False,
    "top_logprobs": 0,
    "cache_prompt": True,
    "text_format": {"type": "text"},
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", *OLLAMA])
def test_what_is_switched_off_is_answered(actor: Server, path: str) -> None:
    for off in ({"n": 1, "min_tokens": 0, "mirostat": 0}, {"response_format": {"type": "text"}}, {"n": None}, OFF):
        status, reply = post(actor, path, BODIES[path] | off)
        assert status == 200, reply


def test_messages_obey_what_chats_do(actor: Server) -> None:
    asked = {"seed": 3, "min_p": 0.1, "repeat_penalty": 1.1, "frequency_penalty": 0.5, "logit_bias": {"5": 1}}
    assert post(actor, "/v1/messages", BODIES["/v1/messages"] | asked)[0] == 200
    for name, value in (("seed", "x"), ("min_p", 2), ("logit_bias", {"x": 1})):
        assert post(actor, "/v1/messages", BODIES["/v1/messages"] | {name: value})[0] == 400


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_text_of_another_api_that_binds_nothing_is_answered(actor: Server, path: str) -> None:
    for off in ({"format": {"type": "text"}}, {"verbosity": "low"}, "x"):
        assert post(actor, path, BODIES[path] | {"text": off})[0] == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/api/chat"])
def test_drafting_and_the_cache_are_steered_by_every_shape(actor: Server, path: str) -> None:
    def steered(**more: object) -> dict[str, Any]:
        return BODIES[path] | ({"options": more} if path == "/api/chat" else more)

    for name, value in (("spec", 99), ("cache_prompt", 2)):
        status, reply = post(actor, path, steered(**{name: value}))
        assert status == 400 and name in json.dumps(reply), reply
    asked = json.loads(json.dumps(steered(spec="off", cache_prompt=False)).replace("say x", "show"))
    status, reply = post(actor, path, asked)
    shown = json.dumps(reply).replace("\\", "")
    assert status == 200 and '"reuses_cache": false' in shown and '"drafting": "off"' in shown, shown


@pytest.mark.parametrize("path", OLLAMA)
def test_ollama_s_routes_obey_a_limit_of_openai_s_where_there_is_no_other(typist: Server, path: str) -> None:
    for more, count in (({}, 2), ({"num_predict": 3}, 3)):
        asked = BODIES[path] | {"max_tokens": 2, "options": {"ignore_eos": True, **more}}
        reply = typist.http.post(path, json=asked).json()
        assert (reply["eval_count"], reply["done_reason"]) == (count, "length")


# ---- formats
BOUND = [
    {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    {"type": "json_schema", "json_schema": {"name": "x", "strict": True, **SCHEMA}},
    {"type": "json_schema", "json_schema": {"strict": True, "$ref": "#/$defs/a", "$defs": {"a": SCHEMA}}},
    {"type": "json_schema", "json_schema": {"name": "x", "strict": True}, "schema": SCHEMA},
    {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA},
    {"type": "json_schema", "json_schema": {"strict": True, "schema": SCHEMA}, "schema": SCHEMA},
    {"type": "json_object", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
    {"type": "json_object", "strict": True, "schema": SCHEMA},
]


@pytest.mark.parametrize("said", BOUND)
def test_a_schema_is_obeyed_wherever_it_stands(said: dict[str, Any]) -> None:
    made = read_constraint(ResponseFormat.model_validate(said))
    assert made is not None and made.syntax is Syntax.JSON_SCHEMA and made.is_strict
    schema = json.loads(made.source)
    assert schema.get("$defs", {}).get("a", schema) == SCHEMA


def test_a_format_without_a_schema_that_wants_none_binds_json() -> None:
    for said in (
        {"type": "json_object"},
        {"type": "json_object", "schema": {}},
        {"type": "json_object", "schema": None},
    ):
        made = read_constraint(ResponseFormat.model_validate(said))
        assert made is not None and made.syntax is Syntax.JSON_OBJECT
    made = read_constraint(ResponseFormat.model_validate({"type": "json_schema", "json_schema": {"schema": {}}}))
    assert made is not None and made.source == "{}"
    assert read_constraint(ResponseFormat.model_validate({"type": "text", "json_schema": None})) is None


UNBOUND = [
    ({"type": "json_schema", "json_schema": {"name": "x", "strict": True}}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {}}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {"schema": None}}, "response_format.json_schema.schema"),
    ({"type": "json_object", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
    ({"type": "json_schema"}, "response_format.json_schema"),
    ({"type": "text", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema"),
    ({"type": "text", "schema": SCHEMA}, "response_format.schema"),
    ({"type": "text", "regex": "a"}, "response_format.regex"),
    ({"type": "json_object", "regex": "a"}, "response_format.regex"),
    ({"type": "regex", "regex": "a", "grammar": "b"}, "response_format.grammar"),
    ({"type": "regex"}, "response_format.regex"),
    ({"type": "grammar", "regex": "a"}, "response_format.regex"),
    ({"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": {"type": "null"}}, "response_format.schema"),
    ({"type": "json_schema", "json_schema": {"schema": {"schema": SCHEMA}}}, "response_format.json_schema.schema"),
    ({"type": "json_schema", "json_schema": {"schema": {"name": "x", "json_schema": SCHEMA}}}, "response_format"),
]


@pytest.mark.parametrize(("said", "parameter"), UNBOUND)
def test_a_format_that_would_bind_nothing_is_refused(said: dict[str, Any], parameter: str) -> None:
    with pytest.raises(Problem) as caught:
        read_constraint(ResponseFormat.model_validate(said))
    assert caught.value.status == 400 and str(caught.value.parameter).startswith(parameter)


@pytest.mark.parametrize(
    ("path", "more", "parameter"),
    [
        ("/v1/chat/completions", {"response_format": UNBOUND[0][0]}, "response_format.json_schema.schema"),
        ("/v1/completions", {"response_format": UNBOUND[0][0]}, "response_format.json_schema.schema"),
        ("/completion", {"response_format": UNBOUND[0][0]}, "response_format.json_schema.schema"),
        ("/completion", {"response_format": {"type": "json_object"}, "json_schema": SCHEMA}, "json_schema"),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ("/v1/responses", {"text": {"format": {"type": "text", "schema": SCHEMA}}}, "text.format.schema"),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "x"}}}},
            "text.format.json_schema.schema",
        ),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "schema": {"schema": {}}}}},
            "text.format.schema",
        ),
        ("/v1/responses", {"text": {"type": "json_schema", "schema": SCHEMA}}, "text.type"),
        ("/v1/messages", {"output_config": {"type": "json_schema", "schema": SCHEMA}}, "output_config.type"),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        (
            "/v1/messages",
            {"output_config": {"format": {"type": "json_schema", "schema": {"schema": SCHEMA}}}},
            "output_config.format.schema",
        ),
        ("/api/chat", {"format": {"name": "x", "schema": SCHEMA}}, "format"),
        ("/api/chat", {"options": {"format": "json"}}, "options.format"),
        ("/api/generate", {"format": {"json_schema": {"schema": SCHEMA}}}, "format"),
    ],
)
def test_every_route_says_what_its_format_lacks(actor: Server, path: str, more: dict[str, Any], parameter: str) -> None:
    status, reply = post(actor, path, BODIES[path] | more)
    assert (status, refusal(reply)[0]) == (400, parameter), reply


@pytest.mark.parametrize(
    ("path", "more"),
    [
        *(("/v1/chat/completions", {"response_format": said}) for said in BOUND),
        ("/v1/responses", {"text": {"format": {"type": "json_object", "schema": SCHEMA}}}),
        ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}}),
        (
            "/v1/responses",
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}},
        ),
        ("/v1/messages", {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}),
        ("/api/chat", {"format": SCHEMA}),
        ("/completion", {"json_schema": SCHEMA}),
        ("/completion", {"response_format": BOUND[1]}),
    ],
)
def test_a_format_reaches_the_engine_from_every_route(actor: Server, path: str, more: dict[str, Any]) -> None:
    reply = json.loads(json.dumps(BODIES[path]).replace("say x", "show"))
    status, answer = post(actor, path, reply | more)
    assert status == 200 and "integer" in json.dumps(answer), answer


@pytest.mark.parametrize(
    ("path", "fields", "warning"),
    [
        (
            "/v1/chat/completions",
            {"max_tokns": 5},
            "max_tokns is not a field and was ignored; did you mean max_tokens?",
        ),
        ("/v1/completions", {"Temperatur": 5}, "Temperatur is not a field and was ignored; did you mean temperature?"),
        ("/v1/messages", {"max_tokens": 5, "stop_sequence": ["a"]}, "did you mean stop_sequences?"),
        ("/v1/responses", {"max_output_token": 5}, "did you mean max_output_tokens?"),
        ("/api/chat", {"options": {"num_predct": 3}}, "did you mean num_predict?"),
        ("/v1/chat/completions", {"max_tokens": 5, "max_token": 5}, None),
        ("/v1/chat/completions", {"service_tier": "auto", "user_id": "a", "max\r\n_tokens": 1, "x" * 99: 1}, None),
    ],
)
def test_a_misspelled_field_is_ignored_with_a_warning(
    actor: Server, path: str, fields: dict[str, object], warning: str | None
) -> None:
    question = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    said = "say x" if question == "prompt" else [{"role": "user", "content": "say x"}]
    answer = actor.http.post(path, json={"model": "actor", question: said, **fields})
    assert answer.status_code == 200
    found = answer.headers.get("x-eaglelocal-warning")
    assert warning in found if warning is not None and found is not None else found is warning


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("num_choices", [1, 2])
@pytest.mark.parametrize("keyword", ["contains", "minItems"])
def test_keywords_that_nothing_enforces_are_named_in_a_header(
    actor: Server, keyword: str, num_choices: int, is_streamed: bool
) -> None:
    schema = {"type": "array", keyword: {}}
    bound = {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}
    answer = actor.ask("say x", stream=is_streamed, n=num_choices, **bound)
    told = "not enforced in the schema: contains" if keyword == "contains" else None
    assert (answer.status_code, answer.headers.get("x-eaglelocal-warning")) == (200, told)
