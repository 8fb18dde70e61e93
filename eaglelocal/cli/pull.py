"""`eaglelocal pull`: fetch a model and its draft after one question, check them, and say how to run them.

The files are chosen first, from the hub's listings; nothing is fetched before they are shown and confirmed.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli.amounts import duration_text, path_text, size_text
from eaglelocal.cli.confirm import confirm
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.cli.pull_verify import discard_damaged, verify_on_disk
from eaglelocal.core.events import LoadProgress
from eaglelocal.errors import (
    DownloadError,
    EagleLocalError,
    IncompatibleError,
    ModelFileError,
    ResourceError,
    UsageError,
)

if TYPE_CHECKING:
    from eaglelocal.hub.download import DownloadOrder, DownloadProgress
    from eaglelocal.hub.draft_resolver import FoundDraft
    from eaglelocal.hub.hub_errors import RetryPolicy
    from eaglelocal.hub.pull_plan import PullPlan
    from eaglelocal.hub.target_resolver import FoundTarget

MAX_FILES_SHOWN = 8
LOOK_UP_WAITS_S = (1.0, 2.0, 4.0)  # between attempts; short, because the user is waiting
FETCH_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between attempts, since the last byte that arrived
KINDS = {"eagle3": "a draft head", "dflash": "a draft head", "mtp": "an MTP layer", "draft_model": "a small model"}

Target = Annotated[str, typer.Argument(metavar="TARGET", help="qwen3-8b, qwen3-8b:Q5_K_M, user/repo:Q4_K_M.")]
Draft = Annotated[
    str, typer.Option(metavar="REF|auto|mtp|none", help="What drafts: user/repo, or as in the catalogue.")
]
Mmproj = Annotated[str, typer.Option(metavar="NAME|auto|none", help="What makes images readable, of the repository.")]
Quant = Annotated[str | None, typer.Option(metavar="Q", help="As behind the colon: Q4_K_M, Q8_0.")]
Verify = Annotated[bool, typer.Option("--verify", help="Hash what is here already; fetch anew what is damaged.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def pull(
    target: Target,
    draft: Draft = "auto",
    mmproj: Mmproj = "auto",
    quant: Quant = None,
    verify: Verify = False,
    yes: Yes = False,
) -> None:
    """Fetch a model, its draft and what it reads images with from a hub.

    \b
    eaglelocal pull qwen3-8b
    eaglelocal pull user/repo-GGUF:Q4_K_M --draft none
    eaglelocal pull qwen3-8b --quant Q5_K_M --yes
    eaglelocal pull qwen3-8b --verify
    """
    from eaglelocal.hub.client_settings import list_unused_settings, prepare_client

    output = standard_output()
    want = wanted_here(target, draft, quant, output)
    if want is None:
        return output.message(f"{target} is embedded: there is nothing to fetch")
    prepare_client()
    for line in list_unused_settings():
        output.message(line)
    orders = with_eyes(ordered(want, output), mmproj)
    if not orders:
        return verify_on_disk(want, output) if verify else None
    is_agreed = verify and discard_damaged(orders, output, yes=yes)
    fetch_all(orders, output, yes=yes or is_agreed, is_verified=verify)
    return check(want, orders, output)


def wanted_here(target: str, draft: str, quant: str | None, output: Output) -> PullPlan | None:
    """Return what to fetch; for a catalogue entry the planner fills in quantization and draft if they are open.

    None for the embedded model. Raises UsageError.
    """
    from eaglelocal.cli.choose_build import choose_build
    from eaglelocal.hub.pull_plan import plan_pull

    planned = choose_build(target, draft=draft) if quant is None else None
    if planned is None:
        return plan_pull(target, draft=draft, quant=quant)
    if planned.problem:
        output.message(f"as planned, {target} does not fit this machine: {planned.problem}")
        return plan_pull(target, draft=draft)
    chosen = planned.draft if draft == "auto" else draft
    if draft == "auto" and comes_with_target(chosen):
        chosen = "auto"
    output.message(f"planned for this machine: {target}:{planned.quant}, `eaglelocal plan {target}` says why")
    want = plan_pull(target, draft=chosen, quant=planned.quant)
    by_name = draft not in ("auto", "none")
    return want if want is None else replace(want, quant_is_asked_for=False, draft_is_asked_for=by_name)


def comes_with_target(draft: str) -> bool:
    from eaglelocal.catalog.catalog import load_catalog

    entry = load_catalog().drafts.get(draft)
    return entry is not None and entry.is_in_target


def ordered(want: PullPlan, output: Output) -> list[DownloadOrder]:
    """Look up the files to fetch on the hub: the target's order, then the draft's.

    Empty, with a message, if the hub does not answer and the model is on disk. Raises DownloadError or UsageError.
    """
    from eaglelocal.hub.cached_files import find_cached

    retries = patience_of(output, LOOK_UP_WAITS_S)
    try:
        orders = [ordered_target(want, retries, output)]
    except DownloadError as problem:
        try:
            there = find_cached(locations.hub_cache_dir(), want.target)
        except EagleLocalError:
            raise with_nearest(problem, want.target.repos[0]) from None
        output.message(f"{there.reference} is on disk; whether it is the newest is not known: {problem.message}")
        return []
    if want.layer_repo and orders[0].repo.id.lower() == want.layer_repo.lower():
        say_other_copy(want, output)
        return orders
    return [*orders, *ordered_draft(want, retries, output)]


def with_eyes(orders: list[DownloadOrder], mmproj: str) -> list[DownloadOrder]:
    """Return the orders; the first, the model's, includes a projector if its repository has one."""
    from eaglelocal.hub.download_orders import add_projector

    return [add_projector(order, mmproj) if not number else order for number, order in enumerate(orders)]


