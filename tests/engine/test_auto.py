"""The `auto` policy over scripted models: whichever drafter is used, asleep or awake, the text is the plain one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from doubles.drafters import NoDrafter
from doubles.engine_harness import EngineHarness, plain_text
from doubles.property_tests import examples
from doubles.scripted_context import ScriptedContext, ScriptedHead, Table
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import AUTO_SPEC, OFF, PID, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.drafters.draft_model import DraftModel
from eaglelocal.drafters.drafter import Drafter
from eaglelocal.drafters.eagle3 import Eagle3
from eaglelocal.drafters.lookahead import Lookahead
from eaglelocal.drafters.ngram import Ngram
from eaglelocal.speculation.costs.step_costs import StepCosts
from eaglelocal.speculation.policy.controller import Controller
from eaglelocal.speculation.policy.slot_policy import DrafterSet
from eaglelocal.speculation.policy.step_report import Change, StepReport

TABLE = Table(seed=1)
WORST = Table(seed=1, end_bias=3.0, sharpness=-2.0)
SPECS = [AUTO_SPEC, PID, OFF, fixed_spec(3)]


def drafters_of(kind: str) -> tuple[Drafter, ...]:
    match kind:
        case "lookup":
            return (Ngram(128),)
        case "lookahead":
            return Ngram(128), Lookahead()
        case "lookahead and head":
            return Ngram(128), Lookahead(), Eagle3(ScriptedHead(WORST, n_ctx=192), (0,))
        case "right head":
            return Ngram(128), Eagle3(ScriptedHead(TABLE, n_ctx=192), (0,))
        case "wrong head":
            return Ngram(128), Eagle3(ScriptedHead(WORST, n_ctx=192), (0,))
        case _:
            return Ngram(128), DraftModel(ScriptedContext(WORST, gives_features=False, n_ctx=192))


KINDS = ["lookup", "lookahead", "lookahead and head", "right head", "wrong head", "wrong model"]


def request(name: str, prompt: tuple[int, ...], spec: Spec, **changes: object) -> ChatRequest:
    fields: dict[str, object] = {"temperature": 0.0, "max_tokens": 40, "ignore_eos": True} | changes
    return ChatRequest(id=name, tokens=prompt, spec=spec, params=SamplingParams(**fields))  # type: ignore[arg-type]


@examples(120)
@given(data=st.data())
def test_no_way_of_drafting_changes_a_text(data: st.DataObject) -> None:
    """Requests with specs of their own share slots and caches, with cancels: each text stays the plain one."""
    kind = data.draw(st.sampled_from(KINDS))
    num_slots = data.draw(st.integers(1, 5))
    harness = EngineHarness(TABLE, drafters_of(kind), spec=AUTO_SPEC, num_slots=num_slots)
    stem = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=60))
    asked = []
    for i in range(data.draw(st.integers(1, 8))):
        cut = data.draw(st.integers(0, len(stem)))
        tail = data.draw(st.lists(st.integers(1, 23), min_size=1, max_size=6))
        spec = data.draw(st.sampled_from(SPECS))
        asked.append(request(str(i), (*stem[:cut], *tail), spec, max_tokens=data.draw(st.integers(1, 40))))
    cancels = {str(i): data.draw(st.integers(0, 12)) for i in range(len(asked)) if data.draw(st.booleans())}
    answers = harness.run(asked, cancel_at=cancels)
    for one in asked:
        plain, got = plain_text(TABLE, one), answers[one.id]
        assert got.tokens == (plain[: len(got.tokens)] if one.id in cancels else plain)


@pytest.mark.parametrize("kind", ["wrong head", "wrong model"])
def test_a_drafter_that_is_never_right_is_put_to_sleep(kind: str) -> None:
    harness = EngineHarness(TABLE, drafters_of(kind)[1:], spec=AUTO_SPEC, n_ctx=192)
    finished = harness.run([request("a", (5, 6, 7), AUTO_SPEC, max_tokens=150)])["a"].finished
    assert finished is not None and finished.speculation.state == "asleep"
    assert finished.speculation.draft_tokens < 60


def test_a_drafter_that_proposes_nothing_is_probed_all_the_same() -> None:
    """As a draft model behind an image, which it cannot read."""
    harness = EngineHarness(TABLE, (NoDrafter(),), spec=AUTO_SPEC, n_ctx=400)
    finished = harness.run([request("a", (5, 6, 7), AUTO_SPEC, max_tokens=300)])["a"].finished
    assert finished is not None and finished.speculation.state == "asleep"
    assert finished.reason == "length"


def test_a_right_head_is_used_to_the_full() -> None:
    harness = EngineHarness(TABLE, drafters_of("right head")[1:], spec=AUTO_SPEC)
    finished = harness.run([request("a", (5, 6, 7), AUTO_SPEC, max_tokens=100)])["a"].finished
    assert finished is not None and finished.speculation.state == "on"
    assert finished.speculation.acceptance_length > 5.0


def test_specs_of_requests_are_obeyed() -> None:
    harness = EngineHarness(TABLE, drafters_of("right head"), spec=AUTO_SPEC)
    answers = harness.run([request(str(spec), (5, 6, 7), spec, max_tokens=33) for spec in (OFF, fixed_spec(3))])
    plain, drafted = answers["off"].finished, answers["3"].finished
    assert plain is not None and drafted is not None
    assert (plain.speculation.draft_tokens, plain.speculation.state) == (0, "off")
    assert (drafted.speculation.acceptance_length, drafted.speculation.reason) == (4.0, "3 tokens")


@pytest.mark.parametrize("kind", [partial(Ngram, 128), Lookahead])
def test_texts_of_one_owner_are_not_drafted_from_for_another(kind: Callable[[], Drafter]) -> None:
    """The same question twice: for its owner the answer is at hand, for another it is not."""

    def drafted(second_owner: str) -> int:
        harness = EngineHarness(TABLE, (kind(),), spec=AUTO_SPEC)
        result = 0
        for name, owner in (("a", "ann"), ("b", second_owner)):
            asked = request(name, (5, 6, 7, 8), AUTO_SPEC, max_tokens=30)
            one = ChatRequest(id=name, tokens=asked.tokens, params=asked.params, spec=AUTO_SPEC, owner=owner)
            finished = harness.run([one])[name].finished
            assert finished is not None
            result = finished.speculation.accepted_tokens
        return result

    assert drafted("ann") > 15 > drafted("bob")


def cliff_s(num_rows: int) -> float:
    return float(max(num_rows - 8, 1))


class CliffController(Controller):
    """A controller on a machine on which nine rows take as long as one, and each further row as much again.

    steps  (decoding slots, rows) of each
    """

    steps: list[tuple[int, int]]

    def learn(self, report: StepReport) -> list[Change]:
        self.steps.append((len(report.verdicts), report.num_rows))
        calls = [call._replace(seconds=0.01 * call.num_levels) for call in report.draft_calls]
        decode_s = cliff_s(report.num_rows)
        return super().learn(replace(report, draft_calls=calls, decode_s=decode_s, other_s=0.01))


def test_rows_of_a_fixed_length_are_in_the_prices_of_auto() -> None:
    """Two slots on `auto` have the two rows that are cheap beside a slot that always sends four drafted tokens."""
    costs = StepCosts()
    costs.calibrate({rows: [cliff_s(rows)] * 9 for rows in range(1, 40)})
    controller = CliffController(AUTO_SPEC, DrafterSet("eagle3"), costs)
    controller.steps = []
    head = Eagle3(ScriptedHead(TABLE), (0,))
    harness = EngineHarness(TABLE, head, spec=AUTO_SPEC, num_slots=3, n_ctx=400, controller=controller)
    specs = [fixed_spec(4), AUTO_SPEC, AUTO_SPEC]
    asked = [request(f"r{n}", (3 + n, 5, 7), spec, max_tokens=100) for n, spec in enumerate(specs)]
    results = harness.run(asked)
    assert all(results[each.id].tokens == plain_text(TABLE, each) for each in asked)
    learned = [rows for num_slots, rows in controller.steps if num_slots == 3][2:]
    assert len(learned) >= 15
    assert learned.count(9) >= 0.8 * len(learned), learned
