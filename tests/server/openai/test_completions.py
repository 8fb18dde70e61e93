"""Plain completions through OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from doubles.running_server import Server
from doubles.server_engine import token_of


def test_a_text_goes_on(typist: Server) -> None:
    answer = typist.openai().completions.create(model="typist", prompt="Once upon", max_tokens=16)
    assert (answer.object, answer.model) == ("text_completion", "typist")
    assert len(answer.choices[0].text) == 16
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len("Once upon"), 16)


def test_the_suffix_reaches_the_engine(actor: Server) -> None:
    request = json.loads(actor.openai().completions.create(model="", prompt="show", suffix="return x").choices[0].text)
    assert (request["text"], request["suffix"]) == ("show", "return x")
    nothing = actor.openai().completions.create(model="", prompt="show", suffix="").choices[0].text
    assert json.loads(nothing)["suffix"] == ""


def test_a_model_that_cannot_fill_in_says_so(typist: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot fill in the middle") as caught:
        typist.openai().completions.create(model="typist", prompt="def f(", suffix="return x")
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")


def test_text_and_tokens_are_the_same_prompt(typist: Server) -> None:
    ask = typist.openai().completions.create
    tokens = [token_of(character) for character in "Once upon"]
    texts = [
        ask(model="typist", prompt=prompt, max_tokens=16, temperature=0).choices[0].text
        for prompt in ("Once upon", tokens, ["Once upon"], [tokens])
    ]
    assert len(set(texts)) == 1


def test_several_prompts_and_choices_keep_their_order(typist: Server) -> None:
    prompts = ["Once", "Twice", "Thrice"]
    ask = typist.openai().completions.create
    answer = ask(model="typist", prompt=prompts, n=2, seed=5, max_tokens=10, temperature=1)
    assert [choice.index for choice in answer.choices] == list(range(6))
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == sum(map(len, prompts))
    alone = ask(model="typist", prompt="Twice", n=2, seed=5, max_tokens=10, temperature=1)
    assert [choice.text for choice in answer.choices[2:4]] == [choice.text for choice in alone.choices]


def test_a_stream_has_the_same_text(typist: Server) -> None:
    ask = typist.openai().completions.create
    whole = ask(model="typist", prompt="Once", max_tokens=20, temperature=0).choices[0].text
    stream = ask(
        model="typist", prompt="Once", max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage is not None
    assert last.usage.completion_tokens == 20


def test_ignore_eos_and_stop(typist: Server) -> None:
    ask = typist.openai().completions.create
    ends = ask(model="typist", prompt="Once", max_tokens=9, extra_body={"logit_bias": {"0": 100}})
    assert (ends.choices[0].text, ends.choices[0].finish_reason) == ("", "stop")
    goes_on = ask(
        model="typist", prompt="Once", max_tokens=9, extra_body={"logit_bias": {"0": 100}, "ignore_eos": True}
    )
    assert goes_on.choices[0].finish_reason == "length"
    stopped = ask(model="typist", prompt="Once", max_tokens=9, stop="AAA", extra_body={"logit_bias": {"35": 100}})
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == ("", "stop")


def test_log_probabilities(actor: Server) -> None:
    answer = actor.openai().completions.create(model="", prompt="weigh so ähnlich", logprobs=2)
    reply = answer.choices[0].logprobs
    assert reply is not None
    assert reply.tokens == ["so ", "ähnlich ", "\N{REPLACEMENT CHARACTER}"]
    assert reply.token_logprobs == [-0.25] * 3
    assert reply.text_offset == [0, 3, 11]
    assert (reply.top_logprobs or [])[0] == {"so ": -0.25, "other": -2.5}


def test_offsets_go_on_over_the_chunks_of_a_stream(actor: Server) -> None:
    stream = actor.openai().completions.create(model="", prompt="weigh a b c d e f", logprobs=0, stream=True)
    reply = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [offset for one in reply for offset in one.text_offset or []] == list(range(0, 14, 2))


def test_the_request_reaches_the_engine(actor: Server) -> None:
    body: dict[str, Any] = {"response_format": {"type": "regex", "regex": "[ab]+"}, "spec": "off"}
    answer = actor.openai().completions.create(model="actor", prompt="show", extra_body=body)
    request = json.loads(answer.choices[0].text)
    assert (request["text"], request["messages"], request["is_split"]) == ("show", [], False)
    assert request["constraint"]["source"] == "[ab]+"
    assert request["spec"]["drafting"] == "off"


@pytest.mark.parametrize(("asked", "expected"), [(None, None), (False, None), (True, 0), (0, 0), (1, 1), (3.0, 3)])
def test_log_probabilities_may_be_switched_on_and_off(actor: Server, asked: Any, expected: int | None) -> None:
    answer = actor.openai().completions.create(model="", prompt="show", logprobs=asked)
    assert json.loads(answer.choices[0].text)["params"]["logprobs"] == expected


def test_a_prompt_is_computed_anew_where_that_is_asked_for(actor: Server) -> None:
    answer = actor.openai().completions.create(model="", prompt="show", extra_body={"cache_prompt": False})
    assert json.loads(answer.choices[0].text)["reuses_cache"] is False


def test_the_timings_of_several_prompts_are_those_of_all(typist: Server) -> None:
    answer = typist.openai().completions.create(model="typist", prompt=["a", "b"], n=2, max_tokens=9)
    timings: dict[str, float] = answer.model_extra["timings"]  # type: ignore[index]
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    details = answer.usage.completion_tokens_details
    assert timings["draft_n_accepted"] == details.accepted_prediction_tokens
    assert timings["predicted_n"] == answer.usage.completion_tokens
    reply: dict[str, int] = answer.model_extra["speculation"]  # type: ignore[index]
    assert reply["accepted_tokens"] == details.accepted_prediction_tokens


@pytest.mark.parametrize("prompt", ["", [], [[]], [""]])
def test_an_empty_prompt_is_refused(typist: Server, prompt: Any) -> None:
    answer = typist.http.post("/v1/completions", json={"prompt": prompt})
    assert answer.status_code == 400
    assert "empty" in answer.json()["error"]["message"]


@pytest.mark.parametrize(("store", "is_private"), [(False, True), (True, False), (None, False)])
def test_what_is_not_to_be_stored_is_private(actor: Server, store: bool | None, is_private: bool) -> None:
    extra = {} if store is None else {"store": store}
    completion = actor.openai().completions.create(model="", prompt="show", extra_body=extra)
    assert json.loads(completion.choices[0].text)["is_private"] is is_private
    show: Any = {"role": "user", "content": "show"}
    chat = actor.openai().chat.completions.create(model="", messages=[show], **extra)  # type: ignore[arg-type]
    assert json.loads(chat.choices[0].message.content or "")["is_private"] is is_private
    response = actor.openai().responses.create(model="", input=[show], **extra)
    assert json.loads(response.output_text)["is_private"] is is_private
