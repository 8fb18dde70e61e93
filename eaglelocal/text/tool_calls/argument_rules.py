"""Grammar rules for the arguments of one call, in the notation of its model family.

The grammar is in llguidance's dialect of Lark. For JSON it uses llguidance's own %json; other notations are spelled
out from the tool's schema: each named argument in the schema's order, strings free up to their closing marker,
everything else as JSON. A schema that names no arguments admits any. `list_unwritten` names what is ignored, such as
patterns and lengths of such strings.
Only what has one reading is admitted: no line break in quotes, no backslash that is no escape, no number too large to
be one, and in a text no marker that might end it, nor the beginning of another argument.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from eaglelocal.core.constraint import JSON_SPACE
from eaglelocal.core.tools import CallForm, Notation, Tool
from eaglelocal.text.tool_calls.bindable_schemas import check_is_kept, tidy_schema
from eaglelocal.text.tool_calls.call_forms import IS_TEXT, KEY, VALUE
from eaglelocal.text.tool_calls.lenient_values import GEMMA_QUOTE
from eaglelocal.text.tool_calls.schema_parts import Schema, iter_all_parts
from eaglelocal.text.tool_calls.schema_references import REF
from eaglelocal.text.tool_calls.tool_schemas import (
    keep_definitions,
    list_fields,
    list_types,
    list_values,
    read_bindable_schema,
    resolve_schema,
)

WriteMarkers = Callable[[str], str]  # turns a text with markers into an expression of the grammar
ANY_TEXT = "/(.|\\n)*/"
BOOLEAN = '("true" | "false" | "True" | "False")'
MAX_DEPTH = 8  # nested objects and arrays that are bound by their schema; deeper ones may be anything
_SCALARS = {
    "integer": "/-?(0|[1-9][0-9]{0,30})/",
    "number": "/-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,30})?([eE][+-]?[0-9]{1,2})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}
_TEXT_LIMITS = frozenset({"pattern", "minLength", "maxLength", "format", "not", "if", "oneOf"})
_ARRAY_LIMITS = frozenset({"minItems", "maxItems", "uniqueItems", "contains", "prefixItems", "unevaluatedItems"})
_OBJECT_LIMITS = frozenset(
    {
        *("minProperties", "maxProperties", "patternProperties", "propertyNames", "unevaluatedProperties"),
        *("dependentRequired", "dependentSchemas", "dependencies", "not", "if", "oneOf"),
    }
)
_ALL_LIMITS = _TEXT_LIMITS | _ARRAY_LIMITS | _OBJECT_LIMITS
_ANNOTATIONS = frozenset({"title", "description", "default", "examples", "example", "$comment"})
_SCALAR_KEYWORDS = ("enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def argument_rules(
    form: CallForm, tool: Tool, name: str, write_markers: WriteMarkers, tokens: Mapping[str, int]
) -> list[str]:
    """Return the rules for a call's arguments; the first has this name."""
    schema = read_bindable_schema(tool)
    rules = _Rules(name, write_markers, tokens, schema, is_strict=tool.is_strict)
    match form.notation:
        case Notation.TAGS:
            return rules.build_tags(form)
        case Notation.GEMMA:
            return rules.build_gemma()
        case _ if form.call.endswith("(«args»)"):
            return rules.build_python()
    return [f"{name}: {json_rule({'type': 'object', **schema}, is_strict=tool.is_strict)}"]


def list_unwritten(form: CallForm | None, tool: Tool) -> frozenset[str]:
    """Return the keywords of a tool's schema that the rules of its notation leave out."""
    root = read_bindable_schema(tool)
    whole = resolve_schema(root, root)
    own = _OBJECT_LIMITS & whole.keys()
    match form.notation if form is not None else Notation.JSON:
        case Notation.TAGS:
            texts = [one for _, one, _ in list_fields(whole) if {"string"} & (list_types(one, root) or {"string"})]
            parts = [resolve_schema(one, root) for one in texts if not list_values(one, root)]
            return own.union(*(_TEXT_LIMITS & part.keys() for one in parts for part in iter_all_parts(one)))
        case Notation.GEMMA:
            parts = [*iter_all_parts(root)]
            limits = frozenset(key for one in parts for key in _ALL_LIMITS & one.keys())
            return limits.union(*(_list_unwritten_forms(one) for one in parts))
        case _ if form is not None and form.call.endswith("(«args»)"):
            return own
    return frozenset()


