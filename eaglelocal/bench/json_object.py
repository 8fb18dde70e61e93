"""The JSON object of `bench --json`. A value that was not measured is None."""

from __future__ import annotations

from collections.abc import Mapping

from eaglelocal.bench.results import Bound, CategoryResult, Comparison, Evaluation, Summary, choose_main_side
from eaglelocal.bench.text_identity import Difference, DifferenceVerdict


def result_object(evaluation: Evaluation) -> dict[str, object]:
    """Return the JSON object: runs of our modes and of a server apart, and the means of the main mode (`spec`)."""
    main = choose_main_side(evaluation.summaries, evaluation.modes)
    best = next((summary for summary in evaluation.summaries if summary.side == main), None)
    return {
        "runs": [run_object(run) for run in evaluation.runs if run.side in evaluation.modes],
        "spec": main,
        "geomean_speedup": best.speedup.mean if best else None,
        "worst_speedup": best.worst.speedup.mean if best and best.worst.speedup else None,
        "summaries": [summary_object(summary) for summary in evaluation.summaries],
        "comparisons": [comparison_object(one) for one in evaluation.comparisons],
        "server_runs": [run_object(run) for run in evaluation.runs if run.side not in evaluation.modes],
        "other_prompts": evaluation.num_other_prompts,
        "differences": [difference_object(one) for run in evaluation.runs for one in run.differences],
    }


def run_object(run: CategoryResult) -> dict[str, object]:
    return {
        "category": run.category,
        "concurrency": run.concurrency,
        "spec": run.side,
        "plain_tok_s": run.plain_tok_s,
        "spec_tok_s": run.tok_s,
        "speedup": run.speedup.mean if run.speedup else None,
        **bound_ends(run.speedup, "speedup_"),
        "acceptance_length": run.acceptance_length,
        "plain_ttft_s": run.plain_ttft_s,
        "ttft_s": run.ttft_s,
        "pairs": run.num_pairs,
        "too_short": run.num_short,
        "answers": run.num_answers,
        "identical": run.num_identical == run.num_answers,
        "num_identical": run.num_identical,
        "near_ties": sum(one.verdict is DifferenceVerdict.NEAR_TIE for one in run.differences),
        "different": sum(one.verdict is DifferenceVerdict.DIFFERENT for one in run.differences),
        "reused_prompts": run.num_reused,
        "asleep": run.num_asleep,
    }


def bound_ends(bound: Bound | None, prefix: str) -> Mapping[str, float | None]:
    """Return the ends of the 95 % interval and the one-sided 95 % bound; None if they are not known."""
    known = bound if bound and bound.is_known else None
    return {f"{prefix}{name}": getattr(known, name) if known else None for name in ("low", "high", "least")}


def summary_object(summary: Summary) -> dict[str, object]:
    return {
        "spec": summary.side,
        "concurrency": summary.concurrency,
        "speedup": summary.speedup.mean,
        **bound_ends(summary.speedup, "speedup_"),
        "worst_category": summary.worst.category,
        "worst_speedup": summary.worst.speedup.mean if summary.worst.speedup else None,
        "pairs": summary.num_pairs,
        "distinguishable": summary.speedup.is_known and summary.speedup.shows_difference,
    }


def comparison_object(one: Comparison) -> dict[str, object]:
    return {
        "category": one.category,
        "concurrency": one.concurrency,
        "spec": one.side,
        "against": one.other,
        "ratio": one.ratio.mean,
        **bound_ends(one.ratio, "ratio_"),
    }


def difference_object(one: Difference) -> dict[str, object]:
    return {
        "category": one.category,
        "spec": one.side,
        "token": one.index,
        "finding": one.verdict.value,
        "gap": one.gap,
    }
