"""What it takes to read pictures: a projector's weights, and what llama.cpp computes in while it encodes one. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from eaglelocal.backend.fit import RAM, Buffer, Kind, Room
from eaglelocal.core.plan import Plan
from eaglelocal.gguf.image_limits import max_image_tokens
from eaglelocal.gguf.projector import Projector

FLOAT_BYTES, HALF_BYTES = 4, 2
COLOURS = 3
ATTENDING_ROWS, FEEDING_ROWS = 8, 3  # rows alive at once in a layer, with those that go past it


def image_buffers(projector: Projector | None, plan: Plan, gpus: Sequence[Room]) -> Iterator[Buffer]:
    """On the first GPU, where the target has anything on one, else in main memory; nothing where there is none."""
    if projector is None:
        return
    projector = projector.within(max_image_tokens(projector.kind, n_ctx=plan.n_ctx, n_batch=plan.n_batch))
    device = gpus[0].device if gpus and plan.gpu_layers != 0 else RAM
    yield Buffer(device, Kind.IMAGES, projector.weights_bytes + encoding_bytes(projector))
    if device != RAM:
        yield Buffer(RAM, Kind.IMAGES, picture_bytes(projector))


def picture_bytes(projector: Projector) -> int:
    """The largest picture as floats, and the rows that come of it."""
    pixels = projector.num_patches * projector.patch_size**2
    return FLOAT_BYTES * (COLOURS * pixels + projector.num_patches * (projector.width or projector.n_embd))


def encoding_bytes(projector: Projector, *, flash_attention: bool = True) -> int:
    """From above, for the largest picture that is encoded at once; llama.cpp reserves it when it sees one.

    Buffers are used again from layer to layer, so one layer counts. Of each patch there are alive at most: the row that
    goes past the layer, its norm, queries, keys and values, their copies in other orders, and what was attended to
    (8 rows of the width); or the row, its norm and the sum beside three of the feed-forward's width: gate, up, product.
    Before the first layer the picture lies there by patches, once as it comes and once unfolded. A mask, where parts
    attend to themselves, has a float and a half float for each pair of patches; scores, where attention is not flash,
    two floats for each pair and each head. llama.cpp takes flash attention wherever a device has it. Of the kinds that
    were measured it reserved between half of this and all of it.
    """
    info = projector
    layer = max(ATTENDING_ROWS * info.n_embd, FEEDING_ROWS * (info.n_embd + info.n_ff))
    unfolded = 2 * COLOURS * info.patch_size**2
    pairs = info.num_patches**2
    mask = pairs * (FLOAT_BYTES + HALF_BYTES) if info.has_windows else 0
    scores = 0 if flash_attention else 2 * FLOAT_BYTES * pairs * info.n_head
    return info.num_patches * FLOAT_BYTES * max(layer, unfolded) + picture_bytes(info) + mask + scores
