"""Resolution of a draft reference for a target: the draft, or the reason why there is none.

If the user named a draft that does not fit, that is an error; for `auto` it is a reason. gguf/draft_pairing.py decides
whether a draft fits, here and in the engine.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import load_catalog
from eaglelocal.catalog.reference import DerivedModel, File, Reference, parse_reference
from eaglelocal.core.draft import SWITCHED_OFF
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.plan import Plan, describe_version
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import LOOKUP, LOOKUPS, NONE, RunOptions, list_draft_words
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import check_rolls_back, head_problem, read_draft, state_problem
from eaglelocal.gguf.eagle_info import EagleInfo, is_weak
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import is_medusa
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import DraftInfo
from eaglelocal.gguf.mtp import MtpInfo, has_mtp
from eaglelocal.gguf.projector import ARCHITECTURE as PROJECTOR
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.writer import choose_head_type
from eaglelocal.hub.derived_models import DerivedFile, derive_head, write_derived
from eaglelocal.hub.heads.head_store import list_fitting_heads, list_heads
from eaglelocal.hub.heads.requantized_copy import make_light_copy
from eaglelocal.hub.heads.version_records import BASE
from eaglelocal.hub.heads.versions import find_versions
from eaglelocal.hub.hub_cache import check_file, find_cached, resolve_draft_reference
from eaglelocal.hub.inflation.generated_files import Progress
from eaglelocal.hub.projector_resolver import FoundProjector, find_projector
from eaglelocal.hub.pull_plan import find_pulled_draft
from eaglelocal.hub.target_resolver import FoundTarget, find_target, make_label

NO_KNOWN_HEAD = "no head is known for this target"


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """The draft that was chosen; kind is `none`, `ngram`, `eagle3`, `dflash`, `mtp` or `draft_model`.

    reason  why no model drafts
    origin  the original, if `path` is a copy in fewer bits
    base    the head from which `path` was learned, if it was; `version` is its number then
    note    how the choice differs from what the user may expect
    info    of the file found; None: there is no file
    made    how the file is made of another model or head, if it is
    """

    kind: str = "none"
    path: Path | None = None
    label: str = "none"
    reason: str = ""
    origin: Path | None = None
    note: str = ""
    info: DraftInfo | None = dataclasses.field(default=None, compare=False, repr=False)
    made: DerivedFile | None = dataclasses.field(default=None, compare=False, repr=False)
    base: Path | None = None
    version: int = 0


def find_draft(reference: str, target: FoundTarget) -> FoundDraft:
    """Resolve a draft reference. Raises UsageError, ModelFileError, or IncompatibleError with the figures."""
    match reference:
        case "none":
            return FoundDraft(reason=SWITCHED_OFF)
        case "auto":
            return _find_auto_draft(target)
        case "ngram":
            return make_ngram_draft(target, reason="")
        case "mtp":
            with suppress(IncompatibleError, ModelFileError):
                if (found := _find_pulled(target)) and found.kind == "mtp":  # in a separate file
                    return found
            return read_own_mtp(target)
    check_one_model(reference)
    entry = load_catalog().drafts.get(reference.lower())
    return read_own_mtp(target) if entry and entry.is_in_target else _read_named_draft(reference, target)


def check_one_model(reference: str) -> None:
    """Raise UsageError if a reference names several models by commas, with the nearest name where one is mistyped."""
    models = reference.split(",")
    if len(models) == 1 or os.path.exists(os.path.expanduser(reference)):
        return
    mended = [next(iter(difflib.get_close_matches(name, list_draft_words(), n=1)), name) for name in models]
    hint = ",".join(mended if mended != models else (models[0], *LOOKUPS))
    raise UsageError(f"--draft names {' and '.join(models)}, and only one can be a model", hint=f"`--draft {hint}`")


def _read_named_draft(reference: str, target: FoundTarget) -> FoundDraft:
    """Return a named draft. Raises ModelFileError with the command that fetches it, UsageError on an unknown draft."""
    catalog = load_catalog()
    try:
        parsed = parse_reference(reference)
        is_of_hub = not isinstance(parsed, File | DerivedModel)
        wanted = resolve_draft_reference(reference, catalog) if is_of_hub else None
    except UsageError:
        near = difflib.get_close_matches(reference, [*list_draft_words(), *catalog.drafts, *catalog.targets], n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"unknown draft {reference!r}", hint=f"{guess}use {_list_draft_forms()}") from None
    if isinstance(parsed, DerivedModel):
        made = find_target(parsed, on_progress=None)
        read_draft(made.header, target.info)
        return FoundDraft("draft_model", made.path, f"draft model {made.label}", info=made.info, made=made.made)
    if isinstance(parsed, File):
        check_file(parsed.path, hint="--draft auto")
        return read_draft_file(parsed.path, target)
    assert wanted is not None
    return read_draft_file(find_cached(locations.hub_cache_dir(), wanted).path, target)


def _list_draft_forms() -> str:
    words = ", ".join(f"`{word}`" for word in list_draft_words())
    made = "`x.gguf@drop10`, which is made of it"
    return f"{words}, `user/repo:Q8_0`, an entry of the catalog, the path of a .gguf file, or {made}"


def write_draft(draft: FoundDraft, *, on_progress: Progress) -> FoundDraft:
    """Return the draft; if it is derived and missing, it is written now. Raises as write_derived."""
    if draft.made is None:
        return draft
    made = write_derived(draft.made, on_progress=on_progress)
    return dataclasses.replace(draft, made=made)


def read_draft_file(path: Path, target: FoundTarget) -> FoundDraft:
    """Return the draft in a file; its architecture states the kind.

    For an inflated target a head of the small model is inflated too.
    """
    if path == target.path and has_mtp(target.header):
        return read_own_mtp(target)
    header = read_header(path)
    if target.small is not None and _is_of_small_model(header, target):
        return inflate_draft(read_draft_file(path, target.small), target)
    if header.architecture == PROJECTOR:
        raise ModelFileError(f"{path.name} is an image encoder and cannot draft", hint=f"--mmproj {quote_path(path)}")
    draft = read_draft(header, target.info)
    match draft:
        case ModelInfo():
            kind, what = "draft_model", "draft model"
        case MtpInfo():
            kind, what = "mtp", "MTP layer"
        case BlockInfo():
            kind, what = "dflash", f"{draft.kind} head"
        case _:
            kind, what = "eagle3", f"{draft.method} head"
    return FoundDraft(kind, path, f"{what} {make_label(draft.name, path)}", info=draft)


def read_own_mtp(target: FoundTarget) -> FoundDraft:
    """Return the target's own MTP layer. Raises IncompatibleError if it has none, or one that is not supported."""
    layer = read_draft(target.header, target.info, kind="mtp")
    return FoundDraft("mtp", target.path, "its own MTP layer", info=layer)


