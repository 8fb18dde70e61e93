"""Find the repositories and commits of a target and its draft, and describe both for vLLM.

The catalog states most repositories, a person the others. Commits come from the catalog, from a person, or from the
hub; a commit that a person states is compared with the hub if it can be reached.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import BLOCKS, EAGLE, DraftEntry, find_better_known
from eaglelocal.catalog.estimated_shapes import BLOCK_LAYERS, P_EAGLE_LAYERS
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.json_text import read_object
from eaglelocal.core.own_files import read_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NONE, RunOptions
from eaglelocal.core.user_paths import expand_path
from eaglelocal.errors import DownloadError, IncompatibleError, ResourceError, UsageError
from eaglelocal.gguf.draft_pairing import is_same_model
from eaglelocal.gguf.eagle_info import VERIFIER_KEY, EagleInfo
from eaglelocal.hub.heads.export_folder import find_head_file, read_eagle_head
from eaglelocal.hub.heads.head_folder import REPOSITORY
from eaglelocal.hub.hub_api import RetryPolicy, fetch_commit, is_commit
from eaglelocal.hub.hub_cache import find_known_target
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.pairs_lock import find_commit, lock_commits
from eaglelocal.hub.target_resolver import demo_sources
from eaglelocal.planning.machine_spec import DeviceSpec
from eaglelocal.planning.options import DEFAULTS, ModelOption
from eaglelocal.planning.quality import HEAD_DEFAULT, NATIVE, PredictedAcceptance, predict_acceptance
from eaglelocal.planning.speed import MAX_DRAFT
from eaglelocal.preparation.models import DEMO_ACCEPTANCE, find_models
from eaglelocal.preparation.vllm.served_pair import (
    BYTES_PER_WEIGHT,
    DRAFT_MODEL,
    EAGLE3,
    MTP,
    NGRAM,
    PEAGLE,
    REPO_METHODS,
    SUFFIX,
    ServedPair,
    VllmDraft,
    VllmTarget,
    WeightsPin,
    find_weight_bits,
    make_batch_costs,
    names_folder,
    widen_model,
)

TRIES = RetryPolicy(waits_s=())  # a command that writes a file does not wait for a hub
Q8_0_BITS, BF16_BITS = 8.5, 16.0
LOOKUP = VllmDraft(id=NGRAM, method=NGRAM, most=MAX_DRAFT)

FindDevice = Callable[[ServedPair], DeviceSpec]


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


def find_pair(options: RunOptions, given: GivenSources, catalog: Catalog, find_device: FindDevice) -> ServedPair:
    """Return the pair that the options name, with the commits of both.

    find_device  returns the device that holds a pair, or raises ResourceError

    Raises UsageError on a model whose repository or commit is not known, DownloadError on one that does not exist.
    """
    entry, option = find_target(replace(options, draft=NONE), catalog)
    target = _describe_target(entry, option, given)
    search = DraftSearch(options, given, catalog, entry, target, find_device)
    draft = search.choose()
    target = replace(target, pin=pin_weights(target.pin, "--revision"))
    notes: list[str] = []
    if draft is not None:
        draft, notes = compare_vocab(draft, target, catalog)
        if draft.pin is not None and draft.head_file is None:
            named = "" if given.draft_repo or options.draft == draft.id else f"--draft {draft.id} "
            draft = replace(draft, pin=pin_weights(draft.pin, f"{named}--draft-revision"))
        if draft.acceptance is not None and not draft.acceptance.is_reported:
            notes.append(f"the acceptance of {draft.id} is not reported: {draft.acceptance.probability(1):.0%} assumed")
    is_light = draft is None or draft.method == NGRAM
    if options.draft == AUTO and not given.draft_repo and entry is not None and is_light:
        left = " or ".join(one.id for one in search.list_described(catalog.drafts_for(entry)))
        notes += [f"there is no memory for {left} beside {target.id}"] if left else []
    is_named = bool(given.draft_repo) or options.draft not in (AUTO, NONE)
    return ServedPair(target=target, draft=draft, is_named=is_named, notes=tuple(notes))


def find_target(options: RunOptions, catalog: Catalog) -> tuple[TargetEntry | None, ModelOption]:
    """Return the catalog's entry of the target, if there is one, and the planner's option of it."""
    option = find_models(options, catalog)[0]
    parsed = locate_reference(options.target or "", options.model_folders)
    entry = None if isinstance(parsed, EmbeddedModel | DerivedModel) else find_known_target(parsed, catalog)
    name = str(option.header.metadata.get("general.name", "")) if option.header is not None else ""
    if entry is None and isinstance(parsed, File) and name:
        named = (
            each for each in catalog.targets.values() if each.source_repo and is_same_model(name, each.source_repo)
        )
        entry = next(named, None)
    return entry, option


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
        model=widen_model(option.model, is_native=is_native, bits=find_weight_bits(repo)),
        max_context=option.max_context or option.shape.max_context,
        is_gated=entry is not None and entry.gated,
    )


# ---- which draft
@dataclass(frozen=True, slots=True)
class DraftSearch:
    """A search for the draft of a target.

    entry        the catalog's entry of the target, if there is one
    find_device  returns the device that holds a pair, or raises ResourceError
    """

    options: RunOptions
    given: GivenSources
    catalog: Catalog
    entry: TargetEntry | None
    target: VllmTarget
    find_device: FindDevice

    def choose(self) -> VllmDraft | None:
        """Return the draft that is named, or else the one with the best predicted speed; None drafts nothing.

        Raises UsageError if the draft is not known, or belongs to another target.
        """
        name = self.options.draft
        if self.given.draft_repo:
            return self._describe_repo()
        if name == NONE:
            return None
        if name in (NGRAM, SUFFIX):
            return VllmDraft(id=name, method=name, most=MAX_DRAFT)
        known = {draft.id: draft for draft in (self.catalog.drafts_for(self.entry) if self.entry else ())}
        named = self.catalog.drafts.get(name)
        if named is not None and named.kind == NGRAM:
            return LOOKUP
        if named is not None and name not in known:
            served = ", ".join(named.targets)
            raise UsageError(f"{name} drafts for {served}, not for {self.target.id}", hint="--draft auto")
        if named is not None:
            return self._describe_entry(named)
        if name in (AUTO, MTP):
            return self._choose_known(list(known.values()))
        near = difflib.get_close_matches(name, known, n=1)
        if near and not Path(name).exists() and "/" not in name:
            raise UsageError(f"no draft is named {name!r}", hint=f"--draft {near[0]}")
        return self._describe_head(find_head_file(name))

    def _choose_known(self, drafts: Sequence[DraftEntry]) -> VllmDraft | None:
        """Return the best of the catalog's drafts that fits beside the target, or else a lookup, or None.

        The embedded model has a head of its own.
        """
        only_mtp = self.options.draft == MTP
        found = list(self.list_described([draft for draft in drafts if not only_mtp or draft.kind == MTP]))
        if found:
            device = self.find_device(ServedPair(target=self.target, draft=None))
            fitting = [draft for draft in found if only_mtp or self._fits(draft)]
            if fitting:
                return _find_fastest(fitting, self.target, device)
            return LOOKUP if self._fits(LOOKUP) else None
        if only_mtp:
            raise UsageError(f"no MTP layers of {self.target.id} are known", hint="--draft auto")
        if isinstance(locate_reference(self.options.target or "", self.options.model_folders), EmbeddedModel):
            return self._describe_head(demo_sources()[1], DEMO_ACCEPTANCE)
        return LOOKUP

    def _fits(self, draft: VllmDraft) -> bool:
        try:
            self.find_device(ServedPair(target=self.target, draft=draft))
        except ResourceError:
            return False
        return True

    def list_described(self, drafts: Sequence[DraftEntry]) -> Iterator[VllmDraft]:
        """Yield the drafts with known weights; of a kind, only those with a reported acceptance if there are any."""
        usable = [draft for draft in drafts if draft.kind != NGRAM and (draft.is_in_target or draft.weights_repo)]
        for draft in usable:
            if not find_better_known(draft, usable):
                yield self._describe_entry(draft)

    def _describe_entry(self, draft: DraftEntry) -> VllmDraft:
        """Return a draft of the catalog. Raises UsageError if the repository of its original weights is not known."""
        acceptance, _ = predict_acceptance(draft, self.catalog.drafts.values(), DEFAULTS.get(draft.kind, HEAD_DEFAULT))
        most = max(draft.num_draft_tokens, 1) if draft.kind in BLOCKS or draft.drafts_in_parallel else MAX_DRAFT
        found = VllmDraft(
            id=draft.id,
            method=PEAGLE if draft.drafts_in_parallel else draft.kind,
            most=most,
            acceptance=acceptance,
            is_gated=draft.gated,
        )
        if draft.is_in_target:
            return _add_sizes(found, draft, self.target)
        repo = draft.weights_repo
        if repo is None:
            raise UsageError(
                f"the repository of the original weights of {draft.id} is not known", hint="--draft-repo USER/REPO"
            )
        pin = WeightsPin(repo, self.given.draft_revision or draft.source_revision or "")
        return _add_sizes(replace(found, pin=pin), draft, self.target)

    def _describe_repo(self) -> VllmDraft:
        """Return the draft in the repository that was given."""
        repo, method, entry = self.given.draft_repo, self.given.draft_method, self.entry
        entries = [draft for draft in self.catalog.drafts.values() if draft.weights_repo == repo]
        serving = [draft for draft in entries if entry is not None and draft.serves(entry.id)]
        if serving:
            found = self._describe_entry(serving[0])
            if method not in ("", found.method):
                raise UsageError(f"{repo} drafts as {found.method}", hint=f"--draft-method {found.method}")
            return found
        if entries and entry is not None:
            served = ", ".join(sorted({id for draft in entries for id in draft.targets}))
            raise UsageError(f"{repo} drafts for {served}, not for {entry.id}", hint="--draft auto")
        if method not in REPO_METHODS:
            raise UsageError(
                f"the catalog does not know {repo}: say how it drafts, one of {', '.join(REPO_METHODS)}",
                hint="--draft-method eagle3",
            )
        pin = WeightsPin(repo, self.given.draft_revision)
        acceptance = PredictedAcceptance.from_reports((), default=HEAD_DEFAULT)
        found = VllmDraft(id=repo, method=method, pin=pin, most=MAX_DRAFT, acceptance=acceptance)
        return _add_sizes(found, None, self.target)

    def _describe_head(self, path: Path, acceptance: PredictedAcceptance | None = None) -> VllmDraft:
        """Return a head of this machine, in the folder that it will be exported to.

        Raises IncompatibleError if it is of another target.
        """
        info = read_eagle_head(path)
        verifier = info.header.metadata.get(VERIFIER_KEY)
        check_head_serves(info, verifier if isinstance(verifier, str) else "", self.target)
        parameters = sum(math.prod(tensor.shape) for tensor in info.tensors.values())
        return VllmDraft(
            id=info.name,
            method=EAGLE3 if info.mask is None else PEAGLE,
            pin=WeightsPin(self.given.head_folder(path)),
            most=info.num_depths if info.mask is not None else MAX_DRAFT,
            num_bytes=parameters * BYTES_PER_WEIGHT,
            num_layers=info.n_layer,
            kv_bytes_per_token=2 * BYTES_PER_WEIGHT * info.n_layer * info.n_kv_head * info.head_dim,
            acceptance=acceptance or PredictedAcceptance.from_reports((), default=DEFAULTS.get(EAGLE, HEAD_DEFAULT)),
            head_file=path,
        )


def _find_fastest(drafts: Sequence[VllmDraft], target: VllmTarget, device: DeviceSpec) -> VllmDraft:
    def best_goodput(draft: VllmDraft) -> float:
        costs = make_batch_costs(target, draft, device)
        return max(costs.goodput(1, length) for length in range(1, draft.most + 1))

    return max(drafts, key=best_goodput)


def _add_sizes(found: VllmDraft, draft: DraftEntry | None, target: VllmTarget) -> VllmDraft:
    """Return the draft with its bytes: as published, or as large as that many layers of the target."""
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


def compare_vocab(draft: VllmDraft, target: VllmTarget, catalog: Catalog) -> tuple[VllmDraft, list[str]]:
    """Return the draft with its `shares_vocab`, and notes. Models of one family may be padded to different sizes."""
    if draft.method != DRAFT_MODEL or draft.pin is None:
        return draft, []
    repo, size = draft.pin.repo, target.shape.n_vocab
    found = find_vocab_size(repo, catalog)
    if found == size:
        return draft, []
    other = "a vocabulary of unknown size" if found is None else f"{found} tokens"
    note = f"{draft.id} has {other}, {target.id} {size} tokens: vLLM drafts with those that both have"
    return replace(draft, shares_vocab=False), [note]


def find_vocab_size(repo: str, catalog: Catalog) -> int | None:
    """Return the number of tokens of a model, by the config.json of a folder or by the catalog; None if unknown."""
    if not names_folder(repo):
        return next((one.outline.n_vocab for one in catalog.targets.values() if one.source_repo == repo), None)
    try:
        size = read_object(read_regular(expand_path(repo) / "config.json")).get("vocab_size")
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


# ---- commits
def pin_weights(pin: WeightsPin, flag: str) -> WeightsPin:
    """Return the pin with its commit: the one that is stated, or was used before, or else the newest.

    Raises DownloadError if the hub has none such, UsageError if it cannot be asked.

    flag  which states the commit
    """
    if names_folder(pin.repo):
        folder = expand_path(pin.repo)
        if not folder.is_dir():
            raise UsageError(f"there is no folder {folder}", hint="--target-repo USER/REPO")
        if pin.revision:
            raise UsageError(f"{folder} is a folder, which has no commit", hint=f"leave {flag} out")
        return WeightsPin(str(folder.resolve()))
    revision = pin.revision or find_commit(pin.repo)
    try:
        found = WeightsPin(pin.repo, fetch_commit(pin.repo, revision or None, TRIES))
        lock_commits({found.repo: found.revision})
        return found
    except DownloadError as error:
        if type(error.__cause__).__name__ in ("RevisionNotFoundError", "RepositoryNotFoundError", "GatedRepoError"):
            raise
        if is_commit(revision):  # it cannot be compared now, and is exact
            return WeightsPin(pin.repo, revision)
        what = f"the commit of {pin.repo} is not known, and the hub cannot be asked: {error}"
        raise UsageError(what, hint=f"{flag} COMMIT") from error
