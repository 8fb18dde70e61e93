"""Chat templates: what Hugging Face templates expect, and what goes wrong in them."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.errors import ModelFileError, RequestError
from eaglelocal.text.templates.chat_template import MAX_TEMPLATE_BYTES, chat_template

HELLO = (Message("user", "hello"),)
TALK = (Message("system", "be brief"), Message("user", "1 < 2 & 'so'?"), Message("assistant", "yes"))

LLAMA_2 = """\
{% if messages[0]['role'] == 'system' %}
    {% set loop_messages = messages[1:] %}
    {% set system_message = messages[0]['content'] %}
{% else %}
    {% set loop_messages = messages %}
    {% set system_message = false %}
{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% if loop.index0 == 0 and system_message != false %}
        {% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}
        {% set content = message['content'] %}
    {% endif %}
    {% if message['role'] == 'user' %}
        {{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {{ ' ' + content.strip() + ' ' + eos_token }}
    {% endif %}
{% endfor %}
"""


def render(source: str, messages: tuple[Message, ...] = HELLO) -> str:
    return render_in_process(source, bos_text="<s>", eos_text="</s>").render(messages)


def test_a_real_template_renders_as_its_model_was_trained() -> None:
    text = re.sub(r"^ +", "", render(LLAMA_2, TALK), flags=re.MULTILINE)
    assert text == "<s>[INST] <<SYS>>\nbe brief\n<</SYS>>\n\n1 < 2 & 'so'? [/INST]\nyes </s>\n"


def test_block_tags_leave_no_blank_lines() -> None:
    assert render("  {% if true %}\na\n  {% endif %}\nb") == "a\nb"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hello"}]'),
        ("{{ {'a': '<é&\\''} | tojson }}", '{"a": "<é&\'"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ tools is none }} {{ documents is none }} {{ nothing is defined }}", "True True False"),
        ("{{ bos_token ~ 1 ~ eos_token }}", "<s>1</s>"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("{% for m in messages %}{{ loop.last }}{{ loop.length }}{{ loop.previtem is defined }}{% endfor %}",
         "True1False"),
        ("{% for tool in tools %}x{% else %}no tools{% endfor %}", "no tools"),
        ("{% for x in missing %}x{% else %}none{% endfor %}", "none"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hello"),
        ("{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "321"),
        ("{% set ns = namespace(n=0) %}{% for i in range(3) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{{ '-' * 3 }}{{ [1] + [2] }}{{ 2 ** 3 }}{{ '%s!' | format('a') }}", "---[1, 2]8a!"),
        ("{{ '%02d' % 5 }}{% if add_generation_prompt %}:{% endif %}", "05:"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, expected: str) -> None:
    assert render(source) == expected


def test_the_date_is_today() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.now().year)


def test_an_answer_that_goes_on_has_no_generation_prompt() -> None:
    template = render_in_process("{{ add_generation_prompt }}{{ messages[0].content }}")
    assert template.render(HELLO) == "Truehello"
    assert template.render(HELLO, continues=True) == "Falsehello"


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_without_a_template_chatml_stands_in_and_says_so(source: str | None) -> None:
    template = render_in_process(source)
    assert template.is_fallback
    assert "no chat template" in template.note
    assert template.stops == ("<|im_end|>",)
    assert template.render(HELLO) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def test_a_file_with_a_template_has_no_note() -> None:
    template = render_in_process("x")
    assert (template.is_fallback, template.note, template.stops) == (False, "", ())


def test_refusal_of_the_template_is_an_error_of_the_request() -> None:
    with pytest.raises(RequestError, match=r"refuses the conversation: .*must alternate"):
        render(LLAMA_2, (Message("assistant", "first"),))


def test_no_messages() -> None:
    with pytest.raises(RequestError, match="at least one message"):
        render("x", ())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a\n{% if %}", "line 2"),
        ("a\nb\n{{ x | nosuchfilter }}", "line 3.*nosuchfilter"),
        ("a\n{{ missing.field }}", "line 2.*missing"),
        ("{{ 1 }}\n{% for m in messages %}\n{{ m.content / 2 }}\n{% endfor %}", "line 3"),
        ("{{ messages.insert(0, 1) }}", "line 1"),
        ("{{ ''.__class__.__mro__ }}", "line 1.*unsafe"),
        ("{{ messages | attr('__class__') }}{{ (messages | attr('__class__')).__name__ }}", "line 1"),
        ("{% include 'other' %}", "line 1"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "cannot be compiled"),
        pytest.param("x" * (MAX_TEMPLATE_BYTES + 1), str(MAX_TEMPLATE_BYTES + 1), id="too large"),
    ],
)
def test_a_broken_template_names_its_line(source: str, words: str) -> None:
    with pytest.raises(ModelFileError, match=words):
        render(source)


def test_constant_loops_are_counted_too() -> None:
    ten = "[1,2,3,4,5,6,7,8,9,0]"
    loops = [f"{{% for x{i} in {ten} %}}" for i in range(9)]
    with pytest.raises(ModelFileError, match="loop iterations"):
        render("".join(loops) + "x" + "{% endfor %}" * 9)


def test_the_output_is_limited() -> None:
    with pytest.raises(RequestError, match="characters"):
        render("{% for i in range(9) %}{{ 'x' * 1000000 }}{% endfor %}")


def test_every_rendering_has_the_whole_budget() -> None:
    template = render_in_process("{% for i in range(99999) %}{% endfor %}done")
    assert [template.render(HELLO) for _ in range(7)] == ["done"] * 7


class TemplateVocabulary:
    """A vocabulary that has a template and nothing to tokenize."""

    n_tokens = 0
    chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    bos_text = "<b>"
    eos_text = "<e>"

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return []

    def piece(self, token: int) -> bytes:
        raise IndexError(token)

    def is_end(self, token: int) -> bool:
        return False


def test_the_vocabulary_gives_template_and_special_tokens() -> None:
    template = chat_template(TemplateVocabulary())
    assert template.render(HELLO) == "<b>hello<e>"
    template.close()
