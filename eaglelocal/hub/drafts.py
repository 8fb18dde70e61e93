"""A draft reference, beside its target -> what drafts, or why nothing does.

Chooses and labels, before any process is started: an explicit draft that does not fit is an error, an
automatic one that is not to be had is a reason. What fits is judged by gguf/pair.py, as in the engine.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.errors import UsageError
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.pair import check_rolls_back, head_obstacle, read_draft, state_problem
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.files import existing_file, looks_like_path
from eaglelocal.hub.heads.store import heads_for
from eaglelocal.hub.targets import FoundTarget, label_of

UNDERSTOOD = "`auto`, `ngram`, `none`, or the path of a .gguf file"


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """What drafts; kind is `none`, `ngram`, `eagle3` or `draft_model`. `reason` says why there is no model for it."""

    kind: str = "none"
    path: Path | None = None
    label: str = "none"
    reason: str = ""


def find_draft(reference: str, target: FoundTarget) -> FoundDraft:
    """Raises UsageError, ModelFileError, or IncompatibleError with the figures."""
    match reference:
        case "none":
            return FoundDraft(reason="switched off")
        case "auto":
            return _automatic(target)
        case "ngram":
            return lookup(target, reason="")
    if not looks_like_path(reference):
        raise UsageError(f"unknown draft {reference!r}", hint=f"understood are {UNDERSTOOD}")
    return draft_at(existing_file(reference), target)


def draft_at(path: Path, target: FoundTarget) -> FoundDraft:
    """A draft file for a target, of the kind its architecture says."""
    header = read_header(path)
    draft = read_draft(header, beside=target.header, target=target.info)
    label = label_of(draft.name, path)
    if isinstance(draft, ModelInfo):
        return FoundDraft("draft_model", path, f"draft model {label}")
    dialect = "EAGLE-3.1" if draft.fc_norm or draft.norm_output else "EAGLE-3"
    return FoundDraft("eagle3", path, f"{dialect} head {label}")


def lookup(target: FoundTarget, reason: str) -> FoundDraft:
    """Drafts from what was already said, which needs no model. Raises IncompatibleError as any draft does."""
    check_rolls_back(target.info)
    return FoundDraft("ngram", label="lookup in the text so far", reason=reason)


def _automatic(target: FoundTarget) -> FoundDraft:
    problem = state_problem(target.info)
    if problem:
        return FoundDraft(reason=problem)
    if problem := head_obstacle(target.info):
        return lookup(target, reason=problem)
    if imported := heads_for(target.header, target.info):
        return draft_at(imported[0].path, target)
    if target.head is not None:
        return dataclasses.replace(draft_at(target.head, target), label="its own EAGLE-3.1 head")
    return lookup(target, reason="no head is known for this target")
