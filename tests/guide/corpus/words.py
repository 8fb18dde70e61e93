"""Names, places, products, numbers and times to fill slots with.

Knows word lists (`words.toml`) and how to draw a value of a named sort; does not know what the values are for.
Towns, surnames and products are made of syllables, so that a model has to copy them and cannot learn them all.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from random import Random

from eaglelocal.core.toml_text import read_toml


@cache
def _lists() -> dict[str, tuple[str, ...]]:
    document = read_toml(files(__package__).joinpath("words.toml").read_text(encoding="utf-8"))
    return {name: tuple(entry.strip() for entry in text.split(",")) for name, text in document.items()}


FIRST_NAMES = _lists()["first_names"]
_SURNAME_HEADS = _lists()["surname_heads"]
_SURNAME_TAILS = _lists()["surname_tails"]
_TOWN_HEADS = _lists()["town_heads"]
_TOWN_TAILS = _lists()["town_tails"]
CITIES = _lists()["cities"]
_PRODUCT_HEADS = _lists()["product_heads"]
_PRODUCT_TAILS = _lists()["product_tails"]
MONTHS = _lists()["months"]
DAYS = _lists()["days"]
COLOURS = _lists()["colours"]
JOBS = _lists()["jobs"]
ANIMALS = _lists()["animals"]
FOODS = _lists()["foods"]
FRUITS = _lists()["fruits"]
OBJECTS = _lists()["objects"]
BUILDINGS = _lists()["buildings"]
TEAMS = _lists()["teams"]


def person(rng: Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {surname(rng)}"


def surname(rng: Random) -> str:
    return rng.choice(_SURNAME_HEADS) + rng.choice(_SURNAME_TAILS)


def town(rng: Random) -> str:
    return rng.choice(CITIES) if rng.random() < 0.3 else rng.choice(_TOWN_HEADS) + rng.choice(_TOWN_TAILS)


def product(rng: Random) -> str:
    name = rng.choice(_PRODUCT_HEADS) + rng.choice(_PRODUCT_TAILS)
    return name if rng.random() < 0.6 else f"{name} {rng.randint(2, 9)}"


def company(rng: Random) -> str:
    return f"{surname(rng)} {rng.choice(('Works', 'Systems', 'Brothers', 'Group', 'Labs', 'Partners', 'Tools'))}"


def date(rng: Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"


def clock(rng: Random) -> str:
    return f"{rng.randint(6, 22)}:{rng.choice(('00', '15', '30', '45'))}"


def year(rng: Random) -> str:
    return str(rng.randint(1890, 2024))


def number(rng: Random) -> str:
    return str(rng.randint(3, 99) if rng.random() < 0.6 else rng.randint(10, 99) * 10)


def _of(values: tuple[str, ...]) -> Callable[[Random], str]:
    return lambda rng: rng.choice(values)


SORTS: dict[str, Callable[[Random], str]] = {
    "person": person,
    "first": _of(FIRST_NAMES),
    "surname": surname,
    "town": town,
    "product": product,
    "company": company,
    "date": date,
    "clock": clock,
    "year": year,
    "number": number,
    "month": _of(MONTHS),
    "day": _of(DAYS),
    "colour": _of(COLOURS),
    "job": _of(JOBS),
    "animal": _of(ANIMALS),
    "food": _of(FOODS),
    "fruit": _of(FRUITS),
    "object": _of(OBJECTS),
    "building": _of(BUILDINGS),
    "team": _of(TEAMS),
}
