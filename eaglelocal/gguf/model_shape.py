"""The sizes of a model that memory and speed depend on: exact from a file, approximate from a catalog.

A shape says how much memory a model holds and reads; memory/estimate.py decides on which device. Bytes of weights count
only the tensors that llama.cpp loads: layers that only predict ahead (MTP) stay in the file.
"""

from __future__ import annotations

from dataclasses import replace

from eaglelocal.core.records import dataclass
from eaglelocal.core.request import MAX_DRAFT_TOKENS
from eaglelocal.gguf import architectures, layer_caches
from eaglelocal.gguf.architectures import ArchitectureKeys
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.medusa_info import MedusaInfo, read_graph_head
from eaglelocal.gguf.model_info import ModelInfo, num_mtp_layers
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.upper_layers import (
    LAYER_EMBEDDING,
    TOKEN_EMBEDDING,
    UPPER,
    active_bytes,
    find_block,
    find_table,
    find_upper_layers,
    is_expert,
    is_input,
    list_loaded_tensors,
    sum_weights,
)

HeadInfo = EagleInfo | MedusaInfo | BlockInfo | MtpInfo  # drafts from the target's own states
DraftInfo = HeadInfo | ModelInfo
MTP = "mtp"  # not an architecture of llama.cpp, but a layer of one
# graphs that read a whole text at once and have no KV cache
CACHELESS = frozenset(
    {
        "bert", "dream", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llada", "llada-moe",
        "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "rnd1", "wavtokenizer-dec",
    }
)  # fmt: skip
SHARES_FROM_LAYER = {"gemma3n": 20}  # layers from here on read the cache of an earlier one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model's sizes. The `n_layer_ahead` MTP layers of its file are counted apart from `n_layer`, and not loaded.

    kv_heads           [n_layer]; 0: the layer has no keys and values of its own
    windows            [n_layer] tokens that a layer's cache must hold; None: all of them
    layer_states       [n_layer] bytes of recurrent state of one sequence
    compressions       [n_layer] tokens that a layer also keeps as one row, and the row's values; empty: none does
    layer_bytes        [n_layer] weights of each layer; empty: all alike
    expert_bytes       [n_layer] of those, the experts (MoE) that tokens are routed to; empty: none
    embedding_bytes    looked up, of the tokens and of each layer: llama.cpp keeps them in RAM whatever is offloaded
    output_bytes       after the last block, in tensors of its own
    tied_output_bytes  of the embeddings, those that are multiplied as the output too; 0 where the output is its own
    active_bytes       read for one token: of the experts the share that it uses, of the embeddings those of the output
    n_layer_embd       values that are looked up for a token for all layers together, besides its embedding
    table_bytes        of those, in a table that stays in the file; not in the other bytes
    index_dim          values by which an indexer chooses a cell, kept beside its keys
    index_scores       scores of a cell that it adds up, one by one
    """

    architecture: str
    n_layer: int
    n_embd: int
    n_vocab: int
    n_head: int
    key_dim: int
    value_dim: int  # 0: values are a part of the keys (MLA)
    kv_heads: tuple[int, ...]
    windows: tuple[int | None, ...]
    layer_states: tuple[int, ...]
    n_ff: int
    weights_bytes: int
    embedding_bytes: int
    output_bytes: int
    active_bytes: int
    max_context: int
    tied_output_bytes: int = 0
    n_layer_embd: int = 0
    table_bytes: int = 0
    index_dim: int = 0
    index_scores: float = 0.0
    n_expert: int = 0
    n_expert_used: int = 0
    layer_bytes: tuple[int, ...] = ()
    expert_bytes: tuple[int, ...] = ()
    n_layer_ahead: int = 0
    window_key_dim: int | None = None  # of layers with a window; None: as in the others
    window_value_dim: int | None = None
    num_taps: int = 0  # layers of the target that a head reads
    block_size: int = 1  # tokens that one pass of it drafts
    max_depth: int = MAX_DRAFT_TOKENS  # tokens that it can draft after a root
    upper_vocab: int = 0  # tokens that the upper layers of a head of several layers give logits of
    compressions: tuple[tuple[int, int], ...] = ()
    n_inner: int = 0  # width inside a recurrent layer; 0 where there is none or it is not known

    def __post_init__(self) -> None:
        for name in ("kv_heads", "windows", "layer_states"):
            if len(getattr(self, name)) != self.n_layer:
                raise ValueError(f"{name} has {len(getattr(self, name))} entries for {self.n_layer} layers")

    @property
    def is_head(self) -> bool:
        """True for a head, which drafts from the target's own states."""
        return self.architecture in (*architectures.HEAD_ARCHITECTURES, MTP)

    def list_upper(self) -> tuple[ModelShape, ...]:
        """Return the shape of a head's upper layers as they are computed, in a context of their own; or nothing."""
        if not self.upper_vocab:
            return ()
        return (replace(self, architecture=UPPER, n_vocab=self.upper_vocab, upper_vocab=0),)

    @property
    def reads_cache(self) -> bool:
        """True for a draft that reads the target's KV cache and has none."""
        return self.architecture == MTP and not any(self.kv_heads)

    @property
    def read_output_bytes(self) -> int:
        """The bytes multiplied as the output after the last block: tensors of its own, or the embeddings."""
        return self.output_bytes + self.tied_output_bytes

    @property
    def state_bytes(self) -> int:
        """The bytes of recurrent state of one sequence."""
        return sum(self.layer_states)

    @property
    def has_state(self) -> bool:
        """True if the model keeps recurrent state: no branches, and rollback only by snapshots."""
        return (
            any(self.layer_states)
            or self.architecture in architectures.RECURRENT_ARCHITECTURES | architectures.HYBRID_ARCHITECTURES
        )

    @property
    def keeps_snapshots(self) -> bool:
        """True if llama.cpp can keep earlier recurrent states to roll back to."""
        return self.architecture in architectures.SNAPSHOT_ARCHITECTURES

    @property
    def has_windows(self) -> bool:
        return any(window is not None for window in self.windows)

    def bytes_of_layer(self, layer: int) -> int:
        """Return the bytes of a layer's weights."""
        if self.layer_bytes:
            return self.layer_bytes[layer]
        return (self.weights_bytes - self.embedding_bytes - self.output_bytes) // max(self.n_layer, 1)

    def experts_of_layer(self, layer: int) -> int:
        """Return the bytes of a layer's experts, of which a token reads some."""
        return self.expert_bytes[layer] if self.expert_bytes else 0

    def experts_problem(self, n_cpu_moe: int) -> str:
        """Return why the experts of `n_cpu_moe` layers cannot be separated from the rest; empty if they can."""
        if not n_cpu_moe:
            return ""
        if not self.expert_bytes:
            return "this model has no experts"
        return f"this model has {self.n_layer} layers" if n_cpu_moe > self.n_layer else ""

    def key_width(self, layer: int) -> int:
        """Return the number of values in one token's keys."""
        return self.kv_heads[layer] * self._dim(layer, self.window_key_dim, self.key_dim)

    def value_width(self, layer: int) -> int:
        return self.kv_heads[layer] * self._dim(layer, self.window_value_dim, self.value_dim)

    def _dim(self, layer: int, window_dim: int | None, whole: int) -> int:
        return whole if window_dim is None or self.windows[layer] is None else window_dim


