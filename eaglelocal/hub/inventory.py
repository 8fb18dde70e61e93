"""The models on this disk: embedded, derived, imported, and from hubs; each described from its header.

Models of LM Studio, of Ollama and in the user's own folders come last. A header that cannot be read becomes an
entry's problem.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_to_bytes

from eaglelocal import locations
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.own_files import list_own
from eaglelocal.core.records import dataclass
from eaglelocal.core.terminal_text import make_printable
from eaglelocal.errors import EagleLocalError, ModelFileError
from eaglelocal.gguf.architectures import HEAD_ARCHITECTURES, read_task
from eaglelocal.gguf.eagle_info import TARGET_NAME_KEY, VERIFIER_KEY
from eaglelocal.gguf.ggml_types import REFERENCE_KEY, parse_quant, read_quantization
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.lora_adapter import is_adapter
from eaglelocal.gguf.mtp import is_mtp_alone
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.derived_models import SOURCE_HASH_KEY, SOURCE_KEY, make_slug, parse_recipe
from eaglelocal.hub.heads.head_store import TRAINED_HERE
from eaglelocal.hub.hub_cache import CachedModel, list_models
from eaglelocal.hub.inflation.inflate import locate_inflated
from eaglelocal.hub.inflation.inflated_sizes import TYPES, ModelSize
from eaglelocal.hub.model_library import list_library
from eaglelocal.hub.projector_resolver import find_cached_projector
from eaglelocal.hub.pull_plan import find_pulled_targets
from eaglelocal.hub.target_resolver import MAX_LABEL_CHARS, NATIVE, demo_sources

EMBEDDED, GENERATED, IMPORTED, TRAINED, HUB = "embedded", "generated", "imported head", "trained head", "hub"
HEAD = "head"
KINDS = {ModelTask.TEXT: "model", ModelTask.EMBEDDING: "embedding model", ModelTask.RANK: "reranker"}
_GENERATED = re.compile(rf"demo-(?P<size>[\d.]+)(?P<unit>[mb])-(?P<type>{'|'.join(TYPES)})-[0-9a-f]{{12}}\.gguf")
ADAPTER = "LoRA adapter"


@dataclass(frozen=True, slots=True)
class HeaderSummary:
    """The part of a header that lists show."""

    architecture: str = ""
    name: str = ""
    context: int | None = None  # tokens
    quant: str = ""
    kind: str = "model"  # model, head, embedding model, image encoder, LoRA adapter
    head_target: str = ""  # the model that a head was made for, as its file calls it
    problem: str = ""


@dataclass(frozen=True, slots=True)
class InventoryEntry:
    """A model on disk, under the reference that finds it."""

    reference: str
    origin: str  # EMBEDDED, GENERATED, IMPORTED, TRAINED, HUB, how it was derived, or a place of the library
    paths: tuple[Path, ...]
    size_bytes: int
    modified_at: float  # seconds since 1970
    description: HeaderSummary
    repo: str = ""
    commit: str = ""
    projector: Path | None = None  # the image encoder that belongs to it
    is_outdated: bool = False  # generated from another version of its source
    pulled_for: tuple[str, ...] = ()  # repositories of the targets that this draft was pulled with

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the models that a head drafts for, as far as this is known."""
        return self.pulled_for or tuple(filter(None, (self.description.head_target,)))

    @property
    def path(self) -> Path:
        return self.paths[0]


def list_all_models(cache: Path, folders: Sequence[str] = ()) -> list[InventoryEntry]:
    """Return all models: embedded, generated, derived, imported, then the hub's by reference, then the library's."""
    pulled = find_pulled_targets(locations.pulled_drafts_file())
    return [
        *list_embedded(),
        *list_inflated(),
        *list_derived(),
        *list_imported(),
        *(
            replace(describe_cached(model), pulled_for=pulled.get(model.reference.lower(), ()))
            for model in list_models(cache)
        ),
        *describe_library(folders),
    ]


def describe_library(folders: Sequence[str]) -> Iterator[InventoryEntry]:
    """Yield the models of LM Studio, of Ollama and in these folders; image encoders are left out."""
    for model in list_library(folders):
        with suppress(OSError):  # it was just deleted
            entry = _make_entry(model.name, model.place, model.paths)
            if entry.description.kind != "image encoder":
                yield entry


def list_embedded() -> list[InventoryEntry]:
    return [_make_entry(NATIVE, EMBEDDED, demo_sources())]


