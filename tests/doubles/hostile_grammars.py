"""Schemas, regular expressions and grammars of an adversary: odd, deep, large, wrong, sometimes honest."""

from __future__ import annotations

import json
from random import Random

from eaglelocal.core.constraint import Constraint, Syntax

PRIMES = (2, 3, 7, 97, 997, 9973, 99_991, 999_983, 10**12 + 39)
COUNTS = (0, 1, 2, 5, 31, 100, 999, 10_000, 10**6, 10**9)
TYPES = ("string", "integer", "number", "object", "array", "boolean", "null", "wat")
FORMATS = ("date-time", "date", "time", "uuid", "email", "ipv4", "ipv6", "uri", "hostname", "regex", "nothing")
CLASSES = (".", "a", "[a-z]", "[^a-z]", r"\d", r"\w", r"\p{L}", r"\s", "é", "\U0001f985", r"\x00", "[\\s\\S]")
COMPOSING = ("anyOf", "oneOf", "allOf")
RULES = ("a", "b", "c", "d", "e")


def hostile(random: Random) -> Constraint:
    """Return the next random constraint; the seed of `random` determines the sequence."""
    kind = random.choice(("schema", "schema", "chain", "regex", "lark"))
    is_strict = random.random() < 0.5
    match kind:
        case "schema":
            return Constraint(Syntax.JSON_SCHEMA, json.dumps(schema(random, random.randint(0, 6))), is_strict=is_strict)
        case "chain":
            return Constraint(Syntax.JSON_SCHEMA, json.dumps(chain(random)), is_strict=is_strict)
        case "regex":
            return Constraint(Syntax.REGEX, regex(random, random.randint(0, 7)))
    return Constraint(Syntax.LARK, lark(random))


def schema(random: Random, depth: int) -> object:
    """Return a random schema, or sometimes a value that is none."""
    if random.random() < 0.04:
        return random.choice((True, False, None, 1, [], "x", {}))
    made: dict[str, object] = {}
    for _ in range(random.randint(1, 4)):
        made.update(_keyword(random, depth))
    return made


def _keyword(random: Random, depth: int) -> dict[str, object]:
    deeper = depth - 1
    leaf = (
        lambda: {"type": random.choice(TYPES)},
        lambda: {"type": "integer", "multipleOf": random.choice(PRIMES)},
        lambda: {"multipleOf": random.choice((0.1, 1e-9, 0, -1, 1e300, 0.333))},
        lambda: {"type": "string", "pattern": regex(random, random.randint(0, 4))},
        lambda: {"type": "string", "maxLength": random.choice(COUNTS), "minLength": random.choice(COUNTS)},
        lambda: {"type": "string", "format": random.choice(FORMATS)},
        lambda: {"minimum": random.choice((-1e18, 0, 1, 1e18)), "maximum": random.choice((-1, 0, 10**15, 1e308))},
        lambda: {
            "enum": [random.choice(("a", 1, None, True, "x" * 50, [1], {"a": 1})) for _ in range(random.randint(0, 40))]
        },
        lambda: {"enum": [f"value {i}" for i in range(random.choice((1, 100, 3000)))]},
        lambda: {"const": _deep(random.randint(0, 80))},
        lambda: {"$ref": random.choice(("#", "#/$defs/a", "#/nowhere", "#/properties/a", "http://x/y", "", 3))},
        lambda: {"minItems": random.choice(COUNTS), "maxItems": random.choice(COUNTS)},
        lambda: {"required": [f"p{i}" for i in range(random.choice((0, 1, 30, 400)))]},
        lambda: {"uniqueItems": True},
        lambda: {random.choice(("wat", "$schema", "title", "default", "x-y")): random.choice((1, "x", None, {}))},
    )
    if depth <= 0:
        return random.choice(leaf)()
    inner = (
        lambda: {
            "properties": {
                random.choice("abcdef") * random.choice((1, 1, 99)): schema(random, deeper) for _ in range(4)
            }
        },
        lambda: {"properties": {f"p{i}": {"type": "string"} for i in range(random.choice((3, 60, 500)))}},
        lambda: {"items": schema(random, deeper), "type": "array"},
        lambda: {"prefixItems": [schema(random, deeper) for _ in range(random.randint(1, 5))]},
        lambda: {
            random.choice(("anyOf", "oneOf", "allOf")): [schema(random, deeper) for _ in range(random.randint(0, 5))]
        },
        lambda: {random.choice(("not", "if", "then", "additionalProperties", "contains")): schema(random, deeper)},
        lambda: {"patternProperties": {regex(random, 2): schema(random, deeper)}},
        lambda: {"$defs": {name: schema(random, deeper) for name in "ab"}},
    )
    return random.choice((*leaf, *inner, *inner))()


