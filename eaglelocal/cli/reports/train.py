"""The output of `eaglelocal train`: its inputs, and the head's results. Pure: figures in, texts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.reports.import_head import labelled
from eaglelocal.hub.heads.trial_verdict import TrialAcceptance

if TYPE_CHECKING:
    from eaglelocal.cli.train_options import TrainOptions
    from eaglelocal.cli.train_questions import TrainQuestions
    from eaglelocal.training.batches import Accepted
    from eaglelocal.training.conversations import Collected


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A trained head and its acceptance before and after: on held-out texts (`held_*`), and in a real engine."""

    path: Path
    name: str
    is_kept: bool
    held_before: Accepted
    held_after: Accepted
    before: TrialAcceptance | None  # of the draft used so far; None: there was none
    after: TrialAcceptance
    collected: Collected
    num_taught: int


def begin_lines(lessons: TrainOptions, asked: TrainQuestions, *, most_tokens: int) -> list[str]:
    start = lessons.school.start_info
    rows = [
        ("target", lessons.found.label),
        ("head", f"{start.name} goes on" if start else "a new one, EAGLE-3.1"),
        ("asked", f"{asked.source}, until there are {most_tokens} tokens of answers"),
        ("kept in", f"{lessons.folder} (answers stay there, for the next time)"),
        ("learns on", lessons.device),
    ]
    return [line for label, text in rows for line in wide(label, text)]


def wide(label: str, text: str) -> list[str]:
    return list(labelled(label if len(label) < 9 else f"{label} ", text))


def result_lines(trained: TrainResult) -> list[str]:
    collected = trained.collected
    learned = f"{trained.num_taught} answers; {collected.num_refused} questions did not fit"
    lines = [*labelled("learned", learned), f"{'trial':<9} first accepted  tokens a check  drafts"]
    if trained.before is not None:
        lines.append(trial_line("before", trained.before))
    lines.append(trial_line("now", trained.after))
    if trained.is_kept:
        is_worse = trained.before is not None and trained.after.length <= trained.before.length
        but = [*labelled("note", "it is no better than the one before")] if is_worse else []
        return [*lines, *but, *labelled("kept", f"{trained.path}")]
    return [*lines, *labelled("not kept", "it is no better than the one before")]


def trial_line(label: str, figures: TrialAcceptance) -> str:
    return f"{label:<9} {figures.first:>14.1%}  {figures.length:>14.2f}  {figures.drafts:>6}"


def report_object(lessons: TrainOptions, trained: TrainResult) -> dict[str, object]:
    return {
        "target": lessons.found.label,
        "from": lessons.school.start_info.name if lessons.school.start_info else None,
        "head": trained.name,
        "answers": trained.num_taught,
        "refused": trained.collected.num_refused,
        "held_out": {"before": accepted_object(trained.held_before), "after": accepted_object(trained.held_after)},
        "trial": {"before": figures_object(trained.before), "after": figures_object(trained.after)},
        "kept": trained.is_kept,
        "file": str(trained.path) if trained.is_kept else None,
    }


def accepted_object(accepted: Accepted) -> Mapping[str, object]:
    return {
        "drafts": accepted.drafts,
        "acceptance_length": round(accepted.length, 3),
        "accepted_per_position": list(accepted.per_position),
    }


def figures_object(figures: TrialAcceptance | None) -> Mapping[str, object] | None:
    if figures is None:
        return None
    return {
        "drafts": figures.drafts,
        "acceptance_length": round(figures.length, 3),
        "accepted_per_position": list(figures.accepted_per_position),
    }
