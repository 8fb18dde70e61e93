"""Request bodies in OpenAI's formats, validated field by field; the source of the OpenAPI document.

Unknown fields are ignored, because clients send many. Fields that would change the answer but are not supported are
listed too, so that unsupported_fields.py can refuse them instead of ignoring them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, InstanceOf, model_validator
from pydantic.json_schema import SkipJsonSchema

from eaglelocal.core.adapters import MAX_ADAPTERS
from eaglelocal.server.openai.content import Content
from eaglelocal.server.openai.custom_tools import CustomGiven
from eaglelocal.server.openai.field_types import (
    MAX_ALLOWED_TOOLS,
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_PARTS,
    MAX_PROMPTS,
    MAX_STOPS,
    MAX_TOOLS,
    Body,
    CallId,
    Finite,
    Limit,
    LogitBias,
    LookBack,
    Name,
    ReadingLimit,
    Seed,
    Stop,
    Text,
    Tokens,
    ToolName,
    Word,
)
from eaglelocal.server.request_record import current_record

# ---- misspelled fields: notice fields of a request that look like misspelled ones, because unknown fields are
# ignored
#
# They are no error: clients send many fields of other servers. The response gets a warning in a header, and so does
# the line of the request in the log.
SIMILAR = 0.82  # of difflib's ratio: max_token and max_tokens are, user_id and user are not
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,39}")  # what may stand in a header
MAX_UNKNOWN = 32  # fields that are looked at
MAX_WARNINGS = 4


def note_misspelled(given: Mapping[object, object], known: Iterable[str]) -> None:
    """Add a warning to the request's record for each unknown field whose name is close to one that is not set."""
    names = set(known)
    free = names - given.keys()
    unknown = [name for name in given if name not in names]
    warnings = current_record().warnings
    for name in unknown[:MAX_UNKNOWN]:
        if not isinstance(name, str) or not FIELD.fullmatch(name) or len(warnings) >= MAX_WARNINGS:
            continue
        if near := difflib.get_close_matches(name.lower(), free, n=1, cutoff=SIMILAR):
            warnings.append(f"{name} is not a field and was ignored; did you mean {near[0]}?")


# ---- schema
class ImageUrl(Body):
    url: Annotated[str, Field(repr=False)]  # as long as a body may be


class ContentPart(Body):
    """A part of a message: a text, or an image as a `data:` URL."""

    type: Word
    text: Text | None = None
    refusal: Text | None = None
    image_url: Annotated[ImageUrl | str | None, Field(repr=False)] = None


Parts = Annotated[list[ContentPart], Field(max_length=MAX_PARTS)]


class FunctionCall(Body):
    name: Name
    arguments: Text | dict[str, Any] | None = None  # as text; some clients send an object


class CallGiven(Body):
    """An earlier call by the model. A call of a custom tool, whose input is a text, is read as a function call."""

    id: CallId | None = None
    type: Literal["function", ""] | None = "function"
    function: FunctionCall

    @model_validator(mode="before")
    @classmethod
    def read_custom_tool(cls, given: Any) -> Any:
        custom = given.get("custom") if isinstance(given, dict) and given.get("type") == "custom" else None
        if not isinstance(custom, dict):
            return given
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": given.get("id"), "type": "function", "function": function}


TranslatedContent = SkipJsonSchema[InstanceOf[Content]]  # set by code that translates a body; never from JSON


