"""Lookup of a hub's model in the cache: its files, or an error with the command that fetches them.

Asks no hub. A reference names one repository, or a profile with several repositories that hold the same model.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.hub_cache import CachedModel, find_repo_partials, list_repo_models, list_repos
from eaglelocal.hub.repo_builds import RepoBuild, choose_build, join_names


@dataclass(frozen=True, slots=True)
class HubReference:
    """A model of a hub as the user named it: in any of these repositories, in the quantization that was named."""

    text: str
    repos: tuple[str, ...]  # the preferred first
    quant: str | None = None
    size_bytes: int | None = None  # of the download, where the catalog knows it
    drafts: bool = False  # True: a file that is named as a draft is wanted


def find_cached(cache: Path, reference: HubReference) -> CachedModel:
    """Return the model in the cache. Raises ModelFileError if it is not completely there, UsageError if ambiguous."""
    cached = [model for repo in reference.repos for model in list_repo_models(cache, repo)]
    if not cached:
        raise _make_missing_error(cache, reference)
    for repo in reference.repos:
        models = [model for model in cached if model.repo == repo]
        build = _choose([model.build for model in models], reference, repo)
        if build is not None:
            return next(model for model in models if model.build == build)
    raise _make_missing_error(cache, reference, cached)


def _choose(builds: Sequence[RepoBuild], reference: HubReference, repo: str) -> RepoBuild | None:
    """Return the build that the reference names, None if there is none. Raises UsageError if it is ambiguous."""
    if not builds:
        return None
    try:
        return choose_build(builds, reference.quant, repo=repo, drafts=reference.drafts)
    except UsageError:
        if reference.quant is None:
            raise
        return None


def _make_missing_error(cache: Path, reference: HubReference, cached: Sequence[CachedModel] = ()) -> ModelFileError:
    partial_bytes = sum(partial.size_bytes for repo in reference.repos for partial in find_repo_partials(cache, repo))
    size = format_disk(reference.size_bytes) if reference.size_bytes else ""
    if partial_bytes:
        of_size = f" of {size}" if size else ""
        state = f"is not on disk whole: {format_disk(partial_bytes)}{of_size} were downloaded"
    else:
        state = f"is not on disk{f' ({size} to download)' if size else ''}"
    if cached:
        there = join_names((model.reference for model in cached), like=reference.text, joint=" and ")
    else:
        near = difflib.get_close_matches(reference.repos[0], list_repos(cache), n=1, cutoff=0.8)
        there = near[0] if near and near[0] not in reference.repos else ""
    message = f"{reference.text} {state}{f'; on disk: {there}' if there else ''}"
    return ModelFileError(message, hint=f"eaglelocal pull {quote_path(reference.text)}")
