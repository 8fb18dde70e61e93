"""The evaluation of results: speed-ups over plain decoding, comparisons of modes, and counts of what limits them.

Pure. A pair is a result in which both sides have a speed; other results are counted as too short. The statistics
sample prompts (or waves of prompts), with their repeats averaged; with a single prompt, its repeats.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, median

import numpy as np
from numpy.typing import NDArray

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.prompt_run import AnswerRecord
from eaglelocal.bench.text_identity import Difference
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import DraftPolicy, Spec
from eaglelocal.core.stats import sum_stats

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
    num_drafts: int  # verifications that had a draft; without any, the acceptance length says nothing
    num_asleep: int  # answers that ended with speculation asleep
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The speed of `side` divided by the speed of `other`, on the same prompts."""

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


def group_results(results: Iterable[TaskResult]) -> dict[tuple[int, str], list[TaskResult]]:
    """Group results by (concurrency, category): by rising concurrency, categories in order of appearance."""
    found: dict[tuple[int, str], list[TaskResult]] = {}
    for result in results:
        found.setdefault((result.task.concurrency, result.task.category), []).append(result)
    return dict(sorted(found.items(), key=lambda entry: entry[0][0]))


def evaluate_categories(results: Sequence[TaskResult], sides: Sequence[str]) -> list[CategoryResult]:
    return [evaluate_category(own, side) for own in group_results(results).values() for side in sides]


def evaluate_category(results: Sequence[TaskResult], side: str) -> CategoryResult:
    """Evaluate a side on results of one category and one concurrency."""
    pairs = select_measured(results, side, PLAIN)
    answers, plain = collect_answers(results, side), collect_answers(results, PLAIN)
    return CategoryResult(
        category=results[0].task.category,
        concurrency=results[0].task.concurrency,
        side=side,
        speedup=bound_mean([compute_ratios(pairs, side, PLAIN)]) if pairs else None,
        plain_tok_s=median([result.phases[PLAIN].tok_s for result in pairs]) if pairs else None,
        tok_s=median([result.phases[side].tok_s for result in pairs]) if pairs else None,
        acceptance_length=sum_stats([answer.speculation for answer in answers]).acceptance_length,
        plain_ttft_s=median_ttft_s(plain),
        ttft_s=median_ttft_s(answers),
        num_pairs=len(pairs),
        num_short=len(results) - len(pairs),
        num_answers=len(answers),
        num_identical=sum(a.equals(b) for a, b in zip(plain, answers, strict=True)),
        num_reused=sum(not answer.is_fresh for answer in (*plain, *answers)),
        num_drafts=sum(answer.speculation.drafts for answer in answers),
        num_asleep=sum(answer.speculation.state == "asleep" for answer in answers),
        differences=tuple(d for result in results for d in result.differences if d.side == side),
    )


def select_measured(results: Iterable[TaskResult], *sides: str) -> list[TaskResult]:
    return [result for result in results if all(result.phases[side].tok_s > 0 for side in sides)]


def compute_ratios(results: Sequence[TaskResult], side: str, other: str) -> list[float]:
    """Return one ratio of speeds for each unit, or for each repeat if there is only one unit."""
    found = group_ratios(results, side, other)
    return found[0] if len(found) == 1 else [geometric_mean(repeats) for repeats in found]


def group_ratios(results: Sequence[TaskResult], side: str, other: str) -> list[list[float]]:
    """Return the ratios of speeds by unit: one list for each unit, one ratio for each repeat."""
    by_unit: dict[int, list[float]] = {}
    for result in results:
        by_unit.setdefault(result.task.unit, []).append(result.phases[side].tok_s / result.phases[other].tok_s)
    return list(by_unit.values())


def collect_answers(results: Iterable[TaskResult], side: str) -> list[AnswerRecord]:
    return [answer for result in results for answer in result.phases[side].answers]


def median_ttft_s(answers: Iterable[AnswerRecord]) -> float | None:
    """Return the median time to the first token of answers to uncached prompts; None if there is none."""
    fresh = [answer.ttft_s for answer in answers if answer.is_fresh]
    return median(fresh) if fresh else None


def mean_ratio(results: Sequence[TaskResult], side: str, other: str) -> Bound | None:
    """Return the mean over the categories' means of the speed ratio; None if no pair has a speed.

    Repeats of a prompt say nothing about other prompts: they count as units only if there is a single prompt.
    """
    measured = [select_measured(own, side, other) for own in group_results(results).values()]
    categories = [own for own in measured if own]
    if len(categories) == 1:
        return bound_mean([compute_ratios(categories[0], side, other)])
    means = [[geometric_mean(repeats) for repeats in group_ratios(own, side, other)] for own in categories]
    return bound_mean(means) if means else None


