"""Figures that llama.cpp takes without a word and then aborts on, crashes on, or never returns from.

Each rule is an assertion of the pinned llama.cpp (0c1e57098), named beside it, or was found by loading
files with one figure changed (tests/engine/test_corrupted_files.py). They must be checked again whenever
the pin moves. Reads keys and tensor entries; what llama.cpp refuses by itself is left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.task import Task
from eaglelocal.gguf.architectures import (
    EQUAL_WIDTH_ARCHITECTURES,
    NO_ROPE_ARCHITECTURES,
    SMALL_GRAPH_ARCHITECTURES,
    WHOLE_ROPE_ARCHITECTURES,
)
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.keys import MAX_COUNT, TOKENS_KEY, ArchitectureKeys
from eaglelocal.gguf.pooling import task_of

TENSOR_ALIGNMENT = 32  # of ggml-impl.h
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.group_norm_epsilon")
# no kernel multiplies with these: type_traits_cpu in ggml-cpu.c has no vec_dot for them
NO_WEIGHTS = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})
UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))  # the others are in no text
SECTIONED_ARCHITECTURES = ("qwen35", "qwen35moe")
OWN_WIDTH_ARCHITECTURES = ("deepseek4", "qwen4exp", "gemma4-assistant")  # whose graphs heed embedding_length_out
HEADS = ("eagle3", "dflash")
OUTPUT_PROJECTION = "dense_2."  # makes states of another width, in embedding models
UNQUANTIZED = ("f32", "f16", "bf16")
ID_TABLES = ("d2t", "ffn_gate_tid2eid.weight")  # integers are meant there


def check_hazards(keys: ArchitectureKeys, *, head_dim: int, value_dim: int) -> None:
    """Raises ModelFileError with the figure that would end the process; the widths are those of a key and a value."""
    for problem in _problems(keys, head_dim, value_dim):
        raise keys.error(problem)


def check_places(keys: ArchitectureKeys) -> None:
    """Raises ModelFileError where data begins at a place that llama.cpp cannot map."""
    for problem in _place_problems(keys.header):
        raise keys.error(problem)


def graph_problem(architecture: str, *, kv_type: str, num_caches: int) -> str:
    """Why llama.cpp would run out of graph nodes for a context of so many caches; empty where it does not.

    ggml-impl.h: GGML_ABORT in ggml_hash_insert, found with the shape of Phi-4: neither one cache nor 16 bits do that.
    """
    if architecture not in SMALL_GRAPH_ARCHITECTURES or num_caches == 1 or kv_type in UNQUANTIZED:
        return ""
    return f"llama.cpp cannot give {num_caches} slots of a {architecture} model caches of {kv_type}"


def _problems(keys: ArchitectureKeys, head_dim: int, value_dim: int) -> Iterator[str]:
    yield from _epsilon_problems(keys)
    yield from _width_problems(keys, head_dim, value_dim)
    yield from _layer_problems(keys)
    yield from _output_problems(keys)
    yield from _rope_problems(keys, head_dim)
    yield from _section_problems(keys)
    yield from _scaling_problems(keys)
    yield from _expert_problems(keys)
    yield from _place_problems(keys.header)
    for tensor in keys.header.tensors.values():
        yield from _tensor_problems(tensor)
    yield from _token_problems(keys)


def _epsilon_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """ops.cpp: GGML_ASSERT(eps >= 0.0f), at the first decode."""
    for key in EPSILONS:
        name = f"{keys.prefix}.{key}"
        value = keys.header.metadata.get(name)
        if isinstance(value, float) and not 0 <= value < 1:
            yield f"{name} is {value}"


def _width_problems(keys: ArchitectureKeys, head_dim: int, value_dim: int) -> Iterator[str]:
    if keys.prefix in EQUAL_WIDTH_ARCHITECTURES and head_dim != value_dim:
        yield f"its keys are {head_dim} wide and its values {value_dim}, which {keys.prefix} models cannot have"
    for key in ("attention.key_length", "attention.value_length"):
        if keys.optional_count(key) == 0 and any(keys.counts("attention.head_count") or ()):
            yield f"{keys.prefix}.{key} is 0"
    for key in ("attention.head_count", "attention.head_count_kv"):
        heads = max(keys.counts(key) or (0,))
        if heads * max(head_dim, value_dim) > MAX_COUNT:  # n_embd_k_gqa wraps around and fits the tensors again
            yield f"{keys.prefix}.{key} is {heads}, more heads of width {max(head_dim, value_dim)} than 32 bits hold"


def _layer_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """load_hparams asserts that no more layers predict ahead than there are."""
    ahead, layers = keys.optional_count("nextn_predict_layers") or 0, keys.optional_count("block_count")
    if layers is not None and ahead > layers:
        yield f"{keys.prefix}.nextn_predict_layers is {ahead}, of {layers} layers"


def _output_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """States of heads and of embedding models are read in this width: from beyond what was computed, where it is wrong.

    Those of other targets are not read by it; whether their MTP layer can draft is asked by mtp.py.
    """
    if keys.prefix not in HEADS and task_of(keys.header) is Task.TEXT:
        return
    width, told = keys.optional_count("embedding_length"), keys.optional_count("embedding_length_out")
    projects = any(name.startswith(OUTPUT_PROJECTION) for name in keys.header.tensors)
    if told and told != width and not projects and keys.prefix not in OWN_WIDTH_ARCHITECTURES:
        yield f"{keys.prefix}.embedding_length_out is {told}, where its states are {width} wide"


def _rope_problems(keys: ArchitectureKeys, head_dim: int) -> Iterator[str]:
    """ops.cpp: n_dims is even and fits the head, at the first decode; with none at all it does not return."""
    sliding_dim = keys.optional_count("attention.key_length_swa") or head_dim
    for key, width in (("dimension_count", head_dim), ("dimension_count_swa", sliding_dim)):
        name = f"{keys.prefix}.rope.{key}"
        value = keys.header.metadata.get(name)
        if isinstance(value, int) and not _turns(keys.prefix, value, width):
            yield f"{name} is {value}, where heads are {width} wide"


def _section_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """ops.cpp: GGML_ASSERT that of the sections some turn something; others take none for no sections."""
    sections = keys.counts("rope.dimension_sections") if keys.prefix in SECTIONED_ARCHITECTURES else None
    if sections is not None and not any(sections):
        yield f"{keys.prefix}.rope.dimension_sections are all 0"


def _turns(architecture: str, num_dimensions: int, width: int) -> bool:
    if architecture in NO_ROPE_ARCHITECTURES:
        return num_dimensions == 0
    if architecture in WHOLE_ROPE_ARCHITECTURES:
        return num_dimensions == width and width % 2 == 0
    return 0 < num_dimensions <= width and num_dimensions % 2 == 0


def _scaling_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """load_hparams asserts that the type is known."""
    name = f"{keys.prefix}.rope.scaling.type"
    scaling = keys.header.metadata.get(name)
    if isinstance(scaling, str) and scaling not in ROPE_SCALINGS:
        yield f"{name} is {scaling!r}, known are {', '.join(ROPE_SCALINGS)}"


def _expert_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """The assertions of load_hparams in llama-model.cpp."""
    count, used = keys.optional_count("expert_count") or 0, max(keys.counts("expert_used_count") or (0,))
    groups, used_groups = keys.optional_count("expert_group_count") or 0, keys.optional_count("expert_group_used_count")
    if keys.prefix in ("hunyuan-dense", "hunyuan_vl") and count <= 1:
        return  # a dense model there says that it has one expert
    if count > MAX_EXPERTS or not bool(count) <= used <= count:
        yield f"it uses {used} of {count} experts, where at most {MAX_EXPERTS} fit"
    if groups and groups >= count:
        yield f"it has {groups} groups of {count} experts"
    if groups > 1 and (count % groups or not 0 < (used_groups or 0) < groups):
        yield f"it uses {used_groups or 0} of {groups} groups of {count} experts"


def _place_problems(header: Header) -> Iterator[str]:
    """ggml-backend.cpp: GGML_ASSERT("buffer pointer must be aligned"), where a file is mapped into memory.

    A file may state a smaller alignment than that: then it depends on the sizes of its header and its tensors.
    """
    for tensor in header.tensors.values():
        place = header.shards[tensor.shard].data_offset + tensor.offset
        if place % TENSOR_ALIGNMENT:
            yield f"tensor {tensor.name} begins at byte {place}, no multiple of the {TENSOR_ALIGNMENT} of llama.cpp"


def _tensor_problems(tensor: TensorInfo) -> Iterator[str]:
    kind = tensor.type.name
    if tensor.name.endswith(ID_TABLES):
        return
    if kind in NO_WEIGHTS:
        yield f"tensor {tensor.name} is {kind}, which no weight can be"
    elif kind != "F32" and (len(tensor.shape) == 1 or tensor.name.endswith("_norm.weight")):
        # binary-ops.cpp aborts on a vector of another type; converters and quantizers leave vectors and norms alone
        yield f"tensor {tensor.name} is {kind} where F32 is due"


def _token_problems(keys: ArchitectureKeys) -> Iterator[str]:
    texts = keys.header.string_bytes(TOKENS_KEY) or []
    distinct = set(texts)
    if len(distinct) != len(texts) or b"" in distinct or b"\0" in b"".join(texts):  # of few files; the rest is slower
        yield from _repeated_tokens(texts)
    if texts and keys.header.metadata.get("tokenizer.ggml.model") == "llama":
        yield from _missing_bytes(distinct)


def _repeated_tokens(texts: list[bytes]) -> Iterator[str]:
    """llama-vocab.cpp: GGML_ASSERT(id_to_token.size() == token_to_id.size())."""
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        word = text.partition(b"\0")[0] or b"[EMPTY_%d]" % token  # as llama.cpp reads it
        first = seen.setdefault(word, token)
        if first != token:
            yield f"tokens {first} and {token} are both {word[:32]!r}"


def _missing_bytes(tokens: set[bytes]) -> Iterator[str]:
    """byte_to_token of llama-vocab.cpp throws out of the library on a text with a letter that no token spells."""
    for byte in UTF8_BYTES:
        if b"<0x%02X>" % byte not in tokens and not (0 < byte < 0x80 and bytes([byte]) in tokens):
            yield f"no token stands for the byte 0x{byte:02X}"
