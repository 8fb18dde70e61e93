"""Turn requests in OpenAI's formats into engine requests. Pure; raises Problem or RequestError.

Message parts are joined into one text; unsupported content (audio, files, LoRA) is refused, not dropped.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from eaglelocal.core.request import ChatRequest, EmbedRequest, Message, Ranking, Spec, parse_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.json_values import as_json
from eaglelocal.server.openai.content import Content, check_images, from_url, joined
from eaglelocal.server.openai.embedding_schema import RankingBody
from eaglelocal.server.openai.response_format import constraint_of
from eaglelocal.server.openai.schema import (
    MAX_STOPS_CHARS,
    MAX_TEXT_CHARS,
    AnswerFields,
    CallGiven,
    ChatBody,
    CompletionBody,
    ContentPart,
    ImageUrl,
    MessageGiven,
    ToolGiven,
)
from eaglelocal.server.openai.tool_choice import allowed_tools, choice_of
from eaglelocal.server.openai.unsupported_fields import refuse

ONLY_FUNCTIONS = "only functions of the caller's can be called here"
TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
IMAGES = ("image_url", "input_image")
MAX_ANSWERS = 128  # of a call
RANDOM_SEED = -1  # as in llama-server and vLLM
LOOK_BACK = 1_000_000  # tokens: more than any context holds
NO_EFFORT = (None, "", "default", "auto")
Prompt = str | tuple[int, ...]
PASSED_ON = ("temperature", "top_p", "min_p", "typical_p", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """The contents of a call: one engine request for each answer, and how to send the answers.

    num_prompts  different prompts among the requests (plain completions take several)
    """

    model: str
    requests: tuple[ChatRequest, ...]
    is_streamed: bool = False
    has_usage: bool = False  # a stream ends with a chunk with the usage
    num_prompts: int = 1


def chat_question(body: ChatBody, defaults: SamplingParams, owner: str) -> EngineCall:
    refuse(body)
    params = params_of(body, defaults)
    if body.top_logprobs and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs: true", parameter="top_logprobs")
    if body.logprobs:
        params = dataclasses.replace(params, logprobs=body.top_logprobs or 0)
    tools = allowed_tools(body, tuple(tool_of(tool, i) for i, tool in enumerate(body.tools or ())))
    request = ChatRequest(
        id=new_id(),
        messages=tuple(message_of(message, i) for i, message in enumerate(body.messages)),
        params=params,
        spec=spec_of(body),
        owner=owner,
        tools=tools,
        tool_choice=choice_of(body, tools),
        constraint=constraint_of(body.response_format),
        template_values=template_values(body),
        is_split=True,
        continues_last=continues_last(body),
        reuses_cache=body.cache_prompt is not False,
    )
    check_size(texts_of(request), "messages")
    check_images(request.messages, body.n or 1)
    return _question(body, _choices(request, body.n or 1))


def completion_question(body: CompletionBody, defaults: SamplingParams, owner: str) -> EngineCall:
    refuse(body)
    if body.echo:
        raise unsupported("echo", "the prompt is not told again by this server")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "this server does not choose among answers; n gives several")
    params = params_of(body, defaults)
    if body.logprobs is not None and body.logprobs is not False:
        params = dataclasses.replace(params, logprobs=0 if body.logprobs is True else body.logprobs)
    prompts, suffix = prompts_of(body.prompt), body.suffix or ""
    check_size([*texts_in(prompts), *[suffix] * len(prompts)], "prompt")
    given = [{"text": prompt} if isinstance(prompt, str) else {"tokens": prompt} for prompt in prompts]
    return raw_question(body, dataclasses.replace(raw_request(body, params, owner), suffix=suffix), given)


def raw_request(body: AnswerFields, params: SamplingParams, owner: str) -> ChatRequest:
    """Return the request shared by all answers to a call without messages."""
    return ChatRequest(
        id="",
        params=params,
        spec=spec_of(body),
        owner=owner,
        constraint=constraint_of(body.response_format),
        reuses_cache=body.cache_prompt is not False,
    )


def raw_question(body: AnswerFields, shared: ChatRequest, prompts: Sequence[dict[str, Any]]) -> EngineCall:
    """Return the Question of a call without messages. `prompts`: for each prompt, its fields of ChatRequest."""
    count = body.n or 1
    if len(prompts) * count > MAX_ANSWERS:
        raise Problem(400, f"prompts times n must be at most {MAX_ANSWERS}", parameter="prompt")
    made = [_choices(dataclasses.replace(shared, id=new_id(), **prompt), count) for prompt in prompts]
    return dataclasses.replace(_question(body, chain.from_iterable(made)), num_prompts=len(prompts))


def embed_request(given: str | list[Any], owner: str) -> EmbedRequest:
    inputs = prompts_of(given, "input")
    check_size(texts_in(inputs), "input")
    return EmbedRequest(id=new_id(), inputs=tuple(inputs), owner=owner)


def ranking_request(body: RankingBody, owner: str) -> EmbedRequest:
    """Return a request that scores each document together with the query. Raises Problem."""
    field = "documents" if body.texts is None or body.documents else "texts"
    if body.documents and body.texts:
        raise Problem(400, "documents and texts are two names of the same: one of them is wanted", parameter="texts")
    documents = [one if isinstance(one, str) else one.text for one in body.texts or body.documents or ()]
    if not documents:
        raise Problem(400, "there are no documents", parameter=field)
    check_size([*documents, *[body.query] * len(documents)], field)
    ranking = Ranking(
        query=body.query,
        truncates=bool(body.truncate),
        max_document_tokens=body.max_tokens_per_doc,
        is_raw=bool(body.raw_scores),
        parameter=field,
    )
    return EmbedRequest(id=new_id(), inputs=tuple(documents), ranking=ranking, owner=owner)


def prompts_of(given: str | list[Any], field: str = "prompt") -> list[Prompt]:
    """Return the prompts of one text, several texts, the tokens of one prompt, or of several. Raises Problem."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise Problem(400, f"the {field} is empty", parameter=field)
    if isinstance(given[0], int):
        return [tuple(given)]
    return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in given]


