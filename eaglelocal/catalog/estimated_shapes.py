"""Estimate the shapes of catalog entries from figures on public pages.

File sizes are those of the pages; their split into embeddings, layers and output follows llama.cpp's rules for
quantizing (src/llama-quant.cpp). gguf/model_shape.py gives exact figures once there is a header to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from eaglelocal.catalog.draft_entries import BLOCKS, EAGLE, MTP, DraftEntry
from eaglelocal.catalog.target_entries import EntryShape, Layers
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import BLOCK
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.writer import BEST_TYPE

Q4_0_BITS, Q6_K_BITS, Q8_0_BITS = 4.5, 6.5625, 8.5
# bits per embedding value, by prefix of the quantization's name (others: Q8_0); the output has at least Q6_K
EMBEDDING_BITS: Mapping[str, float] = MappingProxyType(
    {
        "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8": Q8_0_BITS, "MXFP4": Q8_0_BITS, "Q6": Q6_K_BITS, "Q5": 5.5,
        "Q4": 4.5, "IQ4": 4.25, "QAT": 4.5, "Q3": 3.4375, "IQ3": 3.4375, "Q2": 2.625, "IQ2": 2.625,
    }
)  # fmt: skip
HEAD_DIMS = (128, 64, 32)  # head dimensions of draft heads and small models, the usual one first
SMALL_WIDTH, SMALL_FF = 1024, 3072  # assumed for a draft model of which only the size is known
ASSISTANT_LAYERS = 4  # of Gemma 4's MTP
BLOCK_LAYERS = (5, 6, 4, 8, 3, 2)  # of a head that drafts blocks, the likeliest first
P_EAGLE_LAYERS = 4  # of all published P-EAGLE heads
SMALL_LAYERS = (24, 28, 16, 22, 18, 26, 20, 12, 30, 32, 36)  # the likeliest first
MIXTURE_FF = 6  # a head's feed-forward in widths of a mixture of experts, as in SpecForge's configurations
HEAD_TYPE = "q8_0"  # the type whose size is used for an imported head, where it is known
# bits of the types that the engine loads as a lighter copy
HEAVY_BITS: Mapping[str, float] = MappingProxyType({"q8_0": Q8_0_BITS, "f16": 16.0, "bf16": 16.0})


@dataclass(frozen=True, slots=True)
class _FileParts:
    """The bytes of each part of a file."""

    embedding: int
    output: int  # of a separate tensor; 0 if the output is tied to the embeddings
    layers: int
    tied_output: int  # the part of `embedding` that is also the output


def estimate_target_shape(outline: EntryShape, quant: str, num_bytes: int) -> ModelShape:
    """Estimate the shape of a target's file of `num_bytes` in this quantization."""
    num_bytes -= outline.table_bytes
    split = _split_file(outline, quant, num_bytes)
    layers = _spread_layers(outline)
    states = _spread_states(outline, layers)
    windowed = outline.windowed if outline.windowed in layers else None
    experts, expert_share = outline.experts, compute_expert_share(outline)
    idle_share = expert_share * (1.0 - experts.used / experts.count) if experts else 0.0  # of experts not routed to
    layer_bytes = int(split.layers * expert_share) // outline.n_layer
    return ModelShape(
        architecture=outline.architecture,
        n_layer=outline.n_layer,
        n_embd=outline.n_embd,
        n_vocab=outline.n_vocab,
        n_head=outline.n_head,
        key_dim=outline.full.head_dim,
        value_dim=outline.full.value_dim,
        kv_heads=tuple(layer.kv_heads if layer else 0 for layer in layers),
        windows=tuple(layer.window if layer else None for layer in layers),
        layer_states=states,
        n_ff=max(outline.n_ff, experts.n_ff * experts.used if experts else 0),
        weights_bytes=num_bytes,
        embedding_bytes=split.embedding,
        output_bytes=split.output,
        active_bytes=split.output + split.tied_output + int(split.layers * (1.0 - idle_share)),
        max_context=outline.max_context,
        tied_output_bytes=split.tied_output,
        expert_bytes=(layer_bytes,) * outline.n_layer if layer_bytes else (),  # as if all layers were alike
        n_layer_embd=_count_layer_embeddings(outline) // outline.n_vocab,
        table_bytes=outline.table_bytes,
        index_dim=outline.full.index_dim,
        n_expert=experts.count if experts else 0,
        n_expert_used=experts.used if experts else 0,
        window_key_dim=windowed.head_dim if windowed else None,
        window_value_dim=windowed.value_dim if windowed else None,
        n_inner=2 * outline.n_embd if any(states) else 0,
    )