def requantize_draft(draft: FoundDraft, draft_type: str, *, on_progress: Progress) -> FoundDraft:
    """Return the quantized copy of an EAGLE head, written now if it is missing; other drafts unchanged.

    Raises ResourceError if a copy whose type the user named cannot be written.
    """
    if draft.kind == "dflash" and draft_type not in ("auto", "file"):
        return dataclasses.replace(draft, note="only EAGLE heads can be requantized: this one is used as it is")
    if draft.kind != "eagle3" or draft.path is None:
        return draft
    kind = choose_head_type(draft_type)
    try:
        copy = make_light_copy(
            draft.path, kind, on_progress=lambda share: on_progress(share, f"writing the head in {kind}, once")
        )
    except ResourceError as error:
        if draft_type == kind:
            raise
        return dataclasses.replace(draft, note=f"{error.message}: the head is used as it is, which is slower")
    if copy == draft.path:
        return draft
    return dataclasses.replace(draft, path=copy, origin=draft.path, label=f"{draft.label} ({kind})")


def make_ngram_draft(target: FoundTarget, reason: str) -> FoundDraft:
    """Return an n-gram lookup in the text, which needs no model. Raises IncompatibleError if no draft can be used."""
    check_rolls_back(target.info)
    return FoundDraft("ngram", label=LOOKUP, reason=reason)


def _is_of_small_model(header: Header, target: FoundTarget) -> bool:
    """Return whether a file is a head with another width than the inflated target."""
    is_head = header.architecture == EAGLE and not is_medusa(header)
    return is_head and EagleInfo.from_header(header).target_hidden_size != target.info.n_embd


