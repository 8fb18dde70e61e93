"""Answers in the formats of many model families: well formed, careless, and not calls at all."""

# ruff: noqa: E501 - answers stand here as they come

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.tools import CallForm, Notation, Split, Tool, join_calls
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.call_forms import write_calls
from eaglelocal.text.tool_calls.call_parser import read_python_calls
from eaglelocal.text.tool_calls.lenient_literals import UnreadableCall
from eaglelocal.text.tool_calls.tagged_text import parse_value
from eaglelocal.text.tool_calls.tool_schemas import Shape

ADD = {
    "type": "object",
    "properties": {
        "a": {"type": "number"},
        "note": {"type": "string"},
        "flag": {"type": "boolean"},
        "opts": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
}
TOOLS = (Tool("look_up", "", '{"properties": {"word": {"type": "string"}}}'), Tool("add", "", json.dumps(ADD)))
OWL = ("look_up", {"word": "owl"})
BEGIN, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
KIMI = "<|tool_call_begin|>functions.look_up:0<|tool_call_argument_begin|>"

Calls = list[tuple[str, dict[str, object]]]


def read(split: Split, text: str) -> tuple[str, str, Calls]:
    """What is said, thought and called."""
    ids = map(str, itertools.count())
    parser = SplitText(split, lambda: next(ids))
    events = [*(parser.push(char) for char in text), parser.finish("")]
    calls = [
        (call.name, json.loads(call.arguments)) for call in join_calls(part for one in events for part in one.calls)
    ]
    return "".join(one.text for one in events), "".join(one.reasoning for one in events), calls


def coded(split: Split, text: str) -> str:
    """Where all markers are control tokens."""
    for index, name in sorted(enumerate(list_markers(split)), key=lambda found: -len(found[1])):
        text = text.replace(name, make_control_char(index))
    return text


# (form, answer, text, calls)
ANSWERS: dict[str, tuple[CallForm, str, str, Calls]] = {
    "coder without its outer tags' line breaks": (
        forms.CODER, "<tool_call><function=add><parameter=a>1</parameter></function></tool_call>", "", [("add", {"a": 1})],
    ),
    "coder, as JSON": (
        forms.CODER, '<tool_call>{"name": "look_up", "arguments": {"word": "owl"}}</tool_call>', "", [OWL],
    ),
    "hermes, as coder": (
        forms.HERMES, "<tool_call>\n<function=look_up>\n<parameter=word>\nowl\n</parameter>\n</function>\n</tool_call>", "",
        [OWL],
    ),
    "coder, Python's words": (
        forms.CODER,
        "<tool_call>\n<function=add>\n<parameter=flag>\nTrue\n</parameter>\n<parameter=opts>\n{'x': [1, None]}\n</parameter>\n"
        "<parameter=maybe>\nNone\n</parameter>\n</function>\n</tool_call>",
        "", [("add", {"flag": True, "opts": {"x": [1, None]}, "maybe": None})],
    ),
    "coder, a text that looks like a number": (
        forms.CODER,
        "<tool_call>\n<function=add>\n<parameter=note>\n12\n</parameter>\n<parameter=maybe>\n12\n</parameter>\n"
        "</function>\n</tool_call>",
        "", [("add", {"note": "12", "maybe": "12"})],
    ),
    "coder, tags in a value": (
        forms.CODER,
        "<tool_call>\n<function=add>\n<parameter=note>\n<parameter=x>\n</parameter> y </function>\n</parameter>\n</function>\n"
        "</tool_call>",
        "", [("add", {"note": "<parameter=x>\n</parameter> y </function>"})],
    ),
    "coder, no arguments": (forms.CODER, "<tool_call>\n<function=add>\n</function>\n</tool_call>", "", [("add", {})]),
    "coder, cut off": (
        forms.CODER, "Well. <tool_call>\n<function=add>\n<parameter", "Well. <tool_call>\n<function=add>\n<parameter", [],
    ),
    "coder, a tag in words": (forms.CODER, "The <tool_call> tag.", "The <tool_call> tag.", []),
    "glm": (
        forms.GLM, "Well.\n<tool_call>look_up\n<arg_key>word</arg_key>\n<arg_value>owl</arg_value>\n</tool_call>", "Well.", [OWL],
    ),
    "glm in one line": (
        forms.GLM,
        "<tool_call>add<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>note</arg_key><arg_value> x </arg_value></tool_call>",
        "", [("add", {"a": 1, "note": " x "})],
    ),
    "glm, no arguments": (forms.GLM, "<tool_call>add\n</tool_call>", "", [("add", {})]),
    "glm, a tool that nobody offered": (forms.GLM, "<tool_call>rm\n</tool_call>", "<tool_call>rm\n</tool_call>", []),
    "minimax, two in a block": (
        forms.MINIMAX,
        '<minimax:tool_call>\n<invoke name="look_up">\n<parameter name="word">owl</parameter>\n</invoke>\n<invoke name="add">\n'
        '</invoke>\n</minimax:tool_call>', "", [OWL, ("add", {})],
    ),
    "minimax, half of it no call": (
        forms.MINIMAX, '<minimax:tool_call>\n<invoke name="add">\n</invoke>\nwell\n</minimax:tool_call>',
        '<minimax:tool_call>\n<invoke name="add">\n</invoke>\nwell\n</minimax:tool_call>', [],
    ),
    "dsml, what is text is said": (
        forms.DSML,
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="new">\n<｜DSML｜parameter name="a" string="true">1</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="b" string="false">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        "", [("new", {"a": "1", "b": 1})],
    ),
    "deepseek": (
        forms.DEEPSEEK,
        f'Well.<｜tool▁calls▁begin｜>{BEGIN}function{SEP}look_up\n```json\n{{"word": "owl"}}\n```{END}\n'
        f'{BEGIN}function{SEP}add\n```json\n{{}}\n```{END}<｜tool▁calls▁end｜>', "Well.", [OWL, ("add", {})],
    ),
    "deepseek 3.1": (
        forms.DEEPSEEK_31,
        f'<｜tool▁calls▁begin｜>{BEGIN}look_up{SEP}{{"word": "owl"}}{END}{BEGIN}add{SEP}{{}}{END}<｜tool▁calls▁end｜>',
        "", [OWL, ("add", {})],
    ),
    "deepseek, a section without calls": (
        forms.DEEPSEEK, "<｜tool▁calls▁begin｜> none <｜tool▁calls▁end｜>", "<｜tool▁calls▁begin｜> none <｜tool▁calls▁end｜>", [],
    ),
    "deepseek without a section": (forms.DEEPSEEK, f'{BEGIN}look_up{SEP}{{"word": "owl"}}{END} ok', "ok", [OWL]),
    "kimi": (
        forms.KIMI,
        f'<|tool_calls_section_begin|>{KIMI}{{"word": "owl"}}<|tool_call_end|><|tool_calls_section_end|>', "", [OWL],
    ),
    "kimi, broken": (forms.KIMI, f"{KIMI}oops", f"{KIMI}oops", []),
    "solar": (
        forms.SOLAR,
        '<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>look_up<|tool_call:args|>{"word": "owl"}<|tool_call:end|><|calls|>',
        "", [OWL],
    ),
    "granite": (forms.GRANITE, '<|tool_call|>[{"name": "look_up", "arguments": {"word": "owl"}}]', "", [OWL]),
    "granite, spaces": (forms.GRANITE, '<|tool_call|> [ {"name": "add"} ]\n', "", [("add", {})]),
    "phi, a list": (
        forms.PHI, '<|tool_call|>[{"name": "look_up", "arguments": {"word": "owl"}}]<|/tool_call|>', "", [OWL],
    ),
    "nemotron": (
        forms.NEMOTRON, 'Well.\n<TOOLCALL>[{"name": "look_up", "arguments": {"word": "owl"}}]</TOOLCALL>', "Well.", [OWL],
    ),
    "command": (
        forms.COMMAND,
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "look_up", "parameters": {"word": "owl"}}\n]<|END_ACTION|>',
        "", [OWL],
    ),
    "functionary": (
        forms.FUNCTIONARY, '<function=look_up>{"word": "owl"}</function><function=add>{}</function>', "", [OWL, ("add", {})],
    ),
    "lfm": (
        forms.LFM, "<|tool_call_start|>[look_up(word='owl'), add(a=-1.5, flag=True, opts={\"x\": [1, null]})]<|tool_call_end|>ok",
        "ok", [OWL, ("add", {"a": -1.5, "flag": True, "opts": {"x": [1, None]}})],
    ),
    "lfm, line breaks in a text": (
        forms.LFM, "<|tool_call_start|>[add(note='a\nb')]<|tool_call_end|>", "", [("add", {"note": "a\nb"})],
    ),
    "lfm, code and no call": (
        forms.LFM, "<|tool_call_start|>[open('x').read()]<|tool_call_end|>",
        "<|tool_call_start|>[open('x').read()]<|tool_call_end|>", [],
    ),
    "olmo, a call on each line": (
        forms.OLMO, "Well.\n<function_calls>\nlook_up(word='owl')\nadd(flag=true)\n</function_calls>", "Well.",
        [OWL, ("add", {"flag": True})],
    ),
    "lfm, an emoji in two halves, and half of one": (
        forms.LFM, r"<|tool_call_start|>[look_up(word='\ud83d\ude00 \ud83d')]<|tool_call_end|>", "",
        [("look_up", {"word": "\N{GRINNING FACE} \N{REPLACEMENT CHARACTER}"})],
    ),
    "gigachat": (
        forms.GIGACHAT, 'Well.<|function_call|>{"name": "look_up", "arguments": {"word": "owl"}}', "Well.", [OWL],
    ),
    "llama 4, in Python": (forms.LLAMA_4, '[look_up(word="owl"), add(a="2")]', "", [OWL, ("add", {"a": 2})]),
    "llama 4, between markers": (
        forms.LLAMA_4, '<|python_start|>[look_up(word="owl")]<|python_end|>', "", [OWL],
    ),
    "llama 4, a list and no call": (forms.LLAMA_4, "[1, 2] and [look_up]", "[1, 2] and [look_up]", []),
    "llama 4, a tool that nobody offered": (forms.LLAMA_4, "[rm(a=1)]", "[rm(a=1)]", []),
    "gemma": (
        forms.GEMMA,
        '<|tool_call>call:add{a:1.5,flag:true,note:<|"|>a, {b}: "c"<|"|>,opts:{x:[1,<|"|>y<|"|>],z:{}}}<tool_call|>', "",
        [("add", {"a": 1.5, "flag": True, "note": 'a, {b}: "c"', "opts": {"x": [1, "y"], "z": {}}})],
    ),
    "gemma, spaces and bare words": (
        forms.GEMMA, "<|tool_call>call: look_up { word : owl }<tool_call|>", "", [OWL],
    ),
    "gemma, a marker in a text": (
        forms.GEMMA, '<|tool_call>call:look_up{word:<|"|><tool_call|><|"|>}<tool_call|>', "",
        [("look_up", {"word": "<tool_call|>"})],
    ),
    "gemma, broken": (forms.GEMMA, "<|tool_call>call:look_up{word:<tool_call|>", "<|tool_call>call:look_up{word:<tool_call|>", []),
    "gemma, much too deep": (
        forms.GEMMA, f"<|tool_call>call:add{{a:{'[' * 500}<tool_call|>", f"<|tool_call>call:add{{a:{'[' * 500}<tool_call|>", [],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_read(name: str) -> None:
    form, answer, text, calls = ANSWERS[name]
    assert read(Split(form=form, tools=TOOLS), answer) == (text, "", calls)


@pytest.mark.parametrize("name", [name for name in ANSWERS if "marker in" not in name])
def test_control_tokens_mark_as_spelled_markers_do(name: str) -> None:
    form, answer, _, calls = ANSWERS[name]
    split = Split(form=form, tools=TOOLS)
    assert read(split, coded(split, answer))[2] == calls


def test_ids_that_a_model_writes_are_kept() -> None:
    for form, answer, call_id in (
        (forms.KIMI, f"{KIMI}{{}}<|tool_call_end|>", "functions.look_up:0"),
        (forms.MISTRAL_IDS, "[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{}", "abcdefghi"),
        (forms.MISTRAL, '[TOOL_CALLS][{"name": "add", "id": "abcdefghi", "arguments": {}}]', "abcdefghi"),
        (forms.MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {}, "id": "abcdefghi"}]', "made"),  # too late
    ):
        (call,) = join_calls(SplitText(Split(form=form, tools=TOOLS), lambda: "made").finish(answer).calls)
        assert call.id == call_id


plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-9, 9).map(lambda x: round(x, 3)) | plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), inner),
    max_leaves=6,
)
typed = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(-99, 99), "note": plain, "flag": st.booleans(),
        "opts": st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), values, max_size=3),
    },
)  # fmt: skip


SIGNS = frozenset("<>'\\｜\x85\u2028\u2029")  # control characters come out of JSON with a backslash


@given(st.sampled_from([form for form in forms.FORMS if form is not forms.HARMONY]), typed, st.booleans())
def test_what_is_written_is_read_again(form: CallForm, arguments: dict[str, object], has_two: bool) -> None:
    """All but texts that hold signs of the form's own, which only JSON can escape."""
    if form.notation not in (Notation.JSON, Notation.BARE) and SIGNS & set(json.dumps(arguments, ensure_ascii=False)):
        return
    calls = [("add", arguments)] * (2 if has_two and not form.is_one_call else 1)
    split = Split(form=form, tools=TOOLS)
    text = write_calls(form, calls)
    assert read(split, text) == ("", "", calls)
    assert read(replace(split, parallel=False), text) == ("", "", calls[:1])


NAMES = ("get-time", "server/tool", "a:b", "look.up", "mcp__files__read", "1st", "class")


@pytest.mark.parametrize(
    "form", [form for form in forms.FORMS if form is not forms.HARMONY], ids=lambda form: form.label
)
@pytest.mark.parametrize("name", NAMES)
def test_tools_and_arguments_may_have_names_that_python_has_not(form: CallForm, name: str) -> None:
    """As they were shown, so are they written."""
    call: tuple[str, dict[str, object]] = (name, {"from": "x(y=1)", "user-id": 7})
    split = Split(form=form, tools=(Tool(name),))
    assert read(split, write_calls(form, [call])) == ("", "", [call])


