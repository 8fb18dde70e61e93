"""A whole measurement on a client of known speeds: pairs, figures, report and object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest
from doubles.timed_client import TimedAnswer, TimedClient

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.measure import PLAIN, Measurement, PromptGroup, TaskResult, order_prompts
from eaglelocal.bench.prompt_run import Side
from eaglelocal.bench.report import ROWS_HINT, SAME_TEXT_HINT, WHY_TEXTS_DIFFER, format_report, result_object
from eaglelocal.bench.results import Evaluation, evaluate
from eaglelocal.bench.text_identity import DifferenceVerdict, TextComparer
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Spec, fixed_spec
from eaglelocal.core.sampling import GREEDY, SamplingParams
from eaglelocal.errors import EngineError

CATEGORIES = ("easy", "hard")
COLUMNS = 79
Answer = Callable[[ChatRequest], TimedAnswer]


def prompts(num: int) -> dict[str, list[BenchPrompt]]:
    """The first token tells the category, the second the prompt."""
    return {name: [BenchPrompt(name, tokens=(i, n)) for n in range(num)] for i, name in enumerate(CATEGORIES)}


def paced(speeds: Mapping[str, tuple[float, float]], *, num_tokens: int = 21) -> Answer:
    """Tokens per second of easy and hard prompts by mode; prompts differ a little among themselves."""

    def bench_report(request: ChatRequest) -> TimedAnswer:
        kind, number = request.tokens
        tok_s = speeds[str(request.spec)][kind] * (1 + 0.02 * (number % 3))
        return TimedAnswer(range(num_tokens), decode_s=(num_tokens - 1) / tok_s)

    return bench_report


def measured(
    answer: Answer,
    modes: tuple[Spec, ...],
    planned: list[PromptGroup],
    *,
    params: SamplingParams = GREEDY,
    server: Answer | None = None,
) -> tuple[list[TaskResult], TimedClient]:
    client = TimedClient(answer)
    sides = [Side(PLAIN, client, OFF), *(Side(str(spec), client, spec) for spec in modes)]
    if server is not None:
        sides.append(Side("server", TimedClient(server)))
    results: list[TaskResult] = []
    params = SamplingParams(temperature=params.temperature, seed=params.seed, max_tokens=64)
    comparer = TextComparer(sides[0], bound=0.05)
    Measurement(sides, params, comparer=comparer, on_ask=lambda task, done: None).run(
        planned, results, is_needed=lambda task: True
    )
    return results, client


SPEEDS = {"off": (10.0, 10.0), "auto": (20.0, 9.0), "2": (16.0, 9.5), "8": (22.0, 4.0)}
MODES = (AUTO_SPEC, fixed_spec(2), fixed_spec(8))


def found(num: int = 3) -> Evaluation:
    results, _ = measured(paced(SPEEDS), MODES, order_prompts(prompts(num), [1], repeats=1, warm_up=()))
    return evaluate(results, MODES, server=None)


def test_every_side_answers_every_prompt_in_turning_order() -> None:
    _, client = measured(paced(SPEEDS), MODES, order_prompts(prompts(2), [1], repeats=2, warm_up=()))
    asked = [(request.tokens, str(request.spec)) for request in client.requests]
    assert len(asked) == 2 * 2 * 2 * 4
    results = [asked[i : i + 4] for i in range(0, len(asked), 4)]
    assert all(
        len({tokens for tokens, _ in result}) == 1 and len({spec for _, spec in result}) == 4 for result in results
    )
    assert len({result[0][1] for result in results}) > 1
    assert len({request.id for request in client.requests}) == len(asked)


def test_warm_up_is_asked_and_does_not_count() -> None:
    planned = order_prompts(prompts(1), [1], repeats=1, warm_up=[BenchPrompt("w", tokens=(0, 7))])
    results, client = measured(paced(SPEEDS), (AUTO_SPEC,), planned)
    assert len(results) == 2
    assert [request.tokens for request in client.requests[:2]] == [(0, 7)] * 2


def test_speeds_over_plain_by_category_and_over_all() -> None:
    evaluation = found()
    easy, hard = (run for run in evaluation.runs if run.side == "auto")
    assert easy.speedup is not None
    assert hard.speedup is not None
    assert (easy.speedup.mean, hard.speedup.mean) == pytest.approx((2.0, 0.9))
    assert (easy.plain_tok_s, easy.tok_s) == pytest.approx((10.2, 20.4))
    assert (easy.acceptance_length, easy.ttft_s) == (2.0, 0.5)
    auto = evaluation.summaries[0]
    assert (auto.side, auto.worst.category) == ("auto", "hard")
    assert auto.speedup.mean == pytest.approx(math.sqrt(2.0 * 0.9))


def test_modes_against_the_best_fixed_length_in_each_category_and_over_all() -> None:
    compared = {(one.category, one.side): (one.other, one.ratio.mean) for one in found().comparisons}
    assert compared["easy", "auto"] == ("8", pytest.approx(20 / 22))
    assert compared["hard", "auto"] == ("2", pytest.approx(9 / 9.5))
    assert compared["all", "auto"] == ("2", pytest.approx(math.sqrt(180 / 152)))
    assert ("hard", "2") not in compared


def test_repeats_of_a_prompt_are_one_unit() -> None:
    planned = order_prompts(prompts(2), [1], repeats=3, warm_up=())
    results, _ = measured(paced(SPEEDS), (AUTO_SPEC,), planned)
    (easy, _) = evaluate(results, (AUTO_SPEC,), server=None).runs
    assert easy.num_pairs == 6
    once = evaluate(results[: len(results) // 3], (AUTO_SPEC,), server=None).runs[0]
    assert easy.speedup == once.speedup


def test_repeats_of_one_prompt_make_no_category_more_certain() -> None:
    """The spread between the prompts decides, not that of the same prompt asked again."""
    many = evaluate(
        measured(paced(SPEEDS), (AUTO_SPEC,), order_prompts(prompts(1), [1], repeats=9, warm_up=()))[0],
        (AUTO_SPEC,),
        server=None,
    )
    once = evaluate(
        measured(paced(SPEEDS), (AUTO_SPEC,), order_prompts(prompts(1), [1], repeats=1, warm_up=()))[0],
        (AUTO_SPEC,),
        server=None,
    )
    (nine,), (one,) = many.summaries, once.summaries
    assert nine.speedup.high - nine.speedup.low == pytest.approx(one.speedup.high - one.speedup.low, rel=0.2)


def test_answers_too_short_are_counted_and_reported() -> None:
    def bench_report(request: ChatRequest) -> TimedAnswer:
        kind, number = request.tokens
        return TimedAnswer(range(3 if number == 0 or kind == 1 else 20))

    results, _ = measured(bench_report, (AUTO_SPEC,), order_prompts(prompts(3), [1], repeats=1, warm_up=()))
    evaluation = evaluate(results, (AUTO_SPEC,), server=None)
    easy, hard = evaluation.runs
    assert (easy.num_pairs, easy.num_short) == (2, 1)
    assert (hard.num_pairs, hard.num_short, hard.speedup) == (0, 3, None)
    assert "(fewer than 8 tokens that count, or all at once): to 4 prompts" in format_report(evaluation)
    assert "answers too short" in format_report(evaluation)
    told_hard = result_object(evaluation)["runs"][1]  # type: ignore[index]
    assert (told_hard["speedup"], told_hard["too_short"], told_hard["identical"]) == (None, 3, True)


def test_nothing_long_enough_is_a_report_all_the_same() -> None:
    results, _ = measured(
        paced(SPEEDS, num_tokens=2), (AUTO_SPEC,), order_prompts(prompts(1), [1], repeats=1, warm_up=())
    )
    evaluation = evaluate(results, (AUTO_SPEC,), server=None)
    bench_report = result_object(evaluation)
    assert (bench_report["spec"], bench_report["geomean_speedup"], bench_report["summaries"]) == (None, None, [])
    assert "fewer than 8 tokens" in format_report(evaluation) and SAME_TEXT_HINT not in format_report(evaluation)


def test_a_text_that_differs_is_examined_and_named() -> None:
    def bench_report(request: ChatRequest) -> TimedAnswer:
        tokens = list(range(20))
        if request.spec == AUTO_SPEC:
            tokens[5] = 99
        gap = 0.01 if request.tokens[0] == 0 else 1.0
        return TimedAnswer(tokens[len(request.tokens) - 2 :], gaps={0: (99, gap)})

    results, _ = measured(bench_report, (AUTO_SPEC,), order_prompts(prompts(1), [1], repeats=1, warm_up=()))
    evaluation = evaluate(results, (AUTO_SPEC,), server=None)
    assert [d.verdict for run in evaluation.runs for d in run.differences] == [
        DifferenceVerdict.NEAR_TIE,
        DifferenceVerdict.DIFFERENT,
    ]
    lines = format_report(evaluation).splitlines()
    (wrong,) = [i for i, line in enumerate(lines) if "in hard at token 6: DIFFERENT (gap 1)" in line]
    assert "in easy at token 6: near-tie (gap 0.01)" in lines[wrong + 1]
    share = lines.index("same texts as without drafts: 0 of 2 (0 %)")
    assert lines[share + 1] == "  1 near-tie: rounding chose the other of two almost equally likely tokens"
    assert lines[share + 2] == f"  1 DIFFERENT: {WHY_TEXTS_DIFFER[DifferenceVerdict.DIFFERENT]}"
    assert SAME_TEXT_HINT in lines and "--flash-attn on" in SAME_TEXT_HINT
    on = format_report(evaluation, flash_attn="on", weights="Q4_K")
    assert SAME_TEXT_HINT not in on and ROWS_HINT.format("Q4_K") in on
    assert "rows of" not in format_report(evaluation, flash_attn="on", weights="Q4_1")
    runs = result_object(evaluation)["runs"]
    assert [(r["identical"], r["near_ties"], r["different"]) for r in runs] == [(False, 1, 0), (False, 0, 1)]  # type: ignore[attr-defined]


def test_drawn_answers_share_a_seed_across_the_sides_and_no_other() -> None:
    params = SamplingParams(temperature=0.7, seed=5)
    _, client = measured(
        paced(SPEEDS), (AUTO_SPEC,), order_prompts(prompts(3), [1, 2], repeats=2, warm_up=()), params=params
    )
    by_mode = {
        spec: [(r.tokens, r.params.seed) for r in client.requests if r.spec == spec] for spec in (OFF, AUTO_SPEC)
    }
    assert by_mode[OFF] == by_mode[AUTO_SPEC]
    easy = [seed for tokens, seed in by_mode[OFF][: 2 * 6] if tokens[0] == 0]
    assert len(set(easy)) == len(easy) == 6


def test_several_at_once_are_a_category_of_their_own() -> None:
    results, _ = measured(paced(SPEEDS), (AUTO_SPEC,), order_prompts(prompts(2), [1, 4], repeats=1, warm_up=()))
    evaluation = evaluate(results, (AUTO_SPEC,), server=None)
    assert [(run.category, run.concurrency) for run in evaluation.runs] == [("easy", 1), ("hard", 1), ("mixed", 4)]
    assert evaluation.runs[2].num_answers == 4
    assert {summary.concurrency for summary in evaluation.summaries} == {1, 4}
    assert result_object(evaluation)["geomean_speedup"] == pytest.approx(math.sqrt(2.0 * 0.9))


def test_a_server_is_compared_and_stands_apart() -> None:
    def theirs(request: ChatRequest) -> TimedAnswer:
        return TimedAnswer(range(21), decode_s=20 / 12.5, prompt_tokens=11)

    planned = order_prompts(prompts(2), [1], repeats=1, warm_up=())
    results, _ = measured(paced(SPEEDS), (AUTO_SPEC,), planned, server=theirs)
    evaluation = evaluate(results, (AUTO_SPEC,), server="server")
    bench_report = result_object(evaluation)
    assert {run["spec"] for run in bench_report["runs"]} == {"auto"}  # type: ignore[attr-defined]
    assert {run["spec"] for run in bench_report["server_runs"]} == {"server"}  # type: ignore[attr-defined]
    ratio = {one.category: one.ratio.mean for one in evaluation.comparisons}
    assert ratio["easy"] == pytest.approx(20 * math.sqrt(1.02) / 12.5)
    assert evaluation.num_other_prompts == 4
    assert "another chat template" in format_report(evaluation)


def test_a_failure_leaves_what_was_measured() -> None:
    pace = paced(SPEEDS)

    def bench_report(request: ChatRequest) -> TimedAnswer:
        return TimedAnswer((), fails=EngineError("gone")) if request.tokens == (0, 1) else pace(request)

    results: list[TaskResult] = []
    client = TimedClient(bench_report)
    sides = [Side(PLAIN, client, OFF), Side("auto", client, AUTO_SPEC)]
    measuring = Measurement(sides, GREEDY, comparer=TextComparer(sides[0], bound=0.1), on_ask=lambda task, done: None)
    with pytest.raises(EngineError, match="gone"):
        measuring.run(order_prompts(prompts(3), [1], repeats=1, warm_up=()), results, is_needed=lambda task: True)
    assert [result.task.category for result in results] == ["easy", "hard"]
    assert len(evaluate(results, (AUTO_SPEC,), server=None).runs) == 2


@pytest.mark.parametrize("num", [1, 3, 12])
def test_the_report_fits_eighty_columns(num: int) -> None:
    assert max(map(len, format_report(found(num)).splitlines())) <= COLUMNS


def test_a_claim_within_the_noise_is_warned_of() -> None:
    def bench_report(request: ChatRequest) -> TimedAnswer:
        _, number = request.tokens
        return TimedAnswer(range(21), decode_s=1.0 if request.spec == OFF else (0.8, 1.2, 1.0, 0.9)[number % 4])

    results, _ = measured(bench_report, (AUTO_SPEC,), order_prompts(prompts(4), [1], repeats=1, warm_up=()))
    evaluation = evaluate(results, (AUTO_SPEC,), server=None)
    assert "auto: 1.04x plain, 95 %: " in format_report(evaluation)
    assert format_report(evaluation).endswith("\n  warning: not distinguishable from plain")
    assert result_object(evaluation)["summaries"][0]["distinguishable"] is False  # type: ignore[index]


def test_the_object_keeps_the_keys_of_the_interface() -> None:
    bench_report = result_object(found())
    keys = {"category", "concurrency", "spec", "plain_tok_s", "spec_tok_s", "speedup", "acceptance_length", "ttft_s"}
    assert all(keys | {"identical"} <= set(run) for run in bench_report["runs"])  # type: ignore[attr-defined]
    assert {"runs", "geomean_speedup", "worst_speedup"} <= set(bench_report)
    assert bench_report["spec"] == "auto"
    assert bench_report["worst_speedup"] == pytest.approx(0.9)
