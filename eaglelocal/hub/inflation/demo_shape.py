"""The shape of an inflated demo that is not written yet, so that it can be planned before it fills a disk.

Reads the headers of the embedded pair; sizes are those of the matrices, norms left out (under 0.1 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from eaglelocal.gguf.architectures import EAGLE
from eaglelocal.gguf.eagle_info import NUM_TAPS, EagleInfo
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.head_requantization import BEST_TYPE
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.gguf.reader import read_header
from eaglelocal.hub.inflation.demo_sizes import HEAD_DIM, DemoSize, choose_head, choose_target, count_head_parameters
from eaglelocal.hub.inflation.demo_sizes import DemoShape as Proportions


@dataclass(frozen=True, slots=True)
class PlannedDemo:
    """Shapes of an inflated pair. `num_parameters`: of the target, all used for each token, as its output is tied."""

    target: ModelShape
    head: ModelShape
    num_parameters: int


def plan_demo(size: DemoSize, source_target: Path, source_head: Path) -> PlannedDemo:
    """Return the pair's shapes. Raises ModelFileError or IncompatibleError where the sources cannot be inflated."""
    from eaglelocal.hub.inflation.blueprint import read_head_shape, read_target_shape  # imports numpy

    model = ModelInfo.from_header(read_header(source_target))
    eagle = EagleInfo.from_header(read_header(source_head))
    small = read_target_shape(model)
    grown = choose_target(size.num_parameters, small)
    draft_vocab = eagle.draft_vocab or eagle.n_vocab
    head = choose_head(grown, read_head_shape(eagle), draft_vocab)
    embedding = count_bytes(size.type, grown.vocab * grown.width)
    head_values = count_head_parameters(head, grown.width, draft_vocab)
    target = _make_shape(
        "llama",
        grown,
        weights_bytes=count_bytes(size.type, grown.num_parameters),
        embedding_bytes=embedding,
        max_context=model.context_length,
    )
    looked_up = head.vocab * head.width
    lent = min(count_bytes(kind, looked_up) for kind in (size.type, "q8_0"))
    read = min(count_bytes(kind, head_values - looked_up) for kind in (size.type, BEST_TYPE))
    drafting = _make_shape(
        EAGLE,
        head,
        weights_bytes=lent + read,  # of the lighter copy that is loaded (gguf/head_requantization.py)
        embedding_bytes=lent,
        max_context=model.context_length,
    )
    return PlannedDemo(target, drafting, grown.num_parameters)


def count_bytes(type_name: str, num_values: int) -> int:
    kind = GGML_TYPES_BY_NAME[type_name.upper()]
    return num_values // kind.block_elements * kind.block_bytes


def _make_shape(
    architecture: str, shape: Proportions, *, weights_bytes: int, embedding_bytes: int, max_context: int
) -> ModelShape:
    is_head = architecture == EAGLE
    return ModelShape(
        architecture=architecture,
        num_taps=NUM_TAPS if is_head else 0,
        n_layer=shape.layers,
        n_embd=shape.width,
        n_vocab=shape.vocab,
        n_head=shape.heads,
        key_dim=HEAD_DIM,
        value_dim=HEAD_DIM,
        kv_heads=(shape.kv_heads,) * shape.layers,
        windows=(None,) * shape.layers,
        layer_states=(0,) * shape.layers,
        n_ff=shape.ffn,
        weights_bytes=weights_bytes,
        embedding_bytes=embedding_bytes,
        output_bytes=0,
        active_bytes=weights_bytes - embedding_bytes if is_head else weights_bytes,
        tied_output_bytes=0 if is_head else embedding_bytes,
        max_context=max_context,
    )
