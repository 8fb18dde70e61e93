"""The learned version of a draft head, in place of the head itself."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

from eaglelocal import locations
from eaglelocal.core.plan import Plan, describe_version
from eaglelocal.errors import EagleLocalError
from eaglelocal.hub.draft_resolver import FoundDraft, read_draft_file
from eaglelocal.hub.heads.version_records import BASE
from eaglelocal.hub.heads.versions import find_versions
from eaglelocal.hub.target_resolver import FoundTarget


def use_learned_version(draft: FoundDraft, target: FoundTarget, *, learns: bool) -> FoundDraft:
    """Return the version of a head that is in use: the pinned one, or the current one if the user lets heads learn.

    A version that cannot be used is a note, and the base head drafts.
    """
    if draft.kind != "eagle3" or draft.path is None or draft.made is not None or not locations.learned_dir().is_dir():
        return draft
    try:
        versions = find_versions(target.path, draft.path)
    except OSError:  # the models are read again, with an error that says why
        return draft
    known, note = versions.read()
    number = known.pinned if known.pinned is not None else known.current if learns else BASE
    if note or number == BASE:
        return add_note(draft, note)
    try:
        learned = read_draft_file(versions.path(number), target)
    except EagleLocalError as error:
        return add_note(draft, f"learned version {number} is not used: {error.message}")
    label = draft.label + describe_version(number)
    return dataclasses.replace(learned, label=label, version=number, base=draft.path, note=draft.note)


def note_paths(plan: Plan) -> None:
    """Let the versions of a head that is loaded know where their files are now, if those were moved."""
    if plan.draft_kind != "eagle3" or plan.base_head is None or not locations.learned_dir().is_dir():
        return
    with suppress(OSError):  # a folder that cannot be written
        find_versions(plan.target, plan.base_head).note_paths(plan.target, plan.base_head)


def add_note(draft: FoundDraft, note: str) -> FoundDraft:
    return dataclasses.replace(draft, note="; ".join(filter(None, (draft.note, note))))
