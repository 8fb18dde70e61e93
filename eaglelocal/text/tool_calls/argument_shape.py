"""The parts of a tool's argument schema that reading a call needs: the names and their types.

Schemas come from requests: parts that cannot be read admit anything.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cached_property

from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.schema_parts import Schema
from eaglelocal.text.tool_calls.tool_schemas import (
    find_types,
    list_values,
    read_argument_schema,
    read_list,
    resolve_schema,
    to_schema,
)

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
