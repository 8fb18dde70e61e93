"""Grammar rules for the arguments of a call in Gemma 4's notation: JSON with bare keys, and a token around strings.

Numbers and other literals are bound as in JSON. Names come in their alphabetical order, as templates write them.
"""

from __future__ import annotations

import json

from eaglelocal.core.tools import CallForm
from eaglelocal.text.tool_calls.lenient_values import GEMMA_QUOTE
from eaglelocal.text.tool_calls.rule_builder import MEMBERS, SCALARS, VALUES, Field, RuleBuilder, quote
from eaglelocal.text.tool_calls.schema_parts import KEYWORDS, TYPES, Schema
from eaglelocal.text.tool_calls.schema_references import REF
from eaglelocal.text.tool_calls.tool_schemas import (
    find_target,
    is_exclusive,
    list_alternatives,
    name_type,
    to_schema,
)

_COMBINING = {"anyOf", "oneOf", "allOf"}
_CLOSING, _NAMING = {"additionalProperties", "unevaluatedProperties"}, {"properties", "patternProperties"}


class GemmaRules(RuleBuilder):
    """A builder for one call's arguments."""

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
            self._rules[place] = f"{name}: {self._value(to_schema(find_target(reference, self._root)))}"
        return name

    def _options(self, schema: Schema) -> str:
        """Return an expression for each value, alternative or type of the schema."""
        if values := self._values(schema):
            self.unbound |= self._limits(schema, [*map(name_type, values)]) - VALUES
            return " | ".join(map(self._constant, values))
        key, alternatives = list_alternatives(schema)
        joined = [one for one in (self._join(schema, key, one) for one in alternatives) if one is not None]
        if joined:
            self.unbound |= {"oneOf"} if is_exclusive(schema, self._root) else set()
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
        """Return an expression for one value."""
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