def _split_file(outline: EntryShape, quant: str, num_bytes: int) -> _FileParts:
    """Split a file's bytes. Tied embeddings are stored in the output's type; the rest belongs to the layers."""
    values, name = outline.n_vocab * outline.n_embd, quant.upper().removeprefix("UD-")
    bits = next((bits for stem, bits in EMBEDDING_BITS.items() if name.startswith(stem)), Q8_0_BITS)
    output = int(values * max(bits, Q6_K_BITS) / 8)
    tokens = output if outline.ties_embeddings else int(values * bits / 8)
    own_output = 0 if outline.ties_embeddings else output
    if tokens + own_output > num_bytes // 2:  # implausible figures: limit both parts
        tokens, own_output = num_bytes // 4, own_output and num_bytes // 4
    layer_embeddings = int(num_bytes * _count_layer_embeddings(outline) / (outline.parameters_b * 1e9))
    embedding = tokens + min(
        layer_embeddings, (num_bytes - tokens - own_output) // 2
    )  # at most half of the rest, likewise
    tied_output = tokens if outline.ties_embeddings else 0
    return _FileParts(embedding, own_output, num_bytes - embedding - own_output, tied_output)


def _count_layer_embeddings(outline: EntryShape) -> int:
    """Return the number of per-layer embedding parameters, which are looked up and never multiplied (gemma-4-e4b).

    They are the inactive parameters without the token embeddings; 0 for mixtures of experts.
    """
    if outline.experts is not None:
        return 0
    idle = (outline.parameters_b - outline.active_parameters_b) * 1e9
    return int(max(idle - outline.n_vocab * outline.n_embd, 0.0))


def compute_expert_share(outline: EntryShape) -> float:
    """Return the share of the layers' parameters that belongs to experts, at most 0.98."""
    experts = outline.experts
    if experts is None:
        return 0.0
    embeddings = outline.n_vocab * outline.n_embd * (1 if outline.ties_embeddings else 2)
    in_layers = max(outline.parameters_b * 1e9 - embeddings, 1.0)
    in_experts = experts.num_layers * experts.num_matrices * outline.n_embd * experts.n_ff * experts.count
    return min(in_experts / in_layers, 0.98)


def _spread_layers(outline: EntryShape) -> list[Layers | None]:
    """Return the cache of each layer; None for a layer without keys and values.

    Layers with full attention are spread evenly, with recurrent layers between them. Other layers without a cache come
    last, because they read an earlier layer's.
    """
    windowed = outline.windowed
    num_cached = outline.full.num_layers + (windowed.num_layers if windowed else 0)
    total = outline.n_layer if outline.state_bytes else num_cached
    other = None if outline.state_bytes else windowed
    count = outline.full.num_layers
    layers = [
        outline.full if (layer + 1) * count // total > layer * count // total else other for layer in range(total)
    ]
    return layers + [None] * (outline.n_layer - total)


def _spread_states(outline: EntryShape, layers: list[Layers | None]) -> tuple[int, ...]:
    num_recurrent = sum(layer is None for layer in layers) if outline.state_bytes else 0
    layer_bytes = outline.state_bytes // num_recurrent if num_recurrent else 0
    return tuple(layer_bytes if layer is None else 0 for layer in layers)


def compute_draft_sizes(draft: DraftEntry, target: EntryShape) -> DraftEntry:
    """Return a head with the sizes that follow from its target's shape, if its entry has none; else as it is.

    Of the 19 heads of dense targets whose parameters are published 18 have as many, one 9 % fewer. Those of mixtures
    have up to a third fewer, because each project chooses their feed-forward's width.
    """
    is_head = draft.kind in (EAGLE, *BLOCKS) and not draft.is_in_target
    if draft.sizes or not is_head:
        return draft
    layers = BLOCK_LAYERS[0] if draft.kind in BLOCKS else P_EAGLE_LAYERS if draft.drafts_in_parallel else 1
    parameters = _count_head_parameters(draft, target, layers)
    bits = {"bf16": 16.0, "q8_0": Q8_0_BITS, "q4_k": Q4_0_BITS}
    return replace(
        draft,
        sizes=MappingProxyType({kind: int(parameters * each / 8) for kind, each in bits.items()}),
        parameters_m=parameters / 1e6,
        kv_bytes_per_token=4 * layers * target.full.kv_heads * target.full.head_dim,  # keys and values, in two bytes
        has_computed_size=True,
    )


