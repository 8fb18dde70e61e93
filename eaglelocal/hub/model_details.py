"""The details of one model on disk: the facts in its header, its memory, and its possible drafts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from eaglelocal.hub.inventory import (
    HeaderSummary,
    describe,
)
from eaglelocal.hub.model_library import locate_reference
from eaglelocal.hub.projector_resolver import FoundProjector, find_projector_beside
from eaglelocal.hub.pull_plan import find_pulled_draft, read_pulled_reference
from eaglelocal.hub.target_resolver import NATIVE, FoundTarget, demo_sources, find_demo, find_target, read_target
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
        case EmbeddedModel(text):
            return _describe_embedded(text)
        case DerivedModel():
            found = find_target(parsed, on_progress=None)
            is_written = found.made is not None and found.made.plan is None
            sketch = _sketch(reference, found.path, found.header, is_written=is_written)
            return replace(sketch, auto_draft=_find_auto_draft(found))
        case File(path):
            check_file(path)
            return _describe_file(reference, path)
        case Profile() | Repo():
            model = find_cached(locations.hub_cache_dir(), resolve_hub_reference(reference))
            drafts = (*_list_pulled_drafts(model.repo), *_list_catalog_drafts(Repo(model.repo), load_catalog()))
            details = _describe_file(model.reference, model.path, drafts=drafts, repo=model.repo)
            return replace(details, commit=model.commit)


def _describe_embedded(reference: str) -> ModelDetails:
    """Describe the embedded model, or an inflated one: as it was written, else as it would be."""
    if reference == NATIVE:
        target, head = demo_sources()
        return _describe_file(NATIVE, target, own_head=head)
    pair = find_demo(reference)
    name = pair.size.reference
    if pair.complete:
        return _describe_file(name, pair.target, own_head=pair.head)
    return replace(_sketch(name, pair.target, pair.sketch()[0], is_written=False), own_head=pair.head)


def _sketch(reference: str, path: Path, header: Header, *, is_written: bool) -> ModelDetails:
    """Describe a model by its header alone."""
    return ModelDetails(
        reference,
        (path,),
        header,
        describe(header),
        own_head=None,
        drafts=(),
        shape=_read_shape(header),
        unwritten_bytes=0 if is_written else header.tensor_bytes,
    )


def _describe_file(
    reference: str, path: Path, *, own_head: Path | None = None, drafts: tuple[KnownDraft, ...] = (), repo: str = ""
) -> ModelDetails:
    header = read_header(path)
    about = describe(header)
    is_model, target, auto = about.kind == "model", None, None
    if is_model:
        with suppress(EagleLocalError):  # a run would reject it
            target = replace(read_target(path, head=own_head), repo=repo)
    if target is not None:
        auto = _find_auto_draft(target)
        heads = list_fitting_heads(target.info)
        made_here = [KnownDraft(str(one.path), "eagle3", True, False, path=one.path, is_imported=True) for one in heads]
        drafts = (*made_here, *drafts)
    return ModelDetails(
        reference,
        tuple(dict.fromkeys(shard.path for shard in header.shards)),
        header,
        about,
        own_head,
        _mark_auto(drafts, auto),
        _read_shape(header),
        repo,
        projector=find_projector_beside(path, header, is_of_hub=bool(repo)) if is_model else NO_PROJECTOR,
        auto_draft=auto,
    )


def _find_auto_draft(target: FoundTarget) -> FoundDraft | None:
    with suppress(EagleLocalError):
        return use_learned_version(find_draft(AUTO, target), target, learns=False)
    return None


def _mark_auto(drafts: tuple[KnownDraft, ...], auto: FoundDraft | None) -> tuple[KnownDraft, ...]:
    """Mark the draft that `--draft auto` takes, and move it to the front."""
    path = None if auto is None else auto.path
    taken = [replace(draft, is_auto=True) for draft in drafts if path is not None and draft.path == path]
    return (*taken, *(draft for draft in drafts if path is None or draft.path != path))


def _read_shape(header: Header) -> ModelShape | None:
    with suppress(IncompatibleError, ModelFileError):
        return read_shape(header)
    return None


def _list_pulled_drafts(repo: str) -> tuple[KnownDraft, ...]:
    """Return the draft that was pulled with a target, if any."""
    file = locations.pulled_drafts_file()
    path = find_pulled_draft(file, locations.hub_cache_dir(), repo)
    with suppress(ModelFileError):
        if path is not None:
            kind = detect_draft_kind(read_header(path))
            return (
                KnownDraft(read_pulled_reference(file, repo), kind, is_on_disk=True, needs_import=False, path=path),
            )
    return ()


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
