"""The matrix of JSON schema: each keyword is bound, refused or told, in formats and in calls of every notation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import CallForm, Split, Tool, ToolChoice, ToolUse, join_calls
from eaglelocal.engine.answer_constraint import AnswerConstraint, ConstraintSpec
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.call_writer import write_calls

DEMO = Path(__file__).parents[2] / "profiles" / "demo" / "guide-target.gguf"
TEXT, NUMBER, OBJECT, ARRAY = ({"type": name} for name in ("string", "integer", "object", "array"))
PAIR = {**OBJECT, "properties": {"a": NUMBER, "b": NUMBER}}
FREE = {**OBJECT, "additionalProperties": NUMBER}
BIG = 99999999999999999999999

MATRIX: list[tuple[str, dict[str, object], list[object], list[object]]] = [  # keyword, schema, what fits, what does not
    ("type", TEXT, ["x"], [1, None]),
    ("type", {"type": ["string", "null"]}, ["x", None], [1]),
    ("enum", {"enum": ["a", "b c", None]}, ["a", "b c", None], ["c"]),
    ("enum", {**TEXT, "enum": ["a", "b"]}, ["a"], ["c", " a", "a "]),
    ("enum", {"enum": [1, 2]}, [1], [3]),
    ("enum", {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}, ["a", None], ["c", " a"]),
    ("enum", {"enum": [1, BIG]}, [1], [2, 10**22]),
    ("const", {"const": "a"}, ["a"], ["b", " a"]),
    ("const", {"const": BIG}, [], [10**22, 5]),
    ("const", {"const": 2**53 + 1}, [], [2**53]),
    ("minimum", {**NUMBER, "minimum": 5}, [5], [4]),
    ("minimum", {**NUMBER, "minimum": BIG}, [], [5]),
    ("maximum", {**NUMBER, "maximum": 5}, [5], [6]),
    ("maximum", {**NUMBER, "maximum": BIG}, [], [BIG + 1]),
    ("maximum", {**NUMBER, "maximum": 2**64 - 1}, [], [2**64]),
    ("maximum", {**NUMBER, "maximum": 1e19}, [], [10**20]),
    ("maximum", {**NUMBER, "maximum": 2**63 - 1}, [2**63 - 1], [2**63]),
    ("exclusiveMinimum", {**NUMBER, "exclusiveMinimum": 5}, [6], [5]),
    ("exclusiveMaximum", {**NUMBER, "exclusiveMaximum": 5}, [4], [5]),
    ("exclusiveMaximum", {**NUMBER, "maximum": 5, "exclusiveMaximum": True}, [4], [5]),
    ("multipleOf", {**NUMBER, "multipleOf": 5}, [10], [7]),
    ("divisibleBy", {**NUMBER, "divisibleBy": 5}, [10], [7]),
    ("minLength", {**TEXT, "minLength": 3}, ["abc"], ["ab"]),
    ("maxLength", {**TEXT, "maxLength": 3}, ["abc"], ["abcd"]),
    ("pattern", {**TEXT, "pattern": "^[a-z]{2}$"}, ["ab"], ["abc"]),
    ("pattern", {**TEXT, "pattern": r"^(a|b)\1$"}, ["aa"], ["ab"]),
    ("pattern", {**TEXT, "pattern": "^(?=a)..$"}, ["ab"], ["ba"]),
    ("format", {**TEXT, "format": "date"}, ["2026-01-31"], ["today"]),
    ("format", {**TEXT, "format": "idn-email"}, ["a@b.de"], ["today"]),
    ("items", {**ARRAY, "items": NUMBER}, [[1]], [["a"]]),
    ("prefixItems", {**ARRAY, "prefixItems": [NUMBER], "items": False}, [[1]], [["a"], [1, 2]]),
    ("additionalItems", {**ARRAY, "items": [NUMBER], "additionalItems": False}, [[1]], [[1, 2]]),
    ("minItems", {**ARRAY, "items": NUMBER, "minItems": 2}, [[1, 2]], [[1]]),
    ("maxItems", {**ARRAY, "items": NUMBER, "maxItems": 1}, [[1]], [[1, 2]]),
    ("uniqueItems", {**ARRAY, "items": NUMBER, "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    ("contains", {**ARRAY, "contains": {"const": 1}}, [[1, 2]], [[2]]),
    ("unevaluatedItems", {**ARRAY, "prefixItems": [NUMBER], "unevaluatedItems": False}, [[1]], [[1, 2]]),
    ("properties", {**OBJECT, "properties": {"a": NUMBER}}, [{"a": 1}], [{"a": "x"}]),
    ("required", {**PAIR, "required": ["a"]}, [{"a": 1}], [{}, {"b": 1}]),
    ("additionalProperties", FREE, [{"z": 1}], [{"z": "x"}]),
    ("additionalProperties", {**PAIR, "additionalProperties": False}, [{"a": 1}], [{"z": 1}]),
    ("patternProperties", {**OBJECT, "patternProperties": {"^a": NUMBER}}, [{"ab": 1}], [{"ab": "x"}]),
    ("propertyNames", {**FREE, "propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"b": 1}]),
    ("unevaluatedProperties", {**PAIR, "unevaluatedProperties": False}, [{"a": 1}], [{"z": 1}]),
    ("minProperties", {**FREE, "minProperties": 1}, [{"a": 1}], [{}]),
    ("minProperties", {**FREE, "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ("minProperties", {**PAIR, "additionalProperties": NUMBER, "minProperties": 3}, [{"a": 1, "b": 2, "c": 3}], [{}]),
    ("maxProperties", {**FREE, "maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
    ("dependentRequired", {**PAIR, "dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("dependentSchemas", {**PAIR, "dependentSchemas": {"a": {"required": ["b"]}}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("dependencies", {**PAIR, "dependencies": {"a": ["b"]}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("allOf", {"allOf": [{**NUMBER, "minimum": 2}, {"maximum": 4}]}, [3], [1, 5]),
    ("anyOf", {"anyOf": [TEXT, NUMBER]}, ["x", 1], [[1]]),
    ("oneOf", {"oneOf": [NUMBER, {**NUMBER, "minimum": 5}]}, [1], [7]),
    ("not", {**NUMBER, "not": {"const": 3}}, [4], [3]),
    ("if", {**NUMBER, "if": {"minimum": 5}, "then": {"minimum": 10}}, [1, 10], [7]),
    ("$ref", {"$ref": "#/$defs/n", "$defs": {"n": NUMBER}}, [1], ["x"]),
    ("$ref", {"$ref": "#"}, [], [1, None]),
]  # fmt: skip
IDS = [f"{keyword}-{index}" for index, (keyword, *_) in enumerate(MATRIX)]
REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
NOTATIONS = (forms.HERMES, forms.CODER, forms.SEED, forms.GLM, forms.GEMMA, forms.LFM)


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(load_library(), DEMO)
    yield model
    model.close()


def accepts(model: LlamaModel, constraint: Constraint, text: str) -> bool:
    matcher = model.constraints.matcher(constraint)
    tokens = model.vocabulary.tokenize(text, add_special=False, parse_special=False)
    return bool(matcher.consume_tokens(tokens)) and bool(matcher.is_accepting())


def read(split: Split, call: str) -> object:
    """Return the arguments as they are read: between tags 1 may be a text."""
    parser = SplitText(split, lambda: "id")
    parts = [part for one in (*map(parser.push, call), parser.finish("")) for part in one.calls]
    (found,) = join_calls(parts)
    return json.loads(found.arguments)


def is_told(keyword: str, unbound: tuple[str, ...]) -> bool:
    return bool(set(unbound) & ({keyword, "then"} if keyword == "if" else {keyword}))


@pytest.mark.parametrize(("keyword", "schema", "fitting", "wrong"), MATRIX, ids=IDS)
@pytest.mark.parametrize("is_strict", [False, True], ids=["loose", "strict"])
def test_a_keyword_of_a_format_is_bound_refused_or_told(
    model: LlamaModel,
    keyword: str,
    schema: dict[str, object],
    fitting: list[object],
    wrong: list[object],
    is_strict: bool,
) -> None:
    wanted = Constraint(Syntax.JSON_SCHEMA, json.dumps(schema), is_strict=is_strict)
    try:
        made = AnswerConstraint(model.constraints).fit_text(wanted)
    except RequestError as error:
        assert error.parameter == "response_format" and "NoExtension" not in error.message
        assert is_strict or not fitting or BIG in fitting or keyword == "enum", error.message
        return
    assert made is not None
    for value in fitting:
        assert accepts(model, made, json.dumps(value)), value
    if not is_told(keyword, made.unbound):
        assert fitting and not any(accepts(model, made, json.dumps(value)) for value in wrong)
    assert not (is_strict and made.unbound)


@pytest.mark.parametrize("form", NOTATIONS, ids=lambda form: form.label)
@pytest.mark.parametrize(("keyword", "schema", "fitting", "wrong"), MATRIX, ids=IDS)
@pytest.mark.parametrize("is_strict", [False, True], ids=["loose", "strict"])
def test_a_keyword_of_a_tool_is_bound_refused_or_told(
    model: LlamaModel,
    form: CallForm,
    keyword: str,
    schema: dict[str, object],
    fitting: list[object],
    wrong: list[object],
    is_strict: bool,
) -> None:
    if schema == {"$ref": "#"}:
        pytest.skip("it names the whole of the arguments there")
    schema = {**schema, "$ref": "#/properties/v/$defs/n"} if "$defs" in schema else schema
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    tool = Tool("f", "", json.dumps(parameters), is_strict=is_strict)
    spec = ConstraintSpec(
        split=Split(form=form, tools=(tool,)), choice=REQUIRED, constraint=None, tokens={}, is_split=True
    )
    try:
        made = AnswerConstraint(model.constraints).fit_split(spec)
    except RequestError as error:
        assert is_strict and error.parameter == "tools", error.message
        return
    assert made is not None
    is_narrower = form is forms.GEMMA and "properties" in schema  # which admits no other names beside named ones
    for value in fitting if not is_narrower or schema.get("additionalProperties") is not NUMBER else []:
        assert accepts(model, made, write_calls(form, [("f", {"v": value})])), value
    if not is_told(keyword, made.unbound):
        for value in wrong:
            call = write_calls(form, [("f", {"v": value})])
            assert not accepts(model, made, call) or read(spec.split, call) != {"v": value}, value


def test_blanks_around_one_of_an_enumeration_are_no_part_of_it(model: LlamaModel) -> None:
    parameters = {"type": "object", "properties": {"unit": {**TEXT, "enum": ["c", "f"]}}, "required": ["unit"]}
    for is_strict in (True, False):
        tool = Tool("f", "", json.dumps(parameters), is_strict=is_strict)
        spec = ConstraintSpec(
            split=Split(form=forms.CODER, tools=(tool,)), choice=REQUIRED, constraint=None, tokens={}, is_split=True
        )
        made = AnswerConstraint(model.constraints).fit_split(spec)
        right = write_calls(forms.CODER, [("f", {"unit": "f"})])
        assert made is not None and accepts(model, made, right)
        assert accepts(model, made, right.replace("\nf\n", "f"))
        for blanks in ("\n f\n", "\nf \n", "\n\nf\n", "\n      f      \n", "\n\nf"):
            assert not accepts(model, made, right.replace("\nf\n", blanks)), blanks


def test_what_tools_leave_unbound_is_told_without_their_words(model: LlamaModel) -> None:
    """A header must not hold what a client wrote."""
    hostile = {**TEXT, "x\r\nSet-Cookie: a": 1, "format": "y\r\n", "pattern": "(?=a)"}
    made = AnswerConstraint(model.constraints).fit_text(Constraint(Syntax.JSON_SCHEMA, json.dumps(hostile)))
    assert made is not None and made.unbound == ("format", "pattern")
    assert replace(made, unbound=()) == made  # compiled once, whatever is told
