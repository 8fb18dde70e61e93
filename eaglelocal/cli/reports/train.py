"""The output of `eaglelocal train`: its inputs, and the head's results. Pure: figures in, texts out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal.cli.reports.import_head import wrap_labelled
from eaglelocal.core.records import dataclass
from eaglelocal.hub.heads.version_records import TrialAcceptance

if TYPE_CHECKING:
    from eaglelocal.cli.train_options import TrainOptions
    from eaglelocal.cli.train_questions import TrainQuestions
    from eaglelocal.training.batches import Accepted
    from eaglelocal.training.conversations import Collected
    from eaglelocal.training.draft_head import HeadSource


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
    rows = [
        ("target", options.found.label),
        ("head", describe_start(options.source)),
        ("questions", f"{questions.source}, until there are {max_answer_tokens} tokens of answers"),
        ("folder", f"{options.folder} (keeps the answers for the next run)"),
        ("device", options.device),
    ]
    return [line for label, text in rows for line in label_lines(label, text)]


def describe_start(source: HeadSource) -> str:
    if source.start_info is None:
        return f"a new one, {source.method}"
    return f"{source.start_info.name}, trained further{'' if source.begins_alike else ' as P-EAGLE'}"


def label_lines(label: str, text: str) -> list[str]:
    return list(wrap_labelled(label if len(label) < 9 else f"{label} ", text))


def result_lines(trained: TrainResult) -> list[str]:
    collected = trained.collected
    summary = f"{trained.num_train_set} answers; {collected.num_refused} questions did not fit"
    lines = [*wrap_labelled("trained", f"on {summary}"), f"{'trial':<9} first accepted  acceptance length  drafts"]
    if trained.before is not None:
        lines.append(trial_line("before", trained.before))
    lines.append(trial_line("now", trained.after))
    if trained.is_kept:
        is_worse = trained.before is not None and trained.after.length <= trained.before.length
        but = [*wrap_labelled("note", "it is no better than the one before")] if is_worse else []
        return [*lines, *but, *wrap_labelled("kept", f"{trained.path}")]
    return [*lines, *wrap_labelled("not kept", "it is no better than the one before")]


def trial_line(label: str, figures: TrialAcceptance) -> str:
    return f"{label:<9} {figures.first:>14.1%}  {figures.length:>17.2f}  {figures.drafts:>6}"


def report_object(options: TrainOptions, trained: TrainResult) -> dict[str, object]:
    return {
        "target": options.found.label,
        "from": options.source.start_info.name if options.source.start_info else None,
        "head": trained.name,
        "answers": trained.num_train_set,
        "refused": trained.collected.num_refused,
        "held_out": {
            "before": accepted_object(trained.held_out_before),
            "after": accepted_object(trained.held_out_after),
        },
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
