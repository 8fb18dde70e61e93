"""System messages at the front, later, and in templates that refuse or drop them: no text is lost."""

from __future__ import annotations

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.errors import ModelFileError, RequestError
from eaglelocal.text.templates.chat_template import CHATML
from eaglelocal.text.templates.sandbox import Sandbox

EACH = "{% for m in messages %}"
SAID = "[{{ m.role }}] {{ m.content | trim }}\n"
END = "{% endfor %}"

# the telling lines of well-known templates
IN_FRONT = EACH + (  # Qwen3.5; Apertus and Ministral refuse it in other words
    "{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}" + SAID + END
)
FIRST_ONLY = (  # MiniMax, SmolLM3, Nemotron, Bielik, gpt-oss
    "{% if messages[0].role in ['system', 'developer'] %}[system] {{ messages[0].content }}\n{% endif %}"
    + EACH
    + "{% if m.role in ['user', 'assistant', 'tool'] %}"
    + SAID
    + "{% endif %}"
    + END
)
LAST_ONLY = (  # the distilled DeepSeek-R1
    "{% set ns = namespace(system_prompt='') %}" + EACH + "{% if m.role == 'system' %}"
    "{% set ns.system_prompt = m.content %}{% endif %}" + END + "[system] {{ ns.system_prompt }}\n" + EACH +
    "{% if m.role != 'system' %}" + SAID + "{% endif %}" + END
)  # fmt: skip
BY_TURNS = (  # Mistral
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% set ns = namespace(i=0) %}"
    "{% for m in rest %}{% if m.role != 'tool' and not m.tool_calls %}{% if (m.role == 'user') != (ns.i % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.i = ns.i + 1 %}{% endif %}"
    "{% if m.role == 'system' %}{{ raise_exception('only an initial system message') }}{% endif %}{% endfor %}" + EACH
    + SAID + END
)  # fmt: skip
WITH_THE_LAST = (  # Mistral Nemo
    BY_TURNS.split(EACH + SAID)[0] + "{% for m in rest %}{% if loop.last and m.role == 'user' and rest != messages %}"
    "[user] {{ messages[0].content }}\n\n{{ m.content }}\n{% else %}" + SAID + "{% endif %}" + END
)
NO_SYSTEM = (  # Gemma 2, but that it takes a system in the place of an answer
    EACH + "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + SAID + END
)  # fmt: skip
DEAF = EACH + "{% if m.role in ['user', 'assistant'] %}" + SAID + "{% endif %}" + END
EVERYWHERE = EACH + SAID + END
IN_JSON = EACH + "{{ {'role': m.role, 'said': m.content | trim} | tojson }}\n" + END

CALL = (ToolCall("call_1", "look_up", '{"word": "owl"}'),)
LOOK = Tool("look_up", "", '{"properties": {"word": {"type": "string"}}}')
ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}


def talk(letters: str) -> tuple[Message, ...]:
    """ "su" -> a system that says s0, a person that says u1; c calls a tool."""
    return tuple(
        Message(ROLES[letter], f"{letter}{i}", tool_calls=CALL if letter == "c" else ())
        if letter != "t"
        else Message("tool", f"t{i}", tool_call_id="call_1")
        for i, letter in enumerate(letters)
    )


def rendered(source: str, letters: str, tools: tuple[Tool, ...] = ()) -> str:
    """Roles and texts in one line, "|" before each role, "+" where texts were joined."""
    text = render_in_process(source + "{# tools tool_calls <tool_call> #}").render(talk(letters), tools=tools)
    return text.strip().replace("\n\n", "+").replace("\n[", "|").replace("] ", " ").removeprefix("[")