class MessageGiven(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Parts | TranslatedContent | None = None
    name: Name | None = None
    tool_calls: Annotated[list[CallGiven], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: CallId | None = None
    reasoning_content: Text | None = None


STRICT = (
    "Calls are guaranteed to fit `parameters`, or the request is refused: fully if the model writes arguments as JSON, "
    "in types and enumerations if it writes them as text between tags. Unless a call is required, this holds only for "
    "models that mark the beginning of a call, so not for Llama."
)


class FunctionGiven(Body):
    name: ToolName
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: Annotated[bool | None, Field(description=STRICT)] = None


class ToolGiven(Body):
    """A function or a custom tool that the model may call; tools of other types are refused by their type."""

    type: Word
    function: FunctionGiven | None = None
    custom: CustomGiven | None = None


class NamedFunction(Body):
    name: Name


class AllowedTool(Body):
    type: Word
    function: NamedFunction | None = None
    custom: NamedFunction | None = None


class AllowedTools(Body):
    """The given tools that may be called now."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(max_length=MAX_ALLOWED_TOOLS)]


class NamedTool(Body):
    type: Word
    function: NamedFunction | None = None
    custom: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


STRICT_FORMAT = "True: a schema with unsupported parts is refused. False: unsupported parts are ignored."


SCHEMA_WORDS = frozenset(  # that constrain something; every other schema admits everything
    (
        *("type", "properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems"),
        *("$ref", "$defs", "definitions", "anyOf", "oneOf", "allOf", "not", "if", "enum", "const", "pattern", "format"),
        *("minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
    )
)


class JsonSchema(Body):
    """A schema with its name, or, as some write it, the schema itself."""

    name: Name | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, Field(description=STRICT_FORMAT)] = None

    @model_validator(mode="before")
    @classmethod
    def name_schema(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("schema") is not None or not SCHEMA_WORDS & given.keys():
            return given
        named = {name: given[name] for name in ("name", "strict") if name in given}
        return named | {"schema": {name: value for name, value in given.items() if name not in ("name", "strict")}}


class ResponseFormat(Body):
    """`regex` and `grammar` (Lark) are ours, a `schema` beside the type is llama-server's; the others are OpenAI's."""

    type: Literal["text", "json_object", "json_schema", "regex", "grammar"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: Annotated[bool | None, Field(description=STRICT_FORMAT)] = None  # may also be set beside the schema
    regex: Text | None = None
    grammar: Text | None = None


class MisplacedFormat(Body):
    """The fields of a format, in an object whose `format` they belong in: refused (refuse_misplaced_format)."""

    type: Any = None
    schema_: Annotated[Any, Field(alias="schema")] = None
    json_schema: Any = None


class StreamOptions(Body):
    include_usage: bool | None = None


class AdapterScale(Body):
    """A LoRA adapter of the model, by its number, and how much of it to apply."""

    id: Annotated[int, Field(ge=0, le=2**31 - 1)]
    scale: Annotated[float, Finite]


LORA = "LoRA adapters of this answer; those that it does not name are off. See GET /lora-adapters."
CACHE = "`false` computes the whole prompt, without the prompt cache."


class SamplingGiven(Body):
    """The sampling fields of OpenAI's and llama.cpp's APIs; None: the server's default.

    All APIs accept them.
    """

    temperature: Annotated[float, Finite, Field(ge=0, le=10)] | None = None
    top_p: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    top_k: LookBack | None = None
    min_p: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Finite, Field(ge=0, le=1)] | None = None
    repeat_penalty: Annotated[float, Finite, Field(ge=0.01, le=10)] | None = None
    repetition_penalty: Annotated[float, Finite, Field(ge=0.01, le=10)] | None = None  # vLLM's name for it
    repeat_last_n: LookBack | None = None
    frequency_penalty: Annotated[float, Finite, Field(ge=-10, le=10)] | None = None
    presence_penalty: Annotated[float, Finite, Field(ge=-10, le=10)] | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=MAX_STOPS)] | None = None
    ignore_eos: bool | None = None
    spec: Literal["auto", "off", "pid"] | Annotated[int, Field(ge=0, le=16)] | None = None  # ours, as --spec
    cache_prompt: Annotated[bool | None, Field(description=CACHE)] = None  # llama.cpp's

    lora: Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS, description=LORA)] | None = None  # llama.cpp's

    @model_validator(mode="before")
    @classmethod
    def note_misspelled_fields(cls, given: Any) -> Any:
        if isinstance(given, dict):
            note_misspelled(given, (field.alias or name for name, field in cls.model_fields.items()))
        return given


class UnsupportedInPrompts(Body):
    """Fields that other servers support and that would change how a text is read: refused (unsupported_fields.py)."""

    truncate_prompt_tokens: Any = None


class Unsupported(UnsupportedInPrompts):
    """Fields of other servers that would change the answer: refused unless off (unsupported_fields.py)."""

    adaptive_target: Any = None
    allowed_token_ids: Any = None
    audio: Any = None
    bad_words: Any = None
    dry_multiplier: Any = None
    dynatemp_range: Any = None
    ebnf: Any = None
    function_call: Any = None
    functions: Any = None
    grammar: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    include_stop_str_in_output: Any = None
    json_schema: Any = None
    logits_processors: Any = None
    min_keep: Any = None
    min_tokens: Any = None
    mirostat: Any = None
    modalities: Any = None
    post_sampling_probs: Any = None
    prompt_logprobs: Any = None
    regex: Any = None
    stop_regex: Any = None
    stop_token_ids: Any = None
    structured_outputs: Any = None
    top_n_sigma: Any = None
    use_beam_search: Any = None
    web_search_options: Any = None
    xtc_probability: Any = None


class Elsewhere(Unsupported):
    """Unsupported fields, and the various APIs' names of the answer's format, limit and stop strings.

    A route declares its own ones, and refuses the others with its name for them.
    """

    format: Any = None
    max_output_tokens: Any = None
    output_config: Any = None
    output_format: Any = None
    response_format: Any = None
    stop_sequences: Any = None
    text: Any = None
    text_format: Any = None


class ElsewhereGiven(Elsewhere):
    """The fields that other APIs than OpenAI's refuse too, with their own name for them if there is one."""

    max_completion_tokens: Any = None
    n_predict: Any = None
    n: Any = None
    chat_template: Any = None


class AnswerFields(SamplingGiven, Elsewhere):
    """The fields shared by chat and plain completions."""

    model: Name = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Limit | None = None  # up to the room in the context
    max_completion_tokens: Limit | None = None  # the same; has precedence
    n_predict: ReadingLimit | None = None  # llama-server's name for it
    response_format: ResponseFormat | None = None
    store: bool | None = None  # false: nothing is kept of the answer, see `serve --learn`
    user: Any = None  # ignored


Effort = Literal[
    "none", "minimal", "low", "medium", "high", "xhigh", "max", "default", "auto", ""
]  # from "default" on: as if not set
CONTINUED = (
    "Continue the last message, which must be the assistant's. This is the default if that message has a text and no "
    "calls, and the request sets no format and requires no call; `false` starts a new message."
)


class ChatBody(AnswerFields):
    """POST /v1/chat/completions"""

    messages: Annotated[list[MessageGiven], Field(min_length=1, max_length=MAX_MESSAGES)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[ToolGiven], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required", "any"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    continue_final_message: Annotated[bool | None, Field(description=CONTINUED)] = None
    chat_template_kwargs: dict[Name, Any] | None = None
    tell_drafted: bool | None = None  # ours: each chunk of a stream says whether its tokens were drafted
    chat_template: Any = None


class CompletionBody(AnswerFields):
    """POST /v1/completions"""

    prompt: (
        Text
        | Annotated[list[Text], Field(max_length=MAX_PROMPTS)]
        | Tokens
        | Annotated[list[Tokens], Field(max_length=MAX_PROMPTS)]
    )
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None  # true: only of the tokens themselves
    best_of: int | None = None
    echo: bool | None = None
    suffix: Text | None = None  # text after the answer, for models that can fill in the middle
