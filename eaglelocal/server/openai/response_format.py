"""Turn a `response_format` into a Constraint. Pure; raises Problem if any part of it would have no effect."""

from __future__ import annotations

from typing import Any

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_values import as_json
from eaglelocal.server.openai.schema import SCHEMA_WORDS, ResponseFormat

FORMAT, NESTED, BESIDE = "response_format", "response_format.json_schema", "response_format.schema"
_BY_SCHEMA = ("json_object", "json_schema")
_OBEYED_BY = {"json_schema": _BY_SCHEMA, "schema_": _BY_SCHEMA, "regex": ("regex",), "grammar": ("grammar",)}


def constraint_of(given: ResponseFormat | None) -> Constraint | None:
    if given is None:
        return None
    _check_all_counts(given)
    match given:
        case ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="regex", regex=str(source)):
            return Constraint(Syntax.REGEX, source)
        case ResponseFormat(type="grammar", grammar=str(source)):
            return Constraint(Syntax.LARK, source)
        case ResponseFormat(type="json_object" | "json_schema"):
            return _by_schema(given)
    raise Problem(400, f"a format of type {given.type} needs {given.type}", parameter=f"{FORMAT}.{given.type}")


def _check_all_counts(given: ResponseFormat) -> None:
    for name, kinds in _OBEYED_BY.items():
        if getattr(given, name) and given.type not in kinds:
            field = name.rstrip("_")
            what = f"a format of type {given.type} obeys no {field}: its type would be {kinds[-1]}"
            raise Problem(400, what, parameter=f"{FORMAT}.{field}")


def _by_schema(given: ResponseFormat) -> Constraint:
    nested, is_strict = given.json_schema, bool(given.strict)
    places = {BESIDE: given.schema_}
    if nested is not None:
        places, is_strict = {f"{NESTED}.schema": nested.schema_, **places}, is_strict or bool(nested.strict)
    found = {place: schema for place, schema in places.items() if schema is not None}
    if not found:
        return _without_schema(given)
    (place, schema), *others = found.items()
    if any(other != schema for _, other in others):
        raise Problem(400, "there are two schemas, and they differ: one is wanted", parameter=others[0][0])
    check_is_schema(schema, place)
    if not schema and given.type == "json_object":  # an empty schema is weaker than the type
        return Constraint(Syntax.JSON_OBJECT)
    return Constraint(Syntax.JSON_SCHEMA, as_json(schema, place), is_strict=is_strict)


def _without_schema(given: ResponseFormat) -> Constraint:
    if given.json_schema is not None:
        what = 'there is no schema in json_schema: {"name": "x", "schema": {...}} is wanted'
        raise Problem(400, what, parameter=f"{NESTED}.schema")
    if given.type == "json_schema":
        raise Problem(400, "a format of type json_schema needs json_schema, with a schema in it", parameter=NESTED)
    return Constraint(Syntax.JSON_OBJECT)


def check_is_schema(schema: dict[str, Any], place: str) -> None:
    """Raise Problem for an object that is no schema but contains one: it would not constrain anything."""
    inside = next((word for word in ("schema", "json_schema") if isinstance(schema.get(word), dict)), None)
    if inside is not None and not SCHEMA_WORDS & schema.keys():
        what = f"this is no schema, it holds one as {inside!r}: that one is wanted here itself"
        raise Problem(400, what, parameter=place)
