"""Calls streamed while they are written: what is sent early, what is held back, and that the result is the same."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator, Sequence

import pytest
from doubles.property_tests import examples
from doubles.tiers import some_of
from hypothesis import example, given
from hypothesis import strategies as st

from eaglelocal.core.tools import CallForm, Notation, Split, Tool, ToolCall, join_calls
from eaglelocal.text.reasoning.markers import SURE_CHARS
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.tool_calls import call_forms as forms
from eaglelocal.text.tool_calls.block_calls import make_reader
from eaglelocal.text.tool_calls.call_forms import write_calls
from eaglelocal.text.tool_calls.lenient_literals import UnreadableCall
from eaglelocal.text.tool_calls.tagged_text import TaggedText
from eaglelocal.text.tool_calls.tool_schemas import has_required

WRITE = Tool(
    "write_file",
    "",
    json.dumps(
        {
            "type": "object",
            "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}, "text": {"type": "string"}},
            "required": ["path", "text"],
        }
    ),
)
CLOCK = Tool("clock")
TOOLS = (WRITE, CLOCK)
ARGUMENTS: dict[str, object] = {"path": "/a", "lines": 2, "text": "x = 1\nprint('y')\n"}
JSON_FORMS = [
    form
    for form in forms.FORMS
    if form.notation is Notation.JSON or (form.notation is Notation.BARE and form.call.startswith("{"))
]
TAG_FORMS = [form for form in forms.FORMS if form.notation is Notation.TAGS]
WHOLE_FORMS = [form for form in forms.FORMS if form not in (*JSON_FORMS, *TAG_FORMS, forms.HARMONY)]


class Reader:
    """An answer read as it comes."""

    def __init__(self, form: CallForm, **fields: object) -> None:
        ids = map(str, itertools.count())
        given: dict[str, object] = {"tools": TOOLS, "reasoning_markers": ("<think>", "</think>")} | fields
        split = Split(form=form, **given)  # type: ignore[arg-type]
        self._parser = SplitText(split, lambda: next(ids))
        self._told = [self._parser.push("")]

    def push(self, text: str) -> None:
        self._told += [self._parser.push(char) for char in text]

    def finish(self, *, is_cut: bool = False) -> Reader:
        self._told.append(self._parser.finish("", is_cut=is_cut))
        return self

    @property
    def calls(self) -> list[ToolCall]:
        return join_calls(part for one in self._told for part in one.calls)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(call.name, call.arguments) for call in self.calls]

    @property
    def text(self) -> str:
        return "".join(one.text for one in self._told)

    @property
    def reasoning(self) -> str:
        return "".join(one.reasoning for one in self._told)


def read(form: CallForm, text: str, *, is_cut: bool = False, **fields: object) -> Reader:
    reader = Reader(form, **fields)
    reader.push(text)
    return reader.finish(is_cut=is_cut)


def steps(form: CallForm, text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Each beginning of the text, and the parts of calls emitted by then."""
    reader = Reader(form)
    for index, char in enumerate(text):
        reader.push(char)
        yield text[: index + 1], reader.events


SPLIT_FORMS = [form for form in forms.FORMS if form is not forms.HARMONY]


def by_label(form: CallForm) -> str:
    return form.label


# ---- early
def check_so_far(events: list[tuple[str, str]], written: str) -> None:
    """All text is emitted, except a key, a number, a quote or a bracket that the next character may change."""
    told = events[0][1] if events else ""
    assert written.startswith(told)
    begun = written.rpartition('"text": "')
    held = 1 if begun[1] and begun[2] else max(map(len, ('{"path": ', ', "lines": 2', '2, "text": ')))
    assert len(written) - len(told) <= held


@pytest.mark.parametrize("form", JSON_FORMS, ids=by_label)
def test_arguments_in_json_are_reported_as_they_are_written(form: CallForm) -> None:
    whole = json.dumps(ARGUMENTS)
    text = write_calls(form, [("write_file", ARGUMENTS)])
    begins = text.index(whole)
    for written, events in steps(form, text):
        check_so_far(events, written[begins : begins + len(whole)])


