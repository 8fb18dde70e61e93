"""Calls drawn at random from the grammars of required calls: each is read as a call, and its arguments fit the schema.

A grammar must not admit what the reader may read in another way, such as a backslash before a line break in Python.
"""

from __future__ import annotations

import itertools
import json
import random

import pytest
from doubles.tiers import some_of
from llguidance import LLMatcher, LLTokenizer

from eaglelocal.core.tools import CallForm, Notation, Split, Tool, ToolChoice, ToolUse, join_calls
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.tool_grammar import make_constraint

BYTES = LLTokenizer("byte")
REQUIRED = ToolChoice(use=ToolUse.REQUIRED, parallel=False)
SCHEMA = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "x": {"type": "number"},
        "on": {"type": "boolean"},
        "refs": {"type": "array", "items": {"type": "string"}},
        "opts": {"type": "object", "properties": {"word": {"type": "string"}}, "additionalProperties": False},
        "unit": {"enum": ["C", "F"]},
        "maybe": {"type": ["string", "null"]},
    },
    "required": ["s", "n"],
    "additionalProperties": False,
}
TOOL = Tool("g", "", json.dumps(SCHEMA))
# what readers may stumble over, wherever the grammar admits it
SNIPPETS = (
    "\\\n", "\\", "\n", "'", '"', "`", ",", ", n=3", "n: 3, ", '", "n": 3', "', n=3", "007", "True", "None",
    "null", "}", "]", ")", "),", "a", "it's", "\\x4", "\\N{a}", "\\d", "\\/", "\\u00e9", "<", ">", "</tool_call>",
    "<|tool_call|>", " ", "\t", "<parameter=n>", "</parameter>", "<parameter=n>\n1\n</parameter>\n", "</function>",
    "<arg_key>n</arg_key>", '<|"|>', "<tool_call|>", "1", "0", ".5", "e9", "True", "é", "```", "“", "[", "{",
    "google:g(", '<parameter name="n">', "</parameter>\n<parameter", "</invoke>", "refs=",
)  # fmt: skip
CLOSERS = ('<|"|>', "'", '"', "}", "]", ")", "0", ",", ">", "\n")
NUM_SNIPPETS, NUM_BYTES = 14, 3000


def draw(matcher: LLMatcher, form: CallForm, seed: int) -> str:
    """Return a text that the grammar admits: snippets while there are some to come, then the a short way to the end."""
    choose, written = random.Random(f"{form.label} {seed}"), b""
    # between Python's brackets JSON may spell the end of the block, which is a token of its own in such models
    end = "" if form.call.endswith(f"({forms.ARGS})") else form.end
    closers = [*CLOSERS, *filter(None, (end, form.tags[1], form.value.rpartition(forms.VALUE)[2].rstrip("\n")))]
    for step in range(NUM_BYTES):
        if matcher.is_stopped() or (matcher.is_accepting() and (step > NUM_SNIPPETS or choose.random() < 0.5)):
            break
        may_wander = step < NUM_SNIPPETS and choose.random() < 0.6
        snippets = SNIPPETS if may_wander else closers
        options = choose.sample(snippets, len(snippets))
        for option in options:
            tokens = BYTES.tokenize_bytes(option.encode())
            if matcher.deep_copy().try_consume_tokens(tokens) == len(tokens):
                matcher.try_consume_tokens(tokens)
                written += option.encode()
                break
        else:
            forced = matcher.compute_ff_bytes() or bytes([choose.choice(list_admitted(matcher))])
            matcher.try_consume_tokens(BYTES.tokenize_bytes(forced))
            written += forced
    return written.decode("utf-8", "ignore") if matcher.is_stopped() or matcher.is_accepting() else ""


def list_admitted(matcher: LLMatcher) -> list[int]:
    """Return the bytes that may follow; letters and digits alone if there are any."""
    mask = matcher.compute_bitmask()
    found = [byte for byte in range(128) if mask[byte // 8] >> byte % 8 & 1]
    return [byte for byte in found if chr(byte).isalnum()] or found


def make_matcher(grammar: str) -> LLMatcher:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def fits_schema(arguments: str) -> bool:
    try:
        found = json.loads(arguments)
    except ValueError:
        return False
    schema = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA))
    text = json.dumps({key: found[key] for key in SCHEMA["properties"] if key in found}, ensure_ascii=False)
    tokens, matcher = BYTES.tokenize_bytes(text.encode()), make_matcher(schema)
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def list_misread(form: CallForm, number: int) -> list[str]:
    split = Split(form=form, tools=(TOOL,))
    constraint = make_constraint(split, REQUIRED, None, tokens={}, is_split=True)
    assert constraint is not None
    prototype = make_matcher(LLMatcher.grammar_from_lark(constraint.source))
    misread, num_drawn = [], 0
    for seed in range(number):
        answer = draw(prototype.deep_copy(), form, seed)
        num_drawn += bool(answer)
        ids = map(str, itertools.count())
        calls = join_calls(SplitText(split, lambda ids=ids: next(ids)).finish(answer).calls) if answer else []  # type: ignore[misc]
        if answer and not (len(calls) == 1 and calls[0].name == "g" and fits_schema(calls[0].arguments)):
            misread.append(f"{answer!r} read as {calls}")
    assert num_drawn > number / 3
    return misread


FORMS = [form for form in forms.FORMS if form.notation is not Notation.HARMONY]


@pytest.mark.parametrize("form", some_of(FORMS, 8), ids=lambda form: form.label)
def test_what_a_grammar_admits_is_read_as_a_call(form: CallForm) -> None:
    assert list_misread(form, 15) == []
