"""The evaluation of all results, computed once for the report, the chart and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.results import (
    CategoryResult,
    Comparison,
    Summary,
    compare_with,
    compare_with_best_fixed,
    evaluate_categories,
    summarize,
)
from eaglelocal.core.request import DraftPolicy, Spec


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
        """The comparisons to show: all except those of two fixed lengths, whose speeds the table has."""
        return tuple(one for one in self.comparisons if not one.side.isdigit() or not one.other.isdigit())


def evaluate(results: Sequence[TaskResult], specs: Sequence[Spec], *, server: str | None) -> Evaluation:
    """Evaluate the results of our modes and of a server (the label of its side; None: there is none)."""
    modes = [str(spec) for spec in specs]
    sides = [*modes, *([server] if server else [])]
    fixed = [str(spec) for spec in specs if spec.drafting is DraftPolicy.FIXED]
    runs = evaluate_categories(results, sides)
    comparisons = compare_with_best_fixed(results, modes, fixed)
    if server:
        comparisons += compare_with(results, modes, server)
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
