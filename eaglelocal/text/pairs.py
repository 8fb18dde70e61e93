"""A query and a document as the tokens that a reranker reads, both in the form in which it was trained.

    encoders    <s> query </s></s> document </s>          from what their tokenizers frame texts with
    decoders    a template of the file (`rerank`) with {query} and {document}, around which it may write control tokens

What people wrote is text, whatever it spells: no control token comes of it. Pure but for the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eaglelocal.core.ports import Vocabulary
from eaglelocal.errors import RequestError

PLACES = re.compile(r"\{(query|document)\}")
SPARE = 0.98  # of the part of a document that should fit: tokens are not of one length


class Frame(NamedTuple):
    """Tokens around and between two texts."""

    before: Sequence[int]
    between: Sequence[int]
    after: Sequence[int]


class Pairs(Protocol):
    def __call__(self, query: str, document: str) -> list[int]: ...


class FramedPairs:
    """Of encoders."""

    def __init__(self, vocabulary: Vocabulary, frame: Frame) -> None:
        self._vocabulary, self._frame = vocabulary, frame

    def __call__(self, query: str, document: str) -> list[int]:
        q, d = (self._vocabulary.tokenize(text, add_special=False, parse_special=False) for text in (query, document))
        return [*self._frame.before, *q, *self._frame.between, *d, *self._frame.after]


class WrittenPairs:
    """Of models whose file has a template."""

    def __init__(self, vocabulary: Vocabulary, template: str) -> None:
        self._vocabulary = vocabulary
        longest_first = sorted(vocabulary.control_texts, key=len, reverse=True)
        controls = "|".join(map(re.escape, longest_first)) or "(?!)"
        in_turns = enumerate(re.split(f"({controls})", template))
        self._parts = [(text, bool(number % 2)) for number, text in in_turns if text]

    def __call__(self, query: str, document: str) -> list[int]:
        texts = {"query": query, "document": document}
        tokens: list[int] = []
        for part, is_control in self._parts:
            text = part if is_control else PLACES.sub(lambda found: texts[found[1]], part)
            tokens += self._vocabulary.tokenize(text, add_special=False, parse_special=is_control)
        return tokens


def fitting(pairs: Pairs, query: str, document: str, most: int, *, truncates: bool) -> list[int]:
    """At most so many tokens. `truncates`: the document may lose its end. Raises RequestError."""
    tokens = pairs(query, document)
    num_around = len(pairs(query, "")) if truncates and len(tokens) > most else 0
    while truncates and document and len(tokens) > most:
        share = max(most - num_around, 0) / max(len(tokens) - num_around, 1)  # of the document alone: few rounds
        document = document[: int(len(document) * SPARE * share)]
        tokens = pairs(query, document)
    if not tokens:
        raise RequestError("a query and a document are empty", parameter="documents")
    if len(tokens) > most:
        what = f"a query and a document of {len(tokens)} tokens exceed the context of {most}"
        hint = "a larger --ctx, or `truncate`"
        raise RequestError(what, hint=hint, parameter="documents", code="context_length_exceeded")
    return tokens
