"""One attention, computed by llama.cpp's CPU backend, for comparing kernels and numpy."""

from __future__ import annotations

import ctypes as C
import dataclasses
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from eaglelocal.backend import cpu_attention
from eaglelocal.backend.native_step import get_function, load_native

F32, F16, Q4_0, Q8_0, BF16 = 0, 1, 2, 8, 30  # ggml_type
QUANTIZATIONS = {Q4_0: GGMLQuantizationType.Q4_0, Q8_0: GGMLQuantizationType.Q8_0}
LLAMA_CPP, WIDEST, NEXT = -1, 0, 1  # kernels
NUM_THREADS = 2

Floats = NDArray[np.float32]


class GgmlMemory(C.Structure):
    """ggml_init_params."""

    _fields_ = [("num_bytes", C.c_size_t), ("buffer", C.c_void_p), ("no_alloc", C.c_bool)]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """q [streams, rows, heads, width], k and v [streams, cells, kv_heads, width], mask [streams, rows, cells]."""

    q: Floats
    k: Floats
    v: Floats
    mask: Floats | None = None
    kv_type: int = F16
    softcap: float = 0.0
    sinks: Floats | None = None  # [heads]

    @property
    def scale(self) -> float:
        return float(self.q.shape[-1] ** -0.5)


class Ggml:
    """The functions of ggml that a graph of one attention needs."""

    def __init__(self) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        self.library = C.CDLL(str(next(folder.glob("libllama.*"))))
        cpu = C.CDLL(str(next(folder.glob("libggml-cpu.*"))))
        at, i32, i64, f32 = C.c_void_p, C.c_int32, C.c_int64, C.c_float
        self.init = self.bind("ggml_init", at, GgmlMemory)
        self.free = self.bind("ggml_free", None, at)
        self.tensor = self.bind("ggml_new_tensor_4d", at, at, i32, i64, i64, i64, i64)
        self.permute = self.bind("ggml_permute", at, at, at, i32, i32, i32, i32)
        self.attention = self.bind("ggml_flash_attn_ext", at, at, at, at, at, at, f32, f32, f32)
        self.add_sinks = self.bind("ggml_flash_attn_ext_add_sinks", None, at, at)
        self.graph = self.bind("ggml_new_graph", at, at)
        self.expand = self.bind("ggml_build_forward_expand", None, at, at)
        self.data = self.bind("ggml_get_data", at, at)
        self.compute = self.bind("ggml_backend_graph_compute", i32, at, at)
        cpu_attention.install_attention(self.library)
        device = self.bind("ggml_backend_dev_by_type", at, i32)(cpu_attention.CPU)
        self.backend = self.bind("ggml_backend_dev_init", at, at, C.c_char_p)(device, None)
        get_function(cpu, "ggml_backend_cpu_set_n_threads", [at, i32], None)(self.backend, NUM_THREADS)
        self.select = get_function(load_native(C.CDLL), "attention_select", [i32], C.c_bool)

    def bind(self, symbol: str, restype: type | None, *argtypes: type) -> C._NamedFuncPointer:
        return get_function(self.library, symbol, list(argtypes), restype)

    def put(self, memory: int, array: NDArray[np.generic], kind: int) -> int:
        """Return a tensor that holds the array, its last axis first."""
        shape = (*reversed(array.shape), *(1,) * (4 - array.ndim))
        tensor = int(self.tensor(memory, kind, *shape))
        source = convert(array, kind)
        C.memmove(self.data(tensor), source.ctypes.data, source.nbytes)
        return tensor

    def run(self, inputs: Inputs, kernel: int) -> Floats:
        """Return [streams, rows, heads, value width]."""
        assert self.select(kernel), "this processor has no such kernel"
        memory = self.init(GgmlMemory(1 << 28, None, False))
        try:
            q, k, v = (
                self.permute(memory, self.put(memory, array, kind), 0, 2, 1, 3)
                for array, kind in ((inputs.q, F32), (inputs.k, inputs.kv_type), (inputs.v, inputs.kv_type))
            )
            mask = None if inputs.mask is None else self.put(memory, inputs.mask[:, None], F16)
            node = self.attention(memory, q, k, v, mask, inputs.scale, 0.0, inputs.softcap)
            if inputs.sinks is not None:
                self.add_sinks(node, self.put(memory, inputs.sinks, F32))
            graph = self.graph(memory)
            self.expand(graph, node)
            assert self.compute(self.backend, graph) == 0
            shape = (*inputs.q.shape[:3], inputs.v.shape[-1])
            result = (C.c_float * int(np.prod(shape))).from_address(self.data(node))
            return np.frombuffer(result, np.float32).copy().reshape(shape)
        finally:
            self.free(memory)
            self.select(WIDEST)


def convert(array: NDArray[np.generic], kind: int) -> NDArray[np.generic]:
    if kind in QUANTIZATIONS:
        return np.ascontiguousarray(quantize(np.ascontiguousarray(array, np.float32), QUANTIZATIONS[kind]))
    if kind == F16:
        return np.ascontiguousarray(array, np.float16)
    single = np.ascontiguousarray(array, np.float32)
    return (single.view(np.uint32) >> 16).astype(np.uint16) if kind == BF16 else single


def compute_exactly(inputs: Inputs) -> NDArray[np.float64]:
    """Return the attention in double precision, of keys and values as their type stores them."""
    k, v = (restore(array, inputs.kv_type) for array in (inputs.k, inputs.v))
    group = inputs.q.shape[2] // k.shape[2]
    scores = np.einsum("srhd,schd->srhc", inputs.q.astype(np.float64), np.repeat(k, group, 2)) * inputs.scale
    if inputs.softcap:
        scores = inputs.softcap * np.tanh(scores / inputs.softcap)
    if inputs.mask is not None:
        scores = scores + inputs.mask[:, :, None, :]
    largest = scores.max(-1, keepdims=True)
    powers = np.exp(scores - largest)
    total = powers.sum(-1, keepdims=True)
    if inputs.sinks is not None:
        total = total + np.exp(inputs.sinks[None, None, :, None] - largest)
    return np.asarray(np.einsum("srhc,schd->srhd", powers / total, np.repeat(v, group, 2)))


def restore(array: Floats, kind: int) -> NDArray[np.float64]:
    """Return the values that a tensor of this type has for them."""
    if kind in QUANTIZATIONS:
        return dequantize(quantize(array, QUANTIZATIONS[kind]), QUANTIZATIONS[kind]).astype(np.float64)
    stored = convert(array, kind)
    if kind == BF16:
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return stored.astype(np.float64)
