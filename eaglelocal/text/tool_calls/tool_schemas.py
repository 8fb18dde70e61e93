"""Readers of the schema of a tool's arguments: the types, names and values that reading and writing calls needs.
`Shape` is the part of it that reading a call needs.

Schemas come from requests: parts that cannot be read are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property, partial, reduce

from eaglelocal.core.json_text import read_object
from eaglelocal.core.tools import Tool
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls.schema_parts import (
    DEFINITIONS,
    KEYWORDS,
    LIFTED,
    REF,
    Schema,
    lift_references,
    list_keywords,
)

MAX_NESTED = 64  # depth to which nested references and alternatives are followed
MAX_QUOTED_CHARS = 100
Admitted = dict[str, object]  # types or values, by their JSON text
ListOwn = Callable[[Schema], list[Admitted | None]]  # values or types that a schema's keywords admit; None: any
NOTHING: Schema = {"type": []}
_TYPE_NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


def read_argument_schema(tool: Tool) -> Schema:
    """Return the schema of a tool's arguments, its references' targets in `$defs`; a bad reference admits anything."""
    return _lift(tool)[0]


def read_bindable_schema(tool: Tool) -> Schema:
    """Do as `read_argument_schema` for a grammar. Raises RequestError for a strict tool with dangling references."""
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
    """Return whether the object has all arguments that the schema requires. An unknown tool requires nothing."""
    root, found = read_argument_schema(tool) if tool else {}, _read_object(arguments)
    required = read_list(resolve_schema(root, root), "required")
    return all(key in found for key in required if isinstance(key, str))


def _read_object(text: str) -> Schema:
    try:
        return read_object(text)
    except ValueError:
        return {}


def name_type(value: object) -> str:
    """Return the name that JSON schemas have for the type of a JSON value."""
    return _TYPE_NAMES.get(type(value), "null")


def find_types(schema: object, root: Schema) -> frozenset[str] | None:
    """Return the types of the values that a schema admits; None if it admits any. `root` has `$defs`."""
    found = _find_admitted(schema, root, _list_own_types, {})
    return None if found is None else frozenset(found)


def list_values(schema: object, root: Schema) -> list[object]:
    """Return the only values that a schema admits, including its alternatives; empty if others are allowed."""
    found = _find_admitted(schema, root, _list_own_values, {}) or {}
    types = find_types(schema, root) if found else None
    return [value for value in found.values() if types is None or has_type(types, name_type(value))]


def has_type(types: Collection[str], name: str) -> bool:
    """Return whether values of a type are among these types. Integers are numbers, too."""
    return name in types or (name == "integer" and "number" in types)


def _find_admitted(
    schema: object, root: Schema, list_own: ListOwn, known: dict[str, Admitted | None], nested: int = 0
) -> Admitted | None:
    """Return what a schema admits: what all its parts admit. None: anything.

    known  the results of references. A reference within its own target adds nothing
    """
    if not isinstance(schema, dict) or nested == MAX_NESTED:
        return {} if schema is False else None
    find = partial(_find_admitted, root=root, list_own=list_own, known=known, nested=nested + 1)
    parts = list_own(schema)
    parts += [_unite([*map(find, some)]) for key in ("anyOf", "oneOf") if isinstance(some := schema.get(key), list)]
    parts += map(find, every) if isinstance(every := schema.get("allOf"), list) else []
    if isinstance(reference := schema.get(REF), str):
        if reference not in known:
            known[reference] = {}
            known[reference] = find(find_target(reference, root))
        parts.append(known[reference])
    found = [part for part in parts if part is not None]
    return reduce(_meet, found) if found else None


def _list_own_types(schema: Schema) -> list[Admitted | None]:
    named = schema.get("type")
    types = [named] if isinstance(named, str) else named
    own = dict.fromkeys(kind for kind in types if isinstance(kind, str)) if isinstance(types, list) else None
    of_values = (dict.fromkeys(map(name_type, one.values())) for one in _list_own_values(schema) if one is not None)
    return [own, *of_values]


def _list_own_values(schema: Schema) -> list[Admitted | None]:
    lists = [schema.get("enum"), [schema["const"]] if "const" in schema else None]
    lists += [[None]] if schema.get("type") == "null" else []
    return [{json.dumps(value): value for value in one} if isinstance(one, list) else None for one in lists]


def _unite(parts: list[Admitted | None]) -> Admitted | None:
    found = [part for part in parts if part is not None]
    return {key: value for part in found for key, value in part.items()} if len(found) == len(parts) else None


def _meet(one: Admitted, other: Admitted) -> Admitted:
    both = {key: value for key, value in one.items() if has_type(other, key)}
    return both | {key: value for key, value in other.items() if has_type(one, key)}


def list_limits(schema: object, root: Schema, types: Collection[str]) -> frozenset[str]:
    """Return the keywords that limit values of these types further, also in alternatives and references."""
    limits = list_keywords(types) - {"type", "anyOf", "oneOf", "allOf", REF}
    found = set[str]()
    for one in _iter_linked(schema, root, ("anyOf", "oneOf", "allOf")):
        found |= limits & one.keys() | ({"oneOf"} if is_exclusive(one, root) else set())
    return frozenset(found)


def is_exclusive(schema: Schema, root: Schema) -> bool:
    """Return whether `oneOf` has alternatives whose types overlap; otherwise it means the same as `anyOf`."""
    found = [find_types(one, root) for one in read_list(schema, "oneOf")]
    names = [name for types in found for name in {"number" if one == "integer" else one for one in types or ()}]
    return len(found) > 1 and (None in found or len(names) > len({*names}))


def resolve_schema(schema: object, root: Schema) -> Schema:
    """Return a schema, or its reference's target, as one schema with the properties of all its parts.

    A schema that cannot be found admits anything.
    """
    parts = list_parts(schema, root)
    if len(parts) < 2:
        return parts[0] if parts else {}
    merged = {key: value for part in parts for key, value in part.items()}
    properties: dict[str, object] = {}
    for part in parts:
        for key, one in named.items() if isinstance(named := part.get("properties"), dict) else ():
            properties[key] = {"allOf": [properties[key], one]} if properties.get(key, one) != one else one
    required = [key for part in parts for key in read_list(part, "required")]
    return {**merged, **{k: v for k, v in (("properties", properties), ("required", required)) if k in merged}}


def list_parts(schema: object, root: Schema) -> list[Schema]:
    """Return the schemas that a value must all fit: the reference's target, the `allOf` schemas, the rest."""
    linked = _iter_linked(schema, root, ("allOf",))
    found = [{key: value for key, value in one.items() if key not in ("allOf", REF)} for one in linked]
    return [part for part in reversed(found) if KEYWORDS & part.keys()]