@pytest.mark.parametrize("form", TAG_FORMS, ids=by_label)
def test_texts_between_tags_are_reported_as_they_are_written(form: CallForm) -> None:
    text = write_calls(form, [("write_file", ARGUMENTS)])
    told_at = {}
    for written, events in steps(form, text):
        for name, arguments in events:
            assert name == "write_file" and json.dumps(ARGUMENTS).startswith(arguments)
            told_at.setdefault(arguments, written)
    assert told_at['{"path": "/'].endswith("/")
    assert told_at['{"path": "/a'].endswith("/a")
    assert next(written for arguments, written in told_at.items() if "x = 1" in arguments).endswith("x = 1")
    assert events == [("write_file", json.dumps(ARGUMENTS))]


@pytest.mark.parametrize("form", TAG_FORMS, ids=by_label)
@pytest.mark.parametrize("padding", ["", " ", "\n\n"])
def test_an_enumerated_text_is_emitted_once(form: CallForm, padding: str) -> None:
    """Blanks around it are not part of it: once emitted, they could not be taken back."""
    unit = Tool("convert", "", json.dumps({"properties": {"unit": {"enum": ["C", "F"], "type": "string"}}}))
    text = write_calls(form, [("convert", {"unit": f"{padding}C"})])
    reader = Reader(form, tools=(unit,))
    reader.push(text)
    [(_, arguments)] = reader.finish().events
    assert json.loads(arguments)["unit"].strip() == "C"


def test_harmony_s_arguments_are_reported_as_they_are_written() -> None:
    header, whole = "<|channel|>commentary to=functions.write_file <|constrain|>json<|message|>", json.dumps(ARGUMENTS)
    for index, name in enumerate(forms.HARMONY.inside):
        header = header.replace(name, chr(0xDC00 + index))
    for written, events in steps(forms.HARMONY, header + whole):
        check_so_far(events, written[len(header) :])


@pytest.mark.parametrize("form", WHOLE_FORMS, ids=by_label)
def test_elsewhere_a_call_is_reported_when_it_is_whole(form: CallForm) -> None:
    events = [events for _, events in steps(form, write_calls(form, [("write_file", ARGUMENTS)]))]
    found = read(form, write_calls(form, [("write_file", ARGUMENTS)])).events
    assert all(one in ([], found) for one in events)
    assert [(name, json.loads(arguments)) for name, arguments in found] == [("write_file", ARGUMENTS)]


@pytest.mark.parametrize("form", [form for form in forms.FORMS if form not in (forms.HARMONY,)], ids=by_label)
def test_several_calls_come_in_their_order(form: CallForm) -> None:
    if form.is_one_call:
        return
    calls = [("write_file", ARGUMENTS), ("clock", {}), ("write_file", {"path": "b", "text": ""})]
    found = read(form, write_calls(form, calls))
    assert [(name, json.loads(arguments)) for name, arguments in found.events] == calls
    assert len({call.id for call in found.calls}) == 3
    assert found.text == ""


def test_nothing_is_reported_before_it_is_sure() -> None:
    for form, text in (
        (forms.HERMES, '<tool_call>\n{"name": "write_file", "arguments": '),
        (forms.HERMES, '<tool_call>\n{"name": "write_file", "arguments": {'),
        (forms.HERMES, '<tool_call>\n{"name": "unknown", "arguments": {"a": 1'),
        (forms.HERMES, '<tool_call>\n{"name": "write_file", "arguments": {path: 1'),
        (forms.HERMES, '<tool_call>\n{"arguments": {"a": 1}, "name": "write_file"'),
        (forms.LLAMA, '{"name": "Bob", "parameters": {"a": 1'),
        (forms.CODER, "<tool_call>\n<function=write_file>\n<parameter=path"),
        (forms.CODER, "<tool_call>\n<function=unknown>\n<parameter=path>\na"),
        (forms.GLM, "<tool_call>write_file\n<arg_key>path</arg_key>\n"),
    ):
        reader = Reader(form)
        reader.push(text)
        assert reader.events == []
        shown = text if form.notation is Notation.BARE else ""
        assert (reader.finish(is_cut=True).text, reader.events) == (shown, [])


def test_whatever_the_order_of_its_members_a_call_is_reported() -> None:
    for text in (
        '{"arguments": {"path": "a", "text": "b"}, "name": "write_file"}',
        '{"name": "write_file", "arguments": "{\\"path\\": \\"a\\", \\"text\\": \\"b\\"}"}',
        '{"type": "function", "name": "write_file", "parameters": {"path": "a", "text": "b"}, "more": [1]}',
    ):
        found = read(forms.HERMES, f"<tool_call>\n{text}\n</tool_call>")
        assert [(name, json.loads(arguments)) for name, arguments in found.events] == [
            ("write_file", {"path": "a", "text": "b"})
        ]
        assert found.text == ""


