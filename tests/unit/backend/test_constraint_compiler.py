"""Constraints as llguidance compiles them over a real vocabulary: what fits, what does not, and how calls are bound."""

from __future__ import annotations

import itertools
import json
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles.timeouts import wait_until

from eaglelocal.backend.constraint_compiler import (
    MAX_CACHED,
    LlamaConstraints,
    _single_grammar,
    extract_reason,
    make_grammar,
)
from eaglelocal.backend.llama_library import load_library
from eaglelocal.backend.model import LlamaModel
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import CallForm, Notation, Split, Tool, ToolChoice, ToolUse, join_calls
from eaglelocal.engine.answer_constraint import AnswerConstraint
from eaglelocal.errors import RequestError
from eaglelocal.server.request_reader import read_custom_tool
from eaglelocal.server.schema import CustomFormat, CustomGiven
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.call_forms import write_calls
from eaglelocal.text.tool_calls.tool_grammar import list_callable_tools, make_constraint

DEMO = Path(__file__).parents[3] / "profiles" / "demo" / "guide-target.gguf"
TOOLS = (Tool("f", "", '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'), Tool("g.h"))
SPELLED = [form for form in forms.FORMS if form is not forms.HARMONY]
THINK = ("<think>", "</think>")
REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
A_CONTROL, NORMAL = 1, 300  # tokens of the demo's vocabulary


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    model = LlamaModel(load_library(), DEMO)
    yield model
    model.close()


class Judge:
    """Says whether a text, or a text with tokens in it, is a whole answer."""

    def __init__(self, model: LlamaModel) -> None:
        self._vocabulary, self._constraints = model.vocabulary, model.constraints

    def accepts(self, constraint: Constraint | None, *parts: str | int) -> bool:
        assert constraint is not None
        matcher = self._constraints.matcher(constraint)
        tokens = [token for part in parts for token in ([part] if isinstance(part, int) else self._tokens(part))]
        return bool(matcher.consume_tokens(tokens)) and bool(matcher.is_accepting())

    def _tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


@pytest.fixture(scope="module")
def judge(model: LlamaModel) -> Judge:
    return Judge(model)


def schema(**fields: object) -> Constraint:
    return Constraint(Syntax.JSON_SCHEMA, json.dumps(fields))


def test_schemas(judge: Judge) -> None:
    number = schema(type="object", properties={"a": {"type": "integer"}}, required=["a"], additionalProperties=False)
    for fits in ('{"a":1}', '{"a": 1}', '{\n  "a": -20\n}'):
        assert judge.accepts(number, fits)
    for wrong in ('{"a": "1"}', "{}", '{"a": 1, "b": 2}', '{"a":  1}', ' {"a": 1}', '{"a": 1}x'):
        assert not judge.accepts(number, wrong)
    assert judge.accepts(Constraint(Syntax.JSON_OBJECT), '{"x": [1, {"y": null}]}')
    assert not judge.accepts(Constraint(Syntax.JSON_OBJECT), "[1]")
    assert judge.accepts(schema(type="object", description="d", title="t", default={}, unheard_of=1), "{}")


@pytest.mark.parametrize("indent", [2, 4, "\t"])
def test_white_space_is_an_indent_and_no_more(judge: Judge, indent: int | str) -> None:
    deep: object = 1
    for _ in range(8):  # 16 levels
        deep = {"a": [deep]}
    text = json.dumps(deep, indent=indent)
    assert judge.accepts(Constraint(Syntax.JSON_OBJECT), text)
    for space in ("\n\n", "  ", "\n" + 70 * " ", "\t"):
        assert not judge.accepts(Constraint(Syntax.JSON_OBJECT), f'{{"a":{space}1}}')


def test_expressions_and_grammars(judge: Judge) -> None:
    assert judge.accepts(Constraint(Syntax.REGEX, "(ja|nein)+"), "janein")
    assert not judge.accepts(Constraint(Syntax.REGEX, "(ja|nein)+"), "jane")
    assert judge.accepts(Constraint(Syntax.LARK, 'start: "a" x\nx: /[0-9]+/'), "a12")


