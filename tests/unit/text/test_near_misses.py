"""Calls that models write nearly right, in every form: no wrong argument, and a call wherever there is one reading."""

from __future__ import annotations

import itertools
import json
import random
import time

import pytest
from doubles.near_misses import Expected, Generator, NearMiss

from eaglelocal.core.tools import CallForm, Tool, join_calls
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms

NUM_QUICK, NUM_SLOW, NUM_SLOW_WHOLE = 12, 350, 1800  # of each form; of those that are read when they are whole
WHOLE = (forms.LFM, forms.OLMO, forms.LLAMA_4_PYTHON, forms.GEMMA)


def read(case: NearMiss, cuts: list[int]) -> tuple[str, list[tuple[str, str]]]:
    ids = map(str, itertools.count())
    parser = SplitText(case.split, lambda: next(ids))
    borders = [0, *sorted(cuts), len(case.answer)]
    events = [parser.push(case.answer[a:b]) for a, b in itertools.pairwise(borders)] + [parser.finish("")]
    calls = join_calls(part for event in events for part in event.calls)
    return "".join(event.text for event in events), [(call.name, call.arguments) for call in calls]


def find_fault(case: NearMiss, seed: int) -> str:
    """Return what is wrong with the reading of a near miss; empty if nothing is."""
    text, calls = read(case, [])
    length, draw = len(case.answer), random.Random(seed)
    for cuts in (range(1, length), draw.sample(range(length), min(5, length))):
        if read(case, [*cuts]) != (text, calls):
            return "another reading in pieces"
    whole = [(name, json.loads(arguments)) for name, arguments in calls if is_json(arguments)]
    truth = [("g", case.arguments)]
    if whole and not (is_same(whole, truth) and case.expected is not Expected.NONE):
        return "a wrong argument"
    if case.expected is Expected.ONE and not (whole and len(calls) == 1):
        return "no call"
    spelled = "".join(char for char in case.answer if not "\udc00" <= char <= "\udfff")
    if not calls and case.form.headers is None and text != spelled:
        return "a text that is lost"
    return ""


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def is_same(found: object, truth: object) -> bool:
    return json.dumps(found, sort_keys=True) == json.dumps(truth, sort_keys=True)


def list_faults(form: CallForm, number: int) -> list[str]:
    faults = []
    for seed in range(number):
        case = Generator(seed).make(form)
        if case is not None and (fault := find_fault(case, seed)):
            faults.append(f"{form.label} {seed} {case.kind}: {fault}: {case.answer!r} read as {read(case, [])}")
    return faults


def by_label(form: CallForm) -> str:
    return form.label


@pytest.mark.parametrize("form", forms.FORMS, ids=by_label)
def test_no_near_miss_is_read_wrong(form: CallForm) -> None:
    assert list_faults(form, NUM_QUICK) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", forms.FORMS, ids=by_label)
def test_no_near_miss_of_many_is_read_wrong(form: CallForm) -> None:
    """More than 10 000 in all."""
    assert list_faults(form, NUM_SLOW_WHOLE if form in WHOLE else NUM_SLOW) == []


