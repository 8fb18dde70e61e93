"""Schemas from requests, changed so that answers and arguments can be constrained to them.

`tidy_schema` leaves out keywords without effect that the compiler does not know, and closes objects that name their
properties (as llama.cpp does): small models otherwise add keys of their own. It leaves out parts that the compiler
would misread; a strict schema with such a part is refused. Schemas that are not strict are loosened until they can be
compiled: first without regular expressions that no automaton can match, then without any regular expressions, since
clients write other dialects. The compiler decides how much must go.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from eaglelocal.core.constraint import MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls.lenient_literals import dump_json  # escapes of letters could exceed the size limit
from eaglelocal.text.tool_calls.schema_parts import BOUNDS, KEYWORDS, Schema, iter_all_parts, map_schemas
from eaglelocal.text.tool_calls.tool_schemas import MAX_QUOTED_CHARS, find_types, read_schema

_DIALECT = re.compile(
    r"http://json-schema\.org/draft-0[3-7]/schema#?|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)
_COMPOSING = frozenset({"not", "if", "dependentSchemas", "patternProperties", "unevaluatedProperties", "$dynamicRef"})
_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref"})  # keywords that may name more properties
MAX_INT64 = 2**63 - 1
INEXACT, OLD, UNCHECKED = "numbers are exact up to 2^53", "it is of an older draft", "no such value is checked for it"
_CONTENT = ("contentMediaType", "contentEncoding", "contentSchema")
_OLD_KEYWORDS = frozenset({"divisibleBy", "disallow", "extends"})
_UNSUPPORTED = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # lookaround and back-references
_ANY = re.compile("")


def tidy_schema(schema: Schema) -> dict[str, object]:
    """Return the schema closed, and without unknown dialects in `$schema`, which the compiler would try to fetch.

    Leaves out keywords that admit everything, and those that the compiler would misread. Closed means that objects get
    `additionalProperties: false`.
    """

    def clean(one: Schema) -> dict[str, object]:
        return {k: v for k, v in one.items() if not _has_no_effect(k, v) and not _why_misread(k, v, one)}

    less = map_schemas(schema, clean)
    return less if any(map(_is_composed, iter_all_parts(less))) else map_schemas(less, _close_object)


def check_is_kept(schema: Schema, what: str, *, is_strict: bool, parameter: str = "response_format") -> None:
    """Raise RequestError if the compiler would misread a part of the schema; `what` names the schema.

    A schema that is not strict is refused only for its numbers; `tidy_schema` leaves out its other misread parts.
    """
    for one in iter_all_parts(schema):
        for keyword, value in one.items():
            why = _why_misread(keyword, value, one)
            if why == INEXACT or (why and is_strict):
                shown = f"{keyword} {json.dumps(value)[:MAX_QUOTED_CHARS]}"
                raise RequestError(f"{what} has {shown}, which cannot be enforced: {why}", parameter=parameter)


def _why_misread(key: str, value: object, one: Schema) -> str:
    """Return why the compiler would misread this keyword; "" if it would not.

    It reads numbers as floats of 64 bits, so large integers change; it admits the same key twice where `minProperties`
    asks for keys that are not named; and it ignores keywords of older drafts and others that it does not check.
    """
    if key == "minProperties":
        required = one.get("required", [])
        num_named = len(required) if isinstance(required, list) else 0
        is_open = one.get("additionalProperties") is not False or "patternProperties" in one
        return "keys could repeat" if is_open and isinstance(value, int) and value > num_named + 1 else ""
    if key in _CONTENT or (key == "format" and "string" not in (find_types(one, {}) or {"string"})):
        return UNCHECKED
    if key == "enum" and isinstance(value, list):
        return "" if all(map(_keeps_numbers, value)) else INEXACT
    if key in BOUNDS and isinstance(value, bool | float):
        return (OLD if value is True else "") if isinstance(value, bool) else INEXACT if abs(value) > MAX_INT64 else ""
    if key == "const" or key in BOUNDS:
        return "" if _keeps_numbers(value) else INEXACT
    is_old = key in _OLD_KEYWORDS or (key == "additionalItems" and isinstance(one.get("items"), list))
    is_old |= key == "required" and isinstance(value, bool)
    return OLD if is_old else ""


def _keeps_numbers(value: object) -> bool:
    """Return whether each integer within a value is the same as a float of 64 bits and as an integer of 64 bits."""
    if isinstance(value, dict | list):
        return all(map(_keeps_numbers, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int) or value == MAX_INT64 or (abs(value) < MAX_INT64 and int(float(value)) == value)


def _has_no_effect(key: str, value: object) -> bool:
    match key:
        case "$schema":
            return not (isinstance(value, str) and _DIALECT.fullmatch(value))
        case "propertyNames":  # Zod writes for every record that its keys are strings
            return value is True or value in ({}, {"type": "string"})
        case "uniqueItems" | "required":  # older drafts have `required: false` at a property
            return value is False
    return False


def _close_object(one: Schema) -> dict[str, object]:
    named, required = one.get("properties"), one.get("required", [])
    is_complete = (
        isinstance(named, dict) and isinstance(required, list) and named and set(map(str, required)) <= {*named}
    )
    return {**one, "additionalProperties": False} if is_complete and "additionalProperties" not in one else dict(one)


def _is_composed(one: Schema) -> bool:
    """Return whether an object's properties may be spread over several places."""
    every = one.get("allOf", [])
    if not isinstance(every, list) or len(every) > 1:  # a single one is Pydantic's way to describe a reference
        return True
    return bool(one.keys() & _COMPOSING or ("properties" in one and one.keys() & _COMBINING))


