"""Traversal of a JSON schema (which parts of it are schemas too, and which are names or data), and its references.

A keyword does not count where it is the name of a property (`properties: {"$ref": ...}`) or part of data (`enum`,
`const`, `default`, `examples`). The value of an unknown keyword counts as a schema. `KEYWORDS` limit values; all others
only describe them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

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


# ---- references, rewritten so that the schema means the same wherever it is inserted
#
# A grammar of calls has the schema of a tool's arguments inside a schema of its own, or takes single arguments out of
# it; `#/properties/a` would then refer to another place, or to none. So all targets of references are moved to `$defs`
# at the root:
#
#     {"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
#     {"properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/0"}}, "$defs": {"0": {"type": "integer"}}}
#
# Pointers (with `~0`, `~1` and percent signs), anchors and addresses (`$id`) are followed; nothing is fetched.
# Recursive references stay recursive.
REF, DEFINITIONS = "$ref", "$defs"
LIFTED = f"#/{DEFINITIONS}/"  # the prefix of every rewritten reference
_DEFINING = (DEFINITIONS, "definitions")
_ANCHORS = ("$anchor", "$dynamicAnchor")  # `$ref` may name the latter as well
_DYNAMIC = ("$dynamicRef", "$recursiveRef")
_OLD_DRAFTS = ("draft-03", "draft-04")  # drafts in which `id` has the role of `$id`


def lift_references(schema: Schema) -> tuple[dict[str, object], list[str]]:
    """Move all targets of references into the schema's `$defs`; also return the references that name nothing.

    The latter are removed from the schema, so it admits anything there.
    """
    if any(word in one for one in iter_all_parts(schema) for word in _DYNAMIC):
        schema = map_schemas(schema, _make_static)
    if not any(REF in one for one in iter_all_parts(schema)):
        return dict(schema), []
    document = _SchemaDocument(schema)
    return document.lift(), document.unknown


def _make_static(one: Schema) -> dict[str, object]:
    """Make a dynamic reference a plain one: in a schema that is not extended, both name the same target."""
    dynamic = next((one[word] for word in _DYNAMIC if word in one), None)
    rest = {key: value for key, value in one.items() if key not in _DYNAMIC}
    return rest if dynamic is None or REF in rest else {**rest, REF: dynamic}


class _SchemaDocument:
    """A schema and the targets of its references. Parts are identified by `id()`."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._id = "id" if any(draft in str(root.get("$schema")) for draft in _OLD_DRAFTS) else "$id"
        self._bases: dict[int, str] = {}  # id of a schema -> the base address of its references
        self._resources: dict[str, Schema] = {"": root}
        self._anchors: dict[tuple[str, str], Schema] = {}
        self._targets: dict[int, str] = {}  # id of a schema with a reference -> the new name of its target
        self._names: dict[int, str] = {}  # id of a target -> its new name
        self._found: list[object] = []  # targets, in the order of their names
        self.unknown: list[str] = []
        self._index(root, "")
        self._resolve()

    def lift(self) -> dict[str, object]:
        dialect = {"$schema": self._root["$schema"]} if "$schema" in self._root else {}
        definitions = {name: self._rewrite(one) for name, one in zip(self._names.values(), self._found, strict=True)}
        root = self._rewrite(self._root)
        assert isinstance(root, dict)
        return {**dialect, **root, DEFINITIONS: definitions}

    # ---- names of places
    def _index(self, schema: Schema, base: str) -> None:
        waiting = [(schema, base)]
        while waiting:
            one, base = waiting.pop()
            if id(one) not in self._bases:
                self._bases[id(one)] = base = self._register(one, base)
                waiting += [(part, base) for part in iter_parts(one)]

    def _register(self, one: Schema, base: str) -> str:
        """Register the names of this schema. Returns the base address of references in it."""
        name = one.get(self._id)
        if isinstance(name, str) and name.startswith("#"):  # an anchor in older drafts
            self._anchors[base, name[1:]] = one
        elif isinstance(name, str) and (address := _join_url(base, name)) is not None:
            base = address.rstrip("#")
            self._resources[base] = one
        for anchor in (one.get(word) for word in _ANCHORS):
            if isinstance(anchor, str):
                self._anchors[base, anchor] = one
        return base

    def _find(self, reference: str, base: str) -> tuple[object, str]:
        """Return the target of a reference (None if there is none), and the base address of references in it."""
        address = _join_url(base, reference)
        if address is None:
            return None, base
        base, encoded = urldefrag(address)
        resource, fragment = self._resources.get(base), unquote(encoded)
        if resource is None or not fragment:
            return resource, base
        found = _follow_pointer(resource, fragment) if fragment.startswith("/") else self._anchors.get((base, fragment))
        return (found if isinstance(found, dict | bool) else None), base

    # ---- targets of references
    def _resolve(self) -> None:
        """Name all targets reachable from the root; unused definitions are skipped."""
        waiting, seen = [self._root], set[int]()
        while waiting:
            one = waiting.pop()
            if id(one) not in seen:
                seen.add(id(one))
                target = self._target(one)
                waiting += [target] if isinstance(target, dict) else []
                waiting += iter_parts(_drop_keys(one, _DEFINING))

    def _target(self, one: Schema) -> object:
        """Return the target of this schema's reference; None if it has no reference, or a dangling one."""
        reference = one.get(REF)
        if not isinstance(reference, str):
            return None
        target, base = self._find(reference, self._bases[id(one)])
        if target is None:
            self.unknown.append(reference)
            return None
        if isinstance(target, dict):  # it may be in data, which was not indexed
            self._index(target, base)
        if id(target) not in self._names:
            self._names[id(target)] = str(len(self._found))
            self._found.append(target)
        self._targets[id(one)] = self._names[id(target)]
        return target

    # ---- the rewritten schema
    def _rewrite(self, target: object) -> object:
        """Return a schema with a reference in place of each part that has a name, so that nothing is repeated."""
        if not isinstance(target, dict):
            return target

        def change(one: Schema) -> dict[str, object]:
            if one is not target and id(one) in self._names:
                return {REF: LIFTED + self._names[id(one)]}
            less = _drop_keys(one, (REF, *_ANCHORS, "$schema", self._id, *_DEFINING))
            named = self._targets.get(id(one))
            return less if named is None else {REF: LIFTED + named, **less}

        return map_schemas(target, change)


def _join_url(base: str, reference: str) -> str | None:
    """Return the address of a reference; None if it is not a valid one."""
    try:
        address = base + reference if reference.startswith("#") else urljoin(base, reference)
        urlsplit(address)  # urljoin does not check every address
    except ValueError:
        return None
    return address


def _follow_pointer(resource: object, pointer: str) -> object:
    """Return the target of a pointer (RFC 6901); None if it names nothing."""
    for part in pointer.split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if isinstance(resource, dict):
            resource = resource.get(part)
        elif isinstance(resource, list) and part.isascii() and part.isdecimal() and len(part) < 10:
            resource = resource[int(part)] if int(part) < len(resource) else None
        else:
            return None
    return resource


def _drop_keys(schema: Schema, words: Collection[str]) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key not in words}
