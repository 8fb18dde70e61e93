"""Builds token ids of prompts without a chat template: mixed texts and tokens, and infill. Pure, over a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.core.image import ImageRows, PlacedImage, placeholder_ids
from eaglelocal.core.ports import FillTokens, Vocabulary
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import Infill, Mixed, Parts
from eaglelocal.errors import NOT_SUPPORTED, RequestError

CODE_TOKENS = 2048  # limit of the code around the gap
ANSWER_SHARE = 8  # an eighth of the context is left for the answer
SNIPPET = "\n\n--- snippet ---\n\n"
PROJECT, FILE = "myproject\n", "filename\n"  # requests have no names; llama-server writes these


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt's tokens and images.

    in_reasoning, in_text  the prompt ends within the answer's reasoning, or within its text
    after_reasoning        the prompt ends after the answer's reasoning, or thinking is off
    """

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    in_reasoning: bool = False
    in_text: bool = False
    after_reasoning: bool = False
    rendered: str = ""  # the template's output, if the request wants the prompt shown

    @property
    def num_rows(self) -> int:
        """The number of cells that the prompt takes."""
        return len(self.tokens) + sum(image.num_hidden for image in self.images)


def place_images(pieces: Iterable[int | ImageRows]) -> PromptTokens:
    """Return the prompt of these tokens and images, with stand-in ids in the images' positions."""
    tokens, images = list[int](), list[PlacedImage]()
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            images.append(PlacedImage(len(tokens), piece))
            tokens += placeholder_ids(piece)
    return PromptTokens(tuple(tokens), tuple(images))


def tokenize_mixed(mixed: Mixed, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of a list of texts and tokens."""
    tokens: list[int] = []
    for i, part in enumerate(mixed.parts):
        if isinstance(part, int):
            tokens.append(part)
            continue
        add_special = mixed.add_special and i == 0 and not starts_with_bos(part, vocabulary)
        tokens += vocabulary.tokenize(part, add_special=add_special, parse_special=mixed.parse_special)
    return tuple(tokens)


def starts_with_bos(text: str, vocabulary: Vocabulary) -> bool:
    """Return whether the text begins with BOS: templates often write it, and a second one would shift all positions."""
    return bool(vocabulary.bos_text) and text.startswith(vocabulary.bos_text)


def make_infill_prompt(infill: Infill, vocabulary: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    """Return the infill prompt, in llama-server's order (`format_prompt_infill`; https://arxiv.org/abs/2409.12186):

        PROJECT myproject FILE a.py (text of a.py) .. FILE filename BOS PREFIX before begun SUFFIX behind MIDDLE

    Text that does not fit is left out where it is furthest from the gap. The share of snippets depends on the context
    alone: while the code around the gap grows, the prompt keeps its beginning, which is then found in the cache.

    Raises RequestError if the vocabulary has no tokens for infill.
    """
    marks = vocabulary.fill_tokens
    if marks is None:
        raise RequestError("infill is not supported by this model: it has no tokens for it", code=NOT_SUPPORTED)
    num_code = min(CODE_TOKENS, n_ctx // 2)
    num_snippets = n_ctx - num_code - n_ctx // ANSWER_SHARE
    begun = tokenize_mixed(Mixed((infill.begun,), add_special=False), vocabulary)
    num_before = num_code * 3 // 4
    num_behind = max(num_code - num_before - len(begun) - 4, 0)  # four: the marks, and BOS
    return (
        *last_tokens(tokenize_snippets(infill, marks, vocabulary), num_snippets),
        *vocabulary.tokenize("", add_special=True, parse_special=False),
        marks.prefix,
        *last_tokens(tokenize_code(infill.before, vocabulary), num_before),
        *begun,
        marks.suffix,
        *tokenize_code(infill.behind, vocabulary)[:num_behind],
        marks.middle,
    )


def tokenize_snippets(infill: Infill, marks: FillTokens, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of the snippets from other files, separated by file tokens, or by a text if there are none."""
    tokens: list[int] = []
    if marks.project is not None:
        tokens += [marks.project, *tokenize_code((PROJECT,), vocabulary)]
    for name, text in infill.snippets:
        head = (
            [marks.file, *tokenize_code((f"{name}\n",), vocabulary)]
            if marks.file is not None
            else tokenize_code((SNIPPET,), vocabulary)
        )
        tokens += [*head, *tokenize_code((text,), vocabulary)]
    if marks.file is not None:
        tokens += [marks.file, *tokenize_code((FILE,), vocabulary)]
    return tuple(tokens)


def tokenize_code(parts: Parts, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of code, in which control tokens are plain text."""
    return tokenize_mixed(Mixed(parts, add_special=False, parse_special=False), vocabulary)


def last_tokens(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tokens[max(len(tokens) - count, 0) :]