def list_inflated() -> list[InventoryEntry]:
    """Return the pairs that inflation has written, by file name; the target's size includes the head's."""
    found = []
    for target in list_own(locations.generated_models_dir(), "demo-*.gguf"):
        named = _GENERATED.fullmatch(target.name)
        head = target.with_name(f"{target.stem}-head.gguf")
        if named is not None and head.is_file():
            num_parameters = round(float(named["size"]) * {"m": 1e6, "b": 1e9}[named["unit"]])
            size = ModelSize(num_parameters, named["type"])
            reference = size.reference
            is_outdated = locate_inflated(size, demo_sources(), target.parent).target != target
            found.append(_make_entry(reference, GENERATED, (target, head), is_outdated=is_outdated))
    return found


def list_derived() -> Iterator[InventoryEntry]:
    """Yield the derived models by file name, each with the heads that were inflated for it.

    Files of other kinds and damaged ones are skipped. No source is read: a model is outdated if its source is gone or
    has changed, or if another version of eaglelocal made it.
    """
    for path in list_own(locations.generated_models_dir(), "*@*.gguf"):
        with suppress(EagleLocalError, OSError):
            metadata = read_header(path, keys=(REFERENCE_KEY, SOURCE_KEY, SOURCE_HASH_KEY)).metadata
            reference, source, digest = (metadata.get(key) for key in (REFERENCE_KEY, SOURCE_KEY, SOURCE_HASH_KEY))
            if isinstance(reference, str) and isinstance(source, str) and isinstance(digest, str):
                recipe = parse_recipe(reference.rpartition("@")[2])
                heads = sorted(path.parent.glob(f"{glob.escape(path.stem)}-head-*.gguf"))
                is_current = path.stem.endswith(f"@{make_slug(recipe, digest)}") and _is_older(source, path)
                yield _make_entry(reference, recipe.origin, (path, *heads), is_outdated=not is_current)


def _is_older(source: str, made: Path) -> bool:
    """Return whether the file of a `file:` URL still exists, and was not written after the one made of it."""
    try:
        return os.stat(unquote_to_bytes(source.removeprefix("file://"))).st_mtime <= made.stat().st_mtime
    except OSError:
        return False


def list_imported() -> list[InventoryEntry]:
    """Return the heads that `import` and `train` made, under their paths, which `--draft` takes."""
    paths = list_own(locations.heads_dir(), "*/*.gguf")
    entries = [_make_entry(str(path), IMPORTED, (path,)) for path in paths]
    return [replace(one, origin=TRAINED) if one.description.name.endswith(TRAINED_HERE) else one for one in entries]


def describe_cached(model: CachedModel) -> InventoryEntry:
    entry = _make_entry(model.reference, HUB, model.paths)
    has_projector = entry.description.kind == "model" and not model.build.is_draft
    projector = find_cached_projector(model.path) if has_projector else None
    return replace(entry, repo=model.repo, commit=model.commit, projector=projector)


def describe_file(path: Path) -> HeaderSummary:
    """Describe a file from its header. Never raises: if it cannot be read, `problem` gives the reason."""
    try:
        header = read_header(path)
    except ModelFileError as error:
        return HeaderSummary(quant=parse_quant(path.stem), problem=error.message)
    return describe(header)


def describe(header: Header) -> HeaderSummary:
    architecture = str(header.metadata.get("general.architecture") or "")
    context = header.metadata.get(f"{architecture}.context_length")
    targets = (header.metadata.get(key) for key in (TARGET_NAME_KEY, VERIFIER_KEY))
    target = next((name for name in targets if isinstance(name, str) and name), "")
    return HeaderSummary(
        architecture=architecture,
        name=str(header.metadata.get("general.name") or ""),
        context=context if isinstance(context, int) else None,
        quant=read_quantization(header),
        kind=_find_kind(header, architecture),
        head_target=make_printable(target)[:MAX_LABEL_CHARS],
    )


def _find_kind(header: Header, architecture: str) -> str:
    if architecture in HEAD_ARCHITECTURES or is_mtp_alone(header):
        return HEAD
    if is_adapter(header):
        return ADAPTER
    return "image encoder" if architecture == "clip" else KINDS[read_task(header)]


def _make_entry(reference: str, origin: str, paths: Sequence[Path], *, is_outdated: bool = False) -> InventoryEntry:
    statuses = [path.stat() for path in paths]
    return InventoryEntry(
        reference=reference,
        origin=origin,
        paths=tuple(paths),
        size_bytes=sum(status.st_size for status in statuses),
        modified_at=max(status.st_mtime for status in statuses),
        description=describe_file(paths[0]),
        is_outdated=is_outdated,
    )
