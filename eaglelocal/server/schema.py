"""Request bodies, validated field by field: limits and types of fields, and the bodies of chats and completions, which
the other dialects build on. The source of the OpenAPI document.

Unknown fields are ignored, because clients send many. Fields that would change the answer but are not supported are
in tables (unsupported_fields.py), so that they are refused instead of ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, InstanceOf, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import SkipJsonSchema

from eaglelocal.core.adapters import MAX_ADAPTERS
from eaglelocal.core.thinking import MAX_BUDGET, MAX_MESSAGE_CHARS
from eaglelocal.server.access_log import current_record
from eaglelocal.server.content import Content
from eaglelocal.server.http_errors import Problem, unsupported
from eaglelocal.server.unsupported_fields import CHAT, COMPLETION, RefusedFields, is_off

MAX_MESSAGES = 2048
MAX_TEXT_CHARS = 4 * 2**20
MAX_STOPS = 128
MAX_STOPS_CHARS = 16_000  # of all together: the matcher has a node for each character
MAX_CHOICES = 16
MAX_TOOLS = 128
MAX_TRANSLATED_TOOLS = 1024  # Anthropic has no limit, and clients with many MCP servers send more
MAX_ALLOWED_TOOLS = 1024  # names in allowed_tools
MAX_NAME_CHARS = 256
MAX_ID_CHARS = 1024  # of a call: some clients store state in it
MAX_PARTS = 1024  # of a message
MAX_PROMPTS = 64  # of a call
MAX_INPUTS = 2048  # of a call for embeddings
MAX_TOKENS = 2**20  # of a prompt


def clip_to(most: int) -> BeforeValidator:
    """Return a validator that lowers larger numbers to `most`."""

    def clip(value: object) -> object:
        return most if isinstance(value, int) and not isinstance(value, bool) and value > most else value

    return BeforeValidator(clip)


def not_zero(value: int) -> int:
    if value == 0:
        raise ValueError("0 leaves no tokens for an answer: send at least 1, or -1 for no limit")
    return value


Text = Annotated[str, Field(max_length=MAX_TEXT_CHARS)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
ToolName = Annotated[Name, Field(min_length=1, pattern=r"^[A-Za-z0-9_.:/-]+$")]  # some clients prefix a server's name
CallId = Annotated[str, Field(max_length=MAX_ID_CHARS)]
Word = Annotated[str, Field(max_length=64)]  # an enumeration that may be extended
Stop = Annotated[Text, Field(max_length=1000)]  # an empty one is ignored
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
MAX_LIMIT = 10_000_000  # tokens: more than any context holds
MAX_LOOK_BACK = 1_000_000  # likewise for the tokens that samplers look at
Count = Annotated[int, Field(ge=1), clip_to(MAX_LIMIT)]
ReadingLimit = Annotated[int, Field(ge=-1), clip_to(MAX_LIMIT)]  # -1: up to the context; 0: only read the prompt
Limit = Annotated[ReadingLimit, AfterValidator(not_zero), Field(json_schema_extra={"not": {"const": 0}})]
LookBack = Annotated[int, Field(ge=-1), clip_to(MAX_LOOK_BACK)]  # -1: all
TokenId = Annotated[int, Field(ge=0, le=2**31 - 1)]
Tokens = Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
Finite = Field(allow_inf_nan=False)  # 1e999 is valid JSON, and infinite
Bias = Annotated[float, Finite, Field(ge=-100, le=100)]


NEVER_BIAS = -100  # the lowest bias
BIAS_DESCRIPTION = "By token id. llama.cpp's pairs are accepted too; its `false` means never."


def parse_bias(given: object) -> object:
    """Return llama.cpp's `[[15043, 1.5], [7, false]]` as an object. Raises ValueError."""
    if isinstance(given, list):
        if not all(isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int for pair in given):
            raise ValueError("it must consist of pairs of a token id and its bias")
        given = {str(token): bias for token, bias in given}
    if isinstance(given, dict):
        return {token: NEVER_BIAS if bias is False else bias for token, bias in given.items()}
    return given


LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^[0-9]{1,9}$")], Bias],
    BeforeValidator(parse_bias),
    Field(description=BIAS_DESCRIPTION),
]


class Body(BaseModel):
    """The base of request bodies. Strict: a number is not accepted as text. Extra fields are ignored.

    Each body is built on its first use, because a server starts faster without them.
    """

    model_config = ConfigDict(strict=True, extra="ignore", defer_build=True)
    refused: ClassVar[RefusedFields] = {}  # fields that are refused unless they are off, beside those of the class

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        for name in cls.refused:
            cls.__pydantic_fields__[name] = FieldInfo(annotation=Any, default=None)

    def refuse_unsupported(self, *, path: str = "") -> None:
        """Raise Problem for a field of `refused`. `path`: of this body in the whole one, with a dot at the end."""
        for name, reason in self.refused.items():
            is_effectless = name == "min_tokens" and getattr(self, "ignore_eos", None)  # then no answer ends early
            if not is_off(name, getattr(self, name)) and not is_effectless:
                raise unsupported(f"{path}{name}", reason)

    @model_validator(mode="before")
    @classmethod
    def whole_numbers(cls, given: Any) -> Any:
        """Convert floats such as 100.0 to integers, because some languages write integers that way."""
        if not isinstance(given, dict):
            return given
        whole = {name: int(one) for name, one in given.items() if isinstance(one, float) and one.is_integer()}
        return given | whole