# ---- values
@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("1", {"type": "string"}, "1"),
        ("1", {"type": "integer"}, 1),
        ("1", {}, 1),
        ("one", {"type": "integer"}, "one"),
        ("null", {"type": ["string", "null"]}, None),
        ("1", {"type": ["string", "null"]}, "1"),
        ("True", {"type": "boolean"}, True),
        ("true", {"type": "string"}, "true"),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("2", {"enum": ["1", "2"]}, "2"),
        ("2", {"enum": [1, 2]}, 2),
        ("{'a': (1, 2)}", {"type": "object"}, {"a": [1, 2]}),
        ("{'a': 1j}", {"type": "object"}, "{'a': 1j}"),
        ("[" * 9000, {"type": "array"}, "[" * 9000),
        ("NaN", {"type": "number"}, "NaN"),
        (" x ", {}, " x "),
    ],
)
def test_values_are_what_the_schema_says(text: str, schema: dict[str, object], value: object) -> None:
    assert parse_value(text, Shape(schema, {})) == value


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('f(a="""say "g(" (x=1)""")', {"a": 'say "g(" (x=1)'}),
        ("f(a='it\\'s g(x=1)', b={\"c\":(1, 2)})", {"a": "it's g(x=1)", "b": {"c": [1, 2]}}),
        ("f(a='x=1\ny(2)')", {"a": "x=1\ny(2)"}),
        ("f ( a = true, _0 = 1)", {"a": True, "_0": 1}),
        ("f(a=('x'), b=((3)), c=(1,), d=())", {"a": "x", "b": 3, "c": [1], "d": []}),
        ("f(a='x' # 'y'\n, # a=2\n b=3)", {"a": "x", "b": 3}),
        ("f(a='x\u2028y\x0cz', # 1\n b='keep # it')", {"a": "x\u2028y\x0cz", "b": "keep # it"}),
    ],
)
def test_what_stands_in_quotes_names_nothing(text: str, arguments: dict[str, object]) -> None:
    (call,) = read_python_calls(text, {})
    assert (call.name, json.loads(call.arguments)) == ("f", arguments)


