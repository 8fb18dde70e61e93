"""`eaglelocal rm`: remove a model from disk, after showing what that frees and what it does not."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eaglelocal import locations
from eaglelocal.catalog.reference import GGUF_SUFFIX
from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_on_disk
from eaglelocal.cli.kept_folders import format_size, list_files
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import confirm, path_text, standard_output
from eaglelocal.core.atomic_file import make_absolute
from eaglelocal.core.byte_sizes import format_disk
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ModelFileError, ResourceError, UsageError

if TYPE_CHECKING:
    from eaglelocal.catalog.reference import Reference
    from eaglelocal.hub.heads.versions import HeadVersions
    from eaglelocal.hub.hub_cache import Partial
    from eaglelocal.hub.removal import Removal
    from eaglelocal.training.training_folder import TrainingFolder


MAX_KEPT_SHOWN = 5


def rm(
    ref: Annotated[
        str, typer.Argument(metavar="REF", help="Model as `eaglelocal ls` shows it.", autocompletion=complete_on_disk)
    ],
    yes: flags.Yes = False,
) -> None:
    """Remove a model from this disk. What its heads have learned stays, and is named with the command that deletes it.

    \b
    eaglelocal rm user/repo-GGUF:Q4_K_M
    eaglelocal rm demo@1b:bf16 --yes
    """
    from eaglelocal.hub.heads.requantized_copy import delete_stale_copies
    from eaglelocal.hub.removal import remove

    output = standard_output()
    removal = find_removal(ref)
    for line in removal_lines(removal):
        output.message(line)
    confirm(f"free {format_disk(removal.freed_bytes)}?", output, yes=yes, default=False)
    removal = find_removal(ref)  # a download may have started before the answer
    left = find_leftovers(removal.paths)
    remove(removal)
    freed_bytes = removal.freed_bytes + delete_stale_copies(locations.light_heads_dir())
    output.message(f"freed {format_disk(freed_bytes)}")
    for line in leftover_lines(left):
        output.message(line)


def find_removal(reference: str) -> Removal:
    """Return what to remove for a reference. Raises UsageError, or ModelFileError if it is not on disk.

    Raises ResourceError if another process is writing it.
    """
    from eaglelocal.catalog.reference import DerivedModel, EmbeddedModel, File, parse_reference
    from eaglelocal.hub.model_library import locate_reference

    parsed = parse_reference(reference)
    match parsed:
        case EmbeddedModel():
            return _find_generated(reference)
        case DerivedModel():
            return _find_derived(locate_reference(reference, load_settings({}).model_folders))
        case File(path):
            return _find_imported(path)
        case _:
            return _find_in_hub_cache(reference)


def _find_generated(reference: str) -> Removal:
    """Return the generated files of an embedded model, including those of older versions."""
    from eaglelocal.hub.inflation.inflated_sizes import parse_demo_reference
    from eaglelocal.hub.inventory import list_inflated, make_demo_reference
    from eaglelocal.hub.removal import plan_file_removal
    from eaglelocal.hub.target_resolver import NATIVE

    if reference == NATIVE:
        raise UsageError("the embedded model is part of eaglelocal", hint="pip uninstall eaglelocal")
    label = make_demo_reference(parse_demo_reference(reference))
    paths = [path for entry in list_inflated() if entry.reference == label for path in entry.paths]
    if not paths:
        raise ModelFileError(f"{label} is not on disk", hint="eaglelocal ls")
    return plan_file_removal(f"{label}, which is written again when it is used", paths)


def _find_derived(reference: Reference) -> Removal:
    """Return the file of a model that was made of another one, with its heads; the source need not exist."""
    from eaglelocal.catalog.reference import DerivedModel
    from eaglelocal.hub.derived_models import parse_recipe
    from eaglelocal.hub.inventory import list_derived
    from eaglelocal.hub.removal import plan_file_removal
    from eaglelocal.hub.target_resolver import make_derived_reference

    assert isinstance(reference, DerivedModel)
    label = make_derived_reference(reference.source, parse_recipe(reference.recipe))
    paths = [path for entry in list_derived() if entry.reference == label for path in entry.paths]
    if not paths:
        raise ModelFileError(f"{label} is not on disk", hint="eaglelocal ls")
    return plan_file_removal(f"{label}, which is written again when it is used; its source stays", paths)


def _find_imported(path: Path) -> Removal:
    from eaglelocal.hub.inventory import TRAINED, list_imported
    from eaglelocal.hub.removal import plan_file_removal

    if not path.exists():
        raise ModelFileError(f"{path} does not exist", hint="eaglelocal ls")
    if _is_unfinished(path):
        return plan_file_removal(f"{path_text(path)}, the rest of an unfinished import", [path])
    if folder := _find_training_folder(path):
        return plan_file_removal(f"{path_text(path)}, answers of {folder.target or 'a target'}", folder.paths)
    head = next((entry for entry in list_imported() if _link_path(entry.path) == _link_path(path)), None)
    if head is None:
        raise make_foreign_error(path_text(path), path)
    return plan_file_removal(f"{path_text(path)}, {'a' if head.origin == TRAINED else 'an'} {head.origin}", [path])


def make_foreign_error(name: str, path: Path) -> UsageError:
    """Return the error for a file that eaglelocal did not write, with the way in which its owner removes it."""
    from eaglelocal.hub.model_library import LM_STUDIO, OLLAMA, list_library

    models = list_library(load_settings({}).model_folders)
    model = next((one for one in models if one.path.resolve() == path.resolve()), None)
    if model is not None and model.place == OLLAMA:
        return UsageError(f"{name} is a model of Ollama", hint=f"ollama rm {quote_path(model.name)}")
    if model is not None and model.place == LM_STUDIO:
        return UsageError(f"{name} is a model of LM Studio", hint="delete it in LM Studio, under My Models")
    return UsageError(f"{name} was not written by eaglelocal", hint=f"rm {quote_path(path)}")


def _find_training_folder(path: Path) -> TrainingFolder | None:
    """Return the working folder of `train` at this path, or None. Raises ResourceError if it is in use."""
    from eaglelocal.training.training_folder import list_folders

    folder = next((one for one in list_folders() if _link_path(one.folder) == _link_path(path)), None)
    if folder is not None and folder.is_in_use:
        raise ResourceError(f"another process trains in {path_text(path)}", hint="stop it first, or wait for it")
    return folder


def _is_unfinished(path: Path) -> bool:
    """Return whether the file is left from an import that was stopped. Raises ResourceError if it is in use."""
    from eaglelocal.hub.heads.head_store import find_unfinished_heads

    head = next((head for head in find_unfinished_heads() if _link_path(head.path) == _link_path(path)), None)
    if head is not None and head.is_being_written:
        raise ResourceError(f"another process is writing {path_text(path)}", hint="stop it first, or wait for it")
    return head is not None


def _link_path(path: Path) -> Path:
    """Return the absolute path of the file, or of the link itself if it is one."""
    return path.parent.resolve() / path.name


def _find_in_hub_cache(reference: str) -> Removal:
    """Return a model of the hub's cache, and its repository's unfinished downloads; these alone if it has no model."""
    from eaglelocal.catalog.reference import File
    from eaglelocal.hub.hub_cache import find_cached, find_repo_partials, resolve_hub_reference
    from eaglelocal.hub.model_library import locate_reference
    from eaglelocal.hub.removal import plan_removal

    folders = load_settings({}).model_folders
    cache = locations.hub_cache_dir()
    if isinstance(located := locate_reference(reference, folders), File):
        raise make_foreign_error(reference, located.path)
    try:
        wanted = resolve_hub_reference(reference)
    except UsageError as problem:
        raise UsageError(f"there is no model {reference!r} on disk", hint="eaglelocal ls") from problem
    partials = [] if wanted.quant else [partial for repo in wanted.repos for partial in find_repo_partials(cache, repo)]
    try:
        model = find_cached(cache, wanted)
    except ModelFileError as problem:
        if not partials:
            raise ModelFileError(problem.message, hint="eaglelocal ls") from None
        check_unused(partials, cache)
        return plan_removal(cache, [], [partial for partial in partials if partial.repo == partials[0].repo])
    unfinished = [partial for partial in partials if partial.repo == model.repo]
    check_unused(unfinished, cache)
    return plan_removal(cache, [model], unfinished)


def check_unused(partials: Sequence[Partial], cache: Path) -> None:
    """Raise ResourceError if one of the partial files is being downloaded."""
    if not partials:
        return
    from eaglelocal.hub.client_settings import prepare_client

    prepare_client(connects=False)
    from eaglelocal.hub.download import is_being_downloaded
    from eaglelocal.hub.removal import parse_etag

    for partial in partials:
        if is_being_downloaded(cache, partial.repo, parse_etag(partial)):
            raise ResourceError(f"another process is fetching {partial.repo}", hint="stop it first, or wait for it")


def removal_lines(removal: Removal) -> list[str]:
    lines = [removal.what]
    if removal.repo_folder is not None:
        revisions = f", in {', '.join(removal.revisions)}" if removal.revisions else ""
        lines.append(f"  {path_text(Path(removal.repo_folder))}{revisions}")
        lines.append("  from the hub's cache: other programs can no longer use it")
    kept = [f"  kept: {name} has the same bytes" for names in removal.kept.values() for name in names]
    return [*lines, *kept[:MAX_KEPT_SHOWN]]


# ---- model leftovers: find what stays when a model is removed: versions that its heads have learned, and answers
# that were kept to learn
#
# Both are expensive to make again, so `rm` leaves them; it says so, with the commands that delete them.
@dataclass(frozen=True, slots=True)
class Leftovers:
    """The learned heads and the folders of kept answers of a model."""

    heads: tuple[HeadVersions, ...] = ()
    answers: tuple[Path, ...] = ()


def find_leftovers(removed: Sequence[Path]) -> Leftovers:
    """Return what belongs to files that are to be removed: to models by their content, to heads by their paths."""
    from eaglelocal.gguf.model_info import fingerprint_model
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
    """Yield files that became useless by the removal; nothing of a model that is elsewhere on this disk too."""
    from eaglelocal.cli.heads import find_orphans, fingerprint_models

    if not left.heads and not left.answers:
        return
    if orphans := find_orphans(left.heads, frozenset()):
        size = format_size([head.folder for head in orphans])
        yield f"what its heads have learned stays, {size}: `eaglelocal heads --prune` deletes it"
    present = fingerprint_models() if left.answers else frozenset()
    if answers := [folder for folder in left.answers if folder.name not in present]:
        yield f"answers kept to learn from stay, {format_size(answers)}: {_name_deletion(answers)}"


def _name_deletion(answers: Sequence[Path]) -> str:
    """Return which command deletes these folders and as little else as possible."""
    from eaglelocal.learning.kept_answers import read_target

    paths = sorted({read_target(folder) for folder in answers})
    if not all(paths):  # nobody noted of which file they are
        return "`eaglelocal forget` deletes those of all models, and the texts and caches of conversations"
    commands = " and ".join(f"`{shlex.join(['eaglelocal', 'forget', path])}`" for path in paths)
    return f"{commands} {'deletes' if len(paths) == 1 else 'delete'} them"