# ---- as they were reported
PROPERTIES = {
    "s": {"type": "string"},
    "n": {"type": "integer"},
    "on": {"type": "boolean"},
    "refs": {"type": "array", "items": {"type": "string"}},
}
G = Tool("g", "", json.dumps({"type": "object", "properties": PROPERTIES, "required": []}))
AMBIGUOUS = (  # each may be read in two ways, or in none
    (forms.GEMMA, "<|tool_call>call:g{s:a, n:3}<tool_call|>", "a string may end in several places"),
    (forms.GEMMA, "<|tool_call>call:g{s:'a\\nb'}<tool_call|>", "a backslash may be an escape, or text"),
    (forms.GEMMA, "<|tool_call>call:g{x:True}<tool_call|>", "a word may be a literal or a string"),
    (forms.GEMMA, "<|tool_call>call:g{n:1}, on:true}<tool_call|>", "text follows the arguments"),
    (forms.LFM, "<|tool_call_start|>[g(s='it's', n='3')]<|tool_call_end|>", "a string may end in several places"),
    (
        forms.LFM,
        '<|tool_call_start|>[g(s="""a \\\n b""")]<|tool_call_end|>',
        "a backslash may continue its line, or be text",
    ),
    (forms.LFM, "<|tool_call_start|>[g(s=f(x))]<|tool_call_end|>", "a value may be code, or a string without quotes"),
    (
        forms.HERMES,
        '<tool_call>{"name": "g", "arguments": {"x": True}}</tool_call>',
        "a word may be a literal or a string",
    ),
    (forms.LLAMA_4_PYTHON, "[g('a', None)]", "arguments have no names"),
)
READ: tuple[tuple[CallForm, str, dict[str, object]], ...] = (
    (forms.GEMMA, "<|tool_call>call:g{s:'a, b: c'}<tool_call|>", {"s": "a, b: c"}),
    (forms.GEMMA, '<|tool_call>call:g{s:"a, b"}<tool_call|>', {"s": "a, b"}),
    (forms.GEMMA, "<|tool_call>call:g{refs:['a1'],on:True,n:007}<tool_call|>", {"refs": ["a1"], "on": True, "n": 7}),
    (forms.GEMMA, '<|tool_call>call:google:mcp:g{s:<|"|>a<|"|>}<tool_call|>', {"s": "a"}),
    (forms.GEMMA, "<|tool_call>call:g{s:a, b and c}<tool_call|>", {"s": "a, b and c"}),
    (forms.LFM, "<|tool_call_start|>[g(s='#define A \\\n  1')]<|tool_call_end|>", {"s": "#define A \\\n  1"}),
    (forms.LFM, "<|tool_call_start|>[g(n=007)]<|tool_call_end|>", {"n": 7}),
    (forms.LFM, "<|tool_call_start|>[g(s='it's', n=3)]<|tool_call_end|>", {"s": "it's", "n": 3}),
    (forms.LFM, "<|tool_call_start|>[g('a', 3, True)]<|tool_call_end|>", {"s": "a", "n": 3, "on": True}),
    (forms.LFM, '<|tool_call_start|>[{"name": "g", "arguments": {"n": 1}}]<|tool_call_end|>', {"n": 1}),
    (forms.HERMES, '<tool_call>{"name": "g", "arguments": {"s": "A \\\n1"}}</tool_call>', {"s": "A \\\n1"}),
    (forms.HERMES, '<tool_call>{"name": "g", "arguments": {"s": "say "hi" now"}}</tool_call>', {"s": 'say "hi" now'}),
    (forms.HERMES, "<tool_call>{'name': 'g', 'arguments': {'s': '{b'}}</tool_call>", {"s": "{b"}),
    (forms.MISTRAL_ARGS, '[TOOL_CALLS]g[ARGS]{"s": "a", "n": 007}', {"s": "a", "n": 7}),
    (forms.LLAMA, '{"name": "functions.g", "parameters": {"S": "a",}}', {"s": "a"}),
    (
        forms.CODER,
        '<tool_call><function="g"><parameter="N">007</parameter></function></tool_call>',
        {"n": 7},
    ),
)


@pytest.mark.parametrize(("form", "answer", "arguments"), READ)
def test_what_has_one_reading_is_a_call(form: CallForm, answer: str, arguments: dict[str, object]) -> None:
    case = NearMiss("", form, G, arguments, answer, Expected.ONE)
    assert find_fault(case, 0) == ""


@pytest.mark.parametrize(("form", "answer", "problem"), AMBIGUOUS)
def test_what_has_several_readings_stays_text_and_is_noted(form: CallForm, answer: str, problem: str) -> None:
    case = NearMiss("", form, G, {}, answer, Expected.NONE)
    assert find_fault(case, 0) == ""
    parser = SplitText(case.split, lambda: "id")
    found = parser.finish(answer)
    assert (found.calls, found.text, found.unread) == ((), answer, (f"{form.label}: {problem}",))


def test_a_part_of_arguments_that_stands_outside_ends_no_call() -> None:
    """A bracket too many in the middle: the call that was begun is not completed without its last argument."""
    for form, answer in (
        (forms.HERMES, '<tool_call>{"name": "g", "arguments": {"refs": ["a"]}, "n": 1}}</tool_call>'),
        (forms.MISTRAL_ARGS, '[TOOL_CALLS]g[ARGS]{"refs": ["a"]}, "n": 1}'),
        (
            forms.CODER,
            '<tool_call><function=g><parameter=refs>["a"]</parameter><parameter=n>1<parameter=s>b</parameter></function>'
            "</tool_call>",
        ),
    ):
        _, ((_, arguments),) = read(NearMiss("", form, G, {}, answer, Expected.NONE), [])
        assert arguments == '{"refs": ["a"]'


def test_many_quotes_are_given_up_soon() -> None:
    began = time.perf_counter()
    for text in ("a', " * 3000, "',s='" * 3000, "'" * 16_000):
        answer = f"<|tool_call_start|>[g(s='it's {text}')]<|tool_call_end|>"
        read(NearMiss("", forms.LFM, G, {}, answer, Expected.EITHER), [])
    assert time.perf_counter() - began < 10.0