def say_other_copy(want: PullPlan, output: Output) -> None:
    """Explain why a model is fetched that is on disk already: only the other copy has an MTP layer."""
    from eaglelocal.hub.cached_files import find_cached

    try:
        there = find_cached(locations.hub_cache_dir(), want.target)
    except EagleLocalError:
        return
    if there.repo.lower() != want.layer_repo.lower():
        output.message(f"{there.reference} is here, without the MTP layer that drafts for it in {want.layer_repo}")


def ordered_target(want: PullPlan, retries: RetryPolicy, output: Output) -> DownloadOrder:
    """Look up the target, which may also be a head alone.

    If a planned quantization is missing, the usual one is taken; raises UsageError if the user asked for it.
    """
    from eaglelocal.hub.download_orders import order_draft, order_model

    try:
        return order_draft(want.target, retries)
    except UsageError as problem:
        if want.quant_is_asked_for:
            raise
        output.message(f"{problem.message}: the usual one instead")
        return order_model(replace(want.target, quant=None), retries)


def with_nearest(problem: DownloadError, repo: str) -> DownloadError:
    """Return the error; if the repository is missing, with a similar one of the catalogue in its hint."""
    from eaglelocal.hub.hub_errors import is_repo_missing
    from eaglelocal.hub.hub_references import find_nearest_repo

    near = find_nearest_repo(repo) if is_repo_missing(problem) else None
    return DownloadError(problem.message, hint=f"did you mean {near}? or {problem.hint}") if near else problem


def ordered_draft(want: PullPlan, retries: RetryPolicy, output: Output) -> list[DownloadOrder]:
    """Look up the draft. If that fails, raise only if it was asked for by name: the model runs without one."""
    from eaglelocal.hub.download_orders import order_draft

    if want.draft is None:
        return []
    try:
        return [order_draft(want.draft, retries)]
    except (DownloadError, UsageError) as problem:
        if want.draft_is_asked_for:
            raise
        output.message(f"its draft cannot be fetched: {problem.message}")
        return []


def patience_of(output: Output, waits_s: tuple[float, ...] = FETCH_WAITS_S) -> RetryPolicy:
    from eaglelocal.hub.hub_api import silence_client
    from eaglelocal.hub.hub_errors import RetryPolicy

    silence_client()
    return RetryPolicy(waits_s, on_wait=output.note)


