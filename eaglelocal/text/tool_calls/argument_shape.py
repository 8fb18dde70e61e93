"""Tell what a tool's schema admits in one place of a call, and what a word without quotes spells there.

The schema's types decide: `007` is a number where the schema wants one, and a text where it wants a string. A word that
may be either raises UnreadableCall. Independent of the notation of calls.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from enum import Enum
from functools import cached_property

from eaglelocal.core.json_text import read_json
from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.schema_parts import Schema
from eaglelocal.text.tool_calls.tool_schemas import (
    list_types,
    list_values,
    name_type,
    read_argument_schema,
    resolve_schema,
)

WRAPPERS = ("arguments", "parameters")  # names under which models put all arguments once more
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?=\.?\d)0*+(?P<whole>\d*)(?P<part>\.\d*)?(?P<exponent>[eE][+-]?\d+)?")


class Style(Enum):
    """The notation that a text is near to. It decides what a backslash means, and which words are literals."""

    JSON = "json"
    PYTHON = "python"
    GEMMA = "gemma"  # without escapes


class UnreadableCall(ValueError):
    """An error for a call without a single reading. It says why, in words without the call's content."""


class Shape:
    """A part of a tool's schema, as far as reading needs it."""

    def __init__(self, schema: Schema, root: Schema) -> None:
        self._schema, self._root = schema, root

    @classmethod
    def of_tool(cls, tool: Tool | None) -> Shape:
        """Return the shape of a tool's arguments; one that admits anything, for an unknown tool."""
        root = read_argument_schema(tool) if tool else {}
        return cls({"type": "object", **resolve_schema(root, root)}, root)

    @cached_property
    def types(self) -> frozenset[str]:
        """The types that it names; none if it leaves them open."""
        return list_types(self._schema, self._root)

    @cached_property
    def texts(self) -> list[str]:
        """The only strings that it admits; empty where it leaves them open."""
        values = list_values(self._schema, self._root)
        texts = [value for value in values if isinstance(value, str)]
        return texts if len(texts) == len(values) else []

    @cached_property
    def properties(self) -> Mapping[str, object]:
        named = resolve_schema(self._schema, self._root).get("properties")
        return named if isinstance(named, dict) else {}

    @property
    def items(self) -> Shape:
        return self._make_part(resolve_schema(self._schema, self._root).get("items"))

    @cached_property
    def required(self) -> frozenset[str]:
        named = resolve_schema(self._schema, self._root).get("required")
        return frozenset(key for key in named if isinstance(key, str)) if isinstance(named, list) else frozenset()

    @property
    def is_closed(self) -> bool:
        return self._schema.get("additionalProperties") is False

    def child(self, key: str) -> Shape:
        return self._make_part(self.properties.get(key))

    def admits(self, kind: str) -> bool:
        """Return whether values of a type may stand here. Null may always: models write it for what they leave out."""
        kinds = {kind, "number"} if kind == "integer" else {kind}
        return not self.types or kind == "null" or not kinds.isdisjoint(self.types)

    def is_text_for(self, kind: str) -> bool:
        """Return whether a literal of this type can only be a string without its quotes."""
        return "string" in self.types and not self.admits(kind)

    def is_wrapper(self, key: str) -> bool:
        return key in WRAPPERS and bool(self.properties) and key not in self.properties

    def find_key(self, key: str, found: Collection[str]) -> str:
        """Return the property that a key names, in whatever case; the key itself if it names none or several."""
        if key in self.properties:
            return key
        alike = [name for name in self.properties if name.casefold() == key.casefold() and name not in found]
        return alike[0] if len(alike) == 1 else key

    def _make_part(self, schema: object) -> Shape:
        return Shape(schema if isinstance(schema, dict) else {}, self._root)


ANYTHING = Shape({}, {})


def read_word(word: str, shape: Shape, style: Style) -> str | None:
    """Return the JSON of a literal; None for a word that may be a string. Raises UnreadableCall if it may be either."""
    types = shape.types
    lower, is_text, is_open = word.lower(), "string" in types, not types
    if lower in ("none", "null"):
        if word == "null" or (word == "None" and style is Style.PYTHON) or not (is_text or is_open):
            return "null"
        if "null" in types:
            return "null"
        raise UnreadableCall("a word may be a literal or a string")
    if _is_finite_json(word):
        return None if shape.is_text_for(find_kind(word)) else word
    if types == {"string"}:
        return None
    if lower in ("true", "false"):
        if shape.is_text_for("boolean"):
            return None
        if (style is Style.PYTHON and word in ("True", "False")) or not (is_text or is_open):
            return lower
        raise UnreadableCall("a word may be a literal or a string")
    number = _read_number(word, style, may_pad=not (is_text or is_open))
    if number is None and _NUMBER.fullmatch(word) and not (is_text and types.isdisjoint(("integer", "number"))):
        raise UnreadableCall("a word may be a number or a string")
    return number


def _read_number(word: str, style: Style, *, may_pad: bool) -> str | None:
    """Return a number that JSON writes in another way, as JSON. `may_pad`: zeros before it mean nothing."""
    found = _NUMBER.fullmatch(word)
    if found and may_pad:
        sign, part = found["sign"].replace("+", ""), found["part"] or ""
        number = f"{sign}{found['whole'] or '0'}{part + '0' if part == '.' else part}{found['exponent'] or ''}"
        return number if _is_finite_json(number) else None
    if style is Style.PYTHON and re.fullmatch(r"[+-]?[\d.][\w.+-]*", word):
        try:
            value = ast.literal_eval(word)
            return json.dumps(value, allow_nan=False) if isinstance(value, int | float) else None
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
    return None


def _is_finite_json(word: str) -> bool:
    try:
        read_json(word, is_finite=True)
    except ValueError:
        return False
    return True


def find_kind(text: str) -> str:
    """Return the type of a JSON text."""
    return name_type(read_json(text))
