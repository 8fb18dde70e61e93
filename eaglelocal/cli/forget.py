"""`eaglelocal forget`: delete what servers and chats have kept of questions and answers, and learned heads if asked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.amounts import path_text
from eaglelocal.cli.confirm import confirm
from eaglelocal.cli.output import standard_output
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.plurals import count_noun
from eaglelocal.errors import ResourceError

TRIES = 5
Heads = Annotated[bool, typer.Option("--heads", help="Delete the learned versions of heads too.")]


def forget(heads: Heads = False, yes: flags.Yes = False) -> None:
    """Delete the texts that lookups and learning have kept on disk, and the caches of conversations.

    Saved conversations, models and heads stay; --heads deletes the learned versions of heads too. A server that runs
    goes on with what it has in memory.

    \b
    eaglelocal forget
    eaglelocal forget --heads --yes
    """
    output, learned = standard_output(), locations.learned_dir()
    kept = (locations.lookups_dir(), locations.conversation_cells_dir(), locations.learning_dir())
    folders = [folder for folder in kept if list_files(folder)]
    if list_files(learned):
        if heads:
            folders.append(learned)
        else:
            output.message(f"{path_text(learned)}: learned heads stay; `eaglelocal forget --heads` deletes them")
    if not folders:
        output.message("nothing is kept")
        return
    for folder in folders:
        output.message(describe_folder(folder))
    confirm("delete them?", output, yes=yes, default=False)
    if learned in folders:
        delete_light_copies(learned)
    for folder in folders:
        delete_folder(folder)
    if learned in folders:
        delete_stale_copies(locations.light_heads_dir())  # of versions that were deleted before
    output.message("deleted")


def describe_folder(folder: Path) -> str:
    files = list_files(folder)
    size = format_disk(sum(map(measure_file, files)))
    if folder == locations.learned_dir():
        return f"{path_text(folder)}: learned heads, {size}"
    if folder == locations.conversation_cells_dir():
        return f"{path_text(folder)}: caches of {count_noun(len(files), 'conversation')}, {size}"
    if folder == locations.learning_dir():
        from eaglelocal.learning.kept_answers import read_owner

        owners = {read_owner(path.parent) for path in files if path.parent.parent.name == "answers"}
        names = ", ".join(name_models(folder))
        return f"{path_text(folder)}: answers of {count_noun(len(owners), 'key')} to learn from, {size} ({names})"
    return f"{path_text(folder)}: texts of {count_noun(len(files), 'key')}, {size}"


def name_models(folder: Path) -> list[str]:
    """Return the files whose answers are kept, each with how much there is of it."""
    from eaglelocal.hub.heads.versions import list_learned_heads
    from eaglelocal.learning.kept_answers import read_target

    known = {each.target_key: each.target_path for each in (head.read()[0] for head in list_learned_heads())}
    names = []
    for kept in sorted(folder.iterdir()):
        if not (files := list_files(kept)):
            continue
        path = read_target(kept) or known.get(kept.name, "")
        size = format_disk(sum(map(measure_file, files)))
        names.append(f"{path_text(Path(path)) if path else 'an unknown model'}: {size}")
    return names


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def measure_file(path: Path) -> int:
    """Return the bytes of a file; 0 if it was deleted meanwhile."""
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def delete_stale_copies(folder: Path) -> None:
    from eaglelocal.hub.heads import requantized_copy

    requantized_copy.delete_stale_copies(folder)


def delete_light_copies(learned: Path) -> None:
    """Delete the copies of learned heads in fewer bits, which are kept elsewhere."""
    from eaglelocal.hub.heads.requantized_copy import find_copies

    copies: Iterator[Path] = (copy for head in learned.rglob("*.gguf") for copy in find_copies(head))
    for copy in copies:
        with suppress(OSError):
            copy.unlink()


def delete_folder(folder: Path) -> None:
    """Delete a folder; tried again where a server writes into it just then. Raises ResourceError."""
    for left in reversed(range(TRIES)):
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            if not left:
                raise ResourceError(
                    f"cannot delete {path_text(folder)}: {error.strerror}", hint="check its permissions"
                ) from error
