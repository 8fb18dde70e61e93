"""Headers of projectors, with the one tensor from which the width of their rows is read."""

from __future__ import annotations

import numpy as np
from doubles.gguf_bytes import BOOL, STRING, U32, GgufBytes

SIZES = {
    "image_size": 896,
    "patch_size": 14,
    "embedding_length": 1152,
    "feed_forward_length": 4304,
    "block_count": 27,
    "attention.head_count": 16,
}


def projector_bytes(
    *,
    width: int = 64,
    kind: str = "gemma4v",
    name: str = "",
    sees: bool = True,
    tensor: str = "mm.input_projection.weight",
    shape: tuple[int, ...] | None = None,
    more: dict[str, int] | None = None,
) -> bytes:
    """Return a projector's file. shape: of the tensor, in numpy's order; None: it maps 2 values to `width`."""
    built = GgufBytes().put("general.architecture", STRING, "clip")
    if name:
        built.put("general.name", STRING, name)
    built.put("clip.has_vision_encoder", BOOL, sees).put("clip.projector_type", STRING, kind)
    for key, value in {**SIZES, **(more or {})}.items():
        built.put(f"clip.vision.{key}", U32, value)
    return built.tensor(tensor, np.zeros(shape or (width, 2), np.float32)).build()
