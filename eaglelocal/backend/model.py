"""A loaded model file: its sizes and its vocabulary. Owns the llama_model; contexts must be closed first."""

from __future__ import annotations

import ctypes as C
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from eaglelocal.backend.constraint_compiler import LlamaConstraints
from eaglelocal.backend.llama_library import OUTPUT_TENSORS, LlamaLibrary
from eaglelocal.backend.vocabulary import LlamaVocabulary
from eaglelocal.backend.weight_loading import UpperWeights, exclude_others, find_mappings
from eaglelocal.core.adapters import NO_ADAPTERS, AdapterMix
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import TENSOR
from eaglelocal.core.tensor_overrides import PROCESSOR, TensorOverride
from eaglelocal.core.user_paths import quote_path
from eaglelocal.errors import EagleLocalError, EngineError, ModelFileError, UsageError
from eaglelocal.gguf.upper_layers import EXPERTS, UpperLayers

SPLIT_MODES = {"none": 0, "layer": 1, "row": 2, TENSOR: 3}  # llama_split_mode
D2T = "d2t"  # the table from a head's tokens to its target's
MAX_TEXT_BYTES = 256  # of a text of the metadata


def look_up(table: dict[str, int], name: str, flag: str) -> int:
    if name not in table:
        raise UsageError(f"{flag} cannot be {name}", hint=f"one of: {', '.join(table)}")
    return table[name]


def devices_by_name(library: LlamaLibrary) -> dict[str, int]:
    known = [library.device_at(i) for i in range(library.num_devices())]
    return {library.device_name(device).decode(): device for device in known}


def device_array(library: LlamaLibrary, names: str) -> C.Array[C.c_void_p]:
    """Return the NULL-terminated list of the named devices. Raises UsageError with the names that exist."""
    by_name = devices_by_name(library)
    chosen = [name.strip() for name in names.split(",")]
    for name in chosen:
        if name not in by_name:
            raise UsageError(f"--device: there is no device {name}", hint=f"one of: {', '.join(by_name)}")
    return (C.c_void_p * (len(chosen) + 1))(*(by_name[name] for name in chosen), None)


class BufferOverride(C.Structure):
    """The struct llama_model_tensor_buft_override, which llama_cpp lacks."""

    _fields_ = (("pattern", C.c_char_p), ("buffer_type", C.c_void_p))


def find_buffer_type(library: LlamaLibrary, override: TensorOverride) -> int:
    """Return llama.cpp's buffer type of the override's device. Raises UsageError with the devices that exist."""
    if override.device == PROCESSOR:
        return int(library.cpu_buffer_type())
    by_name = devices_by_name(library)
    if override.device not in by_name:
        message = f"--override-tensor {override}: there is no device {override.device}"
        raise UsageError(message, hint=f"one of: {', '.join(by_name)}")
    return int(library.device_buffer_type(by_name[override.device]))


