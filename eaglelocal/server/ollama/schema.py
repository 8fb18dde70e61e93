"""Request bodies of Ollama's API, and the parts of its replies shown in the OpenAPI document.

Fields about memory and hardware (num_ctx, num_gpu, keep_alive) are fixed when this server starts: they are ignored
like unknown ones. Fields that would change the answer but are not supported are listed, so that they are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from eaglelocal.server.openai.field_types import (
    MAX_INPUTS,
    MAX_LIMIT,
    MAX_MESSAGES,
    MAX_TOOLS,
    MAX_TRANSLATED_TOOLS,
    Body,
    CallId,
    Limit,
    Name,
    Text,
    Word,
    clip_to,
)
from eaglelocal.server.openai.reply_schema import ReplyModel
from eaglelocal.server.openai.schema import ElsewhereGiven, FunctionGiven, SamplingGiven

Images = Annotated[list[str] | None, Field(repr=False, description="as base64")]
ZERO_DURATIONS = (0, "0", "0s", "0m")


class Options(SamplingGiven, ElsewhereGiven):
    num_predict: Annotated[int, clip_to(MAX_LIMIT)] | None = None  # -1, -2: until the context is full
    max_tokens: Any = None
    format: Any = None  # refused: it belongs into the body itself


class Called(Body):
    name: Name
    arguments: dict[str, Any] | Text | None = None


class OllamaCall(Body):
    id: CallId | None = None
    function: Called


class OllamaMessage(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    thinking: Text | None = None
    images: Images = None
    tool_calls: Annotated[list[OllamaCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_name: Name | None = None
    tool_call_id: CallId | None = None


class OllamaTool(Body):
    type: Word | None = None
    function: FunctionGiven


class OllamaAnswerFields(ElsewhereGiven):
    """The fields shared by chats and generated texts."""

    model: Name = ""
    stream: Annotated[bool | None, Field(description="unless false, the answer comes as lines of JSON")] = None
    options: Options | None = None
    format: Literal["", "json"] | dict[str, Any] | None = None
    think: Annotated[
        bool | Literal["low", "medium", "high", "max"] | None, Field(description="without it, as the model does")
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    max_tokens: Limit | None = None  # OpenAI's; used if the options set no limit
    keep_alive: Any = None

    @property
    def asks_to_unload(self) -> bool:
        """Return whether keep_alive is 0: the client no longer needs the model."""
        return self.keep_alive in ZERO_DURATIONS


class OllamaChatBody(OllamaAnswerFields):
    """POST /api/chat"""

    messages: Annotated[
        list[OllamaMessage] | None, Field(max_length=MAX_MESSAGES, description="none: load the model")
    ] = None
    tools: Annotated[list[OllamaTool], Field(max_length=MAX_TRANSLATED_TOOLS)] | None = None


class GenerateBody(OllamaAnswerFields):
    """POST /api/generate"""

    prompt: Annotated[Text | None, Field(description="none: load the model")] = None
    suffix: Text | None = None
    system: Text | None = None
    raw: bool | None = None
    template: Text | None = None
    context: list[Any] | None = None
    images: Images = None


class EmbedBody(Body):
    """POST /api/embed"""

    model: Name = ""
    input: Text | Annotated[list[Text], Field(max_length=MAX_INPUTS)] = ""
    truncate: Annotated[bool | None, Field(description="A text that does not fit loses its end, unless false.")] = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


class OldEmbedBody(Body):
    """POST /api/embeddings"""

    model: Name = ""
    prompt: Text = ""


class ShowBody(Body):
    """POST /api/show"""

    model: Name = ""
    name: Name = ""  # older clients' name for it


class OllamaError(ReplyModel):
    error: str


class VersionReply(ReplyModel):
    version: str
    eaglelocal: str


class Details(ReplyModel):
    """Details of a model; unknown ones are empty."""

    parent_model: str = ""
    format: str = "gguf"
    family: str = ""
    families: list[str] = Field(default=[])
    parameter_size: str = ""
    quantization_level: str = ""


class OllamaCard(ReplyModel):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: Details
    capabilities: list[str]


class TagsReply(ReplyModel):
    models: list[OllamaCard]


class Running(ReplyModel):
    name: str
    model: str
    size: int
    digest: str
    details: Details
    context_length: int


class PsReply(ReplyModel):
    models: list[Running]


class ShowReply(ReplyModel):
    modelfile: str = ""
    parameters: str = ""
    template: str = ""
    details: Details
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class AnswerReply(ReplyModel):
    model: str
    created_at: str
    done: bool
    done_reason: str


class OllamaChatReply(AnswerReply):
    message: dict[str, Any]


class GenerateReply(AnswerReply):
    response: str
    thinking: str | None = None


class EmbedReply(ReplyModel):
    model: str
    embeddings: list[list[float]]


class OldEmbedReply(ReplyModel):
    embedding: list[float]
