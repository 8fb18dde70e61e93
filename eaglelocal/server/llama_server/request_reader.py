"""Bodies of llama-server's completions and infills, read with the functions for OpenAI's formats (request_reader.py).

Fields about slots and the cache (id_slot, n_keep, n_cache_reuse, t_max_prompt_ms), and n_indent, which clients handle
too, are ignored like unknown fields.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, TypeVar

from pydantic import Field

from eaglelocal.core.request import ChatRequest, Infill, Mixed, Parts
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.request_reader import EngineCall, check_size, read_answer_fields, read_params, read_prompts
from eaglelocal.server.schema import (
    MAX_CHOICES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_TOKENS,
    AnswerFields,
    Body,
    Name,
    ReadingLimit,
    ResponseFormat,
    Text,
    TokenId,
    Word,
)

MAX_FIELDS = 256
MAX_SNIPPETS = 1024

MixedPrompt = Annotated[list[TokenId | Text], Field(max_length=MAX_TOKENS)]


class WrittenPrompt(Body):
    prompt_string: Text | MixedPrompt
    multimodal_data: list[Any] | None = None


SAMPLERS = (
    "What is not named is off. Their order is llama.cpp's: penalties, top_k, typ_p, top_p, min_p, temperature. With "
    "`infill`, of which this server has none, the most likely token is taken."
)
LINE_LIMIT = "Milliseconds from the first token: the first line that ends later ends the answer."


class LlamaAnswerFields(AnswerFields):
    """The fields shared by completions and infills."""

    max_tokens: ReadingLimit | None = None
    json_schema: Any = None
    grammar: Any = None
    max_completion_tokens: ReadingLimit | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    n_probs: Annotated[int, Field(ge=0, le=100)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=100)] | None = None
    return_tokens: bool | None = None
    response_fields: Annotated[list[Name], Field(max_length=MAX_FIELDS)] | None = None
    samplers: Annotated[list[Word], Field(max_length=64, description=SAMPLERS)] | Word | None = None
    t_max_predict_ms: Annotated[int, Field(ge=-1, le=2**31, description=LINE_LIMIT)] | None = None


class LlamaCompletionBody(LlamaAnswerFields):
    """POST /completion"""

    prompt: (
        Text
        | WrittenPrompt
        | Annotated[list[TokenId | Text | MixedPrompt | WrittenPrompt], Field(max_length=MAX_TOKENS)]
    )


class Snippet(Body):
    text: Text
    filename: Name | None = None


class InfillBody(LlamaAnswerFields):
    """POST /infill"""

    input_prefix: Text | MixedPrompt
    input_suffix: Text | MixedPrompt
    input_extra: Annotated[list[Snippet], Field(max_length=MAX_SNIPPETS)] | None = None
    prompt: Annotated[Text | None, Field(description="the first words of what belongs into the gap")] = None


NEUTRAL: dict[str, dict[str, Any]] = {  # values that turn a sampler off, in the order in which samplers are applied
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "temperature": {"temperature": 1.0},
}
SAMPLER_LETTERS = {"e": "penalties", "k": "top_k", "y": "typ_p", "p": "top_p", "m": "min_p", "t": "temperature"}
SAMPLER_ALIASES = {"typical_p": "typ_p"}  # alternative names
DEFAULT_FILENAME = "tmp"  # a file without a name
LlamaBody = TypeVar("LlamaBody", bound=LlamaAnswerFields)


def read_llama_completion(body: LlamaCompletionBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body, prompts = rename_fields(body), split_prompts(body.prompt)
    check_size([text for parts in prompts for text in list_texts(parts)], "prompt")
    return read_prompts(body, read_shared_fields(body, defaults, owner), [{"mixed": Mixed(parts)} for parts in prompts])


def read_infill(body: InfillBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body = rename_fields(body)
    infill = Infill(
        before=read_parts(body.input_prefix),
        behind=read_parts(body.input_suffix),
        snippets=tuple((snippet.filename or DEFAULT_FILENAME, snippet.text) for snippet in body.input_extra or ()),
        begun=body.prompt or "",
    )
    others = [text for snippet in infill.snippets for text in snippet]
    check_size([infill.begun, *list_texts(infill.before), *list_texts(infill.behind), *others], "input_extra")
    return read_prompts(body, read_shared_fields(body, defaults, owner), [{"infill": infill}])


def read_shared_fields(body: LlamaAnswerFields, defaults: SamplingParams, owner: str) -> ChatRequest:
    """Return the ChatRequest shared by all prompts. Raises Problem for unsupported fields that change the answer."""
    body.refuse_unsupported()
    line_limit_ms = body.t_max_predict_ms or 0
    return dataclasses.replace(
        read_answer_fields(body, apply_samplers(body, read_params(body, defaults)), owner),
        tells_prompt=not body.response_fields or "prompt" in body.response_fields,
        line_limit_s=line_limit_ms / 1000 if line_limit_ms > 0 else None,
    )


def rename_fields(body: LlamaBody) -> LlamaBody:
    """Return the body with llama-server's field names replaced by OpenAI's. Raises Problem."""
    limits = (body.n_predict, body.max_completion_tokens, body.max_tokens)
    renamed: dict[str, Any] = {
        "n": body.n_cmpl or body.n,
        "n_predict": next((n for n in limits if n is not None), None),
    }
    schema = body.json_schema
    if isinstance(schema, dict) and body.response_format is not None:
        what = "json_schema and response_format both set the format of the answer: send only one"
        raise Problem(400, what, parameter="json_schema")
    if isinstance(schema, dict) and (schema or body.grammar is None):
        renamed["json_schema"] = None
        renamed["response_format"] = ResponseFormat.model_validate({"type": "json_object", "schema": schema})
    return body.model_copy(update=renamed | {"max_tokens": None, "max_completion_tokens": None})


def apply_samplers(body: LlamaAnswerFields, params: SamplingParams) -> SamplingParams:
    """Return the parameters with logprobs, and without the samplers that `samplers` leaves out. Raises Problem."""
    params = dataclasses.replace(params, logprobs=body.n_probs or body.logprobs or None)
    if body.samplers is None:
        return params
    names = sampler_names(body.samplers)
    known = [name for name in names if name in NEUTRAL]
    if known != [name for name in NEUTRAL if name in known]:
        raise unsupported("samplers", f"each sampler is applied once, in this order: {', '.join(NEUTRAL)}")
    off = {name: value for sampler in NEUTRAL if sampler not in known for name, value in NEUTRAL[sampler].items()}
    if "infill" in names:
        off["temperature"] = 0.0
    return dataclasses.replace(params, left_open=params.left_open.difference(off), **off)


def sampler_names(given: list[str] | str) -> list[str]:
    if isinstance(given, str):
        return [SAMPLER_LETTERS.get(letter, letter) for letter in given]
    return [SAMPLER_ALIASES.get(name, name) for name in given]


def split_prompts(given: str | WrittenPrompt | list[Any]) -> list[Parts]:
    """Return one prompt or several; a list that contains a token id is one prompt. Raises Problem."""
    if not isinstance(given, list) or any(isinstance(item, int) for item in given):
        return [read_parts(given)]
    if not 0 < len(given) <= MAX_PROMPTS:
        raise Problem(400, f"1 to {MAX_PROMPTS} prompts can be sent at once, not {len(given)}", parameter="prompt")
    return [read_parts(item) for item in given]


def read_parts(given: str | WrittenPrompt | list[Any]) -> Parts:
    if isinstance(given, WrittenPrompt):
        if given.multimodal_data:
            raise unsupported("prompt.multimodal_data", "images are supported in messages only: /v1/chat/completions")
        given = given.prompt_string
    parts = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(part, str | int) for part in parts):
        raise Problem(400, "a prompt consists of texts and tokens only", parameter="prompt")
    if (count := len(list_texts(parts))) > MAX_PARTS:  # each is tokenized separately, between the steps of all requests
        raise Problem(400, f"a prompt has at most {MAX_PARTS} texts among its tokens, not {count}", parameter="prompt")
    return parts


def list_texts(parts: Parts) -> list[str]:
    return [part for part in parts if isinstance(part, str)]
