"""References in the schemas of tools mean the same in every form of calls: what the grammar of a call accepts is what
the schema accepts by itself. llguidance reads the schemas by themselves, and follows their references on its own."""

from __future__ import annotations

import json

import pytest
from doubles.property_tests import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from eaglelocal.core.tools import CallForm, Notation, Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.argument_rules import json_rule
from eaglelocal.text.tool_calls.call_forms import write_calls
from eaglelocal.text.tool_calls.schema_parts import lift_references
from eaglelocal.text.tool_calls.tool_grammar import make_constraint

BYTES = LLTokenizer("byte")
REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
INTEGER, BOOLEAN = {"type": "integer"}, {"type": "boolean"}
every_form = pytest.mark.parametrize("form", forms.FORMS, ids=lambda form: form.label)
Values = dict[str, object]


def matcher_of(grammar: str) -> LLMatcher:
    matcher = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def fits(matcher: LLMatcher, text: str) -> bool:
    tokens, matcher = BYTES.tokenize_bytes(text.encode()), matcher.deep_copy()
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def grammar_of(form: CallForm, *schemas: Values, is_strict: bool = False) -> str:
    """Of a call of f0, f1 and so on."""
    tools = tuple(Tool(f"f{i}", "", json.dumps(one), is_strict=is_strict) for i, one in enumerate(schemas))
    made = make_constraint(Split(form=form, tools=tools), REQUIRED, None, tokens={}, is_split=True)
    assert made is not None
    return made.source


def is_called(form: CallForm, matcher: LLMatcher, arguments: Values, name: str = "f0") -> bool:
    text = write_calls(form, [(name, arguments)])
    if form.call.endswith("(«args»)"):  # JSON is valid there too, and can be distinguished from any value
        first, _, last = form.around
        text = f"{first}{name}({', '.join(f'{key}={json.dumps(value)}' for key, value in arguments.items())}){last}"
    return fits(matcher, text)


OPEN: Values = {"additionalProperties": False, "type": "object"}


def thing(**properties: object) -> Values:
    return OPEN | {"properties": properties, "required": list(properties)}


