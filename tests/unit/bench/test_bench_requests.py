"""Requests of a bench side: speeds alone and concurrently, what was received, and that no prompt is cached."""

from __future__ import annotations

import pytest
from doubles.timed_client import TimedAnswer, TimedClient

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.prompt_run import (
    MIN_TOKENS,
    AnswerRecord,
    Arrivals,
    CacheClearer,
    Side,
    alone_tok_s,
    ask,
    joint_tok_s,
    record_answer,
)
from eaglelocal.client.http_stream import NO_ID
from eaglelocal.core.events import Finished, TextPiece, Tokens
from eaglelocal.core.request import OFF, ChatRequest, Request
from eaglelocal.core.sampling import GREEDY
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, RequestError
from eaglelocal.scheduler.prefix_cache import PrefixCache
from eaglelocal.scheduler.scheduler import Scheduler

PROMPT = BenchPrompt("x", tokens=(1, 2, 3))


def answer(num_tokens: int, *, prompt_tokens: int = 10, cached_tokens: int = 0) -> AnswerRecord:
    pieces = tuple(TextPiece(i, f"{i} ", False) for i in range(num_tokens))
    return AnswerRecord(pieces, "text", num_tokens, prompt_tokens, cached_tokens, 10.0, 0.1, SpeculationStats())


def finished(num_tokens: int, *, decode_s: float = 1.0) -> Finished:
    return Finished("r", "stop", "", 1, num_tokens, Timings(decode_s=decode_s), SpeculationStats())


def arrivals(*tokens: tuple[float, int], completion_tokens: int | None = None) -> Arrivals:
    """So many pieces at each moment."""
    one = Arrivals(ChatRequest(id="r"))
    for moment, number in tokens:
        one.events.append((moment, Tokens("r", (TextPiece(0, "", False),) * number)))
    total = sum(number for _, number in tokens) if completion_tokens is None else completion_tokens
    one.events.append((99.0, Finished("r", "stop", "", 1, total, Timings(), SpeculationStats())))
    return one


def test_an_answer_has_the_speed_from_its_first_to_its_last_token() -> None:
    assert alone_tok_s(finished(21, decode_s=2.0)) == pytest.approx(10.0)


def test_a_short_answer_has_no_speed() -> None:
    assert alone_tok_s(finished(MIN_TOKENS)) > 0
    assert alone_tok_s(finished(MIN_TOKENS - 1)) == 0
    assert alone_tok_s(finished(50, decode_s=0.0)) == 0


def test_a_prompt_that_was_cached_is_not_fresh() -> None:
    assert answer(9, prompt_tokens=100, cached_tokens=10).is_fresh
    assert not answer(9, prompt_tokens=100, cached_tokens=11).is_fresh


def test_answers_are_the_same_by_token_ids_and_by_text_where_there_are_none() -> None:
    pieces = (TextPiece(NO_ID, "t", False),) * 3
    theirs = AnswerRecord(pieces, "text", 3, 10, 0, 1.0, 0.1, SpeculationStats())
    assert answer(3).equals(theirs)
    assert theirs.equals(answer(5))
    assert not answer(3).equals(answer(5))


def test_together_counts_from_the_moment_when_all_have_begun_to_the_end_of_the_last() -> None:
    first = arrivals((1.0, 1), (2.0, 3), (4.0, 4))
    second = arrivals((3.0, 1), (5.0, 5), (7.0, 5))
    assert joint_tok_s([first, second]) == pytest.approx((4 + 5 + 5) / (7.0 - 3.0))


def test_together_too_few_tokens_are_no_speed() -> None:
    assert joint_tok_s([arrivals((1.0, 1), (2.0, 3)), arrivals((1.5, 1), (2.0, 3))]) == 0.0
    assert joint_tok_s([arrivals((1.0, 1), (2.0, 30)), arrivals()]) == 0.0


def test_tokens_at_the_beginning_need_not_count() -> None:
    one = arrivals((1.0, 1), (2.0, 3), (3.0, 4), (5.0, 20))
    assert joint_tok_s([one], skip=5) == pytest.approx(20 / (5.0 - 3.0)), "the first five, so what came with them too"
    assert joint_tok_s([one, arrivals((4.0, 6), (6.0, 10))], skip=5) == pytest.approx((20 + 10) / (6.0 - 4.0))
    assert joint_tok_s([one], skip=27) == 0.0, "nothing came behind the last token"
    assert joint_tok_s([one, arrivals((4.0, 5))], skip=5) == 0.0, "an answer that never gets there"


def test_an_answer_that_comes_all_at_once_has_no_speed() -> None:
    client = TimedClient(lambda request: TimedAnswer(range(64), decode_s=1e-4))
    assert ask(Side("server", client), [PROMPT], [GREEDY], name="a").tok_s == 0.0