def overrides(library: LlamaLibrary, placement: Placement) -> C.Array[BufferOverride] | None:
    """Return the NULL-terminated list of tensors placed on another device than their layer; None if there are none."""
    found = [BufferOverride(each.pattern.encode(), find_buffer_type(library, each)) for each in placement.overrides]
    if placement.n_cpu_moe:  # one pattern: llama.cpp compiles each again for every tensor
        layers = "|".join(map(str, range(placement.n_cpu_moe)))
        found.append(BufferOverride(rf"blk\.({layers}){EXPERTS}".encode(), library.cpu_buffer_type()))
    if placement.keeps_output:
        found.append(BufferOverride(OUTPUT_TENSORS, library.cpu_buffer_type()))
    if placement.d2t_device:
        device = devices_by_name(library)[placement.d2t_device]
        found.append(BufferOverride(f"^{D2T}$".encode(), library.device_buffer_type(device)))
    return (BufferOverride * (len(found) + 1))(*found) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The placement of a model on devices, and how its weights are loaded.

    gpu_layers     number of last layers on GPUs, output included; None: all
    n_cpu_moe      the experts of the first so many layers stay in RAM
    overrides      tensors on other devices than their layer; they precede n_cpu_moe
    devices        names of llama.cpp devices, separated by commas; None: all
    split          how a model is divided among several GPUs
    shares         of each of those devices; empty: in proportion to free memory
    repack         let llama.cpp convert quantized weights to a layout of its own for this CPU
    no_mmap        read the weights into allocated memory; else llama.cpp maps the file where it can
    moves_weights  move mapped weights into huge pages once everything is loaded (weight_loading.py)
    d2t_device     the device of a head's table d2t. llama.cpp would leave it in RAM, as CUDA and Vulkan cannot look up
                   rows of such integers, and copy it for each drafted token; but no rows are looked up in it
    has_mtp        load the MTP layer too
    keeps_output   the output stays in RAM, wherever the last layer lies
    """

    gpu_layers: int | None = None
    n_cpu_moe: int = 0
    overrides: tuple[TensorOverride, ...] = ()
    devices: str | None = None
    split: str = "layer"
    shares: tuple[float, ...] = ()
    repack: bool = True
    no_mmap: bool = False
    moves_weights: bool = False
    d2t_device: str | None = None
    has_mtp: bool = False
    keeps_output: bool = False


class NativePlacement:
    """The placement as llama.cpp's parameters. Owns the memory they point to, so it must outlive the loading."""

    def __init__(self, library: LlamaLibrary, placement: Placement) -> None:
        api = library.api
        self.params = params = api.llama_model_default_params()
        if placement.gpu_layers is not None:
            params.n_gpu_layers = placement.gpu_layers
        params.use_extra_bufts = placement.repack and library.can_repack
        params.load_mtp = placement.has_mtp
        if placement.no_mmap:
            params.load_mode = api.LLAMA_LOAD_MODE_NONE
        if placement.split == TENSOR and not hasattr(api, "LLAMA_SPLIT_MODE_TENSOR"):
            raise UsageError("--split tensor: this build of llama.cpp is too old for it", hint="--split layer")
        params.split_mode = look_up(SPLIT_MODES, placement.split, "--split")
        self._devices = device_array(library, placement.devices) if placement.devices else None
        if self._devices is not None:
            params.devices = C.cast(self._devices, C.c_void_p)
        self._overrides = overrides(library, placement)
        if self._overrides is not None:
            params.tensor_buft_overrides = C.cast(self._overrides, C.c_void_p)
        self._shares = share_array(placement.shares, api.llama_max_devices()) if placement.shares else None
        if self._shares is not None:
            params.tensor_split = C.cast(self._shares, C.POINTER(C.c_float))


def share_array(shares: Sequence[float], max_devices: int) -> C.Array[C.c_float]:
    """Return the shares in an array of the fixed length that llama.cpp reads."""
    if len(shares) > max_devices:
        raise UsageError(f"--split names {len(shares)} shares; llama.cpp knows at most {max_devices} devices")
    return (C.c_float * max_devices)(*shares)


def load_failure(path: Path, reason: str, gpu_layers: int | None = None) -> EagleLocalError:
    """Return the error for a failed load.

    reason      llama.cpp's message
    gpu_layers  as in `Placement`
    """
    if "does not support split buffers" in reason:
        return UsageError("--split row: these devices cannot share rows of a matrix", hint="--split layer")
    lacks_memory = any(word in reason.lower() for word in ("alloc", "memory"))
    hint = f"--gpu-layers {(gpu_layers or 0) // 2}" if lacks_memory else f"eaglelocal show {quote_path(path)}"
    return ModelFileError(f"llama.cpp cannot load {path}: {reason}", hint=hint)


