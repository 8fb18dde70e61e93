"""A typed view of a target model, read from its header alone.

It uses the keys that llama.cpp gives to every architecture, some of which may hold one value
per layer. Other files decide whether the model fits a machine or a draft head.
"""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

from eaglelocal.core.own_files import fingerprint
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import is_valid_value
from eaglelocal.gguf import architectures
from eaglelocal.gguf.architectures import MAX_LAYERS, ArchitectureKeys
from eaglelocal.gguf.hazards import check_hazards
from eaglelocal.gguf.header import Header, list_named_parts


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's dimensions and vocabulary. `n_layer` leaves out layers that only predict ahead (MTP)."""

    architecture: str
    name: str
    n_layer: int
    n_embd: int
    n_head: tuple[int, ...]  # [n_layer]
    n_kv_head: tuple[int, ...]  # [n_layer]
    n_ff: tuple[int, ...]  # [n_layer]
    head_dim: int
    value_dim: int
    n_vocab: int
    context_length: int
    weights_bytes: int
    file_bytes: int
    sliding_window: int | None
    is_recurrent: bool
    is_hybrid: bool
    chat_template: str | None
    header: Header = dataclasses.field(compare=False, repr=False)

    @property
    def gives_layer_inputs(self) -> bool:
        return self.architecture in architectures.LAYER_INPUT_ARCHITECTURES

    @property
    def final_state(self) -> architectures.FinalState | None:
        """The way to read the state after the last layer (layer id == n_layer); None if llama.cpp does not give it."""
        return architectures.FINAL_STATE.get(self.architecture)

    @property
    def gives_normed_rows(self) -> bool:
        """True if llama.cpp gives the state after the output norm of all rows, not only of those with logits."""
        return self.architecture in architectures.NORMED_NEXTN

    @property
    def has_state(self) -> bool:
        """True if the model keeps recurrent state: no branches, and rollback only by snapshots."""
        return self.is_recurrent or self.is_hybrid

    @property
    def rolls_back(self) -> bool:
        """True if rejected rows can be removed: from the KV cache, or by restoring an earlier recurrent state."""
        return not self.has_state or self.architecture in architectures.ROLLBACK_ARCHITECTURES

    @classmethod
    def from_header(cls, header: Header) -> ModelInfo:
        """Read a model's header.

        Raises ModelFileError on keys that are missing, make no sense, or would end llama.cpp's process, or
        on an architecture that llama.cpp does not know.
        """
        architectures.check_known(header.architecture, header.path.name)
        keys = ArchitectureKeys(header, header.architecture)
        n_layer = _layers(keys)
        n_embd = keys.count("embedding_length")
        n_head = _per_layer(keys, "attention.head_count", n_layer, default=(0,))
        head_dim = keys.optional_count("attention.key_length") or n_embd // max(max(n_head), 1)
        value_dim = keys.optional_count("attention.value_length") or head_dim
        check_hazards(keys, head_dim=head_dim, value_dim=value_dim)
        info = cls(
            architecture=keys.prefix,
            name=keys.model_name,
            n_layer=n_layer,
            n_embd=n_embd,
            n_head=n_head,
            n_kv_head=_per_layer(keys, "attention.head_count_kv", n_layer, default=n_head),
            n_ff=_per_layer(keys, "feed_forward_length", n_layer, default=(0,)),
            head_dim=head_dim,
            value_dim=value_dim,
            n_vocab=vocabulary_size(keys),
            context_length=keys.count("context_length"),
            weights_bytes=header.tensor_bytes,
            file_bytes=header.file_bytes,
            sliding_window=keys.optional_count("attention.sliding_window") or None,
            is_recurrent=keys.prefix in architectures.RECURRENT_ARCHITECTURES,
            is_hybrid=_is_hybrid(keys),
            chat_template=keys.text("tokenizer.chat_template"),
            header=header,
        )
        for name in ("model", "pre"):  # only their types are checked
            keys.text(f"tokenizer.ggml.{name}")
        for name in ("bos", "eos"):
            keys.count_by_name(f"tokenizer.ggml.{name}_token_id")
        return info


def vocabulary_size(keys: ArchitectureKeys) -> int:
    """Return the tokenizer's number of tokens, as llama.cpp counts them; else `vocab_size` or the embedding rows."""
    tokens = keys.header.array_count(architectures.TOKENS_KEY)
    if tokens is not None:
        return tokens
    embeddings = keys.header.tensors.get("token_embd.weight")
    rows = embeddings.shape[1] if embeddings is not None and len(embeddings.shape) == 2 else 0
    return keys.optional_count("vocab_size") or rows


def num_mtp_layers(keys: ArchitectureKeys) -> int:
    """Return the number of MTP layers that the file claims to have; their tensors may be missing."""
    return keys.optional_count("nextn_predict_layers") or 0


def _layers(keys: ArchitectureKeys) -> int:
    blocks = keys.count("block_count")
    ahead = num_mtp_layers(keys)
    if not 0 <= ahead < blocks <= MAX_LAYERS:
        raise keys.error(f"claims {blocks} layers, {ahead} of them for prediction, where at most {MAX_LAYERS} fit")
    return blocks - ahead


def _per_layer(keys: ArchitectureKeys, key: str, n_layer: int, *, default: tuple[int, ...]) -> tuple[int, ...]:
    """Return one value for each layer; a single value stands for all of them."""
    values = keys.counts(key) or default
    if len(values) == 1:
        return values * n_layer
    if len(values) < n_layer:
        raise keys.error(f"{keys.prefix}.{key} has {len(values)} entries for {n_layer} layers")
    return values[:n_layer]


def _is_hybrid(keys: ArchitectureKeys) -> bool:
    if keys.prefix in architectures.RECURRENT_ARCHITECTURES:
        return False
    stems = tuple(f"{keys.prefix}.{stem}" for stem in architectures.RECURRENT_KEY_STEMS)
    has_keys = any(key.startswith(stems) for key in keys.header.metadata)
    return has_keys or keys.prefix in architectures.HYBRID_ARCHITECTURES


# ---- recommended sampling: the sampling parameters that a model's makers recommend: converters copy them from its
# generation_config.json
KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repeat_penalty",
    "general.sampling.penalty_last_n": "repeat_last_n",
}
WHOLE = frozenset({"top_k", "repeat_last_n"})


def read_recommended_sampling(header: Header) -> dict[str, float]:
    """Return the recommended values by field name of SamplingParams, without non-numbers and values out of range."""
    found = {name: _number(header.metadata.get(key), is_whole=name in WHOLE) for key, name in KEYS.items()}
    return {name: value for name, value in found.items() if value is not None and is_valid_value(name, value)}


def _number(value: object, *, is_whole: bool) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not is_whole:
        return float(f"{value:.6g}")  # as written before it was stored as float32
    return value if isinstance(value, int) else None


# ---- model fingerprint: identifies a model by samples of its weights, of all files if it is split into several
def fingerprint_model(path: Path) -> str:
    """Return the fingerprint of a model's file; one of all its parts, as far as they exist, if it is split.

    Raises OSError.
    """
    parts = [part for part in list_named_parts(path) if part.is_file()]
    if len(parts) < 2:
        return fingerprint(path)
    return hashlib.sha256("\n".join(map(fingerprint, parts)).encode()).hexdigest()[:24]