def test_a_frame_counts_and_holds_its_answer() -> None:
    framed = Constraint(Syntax.REGEX, "a", 'start: "<" @answer ">"')
    first, second = json.loads(make_grammar(framed))["grammars"]
    assert first == {"lark_grammar": framed.frame} and second["name"] == "answer"
    with pytest.raises(RequestError, match="more than 131072"):
        make_grammar(replace(framed, frame="x" * 140_000))


@pytest.mark.parametrize(
    ("wanted", "right", "wrong"),
    [
        (Constraint(Syntax.LARK, 'start: "a"+'), "aaa", "ab"),
        (Constraint(Syntax.LARK, 'start: x\nx: "[" x "]" | N\nN: /[0-9]/'), "[[3]]", "[[3]"),
        (Constraint(Syntax.REGEX, "(ja|nein)+"), "janein", "jane"),
        (Constraint(Syntax.JSON_OBJECT), '{"a": 1}', "[1]"),
        (Constraint(Syntax.JSON_SCHEMA, '{"enum": [1, 2]}'), "2", "3"),
    ],
)
def test_every_kind_of_answer_has_room_in_a_frame(judge: Judge, wanted: Constraint, right: str, wrong: str) -> None:
    """Behind a thought, and beside calls."""
    split = Split(form=forms.HERMES, reasoning_markers=THINK, tools=TOOLS)
    framed = make_constraint(split, ToolChoice(), wanted, tokens={}, is_split=True)
    assert framed is not None and framed.frame
    for thought in ("", "<think>hm</think>\n"):
        assert judge.accepts(framed, f"{thought}{right}") and not judge.accepts(framed, f"{thought}{wrong}")
    assert judge.accepts(framed, written(forms.HERMES, {"n": 3}))


@pytest.mark.parametrize("grammar", ['start: "a"+', '{"grammars": [{"lark_grammar": "start: \\"a\\"+"}]}'])
def test_a_grammar_is_read_as_any_version_of_the_library_gives_it(grammar: str) -> None:
    assert _single_grammar(grammar) == {"lark_grammar": 'start: "a"+'}


def test_what_was_compiled_is_kept_for_a_while(model: LlamaModel) -> None:
    constraints = LlamaConstraints(model.vocabulary)
    compiled = []
    for index in range(2 * MAX_CACHED):
        compiled.append(weakref.ref(constraints.hold(Constraint(Syntax.REGEX, f"a{{{index + 1}}}"))))
    assert [one() is not None for one in compiled] == [False] * MAX_CACHED + [True] * MAX_CACHED
    kept = Constraint(Syntax.REGEX, f"a{{{2 * MAX_CACHED}}}")
    one, two = constraints.matcher(kept), constraints.matcher(kept)
    one.consume_tokens(model.vocabulary.tokenize("aa", add_special=False, parse_special=False))
    assert np.any(np.frombuffer(two.compute_bitmask(), np.uint8))
    assert one is not two and not two.is_error()


def test_what_constraints_need_can_be_made_ready_before(model: LlamaModel) -> None:
    constraints = LlamaConstraints(model.vocabulary)
    assert not constraints.is_prepared
    constraints.prepare()
    assert constraints.is_prepared and constraints.checker.pid is None  # until it is needed
    constraints.check(Constraint(Syntax.REGEX, "a+"))
    assert constraints.checker.pid is not None
    constraints.close()


