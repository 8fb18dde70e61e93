"""Plans of inflated files, a target and its head: every key and every tensor, before a byte is written.

Reads the headers of the sources and chooses shapes. The result's name says that it is inflated. Knows the llama and
eagle3 layouts; `generated_files.py` writes the files.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.eagle_info import FC_NORM_EPS_KEY, MASK_HIDDEN_KEY, TARGET_NAME_KEY, EagleInfo
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS
from eaglelocal.gguf.header import Header, Scalar
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tap_row import TapRow
from eaglelocal.gguf.tensors import read_indices, stream_indices, stream_vector
from eaglelocal.gguf.writer import StreamedTensor, list_entries
from eaglelocal.hub.inflation.generated_files import FilePlan
from eaglelocal.hub.inflation.inflated_sizes import BLOCK_STEP, LlamaShape, ModelSize, choose_head, choose_target
from eaglelocal.hub.inflation.widen import (
    Growth,
    Patch,
    Patchwork,
    Rows,
    SourceFile,
    make_patch,
    widen_attention,
    widen_feed_forward,
)

INFLATED_FROM_KEY = "eaglelocal.inflated_from"
EMBEDDINGS, OUTPUT = "token_embd.weight", "output.weight"
Keys = dict[str, Scalar | tuple[Scalar, ...]]
_EPS = "attention.layer_norm_rms_epsilon"
_ROPE = "rope_freqs.weight"


def plan_target(size: ModelSize, model: ModelInfo, *, step: int = BLOCK_STEP) -> FilePlan:
    """Plan an inflated target, written in `size.type`, whose widths are multiples of `step`.

    Raises ModelFileError or IncompatibleError if the source cannot be inflated, ResourceError if it is larger.
    """
    source, growth = model.header, grow_target(size, model, step=step)
    tensors = _make_tensors(source, _widen_target(SourceFile.of(source), growth), size)
    eps = _read_number(source, f"llama.{_EPS}") * growth.eps_factor
    keys = _label(source, size, make_inflated_name(model.name, size)) | _describe_shape("llama", growth.new, eps)
    return FilePlan(source, list_entries(keys), tensors)


def plan_head(size: ModelSize, eagle: EagleInfo, target: Header, growth: Growth) -> FilePlan:
    """Plan the inflated head of a target that grows by `growth`. Raises as plan_target, also if it does not fit."""
    source = eagle.header
    small = _read_head_shape(eagle)
    grown = choose_head(growth.new, small, eagle.draft_vocab or eagle.n_vocab)
    head = _Head(SourceFile.of(source), SourceFile.of(target), eagle, Growth(small, grown), growth)
    tensors = _make_tensors(source, head.tensors(), size)
    eps = eagle.rms_eps * head.growth.eps_factor
    keys = {
        **_label(source, size, f"draft head of the {eagle.name} at the cost of {size.phrase}'s"),
        **_describe_shape("eagle3", grown, eps),
        **({TARGET_NAME_KEY: make_inflated_name(eagle.target_name, size)} if eagle.target_name else {}),
        **TapRow(eagle.target_layers, growth.new.width).keys(),
        # the engine's norm of the taps covers the target's width, which grew by another factor
        FC_NORM_EPS_KEY: eagle.fc_norm_eps * growth.eps_factor,
    }
    if eagle.mask is not None:
        keys[MASK_HIDDEN_KEY] = _pad_mask(source, growth)
    return FilePlan(source, list_entries(keys), tensors)


def grow_target(size: ModelSize, source: ModelInfo, *, step: int = BLOCK_STEP) -> Growth:
    """Return the shapes of a source and its inflation. Raises as plan_target."""
    small = read_target_shape(source)
    return Growth(small, choose_target(size.num_parameters, small, step=step))


def read_target_shape(model: ModelInfo) -> LlamaShape:
    heads, kv_heads, ffn = set(model.n_head), set(model.n_kv_head), set(model.n_ff)
    if model.architecture != "llama" or "blk.0.ffn_gate_inp.weight" in model.header.tensors:
        kind = "has experts" if model.architecture == "llama" else f"is a {model.architecture} model"
        raise IncompatibleError(f"cannot inflate {model.name}: it {kind}", hint="use a dense llama model")
    if len(heads) + len(kv_heads) + len(ffn) != 3:
        raise IncompatibleError(f"cannot inflate {model.name}: its layers differ", hint="use another llama model")
    shape = LlamaShape(
        model.n_embd,
        model.n_layer,
        ffn.pop(),
        heads.pop(),
        kv_heads.pop(),
        model.n_vocab,
        head_dim=model.head_dim,
        is_tied=OUTPUT not in model.header.tensors,
    )
    _check_source_shape(model.name, shape, model.value_dim)
    return shape


def _read_head_shape(eagle: EagleInfo) -> LlamaShape:
    if eagle.norm_before_fc:  # its norm spans all taps with the head's eps, which growth would change
        raise IncompatibleError(
            f"cannot inflate {eagle.name}: heads with norm_before_fc cannot grow exactly", hint="--draft ngram"
        )
    shape = LlamaShape(
        eagle.width, 1, eagle.n_ff, eagle.n_head, eagle.n_kv_head, eagle.n_vocab, head_dim=eagle.head_dim
    )
    _check_source_shape(eagle.name, shape, eagle.value_dim)
    return shape


def _check_source_shape(name: str, shape: LlamaShape, value_dim: int) -> None:
    dim = shape.head_dim
    widths = (dim, shape.width, shape.ffn)
    if dim != value_dim or any(width % 32 for width in widths) or shape.heads % shape.kv_heads:
        raise IncompatibleError(
            f"cannot inflate {name}: heads of {dim}, width {shape.width}, feed-forward {shape.ffn}; "
            "multiples of 32 can grow",
            hint="use another llama model",
        )


def _describe_shape(prefix: str, shape: LlamaShape, eps: float) -> Keys:
    return {
        f"{prefix}.block_count": shape.layers,
        f"{prefix}.embedding_length": shape.width,
        f"{prefix}.feed_forward_length": shape.ffn,
        f"{prefix}.attention.head_count": shape.heads,
        f"{prefix}.attention.head_count_kv": shape.kv_heads,
        f"{prefix}.attention.key_length": shape.head_dim,
        f"{prefix}.attention.value_length": shape.head_dim,
        f"{prefix}.{_EPS}": eps,
    }


def _label(source: Header, size: ModelSize, name: str) -> Keys:
    origin = f"{source.metadata.get('general.name', source.path.name)}, {source.tensor_bytes / 1e6:.1f} MB"
    return {
        "general.name": name,
        "general.size_label": size.label.replace(" ", ""),
        "general.file_type": FILE_TYPE_IDS[size.type],
        "general.quantization_version": 2,
        INFLATED_FROM_KEY: origin,
    }


def make_inflated_name(name: str, size: ModelSize) -> str:
    return f"{name} at the cost of {size.phrase}"


def _read_number(source: Header, key: str) -> float:
    value: Scalar | object = source.metadata.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise IncompatibleError(f"{source.path.name}: {key} is {value!r}, not a number")
    return float(value)


def _make_tensors(source: Header, parts: Iterator[Patchwork | StreamedTensor], size: ModelSize) -> list[StreamedTensor]:
    """Return the tensors in the size's type. Raises IncompatibleError if the source has another one."""
    tensors = [part.tensor(size.type) if isinstance(part, Patchwork) else part for part in parts]
    if unknown := source.tensors.keys() - {tensor.name for tensor in tensors}:
        raise IncompatibleError(
            f"cannot inflate {source.path.name}: it has the tensor {min(unknown)}", hint="use another llama model"
        )
    return tensors


