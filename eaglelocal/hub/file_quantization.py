"""The quantization of a file: as its name states it, else as its header does."""

from __future__ import annotations

from eaglelocal.gguf.file_type import stated_type
from eaglelocal.gguf.header import Header
from eaglelocal.hub.repo_builds import quant_of


def quantization_of(header: Header) -> str:
    """Return `UD-Q4_K_XL` or the like; empty if unknown. Names go first: they state mixtures without a type number."""
    return quant_of(header.path.stem) or stated_type(header)
