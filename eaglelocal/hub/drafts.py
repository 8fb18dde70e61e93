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
from eaglelocal.gguf.pair import head_obstacle, read_draft
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.files import existing_file, looks_like_path
from eaglelocal.hub.targets import FoundTarget, label_of

UNDERSTOOD = "`auto`, `none`, or the path of a .gguf file"


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """What drafts; kind is `none`, `eagle3` or `draft_model`, and `reason` says why it is none."""

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
            raise UsageError("the draft 'ngram' is not available yet", hint=f"understood are {UNDERSTOOD}")
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


def _automatic(target: FoundTarget) -> FoundDraft:
    problem = head_obstacle(target.info)
    if problem:
        return FoundDraft(reason=problem)
    if target.head is None:
        return FoundDraft(reason="no draft is known for this target")
    return dataclasses.replace(draft_at(target.head, target), label="its own EAGLE-3.1 head")
