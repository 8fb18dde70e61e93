"""Medusa heads as they are published, in every dialect: FasterDecoding's pickle, TGI's safetensors, vLLM's forms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eaglelocal.gguf.draft_pairing import read_draft
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_tensor
from eaglelocal.hub.heads.head_folder import read_published
from eaglelocal.hub.heads.head_store import write_head_file
from eaglelocal.hub.heads.medusa_head import MedusaHead, make_entries, make_tensors, read_medusa_head

from .eagle_checkpoints import bf16, write_tensors

PICKLE, TGI, VLLM = "medusa_lm_head.pt", "medusa_lm_head.safetensors", "vLLM"
MEDUSA_DIALECTS = (PICKLE, TGI, VLLM)
OWN, ONE, LENT = "an lm_head each", "one lm_head", "the target's lm_head"


@dataclass(frozen=True, kw_only=True)
class MedusaWeights:
    """The weights of a head in plain arrays."""

    matrices: np.ndarray  # [parts, layers, width, width]
    biases: np.ndarray | None  # [parts, layers, width]
    outputs: tuple[np.ndarray, ...]  # [vocabulary, width] each: none, one or one for each part
    token_map: np.ndarray | None = None  # [draft vocabulary]; lm_heads have rows for the whole vocabulary or for these


def random_medusa(
    *,
    width: int = 128,
    n_vocab: int = 300,
    num_parts: int = 4,
    num_layers: int = 1,
    outputs: str = OWN,
    biases: bool = True,
    draft_vocab: int | None = None,
    seed: int = 7,
) -> MedusaWeights:
    rng = np.random.default_rng(seed)
    scale = 1.5 / np.sqrt(width)
    num_outputs = {OWN: num_parts, ONE: 1, LENT: 0}[outputs]
    return MedusaWeights(
        matrices=bf16(rng.normal(0, scale, (num_parts, num_layers, width, width))),
        biases=bf16(rng.normal(0, 0.5, (num_parts, num_layers, width))) if biases else None,
        outputs=tuple(bf16(rng.normal(0, scale, (n_vocab, width))) for _ in range(num_outputs)),
        token_map=rng.permutation(n_vocab)[:draft_vocab] if draft_vocab else None,
    )


def write_medusa(folder: Path, head: MedusaWeights, dialect: str, **more: object) -> Path:
    """Write the folder as this dialect's programs would, and return it; `more` replaces keys of the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = name_medusa(head, dialect)
    num_parts, num_layers = head.matrices.shape[:2]
    if dialect == VLLM:
        config: dict[str, object] = {
            "model_type": "medusa", "num_heads": num_parts, "num_hidden_layers": num_layers,
            "hidden_size": head.matrices.shape[-1], "medusa_fc_bias": head.biases is not None, "max_paths": 64,
            "original_lm_head": len(head.outputs) == 1,
        }  # fmt: skip
    else:
        config = {"medusa_num_heads": num_parts, "medusa_num_layers": num_layers, "base_model_name_or_path": "target"}
    (folder / "config.json").write_text(json.dumps(config | more))
    if dialect == PICKLE:
        write_pickled(folder / PICKLE, tensors)
        return folder
    write_tensors(
        folder,
        {name: (array, "int64" if array.dtype.kind == "i" else "bfloat16") for name, array in tensors.items()},
        1,
    )
    (folder / "model.safetensors").rename(folder / (TGI if dialect == TGI else "model.safetensors"))
    return folder


def name_medusa(head: MedusaWeights, dialect: str) -> dict[str, np.ndarray]:
    tensors: dict[str, np.ndarray] = {}
    num_parts, num_layers = head.matrices.shape[:2]
    is_vllm = dialect == VLLM
    for part in range(num_parts):
        for layer in range(num_layers):
            stem = f"blocks.{part}.layers.{layer}" if is_vllm else f"{part}.{layer}.linear"
            tensors[f"{stem}.weight"] = head.matrices[part, layer]
            if head.biases is not None:
                tensors[f"{stem}.bias"] = head.biases[part, layer]
    if len(head.outputs) == 1 and num_parts > 1:
        tensors["lm_head.weight"] = head.outputs[0]
    else:
        for part, output in enumerate(head.outputs):
            tensors[f"lm_heads.{part}.weight" if is_vllm else f"{part}.{num_layers}.weight"] = output
    if head.token_map is not None:
        tensors["token_map"] = head.token_map
    return tensors