def _deep(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def chain(random: Random) -> object:
    """Return a schema of many definitions that refer to each other, in a row or in a ring."""
    count, word = random.choice((3, 30, 300, 1500)), random.choice(COMPOSING)
    ends = random.choice(({"type": "string"}, {"$ref": "#/$defs/d0"}, True))
    step = random.choice((1, 1, 2, 7))
    links: dict[str, object] = {}
    for i in range(count):
        next_one = {"$ref": f"#/$defs/d{min(i + step, count)}"}
        links[f"d{i}"] = random.choice(
            ({word: [next_one, {"type": "integer"}]}, {"properties": {"a": next_one}}, next_one)
        )
    return {"$defs": {**links, f"d{count}": ends}, "$ref": "#/$defs/d0"}


def regex(random: Random, depth: int) -> str:
    if depth <= 0:
        return random.choice(CLASSES)
    one = lambda: regex(random, depth - 1)  # noqa: E731
    low = random.choice(COUNTS[:7])
    made = (
        lambda: f"({one()})*",
        lambda: f"({one()})+?",
        lambda: f"({one()}){{{low},{low + random.choice(COUNTS[:7])}}}",
        lambda: f"({one()}|{one()}|{one()})",
        lambda: one() + one() + one(),
        lambda: f"(?:{one()})?" * random.choice((1, 20)),
        lambda: f".*{one()}.{{{random.choice(COUNTS[:6])}}}",
        lambda: f"(?={one()}){one()}",
        lambda: f"({one()})\\1",
        lambda: f"^{one()}$",
        lambda: f"(?i){one()}",
        lambda: "(" * 300 + one() + ")" * 300,
        lambda: f"[{one()}",
    )
    return random.choice((*made[:7], *made[:7], *made))()


def lark(random: Random) -> str:
    """Return a grammar with random rules: recursive, ambiguous, with references to missing ones."""
    rules = [f"start: {_body(random, 3)}", *(f"{name}: {_body(random, 3)}" for name in random.sample(RULES, 4))]
    rules.append(f"A: /{regex(random, 3).replace('/', '')}/ & ~/{regex(random, 2).replace('/', '')}/")
    if random.random() < 0.2:
        rules.append(f"j: %json {json.dumps(schema(random, 2))}")
    if random.random() < 0.2:
        rules += [f"r{i}: r{i + 1} {random.choice(('', 'a', '|'))}" for i in range(random.choice((50, 1500)))]
    if random.random() < 0.2:
        rules.append(random.choice(("%ignore /[ ]+/", "%wat", "%import common.INT", "start: a")))
    return "\n".join(rules)


def _body(random: Random, depth: int) -> str:
    if depth <= 0:
        return random.choice(('"a"', '"bc"', "A", "a", "b", "c", "<[5]>", "<|end|>", "missing", "/[0-9]+/", '""'))
    one = lambda: _body(random, depth - 1)  # noqa: E731
    return random.choice((
        lambda: f"{one()} {one()}",
        lambda: f"({one()} | {one()})",
        lambda: f"({one()})*",
        lambda: f"({one()}){{{random.choice(COUNTS[:7])},}}",
        lambda: f"({one()}){{0,{random.choice(COUNTS)}}}",
        lambda: f"{one()}?",
    ))()  # fmt: skip
