"""Continued answers: where the prompt ends, in which state parsing starts, and which part is a thought."""

from __future__ import annotations

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.core.tools import Split, Tool
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import detect_family, list_markers
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.templates.literal_text import POSITION, HiddenSpellings, Spellings
from eaglelocal.text.templates.template_messages import PrefilledAnswer, read_prefill, reopen_reasoning
from eaglelocal.text.tool_calls import call_forms as forms

ASKED = Message("user", "Why?")
THOUGHT = "{# <think></think> #}"


def went_on(source: str, *messages: Message) -> str:
    return render_in_process(source, bos_text="<s>", eos_text="</s>").render(messages, continues=True)


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (templates.QWEN, "<|im_start|>assistant\nBecause ("),
        (templates.LLAMA, "<|start_header_id|>assistant<|end_header_id|>\n\nBecause ("),
        (templates.DEEPSEEK, "<User>Why?<Assistant>Because ("),
        (templates.HARMONY, "<|start|>assistant<|channel|>final<|message|>Because ("),
        ("", "<|im_start|>assistant\nBecause ("),
    ],
)
def test_the_prompt_ends_where_the_message_does(source: str, end: str) -> None:
    assert went_on(source, ASKED, Message("assistant", "Because (")).endswith(end)


def test_white_space_at_the_end_stays_though_templates_trim() -> None:
    for source in (templates.QWEN, templates.LLAMA):
        assert went_on(source, ASKED, Message("assistant", "1.\n\n2. ")).endswith("\n\n2. ")


def test_what_was_thought_before_stands_before() -> None:
    last = Message("assistant", "Yes", reasoning="hm")
    assert went_on(templates.QWEN, ASKED, last).endswith("<think>\nhm\n</think>\n\nYes")


def test_no_user_can_write_the_mark_of_the_place() -> None:
    literals = HiddenSpellings(Spellings())
    text = render_in_process("").render(
        (Message("user", f"a{POSITION}b"), Message("assistant", f"c{POSITION}d")), literals=literals, continues=True
    )
    assert "".join(span for span, _ in literals.pieces(text)).endswith(f"assistant\nc{POSITION}d")


def test_a_template_that_does_not_show_the_message_is_no_use() -> None:
    with pytest.raises(RequestError, match="does not show the last message"):
        went_on("{{ messages[0].content }}", ASKED, Message("assistant", "a"))


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (Message("assistant", "Yes"), PrefilledAnswer((ASKED, Message("assistant", "Yes")), has_text=True)),
        (Message("assistant", ""), PrefilledAnswer((ASKED,))),
        (Message("assistant", "", reasoning="hm"), PrefilledAnswer((ASKED,), "hm")),
        (Message("assistant", "<think>\nhm"), PrefilledAnswer((ASKED,), "hm")),
        (Message("assistant", "<think>"), PrefilledAnswer((ASKED,))),
        (
            Message("assistant", "\n<think>\nhm</think>\n\nYes"),
            PrefilledAnswer((ASKED, Message("assistant", "\n\nYes", reasoning="hm")), has_text=True),
        ),
        (
            Message("assistant", "Well, <think>"),
            PrefilledAnswer((ASKED, Message("assistant", "Well, <think>")), has_text=True),
        ),
    ],
)
def test_what_a_last_message_begins(message: Message, expected: PrefilledAnswer) -> None:
    assert read_prefill((ASKED, message), detect_family(THOUGHT)) == expected


def test_a_model_that_does_not_think_goes_on_with_no_thought() -> None:
    assert read_prefill((ASKED, Message("assistant", "", reasoning="hm")), detect_family("")) == PrefilledAnswer(
        (ASKED,)
    )
    said = Message("assistant", "<think>hm")
    assert read_prefill((ASKED, said), detect_family("")) == PrefilledAnswer((ASKED, said), has_text=True)


def test_an_empty_message_that_is_alone_stays() -> None:
    alone = (Message("assistant", ""),)
    assert read_prefill(alone, detect_family("")) == PrefilledAnswer(alone)


@pytest.mark.parametrize(
    "prompt",
    ["assistant\n", "assistant\n<think>", "assistant\n<think>\n\n</think>\n\n", "assistant\n</think>\n"],
)
def test_a_thought_is_open_however_the_generation_prompt_ends(prompt: str) -> None:
    assert reopen_reasoning(detect_family(THOUGHT), prompt) == "assistant\n<think>\n"


def test_harmony_opens_a_thought_on_its_channel() -> None:
    opened = reopen_reasoning(detect_family(templates.HARMONY), "<|start|>assistant")
    assert opened == "<|start|>assistant<|channel|>analysis<|message|>"


def test_a_thought_that_a_template_opens_before_what_was_said_is_ended() -> None:
    source = f"{{% for m in messages %}}{{{{ m.role }}}}:<think>\n{{{{ m.content }}}}</s>{{% endfor %}}{THOUGHT}"
    assert went_on(source, Message("assistant", " Because (")) == "assistant:<think></think> Because ("


# ---- how the answer is read then
def read(split: Split, answer: str) -> tuple[str, str, int]:
    """Text, thought, number of calls; markers of harmony are control tokens."""
    if split.form is forms.HARMONY:
        for index, name in enumerate(list_markers(split)):
            answer = answer.replace(name, make_control_char(index))
    text = SplitText(split, lambda: "id")
    events = [*map(text.push, answer), text.finish("")]
    calls = [call for piece in events for call in piece.calls if call.name]
    return "".join(piece.text for piece in events), "".join(piece.reasoning for piece in events), len(calls)


TOOLS = (Tool("f"),)
CALLED = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def test_what_goes_on_is_said() -> None:
    split = Split(form=forms.HERMES, reasoning_markers=("<think>", "</think>"), in_text=True, tools=TOOLS)
    assert read(split, "\n 42)") == ("\n 42)", "", 0)
    assert read(split, "<think>is a marker") == ("<think>is a marker", "", 0)
    assert read(split, f" so {CALLED}")[1:] == ("", 1)


def test_what_goes_on_in_a_frame_ends_with_the_frame() -> None:
    split = Split(form=forms.HERMES, reasoning_markers=("<t>", "</t>"), text_markers=("<r>", "</r>"), in_text=True)
    assert read(split, " 42)</r>") == (" 42)", "", 0)


def test_harmony_goes_on_within_its_message() -> None:
    said = Split(form=forms.HARMONY, tools=TOOLS, in_text=True)
    assert read(said, " 42)") == (" 42)", "", 0)
    thought = Split(form=forms.HARMONY, tools=TOOLS, in_reasoning=True)
    answer = " so<|end|><|start|>assistant<|channel|>final<|message|>Yes"
    assert read(thought, answer) == ("Yes", "so", 0)
