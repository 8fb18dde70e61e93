"""A plan of the two files of an inflated demo: every key and every tensor, before a byte is written.

Reads the embedded target and head, chooses shapes, and states in the names what the result really is. Knows the llama
and eagle3 layouts; `inflate.py` writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import FC_NORM_EPS_KEY, EagleInfo
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.head_info import check_head
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_indices, read_tensor
from eaglelocal.gguf.values import Scalar, ValueType
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, copy_entries, max_file_bytes
from eaglelocal.hub.inflation.demo_sizes import HEAD_DIM, DemoShape, DemoSize, choose_head, choose_target
from eaglelocal.hub.inflation.ggml_blocks import Floats, RandomPool
from eaglelocal.hub.inflation.patch_matrix import Patch, Patchwork, make_patch, make_vector, make_zero_patch
from eaglelocal.hub.inflation.widen import Growth, widen_attention, widen_feed_forward

INFLATED_FROM_KEY = "eaglelocal.inflated_from"
_FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 7, "bf16": 32}
_EPS = "attention.layer_norm_rms_epsilon"
_ROPE = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class EmbeddedSource:
    """An embedded file: its header, and its tensors as floats."""

    header: Header

    def __call__(self, name: str) -> Floats:
        return read_tensor(self.header.path, self.header, name)

    def vector_if_there(self, name: str) -> list[StreamedTensor]:
        return [make_vector(name, self(name))] if name in self.header.tensors else []


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file to write: its keys and its tensors."""

    architecture: str
    entries: Sequence[KeyValue]
    tensors: Sequence[StreamedTensor]

    @property
    def data_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    @property
    def disk_bytes(self) -> int:
        return max_file_bytes(self.entries, self.tensors)


@dataclass(frozen=True, slots=True)
class Blueprint:
    target: FilePlan
    head: FilePlan

    @property
    def disk_bytes(self) -> int:
        return self.target.disk_bytes + self.head.disk_bytes


def plan_inflation(reference: DemoSize, source_target: Path, source_head: Path) -> Blueprint:
    """Plan an inflated pair. Raises ModelFileError or IncompatibleError where the sources cannot be inflated."""
    target, head = EmbeddedSource(read_header(source_target)), EmbeddedSource(read_header(source_head))
    model, eagle = ModelInfo.from_header(target.header), EagleInfo.from_header(head.header)
    check_head(eagle, model)
    small, small_head = read_target_shape(model), read_head_shape(eagle)
    growth = Growth(small, choose_target(reference.num_parameters, small))
    draft_vocab = eagle.draft_vocab or eagle.n_vocab
    head_growth = Growth(small_head, choose_head(growth.new, small_head, draft_vocab))
    pool = RandomPool.of(reference.type)
    return Blueprint(
        _TargetPlan(target, model, growth, reference).file(pool),
        _HeadPlan(head, target, eagle, head_growth, growth, reference).file(pool),
    )


def read_target_shape(model: ModelInfo) -> DemoShape:
    heads, kv_heads, ffn = set(model.n_head), set(model.n_kv_head), set(model.n_ff)
    if model.architecture != "llama" or len(heads) + len(kv_heads) + len(ffn) != 3:
        raise IncompatibleError(f"cannot inflate {model.name}: only llama models with equal layers can grow")
    shape = DemoShape(model.n_embd, model.n_layer, ffn.pop(), heads.pop(), kv_heads.pop(), model.n_vocab)
    _check_source_shape(model.name, shape, model.head_dim)
    return shape


def read_head_shape(eagle: EagleInfo) -> DemoShape:
    if eagle.norm_before_fc:  # its norm spans all taps with the head's eps, which growth would change
        raise IncompatibleError(f"cannot inflate {eagle.name}: heads with norm_before_fc cannot grow exactly")
    shape = DemoShape(eagle.width, 1, eagle.n_ff, eagle.n_head, eagle.n_kv_head, eagle.n_vocab)
    _check_source_shape(eagle.name, shape, eagle.head_dim)
    return shape


def _check_source_shape(name: str, shape: DemoShape, head_dim: int) -> None:
    if head_dim != HEAD_DIM or shape.width % 32 or shape.ffn % 32 or shape.heads % shape.kv_heads:
        raise IncompatibleError(
            f"cannot inflate {name}: heads of {head_dim}, width {shape.width}, feed-forward {shape.ffn}; "
            f"heads of {HEAD_DIM} and multiples of 32 can grow"
        )


def _shape_entries(prefix: str, shape: DemoShape, eps: float) -> list[KeyValue]:
    counts = {
        "block_count": shape.layers,
        "embedding_length": shape.width,
        "feed_forward_length": shape.ffn,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
    }
    entries = [KeyValue(f"{prefix}.{key}", ValueType.UINT32, value) for key, value in counts.items()]
    return [*entries, KeyValue(f"{prefix}.{_EPS}", ValueType.FLOAT32, eps)]


def _label_entries(source: EmbeddedSource, reference: DemoSize, name: str) -> list[KeyValue]:
    origin = f"{source.header.metadata.get('general.name', 'unnamed')}, {source.header.tensor_bytes / 1e6:.1f} MB"
    return [
        KeyValue("general.name", ValueType.STRING, name),
        KeyValue("general.size_label", ValueType.STRING, reference.label.replace(" ", "")),
        KeyValue("general.file_type", ValueType.UINT32, _FILE_TYPES[reference.type]),
        KeyValue("general.quantization_version", ValueType.UINT32, 2),
        KeyValue(INFLATED_FROM_KEY, ValueType.STRING, origin),
    ]


def _with_copies(source: EmbeddedSource, changed: list[KeyValue]) -> list[KeyValue]:
    return [*changed, *copy_entries(source.header, without=frozenset(entry.key for entry in changed))]