def inflate_draft(draft: FoundDraft, target: FoundTarget) -> FoundDraft:
    """Adapt a draft of the small model to the inflated target. Raises as derive_head.

    A head grows with the target. Draft models and lookups work unchanged; other heads cannot draft for it.
    """
    if draft.kind in ("none", "ngram", "draft_model"):
        return draft
    if not isinstance(draft.info, EagleInfo) or target.made is None or draft.info.n_layer > 1:
        return make_ngram_draft(target, reason=f"{draft.label} cannot be inflated: only EAGLE-3 heads of one layer can")
    made = derive_head(target.made, draft.info)
    grown = read_draft(made.header, target.info)
    return dataclasses.replace(draft, path=made.path, label=f"{draft.label}, {made.label}", info=grown, made=made)


def _find_auto_draft(target: FoundTarget) -> FoundDraft:
    """Return the head that was imported or the draft that was pulled for the target, else the default.

    If one of them cannot draft, the note or the reason says so. An inflated target gets the small model's draft.
    """
    if target.small is not None:
        return inflate_draft(_find_auto_draft(target.small), target)
    problems = []
    for find in (_find_imported, _find_pulled):
        try:
            if found := find(target):
                return found
        except (IncompatibleError, ModelFileError) as error:
            problems.append(error.message)
    draft = _choose_default(target)
    if not problems:
        return draft
    if draft.reason == NO_KNOWN_HEAD:
        return dataclasses.replace(draft, reason=problems[0])
    return dataclasses.replace(draft, note=problems[0])


def _find_imported(target: FoundTarget) -> FoundDraft | None:
    """Return a head that was imported for this model or its kind, and is not weak; None if there is none.

    Raises as read_draft_file.
    """
    if state_problem(target.info):
        return None
    fitting = list_fitting_heads(target.info)
    heads = [head.path for head in fitting if not is_weak(head.info.header)]
    heads = heads if fitting else list_heads(target.info)
    return read_draft_file(heads[0], target) if heads else None


def _find_pulled(target: FoundTarget) -> FoundDraft | None:
    """Return the draft that was pulled with the target; None if it is not on disk. Raises as read_draft_file."""
    path = find_pulled_draft(locations.pulled_drafts_file(), locations.hub_cache_dir(), target.repo)
    return None if path is None else read_draft_file(path, target)


def _choose_default(target: FoundTarget) -> FoundDraft:
    problem = state_problem(target.info)
    if problem:
        return FoundDraft(reason=problem)
    if has_mtp(target.header):
        return read_own_mtp(target)
    if problem := head_problem(target.info):
        return make_ngram_draft(target, reason=problem)
    if target.head is not None:
        return dataclasses.replace(read_draft_file(target.head, target), label="its own EAGLE-3.1 head")
    return make_ngram_draft(target, reason=NO_KNOWN_HEAD)


# ---- learned draft: the learned version of a draft head, in place of the head itself
def use_learned_version(draft: FoundDraft, target: FoundTarget, *, learns: bool) -> FoundDraft:
    """Return the version of a head that is in use: the pinned one, or the current one if the user lets heads learn.

    If a version cannot be used, a note says so, and the base head drafts.
    """
    if draft.kind != "eagle3" or draft.path is None or draft.made is not None or not locations.learned_dir().is_dir():
        return draft
    try:
        versions = find_versions(target.path, draft.path)
    except OSError:  # the models are read again, which raises the error
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
    """Record the current paths of a loaded head's files in its versions, if they were moved."""
    if plan.draft_kind != "eagle3" or plan.base_head is None or not locations.learned_dir().is_dir():
        return
    with suppress(OSError):  # a folder that cannot be written
        find_versions(plan.target, plan.base_head).note_paths(plan.target, plan.base_head)


def add_note(draft: FoundDraft, note: str) -> FoundDraft:
    return dataclasses.replace(draft, note="; ".join(filter(None, (draft.note, note))))


# ---- model files: find the files of one run: target, draft and projector. Reads headers only
@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files that a run loads: found, and their headers read."""

    target: FoundTarget
    draft: FoundDraft
    projector: FoundProjector

    @property
    def task(self) -> ModelTask:
        return self.target.task


def find_files(reference: Reference, options: RunOptions, *, on_progress: Progress | None = None) -> ModelFiles:
    """Return the files of a run of this target; for derived files see find_target.

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