def summarize(results: Sequence[TaskResult], runs: Sequence[CategoryResult], sides: Sequence[str]) -> list[Summary]:
    """Return a summary for each concurrency and side that has a speed."""
    summaries = []
    for level in sorted({run.concurrency for run in runs}):
        own = [result for result in results if result.task.concurrency == level]
        for side in sides:
            runs_of_side = [run for run in runs if (run.concurrency, run.side) == (level, side) and run.speedup]
            bound = mean_ratio(own, side, PLAIN)
            if bound is not None and runs_of_side:
                worst = min(runs_of_side, key=lambda run: run.speedup.mean if run.speedup else 0.0)
                summaries.append(Summary(side, level, bound, worst, sum(run.num_pairs for run in runs_of_side)))
    return summaries


def compare_with_best_fixed(
    results: Sequence[TaskResult], sides: Sequence[str], fixed: Sequence[str]
) -> list[Comparison]:
    """Compare every side with the fixed length that was fastest in each part, chosen in hindsight on these pairs."""
    comparisons = []
    for category, part in split_parts(results):
        speedups = {length: mean_ratio(part, length, PLAIN) for length in fixed}
        means = {length: bound.mean for length, bound in speedups.items() if bound is not None}
        if means:
            best = max(means, key=lambda length: means[length])
            comparisons += compare_sides(category, part, [side for side in sides if side != best], best)
    return comparisons


def split_parts(results: Sequence[TaskResult]) -> list[tuple[str, list[TaskResult]]]:
    """Return (category, results) for each concurrency: each category, then all together if there are several."""
    parts = []
    for level in sorted({result.task.concurrency for result in results}):
        own = [result for result in results if result.task.concurrency == level]
        found = [(category, part) for (_, category), part in group_results(own).items()]
        parts += [*found, (WHOLE, own)] if len(found) > 1 else found
    return parts


def compare_sides(category: str, results: Sequence[TaskResult], sides: Sequence[str], other: str) -> list[Comparison]:
    ratios_of = [(side, mean_ratio(results, side, other)) for side in sides]
    level = results[0].task.concurrency
    return [Comparison(category, level, side, other, bound) for side, bound in ratios_of if bound is not None]


