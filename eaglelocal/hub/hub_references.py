"""Resolution of references to a hub's models: their repositories, and what the catalog states. Asks no hub."""

from __future__ import annotations

import difflib

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import DraftEntry
from eaglelocal.catalog.reference import GGUF_SUFFIX, Profile, Reference, Repo, parse_reference
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.errors import UsageError
from eaglelocal.hub.cached_files import HubReference
from eaglelocal.hub.repo_builds import parse_quant

DEFAULT_QUANT = "Q4_K_M"  # its size is shown if no quantization was named


def make_hub_reference(parsed: Profile | Repo, catalog: Catalog, *, drafts: bool = False) -> HubReference:
    """Return a hub reference to a profile or repository. Raises UsageError with the nearest name if unknown."""
    known = find_known_target(parsed, catalog)
    size = known.quantization(parsed.quant or DEFAULT_QUANT) if known else None
    size_bytes = size.num_bytes if size else None
    if isinstance(parsed, Repo):
        text = f"{parsed.name}:{parsed.quant}" if parsed.quant else parsed.name
        return HubReference(text, (parsed.name,), parsed.quant, size_bytes, drafts)
    target = catalog.target(parsed.id, parsed.quant)
    text = f"{target.id}:{parsed.quant}" if parsed.quant else target.id
    return HubReference(text, target.repos, parsed.quant, size_bytes, drafts)


def resolve_draft_reference(text: str, catalog: Catalog) -> HubReference:
    """Resolve `user/repo[:quant]`, a draft of the catalog, or a target of it that drafts for a larger one."""
    entry = catalog.drafts.get(text.lower())
    if entry is not None:
        return refer_to_entry(entry)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return make_hub_reference(parsed, catalog, drafts=True)
    raise UsageError(f"{text!r} is not a draft of a hub", hint="--draft auto")


def find_known_target(parsed: Reference, catalog: Catalog) -> TargetEntry | None:
    """Return the catalog's entry for a profile, or for a repository that holds one; None if unknown."""
    if isinstance(parsed, Profile):
        return catalog.target(parsed.id, parsed.quant)
    if isinstance(parsed, Repo):
        name = parsed.name.lower()
        return next((t for t in catalog.targets.values() if name in (repo.lower() for repo in t.repos)), None)
    return None


def find_nearest_repo(name: str) -> str | None:
    """Return the repository of the catalog that a mistyped name may have meant; None if none is near."""
    repos = [repo for target in load_catalog().targets.values() for repo in target.repos if repo != name]
    near = difflib.get_close_matches(name, repos, n=1, cutoff=0.8)
    return near[0] if near else None


def refer_to_entry(entry: DraftEntry) -> HubReference:
    """Return a draft's hub reference: to a GGUF if there is one, else to the head that must be imported."""
    if entry.is_in_target:
        raise UsageError(
            f"{entry.id} is a layer in the files of {entry.gguf_repo}", hint=f"eaglelocal pull {entry.targets[0]}"
        )
    quant = parse_quant(entry.file.removesuffix(GGUF_SUFFIX)) if entry.file else None
    repo = entry.gguf_repo or entry.repo
    if repo is None:
        raise UsageError(f"the catalog has no repository for {entry.id}", hint="--draft user/repo")
    sizes = entry.sizes
    size = sizes.get("file") or sizes.get("bf16") or sizes.get("f16")
    return HubReference(f"{repo}:{quant}" if quant else repo, (repo,), quant or None, size, drafts=True)


def resolve_hub_reference(text: str) -> HubReference:
    """Resolve a model of a hub, target or draft. Raises UsageError on anything else."""
    catalog = load_catalog()
    if text.lower() in catalog.drafts:
        return resolve_draft_reference(text, catalog)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return make_hub_reference(parsed, catalog)
    raise UsageError(f"{text!r} is not a model of a hub", hint="eaglelocal ls")