def _count_head_parameters(draft: DraftEntry, target: EntryShape, num_layers: int) -> int:
    """Count the weights of a head whose layers are as the target's; an EAGLE head's first reads rows twice as wide."""
    width, queries, keys = (
        target.n_embd,
        target.n_head * target.full.head_dim,
        target.full.kv_heads * target.full.head_dim,
    )
    ff = MIXTURE_FF * width if target.experts else target.n_ff
    layer = width * (queries + 2 * keys) + queries * width + 3 * width * ff
    if draft.kind in BLOCKS:  # it fuses one tap for each layer, and borrows the rest
        return num_layers * (layer + width * width)
    vocabularies = (draft.draft_vocab or target.n_vocab) + (
        target.n_vocab if draft.own_embeddings or draft.drafts_in_parallel else 0
    )
    return num_layers * layer + width * (queries + 2 * keys) + draft.num_taps * width * width + vocabularies * width


def find_loaded_type(draft: DraftEntry) -> str | None:
    """Return the type of a draft's weights once loaded, None if unknown; EAGLE heads are loaded as a lighter copy."""
    kind = find_draft_type(draft)
    return BEST_TYPE if draft.kind == EAGLE and kind in HEAVY_BITS else kind


def find_draft_type(draft: DraftEntry) -> str | None:
    """Return the type whose size counts as the draft's; None if no size is known."""
    return next((kind for kind in ("file", HEAD_TYPE, "q4_k", "f16", "bf16") if kind in draft.sizes), None)


@dataclass(frozen=True, slots=True)
class _DraftLayers:
    """The layers of a draft, all alike and with full attention."""

    num_layers: int
    head_dim: int
    kv_heads: int
    n_embd: int
    n_head: int
    n_ff: int


def _draft_shape(
    architecture: str,
    target: EntryShape,
    layers: _DraftLayers,
    *,
    weights_bytes: int,
    active_bytes: int,
    embedding_bytes: int = 0,
    num_taps: int = 0,
) -> ModelShape:
    """Return the shape of a draft for this target, which has no output tensor of its own."""
    return ModelShape(
        architecture=architecture,
        num_taps=num_taps,
        n_layer=layers.num_layers,
        n_embd=layers.n_embd,
        n_vocab=target.n_vocab,
        n_head=layers.n_head,
        key_dim=layers.head_dim,
        value_dim=layers.head_dim,
        kv_heads=(layers.kv_heads,) * layers.num_layers,
        windows=(None,) * layers.num_layers,
        layer_states=(0,) * layers.num_layers,
        n_ff=layers.n_ff,
        weights_bytes=weights_bytes,
        embedding_bytes=embedding_bytes,
        output_bytes=0,
        active_bytes=active_bytes,
        max_context=target.max_context,
    )


