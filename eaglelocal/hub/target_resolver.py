"""Resolution of a target reference: its file, its header and a label for people.

Finds models on disk: the embedded model, files, models of a hub, named by their repository or catalog entry, and models
derived from these. Downloads nothing. Does not know drafts, except that the embedded model comes with its head.
"""

from __future__ import annotations

import difflib
from dataclasses import field, replace
from pathlib import Path

from eaglelocal import locations
from eaglelocal.catalog.catalog import Catalog, describe_unknown_target, load_catalog
from eaglelocal.catalog.reference import (
    REFERENCE_FORMS,
    DerivedModel,
    EmbeddedModel,
    File,
    OnDisk,
    Profile,
    Reference,
    Repo,
    split_entry,
)
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import make_printable
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.gguf.architectures import read_task
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lora_adapter import is_adapter
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.projector import ARCHITECTURE as PROJECTOR
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.derived_models import DerivedFile, Inflation, Recipe, derive_target, parse_recipe, write_derived
from eaglelocal.hub.hub_cache import check_file, find_cached, list_gguf_names, make_hub_reference
from eaglelocal.hub.inflation.generated_files import Progress, no_progress
from eaglelocal.hub.inflation.inflate import InflatedPair, locate_inflated
from eaglelocal.hub.inflation.inflated_sizes import parse_demo_reference
from eaglelocal.hub.model_library import is_blob

NATIVE = "demo@native"
EXAMPLES = ("demo", NATIVE, "demo@1b", "demo@1b:bf16", "demo@8b:q4_0")
MAX_LABEL_CHARS = 80


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """A target on disk, or a derived target that is made when a run needs it.

    head   the draft head that comes with it, if any
    repo   its hub repository, if any
    made   how it is derived, if it is; its `plan` is None once it is written
    small  the model that it answers like, if it is inflated
    """

    path: Path
    label: str
    info: ModelInfo
    task: ModelTask
    head: Path | None = None
    repo: str = ""
    made: DerivedFile | None = field(default=None, compare=False, repr=False)
    small: FoundTarget | None = field(default=None, compare=False, repr=False)

    @property
    def header(self) -> Header:
        return self.info.header


def find_target(reference: Reference, *, on_progress: Progress | None) -> FoundTarget:
    """Resolve a target reference.

    on_progress  of writing a derived model; None: a model derived from a file is not written

    Raises UsageError if it is unclear, ModelFileError on a bad or missing file, and the errors of deriving it.
    """
    match reference:
        case EmbeddedModel(text) if text == NATIVE:
            target, head = demo_sources()
            return read_target(target, label=NATIVE, head=head)
        case EmbeddedModel(text):
            pair = find_demo(text).write(on_progress or no_progress)
            return read_target(pair.target, label=pair.size.reference, head=pair.head)
        case DerivedModel(source, recipe):
            found = _derive(source, parse_recipe(recipe))
            return found if on_progress is None else write_target(found, on_progress=on_progress)
        case File(path, name):
            check_file(path)
            return read_target(path, label=name)
        case Profile() | Repo():
            catalog = load_catalog()
            if isinstance(reference, Profile) and catalog.find_target(reference.id) is None:
                raise make_unknown_target_error(reference, catalog)
            model = find_cached(locations.hub_cache_dir(), make_hub_reference(reference, catalog))
            return replace(read_target(model.path, label=model.reference), repo=model.repo)


def read_target(path: Path, *, label: str = "", head: Path | None = None) -> FoundTarget:
    header = read_header(path)
    if header.metadata.get("general.architecture") == PROJECTOR:
        hint = f"eaglelocal chat --target MODEL --mmproj {quote_path(path)}"
        raise ModelFileError(f"{path.name} is an image encoder, not a model that can answer", hint=hint)
    if is_adapter(header):
        hint = f"eaglelocal chat --target MODEL --lora {quote_path(path)}"
        raise ModelFileError(f"{path.name} is a LoRA adapter, not a model that can answer", hint=hint)
    info = read_model(header)
    return FoundTarget(path, label or make_label(info.name, path), info, read_task(header), head)


def write_target(target: FoundTarget, *, on_progress: Progress) -> FoundTarget:
    """Return the target; if it is derived and missing, it is written now. Raises as write_derived."""
    if target.made is None:
        return target
    made = write_derived(target.made, on_progress=on_progress)
    return replace(target, info=ModelInfo.from_header(made.header), made=made)


def make_derived_reference(source: OnDisk, recipe: Recipe) -> str:
    """Return the canonical reference of a derived model, for lists."""
    match source:
        case File(path):
            return f"{path.absolute()}@{recipe.text}"
        case Profile(name, quant) | Repo(name, quant):
            return f"{name}:{quant}@{recipe.text}" if quant else f"{name}@{recipe.text}"


def _derive(reference: OnDisk, recipe: Recipe) -> FoundTarget:
    source = find_target(reference, on_progress=None)
    made = derive_target(source.info, recipe, make_derived_reference(reference, recipe))
    return FoundTarget(
        made.path,
        made.label,
        ModelInfo.from_header(made.header),
        read_task(made.header),
        made=made,
        small=source if isinstance(recipe, Inflation) else None,
    )


def demo_sources() -> tuple[Path, Path]:
    """Return the embedded target and head as they are shipped."""
    folder = locations.profiles_dir() / "demo"
    target, head = folder / "guide-target.gguf", folder / "guide-head.gguf"
    for path in (target, head):
        if not path.is_file():
            raise ModelFileError(
                f"{path.name} of the embedded model is missing", hint="pip install --force-reinstall eaglelocal"
            )
    return target, head


def find_demo(reference: str) -> InflatedPair:
    """Return the files of `demo` in a size, written or not. Raises UsageError on another reference."""
    return locate_inflated(parse_demo_reference(reference), demo_sources(), locations.generated_models_dir())


def make_label(name: str, path: Path) -> str:
    """Return the file's name as it can be printed; for a blob, whose name is a digest, the name in its header."""
    if is_blob(path):
        return make_printable(name).strip()[:MAX_LABEL_CHARS] or f"the blob {path.name[:19]}"
    return make_printable(path.name)


def make_unknown_target_error(entry: Profile, catalog: Catalog) -> UsageError:
    """Return the error for an entry that the catalog does not have, with the nearest name as its hint."""
    word, suffix = split_entry(entry.id, entry.quant)
    names = [*EXAMPLES, *catalog.targets, *list_gguf_names(Path())]
    near = difflib.get_close_matches(word, filter(str.isprintable, names), n=1)
    guess = f"did you mean `{catalog.name_with_type(near[0], suffix)}`? " if near else ""
    return UsageError(describe_unknown_target(entry.id, entry.quant), hint=f"{guess}use {REFERENCE_FORMS}")