def test_the_checks_process_starts_by_itself_a_little_later(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglelocal.backend.constraint_compiler.LATER_S", 0.01)
    constraints = LlamaConstraints(model.vocabulary)
    constraints.prepare()
    wait_until(lambda: constraints.checker.pid is not None, "the start")
    constraints.close()


# ---- calls
def written(form: CallForm, *calls: dict[str, object]) -> str:
    """Calls of f as a model of the family writes them."""
    return write_calls(form, [("f", arguments) for arguments in calls])


@pytest.mark.parametrize("form", SPELLED, ids=lambda form: form.label)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_bound_in_the_form_that_is_read(judge: Judge, form: CallForm, parallel: bool) -> None:
    split = Split(form=form, tools=TOOLS, parallel=parallel)
    bound = make_constraint(split, replace(REQUIRED, parallel=parallel), None, tokens={}, is_split=True)
    one, two = written(form, {"n": 3}), written(form, {"n": 3}, {"n": 4})
    assert judge.accepts(bound, one)
    assert judge.accepts(bound, two) is (parallel and not form.is_one_call)
    unknown = write_calls(form, [("x", {"n": 3})])
    for wrong in (
        written(form, {"n": "x"}),
        written(form, {}),
        written(form, {"m": 3}),
        unknown,
        one[:-1],
        "hello",
        "",
    ):
        assert not judge.accepts(bound, wrong)
    parser = SplitText(split, lambda: "id")
    (call,) = join_calls((*parser.push(one).calls, *parser.finish("").calls))
    assert (call.name, json.loads(call.arguments)) == ("f", {"n": 3})


RICH = Tool(
    "a:b/look.up-2",
    "",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "word": {"type": "string"},
                "kind": {"enum": ["bird", "fish"]},
                "limit": {"type": "integer"},
                "exact": {"type": "boolean"},
                "where": {"$ref": "#/$defs/place"},
                "ages": {"type": "array", "items": {"type": "number"}},
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            },
            "required": ["word", "where"],
            "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number"}, "of": {"type": "string"}}}},
        }
    ),
)
ARGUMENTS: tuple[dict[str, object], ...] = (
    {"word": "öwl", "where": {}},
    {"word": "", "kind": "fish", "limit": -3, "exact": True, "where": {"x": 1.5, "of": "a, b"}, "ages": [1, 2.5]},
    {"word": 'two\nlines "and" <tags> & {braces}', "exact": False, "where": {"of": "</x>"}, "ages": [], "either": "x"},
    {"word": " spaces ", "where": {"x": -1}, "either": None},
)


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("form", SPELLED, ids=lambda form: form.label)
def test_what_a_family_writes_is_admitted_and_read(judge: Judge, form: CallForm, arguments: dict[str, object]) -> None:
    tool = RICH
    split = Split(form=form, tools=(tool,))
    text = write_calls(form, [(tool.name, arguments)])
    assert judge.accepts(make_constraint(split, REQUIRED, None, tokens={}, is_split=True), text), text
    parser = SplitText(split, lambda: "id")
    expected = [*(parser.push(char) for char in text), parser.finish("")]
    assert [
        (call.name, json.loads(call.arguments)) for call in join_calls(part for one in expected for part in one.calls)
    ] == [(tool.name, arguments)]
    assert not "".join(one.text for one in expected)


@pytest.mark.parametrize("form", [forms.CODER, forms.GLM, forms.GEMMA, forms.LFM], ids=lambda form: form.label)
def test_arguments_that_are_no_json_are_bound_by_the_schema_too(judge: Judge, form: CallForm) -> None:
    tool = replace(RICH, name="f")
    bound = make_constraint(Split(form=form, tools=(tool,)), REQUIRED, None, tokens={}, is_split=True)
    right: dict[str, object] = {"word": "a", "kind": "bird", "limit": 1, "where": {}}
    assert judge.accepts(bound, written(form, right))
    for key, value in (("kind", "tree"), ("limit", "many"), ("limit", 1.5), ("where", 3), ("exact", "perhaps")):
        assert not judge.accepts(bound, written(form, {**right, key: value})), (key, value)
    assert not judge.accepts(bound, written(form, {"word": "a"}))


