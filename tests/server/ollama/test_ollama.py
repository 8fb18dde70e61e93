"""Ollama's API, as its clients use it: what they send, and what they read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from doubles.directed_server_engine import CACHED_TOKENS
from doubles.random_models import TargetShape, write_target
from doubles.raw_server_client import exchange, request
from doubles.running_server import Server, directed, served
from doubles.scripted_loader import ScriptedLoader

from eaglelocal.core.plan import Plan
from eaglelocal.gguf.reader import read_header
from eaglelocal.server.access import Access, ApiKeys
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.ollama.model_routes import (
    API_VERSION,
    find_model_file,
    format_parameters,
    model_details,
    model_info,
)
from eaglelocal.server.server_state import ServerLimits

KEY = "k" * 20
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": {}}}]


def said(script: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": script}]


def lines_of(answer: httpx.Response) -> list[dict[str, Any]]:
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def chat(server: Server, script: str, **more: object) -> httpx.Response:
    return server.http.post("/api/chat", json={"model": "actor", "messages": said(script), **more})


def generate(server: Server, prompt: str, **more: object) -> httpx.Response:
    return server.http.post("/api/generate", json={"model": "actor", "prompt": prompt, **more})


def seen(server: Server, path: str = "/api/chat", **more: object) -> dict[str, Any]:
    """The request as it reached the engine."""
    if path == "/api/chat":
        reply = chat(server, "show", stream=False, **more).json()["message"]["content"]
    else:
        reply = generate(server, "show", stream=False, **more).json()["response"]
    found: dict[str, Any] = json.loads(reply)
    return found


# ---- answers
def test_a_chat_comes_as_lines_of_json(actor: Server) -> None:
    *parts, last = lines_of(chat(actor, "think Far.\nsay It is sunny"))
    assert [part["done"] for part in parts] == [False] * len(parts)
    assert "".join(part["message"]["content"] for part in parts) == "It is sunny"
    assert "".join(part["message"].get("thinking", "") for part in parts) == "Far. "
    assert all(part["message"]["role"] == "assistant" and part["model"] == "actor" for part in [*parts, last])
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "stop", "")
    assert datetime.fromisoformat(last["created_at"]).utcoffset() is not None


def test_a_whole_chat_says_the_same(actor: Server) -> None:
    whole = chat(actor, "think Far.\nsay It is sunny", stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": "It is sunny", "thinking": "Far. "}
    assert (whole["done"], whole["done_reason"]) == (True, "stop")


def test_a_question_is_answered_as_a_chat_is(actor: Server) -> None:
    *parts, last = lines_of(generate(actor, "think Far.\nsay It is sunny"))
    assert "".join(part["response"] for part in parts) == "It is sunny"
    assert "".join(part.get("thinking", "") for part in parts) == "Far. "
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "stop")
    whole = generate(actor, "think Far.\nsay It is sunny", stream=False).json()
    assert (whole["response"], whole["thinking"]) == ("It is sunny", "Far. ")


@pytest.mark.parametrize("stream", [True, False])
def test_figures_are_in_nanoseconds(actor: Server, stream: bool) -> None:
    last = json.loads(chat(actor, "say a b", stream=stream).text.splitlines()[-1])
    assert (last["prompt_eval_count"], last["eval_count"]) == (len("say a b"), 2)
    assert (last["prompt_eval_duration"], last["eval_duration"]) == (80_000_000, 500_000_000)
    assert last["total_duration"] > 0 and last["load_duration"] >= 0
    assert last["timings"]["cache_n"] == CACHED_TOKENS
    assert last["speculation"]["accepted_tokens"] == 5


def test_an_answer_that_was_cut_short_says_so(actor: Server) -> None:
    assert chat(actor, "say a\nlength", stream=False).json()["done_reason"] == "length"


def test_calls_are_reported_whole_with_an_object_each(actor: Server) -> None:
    script = 'say Wait.\nbegin weather\nargue {"city":\nargue  "Rome"}\ncall weather {"city": "Oslo"}'
    *parts, last = lines_of(chat(actor, script, tools=TOOLS))
    whole = chat(actor, script, tools=TOOLS, stream=False).json()
    reply = [part["message"]["tool_calls"] for part in parts if "tool_calls" in part["message"]]
    assert reply == [whole["message"]["tool_calls"]]
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in reply[0]] == [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "Oslo"}),
    ]
    assert last["done_reason"] == whole["done_reason"] == "stop"


@pytest.mark.parametrize(
    ("script", "reply"),
    [
        ('call weather {"city": "Oslo"}\nbegin weather\nargue {"city": "Ro', ["Oslo"]),
        ('call weather {"city": "Oslo"}\nbegin weather\nargue {"city": "Rome"}', ["Oslo", "Rome"]),
        ("begin weather", []),
    ],
)
def test_a_call_within_which_the_answer_was_cut_is_not_reported(actor: Server, script: str, reply: list[str]) -> None:
    """Nothing says that it is a part of one: it would be run."""
    *parts, last = lines_of(chat(actor, f"{script}\nlength", tools=TOOLS))
    whole = chat(actor, f"{script}\nlength", tools=TOOLS, stream=False).json()
    streamed = [call for part in parts for call in part["message"].get("tool_calls", [])]
    for calls in (streamed, whole["message"].get("tool_calls", [])):
        assert [call["function"]["arguments"]["city"] for call in calls] == reply
    assert last["done_reason"] == whole["done_reason"] == "length"


def test_log_probabilities_are_reported_next_to_the_text(actor: Server) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}
    streamed = [one for part in lines_of(chat(actor, "weigh a b", **asked)) for one in part.get("logprobs", [])]
    whole = chat(actor, "weigh a b", stream=False, **asked).json()["logprobs"]
    assert streamed == whole
    assert (whole[0]["token"], whole[0]["logprob"], len(whole[0]["top_logprobs"])) == ("a ", -0.25, 2)
    assert seen(actor, "/api/generate", raw=True, **asked)["params"]["logprobs"] == 2


def test_the_real_engine_answers_alike_in_both_shapes(typist: Server) -> None:
    asked = {"options": {"temperature": 0, "num_predict": 9}}
    chats = lines_of(typist.http.post("/api/chat", json={"messages": said("Say hello."), **asked}))
    texts = lines_of(typist.http.post("/api/generate", json={"prompt": "Say hello.", **asked}))
    spoken = "".join(part["message"]["content"] for part in chats)
    assert len(spoken) == 9
    assert "".join(part["response"] for part in texts) == spoken
    assert (chats[-1]["done_reason"], chats[-1]["eval_count"]) == ("length", 9)


# ---- questions
OPTIONS = {
    "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "typical_p": 0.7, "seed": 42,
    "repeat_penalty": 1.2, "repeat_last_n": 33, "presence_penalty": 1.5, "frequency_penalty": 1.0,
}  # fmt: skip
FORGOTTEN = {"num_ctx": 8192, "num_gpu": 1, "num_thread": 8, "num_keep": 5, "num_batch": 2, "use_mmap": True}


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_options_reach_the_engine(actor: Server, path: str) -> None:
    params = seen(actor, path, options={**OPTIONS, **FORGOTTEN, "stop": ["END"], "num_predict": 50.0})["params"]
    assert {name: params[name] for name in OPTIONS} == OPTIONS
    assert (params["stop"], params["max_tokens"]) == (["END"], 50)


@pytest.mark.parametrize(
    ("options", "name", "value"),
    [
        ({}, "max_tokens", 64),  # as the server was started
        ({"num_predict": -1}, "max_tokens", None),
        ({"num_predict": -2}, "max_tokens", None),
        ({"num_predict": 0}, "max_tokens", None),
        ({"stop": "END"}, "stop", ["END"]),
        ({"seed": -1}, "seed", None),
        ({"repeat_last_n": -1}, "repeat_last_n", 1_000_000),
        ({"mirostat": 0, "temperature": None}, "temperature", 0.7),
    ],
)
def test_options_mean_what_they_mean_there(actor: Server, options: dict[str, Any], name: str, value: object) -> None:
    assert seen(actor, options=options)["params"][name] == value


@pytest.mark.parametrize(
    ("think", "values", "effort", "budget"),
    [
        (None, {}, "", None),
        (True, {"enable_thinking": "true"}, "", None),
        (False, {}, "", 0),
        ("high", {}, "high", None),
    ],
)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_thinking_is_wanted_or_not(
    actor: Server, path: str, think: object, values: dict[str, str], effort: str, budget: int | None
) -> None:
    request = seen(actor, path, think=think)
    thinking = request["params"]["thinking"]
    assert (dict(request["template_values"]), thinking["effort"], thinking["budget"]) == (values, effort, budget)


@pytest.mark.parametrize("stream", [True, False])
def test_thoughts_that_were_not_wanted_are_not_reported(actor: Server, stream: bool) -> None:
    assert "Far" not in chat(actor, "think Far.\nsay x", think=False, stream=stream).text


SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("given", "syntax", "source"),
    [("json", "json_object", None), (SCHEMA, "json_schema", SCHEMA), ("", None, None), (None, None, None)],
)
def test_a_format_binds_the_answer(actor: Server, given: object, syntax: str | None, source: object) -> None:
    for path in ("/api/chat", "/api/generate"):
        constraint = seen(actor, path, format=given)["constraint"]
        assert (constraint["syntax"] if constraint else None) == syntax
        if source is not None:
            assert json.loads(constraint["source"]) == source


def test_results_find_their_calls_without_ids(actor: Server) -> None:
    """Home Assistant says neither id nor name; others say one of them."""
    calls = [{"function": {"name": name, "arguments": {"city": name}}} for name in ("rome", "oslo", "bonn")]
    messages = [
        {"role": "user", "content": "How is it there?"},
        {"role": "assistant", "thinking": "Far.", "tool_calls": [*calls, {"id": "x", "function": {"name": "kiel"}}]},
        {"role": "tool", "content": "a", "tool_name": "oslo"},
        {"role": "tool", "content": "b", "tool_call_id": "x"},
        {"role": "tool", "content": "c"},
        {"role": "tool", "content": "d"},
        {"role": "tool", "content": "e", "tool_name": "nobody"},
        *said("show"),
    ]
    reply = actor.http.post("/api/chat", json={"messages": messages, "tools": TOOLS, "stream": False}).json()
    request = json.loads(reply["message"]["content"])
    assistant, *results = request["messages"][1:-1]
    ids = {call["name"]: call["id"] for call in assistant["tool_calls"]}
    assert (assistant["reasoning"], len(set(ids.values())), ids["kiel"]) == ("Far.", 4, "x")
    assert json.loads(assistant["tool_calls"][0]["arguments"]) == {"city": "rome"}
    assert [(one["content"], one["name"], one["tool_call_id"]) for one in results] == [
        *(("a", "oslo", ids["oslo"]), ("b", "kiel", "x"), ("c", "rome", ids["rome"]), ("d", "bonn", ids["bonn"])),
        ("e", "nobody", ""),
    ]
    assert [tool["name"] for tool in request["tools"]] == ["weather"]


def test_results_are_of_the_latest_calls(actor: Server) -> None:
    """A call that never got a result takes none of those behind it, and no list of such calls grows."""
    calls = [{"function": {"name": name}} for name in ("rome", "oslo", "bonn")]
    messages = [
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "content": "a"},
        {"role": "assistant", "content": "Well."},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "tool_calls": calls[:1]},
        {"role": "tool", "content": "c", "tool_name": "bonn"},
        {"role": "tool", "content": "d"},
        *said("show"),
    ]
    reply = actor.http.post("/api/chat", json={"messages": messages, "stream": False}).json()
    results = [one for one in json.loads(reply["message"]["content"])["messages"] if one["role"] == "tool"]
    assert [(one["content"], one["name"], one["tool_call_id"]) for one in results] == [
        *(("a", "rome", "call_0_0"), ("b", "oslo", "call_0_1"), ("c", "bonn", ""), ("d", "rome", "call_4_0")),
    ]


def test_a_last_message_of_the_assistant_goes_on(actor: Server) -> None:
    messages = [*said("show"), {"role": "assistant", "content": "The answer is ("}]
    reply = actor.http.post("/api/chat", json={"messages": messages, "stream": False}).json()
    assert json.loads(reply["message"]["content"])["resumes"] is True


def test_a_question_has_a_system_before_it(actor: Server) -> None:
    messages = seen(actor, "/api/generate", system="Be brief.")["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [("system", "Be brief."), ("user", "show")]


@pytest.mark.parametrize(("more", "suffix"), [({"raw": True}, ""), ({"suffix": "END"}, "END")])
def test_a_text_goes_on_without_a_template(actor: Server, more: dict[str, Any], suffix: str) -> None:
    request = seen(actor, "/api/generate", **more)
    assert (request["text"], request["suffix"], request["messages"], request["is_split"]) == ("show", suffix, [], False)


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", "application/json"])
def test_a_body_is_json_whatever_its_type(actor: Server, kind: str) -> None:
    """The examples of its manual, with curl, name none."""
    body = b'{"prompt": "say x", "stream": false}'
    answer = actor.http.post("/api/generate", content=body, headers={"content-type": kind})
    assert answer.json()["response"] == "x"


# ---- loading
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/api/generate", {}),
        ("/api/generate", {"prompt": ""}),
        ("/api/generate", {"prompt": "", "raw": True}),
        ("/api/chat", {}),
        ("/api/chat", {"messages": []}),
    ],
)
@pytest.mark.parametrize(("keep_alive", "reason"), [(None, "load"), ("5m", "load"), (-1, "load"), (0, "unload")])
def test_nothing_asked_loads(actor: Server, path: str, asked: Any, keep_alive: object, reason: str) -> None:
    reply = actor.http.post(path, json={"model": "actor", "keep_alive": keep_alive, **asked}).json()
    assert (reply["model"], reply["done"], reply["done_reason"]) == ("actor", True, reason)
    assert (reply["message"]["content"] if path == "/api/chat" else reply["response"]) == ""


def test_a_model_is_loaded_but_none_to_be_given_up() -> None:
    with served(directed("one", "two")) as server:

        def ask(**asked: object) -> str:
            assert server.http.post("/api/generate", json=asked).status_code == 200
            loaded = server.serving.models.current
            assert loaded is not None
            return loaded.name

        assert ask(model="two:latest", keep_alive=0) == "one"
        assert ask(model="two:latest") == "two"
        assert [one["name"] for one in server.http.get("/api/ps").json()["models"]] == ["two:latest"]


# ---- models
@pytest.fixture(scope="module")
def several() -> Iterator[Server]:
    with served(directed("one", "two:q4_k_m", aliases=("llama3:latest",))) as server:
        yield server


def test_models_are_listed_with_a_tag(several: Server) -> None:
    """Open WebUI looks for them under a name with one."""
    models = several.http.get("/api/tags").json()["models"]
    assert [model["model"] for model in models] == ["one:latest", "two:q4_k_m", "llama3:latest"]
    for model in models:
        assert model["name"] == model["model"]
        assert datetime.fromisoformat(model["modified_at"]).utcoffset() is not None
        assert len(model["digest"]) == 64 and isinstance(model["size"], int)
        assert {"format", "family", "families", "parameter_size"} <= set(model["details"])
    assert [("tools" in model["capabilities"]) for model in models] == [True, False, True]  # one is not loaded
    assert [model["details"]["quantization_level"] for model in models] == ["", "Q4_K_M", ""]
    assert models[0]["digest"] == models[2]["digest"] != models[1]["digest"]


@pytest.mark.parametrize("name", ["one", "one:latest", "llama3", "llama3:latest", ""])
def test_a_tag_may_be_said_or_not(several: Server, name: str) -> None:
    reply = several.http.post("/api/show", json={"model": name}).json()
    info = reply["model_info"]
    assert info[f"{info['general.architecture']}.context_length"] == 4096
    assert reply["capabilities"] == ["completion", "tools", "thinking"]
    assert "tools" in reply["template"]
    assert {"modelfile", "parameters", "template", "details", "modified_at"} <= set(reply)
    answer = several.http.post("/api/generate", json={"model": name, "prompt": "say x", "stream": False}).json()
    assert (answer["model"], answer["response"]) == (name or "one", "x")


@pytest.mark.parametrize(
    ("label", "capabilities"),
    [
        ("plain", ["completion"]),
        ("tools only", ["completion", "tools"]),
        ("thinker", ["completion", "thinking"]),
    ],
)
def test_only_what_the_template_can_is_advertised(label: str, capabilities: list[str]) -> None:
    with served(directed(label)) as server:
        reply = server.http.post("/api/show", json={"model": label}).json()
        assert reply["capabilities"] == capabilities
        assert ("tools" in reply["template"]) == ("tools" in capabilities)
        (card,) = server.http.get("/api/tags").json()["models"]
        assert card["capabilities"] == capabilities


def test_what_is_not_loaded_has_no_figures_and_older_clients_are_understood(several: Server) -> None:
    reply = several.http.post("/api/show", json={"name": "two:q4_k_m"}).json()
    assert reply["model_info"]["general.basename"] == "two:q4_k_m"
    assert not [name for name in reply["model_info"] if name.endswith("context_length")]


def test_the_loaded_model_is_reported(several: Server) -> None:
    (running,) = several.http.get("/api/ps").json()["models"]
    assert (running["name"], running["model"], running["context_length"]) == ("one:latest", "one:latest", 4096)


def test_an_embedding_model_says_what_it_is(actor: Server) -> None:
    loaded = actor.serving.models.current
    assert loaded is not None
    reply = model_info("bert", replace(loaded.info, embedding_size=64), None)
    assert reply[f"{reply['general.architecture']}.embedding_length"] == 64


def test_only_a_loaded_model_reports_its_family(several: Server) -> None:
    loaded = several.serving.models.current
    assert loaded is not None
    info = replace(loaded.info, architecture="qwen3")
    assert model_info("one", info, None)["qwen3.context_length"] == 4096
    known, other = model_details("one", info, None), model_details("two", None, None)
    assert [(reply.family, reply.families) for reply in (known, other)] == [("qwen3", ["qwen3"]), ("", [])]


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags"])
def test_programs_look_whether_it_is_there(actor: Server, path: str) -> None:
    assert actor.http.head(path).status_code == actor.http.get(path).status_code == 200


def test_it_is_known_by_its_words_and_its_version(actor: Server) -> None:
    assert actor.http.get("/").text == "Ollama is running"
    version = actor.http.get("/api/version").json()["version"]
    assert version == API_VERSION
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)  # below, VS Code's Copilot does not talk to it


# ---- vectors
def test_vectors_of_texts(actor: Server) -> None:
    for given, vectors in (("four", [[4.0, 0.5]]), (["four", "sixsix"], [[4.0, 0.5], [6.0, 0.5]])):
        made = actor.http.post("/api/embed", json={"model": "actor:latest", "input": given, "truncate": True}).json()
        assert (made["model"], made["embeddings"]) == ("actor:latest", vectors)
        assert made["prompt_eval_count"] == sum(int(vector[0]) for vector in vectors)
        assert made["total_duration"] > 0
    old = actor.http.post("/api/embeddings", json={"model": "actor", "prompt": "four"}).json()
    assert old == {"embedding": [4.0, 0.5]}


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        ("/api/embed", {}, "embeddings"),
        ("/api/embed", {"input": ""}, "embeddings"),
        ("/api/embed", {"input": []}, "embeddings"),
        ("/api/embeddings", {"prompt": ""}, "embedding"),
    ],
)
def test_no_text_has_no_vector(actor: Server, path: str, asked: Any, field: str) -> None:
    assert actor.http.post(path, json=asked).json()[field] == []


# ---- refusals
MANY_CALLS = {"role": "assistant", "tool_calls": [{"function": {"name": "weather"}}] * 129}


@pytest.mark.parametrize(
    ("path", "asked", "message"),
    [
        ("/api/chat", {"options": {"temperature": "hot"}}, "options.temperature: "),
        ("/api/chat", {"options": {"temperature": 0.0001}}, "temperature must be"),
        ("/api/chat", {"options": {"mirostat": 1}}, "options.mirostat: this server has no such sampler"),
        ("/api/chat", {"messages": [{**said("x")[0], "images": ["aGk="]}]}, "messages.0: this model reads no images"),
        ("/api/chat", {"messages": [MANY_CALLS]}, "messages.0.tool_calls: "),
        ("/api/chat", {"messages": said("refuse messages none")}, "messages: the script refuses this"),
        ("/api/generate", {"prompt": "refuse messages none"}, "prompt: the script refuses this"),
        ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role: "),
        ("/api/chat", {"format": "poem"}, "format: "),
        ("/api/chat", {"think": "loudly"}, "think: "),
        ("/api/chat", {"tools": [{"type": "browser", "function": {"name": "x"}}]}, "'browser'"),
        ("/api/generate", {"images": ["aGk="]}, "prompt: this model reads no images"),
        ("/api/generate", {"images": ["aGk="], "raw": True}, "cannot be combined with raw or suffix"),
        ("/api/generate", {"template": "{{ .Prompt }}"}, "raw: true"),
        ("/api/generate", {"context": [1, 2]}, "/api/chat"),
        ("/api/generate", {"raw": True, "system": "Be brief."}, "system cannot be"),
        ("/api/generate", {"prompt": "refuse suffix none"}, "the script refuses this"),
        ("/api/embed", {"input": "refuse"}, "the script refuses this"),
        ("/api/embed", {"input": "x", "dimensions": 3}, "dimensions"),
        ("/api/embed", {"input": 3}, "input: "),
    ],
)
def test_what_is_refused_is_one_text_that_names_the_place(actor: Server, path: str, asked: Any, message: str) -> None:
    given = {"/api/chat": {"messages": said("say x")}, "/api/generate": {"prompt": "say x"}}.get(path, {})
    answer = actor.http.post(path, json=given | asked)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert message in answer.json()["error"]


def test_what_is_too_long_begins_with_the_words_by_which_clients_know_it(typist: Server) -> None:
    long = "x" * 20_000
    for path, asked in (("/api/chat", {"messages": said(long)}), ("/api/generate", {"prompt": long})):
        answer = typist.http.post(path, json=asked)
        assert answer.status_code == 400
        assert answer.json()["error"].startswith("this model's maximum context length is ")


def test_switches_that_are_off_are_nothing(actor: Server) -> None:
    off: dict[str, Any] = {"images": [], "template": "", "context": [], "suffix": "", "raw": False, "format": ""}
    assert generate(actor, "say x", stream=False, **off).json()["response"] == "x"


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate", "/api/show", "/api/embed", "/api/embeddings"])
@pytest.mark.parametrize("asked", [{"messages": said("x"), "prompt": "x", "input": "x"}, {}])
def test_unknown_models_are_not_found(actor: Server, path: str, asked: dict[str, Any]) -> None:
    answer = actor.http.post(path, json={"model": "llama3", **asked})
    assert answer.status_code == 404
    assert "no model 'llama3'" in answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", f"/api/{verb}") for verb in ("pull", "push", "create", "copy", "blobs/sha256:0")),
        *(("DELETE", "/api/delete"), ("HEAD", "/api/blobs/sha256:0")),
    ],
)
def test_nothing_comes_or_goes_by_this_api(actor: Server, method: str, path: str) -> None:
    answer = actor.http.request(method, path)
    assert answer.status_code == 403
    if method != "HEAD":
        assert "`eaglelocal pull`" in answer.json()["error"] and "`eaglelocal rm`" in answer.json()["error"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/api/nothing", 404), ("GET", "/api/chat", 405)])
def test_whatever_is_refused_here_has_the_shape(actor: Server, method: str, path: str, status: int) -> None:
    answer = actor.http.request(method, path)
    assert (answer.status_code, type(answer.json()["error"])) == (status, str)


def test_a_failure_in_the_stream_is_a_line(actor: Server) -> None:
    first, last = lines_of(chat(actor, "say so\nsleep 0.2\nfail full"))
    assert first["message"]["content"] == "so"
    assert last == {"error": "the cache has no room"}


def test_a_stream_with_nothing_to_tell_is_kept_up_by_lines_of_json() -> None:
    with served(directed(limits=ServerLimits(ping_s=0.05))) as server:
        *parts, last = lines_of(chat(server, "say a\nnothing 20 0.02\nsay b"))
    texts = [part["message"]["content"] for part in parts]
    assert ("".join(texts), last["done"]) == ("ab", True)
    assert "" in texts


def test_doors_are_the_same_and_speak_its_shape() -> None:
    with served(directed(access=Access(keys=ApiKeys((("anna", KEY),))))) as server:
        for path in ("/", "/api/tags", "/api/version"):
            refused = server.http.get(path)
            assert refused.status_code == 401
            if path != "/":
                assert "API key" in refused.json()["error"]
            assert server.http.get(path, headers={"Authorization": f"Bearer {KEY}"}).status_code == 200


def test_foreign_pages_and_names_are_refused_whatever_the_type_of_the_body(actor: Server) -> None:
    headers = {"Origin": "https://evil.example", "content-type": "text/plain"}
    answer = actor.http.post("/api/generate", content=b'{"prompt": "say x"}', headers=headers)
    assert (answer.status_code, "--cors-origins" in answer.json()["error"]) == (403, True)
    rebound = exchange(actor.port, request("/api/tags", method="GET", host="evil.example"))
    assert (rebound.status, "--allowed-hosts" in json.loads(rebound.body)["error"]) == (421, True)


def test_the_figures_of_a_model_that_is_not_loaded_come_from_its_file(tmp_path: Path) -> None:
    path = write_target(tmp_path / "tiny-Q8_0.gguf", TargetShape())
    plans = {str(path): Plan(target=path, target_label="tiny"), "gone": Plan(target=tmp_path / "gone", target_label="")}
    models = ModelManager([str(path), "gone", "unknown"], ScriptedLoader().load, find_plan=plans.get)
    file = find_model_file(models, "tiny-Q8_0.gguf")
    assert file is not None and file.size_bytes == path.stat().st_size
    header = read_header(path)
    assert file.num_parameters == sum(tensor.num_elements for tensor in header.tensors.values())
    details = model_details("tiny", None, file)
    assert details.family == header.architecture and details.parameter_size == format_parameters(file.num_parameters)
    assert details.quantization_level == file.quantization == "Q8_0"
    assert find_model_file(models, "gone") is None and find_model_file(models, "unknown") is None
