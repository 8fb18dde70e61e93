"""Chat completions through OpenAI's own client: requests reach the engine, answers come in OpenAI's format."""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import openai
import pytest
from doubles.directed_server_engine import CACHED_TOKENS, STATS
from doubles.running_server import Server
from doubles.server_engine import N_CTX
from openai.types.shared.reasoning_effort import ReasoningEffort

from eaglelocal.core.thinking import Thinking
from eaglelocal.server.request_reader import read_thinking
from eaglelocal.server.schema import ChatBody

HELLO: list[Any] = [{"role": "user", "content": "Say hello."}]


def run_script(script: str) -> list[Any]:
    return [{"role": "user", "content": script}]


def seen(server: Server, **asked: Any) -> dict[str, Any]:
    """The request as it reached the engine."""
    answer = server.openai().chat.completions.create(model="", messages=run_script("show"), **asked)
    found: dict[str, Any] = json.loads(answer.choices[0].message.content or "")
    return found


# ---- the real engine
def test_a_whole_answer(typist: Server) -> None:
    answer = typist.openai().chat.completions.create(model="typist", messages=HELLO, max_tokens=20)
    assert (answer.object, answer.model, len(answer.choices)) == ("chat.completion", "typist", 1)
    assert answer.choices[0].finish_reason == "length"
    assert len(answer.choices[0].message.content or "") == 20
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20


def test_a_stream_has_the_same_text(typist: Server) -> None:
    ask = typist.openai().chat.completions.create
    whole = ask(model="typist", messages=HELLO, temperature=0, max_tokens=40)
    chunks = list(ask(model="typist", messages=HELLO, temperature=0, max_tokens=40, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_a_stream_says_what_was_drafted_where_that_is_asked_for(typist: Server) -> None:
    """Each chunk holds tokens of one kind; together they are the answer."""
    ask = typist.openai().chat.completions.create
    asked: dict[str, Any] = {"model": "typist", "messages": HELLO, "temperature": 0, "max_tokens": 40}
    whole = ask(**asked, extra_body={"spec": 4})
    chunks = list(ask(**asked, stream=True, extra_body={"tell_drafted": True, "spec": 4}))
    flags = [flag for chunk in chunks for flag in (chunk.model_extra or {}).get("drafted", [])]
    assert all(len(set((chunk.model_extra or {}).get("drafted", []))) <= 1 for chunk in chunks)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert whole.usage is not None and whole.usage.completion_tokens_details is not None
    assert len(flags) == whole.usage.completion_tokens
    assert sum(flags) == whole.usage.completion_tokens_details.accepted_prediction_tokens


@pytest.mark.parametrize(
    ("path", "given"), [("/v1/chat/completions", "messages"), ("/v1/completions", "prompt"), ("/completion", "prompt")]
)
def test_a_stream_tells_how_much_of_its_prompt_is_read_where_that_is_asked(
    typist: Server, path: str, given: str
) -> None:
    long = "say hello and then goodbye " * 10
    prompt = run_script(long) if given == "messages" else long
    body = {given: prompt, "max_tokens": 3, "stream": True, "cache_prompt": False}
    for _ in range(50):  # a busy server may hear of the end before it tells of the beginning
        lines = typist.http.post(path, json={**body, "return_progress": True}).text.split("\n\n")
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
        if found := [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]:
            break
    assert found
    assert [one["processed"] for one in found] == sorted({one["processed"] for one in found})
    assert all(0 <= one["processed"] < one["total"] and one["cache"] == 0 for one in found)
    assert "prompt_progress" not in typist.http.post(path, json=body).text


def test_usage_of_a_stream_comes_when_it_is_asked_for(typist: Server) -> None:
    stream = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, max_tokens=9, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 9
    assert all(chunk.choices for chunk in chunks)


def test_asyncio_clients_are_served_side_by_side(typist: Server) -> None:
    async def one(client: openai.AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="typist", messages=HELLO, max_tokens=30, seed=seed, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{typist.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(one(client, seed % 4) for seed in range(12)))

    texts = asyncio.run(all_of_them())
    assert [len(text) for text in texts] == [30] * 12
    assert texts[:4] == texts[4:8] == texts[8:]
    assert len(set(texts)) == 4


def test_several_choices_differ_and_repeat_with_their_seed(typist: Server) -> None:
    def ask() -> list[str | None]:
        answer = typist.openai().chat.completions.create(
            model="typist", messages=HELLO, n=3, seed=7, max_tokens=24, temperature=1
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 72
        return [choice.message.content for choice in answer.choices]

    texts = ask()
    assert len(set(texts)) == 3
    assert ask() == texts


def test_a_seed_of_minus_one_means_random(typist: Server) -> None:
    ask = typist.openai().chat.completions.create
    answers = [ask(model="typist", messages=HELLO, n=2, seed=-1, max_tokens=24, temperature=1) for _ in range(2)]
    assert len({choice.message.content for answer in answers for choice in answer.choices}) == 4


def test_several_streamed_choices_are_distinguished(typist: Server) -> None:
    texts: dict[int, str] = {}
    stream = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, n=2, seed=7, max_tokens=24, temperature=1, stream=True
    )
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    whole = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, n=2, seed=7, max_tokens=24, temperature=1
    )
    assert texts == {choice.index: choice.message.content for choice in whole.choices}


@pytest.mark.parametrize("is_list", [False, True])
def test_stop_ends_the_answer_before_it(typist: Server, is_list: bool) -> None:
    ask = typist.openai().chat.completions.create
    text = ask(model="typist", messages=HELLO, temperature=0, max_tokens=40).choices[0].message.content or ""
    stop = text[10:13]
    answer = ask(
        model="typist", messages=HELLO, temperature=0, max_tokens=40, stop=["never", stop] if is_list else stop
    )
    assert answer.choices[0].message.content == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_log_probabilities_of_every_token(typist: Server) -> None:
    answer = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, max_tokens=12, temperature=0, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert len(entries) == 12
    for entry in entries:
        assert entry.logprob < 0
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].logprob == entry.logprob  # greedy
        logprobs = [top.logprob for top in entry.top_logprobs]
        assert logprobs == sorted(logprobs, reverse=True)


def test_a_bias_decides(typist: Server) -> None:
    answer = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, max_tokens=8, temperature=0, logit_bias={"35": 100}
    )
    assert answer.choices[0].message.content == "A" * 8