def test_the_rest_of_an_array_that_was_begun_is_said_where_it_is_no_call() -> None:
    found = read(forms.MISTRAL, '[TOOL_CALLS][{"name": "clock", "arguments": {}}, 3]')
    assert (found.events, found.text) == ([("clock", "{}")], "3")


# ---- cut off
@pytest.mark.parametrize("form", some_of(SPLIT_FORMS, 8), ids=by_label)
def test_what_is_cut_off_is_never_reported_as_a_whole_call(form: CallForm) -> None:
    text = write_calls(form, [("write_file", ARGUMENTS)])
    for length in range(len(text)):
        found = read(form, text[:length], is_cut=True)
        for name, arguments in found.events:
            assert name == "write_file"
            assert json.dumps(ARGUMENTS).startswith(arguments) or json.loads(arguments) == ARGUMENTS
        if form.notation is Notation.BARE:  # JSON that may have been asked for
            assert found.events or found.text == text[:length]
        elif len(text[:length].rpartition("<")[2]) >= SURE_CHARS:  # else it is perhaps no marker
            assert found.text == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Yes.<tool_ca", "Yes."),
        ("Yes.\n<tool_call>", "Yes.\n"),
        ('Yes.<tool_call>{"name": "wri', "Yes."),
        ('Yes.<tool_call>{"name": "unknown", "arguments": {"a": 1', "Yes."),
        ("Yes.<function=clo", "Yes."),
        ("if a <", "if a <"),
        ("<b>bold</t", "<b>bold</t"),
        ("`<tool_call>` begins one", "`<tool_call>` begins one"),
        ("<think>hm</thi", ""),
    ],
)
def test_half_a_marker_at_which_an_answer_was_cut_off_is_not_shown(text: str, shown: str) -> None:
    assert read(forms.CODER, text, is_cut=True).text == shown


@pytest.mark.parametrize("text", ["Yes.<tool_ca", "Yes.\n<tool_call>", "Yes.<function=clo"])
def test_half_a_marker_with_which_a_model_ends_is_text(text: str) -> None:
    assert read(forms.CODER, text).text == text


@pytest.mark.parametrize("form", some_of(SPLIT_FORMS, 8), ids=by_label)
def test_where_the_model_ends_early_a_call_has_what_it_must_have(form: CallForm) -> None:
    text = write_calls(form, [("write_file", ARGUMENTS)])
    for length in range(len(text)):
        for _, arguments in read(form, text[:length]).events:
            try:
                found = json.loads(arguments)
            except ValueError:  # emitted as far as it came
                continue
            assert {"path", "text"} <= found.keys()


def test_an_empty_message_that_was_cut_off_is_no_call() -> None:
    text = "".join(
        chr(0xDC00 + forms.HARMONY.inside.index(part)) if part in forms.HARMONY.inside else part
        for part in ("<|channel|>", "commentary to=functions.clock", "<|message|>")
    )
    assert read(forms.HARMONY, text, is_cut=True).events == []
    assert read(forms.HARMONY, text).events == [("clock", "{}")]
    other = text.replace("clock", "write_file")
    assert read(forms.HARMONY, other).events == []  # it must have a path


@pytest.mark.parametrize("schema", ['{"required": [["path"], 3, null]}', '{"required": "path"}', "[]", "{}", ""])
def test_odd_schemas_require_nothing(schema: str) -> None:
    assert has_required(Tool("f", "", schema), "{}")
    assert has_required(None, "{}")


