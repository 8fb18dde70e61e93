"""Plan the memory of each device: llama.cpp plans the models and contexts without allocating them.

Compute buffers follow no simple formula, so llama.cpp plans them: with `no_alloc` it builds the graphs of a real load,
in some 10 ms plus the time to read the vocabulary, and logs the sizes. Recurrent states, which it would still allocate,
get dummy buffers. This file adds the buffers that grow with the first decodes, which are not in that plan.
"""

from __future__ import annotations

import contextlib
import ctypes as C
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from eaglelocal.backend.context_params import ContextParams, create_context
from eaglelocal.backend.llama_library import LlamaLibrary, LlamaLog, bind
from eaglelocal.backend.model import LlamaModel, NativePlacement, Placement
from eaglelocal.core.records import dataclass
from eaglelocal.gguf.block_info import BlockInfo
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.medusa_info import MedusaInfo
from eaglelocal.gguf.model_shape import DraftInfo, HeadInfo
from eaglelocal.gguf.mtp import MtpInfo
from eaglelocal.gguf.upper_layers import (
    UpperLayers,
    find_block,
    find_upper_layers,
    is_expert,
    is_input,
    list_loaded_tensors,
)
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind
from eaglelocal.memory.contexts import logits_bytes, tap_bytes
from eaglelocal.memory.tensor_moves import find_override


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRunPart:
    """A model and the context planned for it; a head uses the context of the part before it.

    tap_width  values of a tapped row; 0: as many as a state has
    """

    info: DraftInfo
    context: ContextParams
    taps: tuple[int, ...] = ()
    tap_width: int = 0
    placement: Placement = field(default_factory=Placement)

    @property
    def header(self) -> Header:
        return self.info.header

    @property
    def is_head(self) -> bool:
        return isinstance(self.info, HeadInfo)

    @property
    def width(self) -> int:
        return self.info.width if isinstance(self.info, HeadInfo) else self.info.n_embd

    @property
    def tensors(self) -> Sequence[TensorInfo]:
        """The tensors loaded with this part; MTP layers belong to the model in whose file they are."""
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
        placement=part.placement,
    )
    yield from parse_cache_buffers(lines, devices)
    yield from parse_compute_buffers(lines, devices)
    yield Buffer(RAM, MemoryKind.BUFFERS, part.output_bytes)
    if upper := find_upper_layers(part.header):  # its output is also its embeddings, which stay in RAM
        output = part.header.tensors["output.weight"]
        if layers and layers[max(layers)] != RAM:
            yield Buffer(RAM, MemoryKind.WEIGHTS, output.nbytes)
        yield Buffer(RAM, MemoryKind.BUFFERS, logits_bytes(part.context.num_outputs, upper.num_rows))
    for tap in part.taps:  # later layers cannot reuse a tapped row's memory, so the graph grows
        yield Buffer(layers.get(tap, RAM), MemoryKind.BUFFERS, part.tap_bytes)


# ---- dummy buffers, so that llama.cpp allocates nothing while it only plans
#
# With `no_alloc` it plans models, caches and graphs, but still allocates recurrent states, and writes zeros to all of
# them (llama-memory-recurrent.cpp). Planning fewer would give other results: compute buffers grow with their number,
# in steps. So during planning each buffer type gets another allocator in its function table (ggml-backend-impl.h),
# which returns buffers of the right size without memory. llama.cpp's own dummies have no size.
ALLOCATE = C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_size_t)  # buffer type, bytes -> buffer
BUFFER_FUNCTIONS = (
    *("free_buffer", "get_base", "init_tensor", "memset_tensor", "set_tensor", "get_tensor"),
    *("set_tensor_2d", "get_tensor_2d", "cpy_tensor", "clear", "reset"),
)


class BufferType(C.Structure):
    """The head of the struct ggml_backend_buffer_type."""

    _fields_ = (("get_name", C.c_void_p), ("alloc_buffer", C.c_void_p))


class BufferFunctions(C.Structure):
    """The struct ggml_backend_buffer_i."""

    _fields_ = [(name, C.c_void_p) for name in BUFFER_FUNCTIONS]


@contextlib.contextmanager
def dummy_allocations(library: LlamaLibrary) -> Iterator[None]:
    """Let all allocations within the block, on any device, return dummy buffers.

    No other thread may load or decode during the block. Objects made within the block may be freed after it.
    """
    native = C.PyDLL(library.path)
    make = bind(native, "ggml_backend_buffer_init", [C.c_void_p, BufferFunctions, C.c_void_p, C.c_size_t], C.c_void_p)
    functions = dummy_functions(native)
    allocate = ALLOCATE(lambda kind, num_bytes: make(kind, functions, None, num_bytes))
    devices = map(library.device_at, range(library.num_devices()))
    kinds = set(map(library.device_buffer_type, devices))  # BLAS shares the CPU's
    tables = [BufferType.from_address(kind) for kind in kinds]
    allocators = [table.alloc_buffer for table in tables]
    try:
        for table in tables:
            table.alloc_buffer = C.cast(allocate, C.c_void_p).value
        yield
    finally:
        for table, allocator in zip(tables, allocators, strict=True):
            table.alloc_buffer = allocator