def test_penalties_forbid_repetition(typist: Server) -> None:
    answer = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, max_tokens=30, temperature=0, presence_penalty=2, frequency_penalty=2,
        logit_bias={str(token): 10 for token in range(34, 70)}, extra_body={"repeat_penalty": 1.2},
    )  # fmt: skip
    text = answer.choices[0].message.content or ""
    assert len(set(text)) > len(text) * 0.8


def test_top_k_of_one_is_greedy(typist: Server) -> None:
    ask = typist.openai().chat.completions.create
    greedy = ask(model="typist", messages=HELLO, max_tokens=20, temperature=0)
    first = ask(model="typist", messages=HELLO, max_tokens=20, temperature=2, extra_body={"top_k": 1})
    sure = ask(model="typist", messages=HELLO, max_tokens=20, temperature=1, extra_body={"min_p": 1.0})
    texts = {answer.choices[0].message.content for answer in (greedy, first, sure)}
    assert len(texts) == 1


def test_what_was_accepted_of_drafts_is_reported(typist: Server) -> None:
    answer = typist.openai().chat.completions.create(model="typist", messages=HELLO, max_tokens=30, temperature=0)
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens or 0) > 10
    timings: dict[str, int] = answer.model_extra["timings"]  # type: ignore[index]
    assert timings["draft_n_accepted"] == details.accepted_prediction_tokens
    assert timings["draft_n"] == details.accepted_prediction_tokens + (details.rejected_prediction_tokens or 0)


