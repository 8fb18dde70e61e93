"""The result of a measurement: a table for people, and the JSON object of the interface."""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.bench.pairs import Run
from eaglelocal.bench.statistics import bounded_mean, geometric_mean
from eaglelocal.core.events import EngineInfo

HEAD = (
    f"{'category':<11}{'spec':>5}{'pairs':>7}{'plain':>8}{'spec':>8}  {'speedup (95 %)':<22}{'accepted':>9}{'same':>7}"
)


def table(runs: Sequence[Run]) -> str:
    """One line a category and draft length; tok/s are medians, speed-ups geometric means over pairs."""
    return "\n".join([HEAD, *map(line, runs), *(summary(runs, spec) for spec in specs(runs))])


def line(run: Run) -> str:
    bound = run.speedup
    interval = f"{bound.mean:.2f}x  {bound.low:.2f} .. {bound.high:.2f}"
    return (
        f"{run.category:<11}{run.spec:>5}{len(run.pairs):>7}{run.plain_tok_s:>8.1f}{run.spec_tok_s:>8.1f}  "
        f"{interval:<22}{run.acceptance_length:>9.2f}{run.num_identical:>4}/{len(run.pairs)}"
    )


def specs(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.spec for run in runs))


def summary(runs: Sequence[Run], spec: str) -> str:
    mine = [run for run in runs if run.spec == spec]
    every = bounded_mean([pair.speedup for run in mine for pair in run.pairs])
    worst = min(mine, key=lambda run: run.speedup.mean)
    return (
        f"spec {spec}: {mean_of(runs, spec):.2f}x over {len(mine)} categories (geometric mean; all pairs "
        f"{every.low:.2f} .. {every.high:.2f}), worst {worst.speedup.mean:.2f}x in {worst.category}"
    )


def as_object(runs: Sequence[Run], info: EngineInfo, machine: str) -> dict[str, object]:
    best = max(specs(runs), key=lambda spec: mean_of(runs, spec))
    return {
        "target": info.target,
        "draft": info.draft,
        "machine": machine,
        "runs": [run_object(run) for run in runs],
        "spec": best,
        "geomean_speedup": mean_of(runs, best),
        "worst_speedup": min(run.speedup.mean for run in runs if run.spec == best),
    }


def mean_of(runs: Sequence[Run], spec: str) -> float:
    """Geometric mean over the categories at one draft length."""
    return geometric_mean([run.speedup.mean for run in runs if run.spec == spec])


def run_object(run: Run) -> dict[str, object]:
    bound = run.speedup
    return {
        "category": run.category,
        "concurrency": 1,
        "spec": run.spec,
        "plain_tok_s": run.plain_tok_s,
        "spec_tok_s": run.spec_tok_s,
        "speedup": bound.mean,
        "speedup_low": bound.low,
        "speedup_high": bound.high,
        "acceptance_length": run.acceptance_length,
        "ttft_s": run.ttft_s,
        "pairs": len(run.pairs),
        "identical": run.num_identical == len(run.pairs),
        "num_identical": run.num_identical,
    }
