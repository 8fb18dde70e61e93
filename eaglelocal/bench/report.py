"""The report of a measurement: for people at 80 columns, with notes on its limits, and as the object of `--json`.

Tokens per second are medians, speed-ups geometric means over prompts. `?` and `~` mark an interval that does
not support its mean. Only formats: results.py computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from eaglelocal.bench.prompt_run import MIN_TOKENS
from eaglelocal.bench.results import Bound, CategoryResult, Comparison, Evaluation, Summary, choose_main_side
from eaglelocal.bench.text_identity import Difference, DifferenceVerdict

HEAD = (
    f"{'category':<11}{'spec':>7}{'pairs':>6}{'plain':>8}{'spec':>8}  "
    f"{'speed-up, 95 %':<18}{'length':>7}{'ttft':>6}{'same':>6}"
)
UNSURE, WIDE = "?", "~"
MARKS = {
    UNSURE: "the interval holds 1.00: no difference is shown",
    WIDE: "the interval is wider than the difference itself",
}
MORE_PAIRS = "more --pairs make it narrower"
HOPELESS = 100.0  # an interval that ends above this says nothing
LEGEND = "tok/s: medians; length: acceptance length; ttft: seconds to the first token"
SHOWN_DIFFERENCES = 6
WHY_TEXTS_DIFFER = {
    DifferenceVerdict.NEAR_TIE: "rounding chose the other of two almost equally likely tokens",
    DifferenceVerdict.DIFFERENT: "further apart than rounding usually moves them; please report this",
    DifferenceVerdict.UNKNOWN: "sampled texts, or neither came again when repeated",
}
SAME_TEXT_HINT = "texts may be the same with --flash-attn on, which rounds alike for any number of rows"
ROWS_ROUND_APART = ("Q4_K", "Q5_K")  # weights of which llama.cpp computes several rows otherwise than one, as measured
ROWS_HINT = "without AVX2, several rows of {} round otherwise than one, by 2 and more in logits"
NAME_COLUMNS = 10


def format_report(evaluation: Evaluation, *, flash_attn: str = "auto", weights: str = "") -> str:
    """Return the whole report, the most important lines last.

    flash_attn  how the target ran: auto, on, off
    weights     type of most of its weights, such as Q4_K
    """
    ours = [one for run in evaluation.runs if run.side in evaluation.modes for one in run.differences]
    notes = list(list_notes(evaluation))
    if ours and flash_attn != "on":
        notes.append(SAME_TEXT_HINT)
    if ours and weights in ROWS_ROUND_APART:
        notes.append(ROWS_HINT.format(weights))
    parts = [
        "\n".join([HEAD, *map(format_row, evaluation.runs)]),
        format_comparisons(evaluation.shown_comparisons),
        "\n".join(notes),
        "\n".join(chain.from_iterable(map(summary_lines, evaluation.summaries))),
    ]
    return "\n\n".join(filter(None, parts))


def format_row(run: CategoryResult) -> str:
    start = f"{row_label(run.category, run.concurrency):<11}{run.side:>7}{run.num_pairs:>6}"
    identical = f"{run.num_identical}/{run.num_answers}"
    length = f"{run.acceptance_length:.2f}" if run.num_drafts else "-"
    end = f"{length:>7}{format_ttft(run.ttft_s):>6}{identical:>6}"
    if run.speedup is None:
        return f"{start}{'-':>8}{'-':>8}  {'answers too short':<18}{end}"
    rates = f"{format_rate(run.plain_tok_s):>8}{format_rate(run.tok_s):>8}"
    return f"{start}{rates}  {format_interval(run.speedup):<18}{end}"


def row_label(category: str, concurrency: int) -> str:
    """Return the row label of a category, such as `chat` or `mixed x4`."""
    return category[:NAME_COLUMNS] if concurrency == 1 else f"{category} x{concurrency}"


def format_rate(tok_s: float | None) -> str:
    """Format a speed with about four digits: 1234, 123.4, 1.23; `-` if there is none."""
    if tok_s is None:
        return "-"
    return f"{tok_s:.0f}" if tok_s >= 1000 else f"{tok_s:.1f}" if tok_s >= 10 else f"{tok_s:.2f}"


def format_ttft(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def format_interval(bound: Bound, *, unit: str = "prompt") -> str:
    """Format a mean and its interval, `1.52x 1.40..1.65`, with `?` or `~` if the interval does not support it."""
    if not bound.is_known:
        return f"{format_ratio(bound.mean)}x one {unit}"
    if bound.high >= HOPELESS:
        return f"{format_ratio(bound.mean)}x too few ?"
    return f"{format_ratio(bound.mean)}x {format_ends(bound)} {choose_mark(bound)}".rstrip()


def format_ends(bound: Bound) -> str:
    return f"{format_ratio(bound.low)}..{format_ratio(bound.high)}"


def format_ratio(value: float) -> str:
    """Format a ratio with four characters: 1.52, 15.2; from 100 on without decimals."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def choose_mark(bound: Bound) -> str:
    if not bound.shows_difference:
        return UNSURE
    return WIDE if bound.is_wide else ""


def summary_lines(summary: Summary) -> Iterator[str]:
    """Yield the mean of a side, and a warning if its interval does not support it."""
    where = "" if summary.concurrency == 1 else f" with {summary.concurrency} at once"
    bound = summary.speedup
    worst = summary.worst.speedup if summary.concurrency == 1 else None
    bounds = f", 95 %: {format_ends(bound)}, at least {format_ratio(bound.least)}" if bound.high < HOPELESS else ""
    tail = f"; worst: {summary.worst.category[:NAME_COLUMNS]} {format_ratio(worst.mean)}x" if worst else ""
    yield f"{summary.side}{where}: {format_ratio(bound.mean)}x plain{bounds}{tail}"
    if warning := explain_doubt(bound):
        yield f"  warning: {warning}"