def test_a_prompt_asked_twice_comes_from_the_cache(typist: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "Once upon a time there was a cache."}]
    for _ in range(5):  # there are four slots
        answer = typist.openai().chat.completions.create(model="typist", messages=messages, max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert 0 < (answer.usage.prompt_tokens_details.cached_tokens or 0) < answer.usage.prompt_tokens


def test_a_prompt_is_computed_anew_where_that_is_asked_for(typist: Server) -> None:
    messages: list[Any] = [{"role": "user", "content": "Twice upon a time there was a cache."}]
    for _ in range(5):
        answer = typist.openai().chat.completions.create(
            model="typist", messages=messages, max_tokens=2, extra_body={"cache_prompt": False}
        )
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_a_prompt_that_is_too_long_is_the_callers_error(typist: Server) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        typist.openai().chat.completions.create(model="typist", messages=run_script("long " * 200))
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")


def test_a_limit_beyond_the_context_is_the_room_that_is_left(typist: Server) -> None:
    ask = typist.openai().chat.completions.create
    for limit in (100_000, -1):
        answer = ask(model="typist", messages=HELLO, max_tokens=limit, extra_body={"ignore_eos": True})
        assert answer.usage is not None and answer.usage.total_tokens == N_CTX
        assert answer.choices[0].finish_reason == "length"


# ---- what reaches the engine
def test_messages_of_every_role_reach_the_engine(actor: Server) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Two "}, {"type": "text", "text": "parts"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "I need it."},
        {"role": "tool", "tool_call_id": "call_1", "content": "12"},
        {"role": "user", "content": "show"},
    ]
    tools: list[Any] = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    answer = actor.openai().chat.completions.create(model="", messages=messages, tools=tools)
    request = json.loads(answer.choices[0].message.content or "")
    system, user, assistant, tool, _ = request["messages"]
    assert (system["role"], system["content"]) == ("system", "Be brief.")
    assert user["content"] == "Two parts"
    assert assistant["reasoning"] == "I need it."
    assert assistant["tool_calls"] == [{"id": "call_1", "name": "weather", "arguments": '{"city": "Rome"}'}]
    assert (tool["role"], tool["tool_call_id"], tool["content"]) == ("tool", "call_1", "12")
    assert request["tools"] == [
        {"name": "weather", "description": "", "parameters": '{"type": "object"}', "is_strict": False}
    ]


CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}


@pytest.mark.parametrize(
    ("asked", "field", "value"),
    [
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, "max_tokens", 9),
        ({"max_tokens": -1}, "max_tokens", None),
        ({"max_tokens": None}, "max_tokens", 64),
        ({"max_tokens": 7, "max_completion_tokens": -1}, "max_tokens", None),
        ({"extra_body": {"n_predict": 7}}, "max_tokens", 7),
        ({"extra_body": {"n_predict": -1}}, "max_tokens", None),
        ({"max_tokens": 9, "extra_body": {"n_predict": 7}}, "max_tokens", 9),
        ({"max_completion_tokens": 9, "extra_body": {"n_predict": 7}}, "max_tokens", 9),
        ({"temperature": 0.25}, "temperature", 0.25),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"seed": 2**40}, "seed", 2**40 % 2**32),
        ({"seed": -1}, "seed", None),
        ({"seed": -2}, "seed", 2**32 - 2),
        ({"stop": "end"}, "stop", ["end"]),
        ({"stop": ["a", "b"]}, "stop", ["a", "b"]),
        ({"stop": []}, "stop", []),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": True, "top_logprobs": 5}, "logprobs", 5),
        ({"logit_bias": {"3": -1.5, "1": 2}}, "logit_bias", [[3, -1.5], [1, 2.0]]),
        ({"extra_body": {"logit_bias": []}}, "logit_bias", []),
        ({"extra_body": {"logit_bias": [[3, -1.5], [1, False]]}}, "logit_bias", [[3, -1.5], [1, -100.0]]),
        ({"extra_body": {"n_predict": 0}}, "max_tokens", 0),
        ({"extra_body": {"ignore_eos": True}}, "ignore_eos", True),
        ({"extra_body": {"top_k": 5}}, "top_k", 5),
        ({"extra_body": {"top_k": -1}}, "top_k", 0),
        ({"extra_body": {"min_p": 0.1}}, "min_p", 0.1),
        ({"extra_body": {"typical_p": 0.9}}, "typical_p", 0.9),
        ({"extra_body": {"repetition_penalty": 1.1}}, "repeat_penalty", 1.1),
        ({"extra_body": {"repeat_penalty": 1.1, "repeat_last_n": 5}}, "repeat_last_n", 5),
        ({"extra_body": {"repeat_last_n": 0}}, "repeat_last_n", 0),
        ({"extra_body": {"repeat_last_n": -1}}, "repeat_last_n", 1_000_000),
        ({"extra_body": {"max_tokens": 7.0}}, "max_tokens", 7),
        ({"extra_body": {"max_tokens": -1.0}}, "max_tokens", None),
        ({"extra_body": {"max_completion_tokens": 1e1}}, "max_tokens", 10),
        ({"extra_body": {"top_k": 40.0}}, "top_k", 40),
        ({"extra_body": {"seed": 1.0}}, "seed", 1),
        ({"extra_body": {"temperature": 1.0}}, "temperature", 1.0),
        ({"extra_body": {"logprobs": True, "top_logprobs": 2.0}}, "logprobs", 2),
        ({"extra_body": {"top_logprobs": 0}}, "logprobs", None),
        ({"extra_body": {"logprobs": False, "top_logprobs": 0}}, "logprobs", None),
        ({"stop": ""}, "stop", []),
        ({"stop": ["", "a", ""]}, "stop", ["a"]),
        ({"stop": ["ab"] * 128}, "stop", ["ab"] * 128),
    ],
)
def test_sampling_reaches_the_engine(actor: Server, asked: dict[str, Any], field: str, value: object) -> None:
    assert seen(actor, **asked)["params"][field] == value


