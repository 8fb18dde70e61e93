"""Request bodies of llama-server's own routes, and the parts of their replies shown in the OpenAPI document.

Fields about slots and the cache (id_slot, n_keep, n_cache_reuse, t_max_prompt_ms), and n_indent, which clients handle
too, are ignored like unknown fields.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, RootModel

from eaglelocal.core.adapters import MAX_ADAPTERS
from eaglelocal.server.openai.field_types import (
    MAX_CHOICES,
    MAX_TOKENS,
    Body,
    Name,
    ReadingLimit,
    Text,
    TokenId,
    Tokens,
    Word,
)
from eaglelocal.server.openai.reply_schema import ReplyModel
from eaglelocal.server.openai.schema import AdapterScale, AnswerFields, ChatBody

MAX_FIELDS = 256
MAX_SNIPPETS = 1024

Mixed = Annotated[list[TokenId | Text], Field(max_length=MAX_TOKENS)]


class WrittenPrompt(Body):
    prompt_string: Text | Mixed
    multimodal_data: list[Any] | None = None


SAMPLERS = (
    "What is not named is off. Their order is llama.cpp's: penalties, top_k, typ_p, top_p, min_p, temperature. With "
    "`infill`, of which this server has none, the most likely token is taken."
)
LINE_LIMIT = "Milliseconds from the first token: the first line that ends later ends the answer."


class LlamaAnswerFields(AnswerFields):
    """The fields shared by completions and infills."""

    max_tokens: ReadingLimit | None = None
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

    prompt: Text | WrittenPrompt | Annotated[list[TokenId | Text | Mixed | WrittenPrompt], Field(max_length=MAX_TOKENS)]


class Snippet(Body):
    text: Text
    filename: Name | None = None


class InfillBody(LlamaAnswerFields):
    """POST /infill"""

    input_prefix: Text | Mixed
    input_suffix: Text | Mixed
    input_extra: Annotated[list[Snippet], Field(max_length=MAX_SNIPPETS)] | None = None
    prompt: Annotated[Text | None, Field(description="the first words of what belongs into the gap")] = None


class TokenizeBody(Body):
    """POST /tokenize"""

    model: Name = ""
    content: Text | Mixed | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    prompt: Any = None  # vLLM's names, refused if there is no content
    messages: Any = None


class DetokenizeBody(Body):
    """POST /detokenize"""

    model: Name = ""
    tokens: Tokens | None = None


class TemplateBody(ChatBody):
    """POST /apply-template"""


class LlamaReply(ReplyModel):
    """A completion, whole or with only the requested `response_fields`."""

    content: str | None = None
    generation_settings: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class TokensReply(ReplyModel):
    tokens: list[Any]


class ContentReply(ReplyModel):
    content: str


class PromptReply(ReplyModel):
    prompt: str


class PropsReply(ReplyModel):
    default_generation_settings: dict[str, Any]
    adapters: list[dict[str, Any]]  # LoRA adapters with their present scales
    total_slots: int
    model_alias: str
    model_path: str
    modalities: dict[str, bool]
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class AdaptersBody(RootModel[Annotated[list[AdapterScale], Field(max_length=MAX_ADAPTERS)]]):
    """POST /lora-adapters"""


class LlamaServerAdapter(ReplyModel):
    """A LoRA adapter: `scale` is that of requests without `lora`. Of its path only the file's name is shown."""

    id: int
    path: str
    scale: float


class AdaptersReply(ReplyModel):
    success: bool


class LlamaServerSlot(ReplyModel):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