# ---- looser schemas
def loosen_tool(tool: Tool) -> Iterator[Tool]:
    """Yield the tool with less and less of its schema, finally with any arguments; nothing for a strict tool."""
    if tool.is_strict:
        return
    for schema in _loosen(read_schema(tool)):
        yield replace(tool, parameters=dump_json(schema))
    yield allow_any_arguments(tool)


def allow_any_arguments(tool: Tool) -> Tool:
    return tool if tool.is_strict else replace(tool, parameters='{"type": "object"}')


def loosen_constraint(constraint: Constraint) -> Iterator[Constraint]:
    """Yield the constraint, then, if it is not strict, the same with less and less of its schema."""
    schema = read_constraint_schema(constraint)
    if schema is None:
        yield constraint
        return
    check_is_kept(schema, "the schema", is_strict=constraint.is_strict)
    tidy = tidy_schema(schema)
    yield constraint if tidy == schema else replace(constraint, source=dump_json(tidy))
    if not constraint.is_strict:
        for less in _loosen(tidy):
            yield replace(constraint, source=dump_json(less))


def read_constraint_schema(constraint: Constraint) -> dict[str, object] | None:
    """Return the constraint's schema; None if there is none, or it is too large or unreadable (a compiler error)."""
    if (
        constraint.syntax is not Syntax.JSON_SCHEMA
        or len(constraint.source.encode(errors="replace")) > MAX_SOURCE_BYTES
    ):
        return None
    try:
        schema = read_json(constraint.source)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def list_said(schema: Schema) -> frozenset[str]:
    """Return the keywords that limit values, in a schema and all its parts."""
    return frozenset(_count_keywords(schema))


def list_lost(schema: Schema | None, less: Schema | None) -> list[str]:
    """Return the keywords that limit values and occur less often in the looser schema, sorted."""
    return sorted(_count_keywords(schema or {}) - _count_keywords(less or {}))


def _count_keywords(schema: Schema) -> Counter[str]:
    counter: Counter[str] = Counter()
    for one in iter_all_parts(schema):
        for key, value in one.items():
            if key in KEYWORDS and not _has_no_effect(key, value):
                counter[key] += len(value) if key == "patternProperties" and isinstance(value, dict) else 1
    return counter


def _loosen(schema: Schema) -> Iterator[dict[str, object]]:
    last = schema
    for left_out in (_UNSUPPORTED, _ANY):
        less = _without_patterns(schema, left_out)
        if less != last:
            yield less
        last = less


def _without_patterns(schema: Schema, left_out: re.Pattern[str]) -> dict[str, object]:
    def is_left_out(pattern: object) -> bool:
        return not isinstance(pattern, str) or left_out.search(pattern) is not None

    def change(one: Schema) -> dict[str, object]:
        less = {key: value for key, value in one.items() if key != "pattern" or not is_left_out(value)}
        named = less.get("patternProperties")
        if isinstance(named, dict) and any(map(is_left_out, named)):
            less["patternProperties"] = {name: part for name, part in named.items() if not is_left_out(name)}
            less.pop("additionalProperties", None)  # would forbid what the pattern allowed
        return less

    return map_schemas(schema, change)
