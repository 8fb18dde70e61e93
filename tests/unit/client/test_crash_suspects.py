"""Which request is refused after crashes: only one that alone had begun at two of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.client.crash_suspects import (
    DRAIN_S,
    FORGET_S,
    MAX_SUSPECTS,
    MAX_TRIAL_S,
    TRIAL_S,
    CrashSuspects,
    Digest,
    digest_request,
)
from eaglelocal.core.request import ChatRequest, DraftPolicy, EmbedRequest, Image, Message, Mixed
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import EngineError

ERROR = EngineError("the engine process crashed (signal 11, SIGSEGV): src/x.c:1: a word")
X, A, B, C, D = (name.encode() for name in "XABCD")


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def suspects_after(*crashes: Sequence[Digest]) -> CrashSuspects:
    suspects = CrashSuspects(Clock())
    for begun in crashes:
        suspects.record_crash(begun, ERROR)
    return suspects


def test_who_was_alone_in_two_crashes_is_refused() -> None:
    suspects = CrashSuspects()
    assert suspects.record_crash([X], ERROR) is None
    assert suspects.find_refusal(X) is None
    assert suspects.record_crash([X, X], ERROR) == X  # sent twice: it is still alone
    refusal = suspects.find_refusal(X)
    assert refusal is not None and "crashed 2 times" in refusal.message and "SIGSEGV" in refusal.message
    assert "a word" not in refusal.message
    assert [suspects.find_refusal(each) for each in (A, B, C, D)] == [None] * 4


def test_one_crash_with_the_same_request_twice_is_one() -> None:
    suspects = suspects_after([X, X])
    assert suspects.find_refusal(X) is None


def test_who_finishes_is_cleared() -> None:
    suspects = suspects_after([X])
    suspects.clear(X)
    assert suspects.record_crash([X], ERROR) is None


def test_who_crashed_it_twice_in_company_runs_alone_and_then_counts() -> None:
    suspects = suspects_after([X, A], [X, A], [X, B])
    assert suspects.find_refusal(X) is None and suspects.find_refusal(A) is None
    assert suspects.must_wait(X, 0.0, [(B, 0.0)])  # until what runs has ended
    assert not suspects.must_wait(X, 0.0, [])
    assert suspects.must_wait(B, 0.0, [(X, 0.0)])  # no request joins it
    assert not suspects.must_wait(B, 0.0, [(A, 0.0), (X, 0.0)])  # it has company already
    assert suspects.record_crash([X], ERROR) is None
    assert suspects.record_crash([X, A], ERROR) is None  # in company: no proof
    assert suspects.record_crash([X], ERROR) == X
    assert suspects.find_refusal(A) is None


def test_no_request_is_refused_if_the_engine_dies_as_often_without_it() -> None:
    suspects = suspects_after([X], [A], [B], [C])
    assert suspects.record_crash([X], ERROR) is None
    assert suspects.record_crash([X], ERROR) is None
    assert suspects.record_crash([X], ERROR) == X  # at four of seven


def test_two_culprits_in_turn_are_found() -> None:
    suspects = suspects_after([X], [A])
    assert suspects.record_crash([X], ERROR) == X
    assert suspects.record_crash([A], ERROR) == A


@given(
    st.lists(
        st.tuples(
            st.sets(st.sampled_from((b"attack", b"attack again", b"something else")), min_size=1),
            st.sets(st.sampled_from((A, B, C)), max_size=3),
        ),
        max_size=30,
    )
)
def test_a_bystander_is_never_refused(crashes: list[tuple[set[Digest], set[Digest]]]) -> None:
    """Whatever somebody else crashes the engine with, and however often a bystander repeats what fails by that."""
    suspects = CrashSuspects(Clock())
    for attacks, bystanders in crashes:
        assert suspects.record_crash([*attacks, *bystanders], ERROR) not in (A, B, C)
        assert [suspects.find_refusal(each) for each in (A, B, C)] == [None] * 3


def test_a_suspect_that_has_run_for_long_delays_no_other() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)
    for _ in range(2):
        suspects.record_crash([X, A], ERROR)
    clock.now = TRIAL_S + 1
    assert not suspects.must_wait(B, 0.0, [(X, 0.0)])
    assert suspects.must_wait(B, 0.0, [(X, 2.0)])
    suspects.record_crash([X, A], ERROR)  # what crashes late needs longer trials
    assert suspects.must_wait(B, 0.0, [(X, 0.0)])
    clock.now = MAX_TRIAL_S + 1
    for _ in range(20):
        suspects.record_crash([X, A], ERROR)
    assert not suspects.must_wait(B, 0.0, [(X, 0.0)])


def test_a_suspect_does_not_wait_forever_for_the_others_to_end() -> None:
    suspects = suspects_after([X, A], [X, A])
    assert suspects.must_wait(X, DRAIN_S - 1, [(B, 0.0), (C, 0.0)])
    assert not suspects.must_wait(X, DRAIN_S, [(B, 0.0), (C, 0.0)])


def test_suspects_are_forgotten() -> None:
    clock = Clock()
    suspects = CrashSuspects(clock)
    suspects.record_crash([X], ERROR)
    suspects.record_crash([X], ERROR)
    for now_s, words in ((0.0, "in 10 min"), (FORGET_S - 90.0, "in 2 min"), (FORGET_S - 1, "in 1 min")):
        clock.now = now_s
        refusal = suspects.find_refusal(X)
        assert refusal is not None and refusal.hint.endswith(f"admitted again {words}")
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


def test_a_request_is_known_by_its_owner_and_content() -> None:
    same = dataclasses.replace(CHAT, id="2", params=dataclasses.replace(CHAT.params, seed=2))
    assert digest_request(same) == digest_request(CHAT)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(CHAT, owner="ann"),
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
def test_another_owner_or_content_is_another_request(other: ChatRequest | EmbedRequest) -> None:
    assert digest_request(other) != digest_request(CHAT)


@dataclass(kw_only=True)  # as core.records.dataclass makes requests at run time
class ExtendedRequest(ChatRequest):
    extra: object = None


@pytest.mark.parametrize(
    "value",
    [
        {"a": Path("b")},
        MappingProxyType({"a": 1}),
        Path("b"),
        (1, SamplingParams(), {"a": 1}),
        [1, [Path("b")]],
        frozenset({1, "a"}),
        {Path("b")},
        DraftPolicy.PID,
        1j,
    ],
    ids=lambda value: type(value).__name__,  # sets are written in another order by each process
)
def test_a_field_of_any_type_is_part_of_the_digest(value: object) -> None:
    """A request that cannot be digested would end the thread that restarts the engine."""
    digests = [digest_request(ExtendedRequest(id=name, extra=extra)) for name, extra in (("a", value), ("b", value))]
    assert digests[0] == digests[1] != digest_request(ExtendedRequest(id="a"))
