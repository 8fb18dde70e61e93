"""P-EAGLE heads as they are published, in the three dialects, written with the real safetensors library."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor

from .eagle_checkpoints import Checkpoint, Kind, bf16, changed, random_checkpoint, write_checkpoint

FLAT, SPECULATORS, NEMO = "p-eagle-train", "speculators", "NeMo"
P_EAGLE_DIALECTS = (FLAT, SPECULATORS, NEMO)
NUM_DEPTHS, MASK = 6, 17


def random_parallel_head(kind: Kind) -> Checkpoint:
    """Return a random head with embeddings of its own and a mask."""
    head = random_checkpoint(replace(kind, own_embeddings=True))
    width = head.arrays["fc.weight"].shape[1]
    return changed(head, mask_hidden=bf16(np.random.default_rng(kind.seed + 1).normal(size=(1, width))))


def write_parallel_head(folder: Path, head: Checkpoint, dialect: str, **more: object) -> Path:
    """Write the folder as this dialect's trainer would, and return it; `more` replaces keys of the configuration."""
    hidden = head.arrays["mask_hidden"]
    keys: dict[str, object] = {"mask_token_id": MASK}
    match dialect:
        case "p-eagle-train":
            keys = {"ptd_token_id": MASK, "num_depths": NUM_DEPTHS}
        case "speculators":
            hidden = hidden[None]
            keys |= {
                "architectures": ["PEagleSpeculator"],
                "speculators_model_type": "peagle",
                "speculators_config": {
                    "algorithm": "peagle",
                    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": NUM_DEPTHS}],
                    "verifier": {"name_or_path": "somebody/random target"},
                },
            }
        case "NeMo":
            keys |= {"architectures": ["PEagleDraftModel"], "num_depths": NUM_DEPTHS, "down_sample_ratio": 0.7}
    keys |= more
    written = replace(changed(head, mask_hidden=hidden), more={**head.more, **keys})
    return write_checkpoint(folder, written, "SafeAILab" if dialect == FLAT else dialect)


def make_parallel(head: Checkpoint, target: Path, *, num_layers: int, gain: float) -> Checkpoint:
    """Return an EAGLE head that borrows the target's tokens as a P-EAGLE head of several layers.

    gain  what the added layers add to the residual stream; with 0 the first drafted token is the head's
    """
    borrowed = read_tensor(read_header(target), "token_embd.weight")
    n_ff = head.arrays["layer.mlp.up_proj.weight"].shape[0]
    kind = Kind(width=head.width, n_ff=n_ff, n_head=head.n_head, n_kv_head=head.n_kv_head, num_layers=num_layers)
    upper = {name: array for name, array in random_checkpoint(kind).arrays.items() if name.startswith("layers.")}
    for name in upper:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            upper[name] = gain * upper[name]
    mask = np.ones((1, head.arrays["fc.weight"].shape[1]), np.float32)
    own = {"embed_tokens.weight": borrowed, "lm_head.weight": borrowed, "mask_hidden": mask}
    return replace(head, norm_output=False, arrays={**head.arrays, **upper, **own})
