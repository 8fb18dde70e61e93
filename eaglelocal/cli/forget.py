"""`eaglelocal forget`: delete what servers and chats have kept of questions and answers, and learned heads if asked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.output import Output, confirm, path_text, standard_output
from eaglelocal.core.amounts import count_noun
from eaglelocal.errors import UsageError


def forget(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="Only the answers that were kept to learn from this model.",
            autocompletion=complete_on_disk,
        ),
    ] = None,
    heads: Annotated[bool, typer.Option("--heads", help="Delete the learned versions of heads too.")] = False,
    yes: flags.Yes = False,
) -> None:
    """Delete texts kept on disk to draft or learn from.

    The caches of conversations are deleted too. Saved conversations, models and heads stay; --heads deletes the
    learned versions of heads too. A server that runs goes on with what it has in memory.

    \b
    eaglelocal forget
    eaglelocal forget qwen3-8b
    eaglelocal forget --heads --yes
    """
    from eaglelocal.cli.deletion import delete_folder, delete_light_copies, list_files
    from eaglelocal.hub.heads.requantized_copy import delete_stale_copies

    output, learned = standard_output(), locations.learned_dir()
    if target is not None:
        if heads:
            what = f"--heads and {target} contradict each other: --heads is for all models"
            raise UsageError(what, hint=shlex.join(["eaglelocal", "forget", target]))
        return forget_answers(target, output, yes=yes)
    kept = (locations.lookups_dir(), locations.conversation_cells_dir(), locations.learning_dir())
    folders = [folder for folder in kept if list_files(folder)]
    if list_files(learned):
        if heads:
            folders.append(learned)
        else:
            output.message(f"{path_text(learned)}: learned heads stay; `eaglelocal forget --heads` deletes them")
    if not folders:
        return output.message("nothing is kept")
    for folder in folders:
        output.message(describe_folder(folder))
    confirm("delete them?", output, yes=yes, default=False)
    if learned in folders:
        delete_light_copies(learned)
    for folder in folders:
        delete_folder(folder)
    if learned in folders:
        delete_stale_copies(locations.light_heads_dir())  # of versions that were deleted before
    return output.message("deleted")


def forget_answers(target: str, output: Output, *, yes: bool) -> None:
    """Delete the answers of one model that were kept to learn from, and the learning in progress."""
    from eaglelocal.cli.deletion import delete_folder, find_answers, format_size

    folders = find_answers(target)
    if not folders:
        output.message(f"no answers of {target} are kept")
        return
    output.message(f"answers of {target} to learn from, {format_size(folders)}")
    confirm("delete them?", output, yes=yes, default=False)
    for folder in folders:
        delete_folder(folder)
    output.message("deleted")


def describe_folder(folder: Path) -> str:
    from eaglelocal.cli.deletion import format_size, list_files

    files, size = list_files(folder), format_size([folder])
    if folder == locations.learned_dir():
        return f"{path_text(folder)}: learned heads, {size}"
    if folder == locations.conversation_cells_dir():
        return f"{path_text(folder)}: caches of {count_noun(len(files), 'conversation')}, {size}"
    if folder == locations.learning_dir():
        owners = {path.parent.name for path in files if path.parent.parent.name == "answers"}
        names = ", ".join(name_models(folder))
        return f"{path_text(folder)}: answers of {count_noun(len(owners), 'key')} to learn from, {size} ({names})"
    return f"{path_text(folder)}: texts of {count_noun(len(files), 'key')}, {size}"


def name_models(folder: Path) -> list[str]:
    """Return the model files whose answers are kept, with the amount kept of each."""
    from eaglelocal.cli.deletion import format_size, list_files
    from eaglelocal.hub.heads.versions import list_learned_heads
    from eaglelocal.learning.kept_answers import read_target

    known = {each.target_key: each.target_path for each in (head.read()[0] for head in list_learned_heads())}
    names = []
    for kept in sorted(folder.iterdir()):
        if list_files(kept):
            path = read_target(kept) or known.get(kept.name, "")
            names.append(f"{path_text(Path(path)) if path else 'an unknown model'}: {format_size([kept])}")
    return names
