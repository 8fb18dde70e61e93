"""Resolution of a draft reference beside its target: the draft, or the reason why there is none.

Chooses, labels and makes lighter, before any process is started: an explicit draft that does not fit is an error, for
`auto` it is a reason. gguf/draft_pairing.py judges what fits, as in the engine.
"""

from __future__ import annotations

import dataclasses
import difflib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import DRAFT_WORDS, load_catalog
from eaglelocal.catalog.reference import File, parse_reference
from eaglelocal.errors import IncompatibleError, ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import check_rolls_back, head_problem, read_draft, state_problem
from eaglelocal.gguf.head_requantization import requantized_type
from eaglelocal.gguf.model_info import ModelInfo, architecture_of
from eaglelocal.gguf.mtp import MtpInfo, has_mtp
from eaglelocal.gguf.projector import ARCHITECTURE as PROJECTOR
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.cached_files import find_cached
from eaglelocal.hub.heads.head_store import all_heads, heads_for
from eaglelocal.hub.heads.requantized_copy import light_copy
from eaglelocal.hub.hub_references import resolve_draft_reference
from eaglelocal.hub.inflation.inflate import Progress
from eaglelocal.hub.pulled_drafts import pulled_draft
from eaglelocal.hub.target_resolver import FoundTarget, label_of
from eaglelocal.hub.typed_path import existing_file

NOTHING_KNOWN = "no head is known for this target"
UNDERSTOOD = "`auto`, `ngram`, `mtp`, `none`, `user/repo:Q8_0`, an entry of the catalog, or the path of a .gguf file"


@dataclass(frozen=True, slots=True)
class FoundDraft:
    """The draft that was chosen; kind is `none`, `ngram`, `eagle3`, `dflash`, `mtp` or `draft_model`.

    reason  why no model drafts
    origin  the original, where `path` is a copy
    note    how the choice differs from what people may expect
    """

    kind: str = "none"
    path: Path | None = None
    label: str = "none"
    reason: str = ""
    origin: Path | None = None
    note: str = ""


def find_draft(reference: str, target: FoundTarget) -> FoundDraft:
    """Resolve a draft reference. Raises UsageError, ModelFileError, or IncompatibleError with the figures."""
    match reference:
        case "none":
            return FoundDraft(reason="switched off")
        case "auto":
            return _chosen(target)
        case "ngram":
            return lookup_draft(target, reason="")
        case "mtp":
            return _pulled_layer(target) or own_layer(target)
    entry = load_catalog().drafts.get(reference.lower())
    return own_layer(target) if entry and entry.is_in_target else read_draft_file(_path_of(reference), target)


def _path_of(reference: str) -> Path:
    """Return a draft's file. Raises ModelFileError with the command that fetches it, UsageError on an unknown draft."""
    catalog = load_catalog()
    try:
        parsed = parse_reference(reference)
        if isinstance(parsed, File):
            return existing_file(reference, hint="`--draft auto` takes what is there")
        wanted = resolve_draft_reference(reference, catalog)
    except UsageError:
        near = difflib.get_close_matches(reference, [*DRAFT_WORDS, *catalog.drafts, *catalog.targets], n=1)
        guess = f"did you mean `{near[0]}`? " if near else ""
        raise UsageError(f"unknown draft {reference!r}", hint=f"{guess}understood are {UNDERSTOOD}") from None
    return find_cached(locations.hub_cache_dir(), wanted).path


def read_draft_file(path: Path, target: FoundTarget) -> FoundDraft:
    """Return the draft in a file, of the kind that its architecture states."""
    if path == target.path and has_mtp(target.header):
        return own_layer(target)
    header = read_header(path)
    if architecture_of(header) == PROJECTOR:
        raise ModelFileError(f"{path.name} is an image encoder, and drafts nothing", hint="give it as `--mmproj`")
    draft = read_draft(header, beside=target.header, target=target.info)
    label = label_of(draft.name, path)
    if isinstance(draft, ModelInfo):
        return FoundDraft("draft_model", path, f"draft model {label}")
    if isinstance(draft, MtpInfo):
        return FoundDraft("mtp", path, f"MTP layer {label}")
    if isinstance(draft, BlockInfo):
        return FoundDraft("dflash", path, f"{draft.kind} head {label}")
    dialect = "EAGLE-3.1" if draft.fc_norm or draft.norm_output else "EAGLE-3"
    return FoundDraft("eagle3", path, f"{dialect} head {label}")


