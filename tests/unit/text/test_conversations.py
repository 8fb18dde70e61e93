"""Conversations in the form that templates accept: single calls, calls as text, short ids, merged turns."""

from __future__ import annotations

import re

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Image, Message
from eaglelocal.core.tools import CallForm, Split, Tool, ToolCall
from eaglelocal.errors import RequestError
from eaglelocal.text.reasoning.model_families import ReasoningMarkers, detect_family
from eaglelocal.text.reasoning.split_answer import SplitText
from eaglelocal.text.templates.chat_template import CHATML
from eaglelocal.text.templates.literal_text import HiddenSpellings, Spellings
from eaglelocal.text.tool_calls import call_forms as forms

LOOK = Tool("look_up", "", '{"properties": {"word": {"type": "string"}}}')
CALLS = (ToolCall("call_1", "look_up", '{"word": "owl"}'), ToolCall("call_2", "look_up", '{"word": "elk"}'))
TALK = (
    Message("system", "Be brief."),
    Message("user", "Owl and elk?"),
    Message("assistant", "I look.", reasoning="hm", tool_calls=CALLS),
    Message("tool", "a deer", tool_call_id="call_2"),
    Message("tool", "a bird", tool_call_id="call_1"),
    Message("user", "Sure?"),
)
EACH = "{% for m in messages %}"
SHOWN = EACH + (
    "[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls %}({{ c.function.arguments.word }} {{ c.id }})"
    "{% endfor %}{{ m.tool_call_id }}\n{% endfor %}{# tools #}"
)


def lines(source: str, messages: tuple[Message, ...] = TALK, tools: tuple[Tool, ...] = (LOOK,)) -> list[str]:
    return render_in_process(source).render(messages, tools=tools).rstrip("\n").split("\n")


def test_calls_come_one_by_one_where_an_answer_has_one() -> None:
    assert lines(SHOWN + "{# <|python_tag|> #}") == [
        "[system] Be brief.",
        "[user] Owl and elk?",
        "[assistant] I look.(owl call_1)",
        "[tool] a bird call_1".replace(" call", "call"),
        "[assistant] (elk call_2)",
        "[tool] a deercall_2",
        "[user] Sure?",
    ]


def test_results_of_no_known_call_are_not_lost() -> None:
    talk = (*TALK[:3], Message("tool", "what?", tool_call_id="other"))
    assert lines(SHOWN + "{# <|python_tag|> #}", talk)[-1] == "[tool] what?other"


def test_ids_are_short_where_the_template_wants_them_so() -> None:
    events = lines(SHOWN + "{# [TOOL_CALLS] #}")
    ids = re.findall(r"\(\w+ (\w+)\)", events[2])
    assert all(re.fullmatch("[0-9a-f]{9}", one) for one in ids) and len(set(ids)) == 2
    assert events[3].endswith(ids[0]) and events[4].endswith(ids[1])
    short = (Message("assistant", "", tool_calls=(ToolCall("abcdefghi", "look_up", "{}"),)),)
    assert "abcdefghi" in lines(SHOWN + "{# [TOOL_CALLS] #}", (TALK[1], *short))[1]


@pytest.mark.parametrize(
    ("signs", "written"),
    [
        ("<|tool_list_start|>", '<|tool_call_start|>[look_up(word="owl"), look_up(word="elk")]<|tool_call_end|>'),
        (
            "<|tool_call|>",
            '<|tool_call|>[{"name": "look_up", "arguments": {"word": "owl"}}, '
            '{"name": "look_up", "arguments": {"word": "elk"}}]',
        ),
    ],
)
def test_calls_are_written_out_where_the_template_shows_none(signs: str, written: str) -> None:
    source = EACH + "[{{ m.role }}] {{ m.content }}\n{% endfor %}{# tools " + signs + " #}"
    assert lines(source)[2] == f"[assistant] I look.{written}"


def test_tools_stand_in_the_system_message_where_the_template_looks_for_them() -> None:
    source = (
        EACH + "[{{ m.role }}] {{ m.content }} {{ m['tools'] }}\n{% endfor %}{# message['tools'] <|tool|><|/tool|> #}"
    )
    assert '"name": "look_up"' in lines(source)[0]
    assert lines(source, TALK[1:])[0].startswith("[system]  [{")
    assert lines(source, tools=())[0] == "[system] Be brief. "


# ---- templates that refuse
ALTERNATING = EACH + (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)