@pytest.mark.parametrize("in_reasoning", [True, False])
@pytest.mark.parametrize("tokens", [{}, {"</think>": A_CONTROL}])
def test_a_thought_may_stand_before(judge: Judge, in_reasoning: bool, tokens: dict[str, int]) -> None:
    split = Split(form=forms.HERMES, reasoning_markers=THINK, in_reasoning=in_reasoning, tools=TOOLS)
    opening: list[str | int] = [] if in_reasoning else ["<think>"]
    thought = [*opening, 'hm {"n": <b>', tokens.get("</think>", "</think>"), "\n\n"]
    calls = make_constraint(split, REQUIRED, None, tokens=tokens, is_split=True)
    call = written(forms.HERMES, {"n": 3})
    assert judge.accepts(calls, *thought, call)
    assert judge.accepts(calls, call) is not in_reasoning
    wanted = schema(type="object", properties={"a": {"type": "integer"}}, required=["a"])
    answer = make_constraint(split, ToolChoice(), wanted, tokens=tokens, is_split=True)
    assert judge.accepts(answer, *thought, '{"a": 1}')
    assert judge.accepts(answer, *thought, call)
    assert not judge.accepts(answer, *thought, '{"a": "x"}')


@pytest.mark.parametrize("form", [forms.HERMES, forms.GEMMA, forms.SOLAR, forms.MUSE], ids=lambda form: form.label)
def test_no_thought_stands_before_when_the_prompt_has_closed_it(judge: Judge, form: CallForm) -> None:
    markers = None if form.headers else THINK
    split = Split(form=form, reasoning_markers=markers, tools=TOOLS, after_reasoning=True)
    thought = f"{form.headers.reasoning}hm{form.headers.next_header}" if form.headers else "<think>hm</think>"
    before = form.headers.text if form.headers else ""
    answer = make_constraint(split, ToolChoice(), schema(type="object"), tokens={}, is_split=True)
    assert judge.accepts(answer, f'{before}{{"a": 1}}')
    calls = make_constraint(split, REQUIRED, None, tokens={}, is_split=True)
    call = written(form, {"n": 3})
    assert judge.accepts(calls, call) and judge.accepts(answer, call)
    for bound, rest in ((answer, f'{before}{{"a": 1}}'), (calls, call)):
        assert not judge.accepts(bound, thought, rest) and not judge.accepts(bound, f"\n{rest}")


def test_a_marker_that_is_a_token_is_asked_for_as_one(judge: Judge) -> None:
    split = Split(form=forms.MISTRAL_ARGS, tools=TOOLS)
    for token in (A_CONTROL, NORMAL):
        bound = make_constraint(split, REQUIRED, None, tokens={"[TOOL_CALLS]": token}, is_split=True)
        assert judge.accepts(bound, token, 'f[ARGS]{"n": 3}')
        assert not judge.accepts(bound, '[TOOL_CALLS]f[ARGS]{"n": 3}')


def test_harmony_binds_channels(judge: Judge) -> None:
    split = Split(form=forms.HARMONY, tools=TOOLS)
    tokens = {name: 400 + index for index, name in enumerate(list_markers(split))}
    start, channel, message, constrain, end = (tokens[name] for name in list_markers(split)[:5])
    thought = (channel, "analysis", message, "hm", end, start, "assistant")
    call = (channel, "commentary to=functions.f ", constrain, "json", message, '{"n": 3}')
    bound = make_constraint(split, REQUIRED, None, tokens=tokens, is_split=True)
    before = (" to=functions.f", channel, "commentary json", message, '{"n": 3}')
    for one in (call, before):
        assert judge.accepts(bound, *one) and judge.accepts(bound, *thought, *one)
    wanted = make_constraint(split, ToolChoice(), Constraint(Syntax.JSON_OBJECT), tokens=tokens, is_split=True)
    assert judge.accepts(wanted, *thought, channel, "final", message, "{}") and judge.accepts(wanted, *call)
    assert not judge.accepts(wanted, "{}")


def test_what_is_bound_when(judge: Judge) -> None:
    wanted = Constraint(Syntax.JSON_OBJECT)
    for form, is_split in itertools.product(forms.FORMS, (True, False)):
        split = Split(form=form, tools=TOOLS)
        assert make_constraint(split, ToolChoice(), None, tokens={}, is_split=is_split) is None
        if not is_split:
            assert make_constraint(split, ToolChoice(), wanted, tokens={}, is_split=False) is wanted


