"""Find what stays when a model is removed: versions that its heads have learned, and answers that were kept to learn.

Both are expensive to make again, so `rm` leaves them; it says so, with the commands that delete them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.cli.forget import list_files, measure_file
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.folders import make_absolute
from eaglelocal.core.records import dataclass

if TYPE_CHECKING:
    from eaglelocal.hub.heads.versions import HeadVersions


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The learned heads and the folders of kept answers of a model."""

    heads: tuple[HeadVersions, ...] = ()
    answers: tuple[Path, ...] = ()


def find_leftovers(removed: Sequence[Path]) -> Leftovers:
    """Return what belongs to files that are to be removed: to models by their content, to heads by their paths."""
    from eaglelocal.gguf.model_fingerprint import fingerprint_model
    from eaglelocal.hub.heads.versions import list_learned_heads

    learned, kept = list_learned_heads(), locations.learning_dir()
    if not learned and not kept.is_dir():
        return Leftovers()
    keys: set[str] = set()
    for path in removed:
        if path.suffix == GGUF_SUFFIX:
            with suppress(OSError):
                keys.add(fingerprint_model(path))
    paths = {str(make_absolute(path)) for path in removed}
    heads = [each for each in learned if _is_of(each, keys, paths)]
    answers = [kept / key for key in sorted(keys) if list_files(kept / key)]
    return Leftovers(tuple(heads), tuple(answers))


def _is_of(head: HeadVersions, keys: set[str], paths: set[str]) -> bool:
    known, _ = head.read()
    return known.target_key in keys or known.target_path in paths or known.base_path in paths


def leftover_lines(left: Leftovers) -> Iterator[str]:
    """Yield what is of no use now that the files are gone; nothing of a model that is on this disk elsewhere too."""
    from eaglelocal.cli.heads import find_orphans, fingerprint_models

    if not left.heads and not left.answers:
        return
    if orphans := find_orphans(left.heads, frozenset()):
        size = _format_size([head.folder for head in orphans])
        yield f"what its heads have learned stays, {size}: `eaglelocal heads --prune` deletes it"
    present = fingerprint_models() if left.answers else frozenset()
    if answers := [folder for folder in left.answers if folder.name not in present]:
        yield f"answers kept to learn from stay, {_format_size(answers)}: {_name_deletion(answers)}"


def _name_deletion(answers: Sequence[Path]) -> str:
    """Return which command deletes these folders and as little else as possible."""
    from eaglelocal.learning.kept_answers import read_target

    paths = sorted({read_target(folder) for folder in answers})
    if not all(paths):  # nobody noted of which file they are
        return "`eaglelocal forget` deletes those of all models, and the texts and caches of conversations"
    commands = " and ".join(f"`{shlex.join(['eaglelocal', 'forget', path])}`" for path in paths)
    return f"{commands} {'deletes' if len(paths) == 1 else 'delete'} them"


def _format_size(folders: Sequence[Path]) -> str:
    return format_disk(sum(measure_file(path) for folder in folders for path in list_files(folder)))
