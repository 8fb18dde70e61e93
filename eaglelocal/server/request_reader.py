"""Turn requests in OpenAI's formats into engine requests. Pure; raises Problem or RequestError.

The parts of a message are joined to one text; unsupported content (audio, files) is refused, not dropped.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, Message, parse_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import OFF_EFFORT, Thinking
from eaglelocal.core.tools import Tool, ToolCall, ToolChoice, ToolUse
from eaglelocal.server.access_log import current_record
from eaglelocal.server.answer_encoder import INPUT
from eaglelocal.server.content import Content, check_images, decode_data_url, join_pieces
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.json_body import NOT_TRANSLATED, FieldTranslation, to_json, validate_chat
from eaglelocal.server.schema import (
    MAX_STOPS_CHARS,
    MAX_TEXT_CHARS,
    SCHEMA_WORDS,
    AnswerFields,
    CallGiven,
    ChatBody,
    CompletionBody,
    ContentPart,
    CustomGiven,
    ImageUrl,
    MessageGiven,
    NamedTool,
    ResponseFormat,
    ToolGiven,
)

TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
IMAGES = ("image_url", "input_image")
MAX_ANSWERS = 128  # of a call
RANDOM_SEED = -1  # as in llama-server and vLLM
UNLIMITED_LOOK_BACK = 1_000_000  # tokens: more than any context holds
NO_EFFORT = (None, "", "default", "auto")
Prompt = str | tuple[int, ...]
UNCHANGED_PARAMS = ("temperature", "top_p", "min_p", "typical_p", "frequency_penalty", "presence_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """The contents of a call: one engine request for each answer, and how to send the answers.

    num_prompts  different prompts among the requests (plain completions take several)
    fields       the API's own names of the chat's fields, for errors
    """

    model: str
    requests: tuple[ChatRequest, ...]
    is_streamed: bool = False
    has_usage: bool = False  # a stream ends with a chunk with the usage
    has_progress: bool = False  # a stream says how much of the prompt has been read
    num_prompts: int = 1
    fields: FieldTranslation = NOT_TRANSLATED


PlacedMessages = list[tuple[str, dict[str, Any]]]  # messages of a translated chat, with their places in the body


def read_translated_chat(
    chat: dict[str, Any], messages: PlacedMessages, names: Mapping[str, str], defaults: SamplingParams, owner: str
) -> EngineCall:
    """Return the call of a body that was translated to a chat. Raises Problem, with the original names of fields.

    names  see FieldTranslation.fields
    """
    fields = FieldTranslation(names, tuple(place for place, _ in messages))
    with fields.translate_errors():
        body = validate_chat(chat | {"messages": [message for _, message in messages]})
        return dataclasses.replace(read_chat(body, defaults, owner), fields=fields)


def read_chat(body: ChatBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body.refuse_unsupported()
    params = read_params(body, defaults)
    if body.top_logprobs and not body.logprobs:
        raise Problem(400, "top_logprobs needs logprobs: true", parameter="top_logprobs")
    if body.logprobs:
        params = dataclasses.replace(params, logprobs=body.top_logprobs or 0)
    tools = select_allowed_tools(body, tuple(read_tool(tool, i) for i, tool in enumerate(body.tools or ())))
    warn_of_unbound(tool.custom for tool in body.tools or () if tool.custom)
    request = dataclasses.replace(
        read_answer_fields(body, params, owner),
        id=new_id(),
        messages=tuple(read_message(message, i) for i, message in enumerate(body.messages)),
        tools=tools,
        tool_choice=read_tool_choice(body, tools),
        template_values=template_values(body),
        is_split=True,
        resumes=continues_last_message(body),
    )
    check_size(list_texts(request), "messages")
    check_images(request.messages, body.n or 1)
    return _make_call(body, _make_choices(request, body.n or 1))


def read_completion(body: CompletionBody, defaults: SamplingParams, owner: str) -> EngineCall:
    body.refuse_unsupported()
    if body.echo:
        raise unsupported("echo", "echo of the prompt is not supported")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise unsupported("best_of", "this server does not choose the best of several answers; n returns all of them")
    params = read_params(body, defaults)
    if body.logprobs is not None and body.logprobs is not False:
        params = dataclasses.replace(params, logprobs=0 if body.logprobs is True else body.logprobs)
    prompts, suffix = split_prompts(body.prompt), body.suffix or ""
    check_size([*select_texts(prompts), *[suffix] * len(prompts)], "prompt")
    given = [{"text": prompt} if isinstance(prompt, str) else {"tokens": prompt} for prompt in prompts]
    call = read_prompts(body, dataclasses.replace(read_answer_fields(body, params, owner), suffix=suffix), given)
    # with several prompts, an error about the number of answers is about the prompts
    return dataclasses.replace(call, fields=FieldTranslation({"n": "prompt"})) if len(prompts) > 1 else call


def read_answer_fields(body: AnswerFields, params: SamplingParams, owner: str) -> ChatRequest:
    """Return the fields of a request that chats and plain completions share, without its prompt and id."""
    return ChatRequest(
        id="",
        params=params,
        spec=None if body.spec is None else parse_spec(body.spec, name="spec", hint=""),
        owner=owner,
        constraint=read_constraint(body.response_format),
        is_private=body.store is False,
        reuses_cache=body.cache_prompt is not False,
        adapters=tuple((each.id, each.scale) for each in body.lora or ()) or None,  # an empty list is the default too
    )


def read_prompts(body: AnswerFields, shared: ChatRequest, prompts: Sequence[dict[str, Any]]) -> EngineCall:
    """Return a call without messages. `prompts` are the fields of ChatRequest that differ, for each prompt."""
    count = body.n or 1
    if len(prompts) * count > MAX_ANSWERS:
        raise Problem(400, f"prompts times n must be at most {MAX_ANSWERS}", parameter="prompt")
    choices = [_make_choices(dataclasses.replace(shared, id=new_id(), **prompt), count) for prompt in prompts]
    return dataclasses.replace(_make_call(body, chain.from_iterable(choices)), num_prompts=len(prompts))


def split_prompts(given: str | list[Any], field: str = "prompt") -> list[Prompt]:
    """Return the prompts of one text, several texts, the tokens of one prompt, or of several. Raises Problem."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise Problem(400, f"the {field} is empty", parameter=field)
    if isinstance(given[0], int):
        return [tuple(given)]
    return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in given]


