"""Traversal of a JSON schema (which parts of it are schemas too, and which are names or data), and its references.

A keyword does not count where it is the name of a property (`properties: {"$ref": ...}`) or part of data (`enum`,
`const`, `default`, `examples`). The value of an unknown keyword counts as a schema. `KEYWORDS` limit values; all others
only describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from urllib.parse import unquote

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
        *("$dynamicRef", "$recursiveRef", "disallow", "extends"),
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


# ---- references, rewritten so that the schema means the same wherever it is inserted
#
# A grammar of calls has the schema of a tool's arguments inside a schema of its own, or takes single arguments out of
# it; `#/properties/a` would then refer to another place, or to none. So all targets of references are moved to `$defs`
# at the root:
#
#     {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
#     {"properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/0"}}, "$defs": {"0": {"type": "integer"}}}
#
# Pointers into the schema are followed (with `~0`, `~1` and percent signs). Anchors and addresses are not, and with a
# part that has an address of its own no reference is: a pointer could be meant from there. Recursive references stay
# recursive.
REF, DEFINITIONS = "$ref", "$defs"
LIFTED = f"#/{DEFINITIONS}/"  # the prefix of every rewritten reference
_DEFINING = (DEFINITIONS, "definitions")
_NAMING = ("$schema", "$id", "id", "$anchor", "$dynamicAnchor")  # dropped: they could change what references mean


def lift_references(schema: Schema) -> tuple[dict[str, object], list[str]]:
    """Move all targets of references into the schema's `$defs`; also return the references that name nothing.

    The latter are removed from the schema, so it admits anything there.
    """
    if not any(REF in one for one in iter_all_parts(schema)):
        return dict(schema), []
    lifting = _Lifting(schema)
    return lifting.lift(), lifting.unknown


class _Lifting:
    """A schema and the targets of its references. Parts are identified by `id()`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._targets: dict[int, str] = {}  # id of a schema with a reference -> the new name of its target
        self._names: dict[int, str] = {}  # id of a target -> its new name
        self._found: dict[str, object] = {}  # the targets by their new names
        self.unknown: list[str] = []
        self._has_addresses = any("$id" in one for one in iter_all_parts(root) if one is not root)
        waiting, seen = [root], set[int]()
        while waiting:  # all that is reachable from the root; unused definitions are skipped
            one = waiting.pop()
            if id(one) not in seen:
                seen.add(id(one))
                target = self._name_target(one)
                waiting += [target] if isinstance(target, dict) else []
                waiting += iter_parts(_drop_keys(one, _DEFINING))

    def lift(self) -> dict[str, object]:
        dialect = {"$schema": self._root["$schema"]} if "$schema" in self._root else {}
        definitions = {name: self._rewrite(one) for name, one in self._found.items()}
        root = self._rewrite(self._root)
        assert isinstance(root, dict)
        return {**dialect, **root, DEFINITIONS: definitions}

    def _name_target(self, one: Schema) -> object:
        """Return the target of this schema's reference; None if it has no reference, or one that names nothing."""
        reference = one.get(REF)
        if not isinstance(reference, str):
            return None
        target = None if self._has_addresses else _follow_pointer(self._root, reference)
        if not isinstance(target, dict | bool):
            self.unknown.append(reference)
            return None
        if id(target) not in self._names:
            name = self._names[id(target)] = str(len(self._found))
            self._found[name] = target
        self._targets[id(one)] = self._names[id(target)]
        return target

    def _rewrite(self, target: object) -> object:
        """Return a schema with a reference in place of each part that has a name, so that nothing is repeated."""
        if not isinstance(target, dict):
            return target

        def change(one: Schema) -> dict[str, object]:
            if one is not target and id(one) in self._names:
                return {REF: LIFTED + self._names[id(one)]}
            less = _drop_keys(one, (REF, *_NAMING, *_DEFINING))
            named = self._targets.get(id(one))
            return less if named is None else {REF: LIFTED + named, **less}

        return map_schemas(target, change)


def _follow_pointer(root: object, reference: str) -> object:
    """Return the target of `#` and a pointer (RFC 6901); None if it names nothing."""
    start, *parts = unquote(reference).split("/")
    if start != "#":
        return None
    for part in parts:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(root, dict):
            root = root.get(part)
        elif isinstance(root, list) and part.isascii() and part.isdecimal() and len(part) < 10:
            root = root[int(part)] if int(part) < len(root) else None
        else:
            return None
    return root


def _drop_keys(schema: Schema, words: Collection[str]) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key not in words}