def _read_number(source: EmbeddedSource, key: str) -> float:
    value: Scalar | object = source.header.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise IncompatibleError(f"{source.header.path.name}: {key} is {value!r}, not a number")
    return float(value)


def _make_tensors(parts: Iterator[Patchwork | StreamedTensor], pool: RandomPool) -> list[StreamedTensor]:
    return [part.tensor(pool) if isinstance(part, Patchwork) else part for part in parts]


def _check_all_used(source: EmbeddedSource, tensors: Sequence[StreamedTensor]) -> None:
    unknown = source.header.tensors.keys() - {tensor.name for tensor in tensors}
    if unknown:
        raise IncompatibleError(f"cannot inflate {source.header.path.name}: it has the tensor {min(unknown)}")


@dataclass(frozen=True, slots=True)
class _TargetPlan:
    source: EmbeddedSource
    model: ModelInfo
    growth: Growth
    reference: DemoSize

    def file(self, pool: RandomPool) -> FilePlan:
        tensors = _make_tensors(self._tensors(), pool)
        _check_all_used(self.source, tensors)
        eps = _read_number(self.source, f"llama.{_EPS}") * self.growth.eps_factor
        name = f"{self.model.name} at the cost of a {self.reference.label} model"
        changed = _label_entries(self.source, self.reference, name)
        changed += _shape_entries("llama", self.growth.new, eps)
        return FilePlan("llama", _with_copies(self.source, changed), tensors)

    def _tensors(self) -> Iterator[Patchwork | StreamedTensor]:
        yield self.growth.embeddings("token_embd.weight", self.source("token_embd.weight"))
        if "output.weight" in self.source.header.tensors:
            yield self.growth.output("output.weight", self.source("output.weight"))
        yield self.growth.norm("output_norm.weight", self.source("output_norm.weight"))
        yield from self.source.vector_if_there(_ROPE)
        for layer in range(self.growth.new.layers):
            yield from self._layer(f"blk.{layer}", appended=layer >= self.growth.old.layers)

    def _layer(self, prefix: str, *, appended: bool) -> Iterator[Patchwork | StreamedTensor]:
        weights = None if appended else self.source
        for norm in (f"{prefix}.attn_norm.weight", f"{prefix}.ffn_norm.weight"):
            yield self.growth.norm(norm, weights(norm) if weights else None)
        yield from widen_attention(prefix, self.growth, self.growth.stream, weights)
        yield from widen_feed_forward(prefix, self.growth, weights)


@dataclass(frozen=True, slots=True)
class _HeadPlan:
    """The plan of the head. It gets its own embeddings and output, for its width is no longer the target's."""

    source: EmbeddedSource
    target: EmbeddedSource
    eagle: EagleInfo
    growth: Growth
    target_growth: Growth
    reference: DemoSize

    def file(self, pool: RandomPool) -> FilePlan:
        tensors = _make_tensors(self._tensors(), pool)
        _check_all_used(self.source, tensors)
        name = f"draft head of the {self.eagle.name} at the cost of a {self.reference.label} model's"
        changed = _label_entries(self.source, self.reference, name)
        changed += _shape_entries("eagle3", self.growth.new, self.eagle.rms_eps * self.growth.eps_factor)
        # the host's norm of the taps runs over the target's width, which grew by another factor
        tap_eps = self.eagle.fc_norm_eps * self.target_growth.eps_factor
        changed.append(KeyValue("eagle3.target_hidden_size", ValueType.UINT32, self.target_growth.new.width))
        changed.append(KeyValue(FC_NORM_EPS_KEY, ValueType.FLOAT32, tap_eps))
        return FilePlan("eagle3", _with_copies(self.source, changed), tensors)

    def _tensors(self) -> Iterator[Patchwork | StreamedTensor]:
        yield self._fusion()
        yield self.growth.embeddings("token_embd.weight", self._own_or_lent("token_embd.weight"))
        yield self.growth.output("output.weight", self._own_or_lent("output.weight"))
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
            yield self.growth.norm(f"{norm}.weight", self.source(f"{norm}.weight"))
        yield from self.source.vector_if_there(_ROPE)
        yield from widen_attention("blk.0", self.growth, self.growth.pair, self.source)
        yield from widen_feed_forward("blk.0", self.growth, self.source)
        if self.eagle.draft_vocab is not None:
            yield self._vocabulary_map()

    def _own_or_lent(self, name: str) -> Floats:
        """Return the head's own tensor, else the target's; the output of a target may be its embeddings."""
        if name in self.source.header.tensors:
            return self.source(name)
        return self.target(name if name in self.target.header.tensors else "token_embd.weight")

    def _fusion(self) -> Patchwork:
        """Return fc over padded taps, which lie side by side.

        With fc_norm it is scaled down: dividing a padded row by its RMS makes the row sqrt(D/d) too large.
        """
        values = self.source("fc.weight")
        old, new = self.target_growth.old.width, self.target_growth.new.width
        gain = np.float32(self.target_growth.norm_gain if self.eagle.fc_norm else 1.0)
        patches: list[Patch] = []
        for tap in range(values.shape[1] // old):
            patches.append(
                make_zero_patch(self.growth.old.width, tap * new, self.growth.new.width - self.growth.old.width, old)
            )
            patches.append(make_patch(0, tap * new, values[:, tap * old : (tap + 1) * old] * gain))
        return Patchwork("fc.weight", self.growth.new.width, 3 * new, patches)

    def _vocabulary_map(self) -> StreamedTensor:
        raw = read_indices(self.source.header.path, self.source.header, "d2t").astype("<i8").view(np.uint8)
        return StreamedTensor("d2t", (len(raw) // 8,), GGML_TYPES_BY_NAME["I64"], lambda: iter((raw,)))