# ---- carelessly written
@pytest.mark.parametrize(
    ("form", "text", "calls", "said"),
    [
        (forms.HERMES, '<tool_call>\n{"name": "clock", "arguments": null}\n</tool_call>', [("clock", {})], ""),
        (forms.HERMES, '<tool_call>\n{"name": "clock", "arguments": ""}\n</tool_call>', [("clock", {})], ""),
        (forms.LLAMA, '{"name": "clock", "parameters": null}', [("clock", {})], ""),
        (
            forms.HERMES,
            '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "text": "x\ny\t\\\n"}}\n</tool_call>',
            [("write_file", {"path": "a", "text": "x\ny\t\\\n"})],
            "",
        ),
        (
            forms.HERMES,
            '<tool_call>\n{"arguments": {"path": "a", "text": "x\ny"}, "name": "write_file"}\n</tool_call>',
            [("write_file", {"path": "a", "text": "x\ny"})],
            "",
        ),
        (
            forms.HERMES,
            '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "text": "x"}\n</tool_call> ok',
            [("write_file", {"path": "a", "text": "x"})],
            "ok",
        ),
        (
            forms.HERMES,
            '<tool_call>\n{"name": "write_file", "arguments": {"path": "a", "text": "x"\n</tool_call> ok',
            [("write_file", {"path": "a", "text": "x"})],
            "ok",
        ),
        (
            forms.HERMES,
            '<tool_call>\n{"arguments": {"path": "a", "text": "x"}, "name": "write_file"\n</tool_call> ok',
            [("write_file", {"path": "a", "text": "x"})],
            "ok",
        ),
        (
            forms.CODER,
            "I write.\n<function=write_file>\n<parameter=path>\na\n</parameter>\n<parameter=text>\nb\n</parameter>\n"
            "</function>\n</tool_call>",
            [("write_file", {"path": "a", "text": "b"})],
            "I write.",
        ),
        (
            forms.CODER,
            "<function=clock>\n</function>\n<function=clock>\n</function>\n</tool_call> Done.",
            [("clock", {}), ("clock", {})],
            "Done.",
        ),
        (forms.CODER, "Say <function=clock> so.", [], "Say <function=clock> so."),
        (forms.CODER, "Say <function=clock>", [], "Say <function=clock>"),
        (forms.CODER, "<function=other>\n</function>", [], "<function=other>\n</function>"),
        (forms.CODER, "</tool_call> so", [], "</tool_call> so"),
    ],
)
def test_careless_calls_are_calls(form: CallForm, text: str, calls: list[object], said: str) -> None:
    found = read(form, text)
    assert [(name, json.loads(arguments)) for name, arguments in found.events] == calls
    assert found.text == said


@pytest.mark.parametrize("number", ["1e999", "-1e999", "[1e999]"])
def test_no_number_becomes_infinite(number: str) -> None:
    tool = Tool("f", "", '{"type": "object", "properties": {"x": {"type": "number"}}}')
    coder = f"<tool_call>\n<function=f>\n<parameter=x>\n{number}\n</parameter>\n</function>\n</tool_call>"
    for form, text in ((forms.CODER, coder), (forms.GEMMA, f"<|tool_call>call:f{{x:{number}}}<tool_call|>")):
        parser = SplitText(Split(form=form, tools=(tool,)), lambda: "id")
        for call in join_calls(parser.finish(text).calls):
            assert "Infinity" not in call.arguments and "1e999" in call.arguments
            json.loads(call.arguments)


def test_a_text_is_given_up_where_a_broken_string_meets_a_real_marker() -> None:
    """Where the marker is a token of its own it cannot be part of a string."""
    end = chr(0xDC00 + 3)  # thought's two, then the form's
    begun = '<tool_call>{"name": "write_file", "arguments": {"path": "a'
    found = read(forms.HERMES, begun + end + "Oh.")
    assert (found.events, found.text) == ([("write_file", '{"path": "a')], "Oh.")


# ---- thoughts
@pytest.mark.parametrize(
    ("tail", "calls"),
    [
        ('<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>', [("clock", "{}")]),
        ('<tool_call>{"name": "clock"}</tool_call>\n<tool_call>{"name": "clock"}</tool_call>\n', [("clock", "{}")] * 2),
        ('<tool_call> or <tool_call>{"name": "clock"}</tool_call>', [("clock", "{}")]),
        (
            '<tool_call>{"name": "f"}</tool_call>, no: <tool_call>{"name": "clock"}</tool_call>',
            [("clock", "{}")],
        ),
        ('<tool_call>{"name": "clock"}</tool_call> would do', []),
        ('<tool_call>{"name": "clo', []),
    ],
)
def test_a_call_at_the_end_of_a_thought_that_has_none(tail: str, calls: list[tuple[str, str]]) -> None:
    for fields in ({}, {"in_reasoning": True}):
        text = ("" if fields else "<think>") + "I ask." + tail
        found = read(forms.HERMES, text, **fields)
        assert (found.events, found.text) == (calls, "")
        assert found.reasoning.startswith("I ask.<tool_call>")
        assert read(forms.HERMES, text, is_cut=True, **fields).events == []
        assert read(forms.HERMES, text + "</think>Yes.", **fields).events == []


