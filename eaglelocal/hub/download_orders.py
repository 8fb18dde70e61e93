"""Orders of downloads: what would be fetched for a reference, by asking a hub for its lists. Fetches nothing."""

from __future__ import annotations

import re

from eaglelocal.errors import DownloadError, UsageError
from eaglelocal.hub.cached_files import HubReference
from eaglelocal.hub.download import DownloadOrder
from eaglelocal.hub.hub_api import RemoteRepo, check_access, look_up
from eaglelocal.hub.hub_errors import RetryPolicy, is_missing
from eaglelocal.hub.hub_references import AUTO, NONE
from eaglelocal.hub.projector_names import called, models_in, named, projectors_in, whose
from eaglelocal.hub.repo_builds import RepoBuild, choose, listed

CONFIG = "config.json"
WEIGHTS = (".safetensors", ".safetensors.index.json")
PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin(\.index\.json)?")  # read without running anything in it


def order_model(reference: HubReference, patience: RetryPolicy) -> DownloadOrder:
    """Order a model as GGUF, of the first of its repositories that has the quantization that is wanted.

    Raises UsageError with what there is instead, DownloadError where no repository can be read.
    """
    problems: list[DownloadError | UsageError] = []
    for name in reference.repos:
        try:
            repo = look_up(name, patience)
            order = _order(repo, choose(repo.builds, reference.quant, repo=name, drafts=reference.drafts))
        except UsageError as problem:
            problems.append(problem)
        except DownloadError as problem:
            if not is_missing(problem):
                raise
            problems.append(problem)
        else:
            return checked(order, patience)
    raise problems[0]


def order_head(name: str, patience: RetryPolicy) -> DownloadOrder:
    """Order the files of a draft head that is yet to be imported. Raises UsageError where the repository holds none."""
    repo = look_up(name, patience)
    config = [file for file in repo.files if file.name == CONFIG]
    weights = [file for file in repo.files if file.name.endswith(WEIGHTS)]
    weights = weights or [file for file in repo.files if PICKLED.fullmatch(file.name)]
    if not (config and weights):
        raise UsageError(f"{name} holds no draft head: no {CONFIG} with weights", hint=f"see {repo.page}")
    return checked(DownloadOrder(repo, (*config, *weights), name), patience)


def order_draft(reference: HubReference, patience: RetryPolicy) -> DownloadOrder:
    """Order a draft: as GGUF where the repository has one, else as a head that is to be imported."""
    try:
        return order_model(reference, patience)
    except UsageError as problem:
        if reference.quant is not None:
            raise
        try:
            return order_head(reference.repos[0], patience)
        except UsageError:
            raise problem from None


def add_projector(order: DownloadOrder, mmproj: str) -> DownloadOrder:
    """Add to an order the image projector that is named, or for `auto` the best that its repository has for the model.

    Raises UsageError where it has none of that name.
    """
    build = next((build for build in order.repo.builds if order.files[0].name in build.names), None)
    if build is None or build.is_draft or mmproj == NONE:
        return order
    sizes = {file.name: file.size_bytes for file in order.repo.files}
    names = projectors_in(sizes)
    if mmproj == AUTO:
        eyes = [named(name).of_size(sizes[name]) for name in names]
        found = [one.name for one in whose(eyes, [called(build)], is_alone=len(models_in(sizes)) <= 1)]
    else:
        found = [name for name in names if mmproj.lower() in (name.lower(), name.rsplit("/", 1)[-1].lower())]
        if not found:
            has = f"it has {listed(names, like=mmproj)}" if names else "it has none; --mmproj none"
            raise UsageError(f"{order.repo.id} has no projector {mmproj}", hint=has)
    chosen = [file for file in order.repo.files if file.name in found[:1]]
    return DownloadOrder(order.repo, (*order.files, *chosen), order.reference)


def needs_import(order: DownloadOrder) -> bool:
    return order.files[0].name == CONFIG


def checked(order: DownloadOrder, patience: RetryPolicy) -> DownloadOrder:
    """Return the order if its files may be read; raise before anything is fetched if not."""
    if order.repo.is_gated:
        check_access(order.repo, order.files[0], patience)
    return order


def _order(repo: RemoteRepo, build: RepoBuild) -> DownloadOrder:
    return DownloadOrder(repo, repo.files_of(build), f"{repo.id}:{build.tag}")
