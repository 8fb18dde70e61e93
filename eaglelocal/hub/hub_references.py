"""Resolution of references to a hub's models: where each may be, and what the catalogue knows of it. Asks no hub."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import DRAFT_MODEL, EAGLE, MTP, DraftEntry
from eaglelocal.catalog.reference import EmbeddedModel, File, Profile, Reference, Repo, parse_reference
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.catalog.unsupported_drafts import unsupported_reason
from eaglelocal.errors import UsageError
from eaglelocal.hub.cached_files import HubReference
from eaglelocal.hub.repo_builds import SUFFIX, canonical, quant_of

DEFAULT_QUANT = "Q4_K_M"  # its size is stated where no quantization was named
NO_DRAFT, AUTO = "none", "auto"
NO_LAYER = "no draft: this file has no MTP layer"  # shown where the file turns out to have none


@dataclass(frozen=True, slots=True)
class PullPlan:
    """A target to fetch, and its draft. Without a draft, `advice` says what could draft.

    What was asked for by name and is not to be had is an error; what was chosen here may be replaced.
    """

    target: HubReference
    draft: HubReference | None = None
    quant_is_asked_for: bool = True
    draft_is_asked_for: bool = False
    advice: str = ""
    layer_repo: str = ""  # its files have an MTP layer: with one of them `draft` is not needed
    layer_is_asked_for: bool = False


def plan_pull(target: str, *, draft: str = AUTO, quant: str | None = None) -> PullPlan | None:
    """Return what to fetch for these references; None: the embedded model, which nobody fetches. Raises UsageError."""
    parsed = parse_reference(target)
    match parsed:
        case EmbeddedModel():
            return None
        case File(path):
            raise UsageError(f"{target} is the path of a file", hint=f"eaglelocal chat --target {path}")
    catalog = load_catalog()
    reference = hub_reference(_with_quant(parsed, quant), catalog)
    if draft == NO_DRAFT:
        return PullPlan(reference)
    known = known_target(parsed, catalog)
    if draft != AUTO:
        draft = layers_of(known, catalog) if draft.lower() == MTP else draft
        if names_layer(draft, known, catalog):
            return PullPlan(reference, layer_is_asked_for=True)
        return PullPlan(reference, resolve_draft_reference(draft, catalog), draft_is_asked_for=True)
    return PullPlan(reference) if known is None else _with_catalogued_draft(reference, known, catalog)


def layers_of(target: TargetEntry | None, catalog: Catalog) -> str:
    """Return the id of the target's MTP layers in the catalogue, else `mtp`."""
    entries = catalog.drafts_for(target) if target else ()
    return next((entry.id for entry in entries if entry.kind == MTP), MTP)


def names_layer(draft: str, target: TargetEntry | None, catalog: Catalog) -> bool:
    """Return whether a layer of the target's own file is meant. Raises UsageError where it is another target's."""
    entry = catalog.drafts.get(draft.lower())
    if entry is None or not entry.is_in_target:
        return draft == MTP
    if target is not None and not entry.serves(target.id):
        raise UsageError(f"{draft} is a layer of {', '.join(entry.targets)}", hint=f"--draft {AUTO}, or another")
    return True


def hub_reference(parsed: Profile | Repo, catalog: Catalog, *, drafts: bool = False) -> HubReference:
    """Return a hub reference to a profile or repository. Raises UsageError with the nearest name if unknown."""
    known = known_target(parsed, catalog)
    size = known.quantization(parsed.quant or DEFAULT_QUANT) if known else None
    size_bytes = size.num_bytes if size else None
    if isinstance(parsed, Repo):
        text = f"{parsed.name}:{parsed.quant}" if parsed.quant else parsed.name
        return HubReference(text, (parsed.name,), parsed.quant, size_bytes, drafts)
    target = catalog.target(parsed.id)
    text = f"{target.id}:{parsed.quant}" if parsed.quant else target.id
    return HubReference(text, target.repos, parsed.quant, size_bytes, drafts)


def resolve_draft_reference(text: str, catalog: Catalog) -> HubReference:
    """Resolve `user/repo[:quant]`, a draft of the catalogue, or a target of it that drafts for a larger one."""
    entry = catalog.drafts.get(text.lower())
    if entry is not None:
        return _of_entry(entry)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return hub_reference(parsed, catalog, drafts=True)
    raise UsageError(f"{text!r} is no draft of a hub", hint="--draft user/repo, auto or none")


