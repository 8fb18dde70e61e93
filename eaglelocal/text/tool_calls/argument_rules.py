"""Grammar rules for the arguments of one call, in the notation of its model family.

In llguidance's dialect of Lark. JSON is bound by llguidance's own %json; other notations are spelled out here from
the tool's schema: each named argument in the schema's order, strings free up to their closing marker, everything else
as JSON. A schema that names no arguments admits any. Patterns and lengths of such strings are not bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from eaglelocal.core.constraint import JSON_SPACE
from eaglelocal.core.tools import CallForm, Notation, Tool
from eaglelocal.text.tool_calls.bindable_schemas import tidied
from eaglelocal.text.tool_calls.call_forms import IS_TEXT, KEY, VALUE
from eaglelocal.text.tool_calls.gemma_calls import QUOTE
from eaglelocal.text.tool_calls.schema_parts import Schema
from eaglelocal.text.tool_calls.schema_references import REF
from eaglelocal.text.tool_calls.tool_schemas import (
    bound_schema,
    definitions_of,
    fields_of,
    kinds_of,
    resolved,
    texts_of,
)

Written = Callable[[str], str]  # turns a text with markers into an expression of the grammar
ANY_TEXT = "/(.|\\n)*/"
BOOLEAN = '("true" | "false" | "True" | "False")'
MAX_LEVELS = 8  # nested objects and arrays that are bound by their schema; deeper ones may be anything
_SCALARS = {
    "integer": "/-?(0|[1-9][0-9]*)/",
    "number": "/-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_OF_SCALARS = ("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def argument_rules(form: CallForm, tool: Tool, name: str, written: Written, tokens: Mapping[str, int]) -> list[str]:
    """Return the rules for a call's arguments; the first has this name."""
    schema = bound_schema(tool)
    rules = _Rules(name, written, tokens, schema, is_strict=tool.is_strict)
    match form.notation:
        case Notation.TAGS:
            return rules.tagged(form)
        case Notation.GEMMA:
            return rules.gemma()
        case _ if form.call.endswith("(«args»)"):
            return rules.python()
    return [f"{name}: {json_rule({'type': 'object', **schema}, is_strict=tool.is_strict)}"]


def json_rule(schema: Schema, *, is_strict: bool) -> str:
    """Return a rule body for JSON that fits the schema.

    Strict: parts of the schema that llguidance cannot bind are an error; else they bind nothing.
    """
    ways = {} if is_strict else {"lenient": True, "coerce_one_of": True}
    return f"%json {json.dumps({**tidied(schema), 'x-guidance': {'whitespace_pattern': JSON_SPACE, **ways}})}"