def fetch_all(orders: Sequence[DownloadOrder], output: Output, *, yes: bool, is_verified: bool = False) -> None:
    """Show the files, ask and fetch them. Raises Cancelled if the answer is no."""
    from eaglelocal.hub.download import check_disk, check_names, count_missing_bytes, download_files
    from eaglelocal.probe.probe import free_bytes

    cache = locations.hub_cache_dir()
    check_names(orders, cache)
    missing, free = count_missing_bytes(orders, cache), free_bytes(cache)
    for line in order_lines(orders):
        output.message(line)
    if missing:
        check_disk(orders, cache, free=free)
        output.message(f"into {path_text(cache)}, {size_text(free)} free")
        confirm(f"fetch {amount(orders, missing)}?", output, yes=yes, default=True)
    elif is_verified:
        output.message("all of it is here already")
    else:
        output.message("all of it is here already, by name and size; --verify compares its hashes too")
    progress = output.progress()
    try:
        download_files(
            orders,
            cache,
            retries=patience_of(output),
            on_progress=lambda told: progress(shown(told, orders)) if missing else None,
        )
    except KeyboardInterrupt:
        progress.finish()
        output.message("stopped; what came is kept, and the same command goes on from there")
        raise
    finally:
        progress.finish()


def order_lines(orders: Sequence[DownloadOrder]) -> list[str]:
    """Return lines on each repository: its licence, its files and their sizes."""
    lines = []
    for order in orders:
        licence = f", licence {order.repo.licence}" if order.repo.licence else ""
        gated = ", gated: you have access" if order.repo.is_gated else ""
        lines.append(f"{order.repo.id}{licence}{gated}")
        shown_files = order.files[:MAX_FILES_SHOWN]
        lines += [f"  {size_text(file.size_bytes):>9}  {file.name}" for file in shown_files]
        left = order.files[MAX_FILES_SHOWN:]
        if left:
            lines.append(f"  {size_text(sum(file.size_bytes for file in left)):>9}  in {len(left)} more files")
    return lines


def amount(orders: Sequence[DownloadOrder], count_missing_bytes: int) -> str:
    """Return the total size, `4.7 GB`, or how much of it is missing."""
    total = sum(order.size_bytes for order in orders)
    rest = size_text(count_missing_bytes)
    return rest if count_missing_bytes == total else f"the missing {rest} of {size_text(total)}"


def shown(progress: DownloadProgress, orders: Sequence[DownloadOrder]) -> LoadProgress:
    """Return the progress to show: `━━━━━━──────────  38 %  fetching 4.7 GB, 38.2 MB/s, 1 min 17 s left`."""
    if progress.waits_for:
        return LoadProgress(progress.fraction, f"another process is fetching {progress.waits_for}")
    count = sum(len(order.files) for order in orders)
    files = f" in {count} files" if count > 1 else ""
    details = []
    if progress.rate:
        details.append(f"{size_text(progress.rate)}/s")
    if progress.left_s is not None and progress.fraction < 1.0:
        details.append(f"{duration_text(progress.left_s)} left")
    return LoadProgress(progress.fraction, f"fetching {size_text(progress.total_bytes)}{files}", ", ".join(details))


