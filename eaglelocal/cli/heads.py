"""`eaglelocal heads`: the learned versions of draft heads, and which of them drafts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eaglelocal import locations
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import confirm, path_text, standard_output
from eaglelocal.core.amounts import count_noun, format_age
from eaglelocal.core.atomic_file import make_absolute
from eaglelocal.core.records import dataclass
from eaglelocal.errors import UsageError

if TYPE_CHECKING:
    from eaglelocal.hub.heads.version_records import HeadVersion, LearnedFrom, VersionList
    from eaglelocal.hub.heads.versions import HeadVersions


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsFlags:
    """The argument and flags of `heads`."""

    target: str | None = argument("TARGET", "Only the heads of this model.", complete_on_disk, default=None)
    pin: int | None = flag(None, "N", "Draft with this version, whatever is learned; 0: base.", min=0)
    unpin: bool = flag(False, "", "Draft with the current version again.")
    prune: bool = flag(False, "", "Delete the versions whose model or first head is gone or has changed.")
    yes: flags.Yes = False
    as_json: flags.AsJson = False

    def check(self) -> None:
        """Raise UsageError for flags that do not belong together."""
        if (self.pin is not None) + self.unpin + self.prune > 1:
            raise UsageError("--pin, --unpin and --prune contradict each other", hint="give one of them")
        if self.prune and self.as_json:
            raise UsageError("--prune and --json contradict each other", hint="eaglelocal heads --json")
        if self.yes and not self.prune:
            raise UsageError("--yes confirms --prune, which is missing", hint="eaglelocal heads --prune --yes")


@flags.takes()
def heads(given: HeadsFlags) -> None:
    """List what heads have learned, and choose the one that drafts.

    A version is used with `--learn`, or if it is pinned. Version 0 is the head from which learning began.

    \b
    eaglelocal heads
    eaglelocal heads qwen3-8b --pin 2
    eaglelocal heads qwen3-8b --unpin
    eaglelocal heads --prune
    """
    from eaglelocal.cli.deletion import find_orphans

    given.check()
    output, (found, models) = standard_output(), find_learned_heads(given.target)
    if given.pin is not None or given.unpin:
        change_pin(found, given.pin, models)
    if given.prune:
        return delete_orphans(found, models, yes=given.yes)
    orphans = find_orphans(found, models)
    known = [KnownHead(each.folder, *each.read(), orphans.get(each, ""), each.find_doubt()) for each in found]
    if given.as_json:
        return output.object({"heads": [head_object(each) for each in known]})
    if not known:
        output.message("nothing was learned: `eaglelocal serve --learn` lets a head learn from answers")
    now = time.time()
    for each in known:
        output.lines(head_lines(each, now))
    if orphans:
        output.message("`eaglelocal heads --prune` deletes what drafts for nothing")
    return None


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


def change_pin(found: list[HeadVersions], number: int | None, models: frozenset[str]) -> None:
    """Pin a version of the only head, or with None unpin it. Raises UsageError where several or none are meant."""
    from eaglelocal.cli.deletion import find_orphans

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
    from eaglelocal.cli.deletion import delete_folder, delete_light_copies, find_orphans

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


# ---- the report
@dataclass(frozen=True, slots=True)
class KnownHead:
    """The versions of a head, and where they are.

    note    why their record cannot be read
    orphan  why they cannot draft
    doubt   why it is unknown whether they can draft
    """

    folder: Path
    versions: VersionList
    note: str = ""
    orphan: str = ""
    doubt: str = ""


def name_head(versions: VersionList) -> str:
    return f"{versions.target or 'an unknown model'}, {versions.base or 'a head'}"


def head_lines(head: KnownHead, now: float) -> Iterator[str]:
    """Yield the versions of a head, the newest first. A star marks the one that drafts, if that is known.

    now  seconds since 1970
    """
    from eaglelocal.hub.heads.version_records import BASE

    versions = head.versions
    yield name_head(versions)
    if head.orphan:
        yield f"  drafts for nothing: {head.orphan}"
    elif doubt := head.note or head.doubt:
        yield f"  unknown whether it drafts: {doubt}"
    used = None if head.orphan or head.note or head.doubt else versions.used
    for version in reversed(versions.versions):
        age = format_age(now - version.made_at)
        made = "made now" if age == "now" else f"made {age} ago"
        yield version_line(version.number, f"{version.state}, {made}", used, versions.pinned)
        if (figures := version.figures) is not None:
            accepted = f"{figures.acceptance:.1%} of its first tokens accepted, {figures.predecessor:.1%} before"
            yield f"    {accepted} ({figures.num_tokens} tokens that it did not learn from)"
        yield f"    {learned_text(version.learned_from)}"
        if version.why:
            yield f"    {version.why}"
    yield version_line(BASE, "the head from which learning began", used, versions.pinned)
    yield f"  {path_text(head.folder)}"


def version_line(number: int, what: str, used: int | None, pinned: int | None) -> str:
    return f"{'*' if number == used else ' '} version {number}  {what}{', pinned' if number == pinned else ''}"


def learned_text(learned: LearnedFrom) -> str:
    """Return the answers that a version learned from: numbers and kinds, never text."""
    total = sum(learned.kinds.values())
    kinds = sorted(learned.kinds.items(), key=lambda kind: -kind[1])
    shares = ", ".join(f"{kind} {count / total:.0%}" for kind, count in kinds if count)
    keys = f" of {learned.num_owners} keys" if learned.num_owners > 1 else ""
    answers = f"learned from {count_noun(learned.num_answers, 'answer')}{keys}"
    return f"{answers}, {learned.num_tokens} tokens" + (f": {shares}" if shares else "")


def head_object(head: KnownHead) -> dict[str, object]:
    versions = head.versions
    return {
        "target": versions.target,
        "base": versions.base,
        "target_path": versions.target_path,
        "base_path": versions.base_path,
        "used": versions.used,
        "current": versions.current,
        "pinned": versions.pinned,
        "folder": str(head.folder),
        "note": head.note,
        "orphan": head.orphan,
        "unknown": "" if head.orphan else head.note or head.doubt,
        "versions": [version_object(version, head.folder) for version in versions.versions],
    }


def version_object(version: HeadVersion, folder: Path) -> dict[str, object]:
    learned, figures = version.learned_from, version.figures
    return {
        "number": version.number,
        "why": version.why,
        "made_at": version.made_at,
        "path": str(folder / version.file_name),
        "state": str(version.state),
        "answers": learned.num_answers,
        "tokens": learned.num_tokens,
        "owners": learned.num_owners,
        "kinds": dict(learned.kinds),
        "acceptance": None if figures is None else figures.acceptance,
        "acceptance_before": None if figures is None else figures.predecessor,
        "judged_tokens": None if figures is None else figures.num_tokens,
    }
