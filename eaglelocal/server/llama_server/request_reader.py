"""Read requests of llama-server's own routes, with the functions for OpenAI's formats (request_reader.py)."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from eaglelocal.core.request import ChatRequest, Infill, Mixed, Parts
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.llama_server.schema import InfillBody, LlamaAnswerFields, LlamaCompletionBody, WrittenPrompt
from eaglelocal.server.openai.request_reader import EngineCall, check_size, params_of, raw_question, raw_request
from eaglelocal.server.openai.schema import MAX_PARTS, MAX_PROMPTS, ResponseFormat
from eaglelocal.server.openai.unsupported_fields import refuse

NEUTRAL: dict[str, dict[str, Any]] = {  # values that turn a sampler off, in the order in which samplers are applied
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
LETTERS = {"e": "penalties", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p", "t": "temperature"}
OTHERWISE = {"typical_p": "typ_p"}  # alternative names
UNNAMED = "tmp"  # a file without a name
Body = TypeVar("Body", bound=LlamaAnswerFields)


def completion_asked(body: LlamaCompletionBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body, prompts = in_common_words(body), prompts_in(body.prompt)
    check_size([text for parts in prompts for text in texts_in(parts)], "prompt")
    return raw_question(body, shared_of(body, defaults, owner), [{"mixed": Mixed(parts)} for parts in prompts])


def infill_asked(body: InfillBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body = in_common_words(body)
    infill = Infill(
        before=parts_of(body.input_prefix),
        behind=parts_of(body.input_suffix),
        snippets=tuple((snippet.filename or UNNAMED, snippet.text) for snippet in body.input_extra or ()),
        begun=body.prompt or "",
    )
    others = [text for snippet in infill.snippets for text in snippet]
    check_size([infill.begun, *texts_in(infill.before), *texts_in(infill.behind), *others], "input_extra")
    return raw_question(body, shared_of(body, defaults, owner), [{"infill": infill}])


def shared_of(body: LlamaAnswerFields, defaults: SamplingParams, owner: str) -> ChatRequest:
    """Return the ChatRequest shared by all prompts. Raises Problem for unsupported fields that change the answer."""
    refuse(body)
    line_limit_ms = body.t_max_predict_ms or 0
    return dataclasses.replace(
        raw_request(body, sampled_by(body, params_of(body, defaults)), owner),
        tells_prompt=not body.response_fields or "prompt" in body.response_fields,
        line_limit_s=line_limit_ms / 1000 if line_limit_ms > 0 else None,
    )


def in_common_words(body: Body) -> Body:
    """Return the body with llama-server's field names replaced by OpenAI's. Raises Problem."""
    limits = (body.n_predict, body.max_completion_tokens, body.max_tokens)
    told: dict[str, Any] = {"n": body.n_cmpl or body.n, "n_predict": next((n for n in limits if n is not None), None)}
    schema = body.json_schema
    if isinstance(schema, dict) and body.response_format is not None:
        what = "json_schema and response_format both bind the answer: one of them is wanted"
        raise Problem(400, what, parameter="json_schema")
    if isinstance(schema, dict) and (schema or body.grammar is None):
        told["json_schema"] = None
        told["response_format"] = ResponseFormat.model_validate({"type": "json_object", "schema": schema})
    return body.model_copy(update=told | {"max_tokens": None, "max_completion_tokens": None})


def sampled_by(body: LlamaAnswerFields, params: SamplingParams) -> SamplingParams:
    """Return the parameters with logprobs, and with all samplers off that `samplers` does not name. Raises Problem."""
    params = dataclasses.replace(params, logprobs=body.n_probs or body.logprobs or None)
    if body.samplers is None:
        return params
    names = samplers_of(body.samplers)
    known = [name for name in names if name in NEUTRAL]
    if known != [name for name in NEUTRAL if name in known]:
        raise unsupported("samplers", f"samplers are applied once and in this order here: {', '.join(NEUTRAL)}")
    off = {name: value for sampler in NEUTRAL if sampler not in known for name, value in NEUTRAL[sampler].items()}
    if "infill" in names:
        off["temperature"] = 0.0
    return dataclasses.replace(params, left_open=params.left_open.difference(off), **off)


def samplers_of(given: list[str] | str) -> list[str]:
    if isinstance(given, str):
        return [LETTERS.get(letter, letter) for letter in given]
    return [OTHERWISE.get(name, name) for name in given]


def prompts_in(given: str | WrittenPrompt | list[Any]) -> list[Parts]:
    """Return one prompt or several; a list that contains a token id is one prompt. Raises Problem."""
    if not isinstance(given, list) or any(isinstance(item, int) for item in given):
        return [parts_of(given)]
    if not 0 < len(given) <= MAX_PROMPTS:
        raise Problem(400, f"1 to {MAX_PROMPTS} prompts can be sent at once, not {len(given)}", parameter="prompt")
    return [parts_of(item) for item in given]


def parts_of(given: str | WrittenPrompt | list[Any]) -> Parts:
    if isinstance(given, WrittenPrompt):
        if given.multimodal_data:
            raise unsupported("prompt.multimodal_data", "images are read in messages only: /v1/chat/completions")
        given = given.prompt_string
    parts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(part, str | int) for part in parts):
        raise Problem(400, "a prompt is made of texts and tokens, and nothing else", parameter="prompt")
    if (count := len(texts_in(parts))) > MAX_PARTS:  # each is tokenized separately, between the steps of all requests
        raise Problem(400, f"a prompt has at most {MAX_PARTS} texts among its tokens, not {count}", parameter="prompt")
    return parts


def texts_in(parts: Parts) -> list[str]:
    return [part for part in parts if isinstance(part, str)]