def _iter_linked(schema: object, root: Schema, keywords: Collection[str]) -> Iterator[Schema]:
    """Yield a schema and those that these keywords and references lead to, each reference's target once."""
    seen, waiting = set[str](), [schema]
    while waiting:
        one = to_schema(waiting.pop())
        yield one
        waiting += [part for key in keywords for part in read_list(one, key)]
        if isinstance(reference := one.get(REF), str) and reference not in seen:
            seen.add(reference)
            waiting.append(find_target(reference, root))


def find_target(reference: str, root: Schema) -> object:
    definitions = root.get(DEFINITIONS)
    return definitions.get(reference.removeprefix(LIFTED)) if isinstance(definitions, dict) else None


def list_alternatives(schema: Schema) -> tuple[str, list[object]]:
    """Return the keyword of a schema's alternatives, and the alternatives. A single `allOf` counts as one: some
    references are described that way.
    """
    found = ((key, read_list(schema, key)) for key in ("anyOf", "oneOf", "allOf"))
    return next(((key, some) for key, some in found if some and (key != "allOf" or len(some) == 1)), ("", []))


def list_fields(schema: Schema) -> list[tuple[str, Schema, bool]]:
    """Return name, schema and requiredness of each argument that the schema names or only requires."""
    named, others = schema.get("properties"), schema.get("additionalProperties", True)
    required = [key for key in read_list(schema, "required") if isinstance(key, str)]
    properties = named if isinstance(named, dict) else {}
    only_required = {key: others for key in required if key not in properties and others is not False}
    return [(key, to_schema(part), key in required) for key, part in {**properties, **only_required}.items()]


