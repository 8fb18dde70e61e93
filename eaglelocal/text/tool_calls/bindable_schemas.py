"""Schemas from requests, changed so that answers and arguments can be bound to them.

In all of them, keywords without effect that the compiler does not know are left out, and objects that name their
properties admit no others (as in llama.cpp): small models otherwise add keys of their own (`tidied`). Schemas that are
not strict are loosened until they can be compiled: first without regular expressions that no automaton can match,
then without any, since others write other dialects. The compiler decides how much must go.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from eaglelocal.core.constraint import MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.schema_parts import Schema, all_parts, changed
from eaglelocal.text.tool_calls.tool_schemas import schema_of

_DIALECT = re.compile(
    r"http://json-schema\.org/draft-0[3-7]/schema#?|https://json-schema\.org/draft/(2019-09|2020-12)/schema#?"
)
_COMPOSING = frozenset({"not", "if", "dependentSchemas", "patternProperties", "unevaluatedProperties", "$dynamicRef"})
_BESIDE = frozenset({"anyOf", "oneOf", "allOf", "$ref"})  # keywords that may name more properties
_FOREIGN = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")  # lookaround and back-references


def tidied(schema: Schema) -> dict[str, object]:
    """Return the schema closed, without keywords that admit everything, and without unknown dialects in `$schema`.

    The compiler would try to find those elsewhere. Closed: objects get `additionalProperties: false`.
    """
    less = changed(schema, lambda one: {key: value for key, value in one.items() if not _says_nothing(key, value)})
    return less if any(map(_is_composed, all_parts(less))) else changed(less, _closed)


def _says_nothing(key: str, value: object) -> bool:
    match key:
        case "$schema":
            return not (isinstance(value, str) and _DIALECT.fullmatch(value))
        case "propertyNames":  # Zod writes for every record that its keys are strings
            return value is True or value in ({}, {"type": "string"})
        case "uniqueItems":
            return value is False
    return False


def _closed(one: Schema) -> dict[str, object]:
    named, required = one.get("properties"), one.get("required", [])
    is_whole = isinstance(named, dict) and isinstance(required, list) and named and set(map(str, required)) <= {*named}
    return {**one, "additionalProperties": False} if is_whole and "additionalProperties" not in one else dict(one)


def _is_composed(one: Schema) -> bool:
    """Return whether one object's properties may be named in several places, none of which has them all."""
    every = one.get("allOf", [])
    if not isinstance(every, list) or len(every) > 1:  # a single one is Pydantic's way to describe a reference
        return True
    return bool(one.keys() & _COMPOSING or ("properties" in one and one.keys() & _BESIDE))


# ---- looser schemas
def loosen_tool(tool: Tool) -> Iterator[Tool]:
    """Yield the tool with less and less of its schema, finally with any arguments; nothing for a strict tool."""
    if tool.is_strict:
        return
    for schema in _looser(schema_of(tool)):
        yield replace(tool, parameters=_json(schema))
    yield allow_any_arguments(tool)


def allow_any_arguments(tool: Tool) -> Tool:
    return tool if tool.is_strict else replace(tool, parameters='{"type": "object"}')


def loosen_constraint(wanted: Constraint) -> Iterator[Constraint]:
    """Yield the constraint as wanted, then, if it is not strict, with less and less of its schema."""
    schema = _schema_of(wanted)
    if schema is None:
        yield wanted
        return
    tidy = tidied(schema)
    yield wanted if tidy == schema else replace(wanted, source=_json(tidy))
    if not wanted.is_strict:
        for less in _looser(tidy):
            yield replace(wanted, source=_json(less))


def _schema_of(wanted: Constraint) -> dict[str, object] | None:
    """Return the constraint's schema; None if there is none, or it is too large or unreadable (a compiler error)."""
    if wanted.syntax is not Syntax.JSON_SCHEMA or len(wanted.source.encode(errors="replace")) > MAX_SOURCE_BYTES:
        return None
    try:
        schema = read_json(wanted.source)
    except ValueError:
        return None
    return schema if isinstance(schema, dict) else None


def _json(schema: Schema) -> str:
    """Return the schema as JSON with letters unescaped, since escapes could exceed the size limit."""
    return json.dumps(schema, ensure_ascii=False)


def _looser(schema: Schema) -> Iterator[dict[str, object]]:
    """Yield each looser schema that differs from the one before."""
    last = schema
    for is_left_out in (_is_foreign, _is_any):
        less = _without_patterns(schema, is_left_out)
        if less != last:
            yield less
        last = less


def _is_foreign(pattern: object) -> bool:
    return not isinstance(pattern, str) or bool(_FOREIGN.search(pattern))


def _is_any(_: object) -> bool:
    return True


def _without_patterns(schema: Schema, is_left_out: Callable[[object], bool]) -> dict[str, object]:
    def change(one: Schema) -> dict[str, object]:
        less = {key: value for key, value in one.items() if key != "pattern" or not is_left_out(value)}
        named = less.get("patternProperties")
        if isinstance(named, dict) and any(map(is_left_out, named)):
            less["patternProperties"] = {name: said for name, said in named.items() if not is_left_out(name)}
            less.pop("additionalProperties", None)  # would forbid what the pattern allowed
        return less

    return changed(schema, change)
