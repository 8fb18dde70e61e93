"""Turn a `response_format` into a Constraint. Pure; raises Problem if any part of it would have no effect."""

from __future__ import annotations

from typing import Any

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.json_body import to_json
from eaglelocal.server.openai.schema import SCHEMA_WORDS, ResponseFormat

FORMAT, NESTED, SCHEMA_FIELD = "response_format", "response_format.json_schema", "response_format.schema"
_SCHEMA_TYPES = ("json_object", "json_schema")
_TYPES_BY_FIELD = {"json_schema": _SCHEMA_TYPES, "schema_": _SCHEMA_TYPES, "regex": ("regex",), "grammar": ("grammar",)}


def read_constraint(given: ResponseFormat | None) -> Constraint | None:
    if given is None:
        return None
    _check_no_field_is_ignored(given)
    match given:
        case ResponseFormat(type="text"):
            return None
        case ResponseFormat(type="regex", regex=str(source)):
            return Constraint(Syntax.REGEX, source)
        case ResponseFormat(type="grammar", grammar=str(source)):
            return Constraint(Syntax.LARK, source)
        case ResponseFormat(type="json_object" | "json_schema"):
            return _read_schema(given)
    raise Problem(400, f"a format of type {given.type} needs {given.type}", parameter=f"{FORMAT}.{given.type}")


def _check_no_field_is_ignored(given: ResponseFormat) -> None:
    for name, kinds in _TYPES_BY_FIELD.items():
        if getattr(given, name) and given.type not in kinds:
            field = name.rstrip("_")
            what = f"a format of type {given.type} has no {field}; that needs type {kinds[-1]}"
            raise Problem(400, what, parameter=f"{FORMAT}.{field}")


def _read_schema(given: ResponseFormat) -> Constraint:
    nested, is_strict = given.json_schema, bool(given.strict)
    places = {SCHEMA_FIELD: given.schema_}
    if nested is not None:
        places, is_strict = {f"{NESTED}.schema": nested.schema_, **places}, is_strict or bool(nested.strict)
    found = {place: schema for place, schema in places.items() if schema is not None}
    if not found:
        return _without_schema(given)
    (place, schema), *others = found.items()
    if any(other != schema for _, other in others):
        raise Problem(400, "there are two different schemas: send only one", parameter=others[0][0])
    check_is_schema(schema, place)
    if not schema and given.type == "json_object":  # an empty schema is weaker than the type
        return Constraint(Syntax.JSON_OBJECT)
    return Constraint(Syntax.JSON_SCHEMA, to_json(schema, place), is_strict=is_strict)


def _without_schema(given: ResponseFormat) -> Constraint:
    if given.json_schema is not None:
        what = 'json_schema has no schema: send {"name": "x", "schema": {...}}'
        raise Problem(400, what, parameter=f"{NESTED}.schema")
    if given.type == "json_schema":
        raise Problem(400, "a format of type json_schema needs a json_schema with a schema", parameter=NESTED)
    return Constraint(Syntax.JSON_OBJECT)


def check_is_schema(schema: dict[str, Any], place: str) -> None:
    """Raise Problem for an object that is not a schema but contains one: it would not constrain anything."""
    inside = next((word for word in ("schema", "json_schema") if isinstance(schema.get(word), dict)), None)
    if inside is not None and not SCHEMA_WORDS & schema.keys():
        what = f"this is not a schema, but contains one as {inside!r}: send that one in its place"
        raise Problem(400, what, parameter=place)
