"""Families with their own answer formats: an answer that a template renders is parsed back.

Each answer is taken from what its family's template (in essential form) writes of an earlier turn, and from how
these models answer.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, reduce

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Message
from eaglelocal.core.tools import CallForm, Split, Tool, ToolCall, join_calls
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import detect_family, list_markers
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.templates.template_messages import read_prefill, reopen_reasoning
from eaglelocal.text.tool_calls import call_forms as forms

WRITE = {"type": "object", "properties": {"path": {"type": "string"}, "times": {"type": "integer"}}}
TOOLS = (Tool("write", "writes a file", json.dumps(WRITE)), Tool("clock", "", "{}"))
QUESTION = Message("user", "Well?")
CALLS = (ToolCall("call_0", "write", '{"path": "/a b", "times": 2}'), ToolCall("call_1", "clock", "{}"))
FAMILIES: dict[str, tuple[str, CallForm, str, str]] = {  # template, form, and what stands before and behind an answer
    "muse": (templates.MUSE, forms.MUSE, "<|start|>assistant", "<|eot|>"),
    "hy": (templates.HY, forms.HY, "<｜hy_Assistant:opensource｜>", "<｜hy_eos:opensource｜>"),
    "minicpm": (templates.MINICPM, forms.MINICPM, "<|im_start|>assistant\n", "<|im_end|>"),
    "apertus": (templates.APERTUS, forms.APERTUS, "<|assistant_start|>", "<|user_start|>"),
    "solar": (templates.SOLAR, forms.SOLAR, "<|begin|>assistant", "<|begin|>user"),
}
TAGS = ("<atem:", "</atem:", "<function ", "</function>")  # which are no tokens

Found = tuple[str, str, list[tuple[str, object]]]  # thought, text, calls


def split_of(name: str, **fields: object) -> Split:
    return replace(detect_family(FAMILIES[name][0]).make_split(), tools=TOOLS, **fields)  # type: ignore[arg-type]


def read(split: Split, answer: str, *, is_coded: bool = True) -> Found:
    """`is_coded`: markers are control tokens, if they can be. Letter by letter, and at once."""
    if is_coded:
        for index, name in sorted(enumerate(list_markers(split)), key=lambda found: -len(found[1])):
            answer = answer if name.startswith(TAGS) else answer.replace(name, make_control_char(index))
    found = [_read(split, parts) for parts in ([answer], list(answer))]
    assert found[0] == found[1]
    return found[0]


def _read(split: Split, parts: list[str], *, loads: Callable[[str], object] = json.loads) -> Found:
    """`loads`: what is cut short is no JSON."""
    ids = map(str, itertools.count())
    parser = SplitText(split, lambda: next(ids))
    events = [*(parser.push(part) for part in parts), parser.finish("")]
    calls = join_calls(part for one in events for part in one.calls)
    texts = "".join(one.reasoning for one in events), "".join(one.text for one in events)
    return *texts, [(call.name, loads(call.arguments)) for call in calls]


def answer_of(name: str, **said: object) -> str:
    """What the template writes of an answer: from where the prompt ends to where the model does."""
    source, _, begin, end = FAMILIES[name]
    answer = Message("assistant", **{"content": "", **said})  # type: ignore[arg-type]
    text = render_in_process(source).render([QUESTION, answer, QUESTION], tools=TOOLS)
    before, _, written = text.partition(begin)
    assert "Well?" in before and written.endswith("Well?" + text.rpartition("Well?")[2])
    return written.rpartition("Well?")[0].rpartition(end)[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_template_decides_the_family(name: str) -> None:
    source, form, *_ = FAMILIES[name]
    family = detect_family(source)
    assert family.form is form and family.takes_tools and not render_in_process(source).tools_note
    assert "write" in render_in_process(source).render([QUESTION], tools=TOOLS)


@pytest.mark.parametrize("is_coded", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_that_a_template_writes_are_read(name: str, is_coded: bool) -> None:
    _, _, calls = read(split_of(name), answer_of(name, tool_calls=CALLS), is_coded=is_coded)
    assert calls == [("write", {"path": "/a b", "times": 2}), ("clock", {})]


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "apertus"])  # which shows none of earlier ones
def test_thoughts_that_a_template_writes_are_read(name: str) -> None:
    thought, text, calls = read(split_of(name), answer_of(name, reasoning="I see.", tool_calls=CALLS[1:]))
    assert (thought, text, calls) == ("I see.", "", [("clock", {})])
    assert read(split_of(name), answer_of(name, reasoning="I see.", content="So."))[:2] == ("I see.", "So.")


# ---- answers as they come
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="write">\n<atem:parameter name="times">1</atem:parameter>\n'
    "</atem:invoke>\n</atem:function_calls>"
)
ONE = [("write", {"times": 1})]
NEXT = "<|eom|><|start|>assistant"
ANSWERS: dict[str, tuple[str, str, Found]] = {
    "an answer": ("muse", " to=user<|message|>Hello!\nWell?", ("", "Hello!\nWell?", [])),
    "thought and answer": (
        "muse",
        f" to=self<|message|>hm\n{NEXT} to=user<|message|>Hello!",
        ("hm", "Hello!", []),
    ),
    "two thoughts": (
        "muse",
        f" to=self<|message|>hm{NEXT} to=self<|message|>, so{NEXT} to=user<|message|>x",
        ("hm, so", "x", []),
    ),
    "a call": ("muse", f" to=write<|message|>{ATEM}", ("", "", ONE)),
    "text, then a call": (
        "muse",
        f" to=user<|message|>I write.{NEXT} to=write<|message|>{ATEM}",
        ("", "I write.", ONE),
    ),
    "two calls": ("muse", f" to=write<|message|>{ATEM}{NEXT} to=write<|message|>{ATEM}", ("", "", ONE * 2)),
    "a call that is quoted": ("muse", f" to=user<|message|>Write:\n{ATEM}", ("", f"Write:\n{ATEM}", [])),
    "a call within a thought": (
        "muse",
        f" to=self<|message|>{ATEM}{NEXT} to=user<|message|>No.",
        (ATEM, "No.", []),
    ),
    "no recipient is named": ("muse", "<|message|>Hello!", ("", "Hello!", [])),
    "no header at all": ("muse", "tomorrow", ("", "tomorrow", [])),
    "solar's thought and text": (
        "solar",
        "<|think|>hm<|end|><|begin|>assistant<|content|>Hello!",
        ("hm", "Hello!", []),
    ),
    "words before a header": ("muse", f"Well to=write<|message|>{ATEM}", ("", f"Well to=write{ATEM}", [])),
    "solar without a header": ("solar", "Hello!", ("", "Hello!", [])),
    "solar, a thought without its end": ("solar", "<|think|>hm \n<|content|>\nHello!", ("hm", "Hello!", [])),
    "solar, a thought behind a call": (
        "solar",
        "<|tool_calls|><|tool_call:begin|>a<|tool_call:name|>clock<|tool_call:args|>{}<|tool_call:end|>So.\n<|end|>"
        "<|begin|>assistant<|think|>hm<|end|>",
        ("hm", "So.", [("clock", {})]),
    ),
    "hy: behind a thought that the prompt begins": (
        "hy",
        "hm</think:opensource>Well.<tool_calls:opensource>\n<tool_call:opensource>clock<tool_sep:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        ("hm", "Well.", [("clock", {})]),
    ),
    "minicpm: quotes around a text": (
        "minicpm",
        '<function name="write"><param name="path"><![CDATA[<a></param></function>\n]]></param>'
        '<param name="times">3</param></function>',
        ("", "", [("write", {"path": "<a></param></function>\n", "times": 3})]),
    ),
    "minicpm: a text that begins as quotes do": (
        "minicpm",
        '<function name="write"><param name="path"><![a]</param></function>',
        ("", "", [("write", {"path": "<![a]"})]),
    ),
    "minicpm: a page about functions": (
        "minicpm",
        'In HTML <function name="x" is none.',
        ("", 'In HTML <function name="x" is none.', []),
    ),
    "apertus": (
        "apertus",
        '<|inner_prefix|>hm<|inner_suffix|><|tools_prefix|>[{"write": {"times": 1}}]<|tools_suffix|>[ok] I made it up',
        ("hm", "", ONE),
    ),
    "apertus, which goes on": (
        "apertus",
        '<|tools_prefix|>[{"write": {"times": 1}}]<|tools_suffix|><|tools_prefix|>[{"clock": {}}] I made it up',
        ("", "", ONE),
    ),
    "apertus, within a thought": (
        "apertus",
        '<|inner_prefix|>hm<|tools_prefix|>[{"write": {"times": 1}}]<|tools_suffix|>',
        ("hm", "", ONE),
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_taken_apart(name: str) -> None:
    family, answer, found = ANSWERS[name]
    assert read(split_of(family, in_reasoning=name.startswith("hy: behind")), answer) == found


WORDS = (" to=", "self", "user", "write", "hm", "So.", " ", "\n", "<", "</", "{}", "]", "]]>", '[{"clock": {}}]')


@cache
def pieces_of(name: str) -> tuple[Split, st.SearchStrategy[list[str]]]:
    """Words, markers as they are spelled and as tokens, headers, whole calls."""
    split = split_of(name)
    codes = {marker: make_control_char(index) for index, marker in enumerate(list_markers(split))}
    headers = split.form.headers if split.form else None
    written = [
        answer_of(name, tool_calls=CALLS),
        *((headers.reasoning, headers.text, headers.next_header) if headers else ()),
    ]
    coded = [reduce(lambda text, code: text.replace(*code), codes.items(), text) for text in written]
    return split, st.lists(st.sampled_from([*WORDS, *codes, *codes.values(), *written, *coded]), max_size=8)


@pytest.mark.parametrize("name", FAMILIES)
@examples(300)
@given(st.data())
def test_no_answer_depends_on_how_it_is_cut(name: str, data: st.DataObject) -> None:
    split, pieces = pieces_of(name)
    answer = "".join(data.draw(pieces))
    assert _read(split, [answer], loads=str) == _read(split, list(answer), loads=str)


def test_what_a_person_is_reported_of_markers_is_text() -> None:
    """Control tokens mark; what is spelled beside them does not."""
    split = split_of("muse")
    message, spelled = make_control_char(list_markers(split).index("<|message|>")), "Write <|eom|> and <|start|>."
    assert read(split, f" to=user{message}{spelled}", is_coded=False) == ("", spelled, [])


@pytest.mark.parametrize(("name", "spelled"), [("muse", "Write <|eom|> so."), ("solar", "Write <|content|> so.")])
def test_it_is_text_before_any_control_token_has_come(name: str, spelled: str) -> None:
    split = split_of(name)
    tokens = replace(split, control_tokens=tuple(enumerate(list_markers(split))))
    assert read(tokens, spelled, is_coded=False) == ("", spelled, [])
    assert read(replace(tokens, in_text=True), spelled, is_coded=False) == ("", spelled, [])


def test_texts_are_reported_as_they_come() -> None:
    """Also where they could stand in quotes, from the first letter on that says that they do not."""
    parser = SplitText(split_of("minicpm"), lambda: "id")
    answer = '<function name="write"><param name="path">/a b'
    assert "".join(part.arguments for letter in answer for part in parser.push(letter).calls) == '{"path": "/a b'
    split = split_of("muse")
    parser = SplitText(split, lambda: "id")
    assert "".join(parser.push(letter).text for letter in " to=user<|message|>Hello") == "Hello"


def test_answers_are_framed_as_in_the_template() -> None:
    """Command R7B says <|START_RESPONSE|> where its successor says <|START_TEXT|>."""
    for word in ("TEXT", "RESPONSE"):
        split = detect_family(f"tools<|START_THINKING|><|START_ACTION|><|START_{word}|><|END_{word}|>").make_split()
        answer = f"<|START_THINKING|>hm<|END_THINKING|><|START_{word}|>So.<|END_{word}|>"
        assert read(replace(split, tools=TOOLS), answer) == ("hm", "So.", [])


# ---- beginnings of answers
def test_an_answer_goes_on_within_its_message() -> None:
    begun = (QUESTION, Message("assistant", "Because ("))
    prompt = render_in_process(templates.MUSE).render(begun, continues=True)
    assert prompt.endswith("<|start|>assistant to=user<|message|>Because (")
    assert read(split_of("muse", in_text=True), f"x){NEXT} to=write<|message|>{ATEM}") == ("", "x)", ONE)


def test_a_thought_goes_on_within_its_message() -> None:
    family = detect_family(templates.MUSE)
    beginning = read_prefill((QUESTION, Message("assistant", "", reasoning="so")), family)
    assert beginning.reasoning == "so"
    assert reopen_reasoning(family, "<|start|>assistant") == "<|start|>assistant to=self<|message|>"
    assert read(split_of("muse", in_reasoning=True), f" far.{NEXT} to=user<|message|>Yes.") == ("far.", "Yes.", [])


def test_hy_thinks_where_it_is_asked_to() -> None:
    template = render_in_process(templates.HY)
    assert template.family.ends_in_reasoning(template.render([QUESTION], values={"reasoning_effort": "high"}))
    assert not template.family.ends_in_reasoning(template.render([QUESTION]))
