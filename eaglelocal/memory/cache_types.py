"""Say which types of cached keys and values the pinned llama.cpp refuses, or computes with slowly.

A device without a kernel for a pair of types would not fail: llama.cpp then computes attention on the processor, and
copies the cache there in each step. Sources: `supports_op` of each backend (ggml-cuda/fattn.cu, ggml-vulkan.cpp,
ggml-metal-device.m, ggml-sycl/fattn.cpp) and the checks of llama_init_from_model (src/llama-context.cpp). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.core.run_options import split_kv_type
from eaglelocal.errors import UsageError
from eaglelocal.gguf.ggml_types import GGML_TYPES_BY_NAME
from eaglelocal.gguf.model_shape import ModelShape
from eaglelocal.memory.budget import RAM
from eaglelocal.memory.cache_bytes import check_kv_type

NVIDIA, VULKAN, METAL, SYCL = "CUDA", "Vulkan", "MTL", "SYCL"  # devices by name, without their number
CONVERTING = (NVIDIA, "ROCm", "MUSA")  # they compute with every pair of types, because they convert it to f16
NO_IQ4_NL = (*CONVERTING, METAL, SYCL)
SAME_TYPES = (METAL, SYCL)  # keys and values must have one type
BUILT_IN_SYCL = ("f32", "f16", "bf16", "q8_0", "q4_0")
BUILT_IN_CUDA = ("f16", "bf16", "q8_0", "q4_0")  # each with itself; GGML_CUDA_FA_QUANTS adds others to a build
OWN_KERNEL_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")  # that native/attention.c reads


def check_kernels(kv_type: str | None, flash_attn: str, devices: Iterable[str]) -> None:
    """Raise UsageError for an unknown type, or if a device has no kernel for flash attention with these types.

    Without flash attention values are f16, and every backend multiplies with all types of keys.

    kv_type  None: as planned, of types that have kernels everywhere
    devices  names of GPUs, as llama.cpp names them
    """
    if kv_type is None:
        return
    check_kv_type(kv_type)
    for device in devices if flash_attn != "off" else ():
        if problem := find_missing_kernel(kv_type, device):
            keys, _ = split_kv_type(kv_type)
            hint = "--kv-type q8_0" if find_missing_kernel(keys, device) else f"--kv-type {keys}"
            raise UsageError(f"--kv-type {kv_type}: {problem}", hint=hint)


def find_missing_kernel(kv_type: str, device: str) -> str:
    """Return why this device cannot compute with a cache of these types; empty if it can, or is unknown."""
    keys, values = split_kv_type(kv_type)
    stem = device.rstrip("0123456789")
    if stem in NO_IQ4_NL and "iq4_nl" in (keys, values):
        return f"llama.cpp has no kernel for iq4_nl on {device}"
    if stem in SAME_TYPES and keys != values:
        return f"llama.cpp has no kernel on {device} for keys and values of different types"
    if stem == SYCL and keys not in BUILT_IN_SYCL:
        return f"llama.cpp has no kernel for {keys} on {device}"
    if stem == VULKAN and keys != values and "bf16" in (keys, values):
        return f"llama.cpp has no kernel on {device} for bf16 beside another type"
    return ""


def explain_slow_kernel(kv_type: str, device: str) -> str:
    """Return the note on types that this device, or the processor, computes with slowly; empty for others."""
    keys, values = split_kv_type(kv_type)
    if device == RAM and not {keys, values} <= set(OWN_KERNEL_TYPES):
        return f"attention to a cache of {kv_type} takes longer: our own kernel does not read it, llama.cpp's does"
    if device.rstrip("0123456789") not in CONVERTING or (keys == values and keys in BUILT_IN_CUDA):
        return ""
    return (
        f"{device} converts a cache of {kv_type} to f16 for each token, which is slow, "
        f"unless llama.cpp was built with -DGGML_CUDA_FA_QUANTS={keys}-{values} or =all"
    )


def explain_refused_type(shape: ModelShape, kv_type: str, flash_attn: str) -> str:
    """Return why llama.cpp refuses a cache of these types for a model; empty if it does not."""
    keys, values = split_kv_type(kv_type)
    if not any(shape.kv_heads):
        return ""
    if keys != values and (shape.compressions or not shape.value_dim):
        return f"{shape.architecture} models keep values as a part of the keys, so --kv-type takes one type"
    widths = ((keys, (shape.key_dim, shape.window_key_dim)), (values, (shape.value_dim, shape.window_value_dim)))
    for name, dims in widths if flash_attn != "off" else ():
        block = GGML_TYPES_BY_NAME[name.upper()].block_elements
        if odd := next((dim for dim in dims if dim and dim % block), None):
            return f"a cache of {name} has blocks of {block} values, which do not divide heads of {odd}"
    return ""
