"""How many tokens an image may take, where its size decides that: by context, passes and memory, not by makers alone.

llama.cpp admits up to 4096 tokens of an image for Qwen's family, reserves memory for half of that, and ends the process
where it then has no more. A photograph would also be larger than the context that many people run.
"""

from __future__ import annotations

from eaglelocal.gguf.projector import MAX_TOKENS

WHOLE = ("gemma4uv", "gemma4v")  # whose rows may attend to those behind them: all of an image are one pass
RESERVED = 46 * 46  # tokens for which llama.cpp takes memory when it loads a projector with the largest limits
LEAST = 16
CONTEXT_PART = 2  # an image takes half of the context at most


def max_image_tokens(kind: str, *, n_ctx: int, n_batch: int) -> int | None:
    """`kind` of projector. None: llama.cpp's own limit is no more than there is room for."""
    if kind not in MAX_TOKENS:
        return None
    room = min(n_ctx // CONTEXT_PART, RESERVED, n_batch if kind in WHOLE else RESERVED)
    return max(room, LEAST) if room < MAX_TOKENS[kind][0] else None
