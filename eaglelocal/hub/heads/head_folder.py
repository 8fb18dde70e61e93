"""A folder with a published head: config.json and weights, in one file or in shards.

Finds and reads the files; does not know dialects or heads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from eaglelocal import locations
from eaglelocal.core import json_text
from eaglelocal.core.own_files import open_regular
from eaglelocal.core.records import dataclass
from eaglelocal.core.user_paths import expand_path, quote_path
from eaglelocal.errors import ModelFileError, UsageError
from eaglelocal.hub.heads.safetensors_files import StoredTensor, check_count, read_safetensors
from eaglelocal.hub.heads.torch_files import read_pickled

CONFIG, WEIGHTS_SUFFIX = "config.json", ".safetensors"
MAX_JSON_BYTES = 16 << 20
MAX_FILES = 1000
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class Format:
    """A format of weights: names of its files, the index that lists the shards, and its reader."""

    suffix: str
    stem: str
    read: Callable[[Path], dict[str, StoredTensor]]

    @property
    def index(self) -> str:
        return f"{self.stem}{self.suffix}.index.json"


FORMATS = (
    Format(WEIGHTS_SUFFIX, "model", read_safetensors),
    Format(".bin", "pytorch_model", read_pickled),
    Format(".pt", "medusa_lm_head", read_pickled),
)


@dataclass(frozen=True, slots=True)
class PublishedHead:
    """The content of a folder: the configuration as JSON, and the tensors by the names they have there."""

    folder: Path
    config: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]


def find_published_folder(reference: str) -> tuple[Path, str]:
    """Return the folder and the head's name. Raises UsageError or ModelFileError if there is none."""
    path = expand_path(reference)
    if path.is_dir():
        return path, path.resolve().name
    if path.exists():
        is_gguf = path.suffix == ".gguf"
        instead = (
            "a GGUF needs no import: name it with --draft"
            if is_gguf
            else f"give the folder that it lies in: {path.parent}"
        )
        raise UsageError(f"{path} is a file", hint=instead)
    if not REPOSITORY.fullmatch(reference):
        raise ModelFileError(f"{path} does not exist", hint=f"give a folder with {CONFIG} and *{WEIGHTS_SUFFIX}")
    cached = _find_cached(reference)
    if cached is None:
        raise ModelFileError(
            f"{reference} is not on this machine", hint=f"eaglelocal pull TARGET --draft {quote_path(reference)}"
        )
    return cached, reference.rpartition("/")[2]


def _find_cached(repository: str) -> Path | None:
    """Return the repository's snapshot in the hub's cache; None if there is none."""
    from eaglelocal.hub.client_settings import prepare_client

    prepare_client(connects=False)
    from huggingface_hub import try_to_load_from_cache  # slow to import
    from huggingface_hub.errors import HFValidationError

    from eaglelocal.hub.hub_api import explain_error

    try:
        found = try_to_load_from_cache(repository, CONFIG, cache_dir=locations.hub_cache_dir())
    except HFValidationError as problem:
        raise explain_error(problem, repository) from None
    return Path(found).parent if isinstance(found, str) else None


def read_published(folder: Path) -> PublishedHead:
    """Read a published head. Raises ModelFileError if a file is missing or damaged."""
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder", hint=f"give a folder with {CONFIG} and *{WEIGHTS_SUFFIX}")
    if not (folder / CONFIG).is_file():
        raise ModelFileError(f"{folder} has no {CONFIG}", hint="give the folder of a published head")
    config = read_json(folder / CONFIG)
    tensors: dict[str, StoredTensor] = {}
    form, paths = _find_tensor_files(folder)
    for path in paths:
        for name, tensor in form.read(path).items():
            if name in tensors:
                raise ModelFileError(f"tensor {name} is in {tensors[name].path.name} and in {path.name}")
            tensors[name] = tensor
        check_count(path, len(tensors))
    return PublishedHead(folder, config, tensors)


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object from a file of limited size. Raises ModelFileError."""
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ModelFileError(f"{path.name}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_JSON_BYTES:
        raise ModelFileError(f"{path.name}: longer than {MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json_text.read_json(raw)
    except ValueError as error:
        raise ModelFileError(f"{path.name}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path.name}: no JSON object")
    return value


def _find_tensor_files(folder: Path) -> tuple[Format, list[Path]]:
    """Return the first format that the folder has, with its files."""
    for form in FORMATS:
        if (folder / form.index).is_file():
            return form, _find_shards(folder, form)
        if files := sorted(folder.glob(f"{'*' if form.suffix == WEIGHTS_SUFFIX else form.stem}{form.suffix}")):
            _check_file_count(folder.name, len(files))
            return form, files
    raise ModelFileError(
        f"{folder} has no *{WEIGHTS_SUFFIX}, pytorch_model.bin or medusa_lm_head.pt", hint="fetch the rest of the head"
    )


def _check_file_count(what: str, num_files: int) -> None:
    if num_files > MAX_FILES:
        raise ModelFileError(f"{what}: {num_files} files with weights, more than the limit of {MAX_FILES} for a head")


def _find_shards(folder: Path, form: Format) -> list[Path]:
    """Return the files that the index names, which must be in the folder itself."""
    names = read_json(folder / form.index).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelFileError(f"{form.index}: no weight_map")
    files = sorted({str(name) for name in names.values()})
    _check_file_count(form.index, len(files))
    for name in files:
        if Path(name).name != name or not name.endswith(form.suffix):
            raise ModelFileError(f"{form.index} names {name!r}, which is no *{form.suffix} beside it")
        if not (folder / name).is_file():
            raise ModelFileError(f"{folder} lacks the shard {name}", hint="fetch the rest of the head")
    return [folder / name for name in files]
