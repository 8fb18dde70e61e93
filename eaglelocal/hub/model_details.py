"""The details of one model on disk: the facts in its header, its memory, and its possible drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import find_unsupported_reason
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File, Profile, Repo
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO
from eaglelocal.errors import EagleLocalError, IncompatibleError, ModelFileError
from eaglelocal.gguf.draft_pairing import detect_draft_kind
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_shape import ModelShape, read_shape
from eaglelocal.gguf.mtp import has_mtp
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.draft_resolver import FoundDraft, find_draft, use_learned_version
from eaglelocal.hub.heads.head_store import list_fitting_heads
from eaglelocal.hub.hub_cache import (
    check_file,
    find_cached,
    find_known_target,
    list_repo_models,
    resolve_draft_reference,
    resolve_hub_reference,
)
from eaglelocal.hub.inflation.inflated_sizes import parse_demo_reference
from eaglelocal.hub.inventory import (
    HeaderSummary,
    InventoryEntry,
    describe,
    list_embedded,
    list_inflated,
    make_demo_reference,
)
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.projector_resolver import FoundProjector, find_projector_beside
from eaglelocal.hub.pull_plan import find_pulled_draft, read_pulled_reference
from eaglelocal.hub.target_resolver import NATIVE, FoundTarget, find_demo, find_target, read_target
from eaglelocal.memory.cache_bytes import CacheParams, cache_bytes

NO_PROJECTOR = FoundProjector()


@dataclass(frozen=True, slots=True)
class KnownDraft:
    """A draft for a model. `problem` says why it cannot run; empty if it can."""

    reference: str
    kind: str
    is_on_disk: bool
    needs_import: bool
    problem: str = ""
    path: Path | None = None  # of its file, if that was imported here or pulled with the target
    is_imported: bool = False  # a head of this machine's store, from `import` or `train`
    is_auto: bool = False  # `--draft auto` takes it


@dataclass(frozen=True, slots=True)
class ModelDetails:
    """A description of a model that needs no loading. `unwritten_bytes`: of a file that the first use writes."""

    reference: str
    paths: tuple[Path, ...]
    header: Header
    about: HeaderSummary
    own_head: Path | None
    drafts: tuple[KnownDraft, ...]
    shape: ModelShape | None  # None: not known for this architecture
    repo: str = ""
    commit: str = ""
    unwritten_bytes: int = 0
    projector: FoundProjector = NO_PROJECTOR
    auto_draft: FoundDraft | None = None  # of `--draft auto`; None: unknown, or the model writes no text

    @property
    def size_bytes(self) -> int:
        return self.unwritten_bytes or self.header.file_bytes

    @property
    def has_mtp(self) -> bool:
        """True if the model has an MTP layer of its own."""
        return self.about.kind == "model" and has_mtp(self.header)

    @property
    def licence(self) -> str:
        value = self.header.metadata.get("general.license")
        return value if isinstance(value, str) else ""

    @property
    def chat_template(self) -> str:
        value = self.header.metadata.get("tokenizer.chat_template")
        return value if isinstance(value, str) else ""

    def cache_bytes(self, n_ctx: int) -> int | None:
        """Return the bytes of keys, values and states of a conversation of `n_ctx` tokens, in f16; None if unknown."""
        if self.shape is None:
            return None
        return cache_bytes(self.shape, CacheParams(n_ctx=n_ctx, swa_full=not self.shape.compressions))


def describe_model(reference: str, folders: Sequence[str] = ()) -> ModelDetails:
    """Describe a reference's model. `folders`: of the user's own models.

    Raises UsageError, and ModelFileError where it is not on disk or unreadable.
    """
    parsed = locate_reference(reference, folders)
    match parsed:
        case EmbeddedModel():
            entry = _find_generated(reference)
            return (
                _describe_files(entry.reference, entry.paths[:1], own_head=entry.paths[1])
                if entry
                else _describe_unwritten(reference)
            )
        case DerivedModel():
            return _describe_derived(reference, find_target(parsed, on_progress=None))
        case File(path):
            check_file(path)
            return _describe_files(reference, (path,))
        case Profile() | Repo():
            found = find_cached(locations.hub_cache_dir(), resolve_hub_reference(reference))
            drafts = (*_list_pulled_drafts(found.repo), *_list_catalog_drafts(Repo(found.repo), load_catalog()))
            return _describe_files(found.reference, found.paths, drafts=drafts, repo=found.repo, commit=found.commit)


def _find_generated(reference: str) -> InventoryEntry | None:
    """Return the entry of the embedded or an inflated model; None: it is not written yet."""
    if reference == NATIVE:
        return list_embedded()[0]
    wanted = make_demo_reference(parse_demo_reference(reference))
    return next((entry for entry in list_inflated() if entry.reference == wanted and not entry.is_outdated), None)


def _describe_unwritten(reference: str) -> ModelDetails:
    """Describe an inflated model that is not written yet."""
    pair = find_demo(reference)
    header, _ = pair.sketch()
    return ModelDetails(
        make_demo_reference(pair.size),
        (pair.target,),
        header,
        describe(header),
        pair.head,
        (),
        _read_shape(header),
        unwritten_bytes=header.tensor_bytes,
    )


def _describe_derived(reference: str, found: FoundTarget) -> ModelDetails:
    """Describe a derived model, written or not."""
    header, is_written = found.header, found.made is not None and found.made.plan is None
    return ModelDetails(
        reference,
        (found.path,),
        header,
        describe(header),
        None,
        (),
        _read_shape(header),
        unwritten_bytes=0 if is_written else header.tensor_bytes,
        auto_draft=_find_auto_draft(found),
    )


def _describe_files(
    reference: str,
    paths: tuple[Path, ...],
    *,
    own_head: Path | None = None,
    drafts: tuple[KnownDraft, ...] = (),
    repo: str = "",
    commit: str = "",
) -> ModelDetails:
    header = read_header(paths[0])
    shards = tuple(dict.fromkeys(shard.path for shard in header.shards))
    about = describe(header)
    target = _read_target(paths[0], own_head, repo) if about.kind == "model" else None
    auto = None if target is None else _find_auto_draft(target)
    known = (*(_list_imported_heads(target) if target else ()), *drafts)
    projector = find_projector_beside(paths[0], header, is_of_hub=bool(repo)) if about.kind == "model" else NO_PROJECTOR
    return ModelDetails(
        reference,
        shards,
        header,
        about,
        own_head,
        _mark_auto(known, auto),
        _read_shape(header),
        repo,
        commit,
        projector=projector,
        auto_draft=auto,
    )


def _read_target(path: Path, own_head: Path | None, repo: str) -> FoundTarget | None:
    """Return the target as a run would find it; None if a run would reject it."""
    try:
        return replace(read_target(path, head=own_head), repo=repo)
    except EagleLocalError:
        return None


def _find_auto_draft(target: FoundTarget) -> FoundDraft | None:
    try:
        return use_learned_version(find_draft(AUTO, target), target, learns=False)
    except EagleLocalError:
        return None


def _list_imported_heads(target: FoundTarget) -> Iterator[KnownDraft]:
    for head in list_fitting_heads(target.header, target.info):
        yield KnownDraft(
            str(head.path), "eagle3", is_on_disk=True, needs_import=False, path=head.path, is_imported=True
        )


def _mark_auto(drafts: tuple[KnownDraft, ...], auto: FoundDraft | None) -> tuple[KnownDraft, ...]:
    """Mark the draft that `--draft auto` takes, and move it to the front."""
    path = None if auto is None else auto.path
    taken = [replace(draft, is_auto=True) for draft in drafts if path is not None and draft.path == path]
    return (*taken, *(draft for draft in drafts if path is None or draft.path != path))


def _read_shape(header: Header) -> ModelShape | None:
    try:
        return read_shape(header)
    except (IncompatibleError, ModelFileError):
        return None


def _list_pulled_drafts(repo: str) -> tuple[KnownDraft, ...]:
    """Return the draft that was pulled with a target, if any."""
    file, cache = locations.pulled_drafts_file(), locations.hub_cache_dir()
    path = find_pulled_draft(file, cache, repo)
    if path is None:
        return ()
    try:
        kind = detect_draft_kind(read_header(path))
    except ModelFileError:
        return ()
    return (KnownDraft(read_pulled_reference(file, repo), kind, is_on_disk=True, needs_import=False, path=path),)


def _list_catalog_drafts(repo: Repo, catalog: Catalog) -> tuple[KnownDraft, ...]:
    """Return the catalog's drafts that have files; lookup in the text needs none and always works."""
    target = find_known_target(repo, catalog)
    if target is None:
        return ()
    cache, found = locations.hub_cache_dir(), []
    for entry in catalog.drafts_for(target):
        if entry.gguf_repo is None and entry.repo is None:
            continue
        if entry.is_in_target:
            found.append(KnownDraft(entry.id, entry.kind, False, False, f"in the files of {entry.gguf_repo}"))
            continue
        reference = resolve_draft_reference(entry.id, catalog)
        problem = find_unsupported_reason(entry, target.outline)
        is_here = not entry.needs_import and bool(list_repo_models(cache, reference.repos[0]))
        found.append(KnownDraft(reference.text, entry.kind, is_here, entry.needs_import, problem))
    return tuple(found)
