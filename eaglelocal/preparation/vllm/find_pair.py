"""Find the repositories and commits of a target and its draft, and describe both for vLLM.

The catalog states most repositories, a person the others. Commits come from the catalog, from a person, or from the
hub; a commit that a person states is compared with the hub if it can be reached.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import MTP as MTP_KIND
from eaglelocal.catalog.draft_entries import DraftEntry
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.run_options import AUTO, NONE, RunOptions
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import DownloadError, ResourceError, UsageError
from eaglelocal.gguf.draft_pairing import is_same_model
from eaglelocal.hub.heads.export_folder import find_head_file
from eaglelocal.hub.hub_api import RetryPolicy, fetch_commit, is_commit
from eaglelocal.hub.hub_cache import find_known_target
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.planning.machine_spec import DeviceSpec
from eaglelocal.planning.options import ModelOption
from eaglelocal.planning.quality import NATIVE
from eaglelocal.planning.speed import MAX_DRAFT
from eaglelocal.preparation.models import DEMO_ACCEPTANCE, find_models
from eaglelocal.preparation.vllm.describe_drafts import (
    GivenSources,
    compare_vocab,
    describe_entry,
    describe_head,
    describe_repo,
)
from eaglelocal.preparation.vllm.served_pair import (
    MTP,
    NGRAM,
    SUFFIX,
    ServedPair,
    VllmDraft,
    VllmTarget,
    WeightsPin,
    make_batch_costs,
    names_folder,
    widen_model,
)

TRIES = RetryPolicy(waits_s=())  # a command that writes a file does not wait for a hub

FindDevice = Callable[[ServedPair], DeviceSpec]


def find_pair(options: RunOptions, given: GivenSources, catalog: Catalog, find_device: FindDevice) -> ServedPair:
    """Return the pair that the options name, with the commits of both.

    find_device  returns the device that holds a pair, or raises ResourceError

    Raises UsageError on a model whose repository or commit is not known, DownloadError on one that does not exist.
    """
    entry, option = find_target(replace(options, draft=NONE), catalog)
    target = _describe_target(entry, option, given)
    draft = choose_draft(options, given, catalog, entry, target, find_device)
    target = replace(target, pin=pin_weights(target.pin, "--revision"))
    notes: list[str] = []
    if draft is not None:
        draft, notes = compare_vocab(draft, target, catalog)
    if draft is not None and draft.pin is not None and draft.head_file is None:
        draft = replace(draft, pin=pin_weights(draft.pin, "--draft-revision"))
    if draft is not None and draft.acceptance is not None and not draft.acceptance.is_reported:
        notes.append(f"nobody reported the acceptance of {draft.id}: {draft.acceptance.probability(1):.0%} assumed")
    is_light = draft is None or draft.method == NGRAM
    if options.draft == AUTO and not given.draft_repo and entry is not None and is_light:
        left = [one.id for one in _list_described(list(catalog.drafts_for(entry)), target, given)]
        notes += [f"there is no memory for {' or '.join(left)} beside {target.id}"] if left else []
    is_named = bool(given.draft_repo) or options.draft not in (AUTO, NONE)
    return ServedPair(target=target, draft=draft, is_named=is_named, notes=tuple(notes))


def find_target(options: RunOptions, catalog: Catalog) -> tuple[TargetEntry | None, ModelOption]:
    """Return the catalog's entry of the target, if there is one, and the planner's option of it."""
    models = find_models(options, catalog)
    parsed = locate_reference(options.target or "", options.model_folders)
    entry = None
    if not isinstance(parsed, EmbeddedModel | DerivedModel):
        entry = find_known_target(parsed, catalog)
    if entry is None and isinstance(parsed, File) and models[0].header is not None:
        name = str(models[0].header.metadata.get("general.name", ""))
        entry = next((one for one in catalog.targets.values() if name and _is_named(one, name)), None)
    return entry, models[0]


def _is_named(entry: TargetEntry, name: str) -> bool:
    return entry.source_repo is not None and is_same_model(name, entry.source_repo)


def _describe_target(entry: TargetEntry | None, option: ModelOption, given: GivenSources) -> VllmTarget:
    """Return the target with the repository that is known; its commit may still be open."""
    known = entry.source_repo if entry else None
    repo = given.target_repo or known or ""
    if not repo:
        raise UsageError(
            f"the repository of the original weights of {option.target} is not known",
            hint="--target-repo USER/REPO",
        )
    stated = entry.source_revision if entry and repo == known else None
    is_native = entry is not None and NATIVE in entry.quantizations
    return VllmTarget(
        id=entry.id if entry else option.target,
        pin=WeightsPin(repo, given.revision or stated or ""),
        model=widen_model(option.model, is_native=is_native),
        max_context=option.max_context or option.shape.max_context,
        is_gated=entry is not None and entry.gated,
    )


# ---- drafts
def choose_draft(
    options: RunOptions,
    given: GivenSources,
    catalog: Catalog,
    entry: TargetEntry | None,
    target: VllmTarget,
    find_device: FindDevice,
) -> VllmDraft | None:
    """Return the draft that is named, or else the one with the best predicted speed; None drafts nothing.

    Raises UsageError if the draft is not known, or belongs to another target.
    """
    if given.draft_repo:
        return describe_repo(given, catalog, entry, target)
    if options.draft == NONE:
        return None
    if options.draft in (NGRAM, SUFFIX):
        return VllmDraft(id=options.draft, method=options.draft, most=MAX_DRAFT)
    known = {draft.id: draft for draft in (catalog.drafts_for(entry) if entry else ())}
    named = catalog.drafts.get(options.draft)
    if named is not None and named.kind == NGRAM:
        return VllmDraft(id=NGRAM, method=NGRAM, most=MAX_DRAFT)
    if options.draft in known:
        return describe_entry(known[options.draft], target, given)
    if options.draft in catalog.drafts:
        served = ", ".join(catalog.drafts[options.draft].targets)
        raise UsageError(f"{options.draft} drafts for {served}, not for {target.id}", hint="--draft auto")
    if options.draft in (AUTO, MTP):
        return _choose_known(options, list(known.values()), given, target, find_device)
    near = difflib.get_close_matches(options.draft, known, n=1)
    if near and not Path(options.draft).exists() and "/" not in options.draft:
        raise UsageError(f"no draft is named {options.draft!r}", hint=f"--draft {near[0]}")
    return describe_head(find_head_file(options.draft), target, given)


def _choose_known(
    options: RunOptions, drafts: list[DraftEntry], given: GivenSources, target: VllmTarget, find_device: FindDevice
) -> VllmDraft | None:
    """Return the best of the catalog's drafts that fits beside the target, or else a lookup, or None.

    The embedded model has a head of its own.
    """
    wanted = [draft for draft in drafts if options.draft != MTP or draft.kind == MTP_KIND]
    found = list(_list_described(wanted, target, given))
    if found:
        device = find_device(ServedPair(target=target, draft=None))
        if options.draft == MTP:
            return _find_fastest(found, target, device)
        lookup = VllmDraft(id=NGRAM, method=NGRAM, most=MAX_DRAFT)
        fitting = [draft for draft in found if _fits(draft, target, find_device)]
        if fitting:
            return _find_fastest(fitting, target, device)
        return lookup if _fits(lookup, target, find_device) else None
    if options.draft == MTP:
        raise UsageError(f"no MTP layers of {target.id} are known", hint="--draft auto")
    if isinstance(locate_reference(options.target or "", options.model_folders), EmbeddedModel):
        return describe_head(demo_sources()[1], target, given, DEMO_ACCEPTANCE)
    return VllmDraft(id=NGRAM, method=NGRAM, most=MAX_DRAFT)


def _list_described(drafts: list[DraftEntry], target: VllmTarget, given: GivenSources) -> Iterator[VllmDraft]:
    """Yield the drafts with known weights: those with a reported acceptance, or all if there are none such."""
    usable = [draft for draft in drafts if draft.kind != NGRAM and (draft.is_in_target or draft.weights_repo)]
    reported = [draft for draft in usable if draft.acceptance_lengths]
    for draft in reported or usable:
        yield describe_entry(draft, target, given)


def _fits(draft: VllmDraft, target: VllmTarget, find_device: FindDevice) -> bool:
    try:
        find_device(ServedPair(target=target, draft=draft))
    except ResourceError:
        return False
    return True


def _find_fastest(drafts: list[VllmDraft], target: VllmTarget, device: DeviceSpec) -> VllmDraft:
    def best_goodput(draft: VllmDraft) -> float:
        costs = make_batch_costs(target, draft, device)
        return max(costs.goodput(1, length) for length in range(1, draft.most + 1))

    return max(drafts, key=best_goodput)


# ---- commits
def pin_weights(pin: WeightsPin, flag: str) -> WeightsPin:
    """Return the pin with its commit. Raises DownloadError if the hub has none such, UsageError if it cannot be asked.

    flag  which states the commit
    """
    if names_folder(pin.repo):
        folder = expand_path(pin.repo)
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", hint="--target-repo USER/REPO")
        if pin.revision:
            raise UsageError(f"{folder} is a folder, which has no commit", hint=f"leave {flag} out")
        return WeightsPin(str(folder.resolve()))
    try:
        return WeightsPin(pin.repo, fetch_commit(pin.repo, pin.revision or None, TRIES))
    except DownloadError as error:
        if type(error.__cause__).__name__ in ("RevisionNotFoundError", "RepositoryNotFoundError", "GatedRepoError"):
            raise
        if is_commit(pin.revision):  # it cannot be compared now, and is exact
            return pin
        what = f"the commit of {pin.repo} is not known, and the hub cannot be asked: {error}"
        raise UsageError(what, hint=f"{flag} COMMIT") from error
