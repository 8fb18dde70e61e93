"""The models that Ollama keeps: each is a GGUF under a manifest, and its file is named by its digest.

    manifests/registry.ollama.ai/library/llama3.2/3b   JSON: the layers of llama3.2:3b
    blobs/sha256-DIGEST                                the GGUF of a layer

Only reads, and skips what it cannot read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from eaglelocal.core.json_text import read_json
from eaglelocal.core.own_files import read_regular

REGISTRY, LIBRARY, LATEST = "registry.ollama.ai", "library", "latest"
MODEL, PROJECTOR = "application/vnd.ollama.image.model", "application/vnd.ollama.image.projector"
BLOBS = "blobs"
BLOB = re.compile(r"sha256[-:][0-9a-f]{64}")
MAX_MANIFEST_BYTES, MAX_MANIFESTS = 2**20, 2000


def list_ollama_models(store: Path) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield name and files of each model of a store, by name: `llama3.2:3b`, `hf.co/user/repo:Q4_K_M`."""
    manifests = store / "manifests"
    paths = sorted(path for path, _ in zip(_iterate_files(manifests), range(MAX_MANIFESTS), strict=False))
    for path in paths:
        parts = path.relative_to(manifests).parts
        models = [store / BLOBS / name for name in read_layers(path, MODEL)]
        if len(parts) >= 3 and models and all(model.is_file() for model in models):
            yield make_name(parts), tuple(models)


def make_name(parts: tuple[str, ...]) -> str:
    """Return a model's name as Ollama shows it, of the parts of its manifest's path."""
    *place, model, tag = parts
    if place[:1] == [REGISTRY]:
        place = place[1:]
    if place == [LIBRARY]:
        place = []
    return f"{'/'.join([*place, model])}:{tag}"


def read_layers(manifest: Path, kind: str) -> list[str]:
    """Return the file names of a manifest's layers of a media type; none if it cannot be read."""
    try:
        if manifest.stat().st_size > MAX_MANIFEST_BYTES:
            return []
        content = read_json(read_regular(manifest))
    except (OSError, ValueError):
        return []
    layers = content.get("layers") if isinstance(content, dict) else None
    found = []
    for layer in layers if isinstance(layers, list) else []:
        digest = layer.get("digest") if isinstance(layer, dict) and layer.get("mediaType") == kind else None
        if isinstance(digest, str) and BLOB.fullmatch(digest):
            found.append(digest.replace(":", "-"))
    return found


def is_blob(path: Path) -> bool:
    """Return whether a file is named by its digest, so that its name says nothing to people."""
    return BLOB.fullmatch(path.name) is not None


def find_blob_projector(path: Path) -> Path | None:
    """Return the image encoder of the model in a blob, as a manifest of its store says; None if it has none."""
    if not is_blob(path) or path.parent.name != BLOBS:
        return None
    for manifest, _ in zip(_iterate_files(path.parent.parent / "manifests"), range(MAX_MANIFESTS), strict=False):
        if path.name in read_layers(manifest, MODEL):
            for name in read_layers(manifest, PROJECTOR):
                if (path.parent / name).is_file():
                    return path.parent / name
    return None


def _iterate_files(folder: Path) -> Iterator[Path]:
    with suppress(OSError):
        for path in folder.rglob("*"):
            if path.is_file():
                yield path