@pytest.mark.parametrize(
    "text",
    [
        'f(a="' + '\\"' * 100_000,
        "a" * 250_000,
        "'" * 250_000,
        "a" + " " * 250_000,
        "a=" * 100_000,
        "f(a='' \"" + '\\"' * 100_000 + "')",
        "f(a='' \"" + '\\"' * 8_000 + "')",
        "f(a=''" + "(" * 16_000 + "')",
    ],
)
def test_what_has_no_end_is_given_up_soon(text: str) -> None:
    began = time.perf_counter()
    with pytest.raises(UnreadableCall):
        read_python_calls(text, {})
    assert time.perf_counter() - began < 2.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "(f)(a=1)",
        "x - f(a=1)",
        "f(a==1)",
        "[f]",
        "f(1)",
        "f(**{})",
        "[f(a=b)]",
        "f(a=g())",
        "f(a=1",
        "f(a=b'x')",
        "f(a={1: 2})",
        "(" * 5000,
        "f(a=1j)",
        "f(a='a' + 'b')",
        "f(a=['a' 'b'])",
        "f(a='%s' % 'x')",
        "f(a='a' if n else 'b')",
        'f(a="a" \\\n"b")',
        "f(a='it''s')",
        "f(a='x' # 'y')",
    ],
)
def test_text_that_is_not_a_python_call_stays_text(text: str) -> None:
    with pytest.raises(UnreadableCall):
        read_python_calls(text, {})
