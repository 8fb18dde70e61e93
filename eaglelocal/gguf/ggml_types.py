"""The tensor types of ggml: how many elements make a block, and how many bytes a block takes; and a file's own type.

One literal table, taken from ggml.h and ggml-common.h of the pinned llama.cpp (43 ids, nine of them
removed). It has sizes only; `tensors.py` decodes the blocks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from eaglelocal.core.records import dataclass

if TYPE_CHECKING:
    from eaglelocal.gguf.header import Header  # imports numpy


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A way to store a tensor: rows are divided into blocks of `block_elements`."""

    id: int
    name: str
    block_elements: int
    block_bytes: int

    def row_bytes(self, num_elements: int) -> int:
        """Return the bytes of a row; the number of elements must be a multiple of the block."""
        return num_elements // self.block_elements * self.block_bytes


_TABLE = (
    GgmlType(0, "F32", 1, 4),
    GgmlType(1, "F16", 1, 2),
    GgmlType(2, "Q4_0", 32, 18),
    GgmlType(3, "Q4_1", 32, 20),
    GgmlType(6, "Q5_0", 32, 22),
    GgmlType(7, "Q5_1", 32, 24),
    GgmlType(8, "Q8_0", 32, 34),
    GgmlType(9, "Q8_1", 32, 36),
    GgmlType(10, "Q2_K", 256, 84),
    GgmlType(11, "Q3_K", 256, 110),
    GgmlType(12, "Q4_K", 256, 144),
    GgmlType(13, "Q5_K", 256, 176),
    GgmlType(14, "Q6_K", 256, 210),
    GgmlType(15, "Q8_K", 256, 292),
    GgmlType(16, "IQ2_XXS", 256, 66),
    GgmlType(17, "IQ2_XS", 256, 74),
    GgmlType(18, "IQ3_XXS", 256, 98),
    GgmlType(19, "IQ1_S", 256, 50),
    GgmlType(20, "IQ4_NL", 32, 18),
    GgmlType(21, "IQ3_S", 256, 110),
    GgmlType(22, "IQ2_S", 256, 82),
    GgmlType(23, "IQ4_XS", 256, 136),
    GgmlType(24, "I8", 1, 1),
    GgmlType(25, "I16", 1, 2),
    GgmlType(26, "I32", 1, 4),
    GgmlType(27, "I64", 1, 8),
    GgmlType(28, "F64", 1, 8),
    GgmlType(29, "IQ1_M", 256, 56),
    GgmlType(30, "BF16", 1, 2),
    GgmlType(34, "TQ1_0", 256, 54),
    GgmlType(35, "TQ2_0", 256, 66),
    GgmlType(39, "MXFP4", 32, 17),
    GgmlType(40, "NVFP4", 64, 36),
    GgmlType(41, "Q1_0", 128, 18),
    GgmlType(42, "Q2_0", 64, 18),
)

GGML_TYPES: Mapping[int, GgmlType] = MappingProxyType({kind.id: kind for kind in _TABLE})
GGML_TYPES_BY_NAME: Mapping[str, GgmlType] = MappingProxyType({kind.name: kind for kind in _TABLE})

# ids that once existed; llama.cpp refuses them, and so does `header.py`, by name
REMOVED_TYPES: Mapping[int, str] = MappingProxyType(
    {
        4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4",
        37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
    }
)  # fmt: skip


# ---- file type: the quantization that a file states in `general.file_type`, under the name used in file names
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
FILE_TYPE_IDS: Mapping[str, int] = MappingProxyType({name.lower(): number for number, name in FILE_TYPES.items()})


def read_file_type(header: Header) -> str:
    """Return the stated quantization, such as `Q4_K_M`; empty where the file states none that is known."""
    number = header.metadata.get("general.file_type")
    return FILE_TYPES.get(number & ~GUESSED, "") if isinstance(number, int) else ""


# ---- the quantization of a file, as its name and its header call it
REFERENCE_KEY = "eaglelocal.reference"  # in a file that is made of another one
_QUANT = re.compile(
    r"(?<![A-Z0-9])(?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32)(?![A-Z0-9])",
    re.IGNORECASE,
)
_SAME = {"FP16": "F16", "FP32": "F32"}


def parse_quant(stem: str) -> str:
    """Return `Q4_K_M` for `dir/Model-7B-q4_k_m`; empty if none. The file's own name goes before its folder's."""
    for text in reversed(stem.split("/")):
        found = _QUANT.findall(text)
        if found:
            return normalize_quant(found[-1])
    return ""


def read_quantization(header: Header) -> str:
    """Return `UD-Q4_K_XL` or the like; empty if unknown. Names go first: they state mixtures without a type number.

    The name of a file that is made of another one has that one's type too, so its header goes first.
    """
    named, stated = parse_quant(header.path.stem), read_file_type(header)
    return stated or named if REFERENCE_KEY in header.metadata else named or stated


def remove_quant(text: str) -> str:
    return _QUANT.sub(" ", text)


def normalize_quant(quant: str) -> str:
    upper = quant.upper()
    return _SAME.get(upper, upper)