FORMATS = "regex binds the text; lark is only shown to the model"


class Grammar(Body):
    syntax: Annotated[Literal["lark", "regex"], Field(description=FORMATS)]
    definition: Text


class CustomFormat(Body):
    """The format of a custom tool's text. A grammar is in `grammar`, or beside it, as in /v1/responses."""

    type: Literal["text", "grammar"]
    grammar: Grammar | None = None
    syntax: Literal["lark", "regex"] | None = None
    definition: Text | None = None

    @property
    def rules(self) -> tuple[str, str]:
        """Return the syntax and the definition of the grammar; empty if there is none."""
        given = self.grammar or self
        return given.syntax or "", given.definition or ""


class CustomGiven(Body):
    """A tool of the client that takes a text."""

    name: ToolName
    description: Text | None = None
    format: CustomFormat | None = None


# ---- misspelled fields: notice fields of a request that look misspelled, because unknown fields are ignored
#
# They are not an error: clients send many fields of other servers. The response gets a warning in a header, and so does
# the line of the request in the log.
SIMILAR = 0.82  # least difflib ratio of close names: max_token and max_tokens are close, user_id and user not
FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]{2,39}")  # what may stand in a header
MAX_UNKNOWN = 32  # fields that are looked at
MAX_WARNINGS = 4


def note_misspelled(given: Mapping[object, object], known: Iterable[str], refused: Collection[str]) -> None:
    """Add a warning to the request's record for each unknown field that may be a misspelt one, not of `refused`."""
    names = set(known)
    free = names - given.keys() - set(refused)
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


class NamedTool(AllowedTool):
    allowed_tools: AllowedTools | None = None


STRICT_FORMAT = "True: a schema with unsupported parts is refused. False: unsupported parts are ignored."


SCHEMA_WORDS = frozenset(  # keywords that constrain something; a schema without them admits everything
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
    """The fields of an answer's format, sent beside `format` instead of in it: refused (refuse_misplaced_format)."""

    type: Any = None
    schema_: Annotated[Any, Field(alias="schema")] = None
    json_schema: Any = None


def refuse_misplaced_format(given: MisplacedFormat, place: str) -> None:
    """Raise Problem for a part of the answer's format that stands beside `format`, not in it."""
    parts = {"type": given.type, "schema": given.schema_, "json_schema": given.json_schema}
    for name, value in parts.items():
        if value is not None:
            raise Problem(400, f"the format of the answer belongs in {place}.format", parameter=f"{place}.{name}")


class StreamOptions(Body):
    include_usage: bool | None = None


class AdapterScale(Body):
    """A LoRA adapter of the model, by its number, and how much of it to apply."""

    id: Annotated[int, Field(ge=0, le=2**31 - 1)]
    scale: Annotated[float, Finite]


LORA = "LoRA adapters of this answer; those that it does not name are off. See GET /lora-adapters."
THINKING = "Most tokens of reasoning; 0: none, -1: as many as the model likes."
ThinkingMessage = Annotated[str, Field(max_length=MAX_MESSAGE_CHARS)]
Budget = Annotated[int, Field(ge=-1, le=MAX_BUDGET)]
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
    thinking_budget: Annotated[Budget | None, Field(description=THINKING)] = None
    thinking_token_budget: Budget | None = None  # vLLM's name for it
    thinking_budget_tokens: Budget | None = None  # llama-server's
    reasoning_budget: Budget | None = None  # that of its flag
    reasoning_budget_message: ThinkingMessage | None = None  # llama-server's: ends the reasoning
    spec: Literal["auto", "off", "pid"] | Annotated[int, Field(ge=0, le=16)] | None = None  # ours, as --spec
    cache_prompt: Annotated[bool | None, Field(description=CACHE)] = None  # llama.cpp's

    lora: Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS, description=LORA)] | None = None  # llama.cpp's

    @model_validator(mode="before")
    @classmethod
    def note_misspelled_fields(cls, given: Any) -> Any:
        if isinstance(given, dict):
            note_misspelled(given, (field.alias or name for name, field in cls.model_fields.items()), cls.refused)
        return given

    def sampling_fields(self) -> dict[str, Any]:
        """Return these fields with their values, for a body of another class."""
        return {name: getattr(self, name) for name in SamplingGiven.model_fields}


PROGRESS = "`true` streams `prompt_progress` while the prompt is read: tokens in total, from the cache, and so far."


class AnswerFields(SamplingGiven):
    """The fields shared by chat and plain completions."""

    refused = COMPLETION
    model: Name = ""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Limit | None = None  # up to the room in the context
    max_completion_tokens: Limit | None = None  # the same; has precedence
    n_predict: ReadingLimit | None = None  # llama-server's name for it
    response_format: ResponseFormat | None = None
    return_progress: Annotated[bool | None, Field(description=PROGRESS)] = None  # llama-server's
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

    refused = CHAT
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


class ReplyModel(BaseModel):
    """The base of reply models. Each is built on its first use, because a server starts faster without them."""

    model_config = ConfigDict(defer_build=True)


class ErrorDetail(ReplyModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(ReplyModel):
    error: ErrorDetail