def select_texts(prompts: Iterable[Prompt]) -> Iterator[str]:
    return (prompt for prompt in prompts if isinstance(prompt, str))


def check_size(texts: Iterable[str], parameter: str) -> None:
    """Raise Problem above MAX_TEXT_CHARS: the engine tokenizes the texts between the steps of all requests."""
    if (size := sum(map(len, texts))) > MAX_TEXT_CHARS:
        what = f"there are {size} characters, more than any context holds; at most {MAX_TEXT_CHARS} are allowed"
        raise Problem(400, what, parameter=parameter, code="context_length_exceeded")


def list_texts(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        yield from (message.content, message.reasoning, *(call.arguments for call in message.tool_calls))
    for tool in request.tools:
        yield from (tool.description, tool.parameters)
    yield from (value for _, value in request.template_values)


def _make_call(body: AnswerFields, requests: Iterable[ChatRequest]) -> EngineCall:
    has_usage = bool(body.stream_options and body.stream_options.include_usage)
    return EngineCall(
        model=body.model,
        requests=tuple(requests),
        is_streamed=bool(body.stream),
        has_usage=has_usage,
        has_progress=bool(body.return_progress),
    )


def _make_choices(request: ChatRequest, count: int) -> list[ChatRequest]:
    """Repeat the request `count` times; if it has a seed, each choice gets a different one."""
    choices = [request]
    for i in range(1, count):
        seed = request.params.seed
        params = request.params if seed is None else dataclasses.replace(request.params, seed=(seed + i) % 2**32)
        choices.append(dataclasses.replace(request, id=new_id(), params=params))
    return choices


def new_id() -> str:
    return uuid.uuid4().hex


def read_params(body: AnswerFields, defaults: SamplingParams) -> SamplingParams:
    """Override the server's defaults by the body; parameters set by neither stay open. Raises RequestError."""
    given: dict[str, Any] = {name: value for name in UNCHANGED_PARAMS if (value := getattr(body, name)) is not None}
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
        given["repeat_last_n"] = UNLIMITED_LOOK_BACK if body.repeat_last_n < 0 else body.repeat_last_n
    if body.stop is not None:
        given["stop"] = read_stops(body.stop)
    limits = (body.max_completion_tokens, body.max_tokens, body.n_predict)
    if (limit := next((one for one in limits if one is not None), None)) is not None:
        given["max_tokens"] = None if limit < 0 else limit  # None: until the context is full
    given["thinking"] = read_thinking(body, defaults.thinking)
    left_open = defaults.left_open.difference(given)
    return dataclasses.replace(defaults, ignore_eos=bool(body.ignore_eos), left_open=left_open, **given)


def read_thinking(body: AnswerFields, usual: Thinking) -> Thinking:
    """Return the limit of thinking; an effort leaves the server's budget as it is, unless that is 0."""
    budgets = (body.thinking_budget, body.thinking_token_budget, body.thinking_budget_tokens, body.reasoning_budget)
    budget = next((one for one in budgets if one is not None), None)
    effort, switch = "", None
    if isinstance(body, ChatBody):
        effort = "" if body.reasoning_effort in NO_EFFORT else body.reasoning_effort or ""
        switch = (body.chat_template_kwargs or {}).get("enable_thinking")
    wants_it = effort not in ("", OFF_EFFORT) or bool(budget) or switch is True
    if (usual.is_off and wants_it) or (budget is not None and budget < 0):
        usual = Thinking(message=usual.message)
    return Thinking(
        effort or usual.effort,
        usual.budget if budget is None else None if budget < 0 else budget,
        usual.message if body.reasoning_budget_message is None else body.reasoning_budget_message,
    )


def read_stops(given: str | list[str]) -> tuple[str, ...]:
    stops = tuple(filter(None, [given] if isinstance(given, str) else given))
    if (size := sum(map(len, stops))) > MAX_STOPS_CHARS:
        what = f"stop strings must have at most {MAX_STOPS_CHARS} characters together, not {size}"
        raise Problem(400, what, parameter="stop")
    return stops


def continues_last_message(body: ChatBody) -> bool:
    """Return whether an assistant's message at the end is the beginning of the answer. Raises Problem."""
    last = body.messages[-1]
    if body.continue_final_message and (last.role != "assistant" or last.tool_calls):
        what = "only a last message of the assistant without tool calls can be continued"
        raise Problem(400, what, parameter="continue_final_message")
    return body.continue_final_message is not False


def read_message(given: MessageGiven, index: int) -> Message:
    calls, place, is_own = given.tool_calls or (), f"messages.{index}.content", given.role == "assistant"
    if calls and not is_own:
        what = f"only the assistant can call tools, not {given.role!r}"
        raise Problem(400, what, parameter=f"messages.{index}.tool_calls")
    if given.content is None and not is_own:
        raise Problem(400, "the message has no content", parameter=place)
    content = Content(read_text(given.content, place)) if is_own else read_content(given.content, place)
    role = {"developer": "system", "function": "tool"}.get(given.role, given.role)
    return Message(
        role=role,
        content=content.text,
        images=content.images,
        reasoning=given.reasoning_content or "",
        tool_calls=tuple(read_call(call, f"messages.{index}.tool_calls.{i}") for i, call in enumerate(calls)),
        tool_call_id=given.tool_call_id or "",
        name=given.name or "",
    )


def read_call(given: CallGiven, place: str) -> ToolCall:
    arguments = given.function.arguments
    if not isinstance(arguments, str):
        arguments = to_json(arguments or {}, f"{place}.function.arguments")
    return ToolCall(given.id or "", given.function.name, arguments)


def read_content(given: str | list[ContentPart] | Content | None, place: str) -> Content:
    """Return the content of a message. Raises Problem, with the place, for anything but text and images."""
    if isinstance(given, Content):
        return given
    if isinstance(given, list):
        return join_pieces(read_part(part, f"{place}.{i}") for i, part in enumerate(given))
    return Content(given or "")


def read_text(given: str | list[ContentPart] | Content | None, place: str) -> str:
    """Return the text of the model's own message. Raises Problem if it contains images."""
    content = read_content(given, place)
    if content.images:
        raise unsupported(place, "messages of the assistant cannot contain images")
    return content.text


def read_part(part: ContentPart, place: str) -> str | bytes:
    if part.type in IMAGES:
        return decode_data_url(image_url(part), f"{place}.image_url")
    text = part.text if part.type in TEXTS else part.refusal
    if text is None:
        raise unsupported(place, f"only texts and images are supported, not parts of type {part.type!r}")
    return text


def image_url(part: ContentPart) -> str:
    """Return the URL of a part's image; empty if it has none, or only a file id (this server stores no files)."""
    given = part.image_url
    return given.url if isinstance(given, ImageUrl) else given or ""


def template_values(body: ChatBody) -> tuple[tuple[str, str], ...]:
    values = body.chat_template_kwargs or {}
    return tuple((name, to_json(value, f"chat_template_kwargs.{name}")) for name, value in values.items())


# ---- tools: those that may be called, and which must be
#
# A custom tool takes a text. The model sees it as a function with one argument; the answer has the custom form again. A
# regular expression binds the text as a string's `pattern` does (see STRICT in schema.py). A grammar in Lark cannot be
# bound inside a JSON string, character by character: the model is shown it, and the request gets a warning.
ONLY_FUNCTIONS = "this server calls only functions of the client"
USES = {**{use.value: use for use in ToolUse}, "any": ToolUse.REQUIRED}
ALLOWED = "allowed_tools"
KINDS = ("function", "custom")
MAX_NAMED = 8  # tools in a warning
HOW_TO_CALL = f"Call this tool with one argument, `{INPUT}`: the whole text, as a string."


def read_tool(given: ToolGiven, index: int) -> Tool:
    if given.type not in KINDS:
        raise unsupported(f"tools.{index}.type", f"{ONLY_FUNCTIONS}, not tools of type {given.type!r}")
    function, custom = (given.function, None) if given.type == "function" else (None, given.custom)
    if custom is not None:
        return read_custom_tool(custom)
    if function is None:
        what = f"a tool of type {given.type} needs a {given.type}"
        raise Problem(400, what, parameter=f"tools.{index}.{given.type}")
    schema = to_json(function.parameters or {"type": "object", "properties": {}}, f"tools.{index}.function.parameters")
    return Tool(function.name, function.description or "", schema, is_strict=bool(function.strict))


def select_allowed_tools(body: ChatBody, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools that `tool_choice` allows; allowed tools that are not functions are ignored."""
    given = body.tool_choice
    if not isinstance(given, NamedTool) or given.type != ALLOWED:
        return tools
    if given.allowed_tools is None:
        raise Problem(400, f"a tool_choice of type {ALLOWED} needs {ALLOWED}", parameter=f"tool_choice.{ALLOWED}")
    allowed = given.allowed_tools.tools
    names = {named.name for one in allowed if (named := one.function or one.custom)}
    known = {kind: list_names(body, kind) for kind in KINDS}
    for one in allowed:
        if (named := one.function or one.custom) and named.name not in known.get(one.type, ()):
            what = f"tool_choice allows {named.name!r}, which is not among the tools of type {one.type}"
            raise Problem(400, what, parameter=f"tool_choice.{ALLOWED}.tools")
    return tuple(tool for tool in tools if tool.name in names)


def list_names(body: ChatBody, kind: str) -> set[str]:
    return {named.name for tool in body.tools or () if tool.type == kind and (named := tool.function or tool.custom)}


def read_tool_choice(body: ChatBody, tools: tuple[Tool, ...]) -> ToolChoice:
    given = body.tool_choice
    if isinstance(given, NamedTool) and given.type == ALLOWED and given.allowed_tools is not None:
        given = given.allowed_tools.mode
    elif isinstance(given, NamedTool) and given.type not in USES:
        return read_named_tool(body, given)
    use = USES[given.type if isinstance(given, NamedTool) else given or "auto"]
    if use is ToolUse.REQUIRED and not tools:
        raise Problem(400, "tool_choice is required, but there are no tools", parameter="tool_choice")
    return ToolChoice(use=use, parallel=body.parallel_tool_calls is not False)


def read_named_tool(body: ChatBody, given: NamedTool) -> ToolChoice:
    kind = given.type
    if kind not in KINDS:
        what = f"a tool_choice must name a function or a custom tool, not a tool of type {kind!r}"
        raise unsupported("tool_choice", what)
    named = given.function if kind == "function" else given.custom
    if named is None:
        raise Problem(400, f"a tool_choice of type {kind} needs a {kind}", parameter=f"tool_choice.{kind}")
    if named.name not in list_names(body, kind):
        what = f"tool_choice names {named.name!r}, which is not among the tools of type {kind}"
        raise Problem(400, what, parameter="tool_choice")
    return ToolChoice(use=ToolUse.REQUIRED, name=named.name, parallel=False)  # OpenAI: exactly one call


def read_custom_tool(given: CustomGiven) -> Tool:
    """Return the tool as a function with one argument."""
    syntax, definition = given.format.rules if given.format else ("", "")
    pattern = {"pattern": f"^(?:{definition})$"} if syntax == "regex" else {}
    schema = {
        "type": "object",
        "properties": {INPUT: {"type": "string", **pattern}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    shown = f"The text must match this grammar in Lark:\n{definition}" if syntax == "lark" else ""
    description = "\n\n".join(filter(None, (given.description, HOW_TO_CALL, shown)))
    return Tool(given.name, description, json.dumps(schema), is_strict=bool(pattern))


def warn_of_unbound(tools: Iterable[CustomGiven]) -> None:
    """Warn in the request's record if grammars do not bind the text."""
    names = [tool.name for tool in tools if tool.format and tool.format.rules[0] == "lark"]
    if names:
        shown = f"{', '.join(names[:MAX_NAMED])}{', ...' if len(names) > MAX_NAMED else ''}"
        warning = f"grammars in lark do not bind what the model writes, it is only shown them (custom tools: {shown})"
        current_record().warnings.append(warning)


# ---- response format: turn a `response_format` into a Constraint. Pure; raises Problem if any part of it would have
# no effect
FORMAT, NESTED, SCHEMA_FIELD = "response_format", "response_format.json_schema", "response_format.schema"
_SCHEMA_TYPES = ("json_object", "json_schema")
_TYPES_BY_FIELD = {"json_schema": _SCHEMA_TYPES, "schema_": _SCHEMA_TYPES, "regex": ("regex",), "grammar": ("grammar",)}


def read_constraint(given: ResponseFormat | None) -> Constraint | None:
    if given is None:
        return None
    _check_no_field_is_ignored(given)
    match given:
        case ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="regex", regex=str(source)):
            return Constraint(Syntax.REGEX, source)
        case ResponseFormat(type="grammar", grammar=str(source)):
            return Constraint(Syntax.LARK, source)
        case ResponseFormat(type="json_object" | "json_schema"):
            return _read_schema(given)
    raise Problem(400, f"a format of type {given.type} needs {given.type}", parameter=f"{FORMAT}.{given.type}")


def _check_no_field_is_ignored(given: ResponseFormat) -> None:
    for name, kinds in _TYPES_BY_FIELD.items():
        if getattr(given, name) and given.type not in kinds:
            field = name.rstrip("_")
            what = f"a format of type {given.type} has no {field}; that needs type {kinds[-1]}"
            raise Problem(400, what, parameter=f"{FORMAT}.{field}")


def _read_schema(given: ResponseFormat) -> Constraint:
    nested, is_strict = given.json_schema, bool(given.strict)
    places = {SCHEMA_FIELD: given.schema_}
    if nested is not None:
        places, is_strict = {f"{NESTED}.schema": nested.schema_, **places}, is_strict or bool(nested.strict)
    found = {place: schema for place, schema in places.items() if schema is not None}
    if not found:
        return _without_schema(given)
    (place, schema), *others = found.items()
    if any(other != schema for _, other in others):
        raise Problem(400, "there are two different schemas: send only one", parameter=others[0][0])
    check_is_schema(schema, place)
    if not schema and given.type == "json_object":  # an empty schema is weaker than the type
        return Constraint(Syntax.JSON_OBJECT)
    return Constraint(Syntax.JSON_SCHEMA, to_json(schema, place), is_strict=is_strict)


def _without_schema(given: ResponseFormat) -> Constraint:
    if given.json_schema is not None:
        what = 'json_schema has no schema: send {"name": "x", "schema": {...}}'
        raise Problem(400, what, parameter=f"{NESTED}.schema")
    if given.type == "json_schema":
        raise Problem(400, "a format of type json_schema needs a json_schema with a schema", parameter=NESTED)
    return Constraint(Syntax.JSON_OBJECT)


def check_is_schema(schema: dict[str, Any], place: str) -> None:
    """Raise Problem for an object with a schema inside that is not itself a schema: it would constrain nothing."""
    inside = next((word for word in ("schema", "json_schema") if isinstance(schema.get(word), dict)), None)
    if inside is not None and not SCHEMA_WORDS & schema.keys():
        what = f"this is not a schema, but contains one as {inside!r}: send that one in its place"
        raise Problem(400, what, parameter=place)
