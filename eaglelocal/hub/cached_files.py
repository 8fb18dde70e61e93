"""Lookup of a hub's model in the cache: its files, or an error with the command that would fetch them.

Asks no hub. A repository may be named by itself or by a profile, which knows several that hold the same model.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.hub_cache import CachedModel, find_repo_partials, list_repo_models, repos_in
from eaglelocal.hub.repo_builds import RepoBuild, choose, listed


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a hub as the user named it: in any of these repositories, in this quantization if one was named."""

    text: str
    repos: tuple[str, ...]  # the preferred first
    quant: str | None = None
    size_bytes: int | None = None  # of the download, where the catalog knows it
    drafts: bool = False  # True: files named as drafts are meant


def find_cached(cache: Path, reference: HubReference) -> CachedModel:
    """Return the model in the cache. Raises ModelFileError where it is not whole there, UsageError if ambiguous."""
    there = [model for repo in reference.repos for model in list_repo_models(cache, repo)]
    if not there:
        raise _missing(cache, reference)
    for repo in reference.repos:
        models = [model for model in there if model.repo == repo]
        build = _chosen([model.build for model in models], reference, repo)
        if build is not None:
            return next(model for model in models if model.build == build)
    raise _missing(cache, reference, there)


def _chosen(builds: Sequence[RepoBuild], reference: HubReference, repo: str) -> RepoBuild | None:
    """Return the build that is wanted, None if there is none. Raises UsageError if it is ambiguous."""
    if not builds:
        return None
    try:
        return choose(builds, reference.quant, repo=repo, drafts=reference.drafts)
    except UsageError:
        if reference.quant is None:
            raise
        return None


def _missing(cache: Path, reference: HubReference, there: Sequence[CachedModel] = ()) -> ModelFileError:
    came = sum(partial.size_bytes for repo in reference.repos for partial in find_repo_partials(cache, repo))
    state = f"is not on disk whole: {came / 1e9:.2f} GB of its download are" if came else "is not on disk"
    size = f" ({reference.size_bytes / 1e9:.1f} GB)" if reference.size_bytes else ""
    hint = f"eaglelocal pull {reference.text}{size}"
    if there:
        hint += f", or take {listed((model.reference for model in there), like=reference.text, joint=' or ')}"
    else:
        near = difflib.get_close_matches(reference.repos[0], repos_in(cache), n=1, cutoff=0.8)
        hint += f"; did you mean {near[0]}, which is?" if near and near[0] not in reference.repos else ""
    return ModelFileError(f"{reference.text} {state}", hint=hint)