def test_which_tools_may_be_called() -> None:
    assert list_callable_tools(TOOLS, ToolChoice()) == TOOLS
    assert list_callable_tools(TOOLS, ToolChoice(use=ToolUse.NONE)) == ()
    assert list_callable_tools(TOOLS, replace(REQUIRED, name="g.h")) == TOOLS[1:]
    for tools, choice in ((TOOLS, replace(REQUIRED, name="x")), ((), REQUIRED)):
        with pytest.raises(RequestError):
            list_callable_tools(tools, choice)


# ---- calls that look like answers, and calls of strict tools
@pytest.mark.parametrize("form", [forms.LLAMA, forms.LLAMA_4, forms.LLAMA_4_PYTHON], ids=lambda form: form.label)
def test_an_answer_in_json_or_a_call_that_nothing_marks(judge: Judge, form: CallForm) -> None:
    """However alike they begin, the answer stays possible, and so does the call."""
    wanted = schema(
        type="object", properties={"name": {"type": "string"}, "parameters": {"type": "string"}}, required=["name"]
    )
    bound = make_constraint(Split(form=form, tools=TOOLS), ToolChoice(), wanted, tokens={}, is_split=True)
    for fits in ('{"name": "f"}', '{"name": "fox"}', '{"name": "f", "parameters": "n"}', written(form, {"n": 3})):
        assert judge.accepts(bound, fits), fits
    for wrong in ('{"parameters": "n"}', written(form, {"n": "x"}), "hello"):
        assert not judge.accepts(bound, wrong), wrong


def test_definitions_are_found_from_within_a_whole_call(judge: Judge) -> None:
    said = {"type": "object", "properties": {"n": {"$ref": "#/$defs/one"}}, "required": ["n"]}
    tool = Tool("f", "", json.dumps({**said, "$defs": {"one": {"enum": [1, 2]}}}))
    bound = make_constraint(Split(form=forms.LLAMA, tools=(tool,)), REQUIRED, None, tokens={}, is_split=True)
    assert judge.accepts(bound, written(forms.LLAMA, {"n": 2}))
    assert not judge.accepts(bound, written(forms.LLAMA, {"n": 3}))


STRICT = tuple(replace(tool, is_strict=True) for tool in TOOLS)
MARKED = [form for form in SPELLED if form.notation is not Notation.BARE and form.headers is None]


@pytest.mark.parametrize("form", MARKED, ids=lambda form: form.label)
@pytest.mark.parametrize("thought", [None, THINK])
def test_calls_of_strict_tools_are_bound_wherever_they_come(
    judge: Judge, form: CallForm, thought: tuple[str, str] | None
) -> None:
    split = Split(form=form, tools=STRICT, reasoning_markers=thought)
    bound = make_constraint(split, ToolChoice(), None, tokens={}, is_split=True)
    right, wrong = written(form, {"n": 3}), written(form, {"n": "x"})
    before = ["", "Let me see.\n\n", *(["<think>hm {</think>\n\n"] if thought else [])]
    for text in before:
        assert judge.accepts(bound, f"{text}{right}"), text
        assert not judge.accepts(bound, f"{text}{wrong}"), text
    for text in (*before[1:], "", '{"n": "x"}', "a < b\nand so [on]"):
        assert judge.accepts(bound, text), text
    assert judge.accepts(bound, f"Well.{written(form, {'n': 3}, {'n': 4})}") is not form.is_one_call


