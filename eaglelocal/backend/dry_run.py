"""Plan the memory of each device: llama.cpp plans the models and contexts without allocating them.

Compute buffers follow no simple formula, so llama.cpp plans them: with `no_alloc` it builds the graphs of a real load,
in some 10 ms plus the time to read the vocabulary, and logs the sizes (buffer_log.py). Recurrent states, which it
would still allocate, get dummy buffers (dummy_buffers.py).
This file adds the buffers that grow with the first decodes, which are not in that plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from pathlib import Path

from eaglelocal.backend.buffer_log import (
    parse_cache_buffers,
    parse_compute_buffers,
    parse_layer_devices,
    weight_buffers,
)
from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.dummy_buffers import dummy_allocations
from eaglelocal.backend.llama_library import LlamaLibrary, LlamaLog
from eaglelocal.backend.model import LlamaModel, NativePlacement, Placement
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.draft_pairing import DraftInfo, HeadInfo
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.loaded_tensors import list_loaded_tensors
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.upper_layers import UpperLayers, find_upper_layers
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind
from eaglelocal.memory.compute_buffers import logits_bytes, tap_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunPart:
    """A model and the context it is to have; a head uses the context of the part before it.

    tap_width  values of a tapped row; 0: as many as a state has
    """

    header: Header
    info: DraftInfo
    context: ContextParams
    taps: tuple[int, ...] = ()
    tap_width: int = 0
    placement: Placement = field(default_factory=Placement)

    @property
    def is_head(self) -> bool:
        return isinstance(self.info, HeadInfo)

    @property
    def width(self) -> int:
        return self.info.width if isinstance(self.info, HeadInfo) else self.info.n_embd

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        """The tensors loaded with this part; those of MTP layers count to the model in whose file they are."""
        if isinstance(self.info, MtpInfo):
            return list(self.header.tensors.values()) if self.info.is_alone else ()
        if self.placement.has_mtp:
            return list(self.header.tensors.values())
        return list(list_loaded_tensors(self.header, n_layer=self.info.n_layer))

    def is_inside(self, other: DryRunPart) -> bool:
        """Return whether this part is an MTP layer inside the other's model."""
        return isinstance(self.info, MtpInfo) and self.header.path == other.header.path

    @property
    def tap_bytes(self) -> int:
        """The bytes of one tap's rows for a full batch."""
        return tap_bytes(self.context.n_batch, self.tap_width or self.width)

    @property
    def output_bytes(self) -> int:
        """The bytes of logits (and a head's states) of the most output rows, and of the tapped rows."""
        state_width = self.width if self.is_head else 0
        logits = logits_bytes(self.context.num_outputs, self.info.n_vocab, state_width=state_width)
        return logits + len(self.taps) * self.tap_bytes


class PlannedModel(LlamaModel):
    """A model without its weights: contexts can be planned for it, but nothing can be decoded."""

    def __init__(  # reads no sizes of the model
        self, library: LlamaLibrary, path: Path, placement: Placement, layers: UpperLayers | None = None
    ) -> None:
        self.library, self.path = library, path
        native = NativePlacement(library, placement)
        params = native.params
        params.no_alloc, params.load_mode = True, library.api.LLAMA_LOAD_MODE_NONE  # llama.cpp aborts with mmap
        self._load(params, layers)


class FullLog(LlamaLog):
    """The complete log of llama.cpp; the library's own log keeps only its end."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []

    def write(self, text: str) -> None:
        self._texts.append(text)
        super().write(text)

    @property
    def lines(self) -> list[str]:
        return "".join(self._texts).split("\n")


def plan_buffers(library: LlamaLibrary, parts: Sequence[DryRunPart], *, devices: Sequence[str]) -> tuple[Buffer, ...]:
    """Return the buffers by device, of the target, then of its draft. `devices` are the GPUs' names; all else is RAM.

    Raises ModelFileError or ResourceError with llama.cpp's message, if a real load would fail.
    """
    buffers: list[Buffer] = []
    target_context = model = None
    with contextlib.ExitStack() as stack:
        for part in parts:
            with record_log(library) as log:
                if model is None or not part.is_inside(parts[0]):
                    model = PlannedModel(library, part.header.path, part.placement, find_upper_layers(part.header))
                    stack.callback(model.close)
                with dummy_allocations(library):
                    context = create_context(model, part.context, other=target_context if part.is_head else None)
                    if model.upper is not None:
                        stack.callback(library.api.llama_free, create_context(model.upper, part.context))
                stack.callback(library.api.llama_free, context)
            buffers += (replace(b, of_draft=target_context is not None) for b in read_buffers(part, log.lines, devices))
            target_context = context
    return tuple(buffers)


@contextlib.contextmanager
def record_log(library: LlamaLibrary) -> Iterator[FullLog]:
    """Record the complete log of llama.cpp within the block."""
    previous, log = library.log, FullLog()
    library.log = log
    try:
        yield log
    finally:
        library.log = previous


def read_buffers(part: DryRunPart, lines: Sequence[str], devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the buffers of a part, from the log lines of its plan."""
    layers = parse_layer_devices(lines, devices)  # none where the model was loaded before
    yield from weight_buffers(
        part.tensors,
        layers,
        borrows=isinstance(part.info, EagleInfo | MedusaInfo | BlockInfo),
        n_cpu_moe=part.placement.n_cpu_moe,
    )
    yield from parse_cache_buffers(lines, devices)
    yield from parse_compute_buffers(lines, devices)
    yield Buffer(RAM, MemoryKind.BUFFERS, part.output_bytes)
    if upper := find_upper_layers(part.header):  # its output is its embeddings too, which stay in RAM
        output = part.header.tensors["output.weight"]
        if layers and layers[max(layers)] != RAM:
            yield Buffer(RAM, MemoryKind.WEIGHTS, output.nbytes)
        yield Buffer(RAM, MemoryKind.BUFFERS, logits_bytes(part.context.num_outputs, upper.num_rows))
    for tap in part.taps:  # later layers cannot reuse a tapped row's memory, so the graph grows
        yield Buffer(layers.get(tap, RAM), MemoryKind.BUFFERS, part.tap_bytes)