def check(want: PullPlan, orders: Sequence[DownloadOrder], output: Output) -> None:
    """Read the headers, compare draft and target, and say how to run them.

    Raises ModelFileError on a file that cannot run, IncompatibleError if a draft that was asked for does not fit.
    """
    from eaglelocal.gguf.mtp import has_mtp
    from eaglelocal.hub.download_orders import needs_import
    from eaglelocal.hub.inventory import HEAD, describe_file
    from eaglelocal.hub.target_resolver import read_target

    if needs_import(orders[0]):
        return say_import(orders[0], "REF", output)
    if describe_file(path_of(orders[0])).kind == HEAD:
        output.message(f"checked: {orders[0].reference}, a draft head; it drafts for the model that it was made for:")
        return output.data(f"eaglelocal chat --target REF --draft {orders[0].reference}")
    target = read_target(path_of(orders[0]))
    about = f"{target.info.architecture}, {target.info.n_layer} layers, context {target.info.context_length}"
    output.message(f"checked: {orders[0].reference}, {about}")
    tell_eyes(target, output)
    try:
        if len(orders) > 1:
            check_draft(orders[1], orders[0], target, output)
        elif has_mtp(target.header):
            output.message("it has an MTP layer of its own, which drafts for it")
            if want.layer_is_asked_for:
                forget(orders[0])
        elif want.layer_is_asked_for:
            raise IncompatibleError(f"{orders[0].reference} has no MTP layer", hint="--draft auto, or none")
        elif want.advice:
            output.message(want.advice)
    except (IncompatibleError, ModelFileError) as problem:
        if want.draft_is_asked_for or want.layer_is_asked_for:
            raise
        output.message(f"its draft cannot be used: {problem.message}")
    output.message("run it with:")
    return output.data(shlex.join(["eaglelocal", "chat", "--target", orders[0].reference]))


def tell_eyes(target: FoundTarget, output: Output) -> None:
    """Show which projector on disk lets the target read images, or why there is none."""
    from eaglelocal.hub.projector_resolver import find_projector_beside

    eyes = find_projector_beside(target.path, target.header, is_of_hub=True)
    if eyes.path is not None:
        output.message(f"checked: {eyes.path.name}, with which it reads images")
    elif eyes.note:
        output.message(eyes.note)


def say_import(order: DownloadOrder, target: str, output: Output) -> None:
    output.message("before it drafts, the head must be imported, once:")
    output.message(f"  eaglelocal import {order.repo.id} --target {target}")


def check_draft(order: DownloadOrder, of: DownloadOrder, target: FoundTarget, output: Output) -> None:
    """Check that a draft fits the target, and remember it so that `--draft auto` chooses it.

    A head that must be imported first is only mentioned. Raises IncompatibleError or ModelFileError.
    """
    from eaglelocal.hub.download_orders import needs_import

    if needs_import(order):
        return say_import(order, of.reference, output)
    found = checked_draft(order, target)
    remember(order, of)
    return output.message(f"checked: {order.reference}, {KINDS[found.kind]} that fits it")


def forget(target: DownloadOrder) -> None:
    """Forget the draft that was remembered for this target. Raises ResourceError."""
    from eaglelocal.hub.pulled_drafts import forget_draft

    file = locations.pulled_drafts_file()
    with written(file):
        forget_draft(file, target.repo.id)


def remember(draft: DownloadOrder, target: DownloadOrder) -> None:
    """Remember which draft was pulled for a target. Raises ResourceError."""
    from eaglelocal.hub.pulled_drafts import remember_draft

    file = locations.pulled_drafts_file()
    tag = draft.reference.partition(":")[2]
    with written(file):
        remember_draft(file, target_repo=target.repo.id, draft_repo=draft.repo.id, draft_tag=tag)


@contextlib.contextmanager
def written(file: Path) -> Iterator[None]:
    """Convert an OSError while a file is written to ResourceError."""
    try:
        yield
    except OSError as problem:
        raise ResourceError(f"cannot write {file}: {problem.strerror}", hint="check who owns the folder") from problem


def checked_draft(order: DownloadOrder, target: FoundTarget) -> FoundDraft:
    from eaglelocal.hub.draft_resolver import read_draft_file

    return read_draft_file(path_of(order), target)


def path_of(order: DownloadOrder) -> Path:
    """Return the file that llama.cpp opens. Raises ModelFileError if it is missing."""
    from eaglelocal.hub.download import make_link_path

    path = make_link_path(order, order.files[0], locations.hub_cache_dir())
    if not path.is_file():
        raise ModelFileError(f"{path} has gone", hint=f"eaglelocal pull {order.reference}")
    return path
