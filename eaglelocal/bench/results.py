"""The evaluation of laps: speed-ups over plain decoding, comparisons of modes, and counts of what limits them.

Pure. A pair is a lap in which both sides have a speed; other laps are counted as too short. The statistics
sample prompts (or waves of prompts), with their repeats averaged; with a single prompt, its repeats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.prompt_run import AnswerRecord
from eaglelocal.bench.statistics import Bound, bounded_mean, geometric_mean, median
from eaglelocal.bench.text_identity import Difference

WHOLE = "all"  # label of all categories together


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoryResult:
    """A side compared with plain decoding in one category, at one number of requests at once."""

    category: str
    concurrency: int
    side: str
    speedup: Bound | None  # None: no pair of answers was long enough
    plain_tok_s: float | None
    tok_s: float | None
    acceptance_length: float
    plain_ttft_s: float | None  # median over answers to uncached prompts; None: there was none
    ttft_s: float | None
    num_pairs: int
    num_short: int
    num_answers: int
    num_identical: int
    num_reused: int  # answers to prompts that were partly cached
    num_asleep: int  # answers at whose end speculation was asleep
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed of `side` divided by that of `other`, on the same prompts."""

    category: str
    concurrency: int
    side: str
    other: str
    ratio: Bound


@dataclass(frozen=True, slots=True)
class Summary:
    """A side compared with plain decoding over all categories, at one number of requests at once."""

    side: str
    concurrency: int
    speedup: Bound
    worst: CategoryResult
    num_pairs: int


def groups(laps: Iterable[TaskResult]) -> dict[tuple[int, str], list[TaskResult]]:
    """Group laps by (concurrency, category): by rising concurrency, categories in order of appearance."""
    found: dict[tuple[int, str], list[TaskResult]] = {}
    for lap in laps:
        found.setdefault((lap.task.concurrency, lap.task.category), []).append(lap)
    return dict(sorted(found.items(), key=lambda entry: entry[0][0]))


def sides_of(laps: Sequence[TaskResult], order: Sequence[str]) -> list[str]:
    """Return the sides that were measured, without plain decoding, in the given order."""
    return [side for side in order if side != PLAIN and any(side in lap.phases for lap in laps)]


def runs(laps: Sequence[TaskResult], sides: Sequence[str]) -> list[CategoryResult]:
    return [run_of(own, side) for own in groups(laps).values() for side in sides]


def run_of(laps: Sequence[TaskResult], side: str) -> CategoryResult:
    """Evaluate a side on laps of one category and one concurrency."""
    pairs = with_speeds(laps, side, PLAIN)
    answers, plain = answers_of(laps, side), answers_of(laps, PLAIN)
    return CategoryResult(
        category=laps[0].task.category,
        concurrency=laps[0].task.concurrency,
        side=side,
        speedup=bounded_mean([ratios(pairs, side, PLAIN)]) if pairs else None,
        plain_tok_s=median([lap.phases[PLAIN].tok_s for lap in pairs]) if pairs else None,
        tok_s=median([lap.phases[side].tok_s for lap in pairs]) if pairs else None,
        acceptance_length=acceptance_length(answers),
        plain_ttft_s=ttft_s(plain),
        ttft_s=ttft_s(answers),
        num_pairs=len(pairs),
        num_short=len(laps) - len(pairs),
        num_answers=len(answers),
        num_identical=sum(a.is_same_as(b) for a, b in zip(plain, answers, strict=True)),
        num_reused=sum(not answer.is_fresh for answer in (*plain, *answers)),
        num_asleep=sum(answer.speculation.state == "asleep" for answer in answers),
        differences=tuple(d for lap in laps for d in lap.differences if d.side == side),
    )


def with_speeds(laps: Iterable[TaskResult], *sides: str) -> list[TaskResult]:
    return [lap for lap in laps if all(lap.phases[side].tok_s > 0 for side in sides)]


def ratios(laps: Sequence[TaskResult], side: str, other: str) -> list[float]:
    """Return one ratio of speeds for each unit, or for each repeat if there is only one unit."""
    found = repeats_of(laps, side, other)
    return found[0] if len(found) == 1 else [geometric_mean(repeats) for repeats in found]


