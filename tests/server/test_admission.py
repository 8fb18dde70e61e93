"""Admission: never more requests than places, no caller holds all of them if several ask, and every place is freed."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.server.http_errors import Problem
from eaglelocal.server.server_state import MAX_RETRY_AFTER_S, AdmissionQueue


@given(
    num_slots=st.integers(1, 8),
    max_waiting=st.integers(0, 20),
    is_shared=st.booleans(),
    asked=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6)), max_size=40),
)
def test_places_are_bounded_and_given_back(
    num_slots: int, max_waiting: int, is_shared: bool, asked: list[tuple[str, int]]
) -> None:
    admission = AdmissionQueue(num_slots=num_slots, max_waiting=max_waiting, is_shared=is_shared)
    assert num_slots <= admission.share <= admission.capacity == num_slots + max_waiting
    held = dict.fromkeys("abcd", 0)
    with ExitStack() as stack:
        for owner, count in asked:
            try:
                stack.enter_context(admission.admit(owner, count))
            except Problem as problem:
                assert problem.status == (400 if count > admission.share else 429)
                left = admission.capacity - sum(held.values()) + held[owner]
                assert held[owner] + count > (max(left * 3 // 4, min(num_slots, left)) if is_shared else left)
            else:
                held[owner] += count
            assert admission.num_held == sum(held.values()) <= admission.capacity
    assert admission.num_held == 0


def test_one_of_several_leaves_a_quarter_to_the_others() -> None:
    admission = AdmissionQueue(num_slots=2, max_waiting=6, is_shared=True)
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(admission.admit("greedy"))
        with pytest.raises(Problem):
            stack.enter_context(admission.admit("greedy"))
        stack.enter_context(admission.admit("modest"))
        stack.enter_context(admission.admit("modest"))


def test_a_key_whose_share_is_full_gets_the_reason() -> None:
    admission = AdmissionQueue(num_slots=1, max_waiting=2, is_shared=True)
    with admission.admit("greedy", 2), pytest.raises(Problem) as caught, admission.admit("greedy"):
        pass
    assert "the share of this key is full: this key has 2 requests running or waiting" in caught.value.message
    alone = AdmissionQueue(num_slots=1, max_waiting=1, is_shared=False)
    with alone.admit("a", 2), pytest.raises(Problem, match="the queue is full: it has 2 requests"), alone.admit("a"):
        pass


@pytest.mark.parametrize("count", [1, 3])  # for which there is room, but not for this key, and for which there is none
def test_a_refusal_says_nothing_of_what_others_have(count: int) -> None:
    said = set()
    for num_others in (2, 3):
        admission = AdmissionQueue(num_slots=1, max_waiting=6, is_shared=True)
        with admission.admit("greedy", 3), ExitStack() as others:
            for number in range(num_others):
                others.enter_context(admission.admit(f"other {number}"))
            with pytest.raises(Problem) as caught, admission.admit("greedy", count):
                pass
        said.add(caught.value.message)
    assert len(said) == 1 and "this key has 3 requests" in said.pop()


@pytest.mark.parametrize(("took_s", "wait_s"), [(0.1, 1), (10.0, 10), (10_000.0, MAX_RETRY_AFTER_S)])
def test_the_time_to_wait_follows_what_answers_took(took_s: float, wait_s: int) -> None:
    admission = AdmissionQueue(num_slots=1, max_waiting=1, is_shared=False)
    admission.record_duration(took_s)
    with admission.admit("a", 2), pytest.raises(Problem) as caught, admission.admit("a"):
        pass
    assert caught.value.headers["Retry-After"] == str(wait_s)


def test_a_failure_inside_gives_the_place_back() -> None:
    admission = AdmissionQueue(num_slots=1, max_waiting=0, is_shared=False)
    with pytest.raises(ValueError, match="inside"), admission.admit("a"):
        raise ValueError("inside")
    assert admission.num_held == 0


def test_two_greedy_owners_cannot_lock_out_a_third() -> None:
    """Nor a fourth: each takes places until it is refused."""
    admission = AdmissionQueue(num_slots=4, max_waiting=64, is_shared=True)
    held: dict[str, int] = {}
    with ExitStack() as stack:
        for owner in ("a", "b", "a", "b", "c", "a", "b", "d"):
            with pytest.raises(Problem) as caught:
                while True:
                    stack.enter_context(admission.admit(owner))
                    held[owner] = held.get(owner, 0) + 1
            assert caught.value.status == 429
        assert held == {"a": 51, "b": 12, "c": 4, "d": 1}
