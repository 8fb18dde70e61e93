"""JSON bodies with unreadable strings or numbers out of range, and error messages that name the right type."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from doubles.running_server import Server
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import read_body

JSON = {"content-type": "application/json"}
SAID = '"messages": [{"role": "user", "content": "say x"}]'
ANSWERED = {  # the least that each route answers
    "/v1/chat/completions": f"{{{SAID}, %s}}",
    "/v1/completions": '{"prompt": "say x", %s}',
    "/v1/responses": '{"input": "say x", %s}',
    "/v1/messages": f'{{{SAID}, "max_tokens": 9, %s}}',
    "/v1/messages/count_tokens": f"{{{SAID}, %s}}",
    "/api/chat": f'{{{SAID}, "stream": false, %s}}',
    "/api/generate": '{"prompt": "say x", "stream": false, %s}',
    "/completion": '{"prompt": "say x", %s}',
    "/apply-template": f"{{{SAID}, %s}}",
    "/tokenize": '{"content": "x", %s}',
}
routes = pytest.mark.parametrize("path", ANSWERED)


def post(server: Server, path: str, body: str | bytes) -> tuple[int, Any]:
    answer = server.http.post(path, content=body, headers=JSON)
    return answer.status_code, answer.json()


def message_in(reply: Any) -> str:
    return str(reply["error"] if isinstance(reply["error"], str) else reply["error"]["message"])


# ---- no numbers
@routes
@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_value_that_is_not_a_number_is_refused_by_its_place(actor: Server, path: str, word: str) -> None:
    for field, place in ((f'"x": {word}', "x"), (f'"x": {{"y": [0, {{"z": {word}}}]}}', "x.y.1.z")):
        status, reply = post(actor, path, ANSWERED[path] % field)
        assert (status, message_in(reply)) == (400, f"{place}: {word} is not a number in JSON")


@pytest.mark.parametrize("body", ["NaN", "[1, Infinity]"])
def test_a_body_without_names_may_hold_it_too(actor: Server, body: str) -> None:
    status, reply = post(actor, "/v1/chat/completions", body)
    assert status == 400 and "is not a number in JSON" in message_in(reply)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty"])
@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_an_overlarge_number_is_reported_as_such(actor: Server, field: str, number: str) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/completion"):
        status, reply = post(actor, path, ANSWERED[path] % f'"{field}": {number}')
        assert (status, message_in(reply)) == (400, f"{field}: Input should be a finite number")


# ---- half characters
PLACES = {
    "/v1/chat/completions": (
        '"stop": ["%s"], "user": "%s", "tools": [{"type": "function", "function": {"name": "f", "description": '
        '"%s", "parameters": {"%s": "%s"}}}], "metadata": {"%s": "%s"}',
        '"messages": [{"role": "user", "content": "say %s"}, {"role": "assistant", "content": null, "tool_calls": '
        '[{"id": "%s", "function": {"name": "%s", "arguments": "%s"}}]}, {"role": "tool", "tool_call_id": "%s", '
        '"content": "%s"}, {"role": "user", "content": [{"type": "text", "text": "say x%s"}], "name": "%s"}]',
        '"chat_template_kwargs": {"%s": "%s"}',
    ),
    "/v1/completions": ('"stop": "%s", "suffix": "%s"', '"prompt": ["say x%s"]'),
    "/v1/responses": (
        '"metadata": {"%s": "%s"}, "instructions": "%s"',
        '"input": [{"role": "user", "content": "say x%s"}, {"type": "function_call_output", "call_id": '
        '"%s", "output": "%s"}]',
    ),
    "/v1/messages": ('"system": "%s", "stop_sequences": ["%s"]', '"tools": [{"name": "f", "input_schema": {"%s": 1}}]'),
    "/v1/messages/count_tokens": ('"system": "%s"',),
    "/api/chat": ('"options": {"stop": "%s"}',),
    "/api/generate": ('"system": "%s"',),
    "/completion": ('"stop": "%s"',),
    "/apply-template": ('"user": "%s"',),
    "/tokenize": ('"content": "%s"',),
}


@routes
@pytest.mark.parametrize("half", ["\\ud83e", "\\uDD85", "\\udd85\\ud83e"])
def test_half_a_character_keeps_nothing_from_being_answered(actor: Server, path: str, half: str) -> None:
    for field in PLACES[path]:
        status, reply = post(actor, path, ANSWERED[path] % field.replace("%s", half))
        assert status == 200, reply


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (rb"a\ud83e b", "a� b"),
        (rb"\ud83e\udd85", "🦅"),
        (b"\xed\xa0\xbe\xed\xb6\x85 \xed\xa0\xbe", "🦅 �"),  # as UTF-8 of the halves, which Java writes
        (rb"\\ud83e", "\\ud83e"),
    ],
)
def test_a_half_becomes_the_sign_for_what_is_no_character(actor: Server, sent: bytes, read: str) -> None:
    status, reply = post(actor, "/v1/chat/completions", b'{"messages": [{"role": "user", "content": "say %s"}]}' % sent)
    assert (status, reply["choices"][0]["message"]["content"]) == (200, read)


def test_names_of_models_may_hold_one_too(actor: Server) -> None:
    for path, body in ANSWERED.items():
        status, reply = post(actor, path, body % '"model": "\\ud83e"')
        assert (status, "\\ufffd" in json.dumps(reply)) == (404, True)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values, st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-32"]))
def test_json_is_read_as_it_is(value: object, encoding: str) -> None:
    for is_ascii in (True, False):
        assert read_body(json.dumps(value, ensure_ascii=is_ascii).encode(encoding)) == value


@given(st.text(st.characters(categories=["Cs", "Lu"])), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
def test_whatever_is_read_can_be_written(text: str, encoding: str) -> None:
    for is_ascii in (True, False):
        body = json.dumps({text: [text]}, ensure_ascii=is_ascii).encode(encoding, "surrogatepass")
        json.dumps(read_body(body), ensure_ascii=False).encode()


@given(st.binary(max_size=20) | st.text(st.sampled_from('{}[]",:NaIinfty-1.e \\ud8'), max_size=20).map(str.encode))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(ValueError, Problem):
        json.dumps(read_body(body), ensure_ascii=False).encode()


# ---- limits
LIMITS = [
    ("/v1/chat/completions", '"max_tokens": %s'),
    ("/v1/chat/completions", '"max_completion_tokens": %s'),
    ("/v1/chat/completions", '"n_predict": %s'),
    ("/v1/chat/completions", '"top_k": %s'),
    ("/v1/chat/completions", '"repeat_last_n": %s'),
    ("/v1/completions", '"max_tokens": %s'),
    ("/v1/completions", '"max_completion_tokens": %s'),
    ("/v1/completions", '"n_predict": %s'),
    ("/v1/responses", '"max_output_tokens": %s'),
    ("/v1/messages", '"max_tokens": %s'),
    ("/api/chat", '"options": {"num_predict": %s}'),
    ("/api/generate", '"options": {"num_predict": %s}'),
    ("/completion", '"n_predict": %s'),
    ("/completion", '"max_tokens": %s'),
    ("/completion", '"max_completion_tokens": %s'),
    ("/infill", '"n_predict": %s'),
]


@pytest.mark.parametrize(("path", "field"), LIMITS)
def test_more_than_there_is_room_for_is_as_much_as_there_is(actor: Server, path: str, field: str) -> None:
    body = ANSWERED.get(path, '{"input_prefix": "say x", "input_suffix": "", %s}')
    for number in ("10000001", "2147483647", "1000000000000", "1e12", f"1{'0' * 400}"):
        status, reply = post(actor, path, body % field.replace("%s", number))
        assert status == 200, (number, reply)
    assert post(actor, path, body % field.replace("%s", "1.5"))[0] == 400


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_limit_of_a_plain_completion_is_obeyed_under_either_name(typist: Server, field: str) -> None:
    body = {"prompt": "abc", field: 2, "temperature": 0, "ignore_eos": True}
    reply = typist.http.post("/v1/completions", json=body).json()
    assert (reply["usage"]["completion_tokens"], reply["choices"][0]["finish_reason"]) == (2, "length")


# ---- fields of several types
@pytest.mark.parametrize(
    ("path", "field", "said"),
    [
        ("/v1/chat/completions", f'"stop": {json.dumps(["a"] * 200)}', "stop: List should have at most 128 items"),
        ("/v1/chat/completions", '"stop": 5', "stop: Input should be a valid string or a valid list"),
        ("/v1/chat/completions", '"stop": ["a", 5]', "stop.1: Input should be a valid string"),
        ("/v1/chat/completions", f'"stop": "{"a" * 1001}"', "stop: String should have at most 1000 characters"),
        ("/v1/chat/completions", '"max_tokens": 0', "max_tokens: 0 leaves no tokens for an answer"),
        ("/v1/chat/completions", '"max_tokens": "9"', "max_tokens: Input should be a valid integer"),
        ("/v1/chat/completions", '"spec": 17', "spec: Input should be less than or equal to 16"),
        ("/v1/chat/completions", '"spec": -1', "spec: Input should be greater than or equal to 0"),
        ("/v1/chat/completions", '"tool_choice": 5', "'any' or an object"),
        ("/v1/completions", '"logprobs": 21', "logprobs: Input should be less than or equal to 20"),
        ("/v1/completions", f'"prompt": {json.dumps(["a"] * 65)}', "prompt: List should have at most 64 items"),
        ("/v1/completions", f'"prompt": {json.dumps([[1]] * 65)}', "prompt: List should have at most 64 items"),
        ("/v1/responses", '"input": 5', "input: Input should be a valid string or a valid list"),
        ("/v1/messages", f'"stop_sequences": {json.dumps(["a"] * 129)}', "List should have at most 128 items"),
        ("/v1/messages", '"system": 5', "system: Input should be a valid string or a valid list"),
        ("/api/chat", f'"options": {{"stop": {json.dumps(["a"] * 129)}}}', "List should have at most 128 items"),
        ("/api/chat", '"think": 5', "think: Input should be a valid boolean or 'low', 'medium', 'high' or 'max'"),
        ("/completion", f'"samplers": {json.dumps(["top_k"] * 65)}', "samplers: List should have at most 64 items"),
        ("/completion", f'"stop": {json.dumps(["a"] * 129)}', "stop: List should have at most 128 items"),
    ],
)
def test_the_type_that_the_value_has_says_what_is_wrong(actor: Server, path: str, field: str, said: str) -> None:
    status, reply = post(actor, path, ANSWERED[path] % field)
    assert status == 400 and said in message_in(reply), reply


@pytest.mark.parametrize(
    ("more", "parameter"),
    [
        (
            '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [1, 1e999]}}}]',
            "tools.0.function.parameters.enum.1",
        ),
        ('"chat_template_kwargs": {"a": -1e999}', "chat_template_kwargs.a"),
    ],
)
def test_a_number_without_end_is_refused_by_its_place(actor: Server, more: str, parameter: str) -> None:
    body = f'{{"messages": [{{"role": "user", "content": "say x"}}], {more}}}'
    answer = actor.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, parameter)
    assert error["message"].startswith(f"{parameter}: ") and "Error" not in error["message"]