@pytest.mark.parametrize("marker", [A_CONTROL, NORMAL])
def test_a_marker_that_is_a_token_ends_free_text(judge: Judge, marker: int) -> None:
    split = Split(form=forms.HERMES, tools=STRICT)
    bound = make_constraint(split, ToolChoice(), None, tokens={"<tool_call>": marker}, is_split=True)
    assert judge.accepts(bound, "Well. ", marker, '\n{"name": "f", "arguments": {"n": 3}}\n</tool_call>')
    assert not judge.accepts(bound, "Well. ", marker, '\n{"name": "f", "arguments": {"n": "x"}}\n</tool_call>')
    assert not judge.accepts(bound, 'Well. <tool_call>\n{"name": "f", "arguments": {"n": "x"}}\n</tool_call>')
    assert judge.accepts(bound, "Well.")


def test_strict_calls_on_harmony_s_channels(judge: Judge) -> None:
    split = Split(form=forms.HARMONY, tools=STRICT)
    tokens = {name: 400 + index for index, name in enumerate(list_markers(split))}
    start, channel, message, constrain, end = (tokens[name] for name in list_markers(split)[:5])
    bound = make_constraint(split, ToolChoice(), None, tokens=tokens, is_split=True)
    thought = (channel, "analysis", message, "hm", end, start, "assistant")
    said = (channel, "commentary", message, "Let me see.", end, start, "assistant")
    call = (channel, "commentary to=functions.f ", constrain, "json", message)
    for before in ((), thought, said, (*thought, *said)):
        assert judge.accepts(bound, *before, *call, '{"n": 3}')
        assert not judge.accepts(bound, *before, *call, '{"n": "x"}')
    assert judge.accepts(bound, *thought, channel, "final", message, 'Any {"text"}.')
    assert make_constraint(replace(split, in_text=True), ToolChoice(), None, tokens=tokens, is_split=True) is None


@pytest.mark.parametrize("form", [forms.MUSE, forms.SOLAR], ids=lambda form: form.label)
def test_strict_calls_in_messages_of_their_own(judge: Judge, form: CallForm) -> None:
    split, headers = Split(form=form, tools=STRICT), form.headers
    assert headers is not None
    tokens = {name: 400 + index for index, name in enumerate(list_markers(split)) if name.startswith("<|")}
    names = re.compile(f"({'|'.join(map(re.escape, sorted(tokens, key=len, reverse=True)))})")

    def accepts(bound: Constraint | None, text: str) -> bool:
        return judge.accepts(bound, *(tokens.get(part, part) for part in names.split(text) if part))

    thought, said = (
        headers.reasoning + "hm" + headers.next_header,
        headers.preamble + "Let me see." + headers.next_header,
    )
    right, wrong = written(form, {"n": 3}), written(form, {"n": "x"})
    for choice in (ToolChoice(), REQUIRED):
        bound = make_constraint(split, choice, None, tokens=tokens, is_split=True)
        befores = ["", thought] if choice is REQUIRED else ["", thought, said, thought + said]
        for before in befores:
            assert accepts(bound, before + right) and accepts(bound, before + written(form, {"n": 3}, {"n": 4}))
            assert not accepts(bound, before + wrong)
        assert accepts(bound, f'{thought}{headers.text}Any {{"text"}}.') is (choice is not REQUIRED)
    assert make_constraint(replace(split, in_text=True), ToolChoice(), None, tokens=tokens, is_split=True) is None
    wanted = make_constraint(split, ToolChoice(), Constraint(Syntax.JSON_OBJECT), tokens=tokens, is_split=True)
    assert accepts(wanted, f"{thought}{headers.text}{{}}") and accepts(wanted, right)
    assert not accepts(wanted, "{}") and not accepts(wanted, headers.text + "no")


@pytest.mark.parametrize("choice", [ToolChoice(), REQUIRED])
def test_a_custom_tool_s_expression_binds_its_text(judge: Judge, choice: ToolChoice) -> None:
    """Character by character, whatever JSON escapes."""
    format = CustomFormat(type="grammar", syntax="regex", definition='[a-z"]+\\n|#')
    tool = read_custom_tool(CustomGiven(name="f", format=format))
    split = Split(form=forms.HERMES, tools=(tool,))
    bound = make_constraint(split, choice, None, tokens={}, is_split=True)
    for text in ('say "a"\n', "a\n", "#"):
        fits = text != 'say "a"\n'
        assert judge.accepts(bound, written(forms.HERMES, {"input": text})) is fits
    for wrong in ("a", "A\n", "#a\n", ""):
        assert not judge.accepts(bound, written(forms.HERMES, {"input": wrong}))
    assert judge.accepts(bound, written(forms.HERMES, {"input": 'q"\n'}))


