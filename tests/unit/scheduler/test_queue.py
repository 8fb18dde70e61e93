"""The order of the queue: fair between owners, in order within one, and idle owners are forgotten."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import Request
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.scheduler.scheduler import FairQueue


def request(name: str, owner: str = "") -> Request:
    return Request(id=name, prompt=(1,), params=SamplingParams(), owner=owner)


def serve(queue: FairQueue, num_tokens: int) -> str:
    one = queue.pop()
    queue.charge(one.owner, num_tokens)
    queue.end(one.owner)
    return one.id


def test_one_owner_is_served_in_order() -> None:
    queue = FairQueue()
    for i in range(5):
        queue.add(request(str(i)))
    assert [serve(queue, 100 - i) for i in range(5)] == list("01234")


def test_an_owner_with_many_requests_is_served_every_other_time() -> None:
    queue = FairQueue()
    for i in range(10):
        queue.add(request(f"a{i}", "a"))
    for i in range(3):
        queue.add(request(f"b{i}", "b"))
    assert [serve(queue, 100) for _ in range(7)] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3"]


def test_long_requests_count_for_more() -> None:
    queue = FairQueue()
    for i in range(4):
        queue.add(request(f"a{i}", "a"))
        queue.add(request(f"b{i}", "b"))
    served = []
    for _ in range(5):
        one = queue.pop()
        queue.charge(one.owner, 300 if one.owner == "a" else 100)
        queue.end(one.owner)
        served.append(one.id)
    assert served == ["a0", "b0", "b1", "b2", "a1"]


def test_absence_earns_no_credit() -> None:
    queue = FairQueue()
    queue.add(request("b", "b"))
    serve(queue, 10)
    for i in range(60):
        queue.add(request(f"a{i}", "a"))
    for _ in range(50):
        serve(queue, 100)
    for i in range(9):
        queue.add(request(f"b{i}", "b"))
    assert [serve(queue, 100)[0] for _ in range(6)] == list("bababa")


def test_an_owner_who_runs_alone_gathers_no_debt_against_a_newcomer() -> None:
    """Work done while no other owner waited counts against its owner for one turn at most."""
    queue = FairQueue()
    for i in range(50):
        queue.add(request(f"a{i}", "a"))
        serve(queue, 1000)
    for i in range(4):
        queue.add(request(f"b{i}", "b"))
        queue.add(request(f"a{50 + i}", "a"))
    assert [serve(queue, 1000)[0] for _ in range(6)] in (list("bababa"), list("ababab"))


def test_what_is_withdrawn_is_not_served() -> None:
    queue = FairQueue()
    for name in "abc":
        queue.add(request(name, name))
    assert queue.withdraw("b")
    assert not queue.withdraw("b")
    assert len(queue) == 2
    assert [serve(queue, 1), serve(queue, 1)] == ["a", "c"]
    assert not queue
    with pytest.raises(ValueError):
        queue.pop()


def test_owners_who_are_gone_are_forgotten() -> None:
    queue = FairQueue()
    for i in range(1000):
        queue.add(request(str(i), f"owner {i}"))
        serve(queue, 100)
    assert len(queue._accounts) < 5


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50)), max_size=60), st.integers(1, 4))
def test_among_owners_who_always_wait_service_differs_by_two_requests_at_most(
    moves: list[tuple[str, int]], num_slots: int
) -> None:
    """Goyal's bound: service of two owners in line differs by no more than the largest requests of both."""
    queue = FairQueue()
    for i in range(len(moves) + 3):
        for owner in "abc":
            queue.add(request(f"{owner}{i}", owner))
    served = dict.fromkeys("abc", 0)
    running: list[str] = []
    for _, tokens in moves:
        if len(running) == num_slots:
            queue.end(running.pop(0))
        one = queue.pop()
        running.append(one.owner)
        queue.charge(one.owner, tokens)
        served[one.owner] += tokens
        assert max(served.values()) - min(served.values()) <= 100
