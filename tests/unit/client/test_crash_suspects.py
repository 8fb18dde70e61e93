"""Which request is refused after crashes: only the one that was in flight at two of them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from eaglelocal.client.crash_suspects import (
    FORGET_S,
    MAX_SUSPECTS,
    MAX_TRIAL_S,
    TRIAL_S,
    CrashSuspects,
    Digest,
    digest_request,
)
from eaglelocal.core.request import ChatRequest, EmbedRequest, Image, Message, Mixed
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError

ERROR = EngineError("the engine process crashed (signal 11, SIGSEGV): src/x.c:1: a word")
X, A, B, C, D = (name.encode() for name in "XABCD")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def suspects_after(*crashes: list[Digest]) -> CrashSuspects:
    suspects = CrashSuspects(Clock())
    for in_flight in crashes:
        suspects.record_crash(in_flight, ERROR)
    return suspects


def test_who_was_alone_in_both_crashes_is_refused() -> None:
    suspects = CrashSuspects()
    assert suspects.record_crash([X, A, B], ERROR) is None
    assert suspects.find_refusal(X) is None
    assert suspects.record_crash([C, X, D], ERROR) == X
    refusal = suspects.find_refusal(X)
    assert refusal is not None and "crashed 2 times" in refusal.message and "SIGSEGV" in refusal.message
    assert "a word" not in refusal.message
    assert [suspects.find_refusal(each) for each in (A, B, C, D)] == [None] * 4


def test_one_crash_with_the_same_request_twice_is_one() -> None:
    suspects = suspects_after([X, X])
    assert suspects.find_refusal(X) is None


def test_who_finishes_is_cleared() -> None:
    suspects = suspects_after([X, A])
    suspects.clear(A)
    assert suspects.record_crash([X, A], ERROR) == X


def test_suspects_of_both_crashes_come_one_at_a_time() -> None:
    suspects = suspects_after([X, A], [X, A])
    assert suspects.find_refusal(X) is None and suspects.find_refusal(A) is None
    assert suspects.must_wait(X, [(A, 0.0), (B, 0.0)])
    assert not suspects.must_wait(X, [(B, 0.0)])
    assert not suspects.must_wait(B, [(A, 0.0)])
    assert suspects.record_crash([X, B], ERROR) is None  # alone by the trial, not by chance
    assert suspects.record_crash([X, C], ERROR) == X
    assert suspects.find_refusal(A) is None


def test_nobody_is_refused_where_the_engine_dies_without_it_as_often() -> None:
    suspects = suspects_after([X], [A], [B], [C])
    assert suspects.record_crash([X], ERROR) is None
    assert suspects.record_crash([X, D], ERROR) is None
    assert suspects.record_crash([X], ERROR) == X  # at four of seven


def test_two_culprits_in_turn_are_found() -> None:
    suspects = suspects_after([X, B], [A, C])
    assert suspects.record_crash([X, D], ERROR) == X
    assert suspects.record_crash([A, b"E"], ERROR) == A


def test_a_suspect_that_has_run_for_long_holds_nobody_up() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)
    for _ in range(2):
        suspects.record_crash([X, A], ERROR)
    clock.now = TRIAL_S + 1
    assert not suspects.must_wait(X, [(A, 0.0)])
    assert suspects.must_wait(X, [(A, 2.0)])
    suspects.record_crash([X, A], ERROR)  # what crashes late needs longer trials
    assert suspects.must_wait(X, [(A, 0.0)])
    clock.now = MAX_TRIAL_S + 1
    for _ in range(20):
        suspects.record_crash([X, A], ERROR)
    assert not suspects.must_wait(X, [(A, 0.0)])


def test_suspects_are_forgotten() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)
    suspects.record_crash([X], ERROR)
    suspects.record_crash([X], ERROR)
    assert suspects.find_refusal(X) is not None
    clock.now = FORGET_S + 1
    assert suspects.find_refusal(X) is None
    assert not suspects


def test_their_number_is_bounded() -> None:
    suspects = suspects_after([b"%d" % n for n in range(3 * MAX_SUSPECTS)])
    assert len(suspects._suspects) == MAX_SUSPECTS


CHAT = ChatRequest(
    id="1",
    messages=(Message("user", "Hi.", images=(Image(b"png"),)),),
    params=SamplingParams(seed=1, logit_bias=((1, 2.0),), left_open=frozenset({"temperature", "top_p"})),
)


def test_a_request_is_known_by_its_content() -> None:
    same = dataclasses.replace(CHAT, id="2", owner="ann", params=dataclasses.replace(CHAT.params, seed=2))
    assert digest_request(same) == digest_request(CHAT)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(CHAT, messages=(Message("user", "Hi.", images=(Image(b"gif"),)),)),
        dataclasses.replace(CHAT, messages=(Message("user", "H"), Message("user", "i."))),
        dataclasses.replace(CHAT, params=dataclasses.replace(CHAT.params, max_tokens=3)),
        ChatRequest(id="1", text="Hi."),
        ChatRequest(id="1", tokens=(1, 2)),
        ChatRequest(id="1", tokens=(12,)),
        ChatRequest(id="1", mixed=Mixed((1, "2"))),
        ChatRequest(id="1", mixed=Mixed(("1", "2"))),
        ChatRequest(id="1", mixed=Mixed(("12",))),
        EmbedRequest(id="1", inputs=("Hi.",)),
    ],
)
def test_other_content_is_another_request(other: ChatRequest | EmbedRequest) -> None:
    assert digest_request(other) != digest_request(CHAT)
