"""Schemas made compilable: keywords without effect go, patterns go one kind at a time, data and names stay."""

from __future__ import annotations

import json

import pytest

from eaglelocal.core.constraint import MAX_SOURCE_BYTES, Constraint, Syntax
from eaglelocal.core.tools import Tool
from eaglelocal.text.tool_calls.bindable_schemas import loosen_constraint, loosen_tool, tidy_schema

TEXT = {"type": "string"}
DRAFT = "https://json-schema.org/draft/2020-12/schema"
FOREIGN, PLAIN = "^(?!x)", "^a+$"


NAME = {"properties": {"name": {"type": "string"}}}
CLOSED_NAME = {**NAME, "additionalProperties": False}
REFERRED, A_NAME = {"$defs": {"Name": NAME}}, {"$ref": "#/$defs/Name"}


@pytest.mark.parametrize(
    ("said", "closed"),
    [
        (NAME, CLOSED_NAME),
        ({**NAME, "required": ["name"]}, {**CLOSED_NAME, "required": ["name"]}),
        ({"properties": {"a": NAME}}, {"properties": {"a": CLOSED_NAME}, "additionalProperties": False}),
        ({"anyOf": [NAME, {"type": "null"}]}, {"anyOf": [CLOSED_NAME, {"type": "null"}]}),
        ({"allOf": [A_NAME], **REFERRED}, {"allOf": [A_NAME], "$defs": {"Name": CLOSED_NAME}}),
        ({"properties": {"not": NAME}}, {"properties": {"not": CLOSED_NAME}, "additionalProperties": False}),
    ],
)  # fmt: skip
def test_objects_that_name_their_properties_get_no_others(said: dict[str, object], closed: dict[str, object]) -> None:
    assert tidy_schema(said) == closed


@pytest.mark.parametrize(
    "said",
    [
        {"type": "object"},
        {"properties": {}},
        {**NAME, "required": ["age"]},
        {**NAME, "additionalProperties": True},
        {**NAME, "additionalProperties": {"type": "integer"}},
        {**NAME, "patternProperties": {"^x": {}}},
        {**NAME, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"allOf": [A_NAME, {"properties": {"age": {"type": "integer"}}}], **REFERRED},
        {"properties": {"a": {"not": NAME}}},
        {"default": NAME},
        {"required": "name", **NAME},
    ],
)
def test_objects_that_may_have_more_properties_stay_open(said: dict[str, object]) -> None:
    assert tidy_schema(said) == said


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
        ({"properties": {"$schema": TEXT}}, {"properties": {"$schema": TEXT}, "additionalProperties": False}),
        ({"const": {"uniqueItems": False}}, {"const": {"uniqueItems": False}}),
    ],
)
def test_what_says_nothing_is_left_out(said: dict[str, object], left: dict[str, object]) -> None:
    assert tidy_schema(said) == left


def ways(schema: object, *, is_strict: bool = False) -> list[object]:
    wanted = Constraint(Syntax.JSON_SCHEMA, json.dumps(schema), is_strict=is_strict)
    return [json.loads(way.source) for way in loosen_constraint(wanted)]


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
        (
            {"properties": {"pattern": {"pattern": r"(a)\1"}}, "additionalProperties": False},
            [{"properties": {"pattern": {}}, "additionalProperties": False}],
        ),
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
    assert list(loosen_constraint(wanted)) == [wanted]


@pytest.mark.parametrize(("extra", "num_ways"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("letter", ["a", "中"])
def test_what_is_too_large_is_not_read(letter: str, extra: int, num_ways: int) -> None:
    """The compiler refuses it, between two steps of everybody's answers."""
    empty = json.dumps({"description": "", "pattern": PLAIN}, ensure_ascii=False)
    room = MAX_SOURCE_BYTES + extra - len(empty)
    text = letter * (room // len(letter.encode()))
    source = json.dumps({"description": text + "x" * (room - len(text.encode())), "pattern": PLAIN}, ensure_ascii=False)
    assert len(source.encode()) == MAX_SOURCE_BYTES + extra
    wanted = Constraint(Syntax.JSON_SCHEMA, source)
    found = list(loosen_constraint(wanted))
    assert found[0] is wanted and len(found) == num_ways


def test_letters_of_any_language_stay_as_short_as_they_are() -> None:
    said = {"description": "城市", "pattern": FOREIGN, "uniqueItems": False}
    wanted = Constraint(Syntax.JSON_SCHEMA, json.dumps(said))
    tool = Tool("f", "", wanted.source)
    assert all("城市" in way.source for way in loosen_constraint(wanted))
    assert "城市" in next(loosen_tool(tool)).parameters


def test_a_tool_takes_any_arguments_at_last() -> None:
    tool = Tool("f", "", json.dumps({"items": [{"pattern": FOREIGN}, {"pattern": PLAIN}]}))
    assert [json.loads(one.parameters) for one in loosen_tool(tool)] == [
        {"items": [{}, {"pattern": PLAIN}]},
        {"items": [{}, {}]},
        {"type": "object"},
    ]
    assert not list(loosen_tool(Tool("f", "", tool.parameters, is_strict=True)))
