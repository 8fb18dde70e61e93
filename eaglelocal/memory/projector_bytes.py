"""Estimate the memory for reading images: a projector's weights, and the buffers for encoding one image. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglelocal.core.plan import Plan
from eaglelocal.gguf.image_limits import max_image_tokens
from eaglelocal.gguf.projector import Projector
from eaglelocal.memory.budget import RAM, Buffer, FreeMemory, MemoryKind
from eaglelocal.memory.compute_buffers import FLOAT_BYTES, HALF_BYTES

CHANNELS = 3
ATTENTION_ROWS, FEED_FORWARD_ROWS = 8, 3  # rows alive at once in a layer, the residual included


def image_buffers(projector: Projector | None, plan: Plan, gpus: Sequence[FreeMemory]) -> Iterator[Buffer]:
    """Yield a projector's buffers: on the first GPU if the target uses one, else in RAM. None without a projector."""
    if projector is None:
        return
    projector = projector.limit_tokens(max_image_tokens(projector.kind, n_ctx=plan.n_ctx, n_batch=plan.n_batch))
    device = gpus[0].device if gpus and plan.gpu_layers != 0 and not plan.rpc else RAM
    yield Buffer(device, MemoryKind.IMAGES, projector.weights_bytes + encoding_bytes(projector))
    if device != RAM:
        yield Buffer(RAM, MemoryKind.IMAGES, image_bytes(projector))


def image_bytes(projector: Projector) -> int:
    """Return the bytes of the largest image as floats, and of the rows it is encoded to."""
    pixels = projector.num_patches * projector.patch_size**2
    return FLOAT_BYTES * (CHANNELS * pixels + projector.num_patches * (projector.width or projector.n_embd))


def encoding_bytes(projector: Projector, *, flash_attn: bool = True) -> int:
    """Return an upper bound of the buffer for encoding the largest image; llama.cpp reserves it for the first image.

    Layers reuse the buffer, so one layer counts. For each patch at most these are alive: the residual row, its norm,
    queries, keys and values, their permuted copies, and the attention's output (8 rows of the width); or the residual,
    its norm and the sum, with three rows of the feed-forward's width: gate, up, product. Before the first layer the
    image is there by patches, as it came and unfolded. A mask (window attention) has a float and a half float for each
    pair of patches; scores (no flash attention) two floats for each pair and head. llama.cpp uses flash attention
    wherever the device has it.
    """
    layer = max(ATTENTION_ROWS * projector.n_embd, FEED_FORWARD_ROWS * (projector.n_embd + projector.n_ff))
    unfolded = 2 * CHANNELS * projector.patch_size**2
    pairs = projector.num_patches**2
    mask = pairs * (FLOAT_BYTES + HALF_BYTES) if projector.has_windows else 0
    scores = 0 if flash_attn else 2 * FLOAT_BYTES * pairs * projector.n_head
    return projector.num_patches * FLOAT_BYTES * max(layer, unfolded) + image_bytes(projector) + mask + scores
