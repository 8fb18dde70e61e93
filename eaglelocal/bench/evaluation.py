"""The evaluation of all laps, computed once for the report, the chart and the JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eaglelocal.bench.measure import PLAIN, TaskResult
from eaglelocal.bench.results import CategoryResult, Comparison, Summary, against, against_best_fixed, runs, summaries
from eaglelocal.core.request import DraftPolicy, Spec


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of a measurement. `modes` are the sides of our engine; `runs` also holds those of a server."""

    modes: tuple[str, ...]
    runs: tuple[CategoryResult, ...]
    summaries: tuple[Summary, ...]
    comparisons: tuple[Comparison, ...]
    num_other_prompts: int = 0  # prompts whose tokens the server counted differently than we did

    @property
    def adaptive(self) -> tuple[Comparison, ...]:
        """The comparisons to show: all except those of two fixed lengths, whose speeds the table has."""
        return tuple(one for one in self.comparisons if not one.side.isdigit() or not one.other.isdigit())


def evaluate(laps: Sequence[TaskResult], specs: Sequence[Spec], *, server: str | None) -> Evaluation:
    """Evaluate the laps of our modes and of a server (the label of its side; None: there is none)."""
    modes = [str(spec) for spec in specs]
    sides = [*modes, *([server] if server else [])]
    fixed = [str(spec) for spec in specs if spec.drafting is DraftPolicy.FIXED]
    found = runs(laps, sides)
    compared = against_best_fixed(laps, modes, fixed)
    if server:
        compared += against(laps, modes, server)
    others = num_other_prompts(laps, server) if server else 0
    return Evaluation(tuple(modes), tuple(found), tuple(summaries(laps, found, sides)), tuple(compared), others)


def num_other_prompts(laps: Sequence[TaskResult], server: str) -> int:
    """Return how many prompts have another number of tokens at the server: it has another chat template, or none."""
    pairs = [
        (ours.prompt_tokens, theirs.prompt_tokens)
        for lap in laps
        for ours, theirs in zip(lap.phases[PLAIN].answers, lap.phases[server].answers, strict=True)
    ]
    return sum(theirs > 0 and ours != theirs for ours, theirs in pairs)