def choose_main_side(summaries: Sequence[Summary], sides: Sequence[str]) -> str | None:
    """Return the side whose mean represents the run: `auto` if it was measured, else the fastest."""
    own = [summary for summary in summaries if summary.side in sides]
    first = [summary for summary in own if summary.concurrency == summaries[0].concurrency]
    if not first:
        return None
    return next((s.side for s in first if s.side == "auto"), max(first, key=lambda s: s.speedup.mean).side)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of a measurement. `modes` are the sides of our engine; `runs` also holds those of a server."""

    modes: tuple[str, ...]
    runs: tuple[CategoryResult, ...]
    summaries: tuple[Summary, ...]
    comparisons: tuple[Comparison, ...]
    num_other_prompts: int = 0  # prompts whose tokens the server counted differently

    @property
    def shown_comparisons(self) -> tuple[Comparison, ...]:
        """The comparisons to show: all except comparisons of two fixed lengths, whose speeds are in the table."""
        return tuple(one for one in self.comparisons if not one.side.isdecimal() or not one.other.isdecimal())


def evaluate(results: Sequence[TaskResult], specs: Sequence[Spec], *, server: str | None) -> Evaluation:
    """Evaluate the results of our modes and of a server (the label of its side; None: there is none)."""
    modes = [str(spec) for spec in specs]
    sides = [*modes, *([server] if server else [])]
    fixed = [str(spec) for spec in specs if spec.drafting is DraftPolicy.FIXED]
    runs = evaluate_categories(results, sides)
    comparisons = compare_with_best_fixed(results, modes, fixed)
    if server:
        for category, part in split_parts(results):
            comparisons += compare_sides(category, part, modes, server)
    num_other = count_other_prompts(results, server) if server else 0
    return Evaluation(tuple(modes), tuple(runs), tuple(summarize(results, runs, sides)), tuple(comparisons), num_other)


def count_other_prompts(results: Sequence[TaskResult], server: str) -> int:
    """Return how many prompts have another number of tokens at the server: it has another chat template, or none."""
    pairs = [
        (ours.prompt_tokens, theirs.prompt_tokens)
        for result in results
        for ours, theirs in zip(result.phases[PLAIN].answers, result.phases[server].answers, strict=True)
    ]
    return sum(theirs > 0 and ours != theirs for ours, theirs in pairs)


# ---- statistics: ratios of paired runs: geometric means with bounds. Machines drift, so only pairs are compared
#
# Statistics are computed on logarithms of ratios. The bootstrap resamples units: one number for each prompt (its
# repeats averaged), within categories, whose means have equal weight. The bootstrap of a small sample is too narrow
# (n prompts spread by (n-1)/n of their variance, and it ignores the uncertainty of that spread), so its deviations
# are widened by sqrt(n / (n-1)) and by t / z: on normal deviations this is Student's interval, on skewed ones it
# keeps the skew (after Hesterberg 2015, doi:10.1080/00031305.2015.1089789). A unit that is alone in its category is
# assumed to vary as those of the other categories do around their means.
RESAMPLES = 2000
TWO_SIDED, ONE_SIDED = 0.975, 0.95  # quantiles of the interval's ends, and of the one-sided bound


@dataclass(frozen=True, slots=True)
class Bound:
    """A geometric mean of ratios, its 95 % interval (`low`, `high`), and its one-sided 95 % lower bound (`least`).

    A single unit has no spread: then only the mean is known, and the interval is 0 to infinity.
    """

    mean: float
    low: float = 0.0
    high: float = math.inf
    least: float = 0.0

    @property
    def is_known(self) -> bool:
        return math.isfinite(self.high)

    @property
    def shows_difference(self) -> bool:
        """True if 1 lies outside the interval."""
        return not self.low <= 1.0 <= self.high

    @property
    def is_wide(self) -> bool:
        """True if the interval is wider than the distance of the mean from 1."""
        return self.high - self.low > abs(self.mean - 1.0)


def geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def bound_mean(groups: Sequence[Sequence[float]]) -> Bound:
    """Return the geometric mean of the groups' geometric means, with bounds.

    If every group has one unit, they are treated as one sample. Example: [[2.0, 2.0], [1.0, 1.0]] -> 1.41, and
    no width, since no prompt differs from its category.
    """
    logs = [np.log(np.asarray(group, dtype=np.float64)) for group in groups if len(group)]
    centre = float(np.mean([group.mean() for group in logs]))
    if all(len(group) < 2 for group in logs):
        logs = [np.concatenate(logs)]
    if len(logs[0]) < 2 and len(logs) == 1:
        return Bound(math.exp(centre))
    deviations, freedom = resample(logs), degrees_of_freedom(logs)

    def end(quantile: float, tail: float) -> float:
        widened = np.quantile(deviations, tail) * t_quantile(quantile, freedom) / NormalDist().inv_cdf(quantile)
        return math.exp(centre + float(widened))

    low, high = end(TWO_SIDED, 1 - TWO_SIDED), end(TWO_SIDED, TWO_SIDED)
    return Bound(math.exp(centre), low, high, end(ONE_SIDED, 1 - ONE_SIDED))


def resample(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the deviations of the mean of means over bootstrap samples, drawn within each group.  # [RESAMPLES]"""
    rng = np.random.default_rng(0)
    total = np.zeros(RESAMPLES)
    for group in groups:
        if len(group) == 1:
            total += rng.choice(pool_deviations(groups), size=RESAMPLES)
            continue
        drawn = rng.choice(group, size=(RESAMPLES, len(group))).mean(axis=1)
        total += (drawn - group.mean()) * math.sqrt(len(group) / (len(group) - 1))
    return total / len(groups)


def pool_deviations(groups: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the units' deviations from their groups' means, widened by sqrt(n / (n-1)); groups of one are left out."""
    several = [group for group in groups if len(group) > 1]
    return np.concatenate([(group - group.mean()) * math.sqrt(len(group) / (len(group) - 1)) for group in several])


def degrees_of_freedom(groups: Sequence[NDArray[np.float64]]) -> float:
    """Return the degrees of freedom of a mean of means, after Welch and Satterthwaite.

    Groups without spread add nothing; groups of one unit use the pooled spread of the others.
    """
    several = [group for group in groups if len(group) > 1]
    pooled = sum(len(group) - 1 for group in several)
    shares = [float(group.var(ddof=1)) / len(group) for group in several]
    doubt = sum(share**2 / (len(group) - 1) for share, group in zip(shares, several, strict=True))
    if len(several) < len(groups):  # all groups of one unit share one spread
        alone = (len(groups) - len(several)) * float(np.mean(pool_deviations(groups) ** 2))
        shares, doubt = [*shares, alone], doubt + alone**2 / pooled
    return sum(shares) ** 2 / doubt if doubt > 0 else float(pooled)


def t_quantile(p: float, freedom: float) -> float:
    """Return the quantile of Student's t for p > 0.5.

    Closed form for one and two degrees of freedom, else Cornish and Fisher's expansion around the normal quantile
    (Abramowitz and Stegun 26.7.5): within 1 % from three degrees on. Fractional degrees are rounded down, which
    gives the wider interval.
    """
    n = max(math.floor(freedom + 1e-6), 1)  # for one group it is a whole number, up to rounding
    if n == 1:
        return math.tan(math.pi * (p - 0.5))
    if n == 2:
        return (2 * p - 1) / math.sqrt(2 * p * (1 - p))
    z = NormalDist().inv_cdf(p)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / float(n) ** power for power, term in enumerate(terms, start=1))
