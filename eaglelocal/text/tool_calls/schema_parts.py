"""Traversal of a JSON schema: which parts of it are schemas too, and which are names or data.

A keyword is none where it is the name of a property (`properties: {"$ref": ...}`) or part of data
(`enum`, `const`, `default`, `examples`). The value of an unknown keyword counts as a schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

Schema = Mapping[str, object]
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
DATA = ("enum", "const", "default", "examples", "example")


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