def _list_unwritten_forms(one: Schema) -> Iterator[str]:
    """Yield the keywords that are left out only in some of their forms."""
    if isinstance(every := one.get("allOf"), list) and len(every) > 1:
        yield "allOf"
    if isinstance(one.get("additionalProperties"), dict):
        yield "additionalProperties"


def json_rule(schema: Schema, *, is_strict: bool) -> str:
    """Return a rule body for JSON that fits the schema.

    Strict: parts of the schema that llguidance does not support are an error; else they are ignored.
    """
    if is_strict:
        check_is_kept(schema, "the schema of a strict tool", is_strict=True, parameter="tools")
    options = {} if is_strict else {"lenient": True, "coerce_one_of": True}
    return f"%json {json.dumps({**tidy_schema(schema), 'x-guidance': {'whitespace_pattern': JSON_SPACE, **options}})}"


class _Rules:
    """A builder of the rules for one call's arguments."""

    def __init__(
        self, name: str, write_markers: WriteMarkers, tokens: Mapping[str, int], root: Schema, *, is_strict: bool
    ) -> None:
        self._name, self._write, self._tokens, self._root = name, write_markers, tokens, root
        self._is_strict = is_strict
        self._rules: list[str] = []
        self._reference_rules: dict[str, str] = {}  # reference -> its rule

    def _add(self, body: str) -> str:
        """Add a rule and return its name."""
        name = f"{self._name}_{len(self._rules)}"
        self._rules.append(f"{name}: {body}")
        return name

    def _json(self, schema: Schema) -> str:
        return self._add(json_rule({**schema, **keep_definitions(self._root)}, is_strict=self._is_strict))

    def _plain(self, schema: Schema) -> str:
        """Return an expression for JSON; booleans also as Python writes them, because some templates show them so."""
        return BOOLEAN if self._types(schema) == {"boolean"} else self._literal(schema)

    def _literal(self, schema: Schema) -> str:
        """Return an expression for JSON; numbers that nothing limits are kept to what readers hold."""
        kind = schema.get("type")
        is_plain = isinstance(kind, str) and kind in _SCALARS and schema.keys() - _ANNOTATIONS == {"type"}
        return _SCALARS[str(kind)] if is_plain else self._json(schema)

    def _types(self, schema: Schema) -> frozenset[str]:
        return list_types(schema, self._root)

    def _texts(self, schema: Schema) -> list[str]:
        """Return the only strings that a schema admits; empty where it leaves them open."""
        return [value for value in list_values(schema, self._root) if isinstance(value, str)]

    def _fields(self) -> list[tuple[str, Schema, bool]]:
        """Return name, schema and whether it is required, of each argument of the call."""
        return list_fields(resolve_schema(self._root, self._root))

    def _free_text(self, ending: str, barred: Sequence[str] = ()) -> str:
        """Return an expression for any text up to and including `ending`, which is a token or text.

        Neither the ending nor what these regular expressions match is in the text, however it is spelled.
        """
        name = f"{self._name}_{len(self._rules)}"
        text, barred = f"{name}_text".upper(), [escape_regex(ending.strip()), *barred]
        self._rules.append(f"{text}: {ANY_TEXT} & ~/(.|\\n)*({'|'.join(barred)})(.|\\n)*/")
        if ending in self._tokens:
            return f"{text} {self._write(ending)}"
        self._rules.append(f"{name}[suffix={json.dumps(ending)}]: {text}")
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

    def _finish(self, body: str) -> list[str]:
        return [f"{self._name}: {body}", *self._rules]

    # ---- texts between tags
    def build_tags(self, form: CallForm) -> list[str]:
        fields = self._fields()
        if not fields:
            return self._finish(f"({self._tag(form, '', {})})*")
        parts = [(self._tag(form, key, schema), is_required) for key, schema, is_required in fields]
        return self._finish(" ".join(part if is_required else f"({part})?" for part, is_required in parts))

    def _tag(self, form: CallForm, key: str, schema: Schema) -> str:
        """Return an expression for one argument; with an empty key, for one of any name."""
        types = self._types(schema)
        if not types or "string" in types:
            as_text = self._tag_as(form, key, schema, is_text=True)
            if IS_TEXT not in form.value or types == {"string"}:
                return as_text
            return f"({as_text} | {self._tag_as(form, key, schema, is_text=False)})"
        return self._tag_as(form, key, schema, is_text=False)

    def _tag_as(self, form: CallForm, key: str, schema: Schema, *, is_text: bool) -> str:
        before, after = form.value.replace(IS_TEXT, "true" if is_text else "false").split(VALUE)
        ending, pad = after.rstrip("\n"), before[len(before.rstrip("\n")) :]
        head, tail = before.split(KEY)
        if is_text and (values := self._tag_values(schema)):  # white space around them would be part of them
            pad = f"{quote(pad)}? " if pad else ""
            value = f"{pad}({' | '.join(map(quote, values))}) {pad}{self._write(ending.lstrip())}"
            tail = tail.rstrip("\n")
        elif is_text:
            value = self._free_text(ending, self._list_barred(form))
        else:
            value = f"{self._plain(schema)} {self._write(ending)}"
        name = self._write(f"{head}{key}{tail}") if key else f"{self._write(head)} ANY_KEY {self._write(tail)}"
        return f"{name} {value} GAP?"

    def _tag_values(self, schema: Schema) -> list[str]:
        """Return the only texts that a schema admits between tags, strings unquoted; empty if it leaves them open."""
        return [value if isinstance(value, str) else json.dumps(value) for value in list_values(schema, self._root)]

    def _list_barred(self, form: CallForm) -> list[str]:
        """Return regular expressions for what makes a text between tags doubtful: another argument, an end, quotes."""
        head, tail = form.value.partition(VALUE)[0].split(KEY)
        quote = "[\"'“”‘’]?"
        keys = "|".join(escape_regex(key) for key, *_ in self._fields())
        opening = f"{escape_regex(head.strip()).replace(chr(34), quote)}{quote}({keys}){quote}{tail.strip(chr(34))[:1]}"
        ending = rf"{escape_regex(form.tags[1].strip())}\s*{escape_regex(form.end)}"
        barred = {opening: keys, ending: form.tags[1] and form.end, escape_regex(form.quotes[0]): form.quotes[0]}
        return [pattern for pattern, is_there in barred.items() if is_there]

    # ---- Python
    def build_python(self) -> list[str]:
        fields = self._fields()
        if not fields:
            pair = f'PY_KEY "=" {self._json({})}'
            return self._finish(f'({pair} (", " {pair})*)?')
        parts = [(f"{quote(key + '=')} {self._python(schema)}", is_required) for key, schema, is_required in fields]
        return self._finish(self._sequence(parts, '", "'))

    def _python(self, schema: Schema) -> str:
        """Return an expression for a value in JSON or as Python writes it."""
        types = self._types(schema)
        is_limited = bool(self._texts(schema) or _TEXT_LIMITS & resolve_schema(schema, self._root).keys())
        options = {"string": "" if is_limited else "PY_TEXT", "null": '"None"', "boolean": '"True" | "False"'}
        return f"({' | '.join([self._literal(schema), *filter(None, map(options.get, sorted(types)))])})"

    # ---- Gemma
    def build_gemma(self) -> list[str]:
        return self._finish(self._gemma_object(resolve_schema(self._root, self._root), MAX_DEPTH))

    def _gemma_object(self, schema: Schema, levels: int) -> str:
        fields = sorted(list_fields(schema), key=lambda field: field[0].lower())
        if not fields:
            pair = f'GEMMA_KEY ":" {self._gemma_anything()}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        parts = [
            (f"{quote(f'{key}:')} {self._gemma_value(schema, levels - 1)}", is_required)
            for key, schema, is_required in fields
        ]
        return f'"{{" {self._sequence(parts, quote(","))} "}}"'

    def _gemma_value(self, schema: Schema, levels: int) -> str:
        """Return an expression for a value. References and nested values get rules of their own: they may recur."""
        reference = schema.get(REF)
        if isinstance(reference, str):
            return self._gemma_reference(reference)
        if levels <= 0 or not self._types(schema):
            return self._gemma_anything()
        return self._add(self._gemma_alternatives(schema, levels))

    def _gemma_reference(self, reference: str) -> str:
        name = self._reference_rules.get(reference)
        if name is None:
            name = self._reference_rules[reference] = self._add("")  # reserves the name, because it may refer to itself
            place = len(self._rules) - 1
            target = resolve_schema({REF: reference}, self._root)
            options = self._gemma_alternatives(target, MAX_DEPTH) if self._types(target) else self._gemma_anything()
            self._rules[place] = f"{name}: {options}"
        return name

    def _gemma_alternatives(self, schema: Schema, levels: int) -> str:
        """Return an expression for each alternative of the schema, and each type that it admits."""
        alternatives = list_alternatives(schema)
        if alternatives and "type" not in schema:
            return " | ".join(
                self._gemma_value(alternative, levels - 1)
                for alternative in alternatives
                if isinstance(alternative, dict)
            )
        return " | ".join(self._gemma_type(type_name, schema, levels) for type_name in sorted(self._types(schema)))

    def _gemma_type(self, type_name: str, schema: Schema, levels: int) -> str:
        if type_name == "object":
            return self._gemma_object(schema, levels)
        if type_name == "array":
            items = schema.get("items")
            item = self._gemma_value(items if isinstance(items, dict) else {}, levels - 1)
            return f'"[" ({item} ("," {item})*)? "]"'
        if type_name == "string":
            return self._gemma_text(self._texts(schema))
        return self._gemma_scalar(type_name, schema) if type_name in _SCALARS else self._gemma_anything()

    def _gemma_scalar(self, type_name: str, schema: Schema) -> str:
        """Return an expression for a number or boolean, written as in JSON and bound by its limits as there."""
        limits = {word: schema[word] for word in _SCALAR_KEYWORDS if word in schema}
        return self._json({"type": type_name, **limits}) if limits else _SCALARS[type_name]

    def _gemma_text(self, texts: Sequence[str]) -> str:
        marker = self._write(GEMMA_QUOTE)
        if texts:
            return f"{marker} ({' | '.join(map(quote, texts))}) {marker}"
        return f"{marker} {self._free_text(GEMMA_QUOTE)}"

    def _gemma_anything(self) -> str:
        """Return the name of the rule for any value, which is added once."""
        name = f"{self._name}_any"
        if not any(rule.startswith(f"{name}:") for rule in self._rules):
            self._rules.append(f"{name}: ")  # reserves the index: rules of its texts are numbered
            place = len(self._rules) - 1
            pair = f'GEMMA_KEY ":" {name}'
            options = [*_SCALARS.values(), self._gemma_text([]), f'"[" ({name} ("," {name})*)? "]"']
            self._rules[place] = f'{name}: {" | ".join(options)} | "{{" ({pair} ("," {pair})*)? "}}"'
        return name


def list_alternatives(schema: Schema) -> list[object]:
    """Return a schema's alternatives. A single `allOf` counts as one: some tools describe a reference that way."""
    found = next((found for key in ("anyOf", "oneOf", "allOf") if isinstance(found := schema.get(key), list)), [])
    return [] if "allOf" in schema and len(found) > 1 else found


PYTHON_RULES = [
    "PY_KEY: /[A-Za-z_][A-Za-z0-9_]{0,63}/",
    "PY_TEXT: /'([^'\\\\\\n\\r]|\\\\(['\"\\\\bfnrt]|u[0-9a-fA-F]{4}))*'/",
]


def list_terminals(form: CallForm) -> list[str]:
    """Return the terminals that the rules of arguments use."""
    return {
        Notation.TAGS: ['ANY_KEY: /[^<>"\\n]{1,64}/'],
        Notation.GEMMA: ["GEMMA_KEY: /[\\w.-]{1,64}/"],
        Notation.PYTHON: PYTHON_RULES,
        Notation.BARE: PYTHON_RULES,
    }.get(form.notation, [])


def escape_regex(text: str) -> str:
    """Return a text escaped for a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/")


def quote(text: str) -> str:
    """Return a text as a literal of Lark."""
    return json.dumps(text)
