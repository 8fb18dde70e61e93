"""End-to-end tests: OpenAI's client, the server, the engine, llama.cpp, the embedded model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from doubles.running_server import Server, Setup, served

from eaglelocal.core.run_options import RunOptions
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.preparation.decision import resolve

QUESTION: list[Any] = [{"role": "user", "content": "What is acceptance length?"}]
CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "count": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "count"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": CITY}}


@pytest.fixture(scope="module")
def demo() -> Iterator[Server]:
    plan = resolve(RunOptions(target="demo@native", parallel=2), on_progress=lambda fraction, what: None)
    defaults = SamplingParams(temperature=0.0, max_tokens=64)
    with served(
        Setup(plans={"demo": plan}, builder="eaglelocal.loading.engine_builder:build", defaults=defaults)
    ) as server:
        yield server


def fits(given: object) -> bool:
    return (
        isinstance(given, dict)
        and set(given) == {"city", "count"}
        and given["city"] in ("Rome", "Oslo")
        and given["count"] in range(1, 10)
    )


def test_an_answer_bound_to_a_schema_fits_it(demo: Server) -> None:
    bound: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    for seed in range(3):
        answer = demo.openai().chat.completions.create(
            model="demo", messages=QUESTION, response_format=bound, temperature=1.0, seed=seed
        )
        assert fits(json.loads(answer.choices[0].message.content or ""))
        assert answer.choices[0].finish_reason == "stop"


def test_the_family_of_the_model_is_reported(demo: Server) -> None:
    result = demo.http.post("/api/show", json={"model": "demo"}).json()
    assert result["details"]["family"] == result["model_info"]["general.architecture"] == "llama"


def test_a_required_tool_is_called_with_arguments_that_fit(demo: Server) -> None:
    answer = demo.openai().chat.completions.create(
        model="demo", messages=QUESTION, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "weather"
    assert fits(json.loads(call.function.arguments))
    assert answer.choices[0].finish_reason == "tool_calls"


def test_tokens_of_logprobs_are_the_text(demo: Server) -> None:
    answer = demo.openai().chat.completions.create(
        model="demo", messages=QUESTION, logprobs=True, top_logprobs=2, max_tokens=12
    )
    result = answer.choices[0].logprobs
    assert result is not None
    assert "".join(entry.token for entry in result.content or ()) == answer.choices[0].message.content
    assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in result.content or ())


def test_the_next_turn_of_a_chat_reads_only_what_is_new(demo: Server) -> None:
    ask = demo.openai().chat.completions.create
    first = ask(model="demo", messages=QUESTION)
    said = {"role": "assistant", "content": first.choices[0].message.content}
    again = ask(model="demo", messages=[*QUESTION, said, {"role": "user", "content": "And a draft?"}])
    assert again.usage is not None and again.usage.prompt_tokens_details is not None
    assert (again.usage.prompt_tokens_details.cached_tokens or 0) >= (first.usage.prompt_tokens if first.usage else 99)


def test_a_stop_sequence_is_reported_to_anthropics_client(demo: Server) -> None:
    answer = demo.anthropic().messages.create(
        model="demo", max_tokens=60, messages=QUESTION, stop_sequences=["average"]
    )
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "average")


def test_an_answer_that_was_begun_goes_on_through_either_client(demo: Server) -> None:
    whole = demo.openai().chat.completions.create(model="demo", messages=QUESTION).choices[0].message.content or ""
    begun = whole[: whole.index(" ", len(whole) // 2)]
    messages: list[Any] = [*QUESTION, {"role": "assistant", "content": begun}]
    rest = demo.openai().chat.completions.create(model="demo", messages=messages).choices[0].message.content or ""
    assert rest and begun + rest == whole
    answer = demo.anthropic().messages.create(model="demo", max_tokens=64, messages=messages)
    assert answer.content[0].text == rest  # type: ignore[union-attr]


def test_what_is_counted_is_what_is_prompted(demo: Server) -> None:
    counted = demo.anthropic().messages.count_tokens(model="demo", messages=QUESTION, system="Be brief.")
    usage = demo.anthropic().messages.create(model="demo", max_tokens=1, messages=QUESTION, system="Be brief.").usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_template_written_by_the_client_is_read_as_one(demo: Server) -> None:
    """The raw prompt is what the chat's template writes, control tokens included."""
    prompt = f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    raw = demo.openai().completions.create(model="demo", prompt=prompt, max_tokens=64)
    chat = demo.openai().chat.completions.create(model="demo", messages=QUESTION)
    assert raw.choices[0].text == chat.choices[0].message.content
    assert raw.usage is not None and chat.usage is not None
    assert raw.usage.prompt_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_strict_tools_and_odd_ones_side_by_side(demo: Server, choice: Any) -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)", "format": "password"}}}
    strict: Any = {"type": "function", "function": {**TOOL["function"], "strict": True}}
    tools = [strict, {"type": "function", "function": {"name": "odd", "parameters": odd}}]
    answer = demo.openai().chat.completions.create(model="demo", messages=QUESTION, tools=tools, tool_choice=choice)
    for call in answer.choices[0].message.tool_calls or ():
        assert call.type == "function"
        given = json.loads(call.function.arguments)
        assert fits(given) if call.function.name == "weather" else isinstance(given, dict)
    refused: Any = {"type": "function", "function": {"name": "odd", "parameters": odd, "strict": True}}
    with pytest.raises(openai.BadRequestError, match="odd, a strict tool, cannot be bound") as caught:
        demo.openai().chat.completions.create(model="demo", messages=QUESTION, tools=[refused], tool_choice=choice)
    assert caught.value.param == "tools"


