"""Efforts in the words of each template, and closing words that each family's parser reads."""

from __future__ import annotations

import pytest
from doubles import chat_templates as templates
from doubles.inprocess_templates import render_in_process

from eaglelocal.core.request import Message
from eaglelocal.core.thinking import EFFORTS, Thinking, parse_thinking
from eaglelocal.errors import UsageError
from eaglelocal.text.reasoning.efforts import choose_budget, fill_values, list_efforts
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
SMALL_4 = "{% if reasoning_effort == 'high' or reasoning_effort != \"none\" %}[THINK]{% endif %}[/THINK]"
SEED = "{% if thinking_budget is defined %}{{ thinking_budget }}{% endif %}<seed:think>"
SWITCHED = "{% if enable_thinking %}<think>{% endif %}</think>"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (STRICT, ("low", "medium", "xhigh")),
        (SMALL_4, ("none", "low", "medium", "high")),
        (templates.HARMONY, ("low", "medium", "high")),
        (templates.HY, ("no_think", "low", "medium", "high")),
        (templates.DEEPSEEK, ()),
        (SWITCHED, ()),
        ("{{ reasoning_effort }}", ("low", "medium", "high")),
    ],
)
def test_the_words_of_a_template(template: str, words: tuple[str, ...]) -> None:
    assert list_efforts(template) == words


@pytest.mark.parametrize("effort", ["", *EFFORTS])
def test_a_strict_template_never_raises(effort: str) -> None:
    values = fill_values(Thinking(effort), {}, STRICT)
    assert "<|effort|>" in render_in_process(STRICT).render([QUESTION], values=values)


@pytest.mark.parametrize(
    ("effort", "template", "word"),
    [
        ("", STRICT, "medium"),
        ("", templates.HARMONY, "medium"),
        ("", templates.HY, None),  # which does not think unless it is told to
        ("", SWITCHED, None),
        ("minimal", STRICT, "low"),
        ("high", STRICT, "xhigh"),
        ("max", STRICT, "xhigh"),
        ("none", STRICT, "low"),
        ("none", templates.HY, "no_think"),
        ("max", templates.HARMONY, "high"),
        ("low", templates.DEEPSEEK, None),
    ],
)
def test_the_nearest_word_is_used(effort: str, template: str, word: str | None) -> None:
    assert fill_values(Thinking(effort), {}, template).get("reasoning_effort") == word


def test_values_of_the_request_win() -> None:
    given = {"reasoning_effort": "xhigh", "enable_thinking": False}
    values = fill_values(Thinking("low"), given, STRICT)
    assert values == given | {"thinking": False}  # the same switch in another family


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
    values = fill_values(thinking, {}, SWITCHED)
    assert (values.get("enable_thinking"), values.get("thinking")) == (switch, switch)


def test_a_template_that_tells_its_model_the_budget_gets_it() -> None:
    assert fill_values(Thinking(budget=512), {}, SEED)["thinking_budget"] == 512
    assert "thinking_budget" not in fill_values(Thinking(), {}, SEED)


@pytest.mark.parametrize(
    ("thinking", "template", "budget"),
    [
        (Thinking(), SWITCHED, None),
        (Thinking("low"), SWITCHED, 1024),
        (Thinking("high"), SWITCHED, 2000),  # half of the answer
        (Thinking("max"), SWITCHED, None),
        (Thinking("low"), STRICT, None),  # the template has the word
        (Thinking("low", 77), STRICT, 77),
        (Thinking(budget=9000), SWITCHED, 9000),
        (Thinking("none"), STRICT, 0),
    ],
)
def test_an_effort_is_a_budget_where_the_template_has_no_word(
    thinking: Thinking, template: str, budget: int | None
) -> None:
    assert choose_budget(thinking, template, 4000) == budget


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
        ("none", Thinking("none"), "off"),
        ("high", Thinking("high"), "high"),
        ("auto", Thinking(), ""),
    ],
)
def test_a_limit_in_words(text: str, thinking: Thinking, shown: str) -> None:
    assert parse_thinking(text) == thinking
    assert str(thinking) == shown


@pytest.mark.parametrize("text", ["-1", "much", "1.5", "", "99999999999", "Low"])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="must be a number of tokens, off, low, medium or high"):
        parse_thinking(text)
