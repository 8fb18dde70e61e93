"""The quantization that a file states in `general.file_type`, under the name used in file names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eaglelocal.gguf.header import Header  # imports numpy

GUESSED = 1024  # flag: llama.cpp guessed, from the type of most tensors
# llama.cpp's numbers (include/llama.h)
FILE_TYPES: Mapping[int, str] = MappingProxyType(
    {
        0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
        12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
        20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M",
        28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
        39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
    }
)  # fmt: skip


def read_file_type(header: Header) -> str:
    """Return the stated quantization, such as `Q4_K_M`; empty where the file states none that is known."""
    number = header.metadata.get("general.file_type")
    return FILE_TYPES.get(number & ~GUESSED, "") if isinstance(number, int) else ""