def test_a_number_of_choices_may_be_written_with_a_point(actor: Server) -> None:
    assert len(actor.ask("say x", n=2.0).json()["choices"]) == 2


@pytest.mark.parametrize("user", ["me", 5, 1.5, {"id": 1}, None, [], "x" * 500])
def test_whoever_the_user_is_is_forgotten(actor: Server, user: object) -> None:
    assert actor.ask("say x", user=user).status_code == 200


@pytest.mark.parametrize(
    ("asked", "reuses"), [({}, True), ({"cache_prompt": True}, True), ({"cache_prompt": False}, False)]
)
def test_whether_a_cache_may_be_used_reaches_the_engine(actor: Server, asked: Any, reuses: bool) -> None:
    assert seen(actor, extra_body=asked)["reuses_cache"] is reuses


def test_what_neither_server_nor_caller_says_is_left_to_the_model(actor: Server) -> None:
    assert seen(actor, temperature=0.2)["params"]["left_open"] == ["top_p"]
    assert seen(actor, top_p=0.5)["params"]["left_open"] == ["temperature"]


def test_what_is_not_said_is_as_the_server_was_started(actor: Server) -> None:
    params = seen(actor)["params"]
    assert (params["temperature"], params["max_tokens"], params["seed"]) == (0.7, 64, None)


@pytest.mark.parametrize(
    ("given", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, ("json_object", "")),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}},
            ("json_schema", '{"type": "integer"}'),
        ),
        ({"type": "json_schema", "schema": {"type": "integer"}}, ("json_schema", '{"type": "integer"}')),
        ({"type": "json_object", "schema": {"type": "integer"}}, ("json_schema", '{"type": "integer"}')),
        ({"type": "json_object", "schema": {}}, ("json_object", "")),
        ({"type": "regex", "regex": "[a-z]+"}, ("regex", "[a-z]+")),
        ({"type": "grammar", "grammar": 'start: "a"'}, ("lark", 'start: "a"')),
    ],
)
def test_response_formats_reach_the_engine(
    actor: Server, given: dict[str, Any], constraint: tuple[str, str] | None
) -> None:
    found = seen(actor, extra_body={"response_format": given})["constraint"]
    assert (found and (found["syntax"], found["source"])) == constraint