def estimate_mtp_shape(outline: EntryShape, target: ModelShape) -> ModelShape:
    """Estimate the target's own MTP layer, in the target's types: a layer, and the matrix that joins its inputs.

    The layer has experts even where only some of the target's layers have them (Nemotron-H).
    """
    bits = 8.0 * target.weights_bytes / (outline.parameters_b * 1e9)
    join_bytes = int(2 * outline.n_embd**2 * bits / 8)
    all_bytes = target.weights_bytes - target.embedding_bytes - target.output_bytes
    experts, full = outline.experts, outline.full
    expert_bytes = sum(target.expert_bytes) // experts.num_layers if experts else 0
    layer_bytes = (all_bytes - sum(target.expert_bytes)) // outline.n_layer
    shape = _draft_shape(
        MTP,
        outline,
        _DraftLayers(1, full.head_dim, full.kv_heads, outline.n_embd, outline.n_head, target.n_ff),
        num_taps=1,
        weights_bytes=layer_bytes + expert_bytes + join_bytes,
        active_bytes=layer_bytes
        + (expert_bytes * experts.used // experts.count if experts else 0)
        + join_bytes
        + target.read_output_bytes,
    )
    return replace(shape, value_dim=full.value_dim, n_expert=target.n_expert, n_expert_used=target.n_expert_used)


def estimate_draft_shape(draft: DraftEntry, target: EntryShape) -> ModelShape | None:
    """Estimate the shape of a head or a small model for this target; None if its size or cache is not known."""
    kind = find_draft_type(draft)
    if kind is None or draft.kv_bytes_per_token is None:
        return None
    num_bytes = draft.sizes[kind]
    if draft.kind in BLOCKS:
        return _block_shape(draft, target, num_bytes)
    if draft.kind == MTP:
        return _assistant_shape(target, num_bytes)
    if draft.kind == EAGLE:
        return _eagle_shape(draft, target, num_bytes, kind)
    return _small_model_shape(draft, target, num_bytes)


def _eagle_shape(draft: DraftEntry, target: EntryShape, num_bytes: int, kind: str) -> ModelShape:
    """Return the shape of an EAGLE head as it is loaded: as wide as its target, and requantized if that is lighter."""
    # some published heads borrow the target's embeddings although their entry states embeddings of their own
    embedding = int(target.n_vocab * target.n_embd * Q8_0_BITS / 8) if draft.own_embeddings else 0
    embedding = embedding if embedding < num_bytes else 0
    if kind in HEAVY_BITS:  # its requantized copy (gguf/writer.py) has embeddings in 8 bits
        bits = HEAVY_BITS[kind]
        num_bytes = int(embedding + max(num_bytes - embedding * bits / Q8_0_BITS, 0.0) * Q4_0_BITS / bits)
    num_layers = P_EAGLE_LAYERS if draft.drafts_in_parallel else 1
    shape = _draft_shape(
        EAGLE,
        target,
        _fit_layers(draft, (num_layers,), n_embd=target.n_embd, n_ff=target.n_ff),
        num_taps=draft.num_taps,
        weights_bytes=num_bytes,
        embedding_bytes=embedding,
        active_bytes=num_bytes - embedding,
    )
    if draft.drafts_in_parallel:
        return _add_upper_layers(shape, draft)
    output_bytes = (draft.draft_vocab or target.n_vocab) * target.n_embd * Q4_0_BITS / 8
    return replace(shape, output_bytes=min(int(output_bytes), (num_bytes - embedding) // 2))


def _add_upper_layers(shape: ModelShape, draft: DraftEntry) -> ModelShape:
    """Return the shape of a P-EAGLE head; its output is the embeddings of its upper layers (gguf/upper_layers.py)."""
    num_tokens = draft.draft_vocab or shape.n_vocab
    output_bytes = int(num_tokens * shape.n_embd * Q4_0_BITS / 8)
    return replace(
        shape,
        block_size=draft.num_draft_tokens,
        max_depth=draft.num_draft_tokens,
        upper_vocab=num_tokens,
        embedding_bytes=shape.embedding_bytes + output_bytes,
        tied_output_bytes=output_bytes,
    )


def _small_model_shape(draft: DraftEntry, target: EntryShape, num_bytes: int) -> ModelShape:
    """Return the shape of a small model, a quarter of which is assumed to be embeddings tied to its output."""
    shape = _draft_shape(
        target.architecture,
        target,
        _fit_layers(draft, SMALL_LAYERS, n_embd=SMALL_WIDTH, n_ff=SMALL_FF),
        weights_bytes=num_bytes,
        embedding_bytes=num_bytes // 4,
        active_bytes=num_bytes,
    )
    return replace(shape, tied_output_bytes=num_bytes // 4)


def _block_shape(draft: DraftEntry, target: EntryShape, num_bytes: int) -> ModelShape:
    """Return the shape of a block-drafting head: as wide as its target, whose output it borrows and reads."""
    layers = _fit_layers(draft, BLOCK_LAYERS, n_embd=target.n_embd, n_ff=target.n_ff)
    borrowed_bytes = int(target.n_vocab * target.n_embd * Q6_K_BITS / 8)
    shape = _draft_shape(
        BLOCK,
        target,
        layers,
        num_taps=layers.num_layers,
        weights_bytes=num_bytes,
        active_bytes=num_bytes + borrowed_bytes,
    )
    return replace(shape, block_size=draft.num_draft_tokens, max_depth=draft.num_draft_tokens)


def _assistant_shape(target: EntryShape, num_bytes: int) -> ModelShape:
    """Return the shape of MTP layers in a separate file: half of it is their output, and they keep no KV cache."""
    layers = _DraftLayers(ASSISTANT_LAYERS, HEAD_DIMS[0], 0, SMALL_WIDTH, SMALL_WIDTH // HEAD_DIMS[0], SMALL_FF)
    shape = _draft_shape(
        MTP,
        target,
        layers,
        num_taps=1,
        weights_bytes=num_bytes,
        embedding_bytes=num_bytes // 2,
        active_bytes=num_bytes,
    )
    return replace(shape, tied_output_bytes=num_bytes // 2)


def _fit_layers(draft: DraftEntry, likely_layers: Sequence[int], *, n_embd: int, n_ff: int) -> _DraftLayers:
    """Return layers of this width whose keys and values have the stated size, likely layer counts first."""
    values = (draft.kv_bytes_per_token or 0) // 4  # keys and values, of two bytes each
    fitting = (
        (num_layers, head_dim)
        for num_layers in likely_layers
        for head_dim in HEAD_DIMS
        if values and values % (num_layers * head_dim) == 0
    )
    num_layers, head_dim = next(fitting, (likely_layers[0], HEAD_DIMS[-1]))
    kv_heads = -(-values // (num_layers * head_dim))
    return _DraftLayers(num_layers, head_dim, kv_heads, n_embd, max(n_embd // head_dim, kv_heads), n_ff)