def texts_in(prompts: Iterable[Prompt]) -> Iterator[str]:
    return (prompt for prompt in prompts if isinstance(prompt, str))


def check_size(texts: Iterable[str], parameter: str) -> None:
    """Raise Problem above MAX_TEXT_CHARS: the engine tokenizes the texts between the steps of all requests."""
    if (size := sum(map(len, texts))) > MAX_TEXT_CHARS:
        what = f"there are {size} characters, more than any context holds; at most {MAX_TEXT_CHARS} can be read at once"
        raise Problem(400, what, parameter=parameter, code="context_length_exceeded")


def texts_of(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        yield from (message.content, message.reasoning, *(call.arguments for call in message.tool_calls))
    for tool in request.tools:
        yield from (tool.description, tool.parameters)
    yield from (value for _, value in request.template_values)


def _question(body: AnswerFields, requests: Iterable[ChatRequest]) -> EngineCall:
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    return EngineCall(model=body.model, requests=tuple(requests), is_streamed=bool(body.stream), has_usage=has_usage)


def _choices(request: ChatRequest, count: int) -> list[ChatRequest]:
    """Return the request `count` times; with a seed, each choice has a different one."""
    made = [request]
    for i in range(1, count):
        seed = request.params.seed
        params = request.params if seed is None else dataclasses.replace(request.params, seed=(seed + i) % 2**32)
        made.append(dataclasses.replace(request, id=new_id(), params=params))
    return made


def new_id() -> str:
    return uuid.uuid4().hex


def params_of(body: AnswerFields, defaults: SamplingParams) -> SamplingParams:
    """Return the server's defaults overridden by the body; parameters set by neither stay open. Raises RequestError."""
    given: dict[str, Any] = {name: value for name in PASSED_ON if (value := getattr(body, name)) is not None}
    if body.top_k is not None:
        given["top_k"] = max(body.top_k, 0)  # -1 also means all
    penalty = body.repeat_penalty if body.repeat_penalty is not None else body.repetition_penalty
    if penalty is not None:
        given["repeat_penalty"] = penalty
    if body.logit_bias:
        given["logit_bias"] = tuple((int(token), bias) for token, bias in body.logit_bias.items())
    if body.seed is not None:
        given["seed"] = None if body.seed == RANDOM_SEED else body.seed % 2**32
    if body.repeat_last_n is not None:
        given["repeat_last_n"] = LOOK_BACK if body.repeat_last_n < 0 else body.repeat_last_n
    if body.stop is not None:
        given["stop"] = stops_of(body.stop)
    limits = (body.max_completion_tokens, body.max_tokens, body.n_predict)
    if (limit := next((one for one in limits if one is not None), None)) is not None:
        given["max_tokens"] = limit_of(limit)
    left_open = defaults.left_open.difference(given)
    return dataclasses.replace(defaults, ignore_eos=bool(body.ignore_eos), left_open=left_open, **given)


def stops_of(given: str | list[str]) -> tuple[str, ...]:
    stops = tuple(filter(None, [given] if isinstance(given, str) else given))
    if (size := sum(map(len, stops))) > MAX_STOPS_CHARS:
        what = f"stop strings must have at most {MAX_STOPS_CHARS} characters together, not {size}"
        raise Problem(400, what, parameter="stop")
    return stops


def limit_of(given: int) -> int | None:
    """Return the token limit of an answer; None: until the context is full."""
    return None if given < 0 else given


def continues_last(body: ChatBody) -> bool:
    """Return whether an assistant's message at the end is the beginning of the answer. Raises Problem."""
    last = body.messages[-1]
    if body.continue_final_message and (last.role != "assistant" or last.tool_calls):
        what = "only a last message of the assistant without calls can be continued"
        raise Problem(400, what, parameter="continue_final_message")
    return body.continue_final_message is not False


def spec_of(body: AnswerFields) -> Spec | None:
    return None if body.spec is None else parse_spec(body.spec)


def message_of(given: MessageGiven, index: int) -> Message:
    calls = given.tool_calls or ()
    if calls and given.role != "assistant":
        raise Problem(400, f"a {given.role} calls no tools", parameter=f"messages.{index}.tool_calls")
    if given.content is None and not calls and given.role != "assistant":
        raise Problem(400, "the message has no content", parameter=f"messages.{index}.content")
    place = f"messages.{index}.content"
    is_said = given.role == "assistant"
    content = Content(text_of(given.content, place)) if is_said else content_of(given.content, place)
    role = {"developer": "system", "function": "tool"}.get(given.role, given.role)
    return Message(
        role=role,
        content=content.text,
        images=content.images,
        reasoning=given.reasoning_content or "",
        tool_calls=tuple(call_of(call, f"messages.{index}.tool_calls.{i}") for i, call in enumerate(calls)),
        tool_call_id=given.tool_call_id or "",
        name=given.name or "",
    )


def call_of(given: CallGiven, place: str) -> ToolCall:
    arguments = given.function.arguments
    if not isinstance(arguments, str):
        arguments = as_json(arguments or {}, f"{place}.function.arguments")
    return ToolCall(given.id or "", given.function.name, arguments)


def content_of(given: str | list[ContentPart] | Content | None, place: str) -> Content:
    """Return the content of a message. Raises Problem, with the place, for anything but text and images."""
    if isinstance(given, Content):
        return given
    if isinstance(given, list):
        return joined(piece_of(part, f"{place}.{i}") for i, part in enumerate(given))
    return Content(given or "")


def text_of(given: str | list[ContentPart] | Content | None, place: str) -> str:
    """Return the text of the model's own message. Raises Problem if it contains images."""
    content = content_of(given, place)
    if content.images:
        raise unsupported(place, "images can be shown to the model; it has made none")
    return content.text


def piece_of(part: ContentPart, place: str) -> str | bytes:
    if part.type in IMAGES:
        return from_url(url_of(part), f"{place}.image_url")
    text = part.text if part.type in TEXTS else part.refusal
    if text is None:
        raise unsupported(place, f"only text, image_url and the like can be read here, not {part.type!r}")
    return text


def url_of(part: ContentPart) -> str:
    """Return the URL of a part's image; empty if it has none, or only a file id (this server stores no files)."""
    given = part.image_url
    return given.url if isinstance(given, ImageUrl) else given or ""


def tool_of(given: ToolGiven, index: int) -> Tool:
    function = given.function
    if given.type != "function":
        raise unsupported(f"tools.{index}.type", f"{ONLY_FUNCTIONS}, not tools of type {given.type!r}")
    if function is None:
        raise Problem(400, "a tool of type function needs a function", parameter=f"tools.{index}.function")
    parameters: Mapping[str, Any] = function.parameters or {"type": "object", "properties": {}}
    schema = as_json(parameters, f"tools.{index}.function.parameters")
    return Tool(function.name, function.description or "", schema, is_strict=bool(function.strict))


def template_values(body: ChatBody) -> tuple[tuple[str, str], ...]:
    values = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort not in NO_EFFORT:
        values.setdefault("reasoning_effort", body.reasoning_effort)
        if body.reasoning_effort == "none":
            values.setdefault("enable_thinking", False)
    return tuple((name, as_json(value, f"chat_template_kwargs.{name}")) for name, value in values.items())
