"""The matrix of JSON schema: each keyword is bound, refused or reported, in formats and in calls of every notation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import validator_for

from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import CallForm, Split, Tool, ToolChoice, ToolUse, join_calls
from eaglelocal.engine.answer_constraint import AnswerConstraint, ConstraintSpec
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.bindable_schemas import list_said
from eaglelocal.text.tool_calls.call_forms import write_calls

DEMO = Path(__file__).parents[2] / "profiles" / "demo" / "guide-target.gguf"
TEXT, NUMBER, OBJECT, ARRAY = ({"type": name} for name in ("string", "integer", "object", "array"))
PAIR = {**OBJECT, "properties": {"a": NUMBER, "b": NUMBER}}
FREE = {**OBJECT, "additionalProperties": NUMBER}
EITHER = [{"required": ["a"]}, {"required": ["b"]}]
BIG = 99999999999999999999999
DEEP = 12  # objects within one another


def nest(inner: object, wrap: Callable[[object], dict[str, object]]) -> dict[str, object]:
    for _ in range(DEEP - 1):
        inner = wrap(inner)
    return wrap(inner)


def add_key(value: object) -> dict[str, object]:
    return {"k": value}


def is_object_with(inner: object) -> dict[str, object]:
    return {**OBJECT, "properties": {"k": inner}, "required": ["k"], "additionalProperties": False}


Row = tuple[str, dict[str, object], list[object], list[object]]  # keywords, schema, what fits, what does not
MATRIX: list[Row] = [
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
    ("const", {"type": "boolean", "const": True}, [True], [False]),
    ("enum", {"type": "boolean", "enum": [True]}, [True], [False]),
    ("const", {"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, {"a": [2, "x"]}]),
    ("enum", {"enum": [[1, 2], ["x"], {"a": "y"}]}, [[1, 2], {"a": "y"}], [[1], {"a": "z"}]),
    ("enum|maxLength", {**TEXT, "enum": ["abc", "a"], "maxLength": 2}, ["a"], ["abc"]),
    ("type", {"type": ["string", "integer"]}, ["x", 1], [None]),
    ("minimum", {"type": ["string", "integer"], "minimum": 5}, ["x", 6], [4]),
    ("minimum", {"anyOf": [TEXT, {**NUMBER, "minimum": 5}]}, ["x", 6], [4]),
    ("pattern", {"anyOf": [{**TEXT, "pattern": "^a$"}, {"type": "null"}]}, ["a", None], ["b"]),
    ("properties", {"anyOf": [TEXT, is_object_with(NUMBER)]}, ["x", {"k": 1}], [{"k": "x"}, {}]),
    ("$ref|maxLength", {"$ref": "#/$defs/n", "maxLength": 2, "$defs": {"n": TEXT}}, ["ab"], ["abc"]),
    ("$ref|required", {"$ref": "#/$defs/n", "required": ["a"], "$defs": {"n": PAIR}}, [{"a": 1}], [{}]),
    ("anyOf", {**PAIR, "anyOf": EITHER}, [{"a": 1}, {"b": 1}], [{}]),
    ("anyOf", {"type": ["string", "null"], "anyOf": [TEXT, NUMBER]}, ["x"], [1, None]),
    ("allOf", {"allOf": [{**PAIR, "required": ["a"]}, {**OBJECT, "required": ["b"]}]}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("additionalProperties", {**OBJECT, "properties": {}, "additionalProperties": False}, [{}], [{"z": 1}]),
    ("required", {**OBJECT, "required": ["a"]}, [{"a": 1}], [{}]),
    ("minProperties", {**FREE, "required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ("minProperties", {**PAIR, "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ("maxProperties", {**PAIR, "maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
    ("maxProperties", {**PAIR, "additionalProperties": NUMBER, "maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
    ("properties", nest(NUMBER, is_object_with), [nest(1, add_key)], [nest("x", add_key)]),
    ("format", {**NUMBER, "format": "int32"}, [1], [2**40]),
    ("contentMediaType", {**TEXT, "contentMediaType": "application/json"}, ["{}"], ["{"]),
    ("contentEncoding", {**TEXT, "contentEncoding": "base64"}, ["aa=="], ["?"]),
    ("$ref", {"$ref": "#"}, [], [1, None]),
]  # fmt: skip
WHOLE: list[Row] = [  # of all arguments
    ("additionalProperties", {**OBJECT, "properties": {}, "additionalProperties": False}, [{}], [{"z": 1}]),
    ("additionalProperties", {**OBJECT, "additionalProperties": False}, [{}], [{"z": 1}]),
    ("additionalProperties", FREE, [{"z": 1}, {"y": 1, "z": 1}], [{"z": "x"}]),
    ("additionalProperties", {**OBJECT, "additionalProperties": TEXT}, [{"z": "1"}, {"z": "x"}], [{"z": 1}]),
    ("properties", {**OBJECT, "properties": {"a": False, "b": NUMBER}}, [{"b": 1}], [{"a": 1, "b": 1}]),
    ("required", {**PAIR, "required": ["z"]}, [{"z": 1}, {"a": 1, "z": 1}], [{"a": 1}, {}]),
    ("required", {**FREE, "required": ["a"]}, [{"a": 1, "b": 2}], [{}, {"b": 1}, {"a": "x"}]),
    ("required", {**PAIR, "required": ["z"], "additionalProperties": False}, [], [{}, {"a": 1}]),
    ("required", {**OBJECT, "properties": {"a": {**NUMBER, "required": True}}}, [{"a": 1}], [{}]),
    ("anyOf", {**PAIR, "anyOf": EITHER}, [{"a": 1}], [{}]),
    ("oneOf", {**PAIR, "oneOf": EITHER}, [{"a": 1}], [{"a": 1, "b": 1}]),
    ("anyOf", {**OBJECT, "anyOf": [PAIR, is_object_with(NUMBER)]}, [{"k": 1}], [{"k": "x"}]),
    ("allOf", {**OBJECT, "allOf": [PAIR, {"required": ["a"]}]}, [{"a": 1}], [{}]),
    ("allOf", {**PAIR, "allOf": [{"properties": {"a": {"minimum": 5}}}]}, [{"a": 6}], [{"a": 4}]),
    ("minProperties", {"allOf": [PAIR, {**OBJECT, "minProperties": 1}]}, [], [{}]),
    ("$ref|required", {"$ref": "#/$defs/n", "required": ["a"], "$defs": {"n": PAIR}}, [{"a": 1}], [{}]),
    ("minProperties", {**FREE, "required": ["a"], "minProperties": 2}, [{"a": 1, "b": 2}], [{"a": 1}]),
    ("maxProperties", {**FREE, "maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
    ("patternProperties", {**OBJECT, "patternProperties": {"^a": NUMBER}}, [{"ab": 1}], [{"ab": "x"}]),
    ("propertyNames", {**FREE, "propertyNames": {"pattern": "^a"}}, [{"ab": 1}], [{"b": 1}]),
    ("dependentRequired", {**PAIR, "dependentRequired": {"a": ["b"]}}, [{"a": 1, "b": 1}], [{"a": 1}]),
    ("not", {**PAIR, "not": {"required": ["a"]}}, [{"b": 1}], [{"a": 1}]),
    ("if", {**PAIR, "if": {"required": ["a"]}, "then": {"required": ["b"]}}, [{"b": 1}], [{"a": 1}]),
]


def name_rows(rows: list[Row]) -> list[str]:
    return [f"{keyword}-{index}" for index, (keyword, *_) in enumerate(rows)]


REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
NOTATIONS = (forms.HERMES, forms.CODER, forms.SEED, forms.GLM, forms.DSML, forms.GEMMA, forms.LFM)


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
    return bool(set(unbound) & ({keyword, "then"} if keyword == "if" else {*keyword.split("|")}))


@pytest.mark.parametrize(("keyword", "schema", "fitting", "wrong"), MATRIX, ids=name_rows(MATRIX))
@pytest.mark.parametrize("is_strict", [False, True], ids=["loose", "strict"])
def test_a_keyword_of_a_format_is_bound_refused_or_reported(
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
    assert not (is_strict and made.unbound) and {*made.unbound} <= list_said(schema)


def as_argument(row: Row) -> Row:
    """Return the row for a tool with an argument of this schema."""
    keyword, schema, fitting, wrong = row
    schema = {**schema, "$ref": "#/properties/v/$defs/n"} if "$defs" in schema else schema
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    return keyword, parameters, [{"v": value} for value in fitting], [{"v": value} for value in wrong]


ARGUMENTS = [as_argument(row) for row in MATRIX if row[1] != {"$ref": "#"}]  # which names all arguments there
NARROWER = [
    as_argument(row) for row in MATRIX if "properties" in row[1] and row[1].get("additionalProperties") is NUMBER
]


@pytest.mark.parametrize("row", [*ARGUMENTS, *WHOLE], ids=name_rows([*ARGUMENTS, *WHOLE]))
def test_a_keyword_of_a_tool_is_bound_refused_or_reported(model: LlamaModel, row: Row) -> None:
    keyword, parameters, fitting, wrong = row
    for form, is_strict in product(NOTATIONS, (False, True)):
        is_narrower = form is forms.GEMMA and row in NARROWER  # it admits no other names beside named ones
        check_tool(model, form, (keyword, parameters, [] if is_narrower else fitting, wrong), is_strict)


def check_tool(model: LlamaModel, form: CallForm, row: Row, is_strict: bool) -> None:
    keyword, parameters, fitting, wrong = row
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
    assert {*made.unbound} <= list_said(parameters)
    for arguments in fitting:
        call = write_calls(form, [("f", arguments)])
        assert accepts(model, made, call) and read(spec.split, call) == arguments, arguments
    if not is_told(keyword, made.unbound):
        for arguments in wrong:
            call = write_calls(form, [("f", arguments)])
            assert not accepts(model, made, call) or read(spec.split, call) != arguments, arguments


@pytest.mark.parametrize("form", NOTATIONS, ids=lambda form: form.label)
@pytest.mark.parametrize("keyword", ["anyOf", "allOf"])
def test_references_that_double_are_followed_once(model: LlamaModel, form: CallForm, keyword: str) -> None:
    twice = {keyword: [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/x"}]}
    parameters = {**OBJECT, "properties": {"v": {"$ref": "#/$defs/x"}, "w": NUMBER}, "$defs": {"x": twice}}
    tool = Tool("f", "", json.dumps(parameters))
    spec = ConstraintSpec(
        split=Split(form=form, tools=(tool,)), choice=REQUIRED, constraint=None, tokens={}, is_split=True
    )
    made = AnswerConstraint(model.constraints).fit_split(spec)
    assert made is not None and accepts(model, made, write_calls(form, [("f", {"w": 1})]))


# ---- combinations
PLAIN = [row for row in MATRIX if not {"$ref", "$defs"} & row[1].keys() and "99" not in json.dumps(row[1])]
DEFINITIONS = {"n": NUMBER, "s": {**TEXT, "maxLength": 3}, "o": {**PAIR, "required": ["a"]}}
VALUES = [value for _, _, fitting, wrong in PLAIN for value in (*fitting, *wrong)] + ["null", "5", '{"a": "x"}', "[1]"]
WORDS = st.sampled_from(["anyOf", "oneOf", "allOf"])
NAMES = st.lists(st.sampled_from(["a", "b", "z"]), max_size=2, unique=True)


def combine(inner: st.SearchStrategy[dict[str, object]]) -> st.SearchStrategy[dict[str, object]]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        pairs.map(lambda pair: {**pair[0], **pair[1]}),
        st.builds(lambda word, pair: {word: [*pair]}, WORDS, pairs),
        st.builds(lambda word, one, pair: {**one, word: [*pair]}, WORDS, inner, pairs),
        st.builds(lambda name, one: {**one, "$ref": f"#/$defs/{name}"}, st.sampled_from("nso"), inner),
        st.builds(lambda one, names: {**OBJECT, "properties": {"a": one}, "required": names}, inner, NAMES),
        st.builds(lambda one, names: {**OBJECT, "additionalProperties": one, "required": names}, inner, NAMES),
        inner.map(lambda one: {**ARRAY, "items": one}),
    )


COMBINED = st.recursive(st.sampled_from(PLAIN).map(lambda row: row[1]), combine, max_leaves=4)


@examples(100)
@given(st.sampled_from(NOTATIONS), COMBINED, st.booleans(), st.data())
def test_an_admitted_call_fits_its_schema_or_the_gap_is_reported(
    model: LlamaModel, form: CallForm, schema: dict[str, object], is_whole: bool, data: st.DataObject
) -> None:
    whole = {**OBJECT, "properties": {"v": schema}, "required": ["v"], "additionalProperties": False}
    parameters = {**(schema if is_whole else whole), "type": "object", "$defs": DEFINITIONS}
    tool = Tool("f", "", json.dumps(parameters))
    spec = ConstraintSpec(
        split=Split(form=form, tools=(tool,)), choice=REQUIRED, constraint=None, tokens={}, is_split=True
    )
    made = AnswerConstraint(model.constraints).fit_split(spec)
    assert made is not None and {*made.unbound} <= {*list_said(parameters), "then", "else"}
    if made.unbound:
        return
    validator = validator_for(parameters)
    for value in data.draw(st.lists(st.sampled_from(VALUES), max_size=30)):
        if isinstance(value, dict) or not is_whole:
            call = write_calls(form, [("f", dict(value) if is_whole else {"v": value})])
            assert not accepts(model, made, call) or validator.is_valid(read(spec.split, call)), call


def test_spaces_around_an_enum_value_are_not_part_of_it(model: LlamaModel) -> None:
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


def test_unbound_keywords_of_tools_are_reported_without_their_texts(model: LlamaModel) -> None:
    """A header must not hold what a client wrote."""
    hostile = {**TEXT, "x\r\nSet-Cookie: a": 1, "format": "y\r\n", "pattern": "(?=a)"}
    made = AnswerConstraint(model.constraints).fit_text(Constraint(Syntax.JSON_SCHEMA, json.dumps(hostile)))
    assert made is not None and made.unbound == ("format", "pattern")
    assert replace(made, unbound=()) == made  # compiled once, whatever is reported
