"""Find and delete the files of models, and what heads and learning have kept of them; for `rm`, `forget`, `heads`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.reference import GGUF_SUFFIX, DerivedModel, EmbeddedModel, File, parse_reference
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import path_text
from eaglelocal.core.amounts import format_disk
from eaglelocal.core.atomic_file import make_absolute
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ModelFileError, ResourceError, UsageError
from eaglelocal.gguf.model_info import fingerprint_model
from eaglelocal.hub.client_settings import prepare_client
from eaglelocal.hub.derived_models import parse_recipe
from eaglelocal.hub.heads.head_store import find_unfinished_heads
from eaglelocal.hub.heads.requantized_copy import find_copies
from eaglelocal.hub.heads.versions import HeadVersions, list_learned_heads
from eaglelocal.hub.hub_cache import Partial, find_cached, find_repo_partials, list_models, resolve_hub_reference
from eaglelocal.hub.inflation.inflated_sizes import parse_demo_reference
from eaglelocal.hub.inventory import (
    TRAINED,
    InventoryEntry,
    list_derived,
    list_imported,
    list_inflated,
)
from eaglelocal.hub.model_library import LM_STUDIO, OLLAMA, list_library, locate_reference
from eaglelocal.hub.removal import Removal, parse_etag, plan_file_removal, plan_removal
from eaglelocal.hub.target_resolver import NATIVE, find_target, make_derived_reference
from eaglelocal.learning.kept_answers import read_target
from eaglelocal.training.training_folder import TrainingFolder, list_folders

TRIES = 5  # to delete a folder


def find_removal(reference: str) -> Removal:
    """Return what to remove for a reference. Raises UsageError, or ModelFileError if it is not on disk.

    Raises ResourceError if another process is writing it.
    """
    parsed = parse_reference(reference)
    match parsed:
        case EmbeddedModel(text):
            return _find_generated(text)
        case DerivedModel():
            located = locate_reference(reference, load_settings({}).model_folders)
            assert isinstance(located, DerivedModel)
            return _find_derived(located)
        case File(path):
            return _find_imported(path)
        case _:
            return _find_in_hub_cache(reference)


def _find_generated(reference: str) -> Removal:
    """Return the generated files of an embedded model, including those of older versions."""
    if reference == NATIVE:
        raise UsageError("the embedded model is part of eaglelocal", hint="pip uninstall eaglelocal")
    label = parse_demo_reference(reference).reference
    return _find_written(label, list_inflated(), "which is written again when it is used")


def _find_derived(reference: DerivedModel) -> Removal:
    """Return the file of a model that was made of another one, with its heads; the source need not exist."""
    label = make_derived_reference(reference.source, parse_recipe(reference.recipe))
    return _find_written(label, list_derived(), "which is written again when it is used; its source stays")


def _find_written(label: str, entries: Iterable[InventoryEntry], about: str) -> Removal:
    paths = [path for entry in entries if entry.reference == label for path in entry.paths]
    if not paths:
        raise ModelFileError(f"{label} is not on disk", hint="eaglelocal ls")
    return plan_file_removal(f"{label}, {about}", paths)


def _find_imported(path: Path) -> Removal:
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
    models = list_library(load_settings({}).model_folders)
    model = next((one for one in models if one.path.resolve() == path.resolve()), None)
    if model is not None and model.place == OLLAMA:
        return UsageError(f"{name} is a model of Ollama", hint=f"ollama rm {quote_path(model.name)}")
    if model is not None and model.place == LM_STUDIO:
        return UsageError(f"{name} is a model of LM Studio", hint="delete it in LM Studio, under My Models")
    return UsageError(f"{name} was not written by eaglelocal", hint=f"rm {quote_path(path)}")


def _find_training_folder(path: Path) -> TrainingFolder | None:
    """Return the working folder of `train` at this path, or None. Raises ResourceError if it is in use."""
    folder = next((one for one in list_folders() if _link_path(one.folder) == _link_path(path)), None)
    if folder is not None and folder.is_in_use:
        raise ResourceError(f"another process trains in {path_text(path)}", hint="stop it first, or wait for it")
    return folder


def _is_unfinished(path: Path) -> bool:
    """Return whether the file is left from an import that was stopped. Raises ResourceError if it is in use."""
    head = next((head for head in find_unfinished_heads() if _link_path(head.path) == _link_path(path)), None)
    if head is not None and head.is_being_written:
        raise ResourceError(f"another process is writing {path_text(path)}", hint="stop it first, or wait for it")
    return head is not None


def _link_path(path: Path) -> Path:
    """Return the absolute path of the file, or of the link itself if it is one."""
    return path.parent.resolve() / path.name


def _find_in_hub_cache(reference: str) -> Removal:
    """Return a model of the hub's cache, and its repository's unfinished downloads; these alone if it has no model."""
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
    prepare_client(connects=False)
    from eaglelocal.hub.download import is_being_downloaded

    for partial in partials:
        if is_being_downloaded(cache, partial.repo, parse_etag(partial)):
            raise ResourceError(f"another process is fetching {partial.repo}", hint="stop it first, or wait for it")


# ---- what belongs to models: learned versions of heads, and answers that were kept to learn
#
# Both are expensive to make again, so `rm` leaves them; it says so, with the commands that delete them.
@dataclass(frozen=True, slots=True)
class Leftovers:
    """The learned heads and the folders of kept answers of a model."""

    heads: tuple[HeadVersions, ...] = ()
    answers: tuple[Path, ...] = ()


def find_leftovers(removed: Sequence[Path]) -> Leftovers:
    """Return what belongs to files that are to be removed: to models by their content, to heads by their paths."""
    learned, kept = list_learned_heads(), locations.learning_dir()
    if not learned and not kept.is_dir():
        return Leftovers()
    keys: set[str] = set()
    for path in removed:
        if path.suffix == GGUF_SUFFIX:
            with suppress(OSError):
                keys.add(fingerprint_model(path))
    paths = {str(make_absolute(path)) for path in removed}
    heads = []
    for each in learned:
        known, _ = each.read()
        if known.target_key in keys or known.target_path in paths or known.base_path in paths:
            heads.append(each)
    answers = [kept / key for key in sorted(keys) if list_files(kept / key)]
    return Leftovers(tuple(heads), tuple(answers))


def leftover_lines(left: Leftovers) -> Iterator[str]:
    """Yield files that became useless by the removal; nothing of a model that is elsewhere on this disk too."""
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
    paths = sorted({read_target(folder) for folder in answers})
    if not all(paths):  # their model file is unknown
        return "`eaglelocal forget` deletes those of all models, and the texts and caches of conversations"
    commands = " and ".join(f"`{shlex.join(['eaglelocal', 'forget', path])}`" for path in paths)
    return f"{commands} {'deletes' if len(paths) == 1 else 'delete'} them"


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
    keys: set[str] = set()
    paths = [model.path for model in list_models(locations.hub_cache_dir())]
    paths += [model.path for model in list_library(load_settings({}).model_folders)]
    for path in paths:
        with suppress(OSError):
            keys.add(fingerprint_model(path))
    return frozenset(keys)


def find_answers(target: str) -> list[Path]:
    """Return the folders of answers of a model, or of a file that was at this path when it gave them.

    Raises UsageError or ModelFileError for a model that is not on this disk and has no answers here.
    """
    kept = [folder for folder in locations.learning_dir().glob("*") if list_files(folder)]
    if not kept:
        return []
    try:
        paths = locate_files(target)
    except ModelFileError:
        gone = str(make_absolute(Path(target)))
        if of_gone := [folder for folder in kept if read_target(folder) == gone]:
            return of_gone
        raise
    keys, names = {fingerprint_model(path) for path in paths}, {str(make_absolute(path)) for path in paths}
    return [folder for folder in kept if folder.name in keys or read_target(folder) in names]


def locate_files(target: str) -> list[Path]:
    """Return the model's files on this disk, without making one. Raises UsageError or ModelFileError."""
    reference = locate_reference(target, load_settings({}).model_folders)
    is_made = isinstance(reference, DerivedModel) or (isinstance(reference, EmbeddedModel) and target != NATIVE)
    if is_made:
        return [path for path in find_removal(target).paths if path.suffix == GGUF_SUFFIX]
    return [find_target(reference, on_progress=None).path]


# ---- folders
def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def format_size(folders: Iterable[Path]) -> str:
    total = 0
    for path in (path for folder in folders for path in list_files(folder)):
        with suppress(FileNotFoundError):  # deleted meanwhile
            total += path.stat().st_size
    return format_disk(total)


def delete_light_copies(learned: Path) -> None:
    """Delete the copies of learned heads in fewer bits, which are kept elsewhere."""
    for head in learned.rglob("*.gguf"):
        for copy in find_copies(head):
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
                what = f"cannot delete {path_text(folder)}: {error.strerror}"
                raise ResourceError(what, hint="check its permissions") from error