def read_shape(header: Header) -> ModelShape:
    """Return the shape of a target, a draft model or a head. Raises ModelFileError on missing or senseless keys."""
    if header.architecture == architectures.EAGLE:
        return describe_shape(read_graph_head(header))
    if header.architecture == architectures.BLOCK:
        return describe_shape(BlockInfo.from_header(header))
    return describe_shape(ModelInfo.from_header(header))


def describe_shape(info: DraftInfo) -> ModelShape:
    """Return the shape of a model or a draft. Raises ModelFileError on missing or senseless keys."""
    match info:
        case ModelInfo():
            return _model_shape(info)
        case MtpInfo():
            return _assistant_shape(info) if info.block is None else _mtp_shape(info, info.block)
        case _:
            return _head_shape(info)


def _head_shape(info: EagleInfo | MedusaInfo | BlockInfo) -> ModelShape:
    header = info.header
    block_size = info.num_depths if isinstance(info, EagleInfo) else info.max_draft
    is_chain = isinstance(info, EagleInfo) and info.mask is None
    weights = sum_weights(header, n_layer=info.n_layer)
    # the output of upper layers is the embeddings of a model of its own, which llama.cpp keeps in RAM too
    upper = find_upper_layers(header)
    tied = header.tensors["output.weight"].nbytes if upper else 0
    return ModelShape(
        architecture=header.architecture,
        n_layer=info.n_layer,
        n_embd=info.width,
        n_vocab=info.n_vocab,
        n_head=info.n_head,
        key_dim=info.head_dim,
        value_dim=info.value_dim,
        kv_heads=(info.n_kv_head,) * info.n_layer,
        windows=info.windows if isinstance(info, BlockInfo) else (None,) * info.n_layer,
        layer_states=(0,) * info.n_layer,
        n_ff=info.n_ff,
        weights_bytes=weights.total_bytes,
        embedding_bytes=weights.embedding_bytes + tied,
        output_bytes=weights.output_bytes - tied,
        active_bytes=weights.total_bytes - weights.embedding_bytes,
        tied_output_bytes=tied,
        upper_vocab=upper.num_rows if upper else 0,
        max_context=ArchitectureKeys(header, header.architecture).optional_count("context_length") or 0,
        layer_bytes=weights.layer_bytes,
        num_taps=len(info.target_layers),
        block_size=block_size,
        max_depth=MAX_DRAFT_TOKENS if is_chain else block_size,
    )