@pytest.mark.parametrize(
    ("source", "letters", "expected"),
    [
        (IN_FRONT, "ssu", "system s0+s1|user u2"),
        (IN_FRONT, "sus", "system s0|user u1|user s2"),
        (IN_FRONT, "us", "user u0|user s1"),
        (IN_FRONT, "suausu", "system s0|user u1|assistant a2|user u3|user s4|user u5"),
        (IN_FRONT, "ssuassu", "system s0+s1|user u2|assistant a3|user s4|user s5|user u6"),
        (IN_FRONT, "sucts", "system s0|user u1|assistant c2|tool t3|user s4"),
        (FIRST_ONLY, "sdu", "system s0+d1|user u2"),
        (FIRST_ONLY, "sus", "system s0|user u1|user s2"),
        (LAST_ONLY, "ssu", "system s0+s1|user u2"),
        (LAST_ONLY, "sdu", "system s0+d1|user u2"),
        (LAST_ONLY, "suasu", "system s0|user u1|assistant a2|user s3|user u4"),
        (BY_TURNS, "sus", "system s0|user u1+s2"),
        (BY_TURNS, "suausu", "system s0|user u1|assistant a2|user u3+s4+u5"),
        (BY_TURNS, "sucts", "system s0|user u1|assistant c2|tool t3|assistant OK.|user s4"),
        (BY_TURNS, "susctus", "system s0|user u1+s2|assistant c3|tool t4|assistant OK.|user u5+s6"),
        (BY_TURNS, "sau", "user s0|assistant a1|user u2"),
        (WITH_THE_LAST, "su", "user s0+u1"),
        (WITH_THE_LAST, "suct", "user s0+u1|assistant c2|tool t3"),
        (NO_SYSTEM, "ssu", "user s0+s1+u2"),
        (NO_SYSTEM, "susau", "user s0+u1+s2|assistant a3|user u4"),
        (NO_SYSTEM, "suaus", "user s0+u1|assistant a2|user u3+s4"),
        (NO_SYSTEM, "s", "user s0"),
        (DEAF, "su", "user s0+u1"),
        (DEAF, "suas", "user s0+u1|assistant a2|user s3"),
        (EVERYWHERE, "ssuasu", "system s0|system s1|user u2|assistant a3|system s4|user u5"),
    ],
)
def test_every_system_text_is_shown_where_it_stands(source: str, letters: str, expected: str) -> None:
    assert rendered(source, letters) == expected


@pytest.mark.parametrize("source", [IN_FRONT, FIRST_ONLY, BY_TURNS, NO_SYSTEM, EVERYWHERE])
def test_a_prompt_begins_like_the_one_before(source: str) -> None:
    once, twice = rendered(source, "susa"), rendered(source, "susaus")
    assert twice.startswith(once)


def test_it_is_the_same_where_tools_stand_in_the_system() -> None:
    text = render_in_process(FIRST_ONLY).render(talk("susu"), tools=(LOOK,))
    assert text.startswith("[system] s0\n\n# Tools\n") and "[user] s2\n" in text
    lost_before = render_in_process(LAST_ONLY).render(talk("us"), tools=(LOOK,))
    assert "# Tools" in lost_before and "[user] s1\n" in lost_before


# ---- what was right stays so
@pytest.mark.parametrize("source", [CHATML, templates.HARMONY, templates.QWEN, LAST_ONLY, IN_FRONT])
def test_one_system_in_front_is_shown_as_the_template_has_it(source: str) -> None:
    turns = [{"role": "system", "content": " /no_think "}, {"role": "user", "content": "u"}]
    plain = Sandbox().from_string(source).render(messages=turns, add_generation_prompt=True)
    assert render_in_process(source).render((Message("system", " /no_think "), Message("user", "u"))) == plain


@pytest.mark.parametrize("said", ['"quoted"\n\té', "  trimmed  ", "u2", "", " "])
def test_a_text_that_is_trimmed_quoted_empty_or_said_twice_is_not_taken_for_lost(said: str) -> None:
    messages = (Message("user", "u"), Message("system", said), Message("user", "u2"))
    assert render_in_process(IN_JSON).render(messages).count('"role": "system"') == 1


def test_a_text_that_stands_elsewhere_too_is_not_taken_for_shown() -> None:
    messages = (Message("system", "Be brief."), Message("user", "Be brief. Why?"), Message("system", "Be brief."))
    assert render_in_process(FIRST_ONLY).render(messages).count("Be brief.") == 3


def test_a_template_that_shows_it_nowhere_is_rendered_as_ever() -> None:
    assert render_in_process("{{ messages | length }}").render(talk("sus")) == "3"


def test_the_objection_is_the_one_to_the_usual_way() -> None:
    with pytest.raises(RequestError, match="no: system user system user"):
        rendered("{{ raise_exception('no: ' ~ messages | map(attribute='role') | join(' ')) }}", "susu")


def test_a_template_that_does_not_end_is_reported_as_one() -> None:
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ModelFileError, match="does not end"):
        rendered(endless, "sus")


def test_an_answer_goes_on_after_such_texts() -> None:
    text = render_in_process(IN_FRONT).render((*talk("sus"), Message("assistant", "So ")), continues=True)
    assert text.endswith("[user] s2\n[assistant] So ")