def to_schema(part: object) -> Schema:
    """Return a part of a schema as an object; `true`, and a part that cannot be read, admits anything."""
    return part if isinstance(part, dict) else NOTHING if part is False else {}


def read_list(schema: Schema, key: str) -> list[object]:
    """Return the list under a keyword; empty if there is none."""
    found = schema.get(key)
    return found if isinstance(found, list) else []


def keep_definitions(schema: Schema) -> Schema:
    """Return the part of a schema that its references need: `$defs`, and the dialect `$schema`."""
    return {key: schema[key] for key in ("$schema", DEFINITIONS) if key in schema}


def drop_definitions(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in ("$schema", DEFINITIONS)}


# ---- shapes
WRAPPERS = ("arguments", "parameters")  # names under which models wrap all arguments again


class Shape:
    """A part of a tool's schema, reduced to what reading a call needs."""

    def __init__(self, schema: Schema, root: Schema) -> None:
        self._schema, self._root = schema, root

    @classmethod
    def of_tool(cls, tool: Tool | None) -> Shape:
        """Return the shape of a tool's arguments; for an unknown tool, a shape that admits anything."""
        root = read_argument_schema(tool) if tool else {}
        return cls({"type": "object", **resolve_schema(root, root)}, root)

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that it names; none if it allows any."""
        return find_types(self._schema, self._root) or frozenset()

    @cached_property
    def texts(self) -> list[str]:
        """The only strings that it admits; empty if others are allowed."""
        values = list_values(self._schema, self._root)
        texts = [value for value in values if isinstance(value, str)]
        return texts if len(texts) == len(values) else []

    @cached_property
    def _whole(self) -> Schema:
        """The schema with the properties of all its parts."""
        return resolve_schema(self._schema, self._root)

    @cached_property
    def properties(self) -> Mapping[str, object]:
        named = self._whole.get("properties")
        return named if isinstance(named, dict) else {}

    @property
    def items(self) -> Shape:
        return Shape(to_schema(self._whole.get("items")), self._root)

    @cached_property
    def required(self) -> frozenset[str]:
        return frozenset(key for key in read_list(self._whole, "required") if isinstance(key, str))

    @property
    def is_closed(self) -> bool:
        return self._schema.get("additionalProperties") is False

    def child(self, key: str) -> Shape:
        part = self.properties.get(key, self._whole.get("additionalProperties"))
        return Shape(to_schema(part), self._root)

    def admits(self, kind: str) -> bool:
        """Return whether a value of a type may stand here. Null always may: models write it for absent arguments."""
        kinds = {kind, "number"} if kind == "integer" else {kind}
        return not self.types or kind == "null" or not kinds.isdisjoint(self.types)

    def is_text_for(self, kind: str) -> bool:
        """Return whether a literal of this type can only be a string without its quotes."""
        return "string" in self.types and not self.admits(kind)

    def is_wrapper(self, key: str) -> bool:
        return key in WRAPPERS and bool(self.properties) and key not in self.properties

    def find_key(self, key: str, found: Collection[str]) -> str:
        """Return the property that a key names, ignoring case; the key itself if it names none or several."""
        if key in self.properties:
            return key
        alike = [name for name in self.properties if name.casefold() == key.casefold() and name not in found]
        return alike[0] if len(alike) == 1 else key


ANYTHING = Shape({}, {})


def find_tool_name(name: str, tools: Collection[str]) -> str:
    """Return the offered tool that a name means, with or without namespaces before it; else the name itself.

    google:mcp:look_up -> look_up
    """
    if name in tools:
        return name
    found = [name[sep.end() :] for sep in re.finditer(r"[.:/]", name) if name[sep.end() :] in tools]
    return found[0] if len(found) == 1 else name
