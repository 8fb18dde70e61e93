"""What the schema of a tool's arguments says of each of them, as far as reading and writing them needs it.

Schemas come from anyone: what cannot be read says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.core.json_text import read_object
from eaglelocal.core.tools import Tool

MAX_HOPS = 8  # from reference to reference
Schema = Mapping[str, object]


def schema_of(tool: Tool | None) -> Schema:
    """Of a tool's arguments; empty where the tool is not known, or says what cannot be read."""
    return _object_in(tool.parameters or "{}") if tool else {}


def parameter_schemas(tool: Tool | None) -> dict[str, Schema]:
    """What the schema says of each parameter; nothing of a tool that is not known."""
    schema = schema_of(tool)
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: resolved(said, schema) for name, said in properties.items()}


def has_required(tool: Tool | None, arguments: str) -> bool:
    """Does the object hold what the schema requires? An unknown tool requires nothing."""
    required, found = schema_of(tool).get("required"), _object_in(arguments)
    keys = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    return all(key in found for key in keys)


def _object_in(text: str) -> Schema:
    try:
        return read_object(text)
    except ValueError:
        return {}


def kinds_of(schema: Schema) -> frozenset[str]:
    """The types that a schema names, alternatives included; none where it leaves them open."""
    named = schema.get("type")
    kinds = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    if not kinds and texts_of(schema):
        kinds = {"string"}
    for key in ("anyOf", "oneOf"):
        ways = schema.get(key)
        for way in ways if isinstance(ways, list) else ():
            kinds |= kinds_of(way) if isinstance(way, dict) else set()
    return frozenset(kinds)


def resolved(schema: object, root: Schema, hops: int = MAX_HOPS) -> Schema:
    """A schema, or what its reference into the root names; anything fits what cannot be found."""
    if not isinstance(schema, dict):
        return {}
    reference = schema.get("$ref")
    if not isinstance(reference, str):
        return schema
    found: object = root if reference.startswith("#/") and hops else None
    for part in reference[2:].split("/"):
        found = found.get(part) if isinstance(found, dict) else None
    return resolved(found, root, hops - 1)


def fields_of(schema: Schema, root: Schema) -> list[tuple[str, Schema, bool]]:
    """Name, schema and whether it must be there, of each argument that the schema names."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return []
    must = required if isinstance(required, list) else []
    return [(key, resolved(said, root), key in must) for key, said in properties.items()]


def texts_of(schema: Schema) -> list[str]:
    """The only texts that a schema admits; none where it leaves them open."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    texts = values if isinstance(values, list) else []
    return texts if texts and all(isinstance(text, str) for text in texts) else []


def definitions_of(schema: Schema) -> Schema:
    """What its references refer to."""
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}
