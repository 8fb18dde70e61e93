"""Texts on which an ambiguous regular expression backtracks for long, generated from the expression itself.

For every repeat in it: a text that leads to the repeat, its body n times, and an end that does not match. For a search
also beginnings of a match, one after the other: each is tried, and may run to the end of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product

# what nearly every expression treats apart; runs of these need no analysis
RUNS = (
    *"aA0_ \t\n\"'\\/.:-<>{}[]($*#`~|,;=!%@é、",
    "a ",
    "a.",
    " a",
    "-a",
    "\n ",
    "a\n",
    "0.",
    "a,",
    "<|",
    "//",
    '\\"',
)
ENDS = ("", "!", "\n", "\0", "}", " ")
ALPHABET = "aAzq019_-. \n\t\"'\\/:<>{}[]()$*#`~|,;=!%@é\0"
MANY = 16  # a repeat that is bounded by less is no repeat

Node = tuple[object, object]


def attacks(pattern: re.Pattern[str], size: int) -> Iterator[str]:
    """Yield texts of about `size` characters, of the same shapes for every size."""
    for head, pump, end in _distinct_shapes(pattern):
        yield head + (pump * (size // len(pump) + 1))[:size] + end


@cache
def _distinct_shapes(pattern: re.Pattern[str]) -> tuple[tuple[str, str, str], ...]:
    return tuple(dict.fromkeys(_shapes(pattern)))


def _shapes(pattern: re.Pattern[str]) -> Iterator[tuple[str, str, str]]:
    yield from (("", run, end) for run, end in product(RUNS, ENDS[:2]))
    parsed = list(re._parser.parse(pattern.pattern, pattern.flags))  # type: ignore[attr-defined]
    for head, pump in _pumps(parsed, ""):
        if pump:
            yield from ((head, pump, end) for end in ENDS)
            yield from (("", head + pump, end) for end in ENDS[:2])
            yield from (("", head + pump * 3, end) for end in ENDS[:2])
    for length in range(1, len(parsed) + 1):  # beginnings of a match, again and again
        if begun := _sample(parsed[:length]):
            yield from (("", begun, end) for end in ENDS[:2])


def _pumps(nodes: list[Node], head: str) -> Iterator[tuple[str, str]]:
    """Before each repeat in these nodes what leads to it, and each of some texts that it repeats."""
    for index, node in enumerate(nodes):
        for inside in _inside(node):
            yield from _pumps(inside, head)
        if _is_repeat(node):
            _, (_, _, body) = node  # type: ignore[misc]
            behind = nodes[index + 1 : index + 3]
            yield from ((head, pump) for pump in dict.fromkeys(_samples(list(body), behind)))
        head += _sample([node])


def _is_repeat(node: Node) -> bool:
    return "REPEAT" in str(node[0]) and node[1][1] >= MANY  # type: ignore[index]


def _inside(node: Node) -> Iterator[list[Node]]:
    """The sequences that a node consists of."""
    name, argument = str(node[0]), node[1]
    match name:
        case "SUBPATTERN":
            yield list(argument[-1])  # type: ignore[index]
        case "BRANCH":
            yield from map(list, argument[1])  # type: ignore[index]
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            yield list(argument[2])  # type: ignore[index]
        case "ASSERT" | "ASSERT_NOT":
            yield list(argument[1])  # type: ignore[index]
        case "ATOMIC_GROUP":
            yield list(argument)  # type: ignore[call-overload]


def _samples(body: list[Node], behind: list[Node]) -> Iterator[str]:
    """Texts that a repeat's body takes: the plainest, those that also what follows takes, and some of other kinds."""
    yield _sample(body)
    if len(body) == 1 and (chars := _chars(body[0])):
        shared = [char for node in behind for char in _first_chars(node) if char in chars]
        yield from [*shared[:4], *chars[:: max(1, len(chars) // 6)]]
    for inside in (one for node in body for one in _inside(node)):
        yield _sample(inside)
        yield _sample(inside) * 2


def _first_chars(node: Node) -> str:
    return _chars(node) or "".join(_first_chars(inside[0]) for inside in _inside(node) if inside)


def _chars(node: Node) -> str:
    """Of the alphabet, what one-character nodes take."""
    name, argument = str(node[0]), node[1]
    match name:
        case "LITERAL":
            return chr(argument)  # type: ignore[arg-type]
        case "NOT_LITERAL":
            return "".join(char for char in ALPHABET if ord(char) != argument)
        case "ANY":
            return ALPHABET.replace("\n", "")
        case "IN":
            return "".join(char for char in ALPHABET + _named(argument) if _is_in(char, argument))  # type: ignore[arg-type]
    return ""


def _named(items: object) -> str:
    """Characters that a class names itself."""
    named = [item[1] for item in items if str(item[0]) == "LITERAL"]  # type: ignore[attr-defined]
    return "".join(map(chr, named)) + "".join(chr(item[1][0]) for item in items if str(item[0]) == "RANGE")  # type: ignore[attr-defined]


def _is_in(char: str, items: list[Node]) -> bool:
    is_negated = bool(items) and str(items[0][0]) == "NEGATE"
    return is_negated != any(_takes(char, item) for item in items)


def _takes(char: str, item: Node) -> bool:
    name, argument = str(item[0]), item[1]
    match name:
        case "LITERAL":
            return ord(char) == argument
        case "RANGE":
            return argument[0] <= ord(char) <= argument[1]  # type: ignore[index]
        case "CATEGORY":
            kind = str(argument).removeprefix("CATEGORY_").lower()
            is_kind = {"digit": str.isdigit, "space": str.isspace, "word": lambda one: one.isalnum() or one == "_"}
            return is_kind[kind.removeprefix("not_")](char) != kind.startswith("not_")
    return False


def _sample(nodes: list[Node]) -> str:
    """A short text that these nodes take, or nearly: what looks around or refers back takes nothing here."""
    return "".join(map(_sample_of, nodes))


def _sample_of(node: Node) -> str:
    name, argument = str(node[0]), node[1]
    if chars := _chars(node):
        return chars[0]
    if "REPEAT" in name:
        return _sample(list(argument[2])) * max(1, min(argument[0], 64))  # type: ignore[index]
    if name in ("ASSERT", "ASSERT_NOT"):
        return ""
    return next(map(_sample, _inside(node)), "")
