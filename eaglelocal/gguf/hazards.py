"""Checks for values that llama.cpp accepts silently, although they make it abort, crash or hang later.

Each rule is an assertion of the pinned llama.cpp (0c1e57098), named next to it, or was found by loading
files with one value changed (tests/engine/test_corrupted_files.py). They must be checked again whenever
the pin moves. Reads keys and tensor entries; values that llama.cpp itself refuses are left to it.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.run_options import split_kv_type
from eaglelocal.gguf import architectures
from eaglelocal.gguf.architectures import MAX_COUNT, ArchitectureKeys
from eaglelocal.gguf.header import Header, TensorInfo

TENSOR_ALIGNMENT = 32  # of ggml-impl.h
MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "attention.group_norm_epsilon")
# no kernel multiplies with these: type_traits_cpu in ggml-cpu.c has no vec_dot for them
NO_WEIGHTS = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})
UTF8_BYTES = (*range(0xC0), *range(0xC2, 0xF5))  # other bytes never occur in UTF-8
SECTIONED_ARCHITECTURES = ("qwen35", "qwen35moe")
OWN_WIDTH_ARCHITECTURES = ("deepseek4", "qwen4exp", "gemma4-assistant")  # whose graphs use embedding_length_out
PARALLEL_STATES = 4  # of a token (hyper-connections): the kernels know no other number
OUTPUT_PROJECTION = "dense_2."  # changes the width of states, in embedding models
UNQUANTIZED = ("f32", "f16", "bf16")
ID_TABLES = ("d2t", "ffn_gate_tid2eid.weight")  # integer tensors


def check_hazards(keys: ArchitectureKeys, *, head_dim: int, value_dim: int) -> None:
    """Check a model's keys and tensors; the widths are of one head's keys and values.

    Raises ModelFileError with the value that would end the process.
    """
    for problem in _problems(keys, head_dim, value_dim):
        raise keys.error(problem)


def check_alignment(keys: ArchitectureKeys) -> None:
    """Check that tensors are aligned. Raises ModelFileError if llama.cpp cannot map one."""
    for problem in _alignment_problems(keys.header):
        raise keys.error(problem)


def graph_problem(architecture: str, *, kv_type: str, num_caches: int) -> str:
    """Return why llama.cpp would run out of graph nodes for a context of `num_caches` caches; empty where it would not.

    ggml-impl.h: GGML_ABORT in ggml_hash_insert, found with the shape of Phi-4, with several quantized caches only.
    """
    is_quantized = not set(split_kv_type(kv_type)) <= set(UNQUANTIZED)
    if architecture not in architectures.SMALL_GRAPH_ARCHITECTURES or num_caches == 1 or not is_quantized:
        return ""
    return f"llama.cpp cannot give {num_caches} slots of a {architecture} model caches of {kv_type}"


def _problems(keys: ArchitectureKeys, head_dim: int, value_dim: int) -> Iterator[str]:
    yield from _epsilon_problems(keys)
    yield from _width_problems(keys, head_dim, value_dim)
    yield from _layer_problems(keys)
    yield from _output_problems(keys)
    yield from _rope_problems(keys, head_dim)
    yield from _section_problems(keys)
    yield from _parallel_problems(keys)
    yield from _scaling_problems(keys)
    yield from _expert_problems(keys)
    yield from _alignment_problems(keys.header)
    for tensor in keys.header.tensors.values():
        yield from _tensor_problems(tensor)
    yield from _token_problems(keys)


def _epsilon_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield epsilons out of range. ops.cpp: GGML_ASSERT(eps >= 0.0f), at the first decode."""
    for key in EPSILONS:
        name = f"{keys.prefix}.{key}"
        value = keys.header.metadata.get(name)
        if isinstance(value, float) and not 0 <= value < 1:
            yield f"{name} is {value}"


