"""Download orders: the files to fetch for a reference, from a hub's lists. Fetches no model."""

from __future__ import annotations

import re

from eaglelocal.core.run_options import AUTO, NONE
from eaglelocal.errors import DownloadError, UsageError
from eaglelocal.hub.download import DownloadOrder
from eaglelocal.hub.hub_api import RetryPolicy, check_access, fetch_repo, is_repo_missing
from eaglelocal.hub.hub_cache import HubReference
from eaglelocal.hub.projector_resolver import (
    list_model_names,
    list_projectors,
    match_projectors,
    parse_projector,
)
from eaglelocal.hub.repo_builds import choose_build, join_names

CONFIG = "config.json"
WEIGHTS = (".safetensors", ".safetensors.index.json")
# formats that can be read without running code in them
PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?|medusa_lm_head\.pt")


def order_model(reference: HubReference, retries: RetryPolicy) -> DownloadOrder:
    """Order a model as GGUF, from the first of its repositories that has the quantization.

    Raises UsageError with the available quantizations, DownloadError if no repository can be read.
    """
    problems: list[DownloadError | UsageError] = []
    for name in reference.repos:
        try:
            repo = fetch_repo(name, retries)
            build = choose_build(repo.builds, reference.quant, repo=name, drafts=reference.drafts)
        except UsageError as problem:
            problems.append(problem)
        except DownloadError as problem:
            if not is_repo_missing(problem):
                raise
            problems.append(problem)
        else:
            order = DownloadOrder(repo, repo.list_files(build), f"{repo.id}:{build.tag}")
            return check_readable(order, retries)
    raise problems[0]


def order_head(name: str, retries: RetryPolicy) -> DownloadOrder:
    """Order the files of a draft head for a later import. Raises UsageError if the repository has none."""
    repo = fetch_repo(name, retries)
    config = [file for file in repo.files if file.name == CONFIG]
    weights = [file for file in repo.files if file.name.endswith(WEIGHTS)]
    weights = weights or [file for file in repo.files if PICKLED.fullmatch(file.name)]
    if not (config and weights):
        raise UsageError(f"{name} is not a draft head: it has no {CONFIG} with weights", hint=f"see {repo.page}")
    return check_readable(DownloadOrder(repo, (*config, *weights), name), retries)


def order_draft(reference: HubReference, retries: RetryPolicy) -> DownloadOrder:
    """Order a draft: as GGUF if the repository has one, else as a head to import."""
    try:
        return order_model(reference, retries)
    except UsageError as problem:
        if reference.quant is not None:
            raise
        try:
            return order_head(reference.repos[0], retries)
        except UsageError:
            raise problem from None


def add_projector(order: DownloadOrder, mmproj: str) -> DownloadOrder:
    """Add to an order the named image projector, or for `auto` the best that its repository has for the model.

    Raises UsageError if it has none of that name.
    """
    build = next((build for build in order.repo.builds if order.files[0].name in build.names), None)
    if build is None or build.is_draft or mmproj == NONE:
        return order
    sizes = {file.name: file.size_bytes for file in order.repo.files}
    names = list_projectors(sizes)
    if mmproj == AUTO:
        projectors = [parse_projector(name, size_bytes=sizes[name]) for name in names]
        is_alone = len(list_model_names(sizes)) <= 1
        found = [one.name for one in match_projectors(projectors, [build.stem.rpartition("/")[2]], is_alone=is_alone)]
    else:
        found = [name for name in names if mmproj.lower() in (name.lower(), name.rsplit("/", 1)[-1].lower())]
        if not found:
            has = f"it has {join_names(names, like=mmproj)}" if names else "it has none; --mmproj none"
            raise UsageError(f"{order.repo.id} has no projector {mmproj}", hint=has)
    chosen = [file for file in order.repo.files if file.name in found[:1]]
    return DownloadOrder(order.repo, (*order.files, *chosen), order.reference)


def needs_import(order: DownloadOrder) -> bool:
    return order.files[0].name == CONFIG


def check_readable(order: DownloadOrder, retries: RetryPolicy) -> DownloadOrder:
    """Return the order if its files may be read; otherwise raise before anything is downloaded."""
    if order.repo.is_gated:
        check_access(order.repo, order.files[0], retries)
    return order
