"""Small word problems of one or two steps.

Has stories and the operations that solve them; does not know how a working is written (`arithmetic`).
"""

from __future__ import annotations

from random import Random
from typing import Literal

from eaglelocal.core.records import dataclass
from guide.corpus.words import FIRST_NAMES, FRUITS

Operator = Literal["+", "-", "x"]
RawStep = tuple[int, Operator, int]

_THINGS = (
    *FRUITS,
    *("books", "coins", "stamps", "cards", "marbles", "shells"),
    *("pencils", "tickets", "eggs", "bottles", "stones", "buttons"),
)
_PACKS = tuple(["boxes", "bags", "baskets", "crates", "packs", "shelves"])

_ONE_STEP: tuple[tuple[str, Operator], ...] = (
    ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", "+"),
    ("{name} finds {a} {things} in the morning and {b} in the evening. How many {things} is that?", "+"),
    ("There are {a} {things} on the table and {b} in the cupboard. How many {things} are there?", "+"),
    ("{name} has {a} {things}. {other} has {b}. How many {things} do they have together?", "+"),
    ("A train carries {a} people and {b} more get on. How many people are on the train?", "+"),
    ("{name} has {a} {things} and gives {b} to {other}. How many {things} are left?", "-"),
    ("A shop has {a} {things} and sells {b}. How many {things} remain?", "-"),
    ("{name} needs {a} {things} and has {b}. How many more {things} are needed?", "-"),
    ("{name} had {a} {things} but lost {b} of them. How many {things} does {name} have now?", "-"),
    ("A book has {a} pages. {name} has read {b}. How many pages are left to read?", "-"),
    ("There are {a} {packs} with {b} {things} each. How many {things} are there?", "x"),
    ("{name} buys {a} {packs} of {b} {things}. How many {things} does {name} buy?", "x"),
    ("A ticket costs {b} euros. How much do {a} tickets cost?", "x"),
    ("{name} works {b} minutes a day for {a} days. How many minutes is that?", "x"),
)
_TWO_STEP: tuple[tuple[str, Operator, Operator], ...] = (
    ("{name} has {a} {things}, buys {b} more and then gives {c} away. How many {things} are left?", "+", "-"),
    ("A shop has {a} {things}. It sells {b} and gets {c} new ones. How many {things} does it have now?", "-", "+"),
    ("{name} has {a} {things}, {other} has {b} and a friend has {c}. How many {things} is that?", "+", "+"),
    ("{name} has {a} {things}, eats {b} and gives {c} to {other}. How many {things} remain?", "-", "-"),
    ("There are {a} {packs} with {b} {things} each and {c} single {things}. How many {things} are there?", "x", "+"),
    ("{name} buys {a} {packs} of {b} {things} and gives {c} {things} away. How many {things} are left?", "x", "-"),
)


@dataclass(frozen=True, slots=True)
class Story:
    """A word problem, the steps that solve it, and the result."""

    text: str
    steps: tuple[RawStep, ...]
    conclusion: str
    result: int


def tell(rng: Random) -> Story:
    return _two_steps(rng) if rng.random() < 0.3 else _one_step(rng)


def _one_step(rng: Random) -> Story:
    template, operator = rng.choice(_ONE_STEP)
    a, b = _operands(rng, operator)
    return Story(_fill(rng, template, (a, b)), ((a, operator, b),), "The answer is", _apply(a, operator, b))


def _two_steps(rng: Random) -> Story:
    template, first, second = rng.choice(_TWO_STEP)
    a, b = _operands(rng, first)
    between = _apply(a, first, b)
    c = rng.randint(1, max(1, min(between, 99))) if second == "-" else rng.randint(2, 99)
    steps: tuple[RawStep, ...] = ((a, first, b), (between, second, c))
    return Story(_fill(rng, template, (a, b, c)), steps, "The answer is", _apply(between, second, c))


def _operands(rng: Random, operator: Operator) -> tuple[int, int]:
    if operator == "x":
        return rng.randint(2, 9), rng.randint(3, 60)
    top = 99 if rng.random() < 0.6 else 450
    a, b = rng.randint(5, top), rng.randint(2, top)
    return (max(a, b) + 1, min(a, b)) if operator == "-" else (a, b)


def _apply(a: int, operator: Operator, b: int) -> int:
    match operator:
        case "+":
            return a + b
        case "-":
            return a - b
        case "x":
            return a * b


def _fill(rng: Random, template: str, numbers: tuple[int, ...]) -> str:
    name, other = rng.sample(FIRST_NAMES, 2)
    things, packs = rng.choice(_THINGS), rng.choice(_PACKS)
    values = dict(zip("abc", numbers, strict=False))
    return template.format(name=name, other=other, things=things, packs=packs, **values)
