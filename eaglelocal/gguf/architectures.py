"""What llama.cpp can do with each architecture, where it would abort or lie instead of refusing.

Literal lists, read from src/models and src/llama-arch.cpp of the pinned llama.cpp (0c1e57098). They
must be checked again whenever the pin moves. Names are those of `general.architecture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

# Graphs that set t_layer_inp for every layer; on any other, asking for a layer input aborts the process.
# qwen4exp sets it too, but hyper-connections wide instead of n_embd, and that aborts as well.
LAYER_INPUT_ARCHITECTURES = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "gemma4",
        "gpt-oss",
        "hunyuan-dense",
        "hunyuan_vl",
        "lfm2",
        "lfm2moe",
        "llama",
        "mimo2",
        "minimax-01",
        "minimax-m2",
        "muse-glimmer",
        "nanbeige",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3",
        "qwen35",
        "qwen35moe",
        "qwen3moe",
        "qwen3next",
    }
)


class FinalState(StrEnum):
    """How the state behind the last layer, before the output norm, can be had."""

    LAYER_INPUT = "layer input"  # as the input of layer n_layer
    NEXTN = "nextn"  # through the nextn state, not masked


# Layer id == n_layer. Absent: zeros come back (llama, qwen3), an abort, or the state behind the output
# norm, which is not what heads are trained on (gemma4, qwen35, qwen3next, bailingmoe3).
FINAL_STATE: Mapping[str, FinalState] = MappingProxyType(
    {
        "deepseek4": FinalState.LAYER_INPUT,
        "gpt-oss": FinalState.NEXTN,
        "mimo2": FinalState.LAYER_INPUT,
        "nemotron_h": FinalState.LAYER_INPUT,
        "nemotron_h_moe": FinalState.LAYER_INPUT,
    }
)

RECURRENT_ARCHITECTURES = frozenset({"arwkv7", "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7"})

HYBRID_ARCHITECTURES = frozenset(
    {
        "bailingmoe3",
        "deepseek4",
        "falcon-h1",
        "glm5-next",
        "granitehybrid",
        "jamba",
        "kimi-k3",
        "kimi-linear",
        "lfm2",
        "lfm2moe",
        "minimax-01",
        "nemotron_h",
        "nemotron_h_moe",
        "plamo2",
        "qwen35",
        "qwen35moe",
        "qwen3next",
        "qwen4exp",
    }
)

# keys whose presence means recurrent state, in an architecture that these lists do not know yet
RECURRENT_KEY_STEMS = ("ssm.", "wkv.", "shortconv.")
