"""`eaglelocal heads`: the learned versions of draft heads, and which of them drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.amounts import path_text
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.confirm import confirm
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import standard_output
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.versions import HeadVersions

Target = Annotated[
    str | None,
    typer.Argument(metavar="TARGET", help="Only the heads of this model.", autocompletion=complete_on_disk),
]
Pin = Annotated[
    int | None, typer.Option("--pin", metavar="N", min=0, help="Draft with this version, whatever is learned; 0: base.")
]
Unpin = Annotated[bool, typer.Option("--unpin", help="Draft with the current version again.")]
Prune = Annotated[
    bool, typer.Option("--prune", help="Delete the versions whose model or first head is gone or has changed.")
]


def heads(
    target: Target = None,
    pin: Pin = None,
    unpin: Unpin = False,
    prune: Prune = False,
    yes: flags.Yes = False,
    as_json: flags.AsJson = False,
) -> None:
    """List what draft heads have learned, and choose the version that drafts.

    A version is used with `--learn`, or if it is pinned. Version 0 is the head from which learning began.

    \b
    eaglelocal heads
    eaglelocal heads qwen3-8b --pin 2
    eaglelocal heads qwen3-8b --unpin
    eaglelocal heads --prune
    """
    from eaglelocal.cli.reports import heads as report

    if (pin is not None) + unpin + prune > 1:
        raise UsageError("--pin, --unpin and --prune contradict each other", hint="give one of them")
    output, found = standard_output(), find_learned_heads(target)
    if pin is not None or unpin:
        change_pin(found, pin)
    if prune:
        return delete_orphans(found, yes=yes)
    known = [report.KnownHead(each.folder, *each.read(), each.find_orphan_reason()) for each in found]
    if as_json:
        return output.object({"heads": [report.head_object(each) for each in known]})
    if not known:
        output.message("nothing was learned: `eaglelocal serve --learn` lets a head learn from answers")
    now = time.time()
    for each in known:
        output.lines(report.head_lines(each, now))
    if any(each.orphan for each in known):
        output.message("`eaglelocal heads --prune` deletes what drafts for nothing")
    return None


def find_learned_heads(target: str | None) -> list[HeadVersions]:
    """Return the learned heads of a model, and those of an earlier file in its place; None: of all models.

    Raises UsageError or ModelFileError for an unknown model.
    """
    from eaglelocal.gguf.model_fingerprint import fingerprint_model
    from eaglelocal.hub.heads.versions import list_learned_heads
    from eaglelocal.hub.model_library import locate_reference
    from eaglelocal.hub.target_resolver import find_target

    if target is None:
        return list_learned_heads()
    found = find_target(locate_reference(target, load_settings({}).model_folders), on_progress=None)
    key, path = fingerprint_model(found.path), str(found.path)
    return [
        each
        for each in list_learned_heads()
        if (known := each.read()[0]).target_key == key or known.target_path == path
    ]


def change_pin(found: list[HeadVersions], number: int | None) -> None:
    """Pin a version of the only head, or with None unpin it. Raises UsageError where several or none are meant."""
    found = [each for each in found if not each.find_orphan_reason()] or found
    if len(found) != 1:
        names = ", ".join(filter(None, (each.read()[0].target for each in found)))
        problem = f"several heads have learned, for {names}" if found else "no head has learned anything here"
        raise UsageError(problem, hint="eaglelocal heads TARGET --pin N" if found else "eaglelocal serve --learn")
    (head,) = found
    head.pin(number)
    name = "the current version" if number is None else f"version {number}"
    standard_output().message(f"{name} drafts from the next start on")


def delete_orphans(found: Sequence[HeadVersions], *, yes: bool) -> None:
    """Delete the versions that draft for nothing, with their copies and what they were learning."""
    from eaglelocal.cli.forget import delete_folder, delete_light_copies
    from eaglelocal.cli.reports.heads import name_head

    output = standard_output()
    orphans = [(each, reason) for each in found if (reason := each.find_orphan_reason())]
    if not orphans:
        output.message("all learned heads have their model")
        return
    for versions, reason in orphans:
        output.message(f"{path_text(versions.folder)}: {name_head(versions.read()[0])}: {reason}")
    confirm("delete them?", output, yes=yes, default=False)
    for versions, _ in orphans:
        delete_light_copies(versions.folder)
        for work in locations.learning_dir().glob(f"*/{versions.folder.name}"):
            delete_folder(work)
        delete_folder(versions.folder)
    output.message("deleted")