def test_a_system_that_is_not_known_begins_the_first_question() -> None:
    talk = (Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert lines(ALTERNATING, talk, ()) == ["[user] Be brief.", "", "a", "[assistant] b", "[user] c"]


def test_a_stand_in_for_tools_alternates_too() -> None:
    events = "\n".join(lines(ALTERNATING, TALK[1:5]))
    assert events.count("[user]") == 2 and events.count("[assistant]") == 1
    assert "<tool_response>\na bird\n</tool_response>\n<tool_response>\na deer\n</tool_response>" in events


def test_what_one_side_says_in_a_row_is_one_turn() -> None:
    assert lines(ALTERNATING, (Message("user", "a"), Message("user", "b")), ()) == ["[user] a", "", "b"]


def test_an_objection_that_nothing_meets_is_the_first() -> None:
    with pytest.raises(RequestError, match="refuses the conversation: no 1"):
        lines("{{ raise_exception('no ' ~ (messages | length)) }}", (Message("user", "a"),), ())


# ---- templates that take parts alone, as those of SmolVLM and LLaVA
ROLES_AND_PARTS = (
    "{% for m in messages %}{{ m['role'] | capitalize }}{{ ':' if m['content'][0]['type'] == 'image' else ': ' }}"
    "{% for part in m['content'] %}{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
SELECTED_PARTS = (
    "{% for m in messages %}{{ m['role'] | capitalize }}: "
    "{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}{{ '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
EITHER = "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text ~ '!' }}{% endfor %}"


@pytest.mark.parametrize("source", [ROLES_AND_PARTS, SELECTED_PARTS])
def test_texts_are_parts_where_a_template_shows_no_others(source: str) -> None:
    talk = (Message("system", "Be brief."), Message("user", "a"), Message("assistant", "b"), Message("user", "c"))
    assert lines(source, talk, ()) == ["System: Be brief.", "User: a", "Assistant: b", "User: c", "Assistant:"]


def test_texts_stay_texts_where_a_template_takes_both() -> None:
    assert lines(EITHER, (Message("user", "a"),), ()) == ["a"]


def test_an_image_stands_in_its_part() -> None:
    literals = HiddenSpellings(Spellings())
    shown = Message("user", "what is this", images=(Image(b"x", 4),))
    text = render_in_process(SELECTED_PARTS).render([shown], literals=literals)
    assert list(literals.pieces(text)) == [
        ("User: what", False),
        Image(b"x", 4),
        (" is this\nAssistant:", False),
    ]


# ---- what templates do
def test_lists_grow_in_a_template_and_generators_are_lists() -> None:
    source = "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set _ = ns.l.append(m.role) %}{% endfor %}"
    assert render_in_process(source + "{{ ns.l.pop(0) }} {{ ns.l | map('upper') | tojson }}").render(TALK[:3]) == (
        'system ["USER", "ASSISTANT"]'
    )


# ---- families
@pytest.mark.parametrize(
    ("signs", "form"),
    [
        ("<tool_call><arg_key>", forms.GLM),
        ("<minimax:tool_call>", forms.MINIMAX),
        ("<seed:tool_call><function=", forms.SEED),
        ("<｜DSML｜function_calls>", forms.DSML),
        ("<｜DSML｜tool_calls>", forms.DSML_TOOLS),
        ("<tool_call><function=x>", forms.CODER),
        ("<|tool_call>call<tool_call|>", forms.GEMMA),
        ("[TOOL_CALLS][CALL_ID][ARGS]", forms.MISTRAL_IDS),
        ("<｜tool▁call▁begin｜> ```json", forms.DEEPSEEK),
        ("<｜tool▁call▁begin｜>", forms.DEEPSEEK_31),
        ("<|tool_calls_section_begin|>", forms.KIMI),
        ("<|tool_call:begin|>", forms.SOLAR),
        ("<|START_ACTION|>", forms.COMMAND),
        ("<TOOLCALL>", forms.NEMOTRON),
        ("<tool_call></tool_call><tool_calls>[", forms.LISTED),
        ("<|tool_call|><|/tool_call|>", forms.PHI),
        ("<|tool_call|>", forms.GRANITE),
        ("<|tool_call_start|>", forms.LFM),
        ("<function_calls>", forms.OLMO),
        ("<|function_call|>", forms.GIGACHAT),
        ("<|start_header_id|><function=", forms.FUNCTIONARY),
        ('<|header_start|>"parameters"', forms.LLAMA_4),
        ("<|header_start|>f(param1=value1)", forms.LLAMA_4_PYTHON),
    ],
)
def test_forms_are_reported_by_their_signs(signs: str, form: CallForm) -> None:
    family = detect_family("{% for t in tools %}{% endfor %}" + signs)
    assert (family.form, family.takes_tools) == (form, True)
    assert (detect_family(signs).form, detect_family(signs).takes_tools) == (forms.HERMES, False)


def test_a_template_that_only_lists_tools_is_reported_by_its_words() -> None:
    assert detect_family("List of tools: [{{ tools }}]").form == forms.LFM


def test_a_form_of_its_own_has_the_stand_in() -> None:
    family = detect_family("{% if tools %}]<]minimax[>[<tool_call>{% endif %}")
    assert (family.form, family.takes_tools) == (forms.HERMES, False)


@pytest.mark.parametrize(
    ("source", "thoughts"),
    [
        ("<think>", ReasoningMarkers("<think>", "</think>")),
        (
            "<think></think><response></response>",
            ReasoningMarkers("<think>", "</think>", text=("<response>", "</response>")),
        ),
        ("<seed:think>", ReasoningMarkers("<seed:think>", "</seed:think>")),
        ("<|channel>thought", ReasoningMarkers("<|channel>", "<channel|>", label="thought")),
        ("hello", None),
    ],
)
def test_thoughts_are_reported_by_their_markers(source: str, thoughts: ReasoningMarkers | None) -> None:
    assert detect_family(source).reasoning == thoughts


@pytest.mark.parametrize(
    ("source", "prompt", "is_open"),
    [
        ("<think>", "<|im_start|>assistant\n<think>\n", True),
        ("<think>", "assistant\n<think>\n\n</think>\n\n", False),
        ("<|channel>", "<|turn>model\n<|channel>thought\n", True),
        ("<|channel>", "<|turn>model\n<|channel>thought\n<channel|>", False),
        ("", "<think>", False),
    ],
)
def test_a_prompt_may_have_begun_a_thought(source: str, prompt: str, is_open: bool) -> None:
    assert detect_family(source).ends_in_reasoning(prompt) is is_open


GRANITE = detect_family("<think></think><response></response>").make_split()
GEMMA = detect_family("<|channel>thought").make_split()


@pytest.mark.parametrize(
    ("split", "answer", "thought", "said"),
    [
        (GRANITE, "<think>hm</think>\n<response>Yes.</response>", "hm", "Yes."),
        (GRANITE, "<response>Yes.</response>", "", "Yes."),
        (GRANITE, "Say <response>.</response>", "", "Say <response>.</response>"),
        (GEMMA, "<|channel>thought\nhm\n<channel|>Yes.", "hm", "Yes."),
        (GEMMA, "<|channel>thoughts fly<channel|>Yes.", "thoughts fly", "Yes."),
        (GEMMA, "<|channel>thinking<channel|>Yes.", "thinking", "Yes."),
        (GEMMA, "<|channel>thought<channel|>Yes.", "", "Yes."),
        (GEMMA, "<|channel>thou", "thou", ""),
        (GRANITE, "</think>\nYes.", "", "Yes."),
    ],
)
def test_labels_and_frames_are_no_part_of_it(split: Split, answer: str, thought: str, said: str) -> None:
    for pieces in ([answer], list(answer)):
        parser = SplitText(split, lambda: "id")
        events = [*(parser.push(piece) for piece in pieces), parser.finish("")]
        found = "".join(one.reasoning for one in events), "".join(one.text for one in events)
        assert found == (thought, said)


# ---- calls whose arguments are no object
BROKEN = ['{"word": "cut', "[1]", '"owl"', "NaN", "{'word': 'owl'}", "[" * 100]
TEMPLATES = [templates.QWEN, templates.LLAMA, templates.MISTRAL, templates.DEEPSEEK, templates.HARMONY, CHATML]
LOOKS_INSIDE = EACH + (
    "[{{ m.role }}] {{ m.content }}{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}"
    "({{ k }}={{ v }}){% endfor %}{% endfor %}\n{% endfor %}{# tools <tool_call> <function= #}"
)


def broken(arguments: str) -> tuple[Message, ...]:
    """A conversation that goes on after the model wrote such arguments."""
    calls = (ToolCall("call_1", "look_up", arguments),)
    return (
        Message("user", "Owl?"),
        Message("assistant", "", tool_calls=calls),
        Message("tool", "these are no arguments", tool_call_id="call_1"),
        Message("user", "Again."),
    )


@pytest.mark.parametrize("arguments", BROKEN)
@pytest.mark.parametrize("source", [*TEMPLATES, LOOKS_INSIDE])
def test_one_broken_call_does_not_end_the_chat(source: str, arguments: str) -> None:
    text = render_in_process(source).render(broken(arguments), tools=(LOOK,))
    assert "Again." in text
    kept = "cut" if "cut" in arguments else arguments[:1]
    assert kept in text


@pytest.mark.parametrize("arguments", ["", " ", "null", "{}"])
@pytest.mark.parametrize("source", TEMPLATES)
def test_no_arguments_are_an_empty_object(source: str, arguments: str) -> None:
    empty = render_in_process(source).render(broken("{}"), tools=(LOOK,))
    assert render_in_process(source).render(broken(arguments), tools=(LOOK,)) == empty


def test_arguments_that_are_no_object_are_shown_where_a_template_looks_inside() -> None:
    assert '[assistant] (arguments={"word": "cut)' in lines(LOOKS_INSIDE, broken('{"word": "cut'))[0]


def test_control_tokens_in_broken_arguments_stay_text() -> None:
    literals = HiddenSpellings(Spellings(("<|im_end|>",)))
    text = render_in_process(templates.QWEN).render(broken("{<|im_end|>"), literals=literals)
    assert [span for span, is_hidden in literals.pieces(text) if is_hidden] == ["<|im_end|>"]


ANSWERS_RESULTS = EACH + (
    "{% if m.role == 'user' and loop.index0 and loop.previtem.role != 'assistant' %}"
    "{{ raise_exception('an answer must come behind a result') }}{% endif %}[{{ m.role }}] {{ m.content }}\n"
    "{% endfor %}{# tools <tool_call> tool_calls #}"
)


def test_what_is_said_after_a_result_follows_an_answer_where_it_must() -> None:
    events = "\n".join(lines(ANSWERS_RESULTS, TALK[1:]))
    assert events.endswith("[tool] a bird\n[tool] a deer\n[assistant] OK.\n[user] Sure?")
