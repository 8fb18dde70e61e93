"""Build the options of catalog entries, with exact sizes for the files that are on disk already.

The header of a file replaces the figures of its entry: sizes, shape and quantization. A draft counts as on disk if
`--draft auto` or its own name would find it. Reads headers, asks no hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog
from eaglelocal.catalog.draft_entries import MTP
from eaglelocal.catalog.reference import Profile
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.run_options import AUTO
from eaglelocal.errors import EagleLocalError
from eaglelocal.gguf.head_requantization import BEST_TYPE, requantize_header
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_shape import read_draft_shape
from eaglelocal.gguf.mtp import has_mtp
from eaglelocal.hub.cached_files import find_cached
from eaglelocal.hub.draft_resolver import find_draft, read_draft_file
from eaglelocal.hub.hub_cache import list_repo_models, repo_folder
from eaglelocal.hub.hub_references import make_hub_reference, resolve_draft_reference
from eaglelocal.hub.projector_resolver import find_projector
from eaglelocal.hub.repo_builds import normalize_quant
from eaglelocal.hub.target_resolver import FoundTarget, read_target
from eaglelocal.planning.options import (
    DraftOption,
    ModelOption,
    make_catalog_options,
    make_draft_option,
    make_file_option,
)


def list_entry_options(target: TargetEntry, catalog: Catalog, *, quant: str | None = None) -> Iterator[ModelOption]:
    """Yield the options of a target: the catalog's quantizations, then others on disk; or only `quant`."""
    cache = locations.hub_cache_dir()
    has_some = any(repo_folder(cache, repo).is_dir() for repo in target.repos)
    known = make_catalog_options(target, catalog, quant=quant)
    yield from (mark_on_disk(option, target, catalog) if has_some else option for option in known)
    if has_some:
        yield from _beyond(target, catalog, quant, cache)


def mark_on_disk(option: ModelOption, target: TargetEntry, catalog: Catalog) -> ModelOption:
    """Return the option with the figures of its file, if that is on disk; else unchanged."""
    found = _found(target, option.quant, catalog)
    if found is None:
        return option
    try:
        exact = make_file_option(found.header, reference=option.reference, label=target.id, catalog=catalog)
        drafts = tuple(_drafts(option, found, catalog))
    except EagleLocalError:  # loading raises it again and reports it
        return option
    return replace(
        option,
        model=exact.model,
        quality_b=exact.quality_b,
        max_context=exact.max_context or option.max_context,
        drafts=drafts,
        projector=find_projector(AUTO, found).projector,
        is_here=True,
        is_unseen=False,
        notes=(),
        header=found.header,
    )


def _beyond(target: TargetEntry, catalog: Catalog, quant: str | None, cache: Path) -> Iterator[ModelOption]:
    """Yield the quantizations on disk that the catalog does not list, with the drafts of their target."""
    like = next(make_catalog_options(target, catalog))
    for name in _unlisted(target, _quants_on_disk(target, cache), quant):
        option = mark_on_disk(replace(like, quant=name, reference=f"{target.id}:{name}"), target, catalog)
        if option.is_here:
            yield option


def _unlisted(target: TargetEntry, names: Sequence[str], quant: str | None) -> list[str]:
    """Return `quant` if it is unlisted; else all unlisted ones but those that stand for a listed one not on disk.

    UD-Q4_K_M on disk stands for a listed Q4_K_M, unless that is on disk too.
    """
    unlisted = [name for name in names if target.quantization(name) is None]
    if quant is not None:
        return [name for name in unlisted if name == normalize_quant(quant)]
    plain = {name: name.removeprefix("UD-") for name in unlisted}
    return [name for name in unlisted if plain[name] in names or target.quantization(plain[name]) is None]


def _quants_on_disk(target: TargetEntry, cache: Path) -> list[str]:
    models = (model for repo in target.repos for model in list_repo_models(cache, repo))
    return sorted({model.build.quant for model in models if model.build.quant and not model.build.is_draft})


def _found(target: TargetEntry, quant: str, catalog: Catalog) -> FoundTarget | None:
    """Return the file that `chat --target ID:QUANT` would find; None if there is none."""
    try:
        model = find_cached(locations.hub_cache_dir(), make_hub_reference(Profile(target.id, quant), catalog))
        return replace(read_target(model.path), repo=model.repo)
    except EagleLocalError:
        return None


def _drafts(option: ModelOption, found: FoundTarget, catalog: Catalog) -> Iterator[DraftOption]:
    """Yield the draft of `--draft auto`, then the catalog's others, on disk or not, and last the model-free ones."""
    own, auto = None, _find_auto_draft(found)
    if auto is not None:
        label, kind, file = auto
        own = next((draft for draft in option.drafts if _is_file_of(draft, file, kind, catalog)), None)
        yield _exact(own, file) if own else make_draft_option(label, read_draft_shape(file, kind))
    for draft in option.drafts:
        if draft is own:
            continue
        header = _draft_header(draft, found, catalog) if draft.shape is not None else None
        yield draft if header is None else replace(_exact(draft, header), needs_naming=True)


def _exact(draft: DraftOption, header: Header) -> DraftOption:
    return replace(draft, shape=read_draft_shape(header, draft.kind), is_here=True, import_from="", notes=())


def _find_auto_draft(found: FoundTarget) -> tuple[str, str, Header] | None:
    """Return label, kind and header of the draft of `--draft auto`, as it will be loaded; None if none has a file."""
    try:
        draft = find_draft(AUTO, found)
        header = None if draft.header is None else requantize_header(draft.header, BEST_TYPE)
        return None if header is None else (draft.label, draft.kind, header)
    except EagleLocalError:
        return None


def _draft_header(draft: DraftOption, found: FoundTarget, catalog: Catalog) -> Header | None:
    """Return the header of a catalog draft on disk as a GGUF under its own name, if it fits; else None."""
    entry = catalog.drafts.get(draft.id)
    if entry is not None and entry.is_in_target:
        return found.header if has_mtp(found.header) else None
    if draft.import_from:
        return None
    try:
        path = find_cached(locations.hub_cache_dir(), resolve_draft_reference(draft.id, catalog)).path
        header = read_draft_file(path, found).header
        return None if header is None else requantize_header(header, BEST_TYPE)
    except EagleLocalError:
        return None


def _is_file_of(option: DraftOption, header: Header, kind: str, catalog: Catalog) -> bool:
    """Return whether a file is that of a catalog draft: from its repository, or imported and named after it.

    The draft of an entry for the target's own MTP layer is that layer.
    """
    entry = catalog.drafts.get(option.id)
    if entry is not None and entry.is_in_target:
        return kind == MTP
    repos = [repo for repo in (entry.repo, entry.gguf_repo) if repo] if entry else []
    name = header.metadata.get("general.name")
    folders = {repo_folder(Path(), repo).name for repo in repos}
    return bool(folders & set(header.path.parts)) or name in {repo.rpartition("/")[2] for repo in repos}
