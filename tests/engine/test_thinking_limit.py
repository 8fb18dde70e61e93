"""Reasoning that is closed at its budget: the same text whatever is drafted, in one step, and under a constraint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from doubles.engine_harness import AnswerResult, EngineHarness, drive
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.request import ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import Thinking
from eaglelocal.core.tools import Tool, ToolChoice, ToolUse
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.speculation.policy.step_report import Change, StepReport

OPEN, CLOSE, WORD, SPACE = 1, 2, 3, 4
WORDS = ["", "<think>", "</think>", "well ", "\n", *"abcdefghijklmnop", "\xc3", "\xa9"]
CLOSING = "well well \n"  # of four tokens, with the marker


class ThinkingVocabulary:
    """A token a word, and a character of two tokens. The template opens the reasoning, if `open` says so."""

    chat_template = "{{ messages[-1].content }}{% if open %}<think>{% endif %}{# <think> #}"
    bos_text = eos_text = ""
    control_texts = ("<think>", "</think>")
    max_token_bytes = None
    fill_tokens = None
    n_tokens = len(WORDS)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = []
        while text:
            token = next((n for n, word in enumerate(WORDS) if word and text.startswith(word)), 0)
            assert token, text
            tokens.append(token)
            text = text[len(WORDS[token]) :]
        return tokens

    def piece(self, token: int) -> bytes:
        return b"" if token in (0, OPEN, CLOSE) else WORDS[token].encode("latin-1")

    def spelled(self, token: int) -> bytes:
        return WORDS[token].encode("latin-1")

    def is_end(self, token: int) -> bool:
        return token == 0


def make_harness(seed: int, num_draft_tokens: int, num_slots: int = 1) -> EngineHarness:
    table = Table(len(WORDS), seed=seed)
    drafter: Drafter = Eagle3(ScriptedHead(table), (0,))
    vocabulary: object = ThinkingVocabulary()
    return EngineHarness(
        table,
        drafter,
        num_draft_tokens=num_draft_tokens,
        num_slots=num_slots,
        vocabulary=vocabulary,  # type: ignore[arg-type]
    )


def ask(name: str, budget: int | None, **fields: object) -> ChatRequest:
    known: dict[str, object] = {
        "messages": (Message("user", "ab"),),
        "template_values": (("open", "true"),),
        "params": SamplingParams(
            temperature=0.8, seed=3, max_tokens=60, thinking=Thinking(budget=budget, message=CLOSING)
        ),
        "is_split": True,
    }
    return ChatRequest(id=name, **known | fields)  # type: ignore[arg-type]


def answer(seed: int, length: int, budget: int | None, **fields: object) -> AnswerResult:
    return make_harness(seed, length).run([ask("a", budget, **fields)])["a"]


@examples(60)
@given(seed=st.integers(0, 10_000), budget=st.integers(0, 12), length=st.integers(1, 8))
def test_drafts_do_not_change_an_answer_with_a_budget(seed: int, budget: int, length: int) -> None:
    plain, drafted = answer(seed, 0, budget), answer(seed, length, budget)
    assert drafted.tokens == plain.tokens
    assert (drafted.reasoning, drafted.text) == (plain.reasoning, plain.text)


@examples(60)
@given(seed=st.integers(0, 10_000), budget=st.integers(0, 12))
def test_reasoning_ends_at_its_budget_with_the_closing_words(seed: int, budget: int) -> None:
    free, limited = answer(seed, 4, None), answer(seed, 4, budget)
    num_free = count_reasoning(free.tokens)
    if num_free < budget:
        assert limited.tokens == free.tokens  # it ended by itself
        return
    # a character is not cut: at most one token more
    cut = next(
        n for n in (budget, budget + 1) if limited.tokens[:n] == free.tokens[:n] and closes_at(limited.tokens, n)
    )
    assert cut == budget or WORDS[free.tokens[budget - 1]] == "\xc3"


def count_reasoning(tokens: Sequence[int]) -> int:
    return next((n for n, token in enumerate(tokens) if token in (0, CLOSE)), len(tokens))


def closes_at(tokens: Sequence[int], place: int) -> bool:
    words = [WORD, WORD, SPACE, CLOSE] if place else [CLOSE]
    return list(tokens[place : place + len(words)]) == words[: len(tokens) - place]


@pytest.mark.parametrize("length", [0, 4])
def test_the_closing_words_take_one_step(length: int) -> None:
    """The first of them may also end the step before, in which the budget was used up."""
    harness, steps = make_harness(11, length), list[int]()
    harness.engine.submit(ask("a", 5))
    tokens, number = list[int](), 0
    while harness.engine.has_work:
        result = AnswerResult()
        for event in harness.engine.step():
            result.add(event)
        tokens += result.tokens
        steps += [number] * len(result.tokens)
        number += 1
    assert closes_at(tokens, 5)
    assert len(set(steps[6:9])) == 1, steps


@pytest.mark.parametrize("length", [0, 3])
def test_slots_with_and_without_a_budget_do_not_disturb_each_other(length: int) -> None:
    budgets = {"a": 0, "b": 3, "c": None, "d": 9}
    together = make_harness(7, length, num_slots=4).run([ask(name, budget) for name, budget in budgets.items()])
    for name, budget in budgets.items():
        assert together[name].tokens == make_harness(7, 0).run([ask(name, budget)])[name].tokens


def test_forced_tokens_are_nobodys_drafts() -> None:
    result = answer(11, 0, 5)
    assert result.finished is not None
    assert not any(result.drafted)
    assert (result.finished.speculation.drafts, result.finished.speculation.draft_tokens) == (0, 0)


def test_forced_steps_teach_the_policy_nothing() -> None:
    """Rows without logits are cheap, and their tokens are no drafter's: both would mislead it."""
    harness = make_harness(11, 3)
    controller, learned = harness.engine.controller, list[int]()
    learn = controller.learn

    def note(report: StepReport) -> list[Change]:
        learned.append(report.num_tokens)
        return learn(report)

    controller.learn = note  # type: ignore[method-assign]
    result = harness.run([ask("a", 5)])["a"]
    assert closes_at(result.tokens, 5)
    assert sum(learned) <= len(result.tokens) - 4  # without the first token, and the words after the first forced one