def _width_problems(keys: ArchitectureKeys, head_dim: int, value_dim: int) -> Iterator[str]:
    if keys.prefix in architectures.EQUAL_WIDTH_ARCHITECTURES and head_dim != value_dim:
        yield f"its keys are {head_dim} wide and its values {value_dim}, which {keys.prefix} models cannot have"
    for key in ("attention.key_length", "attention.value_length"):
        if keys.optional_count(key) == 0 and any(keys.counts("attention.head_count") or ()):
            yield f"{keys.prefix}.{key} is 0"
    for key in ("attention.head_count", "attention.head_count_kv"):
        heads = max(keys.counts(key) or (0,))
        if heads * max(head_dim, value_dim) > MAX_COUNT:  # n_embd_k_gqa wraps around and fits the tensors again
            yield f"{keys.prefix}.{key} is {heads}, more heads of width {max(head_dim, value_dim)} than 32 bits hold"


def _layer_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield a problem if there are more MTP layers than layers: llama.cpp's load_hparams aborts."""
    ahead, layers = keys.optional_count("nextn_predict_layers") or 0, keys.optional_count("block_count")
    if layers is not None and ahead > layers:
        yield f"{keys.prefix}.nextn_predict_layers is {ahead}, of {layers} layers"


def _output_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield an `embedding_length_out` that differs from the width of the states of a head or an embedding model.

    They are read with this width, so a wrong one reads beyond what was computed. States of other targets are not read
    with it; mtp.py checks whether their MTP layer can draft.
    """
    if keys.prefix not in architectures.HEAD_ARCHITECTURES and architectures.read_task(keys.header) is ModelTask.TEXT:
        return
    width, rows_width = keys.optional_count("embedding_length"), keys.optional_count("embedding_length_out")
    projects = any(name.startswith(OUTPUT_PROJECTION) for name in keys.header.tensors)
    if rows_width and rows_width != width and not projects and keys.prefix not in OWN_WIDTH_ARCHITECTURES:
        yield f"{keys.prefix}.embedding_length_out is {rows_width}, where its states are {width} wide"


def _rope_problems(keys: ArchitectureKeys, head_dim: int) -> Iterator[str]:
    """Yield RoPE dimensions that are odd or exceed the head (ops.cpp asserts, at the first decode), or 0 (a hang)."""
    sliding_dim = keys.optional_count("attention.key_length_swa") or head_dim
    for key, width in (("dimension_count", head_dim), ("dimension_count_swa", sliding_dim)):
        name = f"{keys.prefix}.rope.{key}"
        value = keys.header.metadata.get(name)
        if isinstance(value, int) and not _is_rope_width(keys.prefix, value, width):
            yield f"{name} is {value}, where heads are {width} wide"


def _section_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield M-RoPE sections that are all 0, which ops.cpp asserts against; other architectures then use no sections."""
    sections = keys.counts("rope.dimension_sections") if keys.prefix in SECTIONED_ARCHITECTURES else None
    if sections is not None and not any(sections):
        yield f"{keys.prefix}.rope.dimension_sections are all 0"


def _parallel_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield violations of deepseek4.cpp's assertions on a token's parallel states and the output heads' groups."""
    if keys.prefix != "deepseek4":
        return
    parallel, rounds = (keys.optional_count(f"hyper_connection.{name}") for name in ("count", "sinkhorn_iterations"))
    if parallel not in (None, PARALLEL_STATES):
        yield f"{keys.prefix}.hyper_connection.count is {parallel}, not {PARALLEL_STATES}"
    if rounds == 0:
        yield f"{keys.prefix}.hyper_connection.sinkhorn_iterations is 0"
    heads, groups = (
        max(keys.counts("attention.head_count") or (0,)),
        keys.optional_count("attention.output_group_count"),
    )
    if groups is not None and (not groups or heads % groups):
        yield f"its {heads} heads form {groups} groups (attention.output_group_count)"


def _is_rope_width(architecture: str, num_dimensions: int, width: int) -> bool:
    if architecture in architectures.NO_ROPE_ARCHITECTURES:
        return num_dimensions == 0
    if architecture in architectures.WHOLE_ROPE_ARCHITECTURES:
        return num_dimensions == width and width % 2 == 0
    return 0 < num_dimensions <= width and num_dimensions % 2 == 0


