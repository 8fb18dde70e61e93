"""A query and a document as the tokens that a reranker was trained on.

    encoders    <s> query </s></s> document </s>          with the tokens that their tokenizers put around texts
    decoders    a template of the file (`rerank`) with {query} and {document}, in which control tokens may be written

Users' texts never become control tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from eaglelocal.core.ports import Vocabulary
from eaglelocal.core.request import Ranking
from eaglelocal.core.run_options import suggest_ctx
from eaglelocal.errors import ModelFileError, RequestError

QUERY, DOCUMENT = "{query}", "{document}"
MAX_TEMPLATE_CHARS = 64 * 1024
MAX_PLACES = 8  # each is filled with a text of any length
PLACES = re.compile(r"\{(query|document)\}")


class Pairs:
    """A tokenizer of pairs: tokens, and texts in which {query} and {document} are filled in, in order."""

    def __init__(self, vocabulary: Vocabulary, parts: Sequence[str | Sequence[int]]) -> None:
        self._vocabulary, self._parts = vocabulary, parts

    def __call__(self, query: str, document: str, max_tokens: int | None = None) -> list[int]:
        """Return the tokens of a pair. The document is cut after `max_tokens` tokens."""
        texts = {"query": query, "document": document}
        tokens: list[int] = []
        for part in self._parts:
            tokens += self._tokenize_part(part, texts, max_tokens) if isinstance(part, str) else part
        return tokens

    def _tokenize_part(self, part: str, texts: dict[str, str], max_tokens: int | None) -> list[int]:
        """Return the tokens of a text. The rest after a cut document is tokenized separately."""
        before, place, after = part.partition(DOCUMENT)
        num_cut = len(self._tokenize(texts["document"])) - max_tokens if place and max_tokens is not None else 0
        if num_cut <= 0:
            return self._tokenize(_fill(part, texts))
        first = self._tokenize(_fill(before, texts) + texts["document"])
        return [*first[:-num_cut], *self._tokenize_part(after, texts, max_tokens)]

    def _tokenize(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


def frame_pairs(vocabulary: Vocabulary, frame: Sequence[Sequence[int]]) -> Pairs:
    """Return a tokenizer for encoders: `frame` has the tokens before, between and after the texts."""
    before, between, after = frame
    return Pairs(vocabulary, [before, QUERY, between, DOCUMENT, after])


def write_pairs(vocabulary: Vocabulary, template: str) -> Pairs:
    """Return a tokenizer for models whose file has a template.

    Raises ModelFileError for a template that is too long or repeats its texts too often.
    """
    if len(template) > MAX_TEMPLATE_CHARS:
        what = f"the template for pairs has {len(template)} characters, more than {MAX_TEMPLATE_CHARS}"
        raise ModelFileError(what)
    if (num_places := len(PLACES.findall(template))) > MAX_PLACES:
        raise ModelFileError(f"the template for pairs shows its texts {num_places} times, more than {MAX_PLACES}")
    longest_first = sorted(vocabulary.control_texts, key=len, reverse=True)
    controls = "|".join(map(re.escape, longest_first)) or "(?!)"
    parts: list[str | list[int]] = []
    for number, text in enumerate(re.split(f"({controls})", template)):
        is_control = bool(number % 2)
        parts.append(vocabulary.tokenize(text, add_special=False, parse_special=True) if is_control else text)
    return Pairs(vocabulary, [part for part in parts if part])


def _fill(part: str, texts: dict[str, str]) -> str:
    return PLACES.sub(lambda found: texts[found[1]], part)


def truncate_pair(pairs: Pairs, ranking: Ranking, document: str, max_tokens: int) -> list[int]:
    """Return a pair of at most `max_tokens` tokens, with at most `ranking.max_document_tokens` of the document.

    Raises RequestError if the pair is empty, or too long even after the truncation that the request allows.
    """
    tokens = pairs(ranking.query, document, ranking.max_document_tokens)
    if ranking.truncates and len(tokens) > max_tokens:
        tokens = _shorten(pairs, ranking.query, document, max_tokens) or tokens
    if not tokens:
        raise RequestError("a query and a document are empty", parameter=ranking.parameter)
    if len(tokens) > max_tokens:
        what = f"a query and a document of {len(tokens)} tokens exceed the context of {max_tokens}"
        hint = f"{suggest_ctx(len(tokens), answer_tokens=0)}, or `truncate`"
        raise RequestError(what, hint=hint, parameter=ranking.parameter, code="context_length_exceeded")
    return tokens


def _shorten(pairs: Pairs, query: str, document: str, max_tokens: int) -> list[int]:
    """Return the pair with as much of the document as fits; nothing if the query alone is too long.

    It takes one round, unless a template shows the document twice, or the text after it has more tokens when tokenized
    separately.
    """
    num_around = len(pairs(query, ""))
    num_kept = max_tokens - num_around  # of the document alone
    tokens: list[int] = []
    while num_kept >= 0:
        tokens = pairs(query, document, num_kept)
        if len(tokens) <= max_tokens:
            break
        num_kept = min(num_kept * (max_tokens - num_around) // (len(tokens) - num_around), num_kept - 1)
    return tokens
