"""Describe drafts for vLLM: from the catalog, from a repository that the user named, and heads of this machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import BLOCKS, DRAFT_MODEL, EAGLE, DraftEntry
from eaglelocal.catalog.estimated_shapes import BLOCK_LAYERS, P_EAGLE_LAYERS
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.gguf.draft_pairing import is_same_model
from eaglelocal.gguf.eagle_info import VERIFIER_KEY, EagleInfo
from eaglelocal.hub.heads.export_folder import read_eagle_head
from eaglelocal.hub.heads.head_folder import REPOSITORY
from eaglelocal.planning.options import DEFAULTS
from eaglelocal.planning.quality import HEAD_DEFAULT, PredictedAcceptance
from eaglelocal.planning.speed import MAX_DRAFT
from eaglelocal.preparation.vllm.served_pair import (
    BYTES_PER_WEIGHT,
    EAGLE3,
    PEAGLE,
    REPO_METHODS,
    VllmDraft,
    VllmTarget,
    WeightsPin,
    names_folder,
)

Q8_0_BITS, BF16_BITS = 8.5, 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenSources:
    """Repositories and commits that a person stated; empty: not stated.

    draft_method  of a `draft_repo` that the catalog does not know: one of REPO_METHODS
    head_folder   where a head of this machine is exported to, as vLLM will see it
    """

    target_repo: str = ""
    revision: str = ""
    draft_repo: str = ""
    draft_revision: str = ""
    draft_method: str = ""
    head_folder: Callable[[Path], str] = str


def describe_entry(draft: DraftEntry, target: VllmTarget, given: GivenSources) -> VllmDraft:
    """Return a draft of the catalog. Raises UsageError if the repository of its original weights is not known."""
    method = PEAGLE if draft.drafts_in_parallel else draft.kind
    default = DEFAULTS.get(draft.kind, HEAD_DEFAULT)
    most = max(draft.num_draft_tokens, 1) if draft.kind in BLOCKS or draft.drafts_in_parallel else MAX_DRAFT
    found = VllmDraft(
        id=draft.id,
        method=method,
        most=most,
        acceptance=PredictedAcceptance.from_reports(draft.acceptance_lengths, default=default),
        is_gated=draft.gated,
    )
    if draft.is_in_target:
        return _add_sizes(found, draft, target)
    repo = draft.weights_repo
    if repo is None:
        raise UsageError(
            f"the repository of the original weights of {draft.id} is not known", hint="--draft-repo USER/REPO"
        )
    pin = WeightsPin(repo, given.draft_revision or draft.source_revision or "")
    return _add_sizes(replace(found, pin=pin), draft, target)


def _add_sizes(found: VllmDraft, draft: DraftEntry | None, target: VllmTarget) -> VllmDraft:
    """Return the draft with its bytes: as published, or as so many layers of the target."""
    shape = target.shape
    layers = {PEAGLE: P_EAGLE_LAYERS, **dict.fromkeys(BLOCKS, BLOCK_LAYERS[0])}.get(found.method, 1)
    published = _find_published_bytes(draft) if draft else 0
    each = (shape.weights_bytes - shape.embedding_bytes - shape.output_bytes) // shape.n_layer
    cache = target.cache_bytes(1) // shape.n_layer
    stated = draft.kv_bytes_per_token if draft else None
    return replace(
        found,
        num_bytes=published or layers * each,
        num_layers=layers,
        kv_bytes_per_token=layers * cache if stated is None else stated,
    )


def _find_published_bytes(draft: DraftEntry) -> int:
    """Return the bytes of a draft in 16 bits; 0 if no size is known."""
    if draft.parameters_m:
        return int(draft.parameters_m * 1e6 * BYTES_PER_WEIGHT)
    sizes = draft.sizes
    widened = sizes.get("q8_0") or (sizes.get("file") if draft.kind == DRAFT_MODEL else None) or 0
    return sizes.get("bf16") or sizes.get("f16") or int(widened * BF16_BITS / Q8_0_BITS)


def describe_repo(given: GivenSources, catalog: Catalog, entry: TargetEntry | None, target: VllmTarget) -> VllmDraft:
    """Return the draft in the repository that was given."""
    entries = [draft for draft in catalog.drafts.values() if draft.weights_repo == given.draft_repo]
    serving = [draft for draft in entries if entry is not None and draft.serves(entry.id)]
    if serving:
        found = describe_entry(serving[0], target, given)
        if given.draft_method not in ("", found.method):
            raise UsageError(f"{given.draft_repo} drafts as {found.method}", hint=f"--draft-method {found.method}")
        return found
    if entries and entry is not None:
        served = ", ".join(sorted({id for draft in entries for id in draft.targets}))
        raise UsageError(f"{given.draft_repo} drafts for {served}, not for {entry.id}", hint="--draft auto")
    if given.draft_method not in REPO_METHODS:
        raise UsageError(
            f"the catalog does not know {given.draft_repo}: say how it drafts, one of {', '.join(REPO_METHODS)}",
            hint="--draft-method eagle3",
        )
    found = VllmDraft(
        id=given.draft_repo,
        method=given.draft_method,
        pin=WeightsPin(given.draft_repo, given.draft_revision),
        most=MAX_DRAFT,
        acceptance=PredictedAcceptance.from_reports((), default=HEAD_DEFAULT),
    )
    return _add_sizes(found, None, target)


def describe_head(
    path: Path, target: VllmTarget, given: GivenSources, acceptance: PredictedAcceptance | None = None
) -> VllmDraft:
    """Return a head of this machine, in the folder that it will be exported to.

    Raises IncompatibleError if it is of another target.
    """
    header, info = read_eagle_head(path)
    verifier = header.metadata.get(VERIFIER_KEY)
    check_head_serves(info, verifier if isinstance(verifier, str) else "", target)
    parameters = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    return VllmDraft(
        id=info.name,
        method=EAGLE3 if info.mask is None else PEAGLE,
        pin=WeightsPin(given.head_folder(path)),
        most=info.num_depths if info.mask is not None else MAX_DRAFT,
        num_bytes=parameters * BYTES_PER_WEIGHT,
        num_layers=info.n_layer,
        kv_bytes_per_token=2 * BYTES_PER_WEIGHT * info.n_layer * info.n_kv_head * info.head_dim,
        acceptance=acceptance or PredictedAcceptance.from_reports((), default=DEFAULTS.get(EAGLE, HEAD_DEFAULT)),
        head_file=path,
    )


def compare_vocab(draft: VllmDraft, target: VllmTarget, catalog: Catalog) -> tuple[VllmDraft, list[str]]:
    """Return the draft with its `shares_vocab`, and notes. Models of one family may be padded to different sizes."""
    if draft.method != DRAFT_MODEL or draft.pin is None:
        return draft, []
    repo, size = draft.pin.repo, target.shape.n_vocab
    found = read_vocab_size(repo) if names_folder(repo) else find_vocab_size(repo, catalog)
    if found == size:
        return draft, []
    other = "a vocabulary of unknown size" if found is None else f"{found} tokens"
    note = f"{draft.id} has {other}, {target.id} {size} tokens: vLLM drafts with those that both have"
    return replace(draft, shares_vocab=False), [note]


def find_vocab_size(repo: str, catalog: Catalog) -> int | None:
    """Return the number of tokens of a repository's model; None if the catalog does not know it."""
    return next((one.outline.n_vocab for one in catalog.targets.values() if one.source_repo == repo), None)


def read_vocab_size(folder: str) -> int | None:
    """Return the number of tokens of a model in a folder, as its config.json says; None if it does not."""
    try:
        size = read_object(read_regular(expand_path(folder) / "config.json")).get("vocab_size")
    except (OSError, ValueError):
        return None
    return size if isinstance(size, int) else None


def check_head_serves(info: EagleInfo, verifier: str, target: VllmTarget) -> None:
    """Raise IncompatibleError if a head's sizes, or the repository that it names, are of another target."""
    shape, hint = target.shape, "--draft auto"
    sizes, wanted = (info.target_hidden_size, info.n_vocab), (shape.n_embd, shape.n_vocab)
    if sizes != wanted:
        raise IncompatibleError(
            f"{info.name} reads hidden states of {sizes[0]} numbers and drafts {sizes[1]} tokens; "
            f"{target.id} has {wanted[0]} and {wanted[1]}",
            hint=hint,
        )
    names = (target.pin.repo, target.id)  # a mirror or a folder may have another name than the original
    if REPOSITORY.fullmatch(verifier) and not any(is_same_model(verifier, name) for name in names):
        raise IncompatibleError(f"{info.name} drafts for {verifier}, not for {target.pin.repo}", hint=hint)