def _model_shape(info: ModelInfo) -> ModelShape:
    header = info.header
    keys = ArchitectureKeys(header, info.architecture)
    ahead = num_mtp_layers(keys)
    weights = sum_weights(header, n_layer=info.n_layer)
    n_expert = keys.optional_count("expert_count") or 0
    used = max(keys.counts("expert_used_count") or (0,))  # the most, where layers differ
    layer_embedding, table = header.tensors.get(LAYER_EMBEDDING), find_table(header)
    recurrent = layer_caches.recurrent_layers(keys, n_layer=info.n_layer, kv_heads=info.n_kv_head, n_ff=info.n_ff)
    compressions = layer_caches.read_compressions(keys, n_layer=info.n_layer, head_dim=info.head_dim)
    state = layer_caches.state_bytes_of_a_layer(
        keys, n_embd=info.n_embd, n_head=max(info.n_head), head_dim=info.head_dim
    )
    return ModelShape(
        architecture=info.architecture,
        n_layer=info.n_layer,
        n_embd=info.n_embd,
        n_vocab=info.n_vocab,
        n_head=max(info.n_head),
        key_dim=info.head_dim,
        value_dim=0 if compressions or keys.optional_count("attention.key_length_mla") else info.value_dim,
        kv_heads=_kv_heads(keys, info, recurrent),
        windows=layer_caches.read_windows(keys, info.n_layer),
        layer_states=(
            tuple(layer_caches.compressor_bytes(*each) for each in compressions)
            or tuple(state if is_recurrent else 0 for is_recurrent in recurrent)
        ),
        compressions=compressions,
        # of a dense layer, or of the used experts together
        n_ff=max(*info.n_ff, used * max(keys.counts("expert_feed_forward_length") or (0,))),
        weights_bytes=weights.total_bytes,
        embedding_bytes=weights.embedding_bytes,
        output_bytes=weights.output_bytes,
        active_bytes=active_bytes(weights, n_expert=n_expert, n_expert_used=used),
        max_context=info.context_length,
        tied_output_bytes=weights.tied_output_bytes,
        n_layer_embd=layer_embedding.shape[0] if layer_embedding else 0,
        table_bytes=table.nbytes if table else 0,
        index_dim=layer_caches.read_index_dim(keys),
        index_scores=layer_caches.read_index_scores(keys),
        n_expert=n_expert,
        n_expert_used=used,
        layer_bytes=weights.layer_bytes,
        expert_bytes=weights.expert_bytes if any(weights.expert_bytes) else (),
        n_layer_ahead=ahead,
        window_key_dim=keys.optional_count("attention.key_length_swa"),
        window_value_dim=keys.optional_count("attention.value_length_swa"),
        n_inner=layer_caches.read_inner_width(keys, n_embd=info.n_embd) if any(recurrent) else 0,
    )


