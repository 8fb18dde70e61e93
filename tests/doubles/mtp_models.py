"""Small models with a layer that predicts ahead (MTP), whose drafts are as good as wished."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from .living_models import N_VOCAB, weights
from .random_models import finish, write_vocabulary
from .sketched_models import SKETCHES, Sketch, tensors_of, write_keys

WRITES_BACK = tuple(
    f"{name}.weight" for name in ("attn_output", "ssm_out", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
)
N_LAYER = 8  # that answer
PARTS = ("whole", "trunk", "layer")


def sketch_of(architecture: str) -> Sketch:
    base = SKETCHES[architecture]
    return replace(base, n_layer=N_LAYER + 1, n_vocab=N_VOCAB, n_ctx=2048, keys=base.keys | {"nextn_predict_layers": 1})


def write_mtp(
    path: Path,
    architecture: str = "qwen35",
    *,
    gain: float = 0.3,
    echoes: bool = False,
    part: str = "whole",
    seed: int = 0,
) -> Path:
    """Layers add `gain` of what they would to a token's own embedding, from which alone the MTP layer predicts.

    At 0 its drafts are always right, at 1 hardly ever. If it `echoes` it predicts from the target's state alone, which
    is what the target said before. Of the `whole` a file may hold but the `trunk` or the `layer`.
    """
    sketch = sketch_of(architecture)
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    trunk = replace(sketch, n_layer=N_LAYER, keys=SKETCHES[architecture].keys)
    write_keys(writer, trunk if part == "trunk" else sketch)
    write_vocabulary(writer, N_VOCAB)
    for name, shape in tensors_of(sketch):
        values = weights(rng, name, shape[::-1], sketch)
        if name.endswith(WRITES_BACK):
            values *= 0 if name.startswith(f"blk.{N_LAYER}.") else gain
        elif name.endswith(("nextn.enorm.weight", "nextn.hnorm.weight")) or (echoes and name == "output_norm.weight"):
            values[:] = 1.0
        elif name.endswith("nextn.eh_proj.weight"):  # of the embedding, and behind it of the state
            values[:] = np.roll(np.eye(*shape[::-1]), sketch.n_embd if echoes else 0, axis=1)
        of_layer = name.startswith(f"blk.{N_LAYER}.")
        if part == "whole" or not name.startswith("blk.") or of_layer == (part == "layer"):
            writer.add_tensor(name, values)
    finish(writer)
    return path
