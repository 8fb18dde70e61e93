"""The output of `eaglelocal pull`: the files of an order, and the progress of a download. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eaglelocal.cli.output import duration_text
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.events import LoadProgress

if TYPE_CHECKING:
    from eaglelocal.hub.download import DownloadOrder, DownloadProgress

MAX_FILES_SHOWN = 8


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
        details.append(f"{duration_text(progress.left_s)} left")
    return LoadProgress(progress.fraction, f"fetching {format_disk(progress.total_bytes)}{files}", ", ".join(details))
