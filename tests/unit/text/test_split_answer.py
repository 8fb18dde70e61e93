"""Answers split into thought, text and calls for every family; nothing is lost wherever the text is cut."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from doubles.property_tests import examples
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Request
from eaglelocal.core.sampling import GREEDY
from eaglelocal.core.tools import Split, Tool, join_calls
from eaglelocal.text.answer_text import AnswerText, Pieces
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import list_markers
from eaglelocal.text.reasoning.split_answer import SplitAnswerText, SplitText, make_answer_text
from eaglelocal.text.tool_calls import call_forms as forms

TOOLS = (
    Tool("get_weather", "weather", '{"type": "object", "properties": {"city": {"type": "string"}}}'),
    Tool("add", "sum", '{"type": "object", "properties": {"a": {"type": "integer"}, "note": {"type": "string"}}}'),
)
THINK = ("<think>", "</think>")
HERMES = Split(form=forms.HERMES, reasoning_markers=THINK, tools=TOOLS)
CODER = replace(HERMES, form=forms.CODER)
LLAMA = Split(form=forms.LLAMA, tools=TOOLS)
MISTRAL = Split(form=forms.MISTRAL_ARGS, reasoning_markers=("[THINK]", "[/THINK]"), tools=TOOLS)
HARMONY = Split(form=forms.HARMONY, tools=TOOLS)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
BARE = "<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
OSLO = ("get_weather", {"city": "Oslo"})

Calls = list[tuple[str, dict[str, object]]]


@dataclass(frozen=True)
class Read:
    """All output of an answer."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str], ...] = ()

    @property
    def parsed(self) -> Calls:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def coded(split: Split, text: str) -> str:
    """The text as the detokenizer gives it where all of the family's markers are control tokens."""
    for index, name in enumerate(list_markers(split)):
        text = text.replace(name, make_control_char(index))
    return text


def read(split: Split, pieces: Sequence[str]) -> Read:
    ids = map(str, itertools.count())
    parser = SplitText(split, lambda: next(ids))
    events = [*(parser.push(piece) for piece in pieces), parser.finish("")]
    calls = tuple((call.name, call.arguments) for call in join_calls(part for one in events for part in one.calls))
    return Read("".join(one.text for one in events), "".join(one.reasoning for one in events), calls)


