"""The PID rule: its target, its range, and how fast it reacts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.speculation.policy.pid import FIRST_LENGTH, MAX_LENGTH, LengthController


@given(st.lists(st.tuples(st.integers(1, 16), st.floats(0.0, 1.0)), max_size=200))
def test_the_length_stays_within_bounds(seen: list[tuple[int, float]]) -> None:
    pid = LengthController()
    for drafted, share in seen:
        pid.update(drafted=drafted, accepted=round(drafted * share))
        assert 1 <= pid.num_draft_tokens <= MAX_LENGTH


def test_it_grows_while_all_is_accepted_and_shrinks_while_nothing_is() -> None:
    pid = LengthController()
    pid.update(drafted=3, accepted=3)
    assert pid.length > FIRST_LENGTH
    for _ in range(40):
        pid.update(drafted=pid.num_draft_tokens, accepted=pid.num_draft_tokens)
    assert pid.num_draft_tokens == MAX_LENGTH
    for _ in range(40):
        pid.update(drafted=pid.num_draft_tokens, accepted=0)
    assert pid.num_draft_tokens == 1


def test_a_long_success_does_not_delay_the_turn() -> None:
    pid = LengthController()
    for _ in range(500):
        pid.update(drafted=8, accepted=8)
    for _ in range(20):
        pid.update(drafted=8, accepted=0)
    assert pid.num_draft_tokens <= 8


def test_at_the_target_it_rests() -> None:
    pid = LengthController()
    for _ in range(100):
        pid.update(drafted=5, accepted=3)
    assert pid.num_draft_tokens == round(FIRST_LENGTH)
