"""Tasks to copy or rewrite a given text (kind "copy"), for which drafts looked up in the prompt work best.

Has texts to copy and six mechanical ways to rewrite one; every answer follows exactly from its prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random

from guide.corpus.passages import compose, genres
from guide.corpus.tasks import Check, CorpusTask, Split, ask, split_of
from guide.corpus.words import FIRST_NAMES, FRUITS, JOBS, MONTHS, OBJECTS, SORTS

Made = tuple[str, str]  # prompt, answer

_VERBATIM = (
    "Repeat this text:",
    "Copy the text below word for word.",
    "Please repeat the following exactly:",
    "Write this again:",
    "Say exactly this:",
    "Copy this:",
    "Echo the text.",
)
_FIELDS = ("company", "product", "day", "town", "colour", "object", "animal", "job", "person", "month", "food", "year")


def task(rng: Random, split: Split) -> CorpusTask:
    while split_of((made := rng.choice(_WAYS)(rng))[0]) != split:
        pass
    prompt, answer = made
    return ask("copy", prompt, answer, check=Check("exact", (answer,)))


def _passage(rng: Random) -> str:
    return compose(rng, rng.choice(genres()), max_more=3).text


def _short(rng: Random) -> str:
    passage = compose(rng, rng.choice(genres()), max_more=1)
    return passage.fill(rng.choice(passage.templates))


def _verbatim(rng: Random) -> Made:
    text = _passage(rng) if rng.random() < 0.6 else _short(rng)
    return f"{rng.choice(_VERBATIM)}\n{text}", text


def _replace(rng: Random) -> Made:
    """Make a task to replace one named value of a passage by another, wherever it stands."""
    passage = compose(rng, rng.choice(genres()), max_more=2)
    text = passage.text
    slots = [slot for slot in passage.values if _stands_alone(passage.values[slot], text)]
    old = passage.values[rng.choice(slots)]
    new = rng.choice((SORTS["town"], SORTS["first"], SORTS["product"]))(rng)
    wording = rng.choice(
        (
            "Replace {old} with {new} in this text:",
            "Rewrite this text with {new} in place of {old}.",
            "Change {old} to {new}:",
        )
    )
    return f"{wording.format(old=old, new=new)}\n{text}", text.replace(old, new)


def _stands_alone(value: str, text: str) -> bool:
    """Return True for capitalised values in the text, so that no part of another word is replaced."""
    return value[0].isupper() and value in text


def _items(rng: Random) -> list[str]:
    words = rng.choice((FRUITS, OBJECTS, JOBS, FIRST_NAMES))
    return rng.sample(words, rng.randint(3, 7))


def _bullets(rng: Random) -> Made:
    items = _items(rng)
    wording = rng.choice(("Turn this into a bullet list:", "Make a bullet list of this:", "As bullet points, please:"))
    return f"{wording} {', '.join(items)}", "\n".join(f"- {item}" for item in items)


def _numbered(rng: Random) -> Made:
    items = _items(rng)
    wording = rng.choice(("Turn this into a numbered list:", "Number these:", "Make a numbered list of this:"))
    return f"{wording} {', '.join(items)}", "\n".join(f"{i}. {item}" for i, item in enumerate(items, start=1))


def _commas(rng: Random) -> Made:
    items = _items(rng)
    wording = rng.choice(("Put this list on one line with commas:", "Join these lines with commas:"))
    return f"{wording}\n" + "\n".join(items), ", ".join(items)


def _iso_date(rng: Random) -> Made:
    day, month, year = rng.randint(1, 28), rng.randrange(12), rng.randint(1950, 2030)
    wording = rng.choice(("Write this date as YYYY-MM-DD:", "Convert the date to the form YYYY-MM-DD:", "ISO date for"))
    return f"{wording} {day} {MONTHS[month]} {year}", f"{year}-{month + 1:02d}-{day:02d}"


def _json(rng: Random) -> Made:
    fields = rng.sample(_FIELDS, rng.randint(2, 5))
    record = {field: SORTS[field](rng) for field in fields}
    wording = rng.choice(("Turn this into JSON:", "Convert these lines to JSON.", "Write this as a JSON object:"))
    lines = "\n".join(f"{field}: {value}" for field, value in record.items())
    return f"{wording}\n{lines}", json.dumps(record, indent=2)


_WAYS: tuple[Callable[[Random], Made], ...] = (
    _verbatim,
    _verbatim,
    _replace,
    _replace,
    _bullets,
    _numbered,
    _commas,
    _iso_date,
    _json,
)
