"""The files of `eaglelocal pull`: looked up on the hub, fetched after one question, verified and checked.

Imported once the hub's client is prepared: its library reads its settings when it is imported.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.cli.output import Output, confirm, path_text, shown_progress
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.core.amounts import format_disk, format_duration
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import (
    DownloadError,
    EagleLocalError,
    IncompatibleError,
    ModelFileError,
    ResourceError,
    UsageError,
)
from eaglelocal.gguf.mtp import has_mtp
from eaglelocal.hub.download import (
    DownloadOrder,
    add_projector,
    check_disk,
    check_names,
    count_missing_bytes,
    discard_file,
    download_files,
    find_complete_files,
    find_places,
    needs_import,
    order_draft,
    order_model,
)
from eaglelocal.hub.draft_resolver import read_draft_file
from eaglelocal.hub.hub_api import RetryPolicy, is_repo_missing, silence_client
from eaglelocal.hub.hub_cache import PromisedFile, find_cached, find_damaged, find_nearest_repo, list_promised_files
from eaglelocal.hub.inventory import HEAD, describe_file
from eaglelocal.hub.pairs_lock import lock_commits
from eaglelocal.hub.projector_resolver import find_projector_beside
from eaglelocal.hub.pull_plan import PullPlan, forget_draft, remember_draft
from eaglelocal.hub.target_resolver import FoundTarget, read_target
from eaglelocal.hub.transfer import DownloadProgress
from eaglelocal.probe.probe import free_bytes

LOOK_UP_WAITS_S = (1.0, 2.0, 4.0)  # between attempts; short, because the user is waiting
FETCH_WAITS_S = (1.0, 2.0, 4.0, 8.0, 16.0)  # between attempts, since the last byte that arrived
KINDS = {"eagle3": "a draft head", "dflash": "a draft head", "mtp": "an MTP layer", "draft_model": "a small model"}
MAX_FILES_SHOWN = 8


def look_up_orders(plan: PullPlan, mmproj: str, output: MessageOutput) -> list[DownloadOrder]:
    """Look up the files to fetch on the hub: the order of the target with its projector, then the draft's.

    Empty, with a message, if the hub does not answer and the model is on disk. Raises DownloadError or UsageError.
    """
    patience = make_retry_policy(output, LOOK_UP_WAITS_S)
    try:
        order = look_up_target(plan, patience, output)
    except DownloadError as problem:
        try:
            cached = find_cached(locations.hub_cache_dir(), plan.target)
        except EagleLocalError:
            raise suggest_repo(problem, plan.target.repos[0]) from None
        output.message(f"{cached.reference} is on disk, but cannot be checked for updates: {problem.message}")
        return []
    if plan.layer_repo and order.repo.id.lower() == plan.layer_repo.lower():
        mention_other_copy(plan, output)
        drafts = []
    else:
        drafts = look_up_draft(plan, patience, output)
    return [add_projector(order, mmproj), *drafts]


def mention_other_copy(plan: PullPlan, output: MessageOutput) -> None:
    """Explain why a model is fetched that is on disk already: only the other copy has an MTP layer."""
    try:
        cached = find_cached(locations.hub_cache_dir(), plan.target)
    except EagleLocalError:
        return
    if cached.repo.lower() != plan.layer_repo.lower():
        output.message(f"{cached.reference} is on disk, but without the MTP layer that {plan.layer_repo} has")


def look_up_target(plan: PullPlan, patience: RetryPolicy, output: MessageOutput) -> DownloadOrder:
    """Look up the target, which may also be a head alone.

    If a planned quantization is missing, the usual one is taken; raises UsageError if the user asked for it.
    """
    try:
        return order_draft(plan.target, patience)
    except UsageError as problem:
        if plan.quant_is_asked_for:
            raise
        output.message(f"{problem.message}: using the default instead")
        return order_model(replace(plan.target, quant=None), patience)


def suggest_repo(problem: DownloadError, repo: str) -> DownloadError:
    """Return the error; if the repository is missing, with a similar one of the catalog in its hint."""
    near = find_nearest_repo(repo) if is_repo_missing(problem) else None
    return DownloadError(problem.message, hint=f"eaglelocal pull {near}") if near else problem


def look_up_draft(plan: PullPlan, patience: RetryPolicy, output: MessageOutput) -> list[DownloadOrder]:
    """Look up the draft. If that fails, raise only if it was asked for by name: the model runs without one."""
    if plan.draft is None:
        return []
    try:
        return [order_draft(plan.draft, patience)]
    except (DownloadError, UsageError) as problem:
        if plan.draft_is_asked_for:
            raise
        output.message(f"the draft cannot be downloaded: {problem.message}")
        return []


def make_retry_policy(output: MessageOutput, waits_s: tuple[float, ...] = FETCH_WAITS_S) -> RetryPolicy:
    silence_client()
    return RetryPolicy(waits_s, on_wait=output.note)


def fetch_all(orders: Sequence[DownloadOrder], output: Output, *, yes: bool, is_verified: bool = False) -> None:
    """Show the files, ask and fetch them. Raises Cancelled if the answer is no."""
    cache = locations.hub_cache_dir()
    check_names(orders, cache)
    missing, free = count_missing_bytes(orders, cache), free_bytes(cache)
    for line in order_lines(orders):
        output.message(line)
    if missing:
        check_disk(orders, cache, free=free)
        output.message(f"into {path_text(cache)}, {format_disk(free)} free")
        confirm(f"fetch {amount_text(orders, missing)}?", output, yes=yes, default=True)
    elif is_verified:
        output.message("all files are on disk")
    else:
        output.message("all files are on disk, by name and size; --verify checks their hashes too")
    try:
        fetch_files(orders, output, is_shown=bool(missing))
    except KeyboardInterrupt:
        output.message("stopped; the same command resumes the download")
        raise


def fetch_files(orders: Sequence[DownloadOrder], output: MessageOutput, *, is_shown: bool = True) -> None:
    """Fetch what is missing, with progress if `is_shown`. Raises DownloadError and ResourceError."""
    progress = output.progress()
    try:
        download_files(
            orders,
            locations.hub_cache_dir(),
            retries=make_retry_policy(output),
            on_progress=lambda done: progress(load_progress(done, orders)) if is_shown else None,
        )
    finally:
        progress.finish()
    if problem := lock_commits({order.repo.id: order.repo.commit for order in orders}):
        output.message(f"warning: {problem}")


def check_files(plan: PullPlan, orders: Sequence[DownloadOrder], output: Output) -> None:
    """Check the files, and say how to run them. Raises as `check_model`."""
    if needs_import(orders[0]):
        return mention_import(orders[0], "REF", output)
    if describe_file(find_first_file(orders[0])).kind == HEAD:
        output.message(f"checked: {orders[0].reference}, a draft head; use it with the model that it was made for:")
        return output.data(f"eaglelocal chat --target REF --draft {orders[0].reference}")
    check_model(plan, orders, output)
    output.message("run it with:")
    return output.data(shlex.join(["eaglelocal", "chat", "--target", orders[0].reference]))


def check_model(plan: PullPlan, orders: Sequence[DownloadOrder], output: MessageOutput) -> None:
    """Read the headers, and compare draft and target.

    Raises ModelFileError on a file that cannot run, IncompatibleError if a draft that was asked for does not fit.
    """
    target = read_target(find_first_file(orders[0]))
    about = f"{target.info.architecture}, {target.info.n_layer} layers, context {target.info.context_length}"
    output.message(f"checked: {orders[0].reference}, {about}")
    show_projector(target, output)
    try:
        if len(orders) > 1:
            check_draft(orders[1], orders[0], target, output)
        elif has_mtp(target.header):
            output.message("its own MTP layer drafts for it")
            if plan.layer_is_asked_for:
                forget(orders[0])
        elif plan.layer_is_asked_for:
            raise IncompatibleError(f"{orders[0].reference} has no MTP layer", hint="--draft auto")
        elif plan.advice:
            output.message(plan.advice)
    except (IncompatibleError, ModelFileError) as problem:
        if plan.draft_is_asked_for or plan.layer_is_asked_for:
            raise
        output.message(f"the draft cannot be used: {problem.message}")


def show_projector(target: FoundTarget, output: MessageOutput) -> None:
    """Show which projector on disk lets the target read images, or why there is none."""
    projector = find_projector_beside(target.path, target.header, is_of_hub=True)
    if projector.path is not None:
        output.message(f"checked: {projector.path.name}, its projector for images")
    elif projector.note:
        output.message(projector.note)


def mention_import(order: DownloadOrder, target: str, output: MessageOutput) -> None:
    output.message("import the head once before you use it:")
    output.message(f"  eaglelocal import {order.repo.id} --target {target}")


def check_draft(order: DownloadOrder, model: DownloadOrder, target: FoundTarget, output: MessageOutput) -> None:
    """Check that a draft fits the target, and remember it so that `--draft auto` chooses it.

    A head that must be imported first is only mentioned. Raises IncompatibleError or ModelFileError.
    """
    if needs_import(order):
        return mention_import(order, model.reference, output)
    found = read_draft_file(find_first_file(order), target)
    remember(order, model, output)
    return output.message(f"checked: {order.reference}, {KINDS[found.kind]} that fits it")


def forget(target: DownloadOrder) -> None:
    """Forget the draft that was remembered for this target. Raises ResourceError."""
    file = locations.pulled_drafts_file()
    try:
        forget_draft(file, target.repo.id)
    except OSError as problem:
        message = f"cannot write {file}: {problem.strerror}"
        raise ResourceError(message, hint="check the owner of the folder") from problem


def remember(draft: DownloadOrder, target: DownloadOrder, output: MessageOutput) -> None:
    """Remember which draft was pulled for a target; warn if that cannot be written: the draft is there all the same."""
    file = locations.pulled_drafts_file()
    tag = draft.reference.partition(":")[2]
    try:
        remember_draft(file, target_repo=target.repo.id, draft_repo=draft.repo.id, draft_tag=tag)
    except OSError as problem:
        why = f"{file} cannot be written: {problem.strerror}"
        output.message(f"warning: `--draft {draft.reference}` must be named, because {why}")


def find_first_file(order: DownloadOrder) -> Path:
    """Return the file that llama.cpp opens. Raises ModelFileError if it is missing."""
    path = find_places(order, locations.hub_cache_dir())[0].link
    if not path.is_file():
        raise ModelFileError(f"{path} is missing", hint=f"eaglelocal pull {quote_path(order.reference)}")
    return path


# ---- verification: hash the files on disk, name damaged ones, and remove them after a question
def discard_damaged(orders: Sequence[DownloadOrder], output: Output, *, yes: bool) -> bool:
    """Remove damaged files after a question, so that they are fetched again. Returns whether there were any.

    Raises Cancelled if the answer is no.
    """
    cache = locations.hub_cache_dir()
    complete = [(order, file, promised) for order in orders for file, promised in find_complete_files(order, cache)]
    wrong = find_damaged_files([promised for _, _, promised in complete], output)
    if not wrong:
        return False
    num_bytes = sum(file.size_bytes for file in wrong)
    confirm(f"remove {format_disk(num_bytes)} and download it again?", output, yes=yes, default=True)
    for order, file, promised in complete:
        if promised in wrong:
            discard_file(order, file, cache)
    return True


def verify_on_disk(want: PullPlan, output: Output) -> None:
    """Verify a model without the hub, by the hashes in the names of its cached files.

    Raises ModelFileError on a damaged file.
    """
    try:
        model = find_cached(locations.hub_cache_dir(), want.target)
    except EagleLocalError:
        return None  # already reported
    files = list_promised_files(model)
    if len(files) < len(model.paths):
        return output.message("its hashes are unknown: the hub does not answer")
    if wrong := find_damaged_files(files, output):
        hint = f"eaglelocal pull {quote_path(model.reference)} --verify"
        raise ModelFileError(f"{wrong[0].path} is damaged", hint=hint)
    return None


def find_damaged_files(files: Sequence[PromisedFile], output: Output) -> list[PromisedFile]:
    """Hash the files, report the result and return the damaged ones."""
    total, done = sum(file.size_bytes for file in files), 0
    with shown_progress(output) as show:

        def count(num_bytes: int) -> None:
            nonlocal done
            done += num_bytes
            show(done / total, f"hashing {format_disk(total)}")

        wrong = find_damaged(files, count)
    for file in wrong:
        kind = "SHA-256" if len(file.hash) > 40 else "SHA-1"
        output.message(f"damaged: {file.name}: its {kind} is not {file.hash[:12]}..., the one that the hub lists")
    if files and not wrong:
        match = "its hash matches" if len(files) == 1 else f"the hashes of {len(files)} files match"
        output.message(f"verified {format_disk(total)}: {match} the hub's")
    return wrong


# ---- the report: the files of an order, and the progress of a download
def order_lines(orders: Sequence[DownloadOrder]) -> list[str]:
    """Return lines on each repository: its license, its files and their sizes."""
    lines = []
    for order in orders:
        licence = f", licence {order.repo.licence}" if order.repo.licence else ""
        gated = ", gated: you have access" if order.repo.is_gated else ""
        lines.append(f"{order.repo.id}{licence}{gated}")
        shown_files = order.files[:MAX_FILES_SHOWN]
        lines += [f"  {format_disk(file.size_bytes):>9}  {file.name}" for file in shown_files]
        if others := order.files[MAX_FILES_SHOWN:]:
            lines.append(f"  {format_disk(sum(file.size_bytes for file in others)):>9}  in {len(others)} more files")
    return lines


def amount_text(orders: Sequence[DownloadOrder], missing_bytes: int) -> str:
    """Return the total size, `4.7 GB`, or how much of it is missing."""
    total = sum(order.size_bytes for order in orders)
    rest = format_disk(missing_bytes)
    return rest if missing_bytes == total else f"the missing {rest} of {format_disk(total)}"


def load_progress(progress: DownloadProgress, orders: Sequence[DownloadOrder]) -> LoadProgress:
    """Return the progress to show: `━━━━━━──────────  38 %  fetching 4.7 GB, 38.2 MB/s, 1 min 17 s left`."""
    if progress.waits_for:
        return LoadProgress(progress.fraction, f"another process is fetching {progress.waits_for}")
    count = sum(len(order.files) for order in orders)
    files = f" in {count} files" if count > 1 else ""
    details = []
    if progress.rate:
        details.append(f"{format_disk(progress.rate)}/s")
    if progress.left_s is not None and progress.fraction < 1.0:
        details.append(f"{format_duration(progress.left_s)} left")
    return LoadProgress(progress.fraction, f"fetching {format_disk(progress.total_bytes)}{files}", ", ".join(details))