class _Rules:
    """A builder of the rules for one call's arguments."""

    def __init__(
        self, name: str, written: Written, tokens: Mapping[str, int], root: Schema, *, is_strict: bool
    ) -> None:
        self._name, self._written, self._tokens, self._root = name, written, tokens, root
        self._is_strict = is_strict
        self._rules: list[str] = []
        self._referred: dict[str, str] = {}  # reference -> its rule

    def _add(self, body: str) -> str:
        """Add a rule and return its name."""
        name = f"{self._name}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _json(self, schema: Schema) -> str:
        return self._add(json_rule({**schema, **definitions_of(self._root)}, is_strict=self._is_strict))

    def _plain(self, schema: Schema) -> str:
        """Return an expression for JSON; booleans also as Python writes them, like the templates that models know."""
        return BOOLEAN if self._kinds(schema) == {"boolean"} else self._json(schema)

    def _kinds(self, schema: Schema) -> frozenset[str]:
        return kinds_of(schema, self._root)

    def _texts(self, schema: Schema) -> list[str]:
        return texts_of(schema, self._root)

    def _fields(self) -> list[tuple[str, Schema, bool]]:
        """Return name, schema and whether it is required, of each argument of the call."""
        return fields_of(resolved(self._root, self._root))

    def _free(self, ending: str) -> str:
        """Return an expression for any text up to and including `ending`, which is a token or text."""
        if ending in self._tokens:
            free = self._add("TEXT")
            return f"{free} {self._written(ending)}"
        name = f"{self._name}_{len(self._rules)}"
        self._rules.append(f"{name}[suffix={json.dumps(ending)}]: {ANY_TEXT}")
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

    def _whole(self, body: str) -> list[str]:
        return [f"{self._name}: {body}", *self._rules]

    # ---- texts between tags
    def tagged(self, form: CallForm) -> list[str]:
        fields = self._fields()
        if not fields:
            return self._whole(f"({self._tag(form, '', {})})*")
        parts = [(self._tag(form, key, said), is_required) for key, said, is_required in fields]
        return self._whole(" ".join(part if is_required else f"({part})?" for part, is_required in parts))

    def _tag(self, form: CallForm, key: str, schema: Schema) -> str:
        """Return an expression for one argument; with an empty key, for one of any name."""
        kinds = self._kinds(schema)
        if not kinds or "string" in kinds:
            as_text = self._tag_as(form, key, schema, is_text=True)
            if IS_TEXT not in form.value or kinds == {"string"}:
                return as_text
            return f"({as_text} | {self._tag_as(form, key, schema, is_text=False)})"
        return self._tag_as(form, key, schema, is_text=False)

    def _tag_as(self, form: CallForm, key: str, schema: Schema, *, is_text: bool) -> str:
        before, after = form.value.replace(IS_TEXT, "true" if is_text else "false").split(VALUE)
        head, tail = before.split(KEY)
        name = self._written(f"{head}{key}{tail}") if key else f"{self._written(head)} ANY_KEY {self._written(tail)}"
        ending = after.rstrip("\n")
        if is_text and (texts := self._texts(schema)):
            value = f"({' | '.join(map(quoted, texts))}) {self._written(ending)}"
        elif is_text:
            value = self._free(ending)
        else:
            value = f"{self._plain(schema)} {self._written(ending)}"
        return f"{name} {value} GAP?"

    # ---- Python
    def python(self) -> list[str]:
        fields = self._fields()
        if not fields:
            pair = f'PY_KEY "=" {self._json({})}'
            return self._whole(f'({pair} (", " {pair})*)?')
        parts = [(f"{quoted(key + '=')} {self._python(said)}", is_required) for key, said, is_required in fields]
        return self._whole(self._sequence(parts, '", "'))

    def _python(self, schema: Schema) -> str:
        """Return an expression for a value in JSON or as Python writes it."""
        kinds = self._kinds(schema)
        ways = {"string": "" if self._texts(schema) else "PY_TEXT", "null": '"None"', "boolean": '"True" | "False"'}
        return f"({' | '.join([self._json(schema), *filter(None, (ways.get(kind) for kind in sorted(kinds)))])})"

    # ---- Gemma
    def gemma(self) -> list[str]:
        return self._whole(self._gemma_object(resolved(self._root, self._root), MAX_LEVELS))

    def _gemma_object(self, schema: Schema, levels: int) -> str:
        fields = sorted(fields_of(schema), key=lambda field: field[0].lower())
        if not fields:
            pair = f'GEMMA_KEY ":" {self._gemma_anything()}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        parts = [(f"{quoted(f'{key}:')} {self._gemma_value(said, levels - 1)}", must) for key, said, must in fields]
        return f'"{{" {self._sequence(parts, quoted(","))} "}}"'

    def _gemma_value(self, schema: Schema, levels: int) -> str:
        """Return an expression for a value. References and nested values get their own rules, so they may recur."""
        reference = schema.get(REF)
        if isinstance(reference, str):
            return self._gemma_referred(reference)
        if levels <= 0 or not self._kinds(schema):
            return self._gemma_anything()
        return self._add(self._gemma_ways(schema, levels))

    def _gemma_referred(self, reference: str) -> str:
        name = self._referred.get(reference)
        if name is None:
            name = self._referred[reference] = self._add("")  # reserves the name, for it may refer to itself
            place = len(self._rules) - 1
            target = resolved({REF: reference}, self._root)
            ways = self._gemma_ways(target, MAX_LEVELS) if self._kinds(target) else self._gemma_anything()
            self._rules[place] = f"{name}: {ways}"
        return name

    def _gemma_ways(self, schema: Schema, levels: int) -> str:
        """Return an expression for each alternative of the schema, and each type that it admits."""
        alternatives = alternatives_of(schema)
        if alternatives and "type" not in schema:
            return " | ".join(self._gemma_value(way, levels - 1) for way in alternatives if isinstance(way, dict))
        return " | ".join(self._gemma_kind(kind, schema, levels) for kind in sorted(self._kinds(schema)))

    def _gemma_kind(self, kind: str, schema: Schema, levels: int) -> str:
        if kind == "object":
            return self._gemma_object(schema, levels)
        if kind == "array":
            items = schema.get("items")
            item = self._gemma_value(items if isinstance(items, dict) else {}, levels - 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "string":
            return self._gemma_text(self._texts(schema))
        return self._gemma_scalar(kind, schema) if kind in _SCALARS else self._gemma_anything()

    def _gemma_scalar(self, kind: str, schema: Schema) -> str:
        """Return an expression for a number or boolean, written as in JSON and bound by its limits as there."""
        said = {word: schema[word] for word in _OF_SCALARS if word in schema}
        return self._json({"type": kind, **said}) if said else _SCALARS[kind]

    def _gemma_text(self, texts: Sequence[str]) -> str:
        quote = self._written(QUOTE)
        if texts:
            return f"{quote} ({' | '.join(map(quoted, texts))}) {quote}"
        return f"{quote} {self._free(QUOTE)}"

    def _gemma_anything(self) -> str:
        """Return the name of the rule for any value, which is added once."""
        name = f"{self._name}_any"
        if not any(rule.startswith(f"{name}:") for rule in self._rules):
            self._rules.append(f"{name}: ")  # reserves the index: rules of its texts are numbered
            place = len(self._rules) - 1
            pair = f'GEMMA_KEY ":" {name}'
            ways = [*_SCALARS.values(), self._gemma_text([]), f'"[" ({name} ("," {name})*)? "]"']
            self._rules[place] = f'{name}: {" | ".join(ways)} | "{{" ({pair} ("," {pair})*)? "}}"'
        return name


def alternatives_of(schema: Schema) -> list[object]:
    """Return a schema's alternatives. A single `allOf` counts as one: older tools write a described reference so."""
    ways = next((ways for key in ("anyOf", "oneOf", "allOf") if isinstance(ways := schema.get(key), list)), [])
    return [] if "allOf" in schema and len(ways) > 1 else ways


PYTHON_RULES = ["PY_KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/", "PY_TEXT: /'([^'\\\\]|\\\\(.|\\n))*'/"]


def shared_rules(form: CallForm) -> list[str]:
    """Return the terminals that the rules of arguments use."""
    return {
        Notation.TAGS: ["TEXT: /(.|\\n)*/", 'ANY_KEY: /[^<>"\\n]{1,64}/'],
        Notation.GEMMA: ["TEXT: /(.|\\n)*/", "GEMMA_KEY: /[\\w.-]{1,64}/"],
        Notation.PYTHON: PYTHON_RULES,
        Notation.BARE: PYTHON_RULES,
    }.get(form.notation, [])


def quoted(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text)