# name: (family, answer, text, thought, calls)
ANSWERS: dict[str, tuple[Split, str, str, str, Calls]] = {
    "plain": (HERMES, " Hello,\n world <b>! ", " Hello,\n world <b>! ", "", []),
    "nothing": (HERMES, "", "", "", []),
    "thought": (HERMES, "<think>\nhm, <b> {\n</think>\n\nYes. ", "Yes. ", "hm, <b> {", []),
    "a thought without end": (HERMES, "<think>\nhm ", "", "hm ", []),
    "an empty thought": (HERMES, "<think>\n\n</think>\n\nYes", "Yes", "", []),
    "a thought begun by the prompt": (replace(HERMES, in_reasoning=True), "hm\n</think>\nYes", "Yes", "hm", []),
    "and begun again": (replace(HERMES, in_reasoning=True), "<think>hm</think>Yes", "Yes", "hm", []),
    "a marker later": (HERMES, "I say <think> and </think>.", "I say <think> and </think>.", "", []),
    "no thoughts known": (replace(HERMES, reasoning_markers=None), "<think>a</think>b", "<think>a</think>b", "", []),
    "call": (HERMES, CALL, "", "", [OSLO]),
    "thought and calls": (HERMES, f"<think>\nhm\n</think>\n\n{CALL}\n{CALL}\n", "", "hm", [OSLO, OSLO]),
    "text and call": (HERMES, f"I look.\n{CALL}", "I look.", "", [OSLO]),
    "a closing marker before a call": (HERMES, f"I look.\n</think>\n\n{CALL}", "I look.", "", [OSLO]),
    "after a thought, too": (HERMES, f"<think>hm</think>I look.</think>{CALL}", "I look.", "hm", [OSLO]),
    "a closing marker before text": (HERMES, f"I</think> look.\n{CALL}", "I</think> look.", "", [OSLO]),
    "a closing marker at the end": (HERMES, "I look.</think>\n", "I look.</think>\n", "", []),
    "both markers in text": (HERMES, f"Use <think>so</think>{CALL}", "Use <think>so</think>", "", [OSLO]),
    "text behind a call": (HERMES, f"{CALL}\nDone. ", "Done. ", "", [OSLO]),
    "not closed": (HERMES, CALL.removesuffix("\n</tool_call>"), "", "", [OSLO]),
    "cut in its closing marker": (HERMES, CALL.removesuffix("ool_call>"), "", "", [OSLO]),
    "cut in the next opening marker": (HERMES, f"{CALL}\n<tool_c", "", "", [OSLO]),
    "text behind a call that begins like a marker": (HERMES, f"{CALL}\n<tool!", "<tool!", "", [OSLO]),
    "a marker in an argument": (
        HERMES, CALL.replace("Oslo", "<tool_call>\\\"</tool_call>}"), "", "",
        [("get_weather", {"city": '<tool_call>"</tool_call>}'})],
    ),
    "arguments as a text": (
        HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', "", "", [("add", {"a": 1})],
    ),
    "no arguments": (HERMES, '<tool_call>{"name": "add"}</tool_call>', "", "", [("add", {})]),
    "a broken call": (HERMES, "<tool_call>\n{oops}\n</tool_call>", "<tool_call>\n{oops}\n</tool_call>", "", []),
    "a call without end": (HERMES, 'a <tool_call>{"name": "add', 'a <tool_call>{"name": "add', "", []),
    "a call in words": (HERMES, "use <tool_call> so </tool_call>", "use <tool_call> so </tool_call>", "", []),
    "a broken call, then one": (
        HERMES, f'<tool_call>{{"name": 1}}</tool_call>{CALL}', '<tool_call>{"name": 1}</tool_call>', "", [OSLO],
    ),
    "no name": (HERMES, '<tool_call>{"name": "", "arguments": {}}</tool_call>',
                '<tool_call>{"name": "", "arguments": {}}</tool_call>', "", []),
    "no tools": (replace(HERMES, tools=()), CALL, CALL, "", []),
    "only one": (replace(HERMES, parallel=False), f"a {CALL}{CALL} b", "a", "", [OSLO]),
    "coder": (
        CODER,
        "<tool_call>\n<function=add>\n<parameter=a>\n3\n</parameter>\n<parameter=note>\n7\n8\n</parameter>\n"
        "</function>\n</tool_call>",
        "", "", [("add", {"a": 3, "note": "7\n8"})],
    ),
    "coder, a marker in a value": (
        CODER,
        "<tool_call><function=add><parameter=note>a </tool_call> b</parameter></function></tool_call> ok",
        "ok", "", [("add", {"note": "a </tool_call> b"})],
    ),
    "coder, a closing marker before a call without its own": (
        CODER, f"I look.\n</think>\n\n{BARE}", "I look.", "", [OSLO],
    ),
    "coder, such a call at the end of a thought": (CODER, f"<think>hm\n{BARE}", "", f"hm\n{BARE}".strip(), [OSLO]),
    "coder, cut short": (CODER, "<tool_call><function=add><parameter", "<tool_call><function=add><parameter", "", []),
    "llama": (LLAMA, ' {"name": "get_weather", "parameters": {"city": "Oslo"}}', "", "", [OSLO]),
    "llama, tagged": (LLAMA, '<|python_tag|>{"name": "add", "parameters": {"a": 1}}', "", "", [("add", {"a": 1})]),
    "llama, two": (
        LLAMA, '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"a": 2}}', "", "",
        [("add", {}), ("add", {"a": 2})],
    ),
    "llama, JSON that was asked for": (
        LLAMA, '{"name": "Bob", "parameters": {}} \n', '{"name": "Bob", "parameters": {}} \n', "", [],
    ),
    "llama, later": (LLAMA, 'So: {"name": "add", "parameters": {}}', 'So: {"name": "add", "parameters": {}}', "", []),
    "llama, code": (LLAMA, "<|python_tag|>print(1)", "<|python_tag|>print(1)", "", []),
    "llama, words behind": (LLAMA, '{"name": "add", "parameters": {}} done; ', "done; ", "", [("add", {})]),
    "mistral, array": (
        replace(MISTRAL, form=forms.MISTRAL),
        'Well [1].\n[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo"}}, '
        '{"name": "add", "arguments": {}}]',
        "Well [1].", "", [OSLO, ("add", {})],
    ),
    "mistral, named": (
        MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}', "", "",
        [OSLO, ("add", {"a": 1})],
    ),
    "mistral, thought": (MISTRAL, "[THINK]hm[/THINK]Yes [THINK]", "Yes [THINK]", "hm", []),
    "mistral, broken": (MISTRAL, "[TOOL_CALLS]no name {", "[TOOL_CALLS]no name {", "", []),
    "mistral, half an array": (MISTRAL, '[TOOL_CALLS][{"name": "add"}, 3]', '[TOOL_CALLS][{"name": "add"}, 3]', "", []),
    "mistral, only one": (
        replace(MISTRAL, parallel=False), '[TOOL_CALLS][{"name": "add"}, {"name": "add"}] x', "", "", [("add", {})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_is_taken_apart(name: str) -> None:
    split, answer, text, thought, calls = ANSWERS[name]
    found = read(split, [answer])
    assert (found.text, found.reasoning, found.parsed) == (text, thought, calls)


HARMONIES: dict[str, tuple[str, str, str, Calls]] = {
    "thought and text": (
        "<|channel|>analysis<|message|>hm <b><|end|><|start|>assistant<|channel|>final<|message|>Yes. ",
        "Yes. ", "hm <b>", [],
    ),
    "a call": (
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Oslo"}',
        "", "hm", [OSLO],
    ),
    "the recipient first, and the end stated": (
        ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>', "", "", [("add", {"a": 1})],
    ),
    "a preamble": (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.add"
        "<|constrain|>json<|message|>{}",
        "I look.", "", [("add", {})],
    ),
    "not begun": ("<|channel|>commentary to=functions.add <|message|> ", "", "", [("add", {})]),
    "no object": ("<|channel|>commentary to=functions.add <|message|>a{", "a{", "", []),
    "a bracket is missing": (
        '<|channel|>commentary to=functions.add <|message|>{"a": 1', "", "", [("add", {"a": 1})],
    ),
    "a text that is cut short": (
        '<|channel|>commentary to=functions.add <|message|>"{\\"a\\": 1', '"{\\"a\\": 1', "", [],
    ),
    "a text that is none": (
        '<|channel|>commentary to=functions.add <|message|>"abc<|call|>', '"abc', "", [],
    ),
    "an object in a text": (
        '<|channel|>commentary to=functions.add <|message|>"{\\"a\\": 1}"<|call|>', "", "", [("add", {"a": 1})],
    ),
    "to no function": ("<|channel|>commentary to=functions. <|message|>{}<|call|>", "", "{}", []),
    "a tool of its own": ("<|channel|>analysis to=python<|message|>1+1", "", "1+1", []),
    "no headers": ("Hello <b>", "Hello <b>", "", []),
    "no header yet": ("<|channel|>final<|message|>Yes<|end|><|start|>assistant", "Yes", "", []),
    "half a header": ("<|channel|>ana", "", "", []),
    "an end that is missing": ("<|channel|>analysis<|message|>hm<|channel|>final<|message|>Yes", "Yes", "hm", []),
}  # fmt: skip


@pytest.mark.parametrize("name", HARMONIES)
def test_harmony(name: str) -> None:
    answer, text, thought, calls = HARMONIES[name]
    found = read(HARMONY, [coded(HARMONY, answer)])
    assert (found.text.rstrip(), found.reasoning, found.parsed) == (text.rstrip(), thought, calls)


def test_spelled_harmony_is_text() -> None:
    answer = coded(HARMONY, "<|channel|>final<|message|>") + "say <|end|> so"
    assert read(HARMONY, [answer]).text == "say <|end|> so"


@pytest.mark.parametrize("name", ANSWERS)
def test_control_tokens_mark_as_spelled_markers_do(name: str) -> None:
    split, answer, _, thought, calls = ANSWERS[name]
    if "marker" in name:  # there it is the spelling that counts
        return
    found = read(split, [coded(split, answer)])
    assert (found.reasoning, found.parsed) == (thought, calls)
    assert not any(0xDC00 <= ord(char) <= 0xDFFF for char in found.text + found.reasoning)


ALL = [(split, answer) for split, answer, *_ in ANSWERS.values()]
ALL += [(split, coded(split, answer)) for split, answer in ALL]
ALL += [(HARMONY, coded(HARMONY, answer)) for answer, *_ in HARMONIES.values()]


def cut(text: str, cuts: Sequence[int]) -> list[str]:
    borders = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(borders)]


@given(st.sampled_from(ALL), st.lists(st.integers(0, 400), max_size=30))
def test_cuts_change_nothing(case: tuple[Split, str], cuts: list[int]) -> None:
    split, answer = case
    assert read(split, cut(answer, cuts)) == read(split, [answer]) == read(split, list(answer))


MARKERS = [
    *sorted({name for form in forms.FORMS if form is not forms.HARMONY for name in form.markers}),
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "[TOOL_CALLS]",
    "[ARGS]",
    "[CALL_ID]",
]
TAGS = [
    "<arg_key>a</arg_key><arg_value>1</arg_value>",
    '<invoke name="add">',
    "</invoke>",
    "[add(a=1)]",
    "call:add{a:1}",
    "<|python_tag|>",
    "<function=add>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
]
JSON = ['{"name": "add", "arguments": {"a": 1}}', '{"name": "add"', *'{}[]",:;\\']
HEADERS = [*list_markers(Split(form=forms.MUSE)), *list_markers(Split(form=forms.SOLAR)), " to=", "self", "user"]
fragments = st.sampled_from(
    [
        *MARKERS,
        *TAGS,
        *HEADERS,
        *JSON,
        " ",
        "\n",
        "add",
        "word",
        "<",
        "é",
        *(make_control_char(index) for index in range(8)),
    ]
)
EVERY = [Split(form=form, reasoning_markers=THINK, tools=TOOLS) for form in forms.FORMS]
splits = st.sampled_from([*EVERY, HERMES, CODER, LLAMA, MISTRAL, HARMONY, replace(HERMES, in_reasoning=True),
                          replace(MISTRAL, form=forms.MISTRAL), replace(LLAMA, parallel=False)])  # fmt: skip


def test_what_may_be_half_a_marker_is_text_where_more_follows() -> None:
    for behind in ("</<b>", "<<tool", "</</", f"<{CALL}"):
        whole, letters = read(HERMES, [CALL + behind]), read(HERMES, list(CALL + behind))
        assert whole == letters and whole.text == behind.removesuffix(CALL)


@examples(400)
@given(splits, st.lists(fragments, max_size=20), st.lists(st.integers(0, 400), max_size=20))
def test_cuts_change_nothing_in_any_text(split: Split, parts: list[str], cuts: list[int]) -> None:
    answer = "".join(parts)
    found = read(split, [answer])
    assert read(split, cut(answer, cuts)) == found
    for name, arguments in found.calls:
        assert name and arguments.startswith("{")
        if name not in {tool.name for tool in TOOLS}:  # otherwise it was emitted while it was written, however it ended
            assert isinstance(json.loads(arguments), dict)


@given(st.lists(fragments, max_size=20))
def test_without_calls_every_spelled_character_is_shown(parts: list[str]) -> None:
    answer = "".join(part for part in parts if not 0xDC00 <= ord(part[0]) <= 0xDFFF)
    for split in (replace(split, reasoning_markers=None) for split in EVERY if split.form and not split.form.headers):
        found = read(split, [answer])
        if not found.calls:
            assert found.text == answer


# ---- through tokens
@dataclass
class WordVocabulary:
    """A token a word; those in `controls` have no text."""

    words: Sequence[str]
    controls: tuple[str, ...] = ()
    chat_template: str | None = None
    bos_text: str = ""
    eos_text: str = ""
    fill_tokens: tuple[int, int, int] | None = None

    @property
    def n_tokens(self) -> int:
        return len(self.words)

    @property
    def control_texts(self) -> tuple[str, ...]:
        return self.controls

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raise NotImplementedError(text)

    def piece(self, token: int) -> bytes:
        word = self.words[token]
        return b"" if word in self.controls else word.encode()

    def is_end(self, token: int) -> bool:
        return False


def answered(split: Split, words: list[str], controls: tuple[str, ...], stops: tuple[str, ...] = ()) -> Read:
    vocabulary = WordVocabulary(words, controls)
    split = replace(split, control_tokens=tuple((i, word) for i, word in enumerate(words) if word in controls))
    text = SplitAnswerText(Pieces(vocabulary), stops, split, new_id=lambda: "id")
    events = []
    for token in range(len(words)):
        events.append(text.push(token))
        if events[-1].stopped:
            break
    events.append(text.finish())
    calls = tuple((call.name, call.arguments) for call in join_calls(part for one in events for part in one.calls))
    return Read("".join(one.text for one in events), "".join(one.reasoning for one in events), calls)


def test_control_tokens_reach_only_the_parser() -> None:
    words = ["[THINK]", "hm", "[/THINK]", "é"[:1], "[TOOL_CALLS]", "add", "[ARGS]", '{"a":', " 1}"]
    found = answered(MISTRAL, words, ("[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"))
    assert found == Read("é", "hm", (("add", '{"a": 1}'),))


def test_a_stop_string_ends_what_the_model_says() -> None:
    found = answered(HERMES, ["<think>", "a", "</think>", "b ", "ST", "OP", "c"], (), ("STOP",))
    assert (found.text, found.reasoning) == ("b ", "a")


def test_an_answer_is_taken_apart_only_where_that_was_asked_for() -> None:
    pieces = Pieces(WordVocabulary([]))
    assert isinstance(make_answer_text(pieces, Request(id="a", prompt=(), params=GREEDY)), AnswerText)
    for split, length in ((HERMES, 29), (MISTRAL, 9)):
        text = make_answer_text(pieces, Request(id="a", prompt=(), params=GREEDY, split=split))
        assert isinstance(text, SplitAnswerText)
        assert len(text._split._collector.new_id()) == length
