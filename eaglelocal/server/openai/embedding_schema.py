"""Request bodies of the embedding and reranking routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from eaglelocal.server.openai.field_types import MAX_INPUTS, Body, Count, Name, Text, Tokens
from eaglelocal.server.openai.schema import UnsupportedInPrompts


class JinaDocument(Body):
    """A document in Jina's format."""

    text: Text


class RankingBody(UnsupportedInPrompts):
    """POST /v1/rerank: Jina's and Cohere's fields, or those of text-embeddings-inference (`texts`)."""

    lora: Any = None  # refused
    model: Name = ""
    query: Annotated[Text, Field(min_length=1)]
    documents: Annotated[list[Text | JinaDocument], Field(max_length=MAX_INPUTS)] | None = None
    texts: Annotated[list[Text], Field(max_length=MAX_INPUTS)] | None = None
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None
    truncate: Annotated[bool | None, Field(description="A document that does not fit loses its end.")] = None
    max_tokens_per_doc: Annotated[
        Count | None, Field(description="A document with more tokens loses its end (Cohere's); unset, none does.")
    ] = None
    truncation_direction: Literal["right", "Right"] | None = None  # text-embeddings-inference also allows left
    raw_scores: Annotated[bool | None, Field(description="The model's own scores, not probabilities.")] = None
    user: Any = None


class EmbeddingBody(UnsupportedInPrompts):
    """POST /v1/embeddings"""

    lora: Any = None  # refused
    model: Name = ""
    input: (
        Text
        | Annotated[list[Text], Field(max_length=MAX_INPUTS)]
        | Tokens
        | Annotated[list[Tokens], Field(max_length=MAX_INPUTS)]
    )
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: Any = None
