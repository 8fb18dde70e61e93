"""Plan files with the unchanged tensors of another file: all of them, or without some layers.

This module chooses the layers to leave out; llama.cpp quantizes such a file further.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from eaglelocal.errors import IncompatibleError, UsageError
from eaglelocal.gguf.header import ArrayValue, Header, ValueType
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tensors import stream_copy
from eaglelocal.gguf.writer import KeyValue, StreamedTensor
from eaglelocal.hub.inflation.generated_files import FilePlan

_LAYER = re.compile(r"blk\.(?P<layer>\d+)\.(?P<rest>.+)")


def plan_copy(source: Header) -> FilePlan:
    """Plan a copy of all tensors."""
    return FilePlan(source, (), [stream_copy(source, tensor, tensor.name) for tensor in source.tensors.values()])


def plan_drop(source: Header, num_layers: int) -> FilePlan:
    """Plan a copy without num_layers layers.

    Raises IncompatibleError if layers differ, because leaving some out would change the meaning of others, and
    UsageError if too few would be left.
    """
    model = ModelInfo.from_header(source)
    _check_alike(source, model)
    if num_layers > model.n_layer - 2:
        hint = f"`@drop{max(model.n_layer // 3, 1)}` leaves out a third"
        raise UsageError(f"cannot leave out {num_layers} layers of {model.name}: it has {model.n_layer}", hint=hint)
    dropped = choose_dropped(model.n_layer, num_layers)
    kept = [layer for layer in range(model.n_layer) if layer not in dropped]
    changed = [KeyValue(f"{model.architecture}.block_count", ValueType.UINT32, len(kept))]
    return FilePlan(source, changed, list(_copy_layers(source, {layer: new for new, layer in enumerate(kept)})))


def choose_dropped(n_layer: int, num_layers: int) -> Sequence[int]:
    """Return the layers to leave out: a block in the middle, so that the first and the last stay.

    choose_dropped(8, 2) == range(3, 5)

    Leaving out evenly spread single layers costs more acceptance, and so does leaving out the last ones
    (docs/measured.md).
    """
    first = (n_layer - num_layers) // 2
    return range(first, first + num_layers)


def _copy_layers(source: Header, new_ids: dict[int, int]) -> Iterator[StreamedTensor]:
    for tensor in source.tensors.values():
        named = _LAYER.fullmatch(tensor.name)
        if named is None:
            yield stream_copy(source, tensor, tensor.name)
        elif int(named["layer"]) in new_ids:
            yield stream_copy(source, tensor, f"blk.{new_ids[int(named['layer'])]}.{named['rest']}")


def _check_alike(source: Header, model: ModelInfo) -> None:
    """Raise IncompatibleError unless all layers have the same tensors and no key has a value for each layer."""
    layers: dict[int, set[tuple[str, tuple[int, ...]]]] = {}
    for tensor in source.tensors.values():
        if named := _LAYER.fullmatch(tensor.name):
            layers.setdefault(int(named["layer"]), set()).add((named["rest"], tensor.shape))
    keys = [
        key
        for key, value in source.metadata.items()
        if isinstance(value, ArrayValue) and key.startswith(f"{model.architecture}.") and value.count >= model.n_layer
    ]
    is_alike = layers.keys() == set(range(model.n_layer)) and all(one == layers[0] for one in layers.values())
    if not is_alike or keys or model.has_state or model.sliding_window is not None:
        raise IncompatibleError(
            f"cannot leave layers of {model.name} out: they differ", hint="use a model whose layers are all alike"
        )
