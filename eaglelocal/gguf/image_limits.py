"""How many tokens an image may take, where its size decides that: by context, passes and memory, not by makers alone.

llama.cpp admits up to 4096 tokens of an image for Qwen's family, reserves memory for half of that, and ends the process
where it then has no more. A photograph would also be larger than the context that many people run.
"""

from __future__ import annotations

from eaglelocal.gguf.header import Header

# what clip.cpp of the pinned build admits; all other kinds have sizes of their own
LIMITS = {
    "gemma4uv": 1120,
    "gemma4v": 1120,
    "glm4v": 4096,
    "hunyuanvl": 16384,
    "kimik25": 4096,
    "kimivl": 1024,
    "lfm2": 256,
    "ling3vl": 4096,
    "minimax_m3": 576,
    "muse-glimmer": 4096,
    "pixtral": 1024,
    "qwen2.5vl_merger": 4096,
    "qwen2vl_merger": 4096,
    "qwen3vl_merger": 4096,
    "step3vl": 62500,
}
WHOLE = ("gemma4uv", "gemma4v")  # whose rows may attend to those behind them: all of an image are one pass
RESERVED = 46 * 46  # tokens for which llama.cpp takes memory when it loads a projector with the largest limits
LEAST = 16
CONTEXT_PART = 2  # an image takes half of the context at most


def max_image_tokens(projector: Header, *, n_ctx: int, n_batch: int) -> int | None:
    """None: llama.cpp's own limit is no more than there is room for."""
    kind = projector_kind(projector)
    if kind not in LIMITS:
        return None
    room = min(n_ctx // CONTEXT_PART, RESERVED, n_batch if kind in WHOLE else RESERVED)
    return max(room, LEAST) if room < LIMITS[kind] else None


def projector_kind(projector: Header) -> str:
    """As llama.cpp calls it."""
    keys = ("clip.projector_type", "clip.vision.projector_type")
    found = (projector.metadata.get(key) for key in keys)
    return next((kind for kind in found if isinstance(kind, str)), "")
