"""The rules by which each layer of a model keeps earlier tokens, as in the pinned llama.cpp, from a header alone.

A window of keys and values, recurrent state, or rows that stand for several tokens. Literal tables of src/models/*.cpp
and src/llama-hparams.cpp; check them when the pin moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import (
    HYBRID_ARCHITECTURES,
    RECURRENT_ARCHITECTURES,
    RECURRENT_KEY_STEMS,
    ArchitectureKeys,
)

STATE_VALUE_BYTES = 4  # states are float32

# ---- sliding windows
#
# The file's key is not enough: many architectures state a window that llama.cpp does not use (phi3, qwen2, mistral as
# llama), others have one without stating it (gemma2).
WINDOW_KEY, PATTERN_KEY = "attention.sliding_window", "attention.sliding_window_pattern"


@dataclass(frozen=True, slots=True)
class WindowRule:
    """A pattern of layers: in each `period` one has full attention, the last (with `full_first`, the first).

    period   0: the file lists the layers
    default  the window where the file states none; None: there is no window then
    fixed    the window whatever the file states, unless it states zero
    """

    period: int
    full_first: bool = False
    default: int | None = None
    fixed: int | None = None


RULES: Mapping[str, WindowRule] = MappingProxyType(
    {
        "afmoe": WindowRule(4),
        "cohere2": WindowRule(4),
        "cohere2moe": WindowRule(4, full_first=True),
        "deepseek4": WindowRule(0),
        "dflash": WindowRule(0),
        "dots3note": WindowRule(0),
        "exaone-moe": WindowRule(4, default=128),
        "exaone4": WindowRule(4, default=4096),
        "gemma2": WindowRule(2, default=4096),
        "gemma3": WindowRule(6),
        "gemma3n": WindowRule(5),
        "gemma4": WindowRule(0),
        "gemma4-assistant": WindowRule(0),
        "gpt-oss": WindowRule(2),
        "granite_swa": WindowRule(0),
        "laguna": WindowRule(4, full_first=True),
        "lfm2": WindowRule(1),
        "llama4": WindowRule(4, default=8192, fixed=8192),
        "maple": WindowRule(0),
        "mellum": WindowRule(4),
        "mimo2": WindowRule(0),
        "muse-glimmer": WindowRule(4),
        "olmo2": WindowRule(4),
        "plamo3": WindowRule(8),
        "smallthinker": WindowRule(4, full_first=True, fixed=4096),
        "spark2_5": WindowRule(0),
        "step35": WindowRule(0),
    }
)
WINDOWED_EXAONE4_LAYERS = 64  # only the 32B has windows


def read_windows(keys: ArchitectureKeys, n_layer: int) -> tuple[int | None, ...]:
    """Return the window of each layer in tokens; None: full attention. Raises ModelFileError on a pattern too short."""
    rule = RULES.get(keys.prefix)
    window = _window(keys, rule, n_layer) if rule is not None else None
    if rule is None or not window:
        return (None,) * n_layer
    return tuple(window if has_window else None for has_window in _windowed_layers(keys, rule, n_layer))


def _window(keys: ArchitectureKeys, rule: WindowRule, n_layer: int) -> int | None:
    stated = keys.optional_count(WINDOW_KEY)
    if keys.prefix == "exaone4" and n_layer != WINDOWED_EXAONE4_LAYERS:
        return None
    if stated is None:
        return rule.default
    return rule.fixed if stated and rule.fixed else stated


def _windowed_layers(keys: ArchitectureKeys, rule: WindowRule, n_layer: int) -> tuple[bool, ...]:
    if keys.prefix == "lfm2":  # its convolutions have no cache, and all its attention has a window
        return (True,) * n_layer
    listed = keys.flags_per_layer(PATTERN_KEY, n_layer)
    if listed is not None:
        return listed
    period = keys.optional_count(PATTERN_KEY)
    return repeat_pattern(n_layer, rule.period if period is None else period, full_first=rule.full_first)


def repeat_pattern(n_layer: int, period: int, *, full_first: bool = False) -> tuple[bool, ...]:
    """Return for each layer whether it has a window.

    In a period of 3 the first two have one; in a period of 0 all layers have.

    >>> repeat_pattern(4, 2)
    (True, False, True, False)
    """
    full = 0 if full_first else period - 1
    return tuple(period == 0 or layer % period != full for layer in range(n_layer))


# ---- recurrent state, instead of keys and values or (in falcon-h1) besides them: it does not grow with the context
RECURRENT_LAYERS_KEY, INTERVAL_KEY = "attention.recurrent_layers", "full_attention_interval"

# one layer in N has attention, where the file neither lists layers nor states an interval
INTERVALS: Mapping[str, int] = MappingProxyType(
    {"minimax-01": 8, "qwen35": 4, "qwen35moe": 4, "qwen3next": 4, "qwen4exp": 4}
)
# a layer without key heads is recurrent
BY_KEY_HEADS = frozenset(
    {
        "bailingmoe3", "glm5-next", "granitehybrid", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "nemotron_h",
        "nemotron_h_moe", "plamo2",
    }
)  # fmt: skip
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
    has_state_keys = any(
        key.startswith(f"{architecture}.{stem}") for key in keys.header.metadata for stem in RECURRENT_KEY_STEMS
    )
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


# ---- compressed attention: attention that keeps several earlier tokens as one row of keys (DeepSeek V4): the sizes
# of its caches, from a header
#
# Beside a sliding window of single tokens, a layer keeps a row for each 4 or 128 tokens, and the state of the row
# that is not complete yet. Layers of 4 have a second, narrower row, by which an indexer chooses (src/llama-kv-cache-
# dsv4.cpp).
COMPRESSED_ARCHITECTURES = frozenset({"deepseek4"})
OVERLAPPING_RATIO = 4  # whose rows also read the tokens of the row before


def read_compressions(keys: ArchitectureKeys, *, n_layer: int, head_dim: int) -> tuple[tuple[int, int], ...]:
    """Return for each layer the tokens of a row and the row's values, (0, 0) where it keeps none; empty: no such model.

    Raises ModelFileError if the file lists too few layers.
    """
    if keys.prefix not in COMPRESSED_ARCHITECTURES:
        return ()
    ratios = keys.counts("attention.compress_ratios") or ()
    if len(ratios) < n_layer:
        raise keys.error(f"attention.compress_ratios lists {len(ratios)} of {n_layer} layers")
    index_dim = keys.optional_count("attention.indexer.key_length") or 0
    return tuple(
        (ratio, head_dim + (index_dim if ratio == OVERLAPPING_RATIO else 0)) if ratio else (0, 0)
        for ratio in ratios[:n_layer]
    )


# which cache their indexer's keys, one head for each token
INDEXED_ARCHITECTURES = frozenset({"deepseek32", "glm-dsa", "glm5-next", "hy_v4", "qwen4exp"})
POOLED_INDEX_PARTS = 3  # of glm5-next: key, gate and pooled key


def read_index_dim(keys: ArchitectureKeys) -> int:
    """Return the values that an indexer caches of one token in each layer with attention; 0: there is none."""
    if keys.prefix not in INDEXED_ARCHITECTURES:
        return 0
    parts = POOLED_INDEX_PARTS if keys.optional_count("attention.indexer.kpool") else 1
    return parts * (keys.optional_count("attention.indexer.key_length") or 0)


def read_index_scores(keys: ArchitectureKeys) -> float:
    """Return the scores of a cell that an indexer adds up; 0 where llama.cpp adds them as it computes them."""
    if keys.prefix != "qwen4exp":
        return 0.0
    ratio = max(keys.counts("attention.compress_ratios") or (), default=0)
    return (keys.optional_count("attention.indexer.head_count") or 0) / max(ratio, 1)  # heads score `ratio` at once


def compressor_bytes(ratio: int, width: int) -> int:
    """Return the bytes of one sequence's state in one layer: values and scores of the tokens that a row may still need.

    >>> compressor_bytes(128, 512)
    524288
    """
    overlap = 2 if ratio == OVERLAPPING_RATIO else 1
    num_rows, row_values = overlap * ratio, overlap * width
    return 2 * num_rows * row_values * STATE_VALUE_BYTES
