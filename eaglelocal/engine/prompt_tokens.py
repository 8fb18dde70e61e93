"""Builds token ids of prompts without a chat template: mixed texts and tokens, and infill. Pure, over a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eaglelocal.core.image import ImageRows, PlacedImage, placeholder_ids
from eaglelocal.core.ports import FillTokens, Vocabulary
from eaglelocal.core.request import Infill, Mixed, Parts
from eaglelocal.errors import NOT_SUPPORTED, RequestError

CODE_TOKENS = 2048  # at most, of the code around the gap
ANSWER_SHARE = 8  # an eighth of the context is left for the answer
SNIPPET = "\n\n--- snippet ---\n\n"
PROJECT, FILE = "myproject\n", "filename\n"  # the names are not given; llama-server writes these


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompt's tokens and images.

    in_reasoning, in_text  the prompt ends inside the reasoning of the answer, or inside its text
    """

    tokens: tuple[int, ...]
    images: tuple[PlacedImage, ...] = ()
    in_reasoning: bool = False
    in_text: bool = False
    rendered: str = ""  # the template's output, if the request wants the prompt shown

    @property
    def num_rows(self) -> int:
        """The number of cells that the prompt takes."""
        return len(self.tokens) + sum(image.num_hidden for image in self.images)


def placed(pieces: Iterable[int | ImageRows]) -> PromptTokens:
    """Return the prompt of these tokens and images, with stand-in ids in the images' positions."""
    tokens, images = list[int](), list[PlacedImage]()
    for piece in pieces:
        if isinstance(piece, int):
            tokens.append(piece)
        else:
            images.append(PlacedImage(len(tokens), piece))
            tokens += placeholder_ids(piece)
    return PromptTokens(tuple(tokens), tuple(images))


def mixed_tokens(mixed: Mixed, vocabulary: Vocabulary) -> tuple[int, ...]:
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


def infill_prompt(infill: Infill, vocabulary: Vocabulary, n_ctx: int) -> tuple[int, ...]:
    """Return the infill prompt, in llama-server's order (`format_prompt_infill`; https://arxiv.org/abs/2409.12186):

        PROJECT myproject FILE a.py (text of a.py) .. FILE filename BOS PREFIX before begun SUFFIX behind MIDDLE

    Text that has no room is left out where it is furthest from the gap. How much of the snippets is read depends on the
    context alone: while the code around the gap grows, the prompt keeps its beginning, which a cache then holds.

    Raises RequestError where the vocabulary has no tokens for it.
    """
    marks = vocabulary.fill_tokens
    if marks is None:
        raise RequestError("infill is not supported by this model: it has no tokens for it", code=NOT_SUPPORTED)
    num_code = min(CODE_TOKENS, n_ctx // 2)
    num_snippets = n_ctx - num_code - n_ctx // ANSWER_SHARE
    begun = mixed_tokens(Mixed((infill.begun,), add_special=False), vocabulary)
    num_before = num_code * 3 // 4
    num_behind = max(num_code - num_before - len(begun) - 4, 0)  # four: the marks, and BOS
    return (
        *last(snippet_tokens(infill, marks, vocabulary), num_snippets),
        *vocabulary.tokenize("", add_special=True, parse_special=False),
        marks.prefix,
        *last(plain(infill.before, vocabulary), num_before),
        *begun,
        marks.suffix,
        *plain(infill.behind, vocabulary)[:num_behind],
        marks.middle,
    )


def snippet_tokens(infill: Infill, marks: FillTokens, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of the snippets from other files, separated by file tokens, or by a text if there are none."""
    tokens: list[int] = []
    if marks.project is not None:
        tokens += [marks.project, *plain((PROJECT,), vocabulary)]
    for name, text in infill.snippets:
        head = (
            [marks.file, *plain((f"{name}\n",), vocabulary)]
            if marks.file is not None
            else plain((SNIPPET,), vocabulary)
        )
        tokens += [*head, *plain((text,), vocabulary)]
    if marks.file is not None:
        tokens += [marks.file, *plain((FILE,), vocabulary)]
    return tuple(tokens)


def plain(parts: Parts, vocabulary: Vocabulary) -> tuple[int, ...]:
    """Return the tokens of code, in which control tokens are plain text."""
    return mixed_tokens(Mixed(parts, add_special=False, parse_special=False), vocabulary)


def last(tokens: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tokens[max(len(tokens) - count, 0) :]
