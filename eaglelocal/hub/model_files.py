"""Find the files of one run: target, draft and projector. Reads headers only."""

from __future__ import annotations

from eaglelocal.catalog.reference import Reference
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import NONE, RunOptions
from eaglelocal.hub.draft_resolver import FoundDraft, find_draft
from eaglelocal.hub.inflation.inflate import Progress
from eaglelocal.hub.learned_draft import use_learned_version
from eaglelocal.hub.projector_resolver import FoundProjector, find_projector
from eaglelocal.hub.target_resolver import FoundTarget, find_target


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that a run loads, found and read as far as their headers."""

    target: FoundTarget
    draft: FoundDraft
    projector: FoundProjector

    @property
    def task(self) -> ModelTask:
        return self.target.task


def find_files(reference: Reference, options: RunOptions, *, on_progress: Progress | None = None) -> ModelFiles:
    """Return the files of a run of this target; see find_target for those that are made of others.

    Raises UsageError, ModelFileError or IncompatibleError.
    """
    target = find_target(reference, on_progress=on_progress)
    projector = find_projector(options.mmproj, target)
    if target.task is not ModelTask.TEXT:
        draft = FoundDraft(reason="a model that writes no text drafts nothing")
    else:
        draft = find_draft(options.draft if options.drafts else NONE, target)
        draft = use_learned_version(draft, target, learns=options.learns)
    return ModelFiles(target, draft, projector)