@pytest.mark.parametrize(
    ("said", "is_strict"),
    [({}, False), ({"strict": None}, False), ({"strict": False}, False), ({"strict": True}, True)],
)
def test_how_strict_a_format_is_reaches_the_engine(actor: Server, said: dict[str, Any], is_strict: bool) -> None:
    given = {"type": "json_schema", "json_schema": {"name": None, "schema": {}} | said}
    assert seen(actor, extra_body={"response_format": given})["constraint"]["is_strict"] is is_strict


@pytest.mark.parametrize(
    ("spec", "drafting", "length"), [("off", "off", 0), ("auto", "auto", 0), (5, "fixed", 5), (0, "off", 0)]
)
def test_spec_reaches_the_engine(actor: Server, spec: object, drafting: str, length: int) -> None:
    assert seen(actor, extra_body={"spec": spec})["spec"] == {"drafting": drafting, "num_draft_tokens": length}


def test_template_values_reach_the_engine_as_json(actor: Server) -> None:
    request = seen(actor, extra_body={"chat_template_kwargs": {"enable_thinking": False, "deep": {"a": [1, "ü"]}}})
    assert dict(request["template_values"]) == {"enable_thinking": "false", "deep": '{"a": [1, "ü"]}'}


@pytest.mark.parametrize(
    ("choice", "use", "name"),
    [
        ("auto", "auto", ""),
        ("none", "none", ""),
        ("required", "required", ""),
        ("any", "required", ""),
        ({"type": "auto"}, "auto", ""),
        ({"type": "none"}, "none", ""),
        ({"type": "any"}, "required", ""),
        ({"type": "required"}, "required", ""),
        ({"type": "function", "function": {"name": "weather"}}, "required", "weather"),
    ],
)
def test_tool_choices_reach_the_engine(actor: Server, choice: Any, use: str, name: str) -> None:
    request = seen(actor, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
    assert request["tool_choice"] == {"use": use, "name": name, "parallel": False}


@pytest.mark.parametrize(
    ("choice", "parallel"), [("required", True), ({"type": "function", "function": {"name": "weather"}}, False)]
)
def test_a_named_function_is_called_exactly_once(actor: Server, choice: Any, parallel: bool) -> None:
    """So OpenAI says, and clients that make objects of calls refuse two."""
    request = seen(actor, tools=TOOLS, tool_choice=choice, parallel_tool_calls=True)
    assert request["tool_choice"]["parallel"] is parallel


@pytest.mark.parametrize(("mode", "use"), [("auto", "auto"), ("required", "required")])
def test_only_allowed_tools_are_offered(actor: Server, mode: Any, use: str) -> None:
    tools: Any = [{"type": "function", "function": {"name": name}} for name in ("a", "b", "c")]
    choice: Any = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tools[2], tools[0]]}}
    request = seen(actor, tools=tools, tool_choice=choice)
    assert [tool["name"] for tool in request["tools"]] == ["a", "c"]
    assert (request["tool_choice"]["use"], request["tool_choice"]["name"]) == (use, "")


