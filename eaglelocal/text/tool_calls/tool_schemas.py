"""Readers of the schema of a tool's arguments: the types, names and values that reading and writing calls needs.

Schemas come from requests: parts that cannot be read are ignored.
"""

from __future__ import annotations

from eaglelocal.core.json_text import read_object
from eaglelocal.core.tools import Tool
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls.schema_parts import Schema
from eaglelocal.text.tool_calls.schema_references import DEFINITIONS, LIFTED, REF, lift_references

MAX_HOPS = 64  # chained references that are followed
MAX_QUOTED_CHARS = 100
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def read_argument_schema(tool: Tool) -> Schema:
    """Return the schema of a tool's arguments, with what it refers to in `$defs`; a bad reference admits anything."""
    return _lift(tool)[0]


def read_bindable_schema(tool: Tool) -> Schema:
    """Return the same for a grammar. Raises RequestError for a strict tool whose references name nothing."""
    schema, unknown = _lift(tool)
    if unknown and tool.is_strict:
        what = f"the parameters of {tool.name}, a strict tool, refer to {unknown[0][:MAX_QUOTED_CHARS]!r}"
        raise RequestError(f"{what}, which is not in them", parameter="tools")
    return schema


def has_unknown_reference(tool: Tool) -> bool:
    """Return whether a reference in the tool's schema names nothing: it then admits anything."""
    return bool(_lift(tool)[1])


def _lift(tool: Tool) -> tuple[Schema, list[str]]:
    schema = read_schema(tool)
    return lift_references(schema) if 'Ref"' in tool.parameters or f'"{REF}"' in tool.parameters else (schema, [])


def read_schema(tool: Tool | None) -> Schema:
    """Return the schema of a tool's arguments; empty for an unknown tool, or an unreadable schema."""
    return _read_object(tool.parameters or "{}") if tool else {}


def has_required(tool: Tool | None, arguments: str) -> bool:
    """Return whether the object has what the schema requires. An unknown tool requires nothing."""
    root, found = read_argument_schema(tool) if tool else {}, _read_object(arguments)
    required = resolve_schema(root, root).get("required")
    keys = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    return all(key in found for key in keys)


def _read_object(text: str) -> Schema:
    try:
        return read_object(text)
    except ValueError:
        return {}


def name_type(value: object) -> str:
    """Return the name that JSON schemas have for the type of a JSON value."""
    return _TYPE_NAMES.get(type(value), "null")


def list_types(schema: Schema, root: Schema | None = None) -> frozenset[str]:
    """Return the types that a schema names, alternatives included; none if it leaves them open. `root` has `$defs`."""
    return _find_types(schema, root or {}, set()) or frozenset()


def _find_types(schema: object, root: Schema, seen: set[str]) -> frozenset[str] | None:
    """Return the types; None: any. `seen`: references that were followed, each of which adds its types only once."""
    if not isinstance(schema, dict):
        return frozenset() if schema is False else None
    named = schema.get("type")
    if types := frozenset(kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)):
        return types
    if "const" in schema or isinstance(schema.get("enum"), list):
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return frozenset(map(name_type, values))
    reference = schema.get(REF)
    if isinstance(reference, str):
        if reference in seen:
            return frozenset()
        seen.add(reference)
        return _find_types(_find_target(reference, root), root, seen)
    for key in ("anyOf", "oneOf"):
        if isinstance(alternatives := schema.get(key), list):
            found = [_find_types(alternative, root, seen) for alternative in alternatives]
            return None if None in found else frozenset().union(*(types or () for types in found))
    every = schema.get("allOf")
    found = [_find_types(one, root, seen) for one in every] if isinstance(every, list) else []
    return next((types for types in found if types is not None), None)


def resolve_schema(schema: object, root: Schema, hops: int = MAX_HOPS) -> Schema:
    """Return a schema, or what its reference names, with the properties of all its `allOf` parts.

    A schema that cannot be found admits anything.
    """
    if not isinstance(schema, dict):
        return {}
    reference = schema.get(REF)
    if isinstance(reference, str):
        return resolve_schema(_find_target(reference, root), root, hops - 1) if hops else {}
    every = schema.get("allOf")
    if not isinstance(every, list) or not hops:
        return schema
    return _merge(schema, [resolve_schema(one, root, hops - 1) for one in every])


def _merge(schema: Schema, parts: list[Schema]) -> Schema:
    """Merge the properties that an object's parts name into one object; return any other schema unchanged."""
    if not any(isinstance(part.get("properties"), dict) for part in parts):
        return schema
    own = {key: value for key, value in schema.items() if key != "allOf"}
    every = [*parts, own]
    named = [properties for part in every if isinstance(properties := part.get("properties"), dict)]
    must = [key for part in every if isinstance(required := part.get("required"), list) for key in required]
    return {"type": "object", **own, "properties": {k: v for one in named for k, v in one.items()}, "required": must}


def _find_target(reference: str, root: Schema) -> object:
    definitions = root.get(DEFINITIONS)
    return definitions.get(reference.removeprefix(LIFTED)) if isinstance(definitions, dict) else None


def list_fields(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Return name, schema and whether it is required, of each argument that the schema names."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return []
    must = required if isinstance(required, list) else []
    return [(key, part if isinstance(part, dict) else {}, key in must) for key, part in properties.items()]


def list_values(schema: object, root: Schema, hops: int = MAX_HOPS) -> list[object]:
    """Return the only values that a schema admits, those of its alternatives included; empty where they are open."""
    one = resolve_schema(schema, root)
    if "const" in one:
        return [one["const"]]
    if isinstance(values := one.get("enum"), list):
        return values
    if one.get("type") == "null":
        return [None]
    several = next((found for key in ("anyOf", "oneOf", "allOf") if isinstance(found := one.get(key), list)), [])
    if not hops or ("allOf" in one and len(several) > 1):
        return []
    found = [list_values(alternative, root, hops - 1) for alternative in several]
    return [value for values in found for value in values] if all(found) else []


def keep_definitions(schema: Schema) -> Schema:
    """Return the part of a schema that its references need: `$defs`, and the dialect `$schema`."""
    return {key: schema[key] for key in ("$schema", DEFINITIONS) if key in schema}


def drop_definitions(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in ("$schema", DEFINITIONS)}
