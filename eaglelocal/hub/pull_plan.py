"""The plan of `eaglelocal pull`: the model to fetch for a reference, and its draft. Asks no hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from eaglelocal.catalog.catalog import Catalog, load_catalog
from eaglelocal.catalog.draft_entries import DRAFT_MODEL, EAGLE, MTP, find_unsupported_reason
from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File, Profile, Repo, parse_reference
from eaglelocal.catalog.target_entries import TargetEntry
from eaglelocal.core.atomic_file import write_atomically
from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import AUTO, NONE
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, UsageError
from eaglelocal.gguf.ggml_types import normalize_quant
from eaglelocal.hub.hub_cache import (
    HubReference,
    find_cached,
    find_known_target,
    make_hub_reference,
    refer_to_entry,
    resolve_draft_reference,
)

NO_LAYER = "no draft: this file has no MTP layer"  # shown if the file turns out to have none


@dataclass(frozen=True, slots=True)
class PullPlan:
    """A target to fetch, and its draft. Without a draft, `advice` names possible drafts.

    If a name that the user gave does not exist, that is an error; automatic choices may be replaced.
    """

    target: HubReference
    draft: HubReference | None = None
    quant_is_asked_for: bool = True
    draft_is_asked_for: bool = False
    advice: str = ""
    layer_repo: str = ""  # its files have an MTP layer: with one of them `draft` is not needed
    layer_is_asked_for: bool = False


def plan_pull(target: str, *, draft: str = AUTO, quant: str | None = None) -> PullPlan | None:
    """Return the plan for these references; None for the embedded model. Raises UsageError."""
    parsed = parse_reference(target)
    match parsed:
        case EmbeddedModel():
            return None
        case DerivedModel():
            raise UsageError(
                f"{target} is made of a model on this disk", hint=f"eaglelocal chat --target {quote_path(target)}"
            )
        case File(path):
            raise UsageError(f"{target} is the path of a file", hint=f"eaglelocal chat --target {quote_path(path)}")
    catalog = load_catalog()
    reference = make_hub_reference(_add_quant(parsed, quant), catalog)
    if draft == NONE:
        return PullPlan(reference)
    known = find_known_target(parsed, catalog)
    if draft != AUTO:
        if draft.lower() == MTP:
            entries = catalog.drafts_for(known) if known else ()
            draft = next((entry.id for entry in entries if entry.kind == MTP), MTP)
        if is_own_layer(draft, known, catalog):
            return PullPlan(reference, layer_is_asked_for=True)
        return PullPlan(reference, resolve_draft_reference(draft, catalog), draft_is_asked_for=True)
    return PullPlan(reference) if known is None else _add_catalog_draft(reference, known, catalog)


def is_own_layer(draft: str, target: TargetEntry | None, catalog: Catalog) -> bool:
    """Return whether the draft is a layer of the target's own file. Raises UsageError for other targets' layers."""
    entry = catalog.drafts.get(draft.lower())
    if entry is None or not entry.is_in_target:
        return draft == MTP
    if target is not None and not entry.serves(target.id):
        raise UsageError(f"{draft} is a layer of {', '.join(entry.targets)}", hint=f"--draft {AUTO}")
    return True


def _add_quant(parsed: Profile | Repo, quant: str | None) -> Profile | Repo:
    if quant is None or (parsed.quant and normalize_quant(parsed.quant) == normalize_quant(quant)):
        return parsed
    if parsed.quant:
        raise UsageError(f"two quantizations are named: {parsed.quant} and {quant}", hint="name one of them")
    return Profile(parsed.id, quant) if isinstance(parsed, Profile) else Repo(parsed.name, quant)


def _add_catalog_draft(reference: HubReference, target: TargetEntry, catalog: Catalog) -> PullPlan:
    """Add the target's own MTP layer, which comes with it, or else the first supported head.

    A small model that could draft is only mentioned, because it costs memory.
    """
    entries = catalog.drafts_for(target)
    problems = {entry.id: find_unsupported_reason(entry, target.outline) for entry in entries}
    able = [entry for entry in entries if not problems[entry.id]]
    repos = [repo.lower() for repo in reference.repos]
    layers = [entry.gguf_repo for entry in able if entry.is_in_target and entry.gguf_repo]
    layer_repo = next((repo for repo in layers if repo.lower() in repos), "")
    heads = [entry for entry in able if entry.kind in (EAGLE, MTP) and not entry.is_in_target]
    if heads or layer_repo:
        head, advice = refer_to_entry(heads[0]) if heads else None, NO_LAYER if layer_repo else ""
        return PullPlan(reference, head, layer_repo=layer_repo, advice=advice)
    if layers:
        return PullPlan(reference, advice=f"no draft: the files of {layers[0]} have an MTP layer that drafts")
    models = [entry for entry in able if entry.kind == DRAFT_MODEL and entry.gguf_repo]
    if models:
        text = refer_to_entry(models[0]).text
        return PullPlan(reference, advice=f"no head is known for it; a small model can draft: --draft {text}")
    why = [problems[entry.id] for entry in entries if entry.kind in (EAGLE, MTP)]
    return PullPlan(reference, advice=f"no draft: {why[0] if why else 'none is known for it'}")


# ---- pulled drafts: a record of the draft that was pulled with each target; `--draft auto` takes it again
#
# One small file, by the target's repository, so that all quantizations of a target have the same draft. An entry that
# cannot be read, or whose draft was removed, is ignored.
def remember_draft(file: Path, *, target_repo: str, draft_repo: str, draft_tag: str) -> None:
    """Record a target's draft; `draft_tag` follows the colon. Raises OSError if the file cannot be written."""
    known = {**_read(file), target_repo: f"{draft_repo}:{draft_tag}"}
    write_atomically(file, json.dumps(known, indent=1, sort_keys=True))


def forget_draft(file: Path, target_repo: str) -> None:
    """Forget the draft that was pulled with a target. Raises OSError if the file cannot be written."""
    known = _read(file)
    if target_repo in known:
        rest = {repo: draft for repo, draft in known.items() if repo != target_repo}
        write_atomically(file, json.dumps(rest, indent=1, sort_keys=True))


def read_pulled_reference(file: Path, target_repo: str) -> str:
    """Return the draft recorded for a target, such as `user/repo:Q8_0`; empty if there is none."""
    return _read(file).get(target_repo, "")


def find_pulled_targets(file: Path) -> Mapping[str, tuple[str, ...]]:
    """Map each draft (lower case) to the repositories of the targets that it was pulled with."""
    found: dict[str, tuple[str, ...]] = {}
    for target, draft in _read(file).items():
        found[draft.lower()] = (*found.get(draft.lower(), ()), target)
    return found


def find_pulled_draft(file: Path, cache: Path, target_repo: str) -> Path | None:
    """Return the file of the draft that was pulled with a target; None if it is not on disk."""
    repo, _, tag = read_pulled_reference(file, target_repo).partition(":")
    if not repo:
        return None
    try:
        return find_cached(cache, HubReference(f"{repo}:{tag}", (repo,), tag, drafts=True)).path
    except EagleLocalError:
        return None


def _read(file: Path) -> Mapping[str, str]:
    try:
        content = read_json(read_own(file))
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {target: draft for target, draft in content.items() if isinstance(draft, str)}
