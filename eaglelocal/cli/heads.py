"""`eaglelocal heads`: the learned versions of draft heads, and which of them drafts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.kept_folders import delete_folder, delete_light_copies
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import confirm, path_text, standard_output
from eaglelocal.core.atomic_file import make_absolute
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.versions import HeadVersions


def heads(
    target: Annotated[
        str | None,
        typer.Argument(metavar="TARGET", help="Only the heads of this model.", autocompletion=complete_on_disk),
    ] = None,
    pin: Annotated[
        int | None,
        typer.Option("--pin", metavar="N", min=0, help="Draft with this version, whatever is learned; 0: base."),
    ] = None,
    unpin: Annotated[bool, typer.Option("--unpin", help="Draft with the current version again.")] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete the versions whose model or first head is gone or has changed.")
    ] = False,
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

    check_flags(pin=pin, unpin=unpin, prune=prune, yes=yes, as_json=as_json)
    output, (found, models) = standard_output(), find_learned_heads(target)
    if pin is not None or unpin:
        change_pin(found, pin, models)
    if prune:
        return delete_orphans(found, models, yes=yes)
    orphans = find_orphans(found, models)
    known = [report.KnownHead(each.folder, *each.read(), orphans.get(each, ""), each.find_doubt()) for each in found]
    if as_json:
        return output.object({"heads": [report.head_object(each) for each in known]})
    if not known:
        output.message("nothing was learned: `eaglelocal serve --learn` lets a head learn from answers")
    now = time.time()
    for each in known:
        output.lines(report.head_lines(each, now))
    if orphans:
        output.message("`eaglelocal heads --prune` deletes what drafts for nothing")
    return None


def check_flags(*, pin: int | None, unpin: bool, prune: bool, yes: bool, as_json: bool) -> None:
    """Raise UsageError for flags that do not belong together."""
    if (pin is not None) + unpin + prune > 1:
        raise UsageError("--pin, --unpin and --prune contradict each other", hint="give one of them")
    if prune and as_json:
        raise UsageError("--prune and --json contradict each other", hint="eaglelocal heads --json")
    if yes and not prune:
        raise UsageError("--yes confirms --prune, which is missing", hint="eaglelocal heads --prune --yes")


def find_learned_heads(target: str | None) -> tuple[list[HeadVersions], frozenset[str]]:
    """Return the learned heads of a model, and those of an earlier file in its place; None: of all models.

    With them comes the model's fingerprint. Raises UsageError or ModelFileError for an unknown model.
    """
    from eaglelocal.gguf.model_info import fingerprint_model
    from eaglelocal.hub.heads.versions import list_learned_heads
    from eaglelocal.hub.model_library import locate_reference
    from eaglelocal.hub.target_resolver import find_target

    if target is None:
        return list_learned_heads(), frozenset()
    found = find_target(locate_reference(target, load_settings({}).model_folders), on_progress=None)
    key, path = fingerprint_model(found.path), str(make_absolute(found.path))
    heads = [
        each
        for each in list_learned_heads()
        if (known := each.read()[0]).target_key == key or known.target_path == path
    ]
    return heads, frozenset({key})


def find_orphans(found: Sequence[HeadVersions], models: frozenset[str]) -> dict[HeadVersions, str]:
    """Return the heads that cannot draft, each with the reason: no model on this disk belongs to them.

    models  fingerprints of some models; others are computed only if a head seems to be an orphan
    """
    if not any(each.find_orphan_reason(models) for each in found):
        return {}
    known = models | fingerprint_models()
    return {each: reason for each in found if (reason := each.find_orphan_reason(known))}


def fingerprint_models() -> frozenset[str]:
    """Return the fingerprints of the models in the hub's cache, of LM Studio and Ollama, and in the user's folders."""
    from eaglelocal.gguf.model_info import fingerprint_model
    from eaglelocal.hub.hub_cache import list_models
    from eaglelocal.hub.model_library import list_library

    keys: set[str] = set()
    paths = [model.path for model in list_models(locations.hub_cache_dir())]
    paths += [model.path for model in list_library(load_settings({}).model_folders)]
    for path in paths:
        with suppress(OSError):
            keys.add(fingerprint_model(path))
    return frozenset(keys)


def change_pin(found: list[HeadVersions], number: int | None, models: frozenset[str]) -> None:
    """Pin a version of the only head, or with None unpin it. Raises UsageError where several or none are meant."""
    orphans = find_orphans(found, models)
    found = [each for each in found if each not in orphans] or found
    if len(found) != 1:
        names = ", ".join(filter(None, (each.read()[0].target for each in found)))
        problem = f"several heads have learned, for {names}" if found else "no head has learned anything here"
        raise UsageError(problem, hint="eaglelocal heads TARGET --pin N" if found else "eaglelocal serve --learn")
    (head,) = found
    head.pin(number)
    name = "the current version" if number is None else f"version {number}"
    standard_output().message(f"{name} drafts from the next start on")


def delete_orphans(found: Sequence[HeadVersions], models: frozenset[str], *, yes: bool) -> None:
    """Delete the versions that draft for nothing, with their copies and what they were learning."""
    from eaglelocal.cli.reports.heads import name_head

    output = standard_output()
    orphans = find_orphans(found, models)
    if not orphans:
        output.message("all learned heads have their model")
        return
    for versions, reason in orphans.items():
        output.message(f"{path_text(versions.folder)}: {name_head(versions.read()[0])}: {reason}")
    output.message("versions of a model or head that was moved find it again once it is loaded: then leave them")
    confirm("delete them?", output, yes=yes, default=False)
    lost = find_orphans(list(orphans), models)  # again: one may have been loaded meanwhile
    for versions in lost:
        delete_light_copies(versions.folder)
        for work in locations.learning_dir().glob(f"*/{versions.folder.name}"):
            delete_folder(work)
        delete_folder(versions.folder)
    output.message("deleted" if lost else "nothing was deleted: all have their model again")