@pytest.mark.parametrize(
    "allowed", [None, {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}]
)
def test_what_is_allowed_must_be_given(actor: Server, allowed: object) -> None:
    answer = actor.ask("say x", tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("tool_choice.allowed_tools")


def test_strict_tools_reach_the_engine(actor: Server) -> None:
    tools: Any = [{"type": "function", "function": {"name": name, "strict": name == "a"}} for name in "ab"]
    assert [tool["is_strict"] for tool in seen(actor, tools=tools)["tools"]] == [True, False]


@pytest.mark.parametrize("effort", get_args(get_args(ReasoningEffort)[0]))
def test_every_effort_that_the_client_knows_reaches_the_engine(actor: Server, effort: Any) -> None:
    request = seen(actor, reasoning_effort=effort)
    assert (request["params"]["thinking"]["effort"], request["template_values"]) == (effort, [])


@pytest.mark.parametrize(
    "name", ["thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget"]
)
@pytest.mark.parametrize(("given", "budget"), [(512, 512), (0, 0), (-1, None), (None, None)])
def test_a_budget_has_the_names_of_other_servers(
    actor: Server, name: str, given: int | None, budget: int | None
) -> None:
    body = {name: given, "reasoning_budget_message": "Enough."}
    thinking = seen(actor, extra_body=body)["params"]["thinking"]
    assert thinking == {"effort": "", "budget": budget, "message": "Enough."}


@pytest.mark.parametrize(
    ("usual", "asked", "thinking"),
    [
        (Thinking(budget=0), {"reasoning_effort": "high"}, Thinking("high")),
        (Thinking(budget=0), {"thinking_budget": 9}, Thinking(budget=9)),
        (Thinking(budget=0), {"chat_template_kwargs": {"enable_thinking": True}}, Thinking()),
        (Thinking(budget=0), {"temperature": 1}, Thinking(budget=0)),
        (Thinking("none"), {"thinking_budget": -1}, Thinking()),
        (Thinking("low"), {"thinking_budget": -1}, Thinking()),
        (Thinking("low"), {"thinking_budget": 9}, Thinking("low", 9)),
        (Thinking(budget=9), {"reasoning_effort": "high"}, Thinking("high", 9)),
        (Thinking(budget=9), {"reasoning_effort": "none"}, Thinking("none", 9)),
    ],
)
def test_a_request_overrides_what_the_server_has(usual: Thinking, asked: dict[str, Any], thinking: Thinking) -> None:
    body = ChatBody.model_validate({"messages": HELLO, **asked})
    assert read_thinking(body, usual) == thinking


def test_an_answer_that_repeated_itself_has_a_warning_and_stops(actor: Server) -> None:
    raw = actor.openai().chat.completions.with_raw_response.create(model="", messages=run_script("loop tea tea"))
    assert raw.headers["x-eaglelocal-warning"] == "the answer repeated itself and was stopped (--stop-loops)"
    assert raw.parse().choices[0].finish_reason == "stop"


@pytest.mark.parametrize("given", [-2, "much", 1.5, 10**12])
def test_other_budgets_are_refused(actor: Server, given: object) -> None:
    with pytest.raises(openai.BadRequestError, match="thinking_budget"):
        seen(actor, extra_body={"thinking_budget": given})


@pytest.mark.parametrize("effort", ["default", "auto", "", None])
def test_the_default_reasoning_effort_has_several_names(actor: Server, effort: object) -> None:
    assert seen(actor, extra_body={"reasoning_effort": effort})["params"]["thinking"]["effort"] == ""


@pytest.mark.parametrize("choice", ["none", "auto", None])
def test_the_older_word_for_a_tool_choice_may_be_said_where_it_says_nothing(actor: Server, choice: object) -> None:
    assert seen(actor, extra_body={"function_call": choice})["tool_choice"]["use"] == "auto"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ({"id": None, "function": {"name": "f", "arguments": "{}"}}, ("", "{}")),
        ({"function": {"name": "f", "arguments": {"a": [1, "ü"]}}}, ("", '{"a": [1, "ü"]}')),
        ({"id": "a", "function": {"name": "f", "arguments": None}}, ("a", "{}")),
        ({"id": "a", "function": {"name": "f", "arguments": '{"cut'}}, ("a", '{"cut')),
        ({"id": "a" * 1024, "function": {"name": "f"}}, ("a" * 1024, "{}")),
        ({"id": "a", "type": None, "function": {"name": "f"}}, ("a", "{}")),
        ({"id": "a", "type": "", "function": {"name": "f"}}, ("a", "{}")),
    ],
)
def test_calls_as_careless_clients_send_them_reach_the_engine(
    actor: Server, call: dict[str, Any], expected: tuple[str, str]
) -> None:
    before: Any = {"role": "assistant", "content": None, "tool_calls": [{"type": "function"} | call]}
    answer = actor.openai().chat.completions.create(model="", messages=[before, *run_script("show")])
    (found,) = json.loads(answer.choices[0].message.content or "")["messages"][0]["tool_calls"]
    assert (found["id"], found["arguments"]) == expected


def test_names_of_tools_may_begin_with_a_servers(actor: Server) -> None:
    tools: Any = [{"type": "function", "function": {"name": name}} for name in ("mcp:files/read", "a.b-c_d", "x::y")]
    assert [tool["name"] for tool in seen(actor, tools=tools)["tools"]] == ["mcp:files/read", "a.b-c_d", "x::y"]


