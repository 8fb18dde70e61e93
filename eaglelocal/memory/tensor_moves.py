"""The tensors that `--override-tensor` moves to other devices than their layer's, with their bytes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import TENSOR
from eaglelocal.core.tensor_overrides import PROCESSOR, TensorOverride
from eaglelocal.errors import UsageError
from eaglelocal.gguf.header import TensorInfo
from eaglelocal.gguf.upper_layers import find_block, is_expert, is_input
from eaglelocal.memory.budget import RAM, Buffer, MemoryKind
from eaglelocal.memory.contexts import PlannedContext, compute_bytes, inputs_bytes


@dataclass(frozen=True, slots=True)
class TensorMove:
    """A tensor that lies elsewhere than its layer. `layer`: None for the embeddings and the output."""

    tensor: TensorInfo
    layer: int | None
    source: str
    device: str

    @property
    def is_expert(self) -> bool:
        return is_expert(self.tensor.name)


def check_overrides(overrides: Sequence[TensorOverride], gpus: Iterable[str], split: str) -> None:
    """Raise UsageError if an override names a device that the run does not use, on which llama.cpp would abort."""
    known = [*gpus, PROCESSOR]
    for each in overrides:
        if each.device not in known:
            message = f"--override-tensor {each}: this run uses no device {each.device}"
            raise UsageError(message, hint=f"one of: {', '.join(known)}")
    if overrides and split == TENSOR:
        raise UsageError("--override-tensor cannot place parts of tensors", hint="--split layer")


def find_unmatched(tensors: Iterable[TensorInfo], overrides: Sequence[TensorOverride]) -> TensorOverride | None:
    """Return the first override whose pattern occurs in no tensor's name; None if each has one."""
    names = [tensor.name for tensor in tensors]
    return next((each for each in overrides if not any(map(each.matches, names))), None)


@lru_cache(maxsize=1 << 13)  # as of find_block
def find_override(name: str, overrides: tuple[TensorOverride, ...]) -> str | None:
    """Return the device that holds this tensor by the overrides, RAM for the processor; None: its layer's."""
    found = next((each.device for each in overrides if each.matches(name)), None)
    return RAM if found == PROCESSOR else found


def find_moves(
    tensors: Iterable[TensorInfo],
    overrides: tuple[TensorOverride, ...],
    devices: Sequence[str],
    expert_devices: Sequence[str],
) -> Iterator[TensorMove]:
    """Yield the tensors that the overrides move.

    devices         the device of each layer, then that of the output
    expert_devices  the device of each layer's experts
    """
    for tensor in tensors if overrides else ():
        layer, device = find_block(tensor.name), find_override(tensor.name, overrides)
        if layer is None:
            source = RAM if is_input(tensor.name) else devices[-1]
        else:
            source = expert_devices[layer] if is_expert(tensor.name) else devices[layer]
        if device is not None and device != source:
            yield TensorMove(tensor, layer, source, device)


def moved_buffers(moves: Sequence[TensorMove], context: PlannedContext) -> Iterator[Buffer]:
    """Yield what the moves add to each device and, as negative bytes, take from it.

    Where weights go to RAM, the processor computes with them, and for long prompts the GPU, which copies one tensor at
    a time.
    """
    for move in moves:
        yield Buffer(move.source, MemoryKind.WEIGHTS, -move.tensor.nbytes)
        yield Buffer(move.device, MemoryKind.WEIGHTS, move.tensor.nbytes)
    to_ram = [move for move in moves if move.device == RAM]
    if to_ram:
        largest = max(move.tensor.nbytes for move in to_ram)
        inputs = inputs_bytes(context.shape, context.sizes)
        yield Buffer(to_ram[0].source, MemoryKind.BUFFERS, largest + inputs)
        yield Buffer(RAM, MemoryKind.BUFFERS, compute_bytes(context.shape, context.sizes, max_outputs=None))