def repeats_of(laps: Sequence[TaskResult], side: str, other: str) -> list[list[float]]:
    """Return the ratios of speeds by unit: one list for each unit, one ratio for each repeat."""
    by_unit: dict[int, list[float]] = {}
    for lap in laps:
        by_unit.setdefault(lap.task.unit, []).append(lap.phases[side].tok_s / lap.phases[other].tok_s)
    return list(by_unit.values())


def answers_of(laps: Iterable[TaskResult], side: str) -> list[AnswerRecord]:
    return [answer for lap in laps for answer in lap.phases[side].answers]


def acceptance_length(answers: Iterable[AnswerRecord]) -> float:
    """Return emitted tokens per draft, bonus tokens included; 1.0 without drafts."""
    stats = [answer.speculation for answer in answers]
    num_drafts = sum(one.drafts for one in stats)
    return sum(one.emitted_tokens for one in stats) / num_drafts if num_drafts else 1.0


def ttft_s(answers: Iterable[AnswerRecord]) -> float | None:
    """Return the median time to the first token of answers to uncached prompts; None if there is none."""
    fresh = [answer.ttft_s for answer in answers if answer.is_fresh]
    return median(fresh) if fresh else None


def over_all(laps: Sequence[TaskResult], side: str, other: str) -> Bound | None:
    """Return the mean over the categories' means of the speed ratio; None if no pair has a speed.

    Repeats of a prompt say nothing about other prompts: they count as units only if there is a single prompt.
    """
    parts = [with_speeds(own, side, other) for own in groups(laps).values()]
    parts = [own for own in parts if own]
    if len(parts) == 1:
        return bounded_mean([ratios(parts[0], side, other)])
    means = [[geometric_mean(repeats) for repeats in repeats_of(own, side, other)] for own in parts]
    return bounded_mean(means) if means else None


def summaries(laps: Sequence[TaskResult], found: Sequence[CategoryResult], sides: Sequence[str]) -> list[Summary]:
    """Return a summary for each concurrency and side that has a speed."""
    told = []
    for level in sorted({run.concurrency for run in found}):
        own = [lap for lap in laps if lap.task.concurrency == level]
        for side in sides:
            mine = [run for run in found if (run.concurrency, run.side) == (level, side) and run.speedup]
            bound = over_all(own, side, PLAIN)
            if bound is not None and mine:
                worst = min(mine, key=lambda run: run.speedup.mean if run.speedup else 0.0)
                told.append(Summary(side, level, bound, worst, sum(run.num_pairs for run in mine)))
    return told


def against_best_fixed(laps: Sequence[TaskResult], sides: Sequence[str], fixed: Sequence[str]) -> list[Comparison]:
    """Compare every side with the fixed length that was fastest in each part, chosen in hindsight on these pairs."""
    told = []
    for category, part in parts(laps):
        speedups = {length: over_all(part, length, PLAIN) for length in fixed}
        means = {length: bound.mean for length, bound in speedups.items() if bound is not None}
        if means:
            best = max(means, key=lambda length: means[length])
            told += compare(category, part, [side for side in sides if side != best], best)
    return told


def against(laps: Sequence[TaskResult], sides: Sequence[str], other: str) -> list[Comparison]:
    """Compare every side with `other` in each part."""
    return [one for category, part in parts(laps) for one in compare(category, part, sides, other)]


def parts(laps: Sequence[TaskResult]) -> list[tuple[str, list[TaskResult]]]:
    """Return (category, laps) for each concurrency: each category, then all of them together if there are several."""
    told = []
    for level in sorted({lap.task.concurrency for lap in laps}):
        own = [lap for lap in laps if lap.task.concurrency == level]
        found = [(category, part) for (_, category), part in groups(own).items()]
        told += [*found, (WHOLE, own)] if len(found) > 1 else found
    return told


def compare(category: str, laps: Sequence[TaskResult], sides: Sequence[str], other: str) -> list[Comparison]:
    ratios_of = [(side, over_all(laps, side, other)) for side in sides]
    level = laps[0].task.concurrency
    return [Comparison(category, level, side, other, bound) for side, bound in ratios_of if bound is not None]


def main_side(told: Sequence[Summary], sides: Sequence[str]) -> str | None:
    """Return the side whose mean represents the run: `auto` if it was measured, else the fastest."""
    first = [summary for summary in told if summary.concurrency == told[0].concurrency and summary.side in sides]
    if not first:
        return None
    return next((s.side for s in first if s.side == "auto"), max(first, key=lambda s: s.speedup.mean).side)