def dummy_functions(native: C.CDLL) -> BufferFunctions:
    """Return the functions of a dummy buffer: llama.cpp's own functions, because they must outlive any buffer.

    Only distances from the base address are computed, so any address but NULL will do: the buffer type's is used.
    Clearing does nothing: it calls a reset function that has nothing to reset.
    """
    base = bind(native, "ggml_backend_buffer_get_type", [C.c_void_p], C.c_void_p)
    nothing = bind(native, "ggml_backend_buffer_reset", [C.c_void_p], None)
    return BufferFunctions(get_base=C.cast(base, C.c_void_p).value, clear=C.cast(nothing, C.c_void_p).value)


# ---- the memory use that llama.cpp logs, of a real load or of a dry run
# Each pattern begins with the name of the function that logs it, so that a line that only quotes a size does not match.
BUFFER_LINE = re.compile(r"\w+: +(\S+) +(model|KV|compute|output|RS|DSV4 \w+ state) +buffer size *= *([\d.]+) *MiB")
COMPRESSOR_STATE = "DSV4"  # begins the kind of buffers with DeepSeek V4's recurrent state
LAYER_LINE = re.compile(r"load_tensors: layer +(\d+) assigned to device ([^,]+),")
CACHE_LAYER_LINE = re.compile(r"\w+[:,] +layer +\d+: dev = (\S+)")
CACHE_SIZE_LINE = re.compile(
    r"\w+: (?:\w+ ratio = .* )?size = *([\d.]+) MiB(?: \( *\d+ cells,|$)"
)  # of the layers logged before it
MIB = 2**20


def sum_buffer_bytes(log: LlamaLog) -> dict[str, int]:
    """Return bytes by kind of buffer, summed over devices, from the lines that the log still holds."""
    totals: dict[str, int] = {}
    for _, kind, num_bytes in _parse_buffers(log.buffer_lines):
        name = "RS" if kind.startswith(COMPRESSOR_STATE) else kind
        totals[name] = totals.get(name, 0) + num_bytes
    return totals


def sum_host_bytes(log: LlamaLog, devices: Sequence[str], *, lends_memory: bool) -> int:
    """Return the bytes of all logged buffers that lie in RAM.

    devices       the GPUs' names
    lends_memory  the GPUs use RAM too
    """
    gpus = () if lends_memory else devices
    buffers = _parse_buffers(log.buffer_lines)
    return sum(num_bytes for name, _, num_bytes in buffers if find_device(name, gpus) == RAM)


def _parse_buffers(lines: Iterable[str]) -> Iterator[tuple[str, str, int]]:
    """Yield the logged buffers: name, kind and bytes."""
    for line in lines:
        if match := BUFFER_LINE.match(line):
            yield match[1], match[2], int(float(match[3]) * MIB)


def find_device(name: str, devices: Sequence[str]) -> str:
    """Return the device of a buffer by its name: `MTL0_Private` is on `MTL0`, `CUDA_Host` in RAM."""
    return max((device for device in devices if name.startswith(device)), key=len, default=RAM)


def parse_layer_devices(lines: Iterable[str], devices: Sequence[str]) -> dict[int, str]:
    """Return the device of each layer; the layer after the last one is the output."""
    found = (match for line in lines if (match := LAYER_LINE.match(line)))
    return {int(match.group(1)): find_device(match.group(2), devices) for match in found}


def weight_buffers(
    tensors: Iterable[TensorInfo], layers: Mapping[int, str], *, borrows: bool, placement: Placement | None = None
) -> Iterator[Buffer]:
    """Yield the weights by device. Embeddings that are the output too count on its device as well.

    layers     the device of each layer; the layer after the last one is the output
    borrows    True for a head that uses its target's output
    placement  for experts, and tensors on devices of their own
    """
    placement = placement or Placement()
    output = layers[max(layers)] if layers else RAM
    names = {tensor.name: tensor for tensor in tensors}
    for name, tensor in names.items():
        block = find_block(name)
        device = layers.get(block, RAM) if block is not None else RAM if is_input(name) else output
        if block is not None and block < placement.n_cpu_moe and is_expert(name):
            device = RAM
        device = find_override(name, placement.overrides) or device
        yield Buffer(device, MemoryKind.WEIGHTS, tensor.nbytes)
    embeddings = names.get("token_embd.weight")
    if embeddings is not None and "output.weight" not in names and output != RAM and not borrows:
        yield Buffer(output, MemoryKind.WEIGHTS, embeddings.nbytes)


def parse_cache_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    """Yield the caches by device. The log names a cache's layers, then their total; a model may have several caches."""
    layers: list[str] = []
    for line in lines:
        if match := CACHE_LAYER_LINE.match(line):
            layers.append(find_device(match.group(1), devices))
        elif (match := CACHE_SIZE_LINE.match(line)) and layers:
            share = float(match.group(1)) * MIB / len(layers)
            yield from (Buffer(device, MemoryKind.CACHE, int(share)) for device in layers)
            layers = []


def parse_compute_buffers(lines: Iterable[str], devices: Sequence[str]) -> Iterator[Buffer]:
    for name, kind, num_bytes in _parse_buffers(lines):
        if kind == "compute":
            yield Buffer(find_device(name, devices), MemoryKind.BUFFERS, num_bytes)
