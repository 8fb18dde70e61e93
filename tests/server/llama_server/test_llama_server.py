"""llama-server's own routes, as its clients use them: what they send, and what they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from doubles.directed_server_engine import CACHED_TOKENS, plan
from doubles.running_server import Server, directed, served
from doubles.timeouts import wait_until

from eaglelocal.server.access import Access, ApiKeys

KEY = "k" * 20
VIM = {  # what llama.vim asks with
    "id_slot": 0,
    "n_indent": 4,
    "top_k": 40,
    "top_p": 0.9,
    "samplers": ["top_k", "top_p", "infill"],
    "stop": [],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
}


def complete(server: Server, prompt: object, **more: object) -> httpx.Response:
    return server.http.post("/completion", json={"prompt": prompt, **more})


def events_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert all(line.startswith("data: {") for line in lines)
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def seen(server: Server, **more: object) -> dict[str, Any]:
    """The request as it reached the engine."""
    found: dict[str, Any] = json.loads(complete(server, "show", **more).json()["content"])
    return found


# ---- answers
@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_an_answer_has_the_fields_of_llama_server(actor: Server, path: str) -> None:
    reply = actor.http.post(path, json={"prompt": "say It is\nlength", "n_predict": 9, "temperature": 0}).json()
    settings, timings = reply.pop("generation_settings"), reply.pop("timings")
    assert reply.pop("speculation")["accepted_tokens"] == 5
    assert reply == {
        "index": 0, "content": "It is", "tokens": [], "id_slot": -1, "stop": True, "model": "actor",
        "tokens_predicted": 2, "tokens_evaluated": 16, "prompt": "say It is\nlength", "has_new_line": False,
        "truncated": False, "stop_type": "limit", "stopping_word": "", "tokens_cached": 17,
    }  # fmt: skip
    assert (settings["n_predict"], settings["temperature"], settings["n_ctx"]) == (9, 0.0, 4096)
    assert (timings["cache_n"], timings["prompt_n"]) == (CACHED_TOKENS, 16 - CACHED_TOKENS)
    assert timings["prompt_per_token_ms"] == pytest.approx(timings["prompt_ms"] / timings["prompt_n"], abs=1e-3)
    assert timings["predicted_per_token_ms"] == timings["predicted_ms"]  # of the second one; the first is the prompt's


def test_a_stream_ends_with_the_whole_and_no_word_of_openais(actor: Server) -> None:
    *parts, last = events_of(complete(actor, "say It is sunny\nlength", stream=True))
    assert "".join(part["content"] for part in parts) == "It is sunny"
    assert [part["stop"] for part in parts] == [False] * len(parts)
    assert [token for part in parts for token in part["tokens"]] == [1, 2, 3]
    assert all((part["index"], part["id_slot"], part["tokens_evaluated"]) == (0, -1, 22) for part in parts)
    assert (last["content"], last["stop"], last["tokens_predicted"], last["stop_type"]) == ("", True, 3, "limit")
    assert last["generation_settings"]["stream"] is True and last["timings"]["predicted_n"] == 3


def test_tokens_are_sent_on_request(actor: Server) -> None:
    assert complete(actor, "say a b", return_tokens=True).json()["tokens"] == [1, 2]


def test_log_probabilities_are_llama_cpps(actor: Server) -> None:
    whole = complete(actor, "weigh a b", n_probs=2).json()["completion_probabilities"]
    parts = events_of(complete(actor, "weigh a b", n_probs=2, stream=True))
    assert [one for part in parts for one in part.get("completion_probabilities", [])] == whole
    first = whole[0]
    assert (first["id"], first["token"], first["bytes"], first["logprob"]) == (1, "a ", [97, 32], -0.25)
    assert first["top_logprobs"][1] == {"id": 2, "token": "other", "bytes": list(b"other"), "logprob": -2.5}
    assert "completion_probabilities" not in complete(actor, "say a").json()


@pytest.mark.parametrize(
    ("fields", "reply"),
    [
        (["content", "timings/cache_n", "no", "no/more", "content/more"], {"content": "a", "timings/cache_n": 3}),
        ([""], {}),
        (["prompt"], {"prompt": "say a"}),
        (["generation_settings/n_ctx", "truncated"], {"generation_settings/n_ctx": 4096, "truncated": False}),
    ],
)  # fmt: skip
def test_only_what_was_asked_for_is_reported(actor: Server, fields: list[str], reply: object) -> None:
    assert complete(actor, "say a", response_fields=fields).json() == reply
    assert events_of(complete(actor, "say a", response_fields=fields, stream=True))[-1] == (
        reply if "content" not in fields else {"content": "", "timings/cache_n": 3}
    )


@pytest.mark.parametrize(
    ("prompt", "mixed"),
    [
        ("show", [["show"]]),
        ([115, 104, 111, 119], [[115, 104, 111, 119]]),
        ([115, "ho", 119], [[115, "ho", 119]]),
        ({"prompt_string": "show"}, [["show"]]),
        ({"prompt_string": ["show", 10], "multimodal_data": []}, [["show", 10]]),
        (["show", "show"], [["show"], ["show"]]),
        ([["sh", 111, 119], "show", {"prompt_string": "show"}], [["sh", 111, 119], ["show"], ["show"]]),
    ],
)
def test_prompts_come_in_many_shapes(actor: Server, prompt: object, mixed: list[object]) -> None:
    reply = complete(actor, prompt).json()
    answers = reply if len(mixed) > 1 else [reply]
    assert [json.loads(answer["content"])["mixed"]["parts"] for answer in answers] == mixed
    assert [answer["index"] for answer in answers] == list(range(len(mixed)))


def test_several_answers_are_a_list_and_a_stream_of_each(actor: Server) -> None:
    assert [one["content"] for one in complete(actor, ["say a", "say b"], n_cmpl=2).json()] == ["a", "a", "b", "b"]
    parts = events_of(complete(actor, ["say a", "say b"], stream=True))
    assert sorted(part["index"] for part in parts if part["stop"]) == [0, 1]


def test_the_real_engine_goes_on_as_it_does_for_openais_clients(typist: Server) -> None:
    asked: dict[str, Any] = {"prompt": "Once upon", "temperature": 0, "stop": ["\n"], "max_tokens": 9}
    reply = typist.http.post("/completion", json=asked).json()
    whole = typist.http.post("/v1/completions", json=asked).json()
    assert reply["content"] == whole["choices"][0]["text"]
    assert (reply["prompt"], reply["tokens_evaluated"]) == ("Once upon", 9)
    again = typist.http.post("/completion", json=asked | {"stop": [reply["content"][3]], "return_tokens": True}).json()
    assert (again["stop_type"], again["stopping_word"]) == ("word", reply["content"][3])
    assert again["content"] == reply["content"][: reply["content"].index(reply["content"][3])]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_is_read_in_advance(typist: Server, stream: bool) -> None:
    prompt = f"In advance {stream} " * 3
    answer = complete(typist, prompt, n_predict=0, stream=stream)
    reply = events_of(answer)[-1] if stream else answer.json()
    assert (reply["content"], reply["tokens_predicted"], reply["stop_type"]) == ("", 0, "limit")
    assert reply["tokens_cached"] == reply["tokens_evaluated"] == len(prompt)
    assert complete(typist, prompt, n_predict=1).json()["timings"]["prompt_n"] <= 3
    for path, asked in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": said("a")})):
        usage = typist.http.post(path, json={**asked, "n_predict": 0}).json()["usage"]
        assert usage["completion_tokens"] == 0


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_an_answer_that_filled_the_context_is_truncated(typist: Server) -> None:
    reply = complete(typist, "x" * 490, n_predict=-1, ignore_eos=True).json()
    assert (reply["truncated"], reply["stop_type"], reply["tokens_evaluated"] + reply["tokens_predicted"]) == (
        *(True, "limit"), 512,
    )  # fmt: skip
    assert reply["has_new_line"] is ("\n" in reply["content"])


# ---- questions
@pytest.mark.parametrize(
    ("asked", "name", "value"),
    [
        ({"n_predict": 5}, "max_tokens", 5),
        ({"n_predict": -1}, "max_tokens", None),
        ({"max_completion_tokens": 6, "max_tokens": 7}, "max_tokens", 6),
        ({"max_tokens": 0}, "max_tokens", 0),
        ({}, "max_tokens", 64),  # as the server was started
        ({"n_probs": 3}, "logprobs", 3),
        ({"n_probs": 0, "logprobs": 2}, "logprobs", 2),
        ({"n_probs": 0}, "logprobs", None),
        ({"seed": -1}, "seed", None),
        ({"logit_bias": [[15, -1.5], [7, False]]}, "logit_bias", [[15, -1.5], [7, -100.0]]),
        ({"logit_bias": {"7": False}}, "logit_bias", [[7, -100.0]]),
        ({"logit_bias": []}, "logit_bias", []),
        ({"samplers": ["top_k"], "top_k": 5, "top_p": 0.5}, "top_k", 5),
        ({"samplers": ["top_k"], "top_k": 5, "top_p": 0.5}, "top_p", 1.0),
        ({"samplers": ["top_k"]}, "temperature", 1.0),
        ({"samplers": ["top_k", "top_p"], "typical_p": 0.5, "min_p": 0.1}, "typical_p", 1.0),
        ({"samplers": ["min_p", "temperature"], "repeat_penalty": 1.5}, "repeat_penalty", 1.0),
        ({"samplers": ["top_k", "top_p"]}, "left_open", ["top_p"]),
        ({"samplers": "edskypmxt", "repeat_penalty": 1.5}, "repeat_penalty", 1.5),
        ({"samplers": ["penalties", "dry", "typical_p", "xtc", "temperature"], "typical_p": 0.5}, "typical_p", 0.5),
        ({"samplers": ["top_k", "top_p", "infill"]}, "temperature", 0.0),
    ],
)
def test_fields_mean_what_they_mean_there(actor: Server, asked: dict[str, Any], name: str, value: object) -> None:
    assert seen(actor, **asked)["params"][name] == value


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("asked", "syntax"),
    [
        ({"json_schema": SCHEMA}, "json_schema"),
        ({"json_schema": SCHEMA, "grammar": ""}, "json_schema"),
        ({"json_schema": {}}, "json_object"),
        ({"json_schema": {}, "grammar": ""}, None),
        ({"grammar": ""}, None),
    ],
)
def test_a_schema_binds_the_answer(actor: Server, asked: dict[str, Any], syntax: str | None) -> None:
    constraint = seen(actor, **asked)["constraint"]
    assert (constraint and constraint["syntax"]) == syntax
    if syntax == "json_schema":
        assert json.loads(constraint["source"]) == SCHEMA


def test_what_concerns_its_slots_is_forgotten(actor: Server) -> None:
    forgotten = {"id_slot": 3, "n_keep": 5, "n_discard": 0, "n_cache_reuse": 1, "n_indent": 4, "t_max_prompt_ms": 1}
    off = {"dry_multiplier": 0, "mirostat": 0, "top_n_sigma": -1, "adaptive_target": -0.01, "min_keep": 0, "lora": []}
    plain, asked = seen(actor), seen(actor, **forgotten, **off, cache_prompt=True, return_progress=True)
    assert {**asked, "id": ""} == {**plain, "id": ""}


@pytest.mark.parametrize(
    ("asked", "limit_s"),
    [({"t_max_predict_ms": 1500}, 1.5), ({"t_max_predict_ms": 0}, None), ({"t_max_predict_ms": -1}, None), ({}, None)],
)
def test_how_long_lines_may_begin(actor: Server, asked: dict[str, Any], limit_s: float | None) -> None:
    assert seen(actor, **asked)["line_limit_s"] == limit_s


@pytest.mark.parametrize(
    ("asked", "parameter"),
    [
        ({"grammar": "root ::= [a-z]"}, "grammar"),
        ({"mirostat": 2}, "mirostat"),
        ({"dry_multiplier": 0.8}, "dry_multiplier"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"adaptive_target": 0}, "adaptive_target"),
        ({"min_keep": 2}, "min_keep"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"lora": [{"id": -1, "scale": 1}]}, "lora.0.id"),
        ({"lora": [{"id": 0}]}, "lora.0.scale"),
        ({"lora": {"id": 0}}, "lora"),
        ({"samplers": ["temperature", "top_k"]}, "samplers"),
        ({"samplers": ["top_k", "top_k"]}, "samplers"),
        ({"samplers": "tk"}, "samplers"),
        ({"logit_bias": [["Hello", -1]]}, "logit_bias"),
        ({"logit_bias": [[1]]}, "logit_bias"),
        ({"n_predict": -2}, "n_predict"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [1, ["a"]]}, "prompt"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["xx"]}}, "prompt.multimodal_data"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"prompt": [1, *["a"] * 1025]}, "prompt"),
    ],
)
def test_what_is_not_obeyed_is_refused(actor: Server, asked: dict[str, Any], parameter: str) -> None:
    answer = actor.http.post("/completion", json={"prompt": "say a", **asked})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)


# ---- gaps
def test_what_an_editor_sends_reaches_the_engine(actor: Server) -> None:
    snippets = [{"text": "import b\n", "time": 3, "filename": "a.py"}, {"text": "y"}]
    gap = {"input_prefix": "show", "input_suffix": ")\n", "input_extra": snippets, "prompt": "  return"}
    fields = ["content", "timings/prompt_n", "truncated", "tokens_cached"]
    reply = actor.http.post("/infill", json={**gap, **VIM, "n_predict": 128, "response_fields": fields}).json()
    assert list(reply) == fields
    request = json.loads(reply["content"])
    assert request["infill"] == {
        "before": ["show"], "behind": [")\n"], "snippets": [["a.py", "import b\n"], ["tmp", "y"]], "begun": "  return",
    }  # fmt: skip
    assert (request["params"]["max_tokens"], request["params"]["temperature"], request["line_limit_s"]) == (128, 0, 1)
    assert request["tells_prompt"] is False


def test_an_editor_has_its_snippets_read_in_advance(actor: Server) -> None:
    empty = {"input_prefix": "", "input_suffix": "", "prompt": "", "input_extra": [{"text": "y"}]}
    warmed = {**empty, **VIM, "n_predict": 0, "samplers": [], "temperature": 0.0, "response_fields": [""]}
    assert actor.http.post("/infill", json=warmed).json() == {}


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({"input_prefix": "a"}, "input_suffix"),
        ({"input_suffix": "a"}, "input_prefix"),
        ({"input_prefix": "a", "input_suffix": "b", "prompt": ["x"]}, "prompt"),
        ({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "x"}]}, "input_extra.0.text"),
    ],
)
def test_invalid_infill_requests_are_refused(actor: Server, body: dict[str, Any], parameter: str) -> None:
    answer = actor.http.post("/infill", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, parameter)


def test_a_model_that_cannot_fill_in_says_so(typist: Server) -> None:
    answer = typist.http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (answer.status_code, answer.json()["error"]["type"]) == (501, "not_supported_error")
    assert "infill is not supported by this model" in answer.json()["error"]["message"]


# ---- tokens and templates
@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"content": "hé"}, [104, 195, 169]),
        ({"content": ["h", 105]}, [104, 105]),
        ({"content": ""}, []),
        ({}, []),
        ({"content": "hé", "with_pieces": True}, [
            {"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]},
        ]),
    ],
)  # fmt: skip
def test_tokens_of_a_text(actor: Server, asked: dict[str, Any], tokens: list[object]) -> None:
    assert actor.http.post("/tokenize", json=asked).json() == {"tokens": tokens}


def test_text_of_tokens(actor: Server) -> None:
    assert actor.http.post("/detokenize", json={"tokens": [104, 195, 169]}).json() == {"content": "hé"}
    assert actor.http.post("/detokenize", json={"tokens": []}).json() == {"content": ""}


def test_invalid_tokens_are_refused(typist: Server) -> None:
    answer = typist.http.post("/detokenize", json={"tokens": [3, 5000]})
    assert (answer.status_code, "token 5000" in answer.json()["error"]["message"]) == (400, True)


def test_bodies_are_json_whatever_they_say(actor: Server) -> None:
    """As curl sends them in llama-server's manual."""
    answer = actor.http.post("/tokenize", content='{"content": "a"}', headers={"content-type": "text/plain"})
    assert answer.json() == {"tokens": [97]}


