"""Traversal of a JSON schema: which parts of it are schemas too, and which are names or data.

A keyword does not count where it is the name of a property (`properties: {"$ref": ...}`) or part of data (`enum`,
`const`, `default`, `examples`). The value of an unknown keyword counts as a schema. `KEYWORDS` limit values; all others
only describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

Schema = Mapping[str, object]
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
DATA = ("enum", "const", "default", "examples", "example")
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_TEXT_LIMITS = ("minLength", "maxLength", "pattern", "format", "contentMediaType", "contentEncoding", "contentSchema")
_ARRAY_LIMITS = (
    *("items", "prefixItems", "additionalItems", "unevaluatedItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains"),
)
_OBJECT_LIMITS = (
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
)
_LIMITS: Mapping[str, Collection[str]] = {  # by the type of the values; "": of all types
    "": (
        *("type", "enum", "const", "anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$ref"),
        *("disallow", "extends"),
    ),
    "string": _TEXT_LIMITS,
    "number": (*BOUNDS, "divisibleBy", "format"),
    "array": _ARRAY_LIMITS,
    "object": _OBJECT_LIMITS,
}
TYPES = ("string", "number", "boolean", "null", "array", "object")  # of all JSON values: integers are numbers


def list_keywords(types: Collection[str] = TYPES) -> frozenset[str]:
    """Return the keywords that limit values of these types."""
    names = {"", *types} | ({"number"} if "integer" in types else set())
    return frozenset(keyword for name in names for keyword in _LIMITS.get(name, ()))


KEYWORDS = list_keywords()


def iter_parts(schema: Schema) -> Iterator[Schema]:
    """Yield the schemas directly within this one."""
    for key, value in schema.items():
        if key not in DATA:
            yield from _schemas_in([*value.values()] if isinstance(value, dict) and key in NAMED_SCHEMAS else value)


def iter_all_parts(schema: Schema) -> Iterator[Schema]:
    """Yield the schema, and each within it, however deep."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        yield one
        waiting += iter_parts(one)


def _schemas_in(value: object) -> Iterator[Schema]:
    if isinstance(value, dict):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _schemas_in(one)


def map_schemas(schema: Schema, change: Callable[[Schema], dict[str, object]]) -> dict[str, object]:
    """Apply `change` to the schema, and then to each schema within the result; names and data stay."""
    return {key: _map_value(key, value, change) for key, value in change(schema).items()}


def _map_value(key: str, value: object, change: Callable[[Schema], dict[str, object]]) -> object:
    if key in DATA:
        return value
    if key in NAMED_SCHEMAS and isinstance(value, dict):
        return {name: _map_value("", one, change) for name, one in value.items()}
    if isinstance(value, list):
        return [_map_value("", one, change) for one in value]
    return map_schemas(value, change) if isinstance(value, dict) else value