CASES: dict[str, tuple[Values, tuple[Values, ...], tuple[Values, ...]]] = {
    "the whole": (
        OPEN | {"properties": {"v": INTEGER, "kid": {"$ref": "#"}}, "required": ["v"]},
        ({"v": 1}, {"v": 1, "kid": {"v": 2}}, {"v": 1, "kid": {"v": 2, "kid": {"v": 3}}}),
        ({"v": 1, "kid": {"name": "f", "parameters": {"v": 1}}}, {"v": 1, "kid": {}}, {"v": 1, "kid": 3}),
    ),
    "a property": (thing(a=INTEGER, b={"$ref": "#/properties/a"}), ({"a": 1, "b": 2},), ({"a": 1, "b": True},)),
    "an alternative deep within": (
        thing(
            tree=thing(left={"anyOf": [{"type": "null"}, thing(leaf=INTEGER)]}),
            more={"$ref": "#/properties/tree/properties/left/anyOf/1"},
        ),
        ({"tree": {"left": None}, "more": {"leaf": 1}},),
        ({"tree": {"left": None}, "more": None}, {"tree": {"left": None}, "more": {"leaf": False}}),
    ),
    "escapes": (
        thing(a={"$ref": "#/$defs/x~1y~0z%25%20w"}) | {"$defs": {"x/y~z% w": INTEGER}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "an anchor that is dynamic as well": (
        thing(a={"$ref": "#here"}) | {"$defs": {"x": INTEGER | {"$dynamicAnchor": "here"}}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "a dynamic reference": (
        thing(a={"$dynamicRef": "#here"}) | {"$defs": {"x": INTEGER | {"$dynamicAnchor": "here"}}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "a recursive reference": (
        OPEN | {"properties": {"v": INTEGER, "kid": {"$recursiveRef": "#"}}, "required": ["v"]},
        ({"v": 1}, {"v": 1, "kid": {"v": 2}}),
        ({"v": 1, "kid": {}}, {"v": 1, "kid": 3}),
    ),
    "all of one at the root": (
        {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": thing(a=INTEGER)}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "one of few numbers": (
        thing(v={"enum": [1, 2], "type": "integer"}, kid={"anyOf": [{"type": "null"}, {"$ref": "#"}]}),
        ({"v": 1, "kid": None}, {"v": 1, "kid": {"v": 2, "kid": None}}),
        ({"v": 3, "kid": None}, {"v": 1, "kid": {"v": 3, "kid": None}}),
    ),
    "an anchor": (
        thing(a={"$ref": "#here"}) | {"$defs": {"x": INTEGER | {"$anchor": "here"}}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "an address": (
        thing(a={"$ref": "part"}, b={"$ref": "http://example.com/s/whole#/$defs/x/items"})
        | {"$id": "http://example.com/s/whole"}
        | {"$defs": {"x": {"$id": "part", "type": "array", "items": INTEGER}}},
        ({"a": [1], "b": 1},),
        ({"a": 1, "b": 1}, {"a": [1], "b": [1]}),
    ),
    "a part with a name of its own": (
        thing(a=thing(b={"$ref": "#/$defs/x"}) | {"$id": "urn:part", "$defs": {"x": INTEGER}})
        | {"$defs": {"x": BOOLEAN}},
        ({"a": {"b": 1}},),
        ({"a": {"b": True}},),
    ),
    "one by another": (
        thing(a={"$ref": "#/$defs/x"}) | {"$defs": {"x": {"$ref": "#/$defs/y"}, "y": {"$ref": "#/definitions/z"}}}
        | {"definitions": {"z": INTEGER}},
        ({"a": 1},),
        ({"a": None},),
    ),
    "round in a circle": (
        thing(a={"$ref": "#/$defs/x"})
        | {"$defs": {"x": thing(y={"$ref": "#/$defs/y"}), "y": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/x"}]}}},
        ({"a": {"y": None}}, {"a": {"y": {"y": {"y": None}}}}),
        ({"a": None}, {"a": {"y": 1}}, {"a": {"y": {"y": 1}}}),
    ),
    "or null": (
        thing(a={"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}) | {"$defs": {"x": thing(n=INTEGER)}},
        ({"a": None}, {"a": {"n": 1}}),
        ({"a": {"n": None}}, {"a": True}),
    ),
    "one in allOf, described": (
        thing(a={"allOf": [{"$ref": "#/$defs/x"}], "description": "d"}) | {"$defs": {"x": thing(n=INTEGER)}},
        ({"a": {"n": 1}},),
        ({"a": {"n": None}}, {"a": 1}),
    ),
    "all of it": (
        {"$ref": "#/definitions/Args", "definitions": {"Args": thing(a=INTEGER)}},
        ({"a": 1},),
        ({"a": None}, {}, {"a": 1, "b": 2}),
    ),
    "a property of that name": (
    thing(**{"$ref": INTEGER, "b": {"$ref": "#/properties/$ref"}}),
    ({"$ref": 1, "b": 2},),
    ({"$ref": 1, "b": None},)),
    "names of schemas as properties": (
        thing(properties=INTEGER, enum={"$ref": "#/properties/properties"}, const=BOOLEAN),
        ({"properties": 1, "enum": 2, "const": True},),
        ({"properties": 1, "enum": None, "const": True},),
    ),
    "what looks like one in data": (
        thing(a={"$ref": "#/$defs/x"})
        | {"default": {"$ref": "#/nowhere"}, "examples": [{"$ref": "#/nowhere"}], "$defs": {"x": INTEGER}},
        ({"a": 1},),
        ({"a": None},),
    ),
}  # fmt: skip


@every_form
@pytest.mark.parametrize("is_strict", [False, True])
def test_references_mean_the_same_in_every_form(form: CallForm, is_strict: bool) -> None:
    """Of all tools together: their definitions have the same names."""
    matcher = matcher_of(grammar_of(form, *(schema for schema, _, _ in CASES.values()), is_strict=is_strict))
    for i, (name, (_, right, wrong)) in enumerate(CASES.items()):
        for arguments in right:
            assert is_called(form, matcher, arguments, f"f{i}"), (name, arguments)
        for arguments in wrong:
            assert not is_called(form, matcher, arguments, f"f{i}"), (name, arguments)


JSON_FORMS = [form for form in forms.FORMS if form.notation not in (Notation.TAGS, Notation.GEMMA)]


@pytest.mark.parametrize("form", JSON_FORMS, ids=lambda form: form.label)
def test_data_that_looks_like_a_reference_stays_data(form: CallForm) -> None:
    lookalike = {"$ref": "#/$defs/x", "$id": "y", "$defs": 1}
    schema = thing(a={"enum": [lookalike, 1]}, b={"const": lookalike}, c={"$ref": "#/$defs/x"}) | {
        "$defs": {"x": INTEGER}
    }
    grammar = matcher_of(grammar_of(form, schema))
    assert is_called(form, grammar, {"a": lookalike, "b": lookalike, "c": 1})
    assert not is_called(form, grammar, {"a": lookalike, "b": 1, "c": 1})


@every_form
@pytest.mark.parametrize(
    "reference",
    ["#/nowhere", "#nobody", "http://example.com/x", "http://[", "http://[#/a", "#/required"],
)
def test_a_reference_to_nothing_is_refused_of_a_strict_tool_and_binds_nothing_else(
    form: CallForm, reference: str
) -> None:
    schema = thing(a=INTEGER, b={"type": "integer", "$ref": reference})
    with pytest.raises(RequestError, match="the parameters of f0, a strict tool, refer to") as refusal:
        grammar_of(form, schema, is_strict=True)
    assert refusal.value.parameter == "tools" and reference in refusal.value.message
    grammar = matcher_of(grammar_of(form, schema))
    assert is_called(form, grammar, {"a": 1, "b": 2}) and not is_called(form, grammar, {"a": None, "b": 2})


def test_an_address_that_is_not_valid_names_nothing() -> None:
    whole = thing(a={"$ref": "#/$defs/x"}) | {"$id": "http://[", "$defs": {"x": INTEGER}}
    assert lift_references(whole) == (thing(a={"$ref": "#/$defs/0"}) | {"$defs": {"0": INTEGER}}, [])


# ---- schemas of all kinds
LEAVES = [INTEGER, BOOLEAN, {"type": "null"}, {"type": "array", "items": INTEGER}]
NAMES = ("a", "b", "c")


@st.composite
def parts(draw: st.DrawFn, depth: int = 2) -> Values:
    """A schema that says of everything what type it has; `$ref` is filled in later."""
    kind = draw(st.sampled_from(["leaf", "ref", "object", "array", "anyOf"][: 5 if depth else 2]))
    if kind == "leaf":
        return dict(draw(st.sampled_from(LEAVES)))
    if kind == "ref":
        return {"$ref": draw(st.integers(0, 99))}
    if kind == "array":
        return {"type": "array", "items": draw(parts(depth - 1))}
    if kind == "anyOf":
        return {"anyOf": [draw(parts(depth - 1)), {"type": "null"}]}
    return draw(objects(depth - 1))


@st.composite
def objects(draw: st.DrawFn, depth: int = 2) -> Values:
    named = {name: draw(parts(depth)) for name in draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1))}
    needed = [name for name in named if draw(st.booleans())]
    return OPEN | {"properties": named, "required": needed}


def places_in(schema: object, pointer: str = "#") -> list[tuple[str, Values]]:
    """Pointers to every schema within, and the schemas."""
    assert isinstance(schema, dict)
    found: list[tuple[str, Values]] = [(pointer, schema)]
    for word in ("properties", "$defs"):
        for name, part in schema.get(word, {}).items():
            found += places_in(part, f"{pointer}/{word}/{name}")
    for i, part in enumerate(schema.get("anyOf", [])):
        found += places_in(part, f"{pointer}/anyOf/{i}")
    return [*found, *(places_in(schema["items"], f"{pointer}/items") if "items" in schema else [])]


@st.composite
def referring(draw: st.DrawFn) -> Values:
    schema = draw(objects()) | {"$defs": {"d": draw(parts()), "e": draw(objects())}}
    places = places_in(schema)
    for _, part in places:
        if "$ref" in part:
            part["$ref"] = places[part["$ref"] % len(places)][0]
    return schema


@st.composite
def instances(draw: st.DrawFn, root: Values, schema: Values, depth: int) -> object:
    """What may fit the schema, and now and then does not."""
    for _ in range(9):
        if "$ref" in schema:
            schema = dict(places_in(root))[schema["$ref"]]
        elif "anyOf" in schema:
            schema = draw(st.sampled_from(schema["anyOf"]))
    if draw(st.integers(0, 9)) == 0 or depth < 0:
        return draw(st.sampled_from([1, True, None, [1], {"a": 1}, {}]))
    match schema.get("type"):
        case "integer":
            return draw(st.integers(-9, 9))
        case "boolean":
            return draw(st.booleans())
        case "array":
            return [draw(instances(root, schema["items"], depth - 1)) for _ in range(draw(st.integers(0, 2)))]
        case "object":
            names = [n for n in schema["properties"] if n in schema["required"] or (depth and draw(st.booleans()))]
            return {name: draw(instances(root, schema["properties"][name], depth - 1)) for name in names}
    return None


def is_endless(schema: Values) -> bool:
    """Is there a reference that leads to nothing but references?"""
    places = dict(places_in(schema))
    for part in places.values():
        for _ in places:
            part = places.get(part.get("$ref"), part)
        if "$ref" in part:
            return True
    return False


@examples(150)
@given(st.data(), st.sampled_from(forms.FORMS), referring(), st.booleans())
def test_a_call_s_grammar_accepts_what_its_schema_accepts(
    data: st.DataObject, form: CallForm, schema: Values, is_strict: bool
) -> None:
    assume(not is_endless(schema))
    alone = matcher_of(f"start: {json_rule(schema, is_strict=True)}")
    called = matcher_of(grammar_of(form, schema, is_strict=is_strict))
    for _ in range(6):
        arguments = data.draw(instances(schema, schema, 3))
        if isinstance(arguments, dict):
            is_right = fits(alone, json.dumps(arguments))
            assert is_called(form, called, arguments) is is_right, (arguments, is_right)