def _mtp_shape(info: MtpInfo, first: int) -> ModelShape:
    """Return the shape of MTP layers from layer `first` on, in a file of their own or in their model's.

    Tensors that they borrow from the model count in `active_bytes`, but not in `weights_bytes`. Of several layers all
    are loaded and have caches; one is read for a token.
    """
    header = info.header
    model = _model_shape(ModelInfo.from_header(header))
    keys = ArchitectureKeys(header, info.architecture)
    kv_heads = keys.counts("attention.head_count_kv") or (model.n_head,)
    n_layer = first + info.num_layers
    windows = layer_caches.read_windows(keys, n_layer)
    weights = sum_weights(header, n_layer=n_layer)
    all_bytes = weights.layer_bytes[first:]
    block = [tensor for tensor in header.tensors.values() if find_block(tensor.name) == first]
    layer_bytes = sum(tensor.nbytes for tensor in block)
    idle = sum(tensor.nbytes for tensor in block if is_expert(tensor.name))
    idle = idle * (model.n_expert - model.n_expert_used) // model.n_expert if model.n_expert else 0
    own = {tensor.name.rpartition("nextn.")[2]: tensor.nbytes for tensor in block}
    looked_up = own.get("embed_tokens.weight", 0)
    output = 0 if "shared_head_head.weight" in own else model.read_output_bytes
    alone = (model.embedding_bytes, model.output_bytes) if info.is_alone else (0, 0)
    return ModelShape(
        architecture=MTP,
        num_taps=1,
        n_layer=info.num_layers,
        n_embd=info.width,
        n_vocab=info.n_vocab,
        n_head=model.n_head,
        key_dim=model.key_dim,
        value_dim=model.key_dim if model.compressions else model.value_dim,  # allocated there, but not used
        kv_heads=tuple(kv_heads[min(layer, len(kv_heads) - 1)] for layer in range(first, n_layer)),
        windows=windows[first:],
        layer_states=(0,) * info.num_layers,
        n_ff=model.n_ff,
        weights_bytes=sum(all_bytes) + sum(alone),
        embedding_bytes=alone[0],
        output_bytes=alone[1],
        active_bytes=layer_bytes - idle - looked_up + output,
        max_context=model.max_context,
        tied_output_bytes=model.tied_output_bytes if info.is_alone else 0,
        n_expert=model.n_expert,
        n_expert_used=model.n_expert_used,
        layer_bytes=all_bytes,
        max_depth=info.num_layers if info.num_layers > 1 else MAX_DRAFT_TOKENS,
    )


def _assistant_shape(info: MtpInfo) -> ModelShape:
    """Return the shape of a stack that reads its target's cache and embeddings; its own embeddings are its output."""
    keys = ArchitectureKeys(info.header, info.header.architecture)
    n_layer = keys.count("block_count")
    weights = sum_weights(info.header, n_layer=n_layer)
    return ModelShape(
        architecture=MTP,
        num_taps=1,
        n_layer=n_layer,
        n_embd=keys.count("embedding_length"),
        n_vocab=info.n_vocab,
        n_head=max(keys.counts("attention.head_count") or (1,)),
        key_dim=keys.optional_count("attention.key_length") or 0,
        value_dim=keys.optional_count("attention.value_length") or 0,
        kv_heads=(0,) * n_layer,
        windows=(None,) * n_layer,
        layer_states=(0,) * n_layer,
        n_ff=max(keys.counts("feed_forward_length") or (0,)),
        weights_bytes=weights.total_bytes,
        embedding_bytes=weights.embedding_bytes,
        output_bytes=weights.output_bytes,
        active_bytes=weights.total_bytes,
        max_context=keys.optional_count("context_length") or 0,
        tied_output_bytes=weights.tied_output_bytes,
        layer_bytes=weights.layer_bytes,
    )


def _kv_heads(keys: ArchitectureKeys, info: ModelInfo, recurrent: tuple[bool, ...]) -> tuple[int, ...]:
    """Return the key heads of each layer, 0 for those without a cache of their own."""
    ahead = num_mtp_layers(keys)
    shared = keys.optional_count("attention.shared_kv_layers") or 0
    if info.architecture in CACHELESS:
        return (0,) * info.n_layer
    own = SHARES_FROM_LAYER.get(info.architecture, info.n_layer + ahead - shared)
    keeps = layer_caches.attention_layers(keys, recurrent=recurrent, n_ff=info.n_ff)
    return tuple(
        heads if keep and layer < own else 0
        for layer, (heads, keep) in enumerate(zip(info.n_kv_head, keeps, strict=True))
    )


def count_parameters(header: Header, shape: ModelShape) -> tuple[float, float]:
    """Return the numbers of (all parameters, parameters that one token is multiplied with)."""
    total = active = 0.0
    used = shape.n_expert_used / shape.n_expert if shape.n_expert else 1.0
    for tensor in list_loaded_tensors(header, n_layer=shape.n_layer):
        total += tensor.num_elements
        if is_input(tensor.name):
            is_output = shape.tied_output_bytes and tensor.name == TOKEN_EMBEDDING
            active += tensor.num_elements if is_output else 0
        else:
            active += tensor.num_elements * (used if is_expert(tensor.name) else 1.0)
    return total, active
