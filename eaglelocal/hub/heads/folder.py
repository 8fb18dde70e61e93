"""A folder with a head as it was published: config.json and safetensors, in one file or in shards.

Finds and reads the files; knows neither dialects nor what a head is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.errors import ModelFileError
from eaglelocal.hub.heads.safetensors import StoredTensor, read_safetensors

CONFIG, INDEX, SUFFIX = "config.json", "model.safetensors.index.json", ".safetensors"
MAX_JSON_BYTES = 16 << 20
MAX_SHARDS = 1000
PICKLES = ("*.bin", "*.pt", "*.pth")


@dataclass(frozen=True, slots=True)
class Published:
    """What lies in the folder: the configuration as JSON, and the tensors by the names they have there."""

    folder: Path
    config: Mapping[str, object]
    tensors: Mapping[str, StoredTensor]


def read_published(folder: Path) -> Published:
    """Raises ModelFileError on whatever is missing or damaged."""
    if not folder.is_dir():
        raise ModelFileError(f"{folder} is not a folder", hint=f"give a folder with {CONFIG} and *{SUFFIX}")
    if not (folder / CONFIG).is_file():
        raise ModelFileError(f"{folder} has no {CONFIG}", hint="give the folder of a published head")
    config = read_json(folder / CONFIG)
    tensors: dict[str, StoredTensor] = {}
    for path in _tensor_files(folder):
        for name, tensor in read_safetensors(path).items():
            if name in tensors:
                raise ModelFileError(f"tensor {name} is in {tensors[name].path.name} and in {path.name}")
            tensors[name] = tensor
    return Published(folder, config, tensors)


def read_json(path: Path) -> dict[str, object]:
    """A JSON object from a file of limited size."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise ModelFileError(f"{path.name}: cannot be read: {error.strerror}") from error
    if len(raw) > MAX_JSON_BYTES:
        raise ModelFileError(f"{path.name}: longer than {MAX_JSON_BYTES >> 20} MiB")
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name}: no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path.name}: no JSON object")
    return value


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return _shards(folder)
    files = sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        raise _no_tensors(folder)
    return files[:MAX_SHARDS]


def _shards(folder: Path) -> list[Path]:
    """The files that the index names, which must lie in the folder itself."""
    names = read_json(folder / INDEX).get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ModelFileError(f"{INDEX}: no weight_map")
    files = sorted({str(name) for name in names.values()})
    for name in files:
        if Path(name).name != name or not name.endswith(SUFFIX):
            raise ModelFileError(f"{INDEX} names {name!r}, which is no *{SUFFIX} beside it")
        if not (folder / name).is_file():
            raise ModelFileError(f"{folder} lacks the shard {name}", hint="fetch the rest of the head")
    return [folder / name for name in files]


def _no_tensors(folder: Path) -> ModelFileError:
    pickled = next((path.name for pattern in PICKLES for path in sorted(folder.glob(pattern))), None)
    if pickled is None:
        return ModelFileError(f"{folder} has no *{SUFFIX}", hint="fetch the rest of the head")
    convert = (
        "python -c 'import torch; from safetensors.torch import save_file; "
        f'save_file(torch.load("{pickled}", weights_only=True), "model.safetensors")\''
    )
    return ModelFileError(f"{folder} has its weights as {pickled}, a pickle, which is code", hint=f"there: {convert}")
