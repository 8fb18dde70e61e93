"""A limit on the tokens of an image, for models where its size decides how many it takes.

llama.cpp admits up to 4096 tokens per image for Qwen's family, reserves memory for half of that, and ends the process
where it then runs out. A photograph would also be larger than the context that many people run.
"""

from __future__ import annotations

from eaglelocal.gguf.projector import MAX_TOKENS

UNSPLIT_KINDS = ("gemma4uv", "gemma4v")  # an image's rows attend to later ones, so all must be in one batch
RESERVED_TOKENS = (
    46 * 46
)  # tokens for which llama.cpp reserves memory when it loads a projector with the largest limits
MIN_TOKENS = 16
CONTEXT_PART = 2  # an image takes at most this fraction of the context: 1/2


def max_image_tokens(kind: str, *, n_ctx: int, n_batch: int) -> int | None:
    """Return the most tokens an image may take with this kind of projector, limited by context, batch and memory.

    None: llama.cpp's own limit is low enough, or the kind does not size images by tokens.
    """
    if kind not in MAX_TOKENS:
        return None
    limit = min(n_ctx // CONTEXT_PART, RESERVED_TOKENS, n_batch if kind in UNSPLIT_KINDS else RESERVED_TOKENS)
    return max(limit, MIN_TOKENS) if limit < MAX_TOKENS[kind][0] else None
