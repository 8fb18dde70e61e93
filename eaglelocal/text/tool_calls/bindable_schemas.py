"""Schemas from requests, changed so that answers and arguments can be constrained to them.

`tidy_schema` leaves out keywords without effect that the compiler does not know, and closes objects that name their
properties (as llama.cpp does): small models otherwise add keys of their own. Schemas that are not strict are loosened
until they can be compiled: first without regular expressions that no automaton can match, then without any, since
others write other dialects. The compiler decides how much must go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from eaglelocal.core.constraint import MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.schema_parts import Schema, iter_all_parts, map_schemas
from eaglelocal.text.tool_calls.tool_schemas import read_schema

_DIALECT = re.compile(
    r"http://json-schema\.org/draft-0[3-7]/schema#?|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)
_COMPOSING = frozenset({"not", "if", "dependentSchemas", "patternProperties", "unevaluatedProperties", "$dynamicRef"})
_COMBINING = frozenset({"anyOf", "oneOf", "allOf", "$ref"})  # keywords that may name more properties
_UNSUPPORTED = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # lookaround and back-references


def tidy_schema(schema: Schema) -> dict[str, object]:
    """Return the schema closed, and without keywords that admit everything, and without unknown dialects in `$schema`.

    The compiler would try to fetch those dialects. Closed: objects get `additionalProperties: false`.
    """
    less = map_schemas(schema, lambda one: {key: value for key, value in one.items() if not _has_no_effect(key, value)})
    return less if any(map(_is_composed, iter_all_parts(less))) else map_schemas(less, _close_object)


def _has_no_effect(key: str, value: object) -> bool:
    match key:
        case "$schema":
            return not (isinstance(value, str) and _DIALECT.fullmatch(value))
        case "propertyNames":  # Zod writes for every record that its keys are strings
            return value is True or value in ({}, {"type": "string"})
        case "uniqueItems":
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
        yield replace(tool, parameters=_json(schema))
    yield allow_any_arguments(tool)


def allow_any_arguments(tool: Tool) -> Tool:
    return tool if tool.is_strict else replace(tool, parameters='{"type": "object"}')


def loosen_constraint(constraint: Constraint) -> Iterator[Constraint]:
    """Yield the constraint, then, if it is not strict, the same with less and less of its schema."""
    schema = _read_schema(constraint)
    if schema is None:
        yield constraint
        return
    tidy = tidy_schema(schema)
    yield constraint if tidy == schema else replace(constraint, source=_json(tidy))
    if not constraint.is_strict:
        for less in _loosen(tidy):
            yield replace(constraint, source=_json(less))


def _read_schema(constraint: Constraint) -> dict[str, object] | None:
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


def _json(schema: Schema) -> str:
    """Return the schema as JSON with letters unescaped, since escapes could exceed the size limit."""
    return json.dumps(schema, ensure_ascii=False)


def _loosen(schema: Schema) -> Iterator[dict[str, object]]:
    """Yield each looser schema that differs from the one before."""
    last = schema
    for is_left_out in (_is_unsupported, _is_any):
        less = _without_patterns(schema, is_left_out)
        if less != last:
            yield less
        last = less


def _is_unsupported(pattern: object) -> bool:
    return not isinstance(pattern, str) or bool(_UNSUPPORTED.search(pattern))


def _is_any(_: object) -> bool:
    return True


def _without_patterns(schema: Schema, is_left_out: Callable[[object], bool]) -> dict[str, object]:
    def change(one: Schema) -> dict[str, object]:
        less = {key: value for key, value in one.items() if key != "pattern" or not is_left_out(value)}
        named = less.get("patternProperties")
        if isinstance(named, dict) and any(map(is_left_out, named)):
            less["patternProperties"] = {name: part for name, part in named.items() if not is_left_out(name)}
            less.pop("additionalProperties", None)  # would forbid what the pattern allowed
        return less

    return map_schemas(schema, change)