def test_the_result_of_a_call_with_a_long_id_reaches_the_engine(actor: Server) -> None:
    result: Any = {"role": "tool", "tool_call_id": "a" * 1024, "content": "12"}
    answer = actor.openai().chat.completions.create(model="", messages=[result, *run_script("show")])
    assert json.loads(answer.choices[0].message.content or "")["messages"][0]["tool_call_id"] == "a" * 1024


@pytest.mark.parametrize(
    ("asked", "continues"),
    [({}, True), ({"continue_final_message": False}, False), ({"continue_final_message": True}, True)],
)
def test_whether_the_last_message_goes_on_reaches_the_engine(actor: Server, asked: Any, continues: bool) -> None:
    messages: list[Any] = [*run_script("show"), {"role": "assistant", "content": "The answer is ("}]
    answer = actor.openai().chat.completions.create(model="", messages=messages, extra_body=asked)
    assert json.loads(answer.choices[0].message.content or "")["resumes"] is continues


TOOLS: list[Any] = [{"type": "function", "function": {"name": "weather", "description": "of a city"}}]


# ---- what comes out of it
def test_calls_of_tools_whole_and_as_a_round_trip(actor: Server) -> None:
    ask = actor.openai().chat.completions.create
    script = 'say Let me see.\ncall weather {"city": "Rome"}\ncall weather {"city": "Oslo"}'
    answer = ask(model="", messages=run_script(script), tools=TOOLS)
    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    calls = choice.message.tool_calls or []
    assert [(call.id, call.type, call.function.arguments) for call in calls if call.type == "function"] == [
        ("call_0", "function", '{"city": "Rome"}'),
        ("call_1", "function", '{"city": "Oslo"}'),
    ]
    results: list[Any] = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in calls]
    more = ask(model="", messages=[*run_script(script), choice.message, *results, *run_script("show")], tools=TOOLS)  # type: ignore[list-item]
    request = json.loads(more.choices[0].message.content or "")
    assert [call["id"] for call in request["messages"][1]["tool_calls"]] == ["call_0", "call_1"]
    assert [message["tool_call_id"] for message in request["messages"][2:4]] == ["call_0", "call_1"]


def test_an_answer_of_calls_alone_has_no_content(actor: Server) -> None:
    answer = actor.openai().chat.completions.create(model="", messages=run_script("call weather"), tools=TOOLS)
    assert answer.choices[0].message.content is None


def test_calls_are_streamed(actor: Server) -> None:
    stream = actor.openai().chat.completions.create(
        model="",
        messages=run_script('say One moment.\ncall weather {"city": "Rome"}\ncall time'),
        tools=TOOLS,
        stream=True,
    )
    calls: dict[int, list[str]] = {}
    reasons = []
    for chunk in stream:
        choice = chunk.choices[0]
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for call in choice.delta.tool_calls or ():
            assert call.function is not None
            calls.setdefault(call.index, []).append(f"{call.id} {call.function.name} {call.function.arguments}")
    assert calls == {0: ['call_0 weather {"city": "Rome"}'], 1: ["call_1 time {}"]}
    assert reasons == ["tool_calls"]