def own_layer(target: FoundTarget) -> FoundDraft:
    """Return the target's own MTP layer. Raises IncompatibleError where it has none, or one that is not run."""
    read_draft(target.header, beside=target.header, target=target.info, kind="mtp")
    return FoundDraft("mtp", target.path, "its own MTP layer")


def requantize_draft(draft: FoundDraft, asked: str, *, on_progress: Progress) -> FoundDraft:
    """Return an EAGLE head with its copy in fewer bits, written now if it is not there; other drafts as they are.

    Raises ResourceError where a copy that was asked for by its type cannot be written.
    """
    if draft.kind == "dflash" and asked not in ("auto", "file"):
        return dataclasses.replace(draft, note="only EAGLE heads are copied in other bits: this one drafts as it is")
    if draft.kind != "eagle3" or draft.path is None:
        return draft
    kind = requantized_type(asked)
    try:
        copy = light_copy(draft.path, kind, on_progress=lambda share: on_progress(share, f"the head in {kind}, once"))
    except ResourceError as error:
        if asked == kind:
            raise
        return dataclasses.replace(draft, note=f"{error.message}: it drafts as it is, which costs more")
    if copy == draft.path:
        return draft
    return dataclasses.replace(draft, path=copy, origin=draft.path, label=f"{draft.label} ({kind})")


def lookup_draft(target: FoundTarget, reason: str) -> FoundDraft:
    """Return a lookup in the text so far, which needs no model. Raises IncompatibleError where no draft can run."""
    check_rolls_back(target.info)
    return FoundDraft("ngram", label="lookup in the text so far", reason=reason)


def _chosen(target: FoundTarget) -> FoundDraft:
    """Return the head that was imported or the draft that was pulled for the target, else an automatic choice.

    If one of them cannot draft, the note or the reason says so.
    """
    problems = []
    for found_by in (_imported, _pulled_with):
        try:
            if found := found_by(target):
                return found
        except (IncompatibleError, ModelFileError) as error:
            problems.append(error.message)
    draft = _automatic(target)
    if not problems:
        return draft
    if draft.reason == NOTHING_KNOWN:
        return dataclasses.replace(draft, reason=problems[0])
    return dataclasses.replace(draft, note=problems[0])


def _imported(target: FoundTarget) -> FoundDraft | None:
    """Return a head that was tried with this model, or with one of its kind; None if none. Raises as draft_at."""
    if head_problem(target.info):
        return None
    heads = [head.path for head in heads_for(target.header, target.info)] or all_heads(target.header, target.info)
    return read_draft_file(heads[0], target) if heads else None


def _pulled_with(target: FoundTarget) -> FoundDraft | None:
    """Return the draft that was pulled with the target; None if none was. Raises as draft_at."""
    path = pulled_draft(locations.pulled_drafts_file(), locations.hub_cache_dir(), target.repo)
    return None if path is None else read_draft_file(path, target)


def _pulled_layer(target: FoundTarget) -> FoundDraft | None:
    """Return MTP layers that were pulled in a separate file; None: the target's own layer is to be tried."""
    with suppress(IncompatibleError, ModelFileError):
        found = _pulled_with(target)
        return found if found and found.kind == "mtp" else None
    return None


def _automatic(target: FoundTarget) -> FoundDraft:
    problem = state_problem(target.info)
    if problem:
        return FoundDraft(reason=problem)
    if has_mtp(target.header):
        return own_layer(target)
    if problem := head_problem(target.info):
        return lookup_draft(target, reason=problem)
    if target.head is not None:
        return dataclasses.replace(read_draft_file(target.head, target), label="its own EAGLE-3.1 head")
    return lookup_draft(target, reason=NOTHING_KNOWN)
