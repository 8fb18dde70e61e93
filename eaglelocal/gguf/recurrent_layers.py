"""The layers that keep recurrent state instead of (or, in falcon-h1, besides) keys and values, and the size of it.

Read from a header alone, by the rules of the pinned llama.cpp (src/llama-hparams.cpp, src/models/*.cpp). State is
float32 and does not grow with the context.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.gguf.architectures import HYBRID_ARCHITECTURES, RECURRENT_ARCHITECTURES, ArchitectureKeys
from eaglelocal.gguf.architectures import RECURRENT_KEY_STEMS as STEMS

STATE_VALUE_BYTES = 4
RECURRENT_LAYERS_KEY, INTERVAL_KEY = "attention.recurrent_layers", "full_attention_interval"

# one layer in N has attention, where the file neither lists layers nor states an interval
INTERVALS: Mapping[str, int] = MappingProxyType(
    {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4}
)
# a layer without key heads is recurrent
BY_KEY_HEADS = frozenset(
    {
        "bailingmoe3",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
    }
)
FEED_FORWARD_APART = frozenset({"nemotron_h", "nemotron_h_moe"})  # feed-forward layers are separate and keep nothing
BOTH_IN_EACH_LAYER = frozenset({"falcon-h1"})
DEFAULT_TOKEN_SHIFT, DEFAULT_KDA_KERNEL = 2, 4


def recurrent_layers(
    keys: ArchitectureKeys, *, n_layer: int, kv_heads: tuple[int, ...], n_ff: tuple[int, ...]
) -> tuple[bool, ...]:
    """Return for each layer whether it keeps recurrent state."""
    architecture = keys.prefix
    if architecture in RECURRENT_ARCHITECTURES | BOTH_IN_EACH_LAYER:
        return (True,) * n_layer
    if architecture in INTERVALS:
        return _by_interval(keys, n_layer)
    if architecture in BY_KEY_HEADS:
        has_separate_ff = architecture in FEED_FORWARD_APART
        return tuple(
            heads == 0 and not (has_separate_ff and width) for heads, width in zip(kv_heads, n_ff, strict=True)
        )
    has_state_keys = any(key.startswith(f"{architecture}.{stem}") for key in keys.header.metadata for stem in STEMS)
    return (has_state_keys and architecture not in HYBRID_ARCHITECTURES,) * n_layer  # unknown: assume the worst


def attention_layers(keys: ArchitectureKeys, *, recurrent: tuple[bool, ...], n_ff: tuple[int, ...]) -> tuple[bool, ...]:
    """Return for each layer whether it keeps keys and values (if it has key heads)."""
    if keys.prefix not in RECURRENT_ARCHITECTURES | INTERVALS.keys() | BY_KEY_HEADS:
        return (True,) * len(recurrent)
    has_separate_ff = keys.prefix in FEED_FORWARD_APART
    return tuple(not state and not (has_separate_ff and width) for state, width in zip(recurrent, n_ff, strict=True))


def _by_interval(keys: ArchitectureKeys, n_layer: int) -> tuple[bool, ...]:
    listed = keys.flags_per_layer(RECURRENT_LAYERS_KEY, n_layer)
    if listed is not None:
        return listed
    value = keys.header.metadata.get(f"{keys.prefix}.{RECURRENT_LAYERS_KEY}")
    if value is not None:
        return (bool(value),) * n_layer
    interval = keys.optional_count(INTERVAL_KEY) or INTERVALS[keys.prefix]
    return tuple((layer + 1) % interval != 0 for layer in range(n_layer))


def state_bytes_of_a_layer(keys: ArchitectureKeys, *, n_embd: int, n_head: int, head_dim: int) -> int:
    """Return the bytes of one sequence's state in one recurrent layer: its convolution's and its recurrent part."""
    return STATE_VALUE_BYTES * sum(_state_values(keys, n_embd, n_head, head_dim))


def _state_values(keys: ArchitectureKeys, n_embd: int, n_head: int, head_dim: int) -> tuple[int, int]:
    if wkv := keys.optional_count("wkv.head_size"):
        shift = keys.optional_count("token_shift_count")
        return (DEFAULT_TOKEN_SHIFT if shift is None else shift) * n_embd, n_embd * wkv
    if kernel := keys.optional_count("shortconv.l_cache"):
        return n_embd * (kernel - 1), _ssm(keys)[1]
    if kda := keys.optional_count("kda.head_dim"):
        kernel = keys.optional_count("ssm.conv_kernel") or DEFAULT_KDA_KERNEL
        return 3 * (kernel - 1) * n_head * kda, kda * kda * n_head
    convolution, state = _ssm(keys)
    return convolution, head_dim * head_dim * n_head if keys.prefix == "minimax-01" else state


def _ssm(keys: ArchitectureKeys) -> tuple[int, int]:
    """Return Mamba's state sizes in values: the last rows of the convolution's input, and the state."""
    kernel, inner, state, groups = (
        keys.optional_count(f"ssm.{name}") or 0 for name in ("conv_kernel", "inner_size", "state_size", "group_count")
    )
    return max(kernel - 1, 0) * (inner + 2 * groups * state), state * inner


def read_inner_width(keys: ArchitectureKeys, *, n_embd: int) -> int:
    """Return the values of a token inside a recurrent layer, all parts of its widest projection together."""
    inner, state, groups = (
        keys.optional_count(f"ssm.{name}") or 0 for name in ("inner_size", "state_size", "group_count")
    )
    return 2 * (inner + groups * state) if inner else 3 * n_embd
