"""Efforts in the words of each template, and closing words that each family's parser reads."""

from __future__ import annotations

from functools import cache

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.core.thinking import EFFORTS, Efforts, Thinking, parse_thinking
from eaglelocal.errors import UsageError
from eaglelocal.text.reasoning.efforts import choose_budget, describe_efforts, describe_thinking, fill_values
from eaglelocal.text.reasoning.markers import make_control_char
from eaglelocal.text.reasoning.model_families import detect_family, list_markers
from eaglelocal.text.reasoning.split_answer import SplitText

QUESTION = Message("user", "Well?")
# as Qwen3.8 writes it: other words raise, and without one the highest is meant
STRICT = """\
{%- set effort = reasoning_effort if reasoning_effort is defined else 'xhigh' %}
{%- if reasoning_effort is defined and reasoning_effort not in ['low', 'medium', 'xhigh'] %}
    {{- raise_exception('unknown reasoning_effort') }}
{%- endif %}
{{- messages[-1].content + '<|effort|>' + effort + '<think>' }}
"""
SMALL_4 = """\
{%- set effort = reasoning_effort | default('none') %}
{%- if effort not in ['none', 'high'] %}{{- raise_exception('unknown reasoning_effort') }}{%- endif %}
{{- messages[-1].content + '<think>' + ('</think>' if effort == 'none' else '') }}
"""
SOLAR = """\
{%- set effort = reasoning_effort | default('high') %}
{{- messages[-1].content + '<think>' + ('</think>' if effort in ['low', 'minimal'] else '') }}
"""
PREFIXED = """\
{%- if enable_thinking and reasoning_effort in ['high', 'max'] %}{{- 'Effort: ' + reasoning_effort }}{%- endif %}
{{- messages[-1].content + '<think>' + ('' if enable_thinking else '</think>') }}
"""
KIMI = STRICT.replace("reasoning_effort", "thinking_effort").replace("'medium'", "'high'").replace("xhigh", "max")
NEEDY = STRICT.replace("reasoning_effort is defined and ", "")
SEED = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}<seed:think>"
SWITCHED = "{% if enable_thinking %}<think>{% endif %}</think>"


@cache
def efforts_of(template: str) -> Efforts:
    return render_in_process(template).efforts


@pytest.mark.parametrize(
    ("template", "words", "off", "thinks"),
    [
        (STRICT, ("low", "medium", "xhigh"), "", True),
        (SMALL_4, ("high",), "none", False),
        (SOLAR, (), "minimal", True),
        (PREFIXED, ("high", "max"), "", False),
        (KIMI, ("low", "high", "max"), "", True),
        (NEEDY, ("low", "medium", "xhigh"), "", True),
        (templates.HARMONY, ("low", "medium", "high"), "", True),
        (templates.HY, (), "no_think", False),
        (templates.DEEPSEEK, (), "", True),
    ],
)
def test_a_template_shows_its_efforts(template: str, words: tuple[str, ...], off: str, thinks: bool) -> None:
    efforts = efforts_of(template)
    assert (efforts.words, efforts.off, efforts.thinks) == (words, off, thinks)


@pytest.mark.parametrize("effort", ["", *EFFORTS])
@pytest.mark.parametrize("template", [STRICT, SMALL_4, KIMI, NEEDY])
def test_a_strict_template_never_raises(template: str, effort: str) -> None:
    values = fill_values(Thinking(effort), {}, template, efforts_of(template))
    assert "<think>" in render_in_process(template).render([QUESTION], values=values)


@pytest.mark.parametrize(
    ("effort", "template", "word"),
    [
        ("", STRICT, "medium"),
        ("", templates.HARMONY, "medium"),
        ("", SMALL_4, None),  # which does not think unless it is asked to
        ("", SWITCHED, None),
        ("minimal", STRICT, "low"),
        ("high", STRICT, "xhigh"),
        ("max", STRICT, "xhigh"),
        ("none", STRICT, "low"),
        ("medium", SMALL_4, "high"),
        ("none", SMALL_4, "none"),
        ("high", SOLAR, None),  # to which `low` means not to think
        ("low", SOLAR, None),
        ("none", SOLAR, "minimal"),
        ("low", PREFIXED, None),  # whose `high` is the most
        ("max", PREFIXED, "max"),
        ("none", PREFIXED, None),
        ("medium", KIMI, "high"),
        ("max", templates.HARMONY, None),
        ("low", templates.DEEPSEEK, None),
    ],
)
def test_the_nearest_word_is_used(effort: str, template: str, word: str | None) -> None:
    efforts = efforts_of(template)
    values = fill_values(Thinking(effort), {}, template, efforts)
    assert values.get(efforts.variable or "reasoning_effort") == word


def test_values_of_the_request_win() -> None:
    given = {"reasoning_effort": "xhigh", "enable_thinking": False}
    values = fill_values(Thinking("low"), given, STRICT, efforts_of(STRICT))
    assert values == given | {"thinking": False}  # the same switch in another family


