"""Answers with a constraint, on scripted models: the text obeys it, is the same with any drafts, and ends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import AnswerResult, EngineHarness
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table, letter_sets

from eaglelocal.core.constraint import Constraint, Syntax
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.engine.input_processor import InputProcessor

TABLE = Table(seed=3)
SETS = "[abcdef][ghijkl]" * 12 + "[mnopqrs]" * 6
BOUND = Constraint(Syntax.REGEX, SETS)
SEEDED = SamplingParams(temperature=1.2, seed=11)


def harness_of(kind: str, num_draft_tokens: int = 4, num_slots: int = 1) -> EngineHarness:
    drafters = {
        "none": NoDrafter,
        "right": lambda: Eagle3(ScriptedHead(TABLE), (0,)),
        "wrong": lambda: DraftModel(ScriptedContext(Table(seed=3, sharpness=-2.0), gives_features=False)),
        "ngram": lambda: Ngram(128),
    }
    return EngineHarness(TABLE, drafters[kind](), num_draft_tokens=num_draft_tokens, num_slots=num_slots)


def bound(name: str = "a", constraint: Constraint = BOUND, params: SamplingParams = GREEDY) -> ChatRequest:
    return ChatRequest(id=name, tokens=(3, 1, 4, 1, 5), params=params, constraint=constraint)


def say(harness: EngineHarness, request: ChatRequest) -> AnswerResult:
    return harness.run([request])[request.id]


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("kind", ["right", "wrong", "ngram"])
@pytest.mark.parametrize("length", [1, 4, 8])
def test_a_bound_answer_is_the_same_however_it_is_drafted(kind: str, length: int, params: SamplingParams) -> None:
    plain = say(harness_of("none"), bound(params=params))
    drafted = say(harness_of(kind, length), bound(params=params))
    assert re.fullmatch(SETS, plain.text)
    assert (drafted.tokens, drafted.text) == (plain.tokens, plain.text)
    assert plain.finished is not None and plain.finished.reason == "stop"


@pytest.mark.parametrize("params", [GREEDY, SEEDED, replace(SEEDED, repeat_penalty=1.5, logit_bias=((2, 3.0),))])
def test_bound_and_free_answers_run_side_by_side(params: SamplingParams) -> None:
    requests = [
        bound("a", params=params),
        replace(bound("b", params=params), constraint=None),
        bound("c", params=params),
    ]
    together = harness_of("right", num_slots=2).run(requests)
    for request in requests:
        assert together[request.id].text == say(harness_of("none"), request).text
    assert together["a"].text == together["c"].text != together["b"].text


def test_the_end_of_the_form_ends_the_answer_even_where_ends_are_ignored() -> None:
    result = say(
        harness_of("right"),
        bound(constraint=Constraint(Syntax.REGEX, "[abc][abc]"), params=replace(GREEDY, ignore_eos=True)),
    )
    assert len(result.text) == 2 and len(result.tokens) == 3
    assert result.finished is not None and result.finished.reason == "stop"


@pytest.mark.parametrize("kind", ["none", "right"])
def test_an_answer_without_a_token_that_fits_fails_alone(kind: str) -> None:
    stuck = bound("stuck", Constraint(Syntax.REGEX, "[ab][z]"))  # the vocabulary ends before z
    result = harness_of(kind, num_slots=2).run([stuck, bound("b"), bound("c")])
    assert result["stuck"].failed is not None and result["stuck"].finished is None
    assert result["stuck"].failed.error.message == "the model has no token that fits"
    assert result["b"].text == result["c"].text == say(harness_of("none"), bound()).text


@pytest.mark.parametrize("kind", ["none", "right"])
def test_what_would_not_fit_after_a_stop_fails_nothing(kind: str) -> None:
    stuck = Constraint(Syntax.REGEX, "[abcdefghijklmnopqrs]" * 3 + "[z]")
    last = say(harness_of("none"), bound(constraint=stuck)).text[2]
    result = say(harness_of(kind), bound(constraint=stuck, params=replace(GREEDY, stop=(last,))))
    assert result.failed is None and result.finished is not None and result.finished.stop == last


def test_a_form_that_cannot_be_is_refused_before_a_slot_is_taken() -> None:
    harness = harness_of("none")
    result = say(harness, bound(constraint=Constraint(Syntax.REGEX, "a+b")))
    assert result.started is None and result.failed is not None
    assert result.failed.error.parameter == "response_format"  # type: ignore[attr-defined]
    assert harness.context.samplers == []


def test_an_engine_without_forms_refuses_them() -> None:
    intake = InputProcessor(harness_of("none").engine.input_processor.vocabulary, 128)
    with pytest.raises(Exception, match="cannot constrain"):
        intake.read(bound())


def test_a_bound_answer_may_be_cut_short() -> None:
    result = say(harness_of("right"), bound(params=replace(GREEDY, max_tokens=5)))
    assert len(result.text) == 5 and result.finished is not None and result.finished.reason == "length"
    assert all(letter in letters for letter, letters in zip(result.text, letter_sets(BOUND), strict=False))
