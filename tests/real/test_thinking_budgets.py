"""A real model that thinks, with a budget: what drafts do not change, and the text after it is the target's own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.engine_harness import drive
from doubles.margin import find_bound, margin_differences
from doubles.real_engine import ask, real_engine
from doubles.rendered_here import RenderedHere

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.request import AUTO_SPEC, ChatRequest, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.thinking import CLOSING_WORDS, Thinking
from eaglelocal.engine.engine import Engine
from eaglelocal.text.templates.chat_template import ChatTemplate

pytestmark = [pytest.mark.full, pytest.mark.real]

SIZES = {"n_ctx": 512, "n_batch": 256}
# SmolLM2's own, which opens a thought: the markers are text of several tokens there
TEMPLATE = """\
{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\
{% endfor %}{{ '<|im_start|>assistant\\n<think>\\n' }}"""
QUESTIONS = ("Why is the sky blue?", "Write a function that adds two numbers in Python.", "Count from one to ten.")
BUDGETS = (0, 17, 48)
MAX_TOKENS = 120


def thinking_engine(smollm2: Path, kind: str, length: int) -> Engine:
    draft = smollm2 if kind == "draft_model" else None
    engine = real_engine(smollm2, kind, draft, num_draft_tokens=length, num_slots=3, **SIZES)
    engine.input_processor.template.close()
    engine.input_processor.template = ChatTemplate(TEMPLATE, process=RenderedHere())
    return engine


@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("ngram", 8), ("draft_model", 4)])
def test_thinking_ends_at_its_budget_whatever_is_drafted(smollm2: Path, kind: str, length: int) -> None:
    engine = thinking_engine(smollm2, kind, length)
    params = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [
        ChatRequest(
            id=question,
            messages=(Message("user", question),),
            is_split=True,
            params=replace(params, thinking=Thinking(budget=budget)),
        )
        for question, budget in zip(QUESTIONS, BUDGETS, strict=True)
    ]
    prompts = {one.id: engine.input_processor.make_prompt(one).tokens for one in requests}
    limits = {one.id: engine.input_processor.read(one).reasoning_limit for one in requests}
    results = drive(engine, requests)
    engine.close()
    plain = real_engine(smollm2, **SIZES)
    for one, budget in zip(requests, BUDGETS, strict=True):
        result, limit, prompt = results[one.id], limits[one.id], prompts[one.id]
        assert limit is not None
        closing = list(limit.closings[0])
        cut = next(n for n in range(budget, budget + 8) if result.tokens[n : n + len(closing)] == closing)
        check_part(plain, smollm2, prompt, result.tokens[:cut])
        check_part(plain, smollm2, (*prompt, *result.tokens[: cut + len(closing)]), result.tokens[cut + len(closing) :])
        assert result.reasoning.endswith(CLOSING_WORDS.rstrip()) == (budget > 0)
        assert len(result.tokens) == MAX_TOKENS
        assert result.text
    plain.close()


@pytest.mark.parametrize(("kind", "length"), [("none", 0), ("ngram", 6), ("draft_model", 4)])
def test_a_schema_holds_behind_the_closing_words(smollm2: Path, kind: str, length: int) -> None:
    engine = thinking_engine(smollm2, kind, length)
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
    request = ChatRequest(
        id="a",
        messages=(Message("user", "How many legs has a dog? Answer in JSON."),),
        is_split=True,
        params=SamplingParams(temperature=0.0, max_tokens=150, thinking=Thinking(budget=12)),
        constraint=Constraint(Syntax.JSON_SCHEMA, json.dumps({**schema, "additionalProperties": False})),
    )
    result = drive(engine, [request])["a"]
    engine.close()
    assert result.failed is None
    assert CLOSING_WORDS.strip() in result.reasoning
    assert isinstance(json.loads(result.text)["n"], int)


@pytest.mark.parametrize("kind", ["none", "ngram"])
def test_log_probabilities_of_the_closing_words_are_reported(smollm2: Path, kind: str) -> None:
    """Rows whose logits nobody reserved would end the process."""
    engine = thinking_engine(smollm2, kind, 4)
    params = SamplingParams(temperature=0.0, max_tokens=60, logprobs=1, ignore_eos=True, thinking=Thinking(budget=4))
    request = ChatRequest(id="a", messages=(Message("user", "Hello"),), is_split=True, params=params, spec=AUTO_SPEC)
    result = drive(engine, [request])["a"]
    engine.close()
    assert CLOSING_WORDS.strip() in result.reasoning


def check_part(plain: Engine, smollm2: Path, prompt: tuple[int, ...], tokens: list[int]) -> None:
    margin_differences(plain, ask("part", prompt), tokens, find_bound(smollm2))
