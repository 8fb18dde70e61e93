"""`eaglelocal pull --verify`: hash the files on disk, name damaged ones, and remove them after a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli.output import Output, confirm
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, ModelFileError

if TYPE_CHECKING:
    from eaglelocal.hub.download import DownloadOrder
    from eaglelocal.hub.hub_cache import PromisedFile
    from eaglelocal.hub.pull_plan import PullPlan


def discard_damaged(orders: Sequence[DownloadOrder], output: Output, *, yes: bool) -> bool:
    """Remove damaged files after a question, so that they are fetched again. Returns whether there were any.

    Raises Cancelled if the answer is no.
    """
    from eaglelocal.hub.download import discard_file, find_complete_files

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
    from eaglelocal.hub.hub_cache import find_cached, list_promised_files

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
    from eaglelocal.hub.hub_cache import find_damaged

    total, done = sum(file.size_bytes for file in files), 0
    progress = output.progress()

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        progress(LoadProgress(done / total, f"hashing {format_disk(total)}"))

    try:
        wrong = find_damaged(files, count)
    finally:
        progress.finish()
    for file in wrong:
        kind = "SHA-256" if len(file.hash) > 40 else "SHA-1"
        output.message(f"damaged: {file.name}: its {kind} is not {file.hash[:12]}..., the one that the hub lists")
    if files and not wrong:
        match = "its hash matches" if len(files) == 1 else f"the hashes of {len(files)} files match"
        output.message(f"verified {format_disk(total)}: {match} the hub's")
    return wrong
