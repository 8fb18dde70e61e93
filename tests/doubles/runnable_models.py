"""Small models of any sketched architecture with random weights and a vocabulary, so that they answer and draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from .random_models import finish, write_vocabulary
from .weightless_models import ID_TABLE, SKETCHES, Sketch, tensors_of, write_keys

N_VOCAB = 300


def write_runnable(path: Path, name: str, seed: int = 0, **keys: object) -> Path:
    """Write the sketch of that name with random weights. `keys`: of its architecture, with `__` for a dot."""
    sketch = replace(SKETCHES[name], n_vocab=N_VOCAB, n_ctx=2048)
    sketch = replace(sketch, keys={**sketch.keys, **{key.replace("__", "."): value for key, value in keys.items()}})
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(str(path), sketch.arch)
    write_keys(writer, sketch)
    write_vocabulary(writer, N_VOCAB)
    for tensor, shape in tensors_of(sketch):
        writer.add_tensor(tensor, weights(rng, tensor, shape[::-1], sketch))
    finish(writer)
    return path


def weights(rng: np.random.Generator, name: str, shape: tuple[int, ...], sketch: Sketch) -> np.ndarray:
    """Return random weights that keep signals at scale: states decay (`ssm_a` is negative), norms are about one."""
    if name.endswith(ID_TABLE):  # experts of each token, all different
        return np.stack([rng.permutation(sketch.n_expert)[: shape[1]] for _ in range(shape[0])]).astype(np.int32)
    if name.endswith("ssm_a"):
        values = -rng.uniform(0.1, 1.0, shape)
    elif "norm" in name or name.endswith("ssm_d"):
        values = rng.uniform(0.5, 1.5, shape)
    elif name.endswith("bias"):
        values = rng.normal(0.0, 0.1, shape)
    else:
        values = rng.normal(0.0, 1.0 if name == "token_embd.weight" else 1.5 * shape[-1] ** -0.5, shape)
    return values.astype(np.float32)