def write_pickled(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write the tensors as training does: torch.save of a state dict."""
    import torch

    torch.save({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in tensors.items()}, path)


def understood_medusa(folder: Path, target: Path) -> MedusaHead:
    header = read_header(target)
    return read_medusa_head(read_published(folder), ModelInfo.from_header(header), name=folder.name)


def imported_medusa(folder: Path, target: Path, path: Path, *, kind: str = "f32") -> Path:
    """Import a head and return its path. Raises what the command would raise before it loads anything."""
    info = ModelInfo.from_header(read_header(target))
    head = understood_medusa(folder, target)
    entries, tensors = make_entries(head, info, kind), make_tensors(head, info, kind)
    with write_head_file(path, entries, tensors, on_progress=lambda fraction: None) as partial:
        read_draft(read_header(partial), info)
    return path


def write_random_medusa(path: Path, target: Path, **shape: object) -> Path:
    """Write a random head for a target, of its width and vocabulary."""
    info = ModelInfo.from_header(read_header(target))
    head = random_medusa(width=info.n_embd, n_vocab=info.n_vocab, **shape)  # type: ignore[arg-type]
    return imported_medusa(write_medusa(path.with_suffix(""), head, TGI), target, path)


def write_agreeing_medusa(path: Path, target: Path, *, num_parts: int = 4) -> Path:
    """Write a head that predicts as the target would from the last token alone, as far as one matrix can learn that.

    The smaller the target's layer_gain, the more often they agree.
    """
    header = read_header(target)
    embeddings, norm, output = (
        read_tensor(header, f"{name}.weight") for name in ("token_embd", "output_norm", "output")
    )
    states = embeddings / np.sqrt((embeddings**2).mean(1, keepdims=True)) * norm  # after each token
    following = (states @ output.T).argmax(1)
    outputs, tokens = [], following
    for _ in range(num_parts):
        tokens = following[tokens]
        outputs.append(fit_classes(states, tokens))
    matrices = np.zeros((num_parts, 1, states.shape[1], states.shape[1]), np.float32)
    head = MedusaWeights(matrices=matrices, biases=None, outputs=tuple(outputs))
    return imported_medusa(write_medusa(path.with_suffix(""), head, TGI), target, path)


def fit_classes(states: np.ndarray, classes: np.ndarray, num_steps: int = 200) -> np.ndarray:
    """Return a matrix [len(states), width] whose largest product with each state is mostly that of its class."""
    wanted = np.eye(len(states))[classes]
    matrix = np.zeros((len(states), states.shape[1]))
    for _ in range(num_steps):
        logits = states @ matrix.T
        chances = np.exp(logits - logits.max(1, keepdims=True))
        matrix += 0.02 * (wanted - chances / chances.sum(1, keepdims=True)).T @ states
    return matrix.astype(np.float32)


def reference_logits(head: MedusaWeights, state: np.ndarray, target: Path) -> np.ndarray:
    """Return the logits [parts, vocabulary] in float64; minus infinity for tokens that are not drafted."""
    lent = read_header(target)
    name = "output.weight" if "output.weight" in lent.tensors else "token_embd.weight"
    outputs = head.outputs or (read_tensor(lent, name),)
    rows = []
    for part, matrices in enumerate(head.matrices.astype(np.float64)):
        x = state.astype(np.float64)
        for layer, matrix in enumerate(matrices):
            z = matrix @ x + (0 if head.biases is None else head.biases[part, layer])
            x = x + z / (1 + np.exp(-z))
        output = outputs[part % len(outputs)].astype(np.float64)
        if head.token_map is None:
            rows.append(output @ x)
            continue
        selected = output if len(output) == len(head.token_map) else output[head.token_map]
        logits = np.full(ModelInfo.from_header(lent).n_vocab, -np.inf)
        logits[head.token_map] = selected @ x
        rows.append(logits)
    return np.stack(rows)
