"""Read and check MTP layers ("nextn" in llama.cpp), which predict one token further: drafts that come with a target.

They take the same input as an EAGLE head's decoder, the next token and the target's final state before it, and feed
their own state to the next step. A layer is in the target's file after the ordinary ones, or, with embeddings and
output, in its own file. Of several, each drafts one token. Gemma 4 has a small stack in its own file, which reads the
target's cache.
Sources: graph_mtp of src/models/*.cpp, gemma4-assistant.cpp, common/speculative.cpp (`draft-mtp`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError, ModelFileError
from eaglelocal.gguf import architectures
from eaglelocal.gguf.architectures import ArchitectureKeys
from eaglelocal.gguf.hazards import check_alignment
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.layer_caches import read_windows
from eaglelocal.gguf.model_info import ModelInfo, num_mtp_layers, vocabulary_size

FIRST_TENSOR = "blk.0.attn_norm.weight"  # missing: the file holds MTP layers only
NEXTN_TENSORS = ("nextn.eh_proj", "nextn.enorm", "nextn.hnorm")
DENSE_TENSORS = ("ffn_gate", "ffn_up", "ffn_down")
EXPERT_TENSORS = ("ffn_gate_inp", "ffn_down_exps")  # and ffn_gate_exps with ffn_up_exps, or both as one tensor
# the loader takes files without these, on which the graph aborts or reads from address 0
OPTIONAL_TENSORS: Mapping[str, tuple[str, ...]] = MappingProxyType({"mimo2": ("attn_qkv", *DENSE_TENSORS)})
OWN_HEADS_ARCHITECTURES = (
    "bailingmoe3",
    "mimo2",
    "nemotron_h_moe",
    "step35",
)  # whose graphs read head counts per layer
EXPERTS_ONLY = ("deepseek2", "deepseek32", "glm-dsa", "glm4moe")  # whose graphs assert that the layer has experts
LITE_LAYERS = (26, 27)  # of deepseek2: numbers of layers for which it ignores q_lora_rank
LITE_LAYERS_BY_VOCABULARY: Mapping[int, int] = MappingProxyType({128256: 48})
EITHER_FFN = ("hy_v3", "step35")  # their graphs look for experts, and take a dense layer without them
HINT = "--draft none"


@dataclass(frozen=True, slots=True)
class MtpInfo:
    """An MTP layer as its header describes it. `width` is the width of the states that it reads and returns.

    architecture  of its target
    block         index of the layer: the number of ordinary layers; None: a stack that reads the target's cache
    num_layers    MTP layers in the file, each for one position of a draft
    cache_widths  for such a stack: values in one token's keys, in a layer with a window and in one without
    """

    name: str
    architecture: str
    block: int | None
    width: int
    n_vocab: int
    is_alone: bool  # the file has no ordinary layers
    header: Header = dataclasses.field(compare=False, repr=False)
    num_layers: int = 1
    missing: tuple[str, ...] = ()  # tensors
    abort_reason: str = ""  # why llama.cpp would load it and then abort
    cache_widths: tuple[int, int] = (0, 0)

    @property
    def reads_cache(self) -> bool:
        return self.block is None

    @property
    def selects_outputs(self) -> bool:
        """Return whether its graph returns states of output rows alone."""
        return self.architecture in architectures.SELECTING_MTP_ARCHITECTURES

    @classmethod
    def from_header(cls, header: Header) -> MtpInfo:
        """Read a header with an MTP layer.

        Raises IncompatibleError if there is no such layer, or there are several although llama.cpp runs only one;
        ModelFileError on senseless keys.
        """
        keys = ArchitectureKeys(header, header.architecture)
        if keys.prefix in architectures.ASSISTANTS:
            return _assistant(keys)
        ahead = num_mtp_layers(keys)
        if ahead != 1 and (not ahead or keys.prefix not in architectures.SEVERAL_MTP_ARCHITECTURES):
            many = f"{ahead} MTP layers, where one can draft" if ahead else "no MTP layer"
            raise IncompatibleError(f"{header.path.name} has {many}", hint="--draft auto")
        block = keys.count("block_count") - ahead
        layers = range(block, block + ahead)
        return cls(
            name=keys.model_name,
            architecture=keys.prefix,
            block=block,
            width=state_width(keys),
            n_vocab=vocabulary_size(keys),
            is_alone=FIRST_TENSOR not in header.tensors,
            header=header,
            num_layers=ahead,
            missing=tuple(name for layer in layers for name in missing_tensors(keys, layer)),
            abort_reason=next(filter(None, (find_abort_reason(keys, layer) for layer in layers)), ""),
        )


def _assistant(keys: ArchitectureKeys) -> MtpInfo:
    check_alignment(keys)
    num_layers = keys.count("block_count")
    if num_mtp_layers(keys) != num_layers:
        raise keys.error(f"claims {num_mtp_layers(keys)} of {num_layers} layers for prediction, expected all of them")
    return MtpInfo(
        name=keys.model_name,
        architecture=architectures.ASSISTANTS[keys.prefix],
        block=None,
        width=keys.count("embedding_length_out"),
        n_vocab=vocabulary_size(keys),
        is_alone=True,
        header=keys.header,
        cache_widths=cache_widths(keys, num_layers),
    )


def state_width(keys: ArchitectureKeys) -> int:
    """Return the width of the state that an MTP layer reads for each token."""
    is_hyper = keys.prefix in architectures.HYPER_CONNECTED_ARCHITECTURES
    return keys.count("embedding_length") * (keys.count("hyper_connection.count") if is_hyper else 1)


def find_abort_reason(keys: ArchitectureKeys, block: int) -> str:
    """Return why llama.cpp would accept the layer at `block` and then abort; empty if it would not.

    Its rows are `embedding_length_out` apart. Some graphs use the head counts of the first layer, others the layer's.
    """
    width, rows_width = keys.count("embedding_length"), keys.optional_count("embedding_length_out")
    if rows_width not in (None, 0, width) and keys.prefix not in architectures.HYPER_CONNECTED_ARCHITECTURES:
        return f"its states are {width} wide, its rows {rows_width}"
    for key in ("attention.head_count", "attention.head_count_kv"):
        counts = keys.counts(key) or (1,)
        own = counts[min(block, len(counts) - 1)]
        first = own if keys.prefix in OWN_HEADS_ARCHITECTURES else counts[0]
        if not first or first != own:
            return f"{key} is {own} in it and {first} in the first layer" if first else f"{key} is 0 in it"
    num_dense = keys.optional_count("leading_dense_block_count") or 0
    if keys.prefix in EXPERTS_ONLY and num_dense > block:
        return f"leading_dense_block_count is {num_dense}, which makes it dense"
    sections = keys.counts("rope.dimension_sections") or ()
    if keys.prefix == "glm4moe" and all(sections[:2]) and sections:  # vision models; the graph has no M-RoPE
        return "its positions have sections (M-RoPE)"
    if keys.prefix == "deepseek4":
        return _compressed_abort_reason(keys, block)
    return _latent_abort_reason(keys, block) if keys.prefix == "deepseek2" else ""


def _compressed_abort_reason(keys: ArchitectureKeys, block: int) -> str:
    """Return which of the assertions of deepseek4's MTP graph the keys violate; empty if none."""
    ratios = keys.counts("attention.compress_ratios") or ()
    if block < len(ratios) and ratios[block]:
        return f"it keeps {ratios[block]} tokens as one (compress_ratios)"
    widths = keys.optional_count("attention.key_length"), keys.optional_count("attention.indexer.key_length")
    if widths[0] == widths[1]:  # build_input_k_rot of llama-kv-cache.cpp divides by zero for the cache without layers
        return f"its keys and those of its indexer are {widths[0]} wide"
    num_tables = keys.optional_count("hash_layer_count") or 0
    return f"a table chooses its experts (hash_layer_count is {num_tables})" if num_tables > block else ""