def test_what_is_framed_as_said_may_be_framed(judge: Judge) -> None:
    split = Split(form=forms.COMMAND, tools=STRICT, reasoning_markers=THINK, text_markers=("<r>", "</r>"))
    tokens = {"<r>": A_CONTROL, "</r>": NORMAL, "<|START_ACTION|>": NORMAL + 1}
    bound = make_constraint(split, ToolChoice(), None, tokens=tokens, is_split=True)
    call = written(forms.COMMAND, {"n": 3}).removeprefix("<|START_ACTION|>")
    assert judge.accepts(bound, "<think>hm</think>", A_CONTROL, "Yes.", NORMAL)
    assert judge.accepts(bound, A_CONTROL, "Yes.", NORMAL, NORMAL + 1, call)


def test_strict_tools_bind_nothing_where_nothing_marks_calls_or_none_is_read() -> None:
    for form in (forms.LLAMA, forms.LLAMA_4, forms.LLAMA_4_PYTHON):
        assert make_constraint(Split(form=form, tools=STRICT), ToolChoice(), None, tokens={}, is_split=True) is None
    assert (
        make_constraint(Split(form=forms.HERMES, tools=STRICT), ToolChoice(), None, tokens={}, is_split=False) is None
    )


ODD = {
    "a format": {"type": "string", "format": "password"},
    "negation": {"type": "string", "not": {"const": "x"}},
    "one of": {"oneOf": [{"type": "string"}, {"enum": ["x"]}]},
    "unique items": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
}


@pytest.mark.parametrize("form", MARKED, ids=lambda form: form.label)
@pytest.mark.parametrize("name", ODD)
def test_what_a_schema_says_that_cannot_be_bound_binds_nothing(model: LlamaModel, form: CallForm, name: str) -> None:
    tool = Tool("f", "", json.dumps({"type": "object", "properties": {"a": ODD[name]}, "required": ["a"]}))
    bound = make_constraint(Split(form=form, tools=(tool,)), REQUIRED, None, tokens={}, is_split=True)
    assert bound is not None
    model.constraints.check(bound)
    strict = Split(form=forms.HERMES, tools=(replace(tool, is_strict=True),))
    refused = make_constraint(strict, REQUIRED, None, tokens={}, is_split=True)
    assert refused is not None
    with pytest.raises(RequestError):
        model.constraints.check(refused)


@pytest.mark.parametrize(
    ("expected", "reason"),
    [
        ("plain", "plain"),
        ("at 6(9): failed to compile JSON schema: Unknown format: x\n   4 | call", "Unknown format: x"),
        ("at 1(2): no rule\n", "no rule"),
        ("regex parse error:\n  ^(?=a)\n   ^^^\nerror: look-around\n", "regex parse error: look-around"),
        ("regex parse error:", "regex parse error:"),
    ],
)
def test_reasons_are_one_line(expected: str, reason: str) -> None:
    assert extract_reason(expected) == reason


def test_the_reason_of_a_pattern_is_found_in_what_the_library_says(model: LlamaModel) -> None:
    with pytest.raises(RequestError, match=r"look-around, .* is not supported"):
        model.constraints.check(schema(type="string", pattern="(?=a)b"))