class LlamaModel:
    """The weights of a target, a draft model or an EAGLE head. Raises the errors of `load_failure`.

    layers  the upper layers of a head that has several
    mapped  the addresses where its file is mapped
    upper   the weights of the upper layers; None: it has none
    """

    def __init__(
        self,
        library: LlamaLibrary,
        path: Path,
        placement: Placement | None = None,
        *,
        layers: UpperLayers | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.library, self.path = library, path
        self.handle: object = None
        self.adapters: list[object] = []  # LoRA adapters, by id
        api = library.api
        native = NativePlacement(library, placement or Placement())
        params = native.params

        def report_progress(fraction: float, user_data: object) -> bool:
            if on_progress is not None:
                on_progress(fraction if layers is None else (bool(self.handle) + fraction) / 2)
            return True

        callback = api.llama_progress_callback(report_progress)
        params.progress_callback = callback
        library.log.begin()
        others = find_mappings(path)  # opened by another reader of this file
        self._load(params, layers, placement.gpu_layers if placement else None)
        self.mapped = exclude_others(find_mappings(path), others)
        self.n_embd: int = api.llama_model_n_embd(self.handle)
        self.n_embd_out: int = api.llama_model_n_embd_out(self.handle)
        self.n_layer: int = api.llama_model_n_layer(self.handle)
        self.trained_ctx: int = api.llama_model_n_ctx_train(self.handle)
        self.size_bytes: int = api.llama_model_size(self.handle)
        if self.upper is not None:
            self.size_bytes += api.llama_model_size(self.upper.handle)
        self.architecture = self._read_metadata("general.architecture")
        self.is_hybrid = bool(api.llama_model_is_hybrid(self.handle) or api.llama_model_is_recurrent(self.handle))
        vocabulary = api.llama_model_get_vocab(self.handle)
        splitter = self._read_metadata("tokenizer.ggml.pre")
        template: bytes | None = api.llama_model_chat_template(self.handle, None)
        chat_template = template.decode("utf-8", "replace") if template else None
        self.vocabulary = LlamaVocabulary(library, vocabulary, chat_template, splitter=splitter)
        self.constraints = LlamaConstraints(self.vocabulary)

    def load_adapters(self, paths: Sequence[Path]) -> None:
        """Load LoRA adapters, before any context is made. Raises ModelFileError."""
        library = self.library
        for path in paths:
            library.log.begin()
            handle = library.api.llama_adapter_lora_init(self.handle, os.fsencode(path))
            if not handle:
                raise ModelFileError(f"llama.cpp cannot load {path}: {library.log.reason()}")
            self.adapters.append(handle)

    def _read_metadata(self, key: str) -> str:
        """Return a text of the file's metadata; empty if there is none."""
        buffer = (C.c_char * MAX_TEXT_BYTES)()
        length = self.library.api.llama_model_meta_val_str(self.handle, key.encode(), buffer, MAX_TEXT_BYTES)
        return buffer.value.decode("utf-8", "replace") if length > 0 else ""

    def _load(self, params: object, layers: UpperLayers | None, gpu_layers: int | None = None) -> None:
        self.upper: UpperWeights | None = None
        self.handle = self.library.api.llama_model_load_from_file(os.fsencode(self.path), params)
        if self.handle and layers is not None:
            self.upper = UpperWeights(self.library, self.path, params, layers)
        if not self.handle or (self.upper is not None and not self.upper.handle):
            self.close()
            raise load_failure(self.path, self.library.log.reason(), gpu_layers)

    def close(self) -> None:
        if self.upper is not None:
            self.upper.close()
        if self.handle:
            self.library.api.llama_model_free(self.handle)
            self.handle = None


# ---- LoRA adapters
#
# llama.cpp reserves graph nodes for them when a context is created, so they are loaded before. They live as long as
# the model. A change of the mix makes llama.cpp plan its graphs again at the next decode.
class ContextAdapters:
    """The adapters that a context applies. handles: those of its model, by id."""

    def __init__(self, library: LlamaLibrary, context: object, handles: list[object]) -> None:
        self._library, self._context, self._handles = library, context, handles
        self._mix = NO_ADAPTERS

    def use(self, mix: AdapterMix) -> None:
        """Apply exactly these adapters from now on. Raises EngineError if llama.cpp refuses them."""
        if mix == self._mix:
            return
        api, count = self._library.api, len(mix)
        handles = (api.llama_adapter_lora_p_ctypes * count)(*(self._handles[number] for number, _ in mix))
        scales = (C.c_float * count)(*(scale for _, scale in mix))
        status = api.llama_set_adapters_lora(self._context, handles, count, scales)
        if status:
            raise EngineError(f"llama_set_adapters_lora gave {status}: {self._library.log.reason()}")
        self._mix = mix
