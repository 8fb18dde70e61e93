"""Constraints as llguidance compiles them over a real vocabulary: what fits, what does not, and how calls are bound."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eaglelocal.backend.constraint import MAX_KEPT, LlamaConstraints, grammar_of
from eaglelocal.backend.library import load_library
from eaglelocal.backend.model import Model
from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.tools import CallForm, Split, Tool, ToolChoice, ToolUse
from eaglelocal.errors import RequestError
from eaglelocal.text import call_forms as forms
from eaglelocal.text.families import markers_of
from eaglelocal.text.split_answer import SplitText
from eaglelocal.text.tool_grammar import callable_tools, constraint_of

DEMO = Path(__file__).parents[3] / "profiles" / "demo" / "guide-target.gguf"
TOOLS = (Tool("f", "", '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'), Tool("g.h"))
SPELLED = [form for form in forms.FORMS if form is not forms.HARMONY]
THINK = ("<think>", "</think>")
REQUIRED = ToolChoice(use=ToolUse.REQUIRED)
A_CONTROL, NORMAL = 1, 300  # tokens of the demo's vocabulary


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    model = Model(load_library(), DEMO)
    yield model
    model.close()


class Judge:
    """Says whether a text, or a text with tokens in it, is a whole answer."""

    def __init__(self, model: Model) -> None:
        self._vocabulary, self._constraints = model.vocabulary, model.constraints

    def accepts(self, constraint: Constraint | None, *parts: str | int) -> bool:
        assert constraint is not None
        matcher = self._constraints.matcher(constraint)
        tokens = [token for part in parts for token in ([part] if isinstance(part, int) else self._tokens(part))]
        return bool(matcher.consume_tokens(tokens)) and bool(matcher.is_accepting())

    def _tokens(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, add_special=False, parse_special=False)


@pytest.fixture(scope="module")
def judge(model: Model) -> Judge:
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


def test_expressions_and_grammars(judge: Judge) -> None:
    assert judge.accepts(Constraint(Syntax.REGEX, "(ja|nein)+"), "janein")
    assert not judge.accepts(Constraint(Syntax.REGEX, "(ja|nein)+"), "jane")
    assert judge.accepts(Constraint(Syntax.LARK, 'start: "a" x\nx: /[0-9]+/'), "a12")


def test_a_frame_counts_and_holds_its_answer() -> None:
    framed = Constraint(Syntax.REGEX, "a", 'start: "<" @answer ">"')
    first, second = json.loads(grammar_of(framed))["grammars"]
    assert first == {"lark_grammar": framed.frame} and second["name"] == "answer"
    with pytest.raises(RequestError, match="more than 131072"):
        grammar_of(replace(framed, frame="x" * 140_000))


def test_what_was_compiled_is_kept_for_a_while(model: Model) -> None:
    constraints = LlamaConstraints(model.constraints._handle, model.vocabulary)
    for index in range(2 * MAX_KEPT):
        constraints.check(Constraint(Syntax.REGEX, f"a{{{index + 1}}}"))
    assert len(constraints._compiled) == MAX_KEPT
    kept = Constraint(Syntax.REGEX, f"a{{{2 * MAX_KEPT}}}")
    one, two = constraints.matcher(kept), constraints.matcher(kept)
    one.consume_tokens(model.vocabulary.tokenize("aa", add_special=False, parse_special=False))
    assert np.any(np.frombuffer(two.compute_bitmask(), np.uint8))
    assert one is not two and not two.is_error()


# ---- calls
def written(form: CallForm, *calls: str) -> str:
    """Calls of f as a model of the family writes them."""
    key = "parameters" if form is forms.LLAMA else "arguments"
    objects = [f'{{"name": "f", "{key}": {arguments}}}' for arguments in calls]
    match form:
        case forms.MISTRAL_ARGS:
            return "".join(f"[TOOL_CALLS]f[ARGS]{arguments}" for arguments in calls)
        case forms.MISTRAL:
            return f"[TOOL_CALLS][{', '.join(objects)}]"
        case forms.LLAMA:
            return "; ".join(objects)
    return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)


@pytest.mark.parametrize("form", SPELLED)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_bound_in_the_form_that_is_read(judge: Judge, form: CallForm, parallel: bool) -> None:
    split = Split(form=form, tools=TOOLS, parallel=parallel)
    bound = constraint_of(split, replace(REQUIRED, parallel=parallel), None, tokens={}, is_split=True)
    one, two = written(form, '{"n": 3}'), written(form, '{"n": 3}', '{"n": 4}')
    assert judge.accepts(bound, one)
    assert judge.accepts(bound, two) is (parallel and form is not forms.LLAMA)
    for wrong in (written(form, '{"n": "3"}'), written(form, "{}"), one.replace("f", "x", 1), "hello", ""):
        assert not judge.accepts(bound, wrong)
    parser = SplitText(split, lambda: "id")
    (call,) = (*parser.push(one).calls, *parser.finish("").calls)
    assert (call.name, json.loads(call.arguments)) == ("f", {"n": 3})


@pytest.mark.parametrize("in_thought", [True, False])
@pytest.mark.parametrize("tokens", [{}, {"</think>": A_CONTROL}])
def test_a_thought_may_stand_before(judge: Judge, in_thought: bool, tokens: dict[str, int]) -> None:
    split = Split(form=forms.HERMES, thought=THINK, in_thought=in_thought, tools=TOOLS)
    opening: list[str | int] = [] if in_thought else ["<think>"]
    thought = [*opening, 'hm {"n": <b>', tokens.get("</think>", "</think>"), "\n\n"]
    calls = constraint_of(split, REQUIRED, None, tokens=tokens, is_split=True)
    call = written(forms.HERMES, '{"n": 3}')
    assert judge.accepts(calls, *thought, call)
    assert judge.accepts(calls, call) is not in_thought
    wanted = schema(type="object", properties={"a": {"type": "integer"}}, required=["a"])
    answer = constraint_of(split, ToolChoice(), wanted, tokens=tokens, is_split=True)
    assert judge.accepts(answer, *thought, '{"a": 1}')
    assert judge.accepts(answer, *thought, call)
    assert not judge.accepts(answer, *thought, '{"a": "x"}')


def test_a_marker_that_is_a_token_is_asked_for_as_one(judge: Judge) -> None:
    split = Split(form=forms.MISTRAL_ARGS, tools=TOOLS)
    for token in (A_CONTROL, NORMAL):
        bound = constraint_of(split, REQUIRED, None, tokens={"[TOOL_CALLS]": token}, is_split=True)
        assert judge.accepts(bound, token, 'f[ARGS]{"n": 3}')
        assert not judge.accepts(bound, '[TOOL_CALLS]f[ARGS]{"n": 3}')


def test_harmony_binds_channels(judge: Judge) -> None:
    split = Split(form=forms.HARMONY, tools=TOOLS)
    tokens = {name: 400 + index for index, name in enumerate(markers_of(split))}
    start, channel, message, constrain, end = (tokens[name] for name in markers_of(split)[:5])
    thought = (channel, "analysis", message, "hm", end, start, "assistant")
    call = (channel, "commentary to=functions.f ", constrain, "json", message, '{"n": 3}')
    bound = constraint_of(split, REQUIRED, None, tokens=tokens, is_split=True)
    assert judge.accepts(bound, *call) and judge.accepts(bound, *thought, *call)
    wanted = constraint_of(split, ToolChoice(), Constraint(Syntax.JSON_OBJECT), tokens=tokens, is_split=True)
    assert judge.accepts(wanted, *thought, channel, "final", message, "{}") and judge.accepts(wanted, *call)
    assert not judge.accepts(wanted, "{}")


def test_what_is_bound_when(judge: Judge) -> None:
    wanted = Constraint(Syntax.JSON_OBJECT)
    for form, is_split in itertools.product(forms.FORMS, (True, False)):
        split = Split(form=form, tools=TOOLS)
        assert constraint_of(split, ToolChoice(), None, tokens={}, is_split=is_split) is None
        if not is_split:
            assert constraint_of(split, ToolChoice(), wanted, tokens={}, is_split=False) is wanted
    llama = constraint_of(Split(form=forms.LLAMA, tools=TOOLS), ToolChoice(), wanted, tokens={}, is_split=True)
    assert judge.accepts(llama, '{"b": 1}')  # a call of Llama's would look the same: there are none


def test_which_tools_may_be_called() -> None:
    assert callable_tools(TOOLS, ToolChoice()) == TOOLS
    assert callable_tools(TOOLS, ToolChoice(use=ToolUse.NONE)) == ()
    assert callable_tools(TOOLS, replace(REQUIRED, name="g.h")) == TOOLS[1:]
    for tools, choice in ((TOOLS, replace(REQUIRED, name="x")), ((), REQUIRED)):
        with pytest.raises(RequestError):
            callable_tools(tools, choice)