def test_a_constraint_that_does_not_admit_the_closing_words_wins() -> None:
    bound = Constraint(Syntax.REGEX, "[e][e][e][e]")  # letters are tokens
    result = answer(5, 0, 2, constraint=bound)
    assert result.text or result.reasoning
    assert result.tokens == [5, 5, 5, 5, 0]


def test_with_tools_nothing_is_different() -> None:
    """This family has one way to go on: text and calls follow the same marker."""
    tools = (Tool("f"),)
    with_tools = answer(11, 3, 4, tools=tools, tool_choice=ToolChoice(use=ToolUse.AUTO))
    assert closes_at(with_tools.tokens, 4)


@pytest.mark.parametrize(("stops", "reason"), [(True, "stop"), (False, "length")])
def test_a_loop_is_ended_only_if_that_is_wanted(stops: bool, reason: str) -> None:
    table = Table(len(WORDS), seed=1)
    harness = EngineHarness(table, Eagle3(ScriptedHead(table, n_ctx=1024), (0,)), n_ctx=1024)
    bound = Constraint(Syntax.REGEX, "[e]" * 900)
    params = SamplingParams(temperature=0.0, max_tokens=700, stop_loops=stops)
    finished = harness.run([ChatRequest(id="a", tokens=(5, 6), params=params, constraint=bound)])["a"].finished
    assert finished is not None
    assert (finished.reason, finished.is_loop, finished.completion_tokens < 600) == (reason, stops, stops)


@pytest.mark.parametrize("budget", [2000, None])
def test_looping_thoughts_are_closed_under_a_budget_and_end_the_answer_without_one(budget: int | None) -> None:
    params = replace(ask("a", budget).params, max_tokens=700, stop_loops=True, logit_bias=((5, 1000.0),))
    results = []
    for num_draft_tokens in (0, 4):
        table = Table(len(WORDS), seed=2)
        harness = EngineHarness(
            table,
            Eagle3(ScriptedHead(table, n_ctx=1024), (0,)),
            n_ctx=1024,
            num_draft_tokens=num_draft_tokens,
            vocabulary=ThinkingVocabulary(),  # type: ignore[arg-type]
        )
        results.append(harness.run([ask("a", budget, params=params)])["a"])
    plain, drafted = results
    num_thoughts = plain.reasoning.count("a")
    assert drafted.tokens == plain.tokens and 500 < num_thoughts < 600
    assert closes_at(plain.tokens, num_thoughts)
    assert plain.finished is not None and plain.finished.is_loop is (budget is None)
    assert plain.text == "a" * (0 if budget is None else 700 - num_thoughts - 4)


def test_a_limit_does_not_touch_an_answer_to_a_raw_prompt() -> None:
    raw = ChatRequest(id="a", tokens=(5, 6), params=SamplingParams(thinking=Thinking(budget=0), max_tokens=8, seed=1))
    free = replace(raw, params=replace(raw.params, thinking=Thinking()))
    limited, unlimited = (drive(make_harness(5, 2).engine, [one])["a"].tokens for one in (raw, free))
    assert limited == unlimited
