"""The layers of a model that have a sliding window, as the pinned llama.cpp decides it.

The file's key is not enough: many architectures state a window that llama.cpp does not use (phi3, qwen2, mistral as
llama), others have one without stating it (gemma2). Literal table of src/models/*.cpp; check it when the pin moves.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.architectures import ArchitectureKeys

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

    In a period of 3 the first two layers have one; with a period of 0 all layers do.

    >>> repeat_pattern(4, 2)
    (True, False, True, False)
    """
    full = 0 if full_first else period - 1
    return tuple(period == 0 or layer % period != full for layer in range(n_layer))
