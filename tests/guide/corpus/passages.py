"""Passages about made-up events, with their summaries and the questions they answer.

Knows genres (`genres.toml`), how one is filled with values, and which values the text contains.
Does not know how a summary or an answer is asked for (`summary`, `passage_qa`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from random import Random

from eaglelocal.core.records import dataclass
from eaglelocal.core.toml_text import read_toml
from guide.corpus.words import SORTS

Variants = tuple[str, ...]
Drawer = Callable[[Random], str]

_ASIDES = (
    "Nobody had expected that.",
    "It was a busy week.",
    "More news will follow soon.",
    "The reports agree on this.",
    "Many people talked about it.",
    "Not everyone was pleased.",
    "There were some questions at first.",
    "It is not the first time.",
    "That made a good story.",
    "The rest of the week was quiet.",
)


@dataclass(frozen=True, slots=True)
class Query:
    """Questions about the value of a slot, and a sentence that answers them."""

    slot: str
    questions: Variants
    sentence: str


@dataclass(frozen=True, slots=True)
class Genre:
    """The templates of a kind of passage: sentences, summaries and queries, and the slots that they name."""

    name: str
    slots: tuple[tuple[str, Drawer], ...]
    lead: Variants
    core: tuple[Variants, ...]
    more: tuple[Variants, ...]
    summaries: Variants
    queries: tuple[Query, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage: its sentences as templates, and the values of their slots."""

    genre: Genre
    values: dict[str, str]
    templates: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(self.templates).format_map(self.values)

    @property
    def open_queries(self) -> tuple[Query, ...]:
        """The queries whose answer is in the text."""
        told = " ".join(self.templates)
        return tuple(query for query in self.genre.queries if "{" + query.slot + "}" in told)

    def fill(self, template: str) -> str:
        return template.format_map(self.values)


@cache
def genres() -> tuple[Genre, ...]:
    document = read_toml(files(__package__).joinpath("genres.toml").read_text(encoding="utf-8"))
    return tuple(_genre(entry) for entry in document["genre"])


def compose(rng: Random, genre: Genre, *, max_more: int = 5) -> Passage:
    """Return a passage of `genre`: its lead, all of its core and some more, with values that are all different."""
    values: dict[str, str] = {}
    for slot, draw in genre.slots:
        while (value := draw(rng)) in values.values():
            pass
        values[slot] = value
    more = rng.sample(genre.more, rng.randint(1, min(max_more, len(genre.more))))
    sentences = [rng.choice(group) for group in (genre.lead, *genre.core, *more)]
    if rng.random() < 0.3:
        sentences.append(rng.choice(_ASIDES))
    return Passage(genre, values, tuple(sentences))


def _genre(entry: dict[str, object]) -> Genre:
    match entry:
        case {
            "name": str(name),
            "slots": dict(slots),
            "lead": list(lead),
            "core": list(core),
            "more": list(more),
            "summary": list(summary),
            "ask": list(queries),
        }:
            return Genre(
                name,
                tuple((slot, _drawer(sort)) for slot, sort in slots.items()),
                tuple(lead),
                tuple(map(tuple, core)),
                tuple(map(tuple, more)),
                tuple(summary),
                tuple(Query(slot, tuple(questions), sentence) for slot, questions, sentence in queries),
            )
    raise ValueError(f"genres.toml: incomplete genre {entry.get('name')}")


def _drawer(sort: str | list[str]) -> Drawer:
    if isinstance(sort, list):
        values = tuple(sort)
        return lambda rng: rng.choice(values)
    if sort.startswith("int "):
        low, high = map(int, sort.split()[1:])
        return lambda rng: str(rng.randint(low, high))
    return SORTS[sort]