def _scaling_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield an unknown type of RoPE scaling, which load_hparams asserts against."""
    name = f"{keys.prefix}.rope.scaling.type"
    scaling = keys.header.metadata.get(name)
    if isinstance(scaling, str) and scaling not in ROPE_SCALINGS:
        yield f"{name} is {scaling!r}, known are {', '.join(ROPE_SCALINGS)}"


def _expert_problems(keys: ArchitectureKeys) -> Iterator[str]:
    """Yield impossible numbers of experts: the assertions of load_hparams in llama-model.cpp."""
    count, used = keys.optional_count("expert_count") or 0, max(keys.counts("expert_used_count") or (0,))
    groups, used_groups = keys.optional_count("expert_group_count") or 0, keys.optional_count("expert_group_used_count")
    if keys.prefix in ("hunyuan-dense", "hunyuan_vl") and count <= 1:
        return  # dense models of these architectures state one expert
    if count > MAX_EXPERTS or not bool(count) <= used <= count:
        yield f"it uses {used} of {count} experts, where at most {MAX_EXPERTS} fit"
    if groups and groups >= count:
        yield f"it has {groups} groups of {count} experts"
    if groups > 1 and (count % groups or not 0 < (used_groups or 0) < groups):
        yield f"it uses {used_groups or 0} of {groups} groups of {count} experts"


def _alignment_problems(header: Header) -> Iterator[str]:
    """Yield misaligned tensors. ggml-backend.cpp: GGML_ASSERT("buffer pointer must be aligned"), for mapped files.

    A file may state a smaller alignment than that; then it depends on the sizes of its header and its tensors.
    """
    for tensor in header.tensors.values():
        offset = header.shards[tensor.shard].data_offset + tensor.offset
        if offset % TENSOR_ALIGNMENT:
            yield f"tensor {tensor.name} begins at byte {offset}, not a multiple of {TENSOR_ALIGNMENT}"


def _tensor_problems(tensor: TensorInfo) -> Iterator[str]:
    kind = tensor.type.name
    if tensor.name.endswith(ID_TABLES):
        return
    if kind in NO_WEIGHTS:
        yield f"tensor {tensor.name} is {kind}, a type that no weight can have"
    elif kind != "F32" and (len(tensor.shape) == 1 or tensor.name.endswith("_norm.weight")):
        # binary-ops.cpp aborts on a vector of another type; converters and quantizers leave vectors and norms alone
        yield f"tensor {tensor.name} is {kind}, expected F32"


def _token_problems(keys: ArchitectureKeys) -> Iterator[str]:
    texts = keys.header.string_bytes(architectures.TOKENS_KEY) or []
    distinct = set(texts)
    if (
        len(distinct) != len(texts) or b"" in distinct or b"\0" in b"".join(texts)
    ):  # rare: listing the problems is slower
        yield from _repeated_tokens(texts)
    if texts and keys.header.metadata.get("tokenizer.ggml.model") == "llama":
        yield from _missing_bytes(distinct)


def _repeated_tokens(texts: list[bytes]) -> Iterator[str]:
    """Yield tokens with the same text. llama-vocab.cpp: GGML_ASSERT(id_to_token.size() == token_to_id.size())."""
    seen: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        word = text.partition(b"\0")[0] or b"[EMPTY_%d]" % token  # as llama.cpp reads it
        first = seen.setdefault(word, token)
        if first != token:
            yield f"tokens {first} and {token} are both {word[:32]!r}"


def _missing_bytes(tokens: set[bytes]) -> Iterator[str]:
    """Yield the bytes that no token stands for: byte_to_token of llama-vocab.cpp throws on a text that contains one."""
    for byte in UTF8_BYTES:
        if b"<0x%02X>" % byte not in tokens and not (0 < byte < 0x80 and bytes([byte]) in tokens):
            yield f"no token stands for the byte 0x{byte:02X}"
