"""Templates that would use all time or memory end with an error in their process; the next chat is served."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.hostile_templates import COMPILING, HONEST, HOSTILE, LIMITS, RUNNING, limited_template, switched
from doubles.inprocess_templates import render_in_process
from doubles.tiers import some_of

from eaglelocal.core.request import Message
from eaglelocal.core.tools import Tool, ToolCall
from eaglelocal.errors import EagleLocalError, ModelFileError, RequestError, ResourceError
from eaglelocal.processes.limited_process import ProcessLimits
from eaglelocal.text.reasoning.model_families import detect_family
from eaglelocal.text.templates.chat_template import CHATML, ChatTemplate
from eaglelocal.text.templates.literal_text import IMAGE, MAX_SHOWN, OPEN, HiddenSpellings, Spellings

pytestmark = pytest.mark.full

NUM_MADE = 2000
LOOK = Tool("look", "", "{}")
TESTS = Path(__file__).parents[2]
WORDS = (
    "the chat template (does not end|fails|cannot be compiled|cannot be read)|"
    "the model's chat template refuses|the rendered conversation has more than"
)


def end_of(template: ChatTemplate, messages: tuple[Message, ...] = HOSTILE) -> EagleLocalError | str:
    try:
        return template.render(messages)
    except EagleLocalError as error:
        return error


def assert_is_plain(end: EagleLocalError | str) -> None:
    """A text, or an error that a person can read, from within the limits."""
    if isinstance(end, str):
        assert len(end) <= 8 * 2**20
        return
    assert isinstance(end, (ModelFileError, RequestError))
    assert re.match(WORDS, end.message)
    assert len(end.message) < 1200


@pytest.mark.parametrize("source", some_of(RUNNING, len(RUNNING) // 2, rest=pytest.mark.slow), ids=range(len(RUNNING)))
def test_a_hostile_template_ends_and_an_honest_conversation_is_rendered_after_it(source: str) -> None:
    template = limited_template(switched(source))
    assert_is_plain(end_of(template))
    assert template.render(HONEST) == "hello"
    template.close()


@pytest.mark.parametrize("source", COMPILING, ids=range(len(COMPILING)))
def test_a_template_that_is_hostile_to_its_compiler_ends(source: str) -> None:
    template = limited_template(source)
    assert_is_plain(end_of(template))
    template.close()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_MADE, 250))
def test_none_of_many_made_templates_goes_beyond_its_limits(first: int) -> None:
    """Their processes start twice at most, for a second conversation; what that takes stands beside the limit."""
    command = [sys.executable, "-m", "doubles.hostile_templates", str(first), str(first + 250)]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True, timeout=3600)
    *tried, most = map(json.loads, done.stdout.splitlines())
    assert len(tried) == 250
    assert [one for one in tried if one["honest"] != "hello"] == []
    assert [one for one in tried if one["cpu_s"] > LIMITS.cpu_s + 3.0] == []
    assert most["most_bytes"] < LIMITS.memory_bytes + 64 * 2**20
    ends = [one["end"] for one in tried]
    assert all(end.startswith(("text", "ModelFileError: the chat template", "RequestError: the")) for end in ends)


# ---- what is said
@pytest.fixture
def endless() -> Iterator[ChatTemplate]:
    template = limited_template(
        switched("{{ 9 ** ((messages|length + 8) ** 9) }}"), ProcessLimits(0.2, 2**26, max_deaths=2)
    )
    yield template
    template.close()


def test_the_error_says_how_long_it_ran_and_after_some_it_comes_at_once(endless: ChatTemplate) -> None:
    for _ in range(3):
        with pytest.raises(ModelFileError, match=r"^the chat template does not end: it ran for 0\.2 s$"):
            endless.render(HOSTILE)
    with pytest.raises(ModelFileError, match="does not end"):  # refused as well: no process is started for a while
        endless.render(HONEST)


def test_an_endless_loop_is_reported_with_its_line() -> None:
    source = "a\n{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = limited_template(source, ProcessLimits(cpu_s=30, memory_bytes=2**27))
    with pytest.raises(
        ModelFileError, match=r"^the chat template does not end at line 2: more than 500000 loop iterations"
    ):
        template.render(HONEST)
    template.close()


def test_too_much_memory_is_reported_with_its_line() -> None:
    template = limited_template("a\nb{{ messages[0].content * 1000000000 }}")
    with pytest.raises(ModelFileError, match=r"^the chat template fails at line 2: it takes more than 96 MiB$"):
        template.render(HONEST)
    template.close()


def test_no_process_is_an_error_and_nothing_is_rendered_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ResourceError, match=r"^the chat template cannot run: no process can be started for it"):
        ChatTemplate(CHATML).render(HONEST)


def test_a_broken_template_is_reported_when_it_is_checked() -> None:
    template = ChatTemplate("a\n{% if %}")
    for _ in range(2):
        with pytest.raises(ModelFileError, match="cannot be read at line 2"):
            template.check()
    with pytest.raises(ModelFileError, match="cannot be read at line 2"):
        template.render(HONEST)


def test_a_closed_template_renders_no_more() -> None:
    template = ChatTemplate(CHATML)
    template.start()
    assert template.render(HONEST)
    template.close()
    with pytest.raises(ResourceError, match="closed"):
        template.render(HONEST)


# ---- what a template is given is its own
@pytest.mark.parametrize(
    "change",
    [
        "{% set _ = messages.pop() %}",
        "{% set _ = messages.append(messages) %}",
        "{% set _ = messages.append('x') %}",
        "{% set _ = tools.pop() %}",
        "{% for m in messages %}{% if m.tool_calls %}{% set _ = m.tool_calls.pop() %}{% endif %}{% endfor %}",
        "{% set _ = kept.append(1) %}",
    ],
)
def test_what_it_changes_is_gone_with_the_rendering(change: str) -> None:
    """Ways are tried until one has no system in front, with a sketch before each; the last sees all there was."""
    first = "{# tools tool_calls <tool_call> #}{% set first = messages[0].role %}"
    shown = "{{ messages|tojson }} {{ tools|tojson }} {{ kept|tojson }}"
    refusal = "{% if first == 'system' %}{{ raise_exception('no') }}{% endif %}"
    call = ToolCall("a", "look", "{}")
    messages = (
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "t", tool_call_id="a"),
    )
    changing, plain = (render_in_process(first + shown + part + refusal) for part in (change, ""))
    for _ in range(2):
        rendered = [one.render(messages, tools=(LOOK,), values={"kept": [0]}) for one in (changing, plain)]
        assert rendered[0] == rendered[1]
        assert rendered[0].count('"role": "') == 3


def test_every_failure_inside_is_the_templates() -> None:
    for source in (
        "{{ messages.append(messages) }}{{ messages|tojson }}",
        "{% set _ = messages.append(7) %}{{ 1 / 0 }}",
    ):
        with pytest.raises(ModelFileError, match=r"^the chat template fails at line 1: "):
            render_in_process(source).render((Message("user", "u"), Message("system", "s")))


# ---- what is done here with what it renders, and with its source
def test_marks_that_it_makes_up_are_its_own_text() -> None:
    literals = HiddenSpellings(Spellings(("<s>",)))
    hidden = literals.hide("<s>")
    made_up = f"{OPEN}7\ue001 {IMAGE}0\ue001 {OPEN}{'9' * 5000}\ue001"
    assert list(literals.pieces(f"{made_up}{hidden}.")) == [(made_up, False), ("<s>", True), (".", False)]


def test_it_cannot_multiply_what_people_wrote() -> None:
    literals = HiddenSpellings(Spellings(("<s>",)))
    hidden = literals.hide("<s>")
    assert len(list(literals.pieces(hidden * MAX_SHOWN))) == MAX_SHOWN
    with pytest.raises(ModelFileError, match=f"more than {MAX_SHOWN} times"):
        list(literals.pieces(hidden * (MAX_SHOWN + 1)))


def test_a_family_is_detected_in_no_more_memory_than_the_source_has() -> None:
    """The suffix was put in each of a template's braces, whatever its length: gigabytes, in `show` too."""
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))\n"
        "from eaglelocal.text.reasoning.model_families import detect_family\n"
        "detect_family('{}' * 60_000 + \"HYTK = ':\" + 'x' * 120_000 + \"'\")\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, env={**os.environ})
    assert detect_family("HYTK = ':opensource' <arg_key{}> <tool_sep{}> tools").takes_tools