def explain_doubt(bound: Bound) -> str:
    """Return why the interval does not support the mean; "" if it does."""
    if not bound.is_known:
        return "this is one prompt, so its error is unknown"
    if bound.high >= HOPELESS:
        return "too few prompts to distinguish it from plain"
    if not bound.shows_difference:
        return "not distinguishable from plain"
    return "the interval is wider than the gain itself" if bound.is_wide else ""


def format_comparisons(comparisons: Sequence[Comparison]) -> str:
    """Return the table of sides against the best fixed length in hindsight, or against another server."""
    if not comparisons:
        return ""
    lines = [f"{'category':<11}{'spec':>7}{'against':>10}  {'ratio, 95 %':<19}{'at least':>9}"]
    for one in comparisons:
        start = f"{row_label(one.category, one.concurrency):<11}{one.side:>7}{one.other:>10}"
        least = f"{one.ratio.least:.2f}" if one.ratio.is_known else "-"
        lines.append(f"{start}  {format_interval(one.ratio):<19}{least:>9}")
    return "\n".join(lines)


def list_notes(evaluation: Evaluation) -> Iterator[str]:
    """Yield the legend, then notes on wide intervals, short answers, cached prompts and differing texts."""
    yield LEGEND
    bounds = [run.speedup for run in evaluation.runs if run.speedup is not None and run.speedup.is_known]
    bounds += [one.ratio for one in evaluation.shown_comparisons if one.ratio.is_known]
    used = [sign for sign in MARKS if any(choose_mark(bound) == sign for bound in bounds)]
    yield from (f"{sign} {MARKS[sign]}" for sign in used)
    if used:
        yield f"  {MORE_PAIRS}"
    sides = {run.side for run in evaluation.runs}
    num_short = max((sum(run.num_short for run in evaluation.runs if run.side == side) for side in sides), default=0)
    if num_short:
        counted = f"fewer than {MIN_TOKENS} tokens that count, or all at once"
        yield f"answers too short to have a speed ({counted}): to {num_short} prompts"
    if evaluation.num_other_prompts:
        yield f"the server counted {evaluation.num_other_prompts} prompts differently: perhaps another chat template"
    num_reused = max((run.num_reused for run in evaluation.runs), default=0)
    if num_reused:
        yield f"up to {num_reused} prompts of a row were partly cached, and left out of its ttft"
    yield from explain_texts(evaluation)
    yield from list_differences([difference for run in evaluation.runs for difference in run.differences])


def explain_texts(evaluation: Evaluation) -> Iterator[str]:
    """Yield what share of our modes' texts is identical to plain decoding's, and how many differ for which reason."""
    runs = [run for run in evaluation.runs if run.side in evaluation.modes]
    num_answers, num_identical = sum(run.num_answers for run in runs), sum(run.num_identical for run in runs)
    if not num_answers:
        return
    share = f"{num_identical / num_answers:.0%}".replace("%", " %")
    yield f"same texts as without drafts: {num_identical} of {num_answers} ({share})"
    found = [one.verdict for run in runs for one in run.differences]
    for verdict in DifferenceVerdict:
        if number := found.count(verdict):
            yield f"  {number} {verdict.value}: {WHY_TEXTS_DIFFER[verdict]}"


def list_differences(found: Sequence[Difference]) -> Iterator[str]:
    """Yield a line for each difference, wrong texts first, at most SHOWN_DIFFERENCES and then the counts."""
    order = list(DifferenceVerdict)[::-1]
    ranked = sorted(found, key=lambda one: (one.verdict is not DifferenceVerdict.DIFFERENT, order.index(one.verdict)))
    for one in ranked[:SHOWN_DIFFERENCES]:
        place = f"text of {one.side} differs from plain in {one.category} at token {one.index + 1}"
        yield f"{place}: {one.verdict.value}{'' if one.gap is None else f' (gap {one.gap:.3g})'}"
    if len(ranked) > SHOWN_DIFFERENCES:
        counts = [(verdict, sum(one.verdict is verdict for one in found)) for verdict in DifferenceVerdict]
        yield "in all " + ", ".join(f"{count} {verdict.value}" for verdict, count in counts if count)


# ---- for programs
def result_object(evaluation: Evaluation) -> dict[str, object]:
    """Return the object: runs of our modes and of a server apart, and the means of the main mode (`spec`).

    A value that was not measured is None.
    """
    main = choose_main_side(evaluation.summaries, evaluation.modes)
    best = next((summary for summary in evaluation.summaries if summary.side == main), None)
    return {
        "runs": [run_object(run) for run in evaluation.runs if run.side in evaluation.modes],
        "spec": main,
        "geomean_speedup": best.speedup.mean if best else None,
        "worst_speedup": best.worst.speedup.mean if best and best.worst.speedup else None,
        "summaries": [summary_object(summary) for summary in evaluation.summaries],
        "comparisons": [
            {
                "category": one.category,
                "concurrency": one.concurrency,
                "spec": one.side,
                "against": one.other,
                "ratio": one.ratio.mean,
                **bound_ends(one.ratio, "ratio_"),
            }
            for one in evaluation.comparisons
        ],
        "server_runs": [run_object(run) for run in evaluation.runs if run.side not in evaluation.modes],
        "other_prompts": evaluation.num_other_prompts,
        "differences": [
            {
                "category": one.category,
                "spec": one.side,
                "token": one.index,
                "finding": one.verdict.value,
                "gap": one.gap,
            }
            for run in evaluation.runs
            for one in run.differences
        ],
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