def test_a_conversation_as_the_model_reads_it(typist: Server) -> None:
    reply = typist.http.post("/apply-template", json={"messages": said("Hello")}).json()["prompt"]
    assert "Hello" in reply and reply.endswith("assistant\n")
    asked = {"temperature": 0, "n_predict": 9, "ignore_eos": True}
    alone = complete(typist, reply, **asked).json()
    chat = typist.http.post("/v1/chat/completions", json={"messages": said("Hello"), **asked}).json()
    assert alone["content"].startswith(chat["choices"][0]["message"]["content"])
    assert alone["tokens_evaluated"] == chat["usage"]["prompt_tokens"]


# ---- the server's state
def test_the_properties_of_what_is_served(actor: Server) -> None:
    reply = actor.http.get("/props").json()
    assert (reply["total_slots"], reply["model_alias"], reply["is_sleeping"]) == (4, "actor", False)
    assert reply["default_generation_settings"]["n_ctx"] == 4096
    assert reply["default_generation_settings"]["params"]["temperature"] == 0.7
    assert reply["modalities"] == {"vision": False, "audio": False, "video": False}
    assert "template" not in actor.snapshot()["model"]  # which is sent twice a second


def test_a_model_that_sleeps_is_known_and_one_that_was_never_loaded_is_not() -> None:
    with served(directed("actor", "other", idle_s=0.2, loads=False)) as server:
        assert (server.http.get("/props").status_code, server.http.get("/slots").status_code) == (503, 503)
        assert complete(server, "say a").json()["content"] == "a"
        wait_until(lambda: server.serving.models.current is None, "it is unloaded")
        reply = server.http.get("/props").json()
        assert (reply["is_sleeping"], reply["total_slots"]) == (True, 4)