def known_target(parsed: Reference, catalog: Catalog) -> TargetEntry | None:
    """Return the catalogue's entry for a profile, or for a repository that holds one; None if unknown."""
    if isinstance(parsed, Profile):
        return catalog.target(parsed.id)
    if isinstance(parsed, Repo):
        name = parsed.name.lower()
        return next((t for t in catalog.targets.values() if name in (repo.lower() for repo in t.repos)), None)
    return None


def nearest_repo(name: str) -> str | None:
    """Return the repository of the catalogue that a mistyped name may have meant; None if none is near."""
    repos = [repo for target in load_catalog().targets.values() for repo in target.repos if repo != name]
    near = difflib.get_close_matches(name, repos, n=1, cutoff=0.8)
    return near[0] if near else None


def _with_quant(parsed: Profile | Repo, quant: str | None) -> Profile | Repo:
    if quant is None or (parsed.quant and canonical(parsed.quant) == canonical(quant)):
        return parsed
    if parsed.quant:
        raise UsageError(f"two quantizations are asked for: {parsed.quant} and {quant}", hint="say one of them")
    return Profile(parsed.id, quant) if isinstance(parsed, Profile) else Repo(parsed.name, quant)


def _with_catalogued_draft(reference: HubReference, target: TargetEntry, catalog: Catalog) -> PullPlan:
    """Add the target's own MTP layer, which comes with it, or else the first head that can be run.

    Small models that could draft are only mentioned, for they cost memory.
    """
    entries = catalog.drafts_for(target)
    problems = {entry.id: unsupported_reason(entry, target.outline) for entry in entries}
    able = [entry for entry in entries if not problems[entry.id]]
    repos = [repo.lower() for repo in reference.repos]
    layers = [entry.gguf_repo for entry in able if entry.is_in_target and entry.gguf_repo]
    layer_repo = next((repo for repo in layers if repo.lower() in repos), "")
    heads = [entry for entry in able if entry.kind in (EAGLE, MTP) and not entry.is_in_target]
    if heads or layer_repo:
        head, advice = _of_entry(heads[0]) if heads else None, NO_LAYER if layer_repo else ""
        return PullPlan(reference, head, layer_repo=layer_repo, advice=advice)
    if layers:
        return PullPlan(reference, advice=f"no draft: the files of {layers[0]} have an MTP layer that drafts")
    models = [entry for entry in able if entry.kind == DRAFT_MODEL and entry.gguf_repo]
    if models:
        text = _of_entry(models[0]).text
        return PullPlan(reference, advice=f"no head is known for it; a small model can draft: --draft {text}")
    why = [problems[entry.id] for entry in entries if entry.kind in (EAGLE, MTP)]
    return PullPlan(reference, advice=f"no draft: {why[0] if why else 'none is known for it'}")


def _of_entry(entry: DraftEntry) -> HubReference:
    """Return a draft's hub reference: to a GGUF where there is one, else to the head that is to be imported."""
    if entry.is_in_target:
        raise UsageError(
            f"{entry.id} is a layer in the files of {entry.gguf_repo}", hint=f"eaglelocal pull {entry.targets[0]}"
        )
    quant = quant_of(entry.file.removesuffix(SUFFIX)) if entry.file else None
    repo = entry.gguf_repo or entry.repo
    if repo is None:
        raise UsageError(f"the catalogue knows no repository of {entry.id}", hint="--draft user/repo")
    sizes = entry.sizes
    size = sizes.get("file") or sizes.get("bf16") or sizes.get("f16")
    return HubReference(f"{repo}:{quant}" if quant else repo, (repo,), quant or None, size, drafts=True)


def resolve_hub_reference(text: str) -> HubReference:
    """Resolve a model of a hub, target or draft. Raises UsageError on what is none."""
    catalog = load_catalog()
    if text.lower() in catalog.drafts:
        return resolve_draft_reference(text, catalog)
    parsed = parse_reference(text)
    if isinstance(parsed, Repo | Profile):
        return hub_reference(parsed, catalog)
    raise UsageError(f"{text!r} is no model of a hub", hint="eaglelocal ls shows what is on disk")