def test_what_is_skipped_is_left_out_of_an_answer_that_runs_alone() -> None:
    client = TimedClient(lambda request: TimedAnswer(range(20), decode_s=1e-9))
    phase = ask(Side("plain", client, OFF), [PROMPT], [GREEDY], name="a", skip=4)
    assert 0 < phase.tok_s == phase.answers[0].tok_s < 1e9


def test_pieces_of_several_tokens_count_as_what_they_hold() -> None:
    assert joint_tok_s([arrivals((1.0, 1), (2.0, 9), completion_tokens=20)]) == pytest.approx(18.0)


def test_asking_gives_tokens_text_and_figures() -> None:
    client = TimedClient(lambda request: TimedAnswer(range(20), decode_s=0.5, prompt_tokens=30, cached_tokens=4))
    phase = ask(Side("plain", client, OFF), [PROMPT], [GREEDY], name="a")
    (got,) = phase.answers
    assert (got.tokens, got.num_tokens, got.prompt_tokens, got.cached_tokens) == (tuple(range(20)), 20, 30, 4)
    assert got.text.startswith("<0><1>")
    assert phase.tok_s == got.tok_s == pytest.approx(38.0)
    (request,) = client.requests
    assert (request.tokens, request.spec) == ((1, 2, 3), OFF)
    assert client.cancelled == []


def test_a_failure_is_raised_and_the_others_are_cancelled() -> None:
    def planned_answer(request: ChatRequest) -> TimedAnswer:
        return TimedAnswer((), fails=RequestError("too long")) if request.id.endswith("1") else TimedAnswer(range(9))

    client = TimedClient(planned_answer)
    with pytest.raises(RequestError, match="too long"):
        ask(Side("plain", client), [PROMPT] * 3, [GREEDY] * 3, name="a")
    assert sorted(client.cancelled) == ["a-0", "a-1", "a-2"]


def test_an_interrupt_while_asking_leaves_nothing_running() -> None:
    def planned_answer(request: ChatRequest) -> TimedAnswer:
        raise KeyboardInterrupt

    client = TimedClient(planned_answer)
    with pytest.raises(KeyboardInterrupt):
        ask(Side("plain", client), [PROMPT], [GREEDY], name="a")
    assert client.cancelled == ["a-0"]


def test_a_cancelled_answer_is_not_a_measurement() -> None:
    one = Arrivals(ChatRequest(id="r"))
    one.arrive(Finished("r", "cancelled", "", 1, 0, Timings(), SpeculationStats()))
    with pytest.raises(EngineError, match="cancelled"):
        record_answer(one, one.wait(), skip=0)


@pytest.mark.parametrize("num_slots", [1, 2, 5])
@pytest.mark.parametrize("num_asked", [1, 2, 5])
def test_freshness_leaves_no_slot_with_an_old_prompt(num_slots: int, num_asked: int) -> None:
    """With the engine's own bookkeeping of slots: the same prompts again find nothing of theirs."""
    scheduler = Scheduler(n_ctx=64, n_batch=64, prefix_cache=PrefixCache(num_slots))
    reused: list[int] = []

    def serve(request: ChatRequest) -> TimedAnswer:
        scheduler.add(Request(id=request.id, prompt=request.tokens, params=request.params))
        (admission,) = scheduler.admit()
        reused.append(admission.sequence.num_reused)
        scheduler.commit(admission.sequence, list(request.tokens[admission.sequence.num_reused :]))
        scheduler.release(admission.sequence)
        return TimedAnswer((1,))

    client = TimedClient(serve)
    fresh = CacheClearer(client, num_slots=num_slots, n_vocab=100)
    prompts = [BenchPrompt("x", tokens=(50 + i, *range(20))) for i in range(min(num_asked, num_slots))]
    for _ in range(12):
        fresh.clear_cache()
        ask(Side("plain", client), prompts, [GREEDY] * len(prompts), name="a")
    assert reused
    assert max(reused) <= 1


def test_no_request_drafts_from_another_owners_answers() -> None:
    client = TimedClient(lambda request: TimedAnswer(range(9)))
    for name in ("a", "b"):
        ask(Side("auto", client), [PROMPT] * 2, [GREEDY] * 2, name=name)
    assert len({request.owner for request in client.requests}) == 4


def test_freshness_is_plain_and_ends_at_once() -> None:
    client = TimedClient(lambda request: TimedAnswer((1, 2, 3)))
    CacheClearer(client, num_slots=3, n_vocab=2).clear_cache()
    assert [r.spec for r in client.requests] == [OFF] * 3
    assert [r.params.max_tokens for r in client.requests] == [1] * 3
    assert [r.tokens for r in client.requests] == [(0,), (1,), (0,)]