def test_the_clients_own_stream_helper_gathers_everything(actor: Server) -> None:
    with actor.openai().chat.completions.stream(
        model="", messages=run_script('think It is far.\nsay Wait.\ncall weather {"city": "Rome"}')
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Wait."
    assert (final.choices[0].message.tool_calls or [])[0].function.arguments == '{"city": "Rome"}'


def test_reasoning_is_distinguished(actor: Server) -> None:
    answer = actor.openai().chat.completions.create(model="", messages=run_script("think Hm, well.\nsay Yes."))
    message = answer.choices[0].message
    assert (message.content, message.model_extra["reasoning_content"]) == ("Yes.", "Hm, well. ")  # type: ignore[index]
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 2


def test_reasoning_is_streamed_apart(actor: Server) -> None:
    stream = actor.openai().chat.completions.create(
        model="", messages=run_script("think Hm, well.\nsay Yes."), stream=True
    )
    deltas = [chunk.choices[0].delta for chunk in stream]
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "Hm, well. "
    assert "".join(delta.content or "" for delta in deltas) == "Yes."


def test_a_chunk_of_reasoning_says_how_many_tokens_it_has(actor: Server) -> None:
    stream = actor.openai().chat.completions.create(
        model="", messages=run_script("think Hm, well.\nsay Yes."), stream=True, extra_body={"tell_drafted": True}
    )
    chunks = [chunk for chunk in stream if "reasoning_content" in (chunk.choices[0].delta.model_extra or {})]
    assert sum(len((chunk.model_extra or {})["drafted"]) for chunk in chunks) == 2


def test_log_probabilities_have_text_and_bytes(actor: Server) -> None:
    answer = actor.openai().chat.completions.create(model="", messages=run_script("weigh gut ähm"), logprobs=True)
    assert answer.choices[0].logprobs is not None
    entries = answer.choices[0].logprobs.content or []
    assert [entry.token for entry in entries] == ["gut ", "ähm ", "\N{REPLACEMENT CHARACTER}"]
    assert [bytes(entry.bytes or []) for entry in entries] == [b"gut ", "ähm ".encode(), b"\xc3"]
    assert entries[0].top_logprobs[1].token == "other"


def test_streamed_log_probabilities_are_reported_once(actor: Server) -> None:
    stream = actor.openai().chat.completions.create(
        model="", messages=run_script("weigh gut ähm"), logprobs=True, stream=True
    )
    told_of = [chunk.choices[0].logprobs for chunk in stream]
    tokens = [entry.token for one in told_of if one is not None for entry in one.content or []]
    assert tokens == ["gut ", "ähm ", "\N{REPLACEMENT CHARACTER}"]


def test_figures_are_those_of_the_engine(actor: Server) -> None:
    answer = actor.openai().chat.completions.create(model="", messages=run_script("say one two three"))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("say one two three")
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == CACHED_TOKENS
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.rejected_prediction_tokens == (
        STATS.draft_tokens - STATS.accepted_tokens
    )
    extra = answer.model_extra or {}
    assert (extra["timings"]["draft_n"], extra["timings"]["predicted_per_second"]) == (STATS.draft_tokens, 4.0)
    assert extra["speculation"]["accepted_per_position"] == list(STATS.accepted_per_position)


@pytest.mark.parametrize("count", [1, 3])
def test_the_timings_of_several_choices_are_those_of_all(typist: Server, count: int) -> None:
    """As the usage beside them; the first token of each comes of its prompt, and is in no rate."""
    answer = typist.openai().chat.completions.create(
        model="typist", messages=HELLO, n=count, max_tokens=20, temperature=0, extra_body={"ignore_eos": True}
    )
    timings: dict[str, float] = answer.model_extra["timings"]  # type: ignore[index]
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    accepted = answer.usage.completion_tokens_details.accepted_prediction_tokens or 0
    rejected = answer.usage.completion_tokens_details.rejected_prediction_tokens or 0
    assert accepted > 10 * count
    assert (timings["draft_n"], timings["draft_n_accepted"]) == (accepted + rejected, accepted)
    assert timings["predicted_n"] == answer.usage.completion_tokens == 20 * count
    run_script: dict[str, int] = answer.model_extra["speculation"]  # type: ignore[index]
    assert (run_script["draft_tokens"], run_script["accepted_tokens"]) == (accepted + rejected, accepted)
    rate = 19 * count / timings["predicted_ms"] * 1000
    assert timings["predicted_per_second"] == pytest.approx(rate, rel=0.01)


def test_unicode_passes_unharmed(actor: Server) -> None:
    text = "grüß-𝔊ott-\u200d-👩‍👩‍👧-\x00-\u2028"
    answer = actor.openai().chat.completions.create(model="", messages=run_script(f"say {text}"))
    assert answer.choices[0].message.content == text
    stream = actor.openai().chat.completions.create(model="", messages=run_script(f"say {text}"), stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
