"""The base class of builders of grammar rules for a call's arguments; each notation other than JSON has a subclass.

The grammar is in llguidance's dialect of Lark; JSON within it uses llguidance's own %json. A builder also records the
schema's keywords that its rules do not bind. Does not know notations.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar, cast

from eaglelocal.core.constraint import JSON_SPACE
from eaglelocal.core.tools import CallForm
from eaglelocal.text.tool_calls import tool_schemas
from eaglelocal.text.tool_calls.bindable_schemas import check_is_kept, tidy_schema
from eaglelocal.text.tool_calls.schema_parts import KEYWORDS, TYPES, Schema, list_keywords

Found = TypeVar("Found")
Field = tuple[str, Schema, bool]  # name, schema, and whether it is required
WriteMarkers = Callable[[str], str]  # turns a text with markers into an expression of the grammar
VALUES, MEMBERS = frozenset({"enum", "const"}), frozenset({"properties", "required", "additionalProperties"})
ANY_TEXT = "/(.|\\n)*/"
SCALARS = {
    "integer": "/-?(0|[1-9][0-9]{0,30})/",
    "number": "/-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


def json_rule(schema: Schema, *, is_strict: bool) -> str:
    """Return a rule body for JSON that fits the schema.

    Strict: parts of the schema that llguidance does not support are an error; else they are ignored.
    """
    if is_strict:
        check_strict(schema)
    options = {} if is_strict else {"lenient": True, "coerce_one_of": True}
    return f"%json {json.dumps({**tidy_schema(schema), 'x-guidance': {'whitespace_pattern': JSON_SPACE, **options}})}"


def check_strict(schema: Schema) -> None:
    check_is_kept(schema, "the schema of a strict tool", is_strict=True, parameter="tools")


class RuleBuilder(ABC):
    """A builder of the rules for one call's arguments. `unbound` has the keywords that they do not bind."""

    def __init__(
        self, name: str, write_markers: WriteMarkers, tokens: Mapping[str, int], root: Schema, *, is_strict: bool
    ) -> None:
        self._name, self._write, self._tokens, self._root = name, write_markers, tokens, root
        self._is_strict = is_strict
        self._rules: list[str] = []
        self.unbound: set[str] = set()
        self._found: dict[tuple[str, str], object] = {}

    def build(self, form: CallForm) -> list[str]:
        """Return the rules for the arguments of a call in this form; the first one has the builder's name."""
        return [f"{self._name}: {self._build(form)}", *self._rules]

    @abstractmethod
    def _build(self, form: CallForm) -> str:
        """Return the expression for all arguments, having added the rules that it uses."""

    def _add(self, body: str) -> str:
        name = f"{self._name}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _json(self, schema: Schema) -> str:
        whole = {**schema, **tool_schemas.keep_definitions(self._root)}
        return self._remember("rule", schema, lambda: self._add(json_rule(whole, is_strict=self._is_strict)))

    def _remember(self, name: str, schema: Schema, find: Callable[[], Found]) -> Found:
        """Return the result of `find`, computed once: many arguments may be alike, or refer to one large part."""
        key = name, json.dumps(schema)
        if key not in self._found:
            self._found[key] = find()
        return cast("Found", self._found[key])

    def _literal(self, schema: Schema) -> str:
        """Return an expression for JSON; numbers without limits are kept to the range that readers support."""
        kind = schema.get("type")
        is_plain = isinstance(kind, str) and kind in SCALARS and schema.keys() & KEYWORDS == {"type"}
        return SCALARS[str(kind)] if is_plain else self._json(schema)

    def _types(self, schema: Schema) -> frozenset[str] | None:
        return self._remember("types", schema, lambda: tool_schemas.find_types(schema, self._root))

    def _values(self, schema: Schema) -> list[object]:
        return self._remember("values", schema, lambda: tool_schemas.list_values(schema, self._root))

    def _limits(self, schema: Schema, types: Collection[str]) -> frozenset[str]:
        return self._remember(
            f"limits of {sorted(types)}", schema, lambda: tool_schemas.list_limits(schema, self._root, types)
        )

    def _is_free(self, schema: Schema, kind: str) -> bool:
        return kind in (self._types(schema) or ()) and not self._limits(schema, {kind})

    def _leave(self, schema: Schema, bound: Collection[str] = (), types: Collection[str] = TYPES) -> None:
        """Record the keywords of a schema, not of its parts, that limit values of these types but are not bound."""
        self.unbound |= (list_keywords(types) & schema.keys()) - {"type", *bound}

    # ---- objects
    def _read_arguments(self) -> tuple[list[Field], object]:
        """Return the arguments of the call, as `_read_fields` does."""
        types, parts = self._types(self._root), tool_schemas.list_parts(self._root, self._root)
        if types is not None and "object" not in types:
            self.unbound.add("type")
        bound = (
            MEMBERS if len(parts) == 1 else MEMBERS - {"additionalProperties"}
        )  # it refers to the members of its own part
        for part in parts:
            self._leave(part, bound, ["object"])
        return self._read_fields(tool_schemas.resolve_schema(self._root, self._root))

    def _read_fields(self, schema: Schema) -> tuple[list[Field], object]:
        """Return name, schema and requiredness of each member, and the schema of all others.

        Besides named properties there are no others (false): small models would add keys of their own.
        """
        fields = tool_schemas.list_fields(schema)
        names = [name for name, *_ in fields]
        required = schema.get("required")
        if isinstance(required, list) and any(name not in names for name in required):
            self.unbound.add("required")
        others = False if schema.get("properties") else schema.get("additionalProperties", True)
        return [one for one in fields if one[2] or self._types(one[1]) != frozenset()], others

    def _other_key(self, terminal: str, fields: Sequence[Field]) -> str:
        """Return a terminal for the names that `terminal` admits, except the fields' names."""
        if not fields:
            return terminal
        name = f"{self._name}_{len(self._rules)}_key".upper()
        self._rules.append(f"{name}: {terminal} & ~/{'|'.join(escape_regex(key) for key, *_ in fields)}/")
        return name

    def _sequence(self, parts: Sequence[tuple[str, bool]], joint: str) -> str:
        """Return an expression for parts in order, some of them optional, with a joint between those present."""
        rest, first = '""', '""'
        for part, is_required in reversed(parts):
            with_part = f"{joint} {part} {rest}", f"{part} {rest}"
            rest, first = (
                (self._add(with_part[0]), self._add(with_part[1]))
                if is_required
                else (self._add(f"({with_part[0]}) | {rest}"), self._add(f"({with_part[1]}) | {first}"))
            )
        return first

    # ---- texts
    def _free_text(self, ending: str, barred: Sequence[str] = (), never: str = "") -> str:
        """Return an expression for any text up to and including `ending`, which is a token or text.

        The text contains neither the ending nor a match of the regular expressions `barred`, in any spelling; the whole
        text does not match `never`.
        """
        name = f"{self._name}_{len(self._rules)}"
        text, barred = f"{name}_text".upper(), [escape_regex(ending.strip()), *barred]
        other = f" & ~/{never}/" if never else ""
        self._rules.append(f"{text}: {ANY_TEXT} & ~/(.|\\n)*({'|'.join(barred)})(.|\\n)*/{other}")
        if ending in self._tokens:
            return f"{text} {self._write(ending)}"
        self._rules.append(f"{name}[suffix={json.dumps(ending)}]: {text}")
        return name


def escape_regex(text: str) -> str:
    """Return a text escaped for a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


def quote(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text)
