"""`eaglelocal heads`: the learned versions of draft heads, and which of them drafts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
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


def heads(target: Target = None, pin: Pin = None, unpin: Unpin = False, as_json: flags.AsJson = False) -> None:
    """List what draft heads have learned, and choose the version that drafts.

    A version is used with `--learn`, or if it is pinned. Version 0 is the head from which learning began.

    \b
    eaglelocal heads
    eaglelocal heads qwen3-8b --pin 2
    eaglelocal heads qwen3-8b --unpin
    """
    from eaglelocal.cli.reports import heads as report

    if pin is not None and unpin:
        raise UsageError("--pin and --unpin contradict each other", hint="leave one of them out")
    output, found = standard_output(), find_learned_heads(target)
    if pin is not None or unpin:
        change_pin(found, pin)
    known = [(each.folder, *each.read()) for each in found]
    if as_json:
        return output.object({"heads": [report.head_object(*each) for each in known]})
    if not known:
        output.message("nothing was learned: `eaglelocal serve --learn` lets a head learn from answers")
    now = time.time()
    for folder, versions, note in known:
        output.lines(report.head_lines(folder, versions, note, now))
    return None


def find_learned_heads(target: str | None) -> list[HeadVersions]:
    """Return the learned heads of a model; None: of all. Raises UsageError or ModelFileError for an unknown model."""
    from eaglelocal.gguf.model_fingerprint import fingerprint_model
    from eaglelocal.hub.heads.versions import list_learned_heads
    from eaglelocal.hub.model_library import locate_reference
    from eaglelocal.hub.target_resolver import find_target

    if target is None:
        return list_learned_heads()
    found = find_target(locate_reference(target, load_settings({}).model_folders), on_progress=None)
    key = fingerprint_model(found.path)
    return [each for each in list_learned_heads() if each.read()[0].target_key == key]


def change_pin(found: list[HeadVersions], number: int | None) -> None:
    """Pin a version of the only head, or with None unpin it. Raises UsageError where several or none are meant."""
    if len(found) != 1:
        names = ", ".join(filter(None, (each.read()[0].target for each in found)))
        problem = f"several heads have learned, for {names}" if found else "no head has learned anything here"
        raise UsageError(problem, hint="eaglelocal heads TARGET --pin N" if found else "eaglelocal serve --learn")
    (head,) = found
    head.pin(number)
    standard_output().message("it drafts from the next start on")