def test_a_path_is_never_reported() -> None:
    setup = directed("actor")
    with served(replace(setup, plans={"/home/anna/x.gguf": plan("actor")})) as server:
        assert server.http.get("/props").json()["model_path"] == "x.gguf"
        reply = [complete(server, "say a", model=name).json()["model"] for name in ("x", "x.gguf", "/home/anna/x.gguf")]
        assert reply == ["x.gguf"] * 3
        assert server.http.get("/v1/models").json()["data"][0]["id"] == "x.gguf"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with served(directed(access=Access(keys=ApiKeys((("anna", KEY),))))) as server:
        yield server


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/completion"),
        ("POST", "/completions"),
        ("POST", "/infill"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("POST", "/apply-template"),
        ("GET", "/props"),
        ("GET", "/slots"),
    ],
)
def test_every_route_wants_a_key(guarded: Server, method: str, path: str) -> None:
    refused = guarded.http.request(method, path, json={} if method == "POST" else None)
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
    key = {"Authorization": f"Bearer {KEY}"}
    assert guarded.http.request(method, path, json={} if method == "POST" else None, headers=key).status_code in (
        200,
        400,
    )


def test_slots_tell_how_many_are_busy_and_nothing_else(actor: Server) -> None:
    actor.wait_until_idle()
    with actor.http.stream("POST", "/completion", json={"prompt": "forever", "stream": True}) as answer:
        lines = answer.iter_lines()
        next(lines)
        reply = actor.http.get("/slots").json()
        assert reply[0] == {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": True}
        assert [slot["is_processing"] for slot in reply] == [True, False, False, False]
        assert actor.http.get("/slots?fail_on_no_slot=1").status_code == 200
    actor.wait_until_idle()


def test_a_server_without_a_free_slot_says_so() -> None:
    busy = {"prompt": ["forever"] * 4, "stream": True}
    with served(directed()) as server, server.http.stream("POST", "/completion", json=busy) as answer:
        lines = answer.iter_lines()
        next(lines)
        wait_until(lambda: all(slot["is_processing"] for slot in server.http.get("/slots").json()), "all run")
        assert server.http.get("/slots?fail_on_no_slot=1").status_code == 503


def test_a_stream_that_breaks_says_why(actor: Server) -> None:
    answer = complete(actor, "say a\nsleep 0.2\nfail full", stream=True)
    assert "no room" in events_of(answer)[-1]["error"]["message"]


def test_no_fields_are_all_fields(actor: Server) -> None:
    assert complete(actor, "say a", response_fields=[]).json()["prompt"] == "say a"


def test_what_sillytavern_sends_with_everything_off_is_what_it_leaves_out(actor: Server) -> None:
    order = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "adaptive_p"]
    off = {
        "samplers": order, "logit_bias": [], "grammar": "", "guided_grammar": "", "dry_multiplier": 0, "dry_base": 1.75,
        "dry_sequence_breakers": ["\n"], "mirostat_mode": 0, "mirostat": 0, "xtc_probability": 0, "xtc_threshold": 0.1,
        "top_n_sigma": 0, "nsigma": 0, "adaptive_target": -0.01, "adaptive_decay": 0.9, "tfs": 1, "top_a": 0,
        "min_tokens": 0, "ban_eos_token": False, "skip_special_tokens": True, "truncation_length": 4096, "n_probs": 0,
        "custom_token_bans": "", "banned_strings": [], "smoothing_factor": 0, "stopping_strings": [], "stop": [],
        "api_type": "llamacpp", "cache_prompt": True, "seed": -1, "ignore_eos": False, "json_schema": None,
    }  # fmt: skip
    assert {**seen(actor, **off), "id": ""} == {**seen(actor), "id": ""}
