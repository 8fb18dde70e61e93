"""The German-English lexicon: nouns, verbs, adjectives, names of places and times.

Knows only words and their forms (`german.toml`); grammar is in `german_phrases` and `german`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from eaglelocal.core.records import dataclass
from eaglelocal.core.toml_text import read_toml


@dataclass(frozen=True, slots=True)
class Noun:
    article: str
    singular: str
    oblique: str
    plural: str
    english: str
    english_plural: str
    group: str


@dataclass(frozen=True, slots=True)
class Verb:
    infinitive: str
    present: str
    preterite: str
    participle: str
    prefix: str
    english: str
    english_past: str
    objects: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lexicon:
    groups: dict[str, tuple[Noun, ...]]
    verbs: tuple[Verb, ...]
    intransitive: tuple[Verb, ...]
    adjectives: tuple[tuple[str, str], ...]
    moods: tuple[tuple[str, str], ...]
    places: tuple[tuple[str, str], ...]
    times_now: tuple[tuple[str, str], ...]
    times_past: tuple[tuple[str, str], ...]


@cache
def lexicon() -> Lexicon:
    tables = read_toml(files(__package__).joinpath("german.toml").read_text(encoding="utf-8"))
    groups = {
        name: tuple(_noun(cell, name) for cell in _cells(table))
        for name, table in (
            ("people", tables["people"]),
            ("animal", tables["animals"]),
            ("food", tables["foods"]),
            ("text", tables["texts"]),
            ("thing", tables["things"]),
        )
    }
    groups["opening"] = _named(groups["thing"], "Tür", "Fenster", "Schrank", "Koffer", "Kasten", "Flasche", "Tasche")
    groups["cake"] = _named(groups["food"], "Kuchen", "Brötchen", "Keks", "Pfannkuchen")
    groups["learnable"] = _named(groups["text"], "Gedicht", "Lied", "Wort", "Rezept", "Satz")
    groups["story"] = _named(groups["text"], "Geschichte")
    return Lexicon(
        groups,
        tuple(map(_verb, _cells(tables["verbs"]))),
        tuple(map(_intransitive, _cells(tables["intransitive"]))),
        _adjectives(tables["adjectives"]),
        _adjectives(tables["moods"]),
        _pairs(tables["places"]),
        _pairs(tables["times_now"]),
        _pairs(tables["times_past"]),
    )


def _cells(table: str) -> list[str]:
    return [cell.strip() for cell in table.replace("\n", ";").split(";") if cell.strip()]


def _pairs(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((german, english) for german, english in (cell.split(" = ") for cell in _cells(table)))


def _adjectives(table: str) -> tuple[tuple[str, str], ...]:
    return tuple((german, english) for german, english in map(str.split, _cells(table)))


def _named(nouns: tuple[Noun, ...], *names: str) -> tuple[Noun, ...]:
    return tuple(noun for noun in nouns if noun.singular in names)


def _noun(cell: str, group: str) -> Noun:
    german, english = cell.split(" = ")
    article, singular, plural = german.split()
    base, _, oblique = singular.partition(">")
    one, many = english.split(" / ")
    return Noun(article, base, oblique or base, plural, one, many, group)


def _verb(cell: str) -> Verb:
    german, rest = cell.split(" = ")
    english, objects = rest.split(" : ")
    infinitive, present, preterite, participle, *prefix = german.split()
    base, past = english.split(", ")
    return Verb(infinitive, present, preterite, participle, "".join(prefix), base, past, tuple(objects.split()))


def _intransitive(cell: str) -> Verb:
    german, english = cell.split(" = ")
    infinitive, present, preterite = german.split()
    base, past = english.split(", ")
    return Verb(infinitive, present, preterite, "", "", base, past, ())