# ---- any text
pieces = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<function=write_file>", "<function=clock>", "</function>", "<parameter=text>",
        "<parameter=path>", "<parameter=lines>", "</parameter>", "\n", " ", "a", "<", "</par", '"', "3", "write_file",
        "<arg_key>path</arg_key>", "<arg_key>text</arg_key>", "<arg_value>", "</arg_value>", "é",
    ]
)  # fmt: skip
json_pieces = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "write_file", "arguments": ', '{"path": "a"', ', "text": "b', '"', "}",
     "]", "[", "{", "\n", "\\", ",", ":", " ", "[TOOL_CALLS]", "write_file", "[ARGS]", "3", "é", "null"]
)  # fmt: skip


def by_cuts(form: CallForm, text: str, cuts: Sequence[int], *, is_cut: bool) -> tuple[object, ...]:
    ids = map(str, itertools.count())
    parser = SplitText(Split(form=form, tools=TOOLS), lambda: next(ids))
    borders = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    events = [parser.push(text[a:b]) for a, b in itertools.pairwise(borders)] + [parser.finish("", is_cut=is_cut)]
    return "".join(one.text for one in events), join_calls(part for one in events for part in one.calls)


@examples(300)
@example(forms.CODER, ["</tool_call>", "<function=write_file>", "</function>", "</function>"], [], False)
@given(
    st.sampled_from([*TAG_FORMS, forms.HERMES]),
    st.lists(pieces, max_size=24),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_cuts_change_nothing_between_tags(form: CallForm, parts: list[str], cuts: list[int], is_cut: bool) -> None:
    text = form.begin + "".join(parts)
    assert by_cuts(form, text, cuts, is_cut=is_cut) == by_cuts(form, text, range(len(text)), is_cut=is_cut)


@examples(300)
@given(
    st.sampled_from([forms.HERMES, forms.LLAMA, forms.MISTRAL, forms.MISTRAL_ARGS]),
    st.lists(json_pieces, max_size=16),
    st.lists(st.integers(0, 400), max_size=12),
    st.booleans(),
)
def test_cuts_change_nothing_in_json(form: CallForm, parts: list[str], cuts: list[int], is_cut: bool) -> None:
    text = "".join(parts)
    assert by_cuts(form, text, cuts, is_cut=is_cut) == by_cuts(form, text, range(len(text)), is_cut=is_cut)


@examples(300)
@given(st.sampled_from([forms.CODER, forms.GLM]), st.lists(pieces, max_size=12))
def test_a_block_is_reported_as_it_is_read(form: CallForm, parts: list[str]) -> None:
    """However early its parts are emitted, the call equals the one that the whole block holds."""
    begin = {"coder": "<function=write_file><parameter=path>", "glm": "write_file<arg_key>path</arg_key><arg_value>"}
    end = {"coder": "</parameter></function>", "glm": "</arg_value>"}
    body = begin[form.label] + "".join(parts).replace(form.end, "") + end[form.label]
    if form.begin in body:
        return
    found = read(form, f"{form.begin}{body}{form.end}")
    with contextlib.suppress(UnreadableCall):
        read_complete = make_reader(form, {tool.name: tool for tool in TOOLS})(body)
        assert found.events == [(call.name, call.arguments) for call in read_complete]


def test_signs_in_a_value_are_no_news_of_a_call() -> None:
    """Else each of them has the whole call read again."""
    text = TaggedText(forms.CODER, {WRITE.name: WRITE})
    begin = "<function=write_file>\n<parameter=text>\n"
    body = begin + "a > b >> " * 50
    assert text.has_new_tag(begin, 0)
    assert not any(text.has_new_tag(body[: end + 1], end) for end in range(len(begin), len(body)))
    assert text.has_new_tag(body + "</parameter>", len(body))


def test_a_header_without_end_is_text() -> None:
    form = next(form for form in forms.FORMS if form.headers is not None)
    split = SplitText(Split(form=form, tools=TOOLS), lambda: "id")
    assert split.push("to=" + "x" * 100).text == ""
    assert split.push("x" * 500).text == "to=" + "x" * 600
