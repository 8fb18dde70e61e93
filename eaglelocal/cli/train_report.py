"""The report of `eaglelocal train`: questions and files before it begins, and how good the new head is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.output import label_text
from eaglelocal.cli.train_options import TrainOptions, TrainQuestions
from eaglelocal.core.records import dataclass

if TYPE_CHECKING:
    from eaglelocal.hub.heads.version_records import TrialAcceptance
    from eaglelocal.training.batches import Accepted
    from eaglelocal.training.conversations import Collected


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A trained head and its acceptance before and after: on held-out texts (`held_out_*`), and in a real engine."""

    path: Path
    name: str
    is_kept: bool
    held_out_before: Accepted
    held_out_after: Accepted
    before: TrialAcceptance | None  # of the current draft; None: there is none
    after: TrialAcceptance
    collected: Collected
    num_train_set: int


def begin_lines(options: TrainOptions, questions: TrainQuestions, *, max_answer_tokens: int) -> list[str]:
    start = options.source.start
    further = f"trained further{'' if options.source.begins_alike else ' as P-EAGLE'}"
    layers = f", of the layers {', '.join(map(str, options.source.taps))}" if options.source.taps else ""
    rows = [
        ("target", options.found.label),
        ("head", f"a new one, {options.source.method}{layers}" if start is None else f"{start.name}, {further}"),
        ("questions ", f"{questions.source}, until there are {max_answer_tokens} tokens"),
        ("folder", f"{options.folder} (keeps the answers for the next run)"),
        ("device", options.device),
    ]
    return [line for label, text in rows for line in label_text(label, text)]


def result_lines(trained: TrainResult) -> list[str]:
    before, after = trained.before, trained.after
    summary = f"{trained.num_train_set} answers; {trained.collected.num_refused} questions did not fit"
    lines = [*label_text("trained", f"on {summary}"), f"{'trial':<9} first accepted  acceptance length  drafts"]
    if before is not None:
        lines.append(trial_line("before", before))
    lines.append(trial_line("now", after))
    no_better = "it is no better than the one before"
    if not trained.is_kept:
        return [*lines, *label_text("not kept", no_better)]
    is_worse = before is not None and after.length <= before.length
    return [*lines, *(label_text("note", no_better) if is_worse else []), *label_text("kept", f"{trained.path}")]


def trial_line(label: str, figures: TrialAcceptance) -> str:
    return f"{label:<9} {figures.first:>14.1%}  {figures.length:>17.2f}  {figures.drafts:>6}"


def report_object(options: TrainOptions, trained: TrainResult) -> dict[str, object]:
    before, after = trained.before, trained.after
    return {
        "target": options.found.label,
        "from": options.source.start.name if options.source.start else None,
        "head": trained.name,
        "answers": trained.num_train_set,
        "refused": trained.collected.num_refused,
        "held_out": {
            "before": figures_object(trained.held_out_before, trained.held_out_before.per_position),
            "after": figures_object(trained.held_out_after, trained.held_out_after.per_position),
        },
        "trial": {
            "before": before and figures_object(before, before.accepted_per_position),
            "after": figures_object(after, after.accepted_per_position),
        },
        "kept": trained.is_kept,
        "file": str(trained.path) if trained.is_kept else None,
    }


def figures_object(figures: Accepted | TrialAcceptance, accepted_per_position: Sequence[int]) -> Mapping[str, object]:
    return {
        "drafts": figures.drafts,
        "acceptance_length": round(figures.length, 3),
        "accepted_per_position": list(accepted_per_position),
    }