# ---- response formats as Zod and Pydantic write them
TEXT = {"type": "string"}
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
FORMATS = ("path", "binary", "password", "decimal", "url", "regex", "cuid")
UNBOUND: dict[str, tuple[dict[str, object], str]] = {  # what of a field cannot be bound, and a value that fits the rest
    "propertyNames": ({"type": "object", "propertyNames": {"enum": ["k"]}, "additionalProperties": TEXT}, '{"k": "v"}'),
    "uniqueItems": ({"type": "array", "items": TEXT, "uniqueItems": True}, '["v", "w"]'),
    "not": ({**TEXT, "not": {"const": "x"}}, '"v"'),
    "oneOf": ({"oneOf": [{"type": "object", "properties": {name: TEXT}} for name in "ab"]}, '{"a": "v"}'),
    "dependentRequired": ({"type": "object", "properties": {"a": TEXT}, "dependentRequired": {"a": ["b"]}}, "{}"),
    "look-around": ({**TEXT, "format": "email", "pattern": EMAIL}, '"a@b.de"'),
    **{f"Unknown format: {name}": ({**TEXT, "format": name}, '"v"') for name in FORMATS},
}
SURE = {"type": "string", "pattern": "^[a-z]{2}$"}


def format_with(field: object, **more: object) -> Constraint:
    fields = {"sure": SURE, "odd": field}
    return schema(type="object", properties=fields, required=["sure", "odd"], additionalProperties=False, **more)


@pytest.mark.parametrize("name", UNBOUND)
def test_what_a_format_says_that_cannot_be_bound_binds_nothing(model: LlamaModel, judge: Judge, name: str) -> None:
    """All else stays bound, other patterns too."""
    field, fits = UNBOUND[name]
    bound = AnswerConstraint(model.constraints).fit_text(format_with(field))
    assert judge.accepts(bound, f'{{"sure": "ab", "odd": {fits}}}')
    for wrong in (f'{{"sure": "abc", "odd": {fits}}}', f'{{"odd": {fits}}}', '{"sure": "ab", "odd": 1}', fits):
        assert not judge.accepts(bound, wrong), wrong


@pytest.mark.parametrize("name", UNBOUND)
def test_in_a_strict_format_it_is_refused_by_its_name(model: LlamaModel, name: str) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        AnswerConstraint(model.constraints).fit_text(replace(format_with(UNBOUND[name][0]), is_strict=True))
    assert caught.value.parameter == "response_format"


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("dialect", ["https://json-schema.org/draft-07/schema", "urn:mine", "https://a.example/b", ""])
def test_keywords_without_effect_do_not_disturb(model: LlamaModel, judge: Judge, dialect: str, is_strict: bool) -> None:
    record = {"type": "object", "propertyNames": TEXT, "additionalProperties": TEXT, "$schema": dialect}
    many = {"type": "array", "items": record, "uniqueItems": False}
    wanted = replace(format_with(many, **{"$schema": dialect}), is_strict=is_strict)
    bound = AnswerConstraint(model.constraints).fit_text(wanted)
    assert judge.accepts(bound, '{"sure": "ab", "odd": [{"k": "v"}]}')
    assert not judge.accepts(bound, '{"sure": "ab", "odd": [{"k": 1}]}')
    tool = Tool("f", "", wanted.source, is_strict=is_strict)
    call = make_constraint(Split(form=forms.HERMES, tools=(tool,)), REQUIRED, None, tokens={}, is_split=True)
    assert judge.accepts(call, written(forms.HERMES, {"sure": "ab", "odd": [{"k": "v"}]}))


@pytest.mark.parametrize("form", SPELLED, ids=lambda form: form.label)
def test_a_tool_of_a_server_is_called_by_its_whole_name(judge: Judge, form: CallForm) -> None:
    name = "mcp:files/read.all"
    if form.call.endswith("(«args»)") and form.notation is not Notation.JSON:
        pytest.skip("no name of Python's has these characters")
    split = Split(form=form, tools=(replace(TOOLS[0], name=name),))
    text = write_calls(form, [(name, {"n": 3})])
    assert judge.accepts(make_constraint(split, REQUIRED, None, tokens={}, is_split=True), text)
    parser = SplitText(split, lambda: "id")
    parts = [part for one in (*map(parser.push, text), parser.finish("")) for part in one.calls]
    assert [(call.name, json.loads(call.arguments)) for call in join_calls(parts)] == [(name, {"n": 3})]