def _latent_abort_reason(keys: ArchitectureKeys, block: int) -> str:
    """Return which of the assertions of deepseek2's MTP graph the keys violate; empty if none."""
    for key in ("attention.key_length_mla", "attention.value_length_mla"):
        if not keys.optional_count(key):
            return f"it lacks {keys.prefix}.{key}, and keeps keys and values apart"
    is_lite = block in LITE_LAYERS or (block == LITE_LAYERS_BY_VOCABULARY.get(vocabulary_size(keys)))
    if is_lite or not keys.optional_count("attention.q_lora_rank"):
        return "its queries have no latent form (q_lora_rank)"
    if keys.header.metadata.get(f"{keys.prefix}.attention.temperature_scale"):
        return "it scales attention by position (temperature_scale)"
    return ""


def cache_widths(keys: ArchitectureKeys, n_layer: int) -> tuple[int, int]:
    """Return the values in one token's keys (with a window, without one), of the last layer of each kind; 0 if none."""
    heads = keys.counts("attention.head_count_kv") or keys.counts("attention.head_count") or (0,)
    key_dim = keys.optional_count("attention.key_length") or 0
    window_key_dim = keys.optional_count("attention.key_length_swa") or key_dim
    widths = {True: 0, False: 0}
    for layer, window in enumerate(read_windows(keys, n_layer)):
        has_window = window is not None
        widths[has_window] = heads[min(layer, len(heads) - 1)] * (window_key_dim if has_window else key_dim)
    return widths[True], widths[False]