# ---- llama-server's own routes
def test_tokens_and_text_of_the_real_vocabulary(demo: Server) -> None:
    text = "What is é?<|im_end|>"
    result = demo.http.post("/tokenize", json={"content": text, "with_pieces": True}).json()["tokens"]
    assert result[-1] == {"id": result[-1]["id"], "piece": "<|im_end|>"}
    raw = b"".join(piece.encode() if isinstance(piece := one["piece"], str) else bytes(piece) for one in result)
    assert raw.decode() == text
    tokens = [one["id"] for one in result]
    assert demo.http.post("/detokenize", json={"tokens": tokens}).json()["content"] == text
    spelled = demo.http.post("/tokenize", json={"content": text, "parse_special": False}).json()["tokens"]
    assert len(spelled) > len(tokens)


def test_a_chat_in_two_calls_of_llama_servers(demo: Server) -> None:
    """Its template, and what goes on behind it."""
    prompt = demo.http.post("/apply-template", json={"messages": QUESTION}).json()["prompt"]
    assert prompt == f"<|im_start|>user\n{QUESTION[0]['content']}<|im_end|>\n<|im_start|>assistant\n"
    result = demo.http.post("/completion", json={"prompt": prompt, "return_tokens": True}).json()
    chat = demo.openai().chat.completions.create(model="demo", messages=QUESTION)
    assert result["content"] == chat.choices[0].message.content
    assert result["prompt"] == prompt
    assert len(result["tokens"]) == result["tokens_predicted"]
    props = demo.http.get("/props").json()
    assert "<|im_start|>" in props["chat_template"] and props["eos_token"] == "<|im_end|>"


def test_prompts_prefilled_in_advance_speed_up_the_question(demo: Server) -> None:
    prompt = "In advance: " + QUESTION[0]["content"] * 5
    read = demo.http.post("/completion", json={"prompt": prompt, "n_predict": 0}).json()
    assert (read["content"], read["tokens_predicted"]) == ("", 0)
    then = demo.http.post("/completion", json={"prompt": prompt, "n_predict": 4}).json()
    assert then["timings"]["prompt_n"] <= 2 < then["tokens_evaluated"]


def test_the_embedded_model_fills_no_gaps(demo: Server) -> None:
    answer = demo.http.post("/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "not_supported")
