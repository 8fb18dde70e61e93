"""Arbitrary tool schemas: any model family can be required to call such a tool, and a format binds or is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.backend.constraint_compiler import LlamaConstraints
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import CallForm, Split, Tool, ToolChoice, ToolUse
from eaglelocal.engine.answer_constraint import AnswerConstraint, ConstraintSpec
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls import call_forms as forms

DEMO = Path(__file__).parents[2] / "profiles" / "demo" / "guide-target.gguf"
NAMES = st.sampled_from(["pattern", "a", "ß", "type", "$ref", "a b", "properties", 'q"', ""])
KINDS = st.sampled_from(["string", "integer", "object", "array", "null", "Object", "file", ["string", "null"], [], 3])
VALUES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text(max_size=4)
PATTERNS = st.sampled_from(["^a+$", "(?=a)", "[", "\\d{2", "(?P<x>a)", "\\p{L}", "(a*)*b", "^.{0,100000}$"])


def schemas(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    named = st.dictionaries(NAMES, inner, max_size=3)
    words: dict[str, st.SearchStrategy[object]] = {
        "type": KINDS,
        "properties": named | VALUES,
        "required": st.lists(NAMES, max_size=2) | st.booleans(),
        "items": inner | st.lists(inner, max_size=2),
        "enum": st.lists(VALUES, max_size=3) | st.just("a"),
        "const": VALUES,
        "pattern": PATTERNS,
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=1),
        "format": st.sampled_from(["email", "password", "int32", "uri"]),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/nowhere", "http://example.com/x"]),
        "$defs": named,
        "anyOf": st.lists(inner, max_size=2),
        "oneOf": st.lists(inner, max_size=2),
        "not": inner,
        "if": inner,
        "minimum": VALUES,
        "exclusiveMinimum": VALUES,
        "multipleOf": VALUES,
        "minLength": st.integers(-1, 5),
        "maxItems": st.sampled_from([-1, 0, 3, 10**9]),
        "uniqueItems": st.booleans(),
        "additionalProperties": st.booleans() | inner,
        "x-guidance": st.just({"lenient": False}),
    }
    return st.fixed_dictionaries({}, optional=words)


SCHEMAS = st.recursive(st.booleans() | st.just({}), schemas, max_leaves=8).filter(lambda schema: type(schema) is dict)


@pytest.fixture(scope="module")
def constraints() -> Iterator[LlamaConstraints]:
    model = LlamaModel(load_library(), DEMO)
    yield model.constraints
    model.close()


@examples(120)
@given(
    st.sampled_from([form for form in forms.FORMS if form is not forms.HARMONY]),
    st.lists(SCHEMAS, min_size=1, max_size=3),
)
def test_a_call_can_be_required_whatever_the_schemas_say(
    constraints: LlamaConstraints, form: CallForm, said: list[object]
) -> None:
    tools = tuple(Tool(f"t{i}", "", json.dumps(schema)) for i, schema in enumerate(said))
    choice = ToolChoice(use=ToolUse.REQUIRED)
    spec = ConstraintSpec(split=Split(form=form, tools=tools), choice=choice, constraint=None, tokens={}, is_split=True)
    made = AnswerConstraint(constraints).fit_split(spec)
    assert made is not None and all(tool.name in made.source for tool in tools)


@examples(120)
@given(SCHEMAS, st.booleans())
def test_a_format_binds_or_is_refused_whatever_its_schema_says(
    constraints: LlamaConstraints, schema: object, is_strict: bool
) -> None:
    wanted = Constraint(Syntax.JSON_SCHEMA, json.dumps(schema), is_strict=is_strict)
    try:
        made = AnswerConstraint(constraints).fit_text(wanted)
    except RequestError as error:
        assert error.parameter == "response_format" and "\n" not in error.message
    else:
        assert made is not None
        constraints.matcher(made)