def missing_tensors(keys: ArchitectureKeys, block: int) -> Iterator[str]:
    """Yield the tensors without which the layer at `block` cannot run, though llama.cpp may load it."""
    names = NEXTN_TENSORS + OPTIONAL_TENSORS.get(keys.prefix, ())
    tensors = keys.header.tensors
    if keys.prefix in EITHER_FFN:
        is_fused = f"blk.{block}.ffn_gate_up_exps.weight" in tensors
        experts = EXPERT_TENSORS + (("ffn_gate_up_exps",) if is_fused else ("ffn_gate_exps", "ffn_up_exps"))
        names += experts if f"blk.{block}.ffn_gate_inp.weight" in tensors else DENSE_TENSORS
    for name in names:
        if f"blk.{block}.{name}.weight" not in tensors:
            yield f"blk.{block}.{name}.weight"
    outputs = ("output.weight", f"blk.{block}.nextn.shared_head_head.weight")
    if keys.prefix == "step35" and not any(name in tensors for name in outputs):
        yield outputs[0]


def find_mtp(header: Header) -> MtpInfo | None:
    """Return the file's MTP layer if it is complete and of a tested architecture, else None."""
    try:
        layer = MtpInfo.from_header(header)
    except (IncompatibleError, ModelFileError):
        return None
    is_usable = not (layer.missing or layer.abort_reason)
    return layer if layer.architecture in architectures.MTP_ARCHITECTURES and is_usable else None


def has_mtp(header: Header) -> bool:
    """Return whether the file has an MTP layer that can draft, for its own model or, alone, for another file's."""
    return find_mtp(header) is not None


def is_mtp_alone(header: Header) -> bool:
    """Return whether the file holds an MTP layer that can draft, and no model."""
    layer = find_mtp(header)
    return layer is not None and layer.is_alone


def check_mtp(layer: MtpInfo, target: ModelInfo) -> None:
    """Check that the layer can draft for `target`.

    Raises IncompatibleError with the figures if it cannot.
    """
    for problem in _problems(layer, target):
        raise IncompatibleError(f"the MTP layer of {layer.name} does not fit {target.name}: {problem}", hint=HINT)


def describe_unused(architecture: str) -> str:
    """Return why MTP layers of an architecture outside MTP_ARCHITECTURES do not draft."""
    why = architectures.UNUSED_MTP.get(architecture, "they have not been tested")
    return f"MTP layers of the architecture {architecture} cannot draft: {why}"


def _problems(layer: MtpInfo, target: ModelInfo) -> Iterator[str]:
    if layer.architecture not in architectures.MTP_ARCHITECTURES:
        yield describe_unused(layer.architecture)
    if layer.architecture != target.architecture:
        yield f"it was made for the architecture {layer.architecture}, the target is of {target.architecture}"
    if layer.missing:
        yield f"its file lacks the tensor {layer.missing[0]}"
    if layer.abort_reason:
        yield layer.abort_reason
    theirs = state_width(ArchitectureKeys(target.header, target.architecture))
    if layer.width != theirs:
        yield f"it was made for hidden size {layer.width}, the target has {theirs}"
    if layer.block not in (None, target.n_layer):
        yield f"it was made for {layer.block} layers, the target has {target.n_layer}"
    if layer.n_vocab != target.n_vocab:
        yield f"its vocabulary has {layer.n_vocab} tokens, the target's {target.n_vocab}"
    if layer.reads_cache:
        yield from _cache_problems(layer, target)


def _cache_problems(layer: MtpInfo, target: ModelInfo) -> Iterator[str]:
    """Yield how the caches of the target's last two layers differ from what the stack expects.

    llama.cpp lets it read the last layer's cache, and for a window the cache of the layer before, whatever their sizes.
    """
    keys = ArchitectureKeys(target.header, target.architecture)
    windows = read_windows(keys, target.n_layer)
    if target.n_layer < 2 or windows[-1] is not None or windows[-2] is None:
        yield "the target's last two layers are not one with a window and one without"
    theirs = cache_widths(keys, target.n_layer)
    for what, own, other in zip(("with a window", "without one"), layer.cache_widths, theirs, strict=True):
        if own not in (0, other):
            yield f"its layers {what} read {own} values of a token, the target's keep {other}"
