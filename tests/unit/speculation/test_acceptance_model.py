"""Predicted acceptance compared with that of a simulated drafter of known probabilities."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator

import pytest
from doubles.simulation import Profile
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.speculation.acceptance.acceptance_model import FORMAT, MAX_MIXES, AcceptanceModel, Outlook
from eaglelocal.speculation.acceptance.acceptance_table import AcceptanceTable, ProbabilityHistogram

CALIBRATED, OVERCONFIDENT, UNDERCONFIDENT = (1.0, 0.0), (1.0, 1.5), (0.6, -1.0)
NUM_LEARNED, NUM_COMPARED = 400, 6000
NOISE = 0.01  # standard deviation of a decile's mean


def observed(
    acceptance: AcceptanceModel, profiles: tuple[Profile, ...], chance: random.Random, num: int
) -> Iterator[tuple[float, bool]]:
    """Prediction and outcome of a run of judged tokens; the text changes every 60."""
    made = 0
    while made < num:
        profile, depth = profiles[made // 60 % len(profiles)], 0
        accepted = True
        while accepted and depth < 4:
            depth += 1
            true, confidence = profile.draw(depth, chance)
            accepted = chance.random() < true
            yield acceptance.probability(0, "head", depth, confidence), accepted
            acceptance.learn(0, "head", depth, confidence, accepted=accepted)
            made += 1
        acceptance.advance(0, depth)


def worst_decile(seen: list[tuple[float, bool]]) -> float:
    """Largest difference between predicted and observed, of deciles of equal size."""
    seen = sorted(seen)
    size = len(seen) // 10
    parts = [seen[at * size : (at + 1) * size] for at in range(10)]
    return max(abs(sum(p for p, _ in part) - sum(a for _, a in part)) / size for part in parts)


def compared(profiles: tuple[Profile, ...]) -> list[tuple[float, bool]]:
    """What follows the first few hundred tokens of four fresh engines."""
    seen: list[tuple[float, bool]] = []
    for seed in range(4):
        acceptance, chance = AcceptanceModel(), random.Random(seed)
        list(observed(acceptance, profiles, chance, NUM_LEARNED))
        seen += observed(acceptance, profiles, chance, NUM_COMPARED)
    return seen


@pytest.mark.parametrize("reported", [CALIBRATED, OVERCONFIDENT, UNDERCONFIDENT])
@pytest.mark.parametrize("is_changing", [False, True])
def test_predicted_and_observed_agree(reported: tuple[float, float], is_changing: bool) -> None:
    easy, hard = Profile((0.8, 0.75), reported=reported), Profile((0.4, 0.3), reported=reported)
    assert worst_decile(compared((easy, hard) if is_changing else (easy,))) < 0.03 + NOISE


def test_a_confidence_that_says_nothing_is_hardly_listened_to() -> None:
    """Sorted by prediction, only what the text seemed to be like lately is left to differ."""
    assert worst_decile(compared((Profile((0.8, 0.75), reported=None),))) < 0.12


def test_before_anything_is_known_the_confidence_counts() -> None:
    acceptance = AcceptanceModel()
    for confidence in (0.1, 0.5, 0.9):
        assert acceptance.probability(0, "head", 1, confidence) == pytest.approx(confidence, abs=0.03)
    assert 0.0 < acceptance.probability(0, "head", 1, math.nan) < 1.0
    assert 0.0 < acceptance.probability(0, "head", 40, 1.0) < 1.0
    assert 0.0 < acceptance.probability(0, "head", 1, 0.0) < 0.05


def test_a_surer_token_is_never_held_for_less_likely_when_nothing_is_known() -> None:
    acceptance = AcceptanceModel()
    chances = [acceptance.probability(0, "head", 1, n / 100) for n in range(101)]
    assert chances == sorted(chances)


def test_a_slot_forgets_its_text_and_keeps_what_all_texts_taught() -> None:
    acceptance = AcceptanceModel()
    for _ in range(40):
        acceptance.learn(0, "head", 1, 0.7, accepted=False)
    low, elsewhere = acceptance.probability(0, "head", 1, 0.7), acceptance.probability(1, "head", 1, 0.7)
    acceptance.begin(0)
    assert low < elsewhere
    assert acceptance.probability(0, "head", 1, 0.7) == elsewhere < 0.5


def test_drafters_do_not_teach_each_other() -> None:
    acceptance = AcceptanceModel()
    before = acceptance.probability(0, "ngram", 1, 0.7)
    for _ in range(100):
        acceptance.learn(0, "head", 1, 0.7, accepted=False)
    assert acceptance.probability(0, "ngram", 1, 0.7) == before


def test_what_was_learned_decays() -> None:
    acceptance = AcceptanceModel()
    for _ in range(1000):
        acceptance.learn(0, "head", 1, 0.7, accepted=True)
    for _ in range(3000):
        acceptance.learn(0, "head", 1, 0.7, accepted=False)
    acceptance.begin(0)
    assert acceptance.probability(0, "head", 1, 0.7) < 0.2


def test_after_a_silence_the_next_observations_count_for_more() -> None:
    moved = []
    for silence in (0, 200):
        acceptance = AcceptanceModel()
        for _ in range(60):
            acceptance.learn(0, "head", 1, 0.7, accepted=False)
        acceptance.advance(0, silence)
        before = acceptance.probability(0, "head", 1, 0.7)
        for _ in range(5):
            acceptance.learn(0, "head", 1, 0.7, accepted=True)
        moved.append(acceptance.probability(0, "head", 1, 0.7) - before)
    assert moved[1] > 1.5 * moved[0]


def share_of_sure(outlook: Outlook) -> float:
    """Share of tokens that are nearly certain."""
    return sum(share for share, p in outlook.outcomes if p > 0.9)


def test_the_outlook_knows_how_tokens_spread() -> None:
    alike, unlike = AcceptanceModel(), AcceptanceModel()
    chance = random.Random(0)
    for _ in range(600):
        alike.learn(0, "head", 1, 0.6, accepted=chance.random() < 0.6)
        sure = chance.random() < 0.5
        confidence = 0.95 if sure else 0.1
        unlike.learn(0, "head", 1, confidence, accepted=chance.random() < confidence)
    narrow, wide = alike.outlook(0, "head"), unlike.outlook(0, "head")
    assert narrow.mean == pytest.approx(0.6, abs=0.12)
    assert share_of_sure(wide) > 0.35 > 0.05 > share_of_sure(narrow)
    assert sum(share for share, _ in wide.outcomes) == pytest.approx(1.0)


def taught(num: int = 2000) -> AcceptanceModel:
    """By a head that is sure of everything, and right in three cases of ten."""
    acceptance, chance = AcceptanceModel(), random.Random(2)
    for n in range(num):
        acceptance.learn(0, "head", n % 5 + 1, 0.9, accepted=chance.random() < 0.3)
    return acceptance


def test_what_is_kept_is_what_a_fresh_engine_begins_with() -> None:
    fresh, old = AcceptanceModel(), taught()
    kept = json.loads(json.dumps(old.state()))
    assert fresh.restore(kept)
    old.begin(0)
    for depth in (1, 2, 3, 5):
        assert fresh.probability(0, "head", depth, 0.9) == pytest.approx(
            old.probability(0, "head", depth, 0.9), abs=0.1
        )
    assert fresh.outlook(0, "head").mean == pytest.approx(old.outlook(0, "head").mean, abs=0.03)
    assert fresh.probability(0, "other", 1, 0.9) == AcceptanceModel().probability(0, "other", 1, 0.9)


def test_what_was_kept_is_soon_overruled() -> None:
    fresh, chance = AcceptanceModel(), random.Random(3)
    assert fresh.restore(taught().state())
    for n in range(400):
        fresh.learn(0, "head", n % 5 + 1, 0.9, accepted=chance.random() < 0.9)
    fresh.begin(0)
    assert fresh.probability(0, "head", 2, 0.9) > 0.75
    assert fresh.outlook(0, "head").mean > 0.7


def test_nothing_of_a_text_is_kept() -> None:
    """Figures of each drafter in tables of fixed sizes, however long one read."""
    assert len(json.dumps(taught(50).state())) == pytest.approx(len(json.dumps(taught(5000).state())), rel=0.5)
    fresh, old = AcceptanceModel(), taught()
    assert fresh.restore(old.state())
    assert set(fresh.state()["drafters"]) == {"head"}  # type: ignore[call-overload]
    assert fresh.probability(0, "head", 1, 0.5) == fresh.probability(7, "head", 1, 0.5)


@pytest.mark.parametrize(
    "wrong", [None, 3, [], "x", {}, {"format": 0, "drafters": {}}, {"format": FORMAT, "drafters": [1]}]
)
def test_a_foreign_state_changes_nothing(wrong: object) -> None:
    acceptance = taught()
    before = acceptance.state()
    assert not acceptance.restore(wrong)
    assert acceptance.state() == before


BAD = [math.nan, math.inf, -1e9, 1e12, None, "x", [], {}, [1.0]]


@given(data=st.data())
def test_a_damaged_state_is_refused_or_harmless(data: st.DataObject) -> None:
    state = json.loads(json.dumps(taught(100).state()))
    table = state["drafters"]["head"]
    part = data.draw(st.sampled_from(sorted(table)))
    place, deeper = table, part
    while isinstance(place[deeper], list) and data.draw(st.booleans()):
        place, deeper = place[deeper], data.draw(st.integers(0, len(place[deeper]) - 1))
    place[deeper] = data.draw(st.sampled_from(BAD))
    fresh = AcceptanceModel()
    fresh.restore(state)
    for depth, confidence in itertools.product((1, 3, 9), (0.0, 0.3, 0.999)):
        assert 0.0 < fresh.probability(0, "head", depth, confidence) < 1.0
        fresh.learn(0, "head", depth, confidence, accepted=True)
    assert 0.0 < fresh.outlook(0, "head").mean < 1.0


def test_kinds_of_tokens_that_never_occur_are_not_lost() -> None:
    """A server may run for months: what is known of tokens stays finite, and can be kept."""
    spread = ProbabilityHistogram()
    for _ in range(300_000):
        spread.add(0.9)
    kinds = spread.kinds()
    assert sum(share for share, _ in kinds) == pytest.approx(1.0)
    assert all(0.0 < mean < 1.0 for _, mean in kinds)
    again = ProbabilityHistogram()
    again.restore(spread.state())


def test_a_number_beyond_all_bounds_is_not_understood() -> None:
    state = json.loads(json.dumps(AcceptanceModel().state() | {"drafters": {"head": AcceptanceTable().state()}}))
    state["drafters"]["head"]["trust"] = 10**400
    assert not AcceptanceModel().restore(state)


def teach(acceptance: AcceptanceModel, slot: int, *, accepted: bool) -> None:
    for _ in range(300):
        acceptance.learn(slot, "head", 1, 0.8, accepted=accepted)
        acceptance.advance(slot, 1)


def test_each_mix_of_adapters_has_its_own_acceptance() -> None:
    """A text with an adapter begins with what texts without it taught, and teaches nothing about those."""
    acceptance, mix = AcceptanceModel(), ((0, 1.0),)

    def begin(adapters: AdapterMix | None) -> float:
        acceptance.begin(0, adapters)
        return acceptance.probability(0, "head", 1, 0.8)

    begin(None)
    teach(acceptance, 0, accepted=True)
    plain = begin(None)
    assert begin(mix) == pytest.approx(plain)
    teach(acceptance, 0, accepted=False)
    assert begin(mix) < 0.5 < 0.8 < plain
    assert begin(((0, 0.5),)) == begin(()) == pytest.approx(plain)
    stored = AcceptanceModel()
    assert stored.restore(acceptance.state())
    assert stored.probability(0, "head", 1, 0.8) == pytest.approx(plain)


def test_acceptance_is_kept_of_a_bounded_number_of_mixes() -> None:
    acceptance = AcceptanceModel()
    for number in range(100):
        acceptance.begin(0, ((0, 1.0 + number),))
        acceptance.learn(0, "head", 1, 0.8, accepted=True)
    assert len(acceptance._other_tables) <= MAX_MIXES + 1
