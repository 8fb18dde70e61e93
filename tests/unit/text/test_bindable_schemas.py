"""Schemas that are made bindable: what says nothing goes, patterns go one kind after the other, data and names stay."""

from __future__ import annotations

import json

import pytest

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import Tool
from eaglelocal.text.bindable_schemas import looser, tidied, ways_to_bind

TEXT = {"type": "string"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
FOREIGN, PLAIN = "^(?!x)", "^a+$"


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ({"$schema": "https://example.com/mine"}, {}),
        ({"$schema": 5}, {}),
        ({"$schema": DRAFT}, {"$schema": DRAFT}),
        (
            {"$schema": "http://json-schema.org/draft-07/schema#"},
            {"$schema": "http://json-schema.org/draft-07/schema#"},
        ),
        ({"propertyNames": TEXT}, {}),
        ({"propertyNames": {}}, {}),
        ({"propertyNames": {"enum": ["a"]}}, {"propertyNames": {"enum": ["a"]}}),
        ({"uniqueItems": False}, {}),
        ({"uniqueItems": True}, {"uniqueItems": True}),
        ({"items": {"propertyNames": TEXT}, "anyOf": [{"$schema": ""}]}, {"items": {}, "anyOf": [{}]}),
        ({"properties": {"$schema": TEXT}}, {"properties": {"$schema": TEXT}}),
        ({"const": {"uniqueItems": False}}, {"const": {"uniqueItems": False}}),
    ],
)
def test_what_says_nothing_is_left_out(said: dict[str, object], left: dict[str, object]) -> None:
    assert tidied(said) == left


def ways(schema: object, *, is_strict: bool = False) -> list[object]:
    wanted = Constraint(Syntax.JSON_SCHEMA, json.dumps(schema), is_strict=is_strict)
    return [json.loads(way.source) for way in ways_to_bind(wanted)]


@pytest.mark.parametrize(
    ("schema", "less"),
    [
        (TEXT, []),
        ({**TEXT, "pattern": PLAIN}, [TEXT]),
        ({**TEXT, "pattern": FOREIGN}, [TEXT]),
        (
            {"items": [{"pattern": FOREIGN}, {"pattern": PLAIN}]},
            [{"items": [{}, {"pattern": PLAIN}]}, {"items": [{}, {}]}],
        ),
        ({"properties": {"pattern": {"pattern": r"(a)\1"}}}, [{"properties": {"pattern": {}}}]),
        ({"enum": [{"pattern": FOREIGN}]}, []),
        (
            {"patternProperties": {FOREIGN: TEXT, PLAIN: TEXT}, "additionalProperties": False},
            [{"patternProperties": {PLAIN: TEXT}}, {"patternProperties": {}}],
        ),
    ],
)
def test_a_format_loses_foreign_patterns_and_then_all(schema: dict[str, object], less: list[object]) -> None:
    assert ways(schema) == [schema, *less]
    assert ways(schema, is_strict=True) == [schema]


@pytest.mark.parametrize("source", ["{", "[]", "[" * 99 + "]" * 99])
def test_what_is_no_schema_stays_what_it_is(source: str) -> None:
    wanted = Constraint(Syntax.JSON_SCHEMA, source)
    assert list(ways_to_bind(wanted)) == [wanted]


def test_a_tool_takes_any_arguments_at_last() -> None:
    tool = Tool("f", "", json.dumps({"items": [{"pattern": FOREIGN}, {"pattern": PLAIN}]}))
    assert [json.loads(one.parameters) for one in looser(tool)] == [
        {"items": [{}, {"pattern": PLAIN}]},
        {"items": [{}, {}]},
        {"type": "object"},
    ]
    assert not list(looser(Tool("f", "", tool.parameters, is_strict=True)))