def _widen_target(source: SourceFile, growth: Growth) -> Iterator[Patchwork | StreamedTensor]:
    yield growth.embeddings(EMBEDDINGS, source.rows(EMBEDDINGS))
    if OUTPUT in source.header.tensors:
        yield growth.output(OUTPUT, source.rows(OUTPUT))
    yield growth.norm("output_norm.weight", source.vector("output_norm.weight"))
    yield from _copy_rope(source)
    for layer in range(growth.new.layers):
        prefix, own = f"blk.{layer}", source if layer < growth.old.layers else None
        for norm in (f"{prefix}.attn_norm.weight", f"{prefix}.ffn_norm.weight"):
            yield growth.norm(norm, own.vector(norm) if own else None)
        yield from widen_attention(prefix, growth, growth.stream, own)
        yield from widen_feed_forward(prefix, growth, own)


def _copy_rope(source: SourceFile) -> list[StreamedTensor]:
    """Return the file's own factors of the rotation, if it has any."""
    return [stream_vector(_ROPE, source.vector(_ROPE))] if _ROPE in source.header.tensors else []


def _pad_mask(source: Header, growth: Growth) -> tuple[Scalar, ...]:
    """Return a P-EAGLE head's stand-in for the taps, each of them padded as the target's are."""
    values, old = source.array(MASK_HIDDEN_KEY) or (), growth.old.width
    padding = (0.0,) * (growth.new.width - old)
    return tuple(value for tap in range(0, len(values), old) for value in (*values[tap : tap + old], *padding))


@dataclass(frozen=True, slots=True)
class _Head:
    """A head to widen. It gets its own embeddings and output, because its width differs from the target's."""

    source: SourceFile
    target: SourceFile
    eagle: EagleInfo
    growth: Growth
    target_growth: Growth

    def tensors(self) -> Iterator[Patchwork | StreamedTensor]:
        yield self._fusion()
        yield self.growth.embeddings(EMBEDDINGS, self._own_or_lent(EMBEDDINGS))
        yield self.growth.output(OUTPUT, self._own_or_lent(OUTPUT))
        for norm in ("output_norm", "blk.0.attn_norm", "blk.0.attn_norm_2", "blk.0.ffn_norm"):
            yield self.growth.norm(f"{norm}.weight", self.source.vector(f"{norm}.weight"))
        yield from _copy_rope(self.source)
        yield from widen_attention("blk.0", self.growth, self.growth.pair, self.source)
        yield from widen_feed_forward("blk.0", self.growth, self.source)
        if self.eagle.draft_vocab is not None:
            header = self.source.header
            yield stream_indices("d2t", read_indices(header, "d2t"))

    def _own_or_lent(self, name: str) -> Rows:
        """Return the head's own tensor, else the target's; a target's output may be its embeddings."""
        if name in self.source.header.tensors:
            return self.source.rows(name)
        return self.target.rows(name if name in self.target.header.tensors else EMBEDDINGS)

    def _fusion(self) -> Patchwork:
        """Return fc over padded taps, which lie side by side.

        With fc_norm it is scaled down: dividing a padded row by its RMS makes the row sqrt(D/d) too large.
        """
        values, width = self.source.rows("fc.weight"), self.growth.old.width
        old, new = self.target_growth.old.width, self.target_growth.new.width
        gain = self.target_growth.norm_gain if self.eagle.fc_norm else 1.0
        patches: list[Patch] = []
        for tap in range(len(self.eagle.target_layers)):
            part = values.part(0, values.num_rows, tap * old, old)
            patches.append(Patch(width, tap * new, self.growth.new.width - width, old))
            patches.append(make_patch(0, tap * new, part if gain == 1.0 else part.scale(gain)))
        columns = TapRow(self.eagle.target_layers, new).graph_size
        return Patchwork("fc.weight", self.growth.new.width, columns, patches)