@pytest.mark.parametrize(("switch", "word"), [(True, "high"), (False, "none")])
def test_a_switch_is_an_effort_where_the_template_has_no_switch(switch: bool, word: str) -> None:
    values = fill_values(Thinking(), {"enable_thinking": switch}, SMALL_4, efforts_of(SMALL_4))
    assert values["reasoning_effort"] == word


@pytest.mark.parametrize(
    ("thinking", "switch"),
    [
        (Thinking(), None),
        (Thinking(budget=512), None),
        (Thinking(budget=0), False),
        (Thinking("none", 512), False),
        (Thinking("high"), True),
    ],
)
def test_an_effort_switches_thinking_on_and_a_budget_of_nothing_off(thinking: Thinking, switch: bool | None) -> None:
    values = fill_values(thinking, {}, SWITCHED, efforts_of(SWITCHED))
    assert (values.get("enable_thinking"), values.get("thinking")) == (switch, switch)


def test_a_template_that_tells_its_model_the_budget_gets_it() -> None:
    assert fill_values(Thinking(budget=512), {}, SEED, Efforts())["thinking_budget"] == 512
    assert "thinking_budget" not in fill_values(Thinking(), {}, SEED, Efforts())


@pytest.mark.parametrize(
    ("thinking", "template", "budget"),
    [
        (Thinking(), SWITCHED, None),
        (Thinking("low"), SWITCHED, 1024),
        (Thinking("high"), SWITCHED, 2000),  # half of the answer
        (Thinking("max"), SWITCHED, None),
        (Thinking("low"), STRICT, None),  # the template has the word
        (Thinking("low"), SMALL_4, 1024),  # its only one means more
        (Thinking("low"), PREFIXED, 1024),
        (Thinking("low", 77), STRICT, 77),
        (Thinking(budget=9000), SWITCHED, 9000),
        (Thinking("none"), STRICT, 0),
    ],
)
def test_an_effort_is_a_budget_where_the_template_has_no_word(
    thinking: Thinking, template: str, budget: int | None
) -> None:
    assert choose_budget(thinking, efforts_of(template), 4000) == budget


@pytest.mark.parametrize(
    ("thinking", "template", "said"),
    [
        (Thinking(), STRICT, "medium effort"),
        (Thinking("low", 512), STRICT, "low effort, at most 512 tokens and the words that end them"),
        (Thinking("low"), SWITCHED, "low effort, at most 1000 tokens and the words that end them"),
        (Thinking(), SWITCHED, "as long as the model likes"),
        (Thinking(budget=50, message=""), SWITCHED, "at most 50 tokens"),
        (Thinking(budget=0), STRICT, "off"),
    ],
)
def test_a_limit_is_described(thinking: Thinking, template: str, said: str) -> None:
    assert describe_thinking(thinking, efforts_of(template), room=2000) == said


def test_the_usual_effort_is_said_with_the_others() -> None:
    said = describe_efforts(efforts_of(STRICT))
    assert "medium effort; --thinking-budget or /think sets another" in said
    assert "off, low, medium, high, or a number of tokens" in said
    assert describe_efforts(efforts_of(SMALL_4)) == ""


THINKING = {
    "qwen": SWITCHED,
    "deepseek": templates.DEEPSEEK,
    "gpt-oss": templates.HARMONY,
    "gemma": templates.GEMMA,
    "mistral": templates.MINISTRAL,
    "hy": templates.HY,
    "muse": templates.MUSE,
    "solar": templates.SOLAR,
    "apertus": templates.APERTUS,
    "seed": SEED,
}


@pytest.mark.parametrize("may_call", [False, True])
@pytest.mark.parametrize("name", THINKING)
def test_the_closing_words_end_the_reasoning(name: str, may_call: bool) -> None:
    family = detect_family(THINKING[name])
    split = family.make_split()
    words, end = family.list_closings(" Enough.\n", may_call=may_call)[0]
    headers = family.form.headers
    opening = headers.reasoning if headers else "".join((split.reasoning_markers or ("", ""))[:1])
    behind = headers.text if headers and may_call else ""  # the model begins its next message itself
    written = f"{opening}hm{words}{end}{behind}Yes."
    for index, marker in sorted(enumerate(list_markers(split)), key=lambda found: -len(found[1])):
        written = written.replace(marker, make_control_char(index))
    splitter = SplitText(split, str)
    pieces = [splitter.push(part) for part in written] + [splitter.finish("")]
    assert "".join(piece.reasoning for piece in pieces).rstrip() == "hm Enough."
    assert "".join(piece.text for piece in pieces) == "Yes."


@pytest.mark.parametrize(
    ("text", "thinking", "shown"),
    [
        ("512", Thinking(budget=512), "512"),
        ("0", Thinking(budget=0), "off"),
        ("off", Thinking(budget=0), "off"),
        ("none", Thinking(budget=0), "off"),
        ("high", Thinking("high"), "high"),
        ("auto", Thinking(), ""),
    ],
)
def test_a_limit_in_words(text: str, thinking: Thinking, shown: str) -> None:
    assert parse_thinking(text) == thinking
    assert str(thinking) == shown


@pytest.mark.parametrize("text", ["-1", "much", "1.5", "", "99999999999", "Low"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be off, low, medium, high, or a number of tokens"):
        parse_thinking(text)
