"""Grammar rules for the arguments of one call, in the notation of its model family.

For JSON they use llguidance's own %json; other notations are spelled out from the tool's schema: each named argument in
the schema's order, strings free up to their closing marker, everything else as JSON. A schema that names arguments
admits no others; one that names none admits any, unless it is closed. Only texts with a single reading are admitted: no
line break in quotes, no backslash without an escape, no number out of range, and in a text no marker that might end it,
nor the beginning of another argument.

The grammar is in llguidance's dialect of Lark. Each notation other than JSON has a builder, which also records the
schema's keywords that its rules do not bind.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar, cast

from eaglelocal.core.constraint import JSON_SPACE
from eaglelocal.core.tools import CallForm, Notation, Tool
from eaglelocal.text.tool_calls import tool_schemas
from eaglelocal.text.tool_calls.bindable_schemas import check_is_kept, tidy_schema
from eaglelocal.text.tool_calls.call_forms import IS_TEXT, KEY, VALUE
from eaglelocal.text.tool_calls.lenient_values import GEMMA_QUOTE
from eaglelocal.text.tool_calls.schema_parts import KEYWORDS, REF, TYPES, Schema, list_keywords
from eaglelocal.text.tool_calls.tool_schemas import name_type, read_bindable_schema, to_schema

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


# ---- the rules of one call
BOOLEAN = '("true" | "false" | "True" | "False")'


def argument_rules(
    form: CallForm, tool: Tool, name: str, write_markers: WriteMarkers, tokens: Mapping[str, int]
) -> tuple[list[str], set[str]]:
    """Return the rules for a call's arguments, and the keywords of the schema that they do not bind.

    The first rule has this name. For JSON, the compiler itself reports the keywords that it ignores.
    """
    schema = read_bindable_schema(tool)
    builder = _choose_builder(form)
    if builder is None:
        return [f"{name}: {json_rule({'type': 'object', **schema}, is_strict=tool.is_strict)}"], set()
    if tool.is_strict:
        check_strict(schema)
    rules = builder(name, write_markers, tokens, tidy_schema(schema), is_strict=tool.is_strict)
    return rules.build(form), rules.unbound


def _choose_builder(form: CallForm) -> type[RuleBuilder] | None:
    if form.call.endswith("(«args»)"):
        return _PythonRules
    return {Notation.TAGS: _TagRules, Notation.GEMMA: _GemmaRules}.get(form.notation)


class _TagRules(RuleBuilder):
    """A builder for arguments as texts between tags."""

    _any_key = "ANY_KEY"
    _barred: list[str]  # regular expressions for what no text may contain

    def _build(self, form: CallForm) -> str:
        fields, others = self._read_arguments()
        self._barred = _list_barred(form, [key for key, *_ in fields])
        parts = [(self._tag(form, key, schema), "" if is_required else "?") for key, schema, is_required in fields]
        if others is not False:
            self._any_key = self._other_key("ANY_KEY", fields)
            parts.append((self._tag(form, "", to_schema(others)), "*"))
        return " ".join(f"({part}){repeat}" for part, repeat in parts) or '""'

    def _tag(self, form: CallForm, key: str, schema: Schema) -> str:
        """Return an expression for one argument; with an empty key, for one of any name."""
        types = self._types(schema)
        if types is not None and "string" not in types:
            return self._tag_as(form, key, schema, is_text=False)
        as_text = self._tag_as(form, key, schema, is_text=True)
        if IS_TEXT not in form.value or types == frozenset({"string"}):
            return as_text
        return f"({as_text} | {self._tag_as(form, key, schema, is_text=False)})"

    def _tag_as(self, form: CallForm, key: str, schema: Schema, *, is_text: bool) -> str:
        before, after = form.value.replace(IS_TEXT, "true" if is_text else "false").split(VALUE)
        ending, pad = after.rstrip("\n"), before[len(before.rstrip("\n")) :]
        head, tail = before.split(KEY)
        if is_text and (values := self._tag_values(form, schema)):  # white space around them would be part of them
            pad = f"{quote(pad)}? " if pad else ""
            value = f"{pad}({' | '.join(map(quote, values))}) {pad}{self._write(ending.lstrip())}"
            tail = tail.rstrip("\n")
        elif is_text:
            value = self._free_text(ending, self._barred, self._bar_null(form, schema))
        else:
            value = f"{self._plain(schema)} {self._write(ending)}"
        name = self._write(f"{head}{key}{tail}") if key else f"{self._write(head)} {self._any_key} {self._write(tail)}"
        return f"{name} {value} GAP?"

    def _plain(self, schema: Schema) -> str:
        """Return an expression for JSON, and for booleans as Python writes them: some templates show them so."""
        is_boolean = self._types(schema) == frozenset({"boolean"}) and self._is_free(schema, "boolean")
        return BOOLEAN if is_boolean else self._literal(schema)

    def _tag_values(self, form: CallForm, schema: Schema) -> list[str]:
        """Return the only texts that a schema admits between tags, strings unquoted; empty if it leaves them open.

        No other limits on texts are bound.
        """
        values, types = self._values(schema), self._types(schema)
        if IS_TEXT in form.value:  # the tag marks it as a string, whatever it spells
            values, types = [value for value in values if isinstance(value, str)], frozenset({"string"})
        self.unbound |= self._limits(schema, TYPES if types is None else types) - (VALUES if values else set())
        return [value if isinstance(value, str) else json.dumps(value) for value in values]

    def _bar_null(self, form: CallForm, schema: Schema) -> str:
        """Return a regular expression for null where a text is meant, and null would not be read as one."""
        types = self._types(schema)
        is_open = types is None or types == frozenset({"string"}) or "null" in types or IS_TEXT in form.value
        return "" if is_open else r"\s*(?i:null|none)\s*"


def _list_barred(form: CallForm, names: Iterable[str]) -> list[str]:
    """Return regular expressions for texts between tags that are ambiguous: another argument, an end, quotes."""
    head, tail = form.value.partition(VALUE)[0].split(KEY)
    quote, keys = "[\"'“”‘’]?", "|".join(map(escape_regex, names))
    opening = f"{escape_regex(head.strip()).replace(chr(34), quote)}{quote}({keys}){quote}{tail.strip(chr(34))[:1]}"
    ending = rf"{escape_regex(form.tags[1].strip())}\s*{escape_regex(form.end)}"
    barred = {opening: keys, ending: form.tags[1] and form.end, escape_regex(form.quotes[0]): form.quotes[0]}
    return [pattern for pattern, is_there in barred.items() if is_there]


class _PythonRules(RuleBuilder):
    """A builder for arguments as Python writes them."""

    def _build(self, _: CallForm) -> str:
        fields, others = self._read_arguments()
        parts = [(f"{quote(key + '=')} {self._python(schema)}", is_required) for key, schema, is_required in fields]
        if others is not False:
            pair = f'{self._other_key("PY_KEY", fields)} "=" {self._python(to_schema(others))}'
            parts.append((f'{pair} (", " {pair})*', False))
        return self._sequence(parts, '", "')

    def _python(self, schema: Schema) -> str:
        """Return an expression for a value in JSON, or as Python writes it where that is bound, too."""
        values = self._values(schema)
        words = {"None": None, "True": True, "False": False}
        options = [
            f'"{word}"'
            for word, value in words.items()
            if any(value is one for one in values) or self._is_free(schema, name_type(value))
        ]
        options += ["PY_TEXT"] if self._is_free(schema, "string") else []
        return f"({' | '.join([self._literal(schema), *options])})"


# ---- Gemma
_COMBINING = {"anyOf", "oneOf", "allOf"}
_CLOSING, _NAMING = {"additionalProperties", "unevaluatedProperties"}, {"properties", "patternProperties"}


class _GemmaRules(RuleBuilder):
    """A builder for arguments in Gemma 4's notation: JSON with bare keys, and a token around strings.

    Numbers and other literals are bound as in JSON. Names come in their alphabetical order, as templates write them.
    """

    _rules_of_references: dict[str, str]

    def _build(self, form: CallForm) -> str:
        self._rules_of_references = {}
        return self._members(*self._read_arguments())

    def _members(self, fields: list[Field], others: object) -> str:
        parts = [
            (f"{quote(f'{key}:')} {self._value(schema)}", is_required)
            for key, schema, is_required in sorted(fields, key=lambda field: field[0].lower())
        ]
        if others is not False:
            pair = f'{self._other_key("GEMMA_KEY", fields)} ":" {self._value(to_schema(others))}'
            parts.append((f'{pair} ("," {pair})*', False))
        return f'"{{" {self._sequence(parts, quote(","))} "}}"'

    def _value(self, schema: Schema) -> str:
        """Return an expression for a value. References and nested values get rules of their own: they may recur."""
        reference = schema.get(REF)
        if not isinstance(reference, str):
            return self._add(self._options(schema))
        self._leave(schema, {REF})
        if self._types(schema) != self._types({REF: reference}):
            self.unbound.add("type")
        return self._reference(reference)

    def _reference(self, reference: str) -> str:
        name = self._rules_of_references.get(reference)
        if name is None:
            name = self._rules_of_references[reference] = self._add("")  # reserved: it may refer to itself
            place = len(self._rules) - 1
            self._rules[place] = f"{name}: {self._value(to_schema(tool_schemas.find_target(reference, self._root)))}"
        return name

    def _options(self, schema: Schema) -> str:
        """Return an expression for each value, alternative or type of the schema."""
        if values := self._values(schema):
            self.unbound |= self._limits(schema, [*map(name_type, values)]) - VALUES
            return " | ".join(map(self._constant, values))
        key, alternatives = tool_schemas.list_alternatives(schema)
        joined = [one for one in (self._join(schema, key, one) for one in alternatives) if one is not None]
        if joined:
            self.unbound |= {"oneOf"} if tool_schemas.is_exclusive(schema, self._root) else set()
            return " | ".join(map(self._value, joined))
        types = self._types(schema)
        if types is None and not KEYWORDS & schema.keys():
            return self._anything()
        kinds = TYPES if types is None else sorted(types)
        return " | ".join(self._type(kind, schema) for kind in kinds) or self._json(schema)

    def _join(self, schema: Schema, key: str, alternative: object) -> Schema | None:
        """Combine one of a schema's alternatives with the schema's other keywords; None if nothing fits both.

        Keywords whose meaning would change, and nested alternatives, stay unbound: all pairs could be too many.
        """
        one, beside = to_schema(alternative), {k: v for k, v in schema.items() if k in KEYWORDS and k != key}
        if not beside:
            return one
        rest = {k: v for k, v in beside.items() if k not in _COMBINING and v == one.get(k, v)}
        if any(_CLOSING & some.keys() and _NAMING & other.keys() for some, other in ((one, rest), (rest, one))):
            rest = {}
        self._leave(beside, rest)
        types = self._types({"allOf": [one, {k: beside[k] for k in ("type", "enum", "const") if k in beside}]})
        if types is None:
            return {**rest, **one}
        return {**rest, **one, "type": sorted(types)} if types else None

    def _type(self, kind: str, schema: Schema) -> str:
        """Return an expression for the values of one type, with as many of its limits as the notation can bind."""
        match kind:
            case "object":
                self._leave(schema, MEMBERS, [kind])
                return self._members(*self._read_fields(schema))
            case "array":
                items = schema.get("items", True)
                if not isinstance(items, dict | bool) or "prefixItems" in schema:
                    self._leave(schema, types=[kind])
                    items = True
                self._leave(schema, {"items"}, [kind])
                return '"[" "]"' if items is False else _array(self._value(to_schema(items)))
            case "string":
                self._leave(schema, types=[kind])
                return self._text()
        if kind in SCALARS:  # written as in JSON, and bound as there
            is_limited = bool(self._limits(schema, {kind}))
            return self._json({"allOf": [{"type": kind}, schema]}) if is_limited else SCALARS[kind]
        self.unbound.add("type")
        return self._anything()

    def _text(self) -> str:
        return f"{self._write(GEMMA_QUOTE)} {self._free_text(GEMMA_QUOTE)}"

    def _constant(self, value: object) -> str:
        match value:
            case str():
                marker = self._write(GEMMA_QUOTE)
                return f"{marker} {quote(value)} {marker}"
            case list():
                return " ".join(['"["', ' "," '.join(map(self._constant, value)), '"]"'])
            case dict():
                keys = sorted(value, key=str.lower)
                pairs = (f"{quote(f'{key}:')} {self._constant(value[key])}" for key in keys)
                return " ".join(['"{"', ' "," '.join(pairs), '"}"'])
        return quote(json.dumps(value))

    def _anything(self) -> str:
        """Return the name of the rule for any value, which is added once."""
        name = f"{self._name}_any"
        if not any(rule.startswith(f"{name}:") for rule in self._rules):
            self._rules.append(f"{name}: ")  # reserves the index: rules of its texts are numbered
            place = len(self._rules) - 1
            pair = f'GEMMA_KEY ":" {name}'
            options = [*SCALARS.values(), self._text(), _array(name)]
            self._rules[place] = f'{name}: {" | ".join(options)} | "{{" ({pair} ("," {pair})*)? "}}"'
        return name


def _array(item: str) -> str:
    return f'"[" ({item} ("," {item})*)? "]"'


# ---- terminals
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
