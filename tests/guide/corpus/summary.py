"""Summaries of given passages (kind "summarise").

Asks for summaries of passages from `passages`; a summary is right if it names the main values.
"""

from __future__ import annotations

import re
from random import Random

from guide.corpus.passages import Passage, compose, genres
from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of

_SLOT = re.compile(r"\{(\w+)\}")
_BEFORE = (
    "Summarise this text:",
    "Summarize the following text.",
    "Please summarise the passage below.",
    "Give me a short summary of this:",
    "Sum up this note in one or two sentences.",
    "What is this text about?",
    "Write a brief summary.",
    "Can you shorten this to the main points?",
    "Tell me briefly what happened.",
    "Summary please:",
    "TL;DR of this text:",
    "Here is a text. Sum it up.",
    "Summarize:",
    "Summarise:",
    "summary:",
    "Shorten this:",
    "tl;dr:",
    "Summarize this:",
)
_AFTER = (
    "Summarise the text above.",
    "Please give a short summary.",
    "Sum this up in one or two sentences.",
    "What is the text above about?",
    "tl;dr",
    "Can you summarize that?",
    "Give me the main points.",
)


def task(rng: Random, split: Split) -> CorpusTask:
    while split_of((passage := compose(rng, rng.choice(genres()))).text) != split:
        pass
    template = rng.choice(passage.genre.summaries)
    check = Check("contains", _expected(passage, template))
    return ask("summarise", _request(rng, passage.text), passage.fill(template), check=check)


def _request(rng: Random, text: str) -> str:
    gap = rng.choice(("\n", "\n\n", " "))
    if rng.random() < 0.65:
        return f"{rng.choice(_BEFORE)}{gap}{text}"
    return f"{text}{gap}{rng.choice(_AFTER)}"


def _expected(passage: Passage, template: str) -> tuple[str, ...]:
    """Return the values that every summary of the genre names."""
    common = set.intersection(*(set(_SLOT.findall(summary)) for summary in passage.genre.summaries))
    return tuple(passage.values[slot] for slot in _SLOT.findall(template) if slot in common)
