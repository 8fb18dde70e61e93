"""Which quantization a file is in: as its name says, else as its header does."""

from __future__ import annotations

from eaglelocal.gguf.file_type import told_type
from eaglelocal.gguf.header import Header
from eaglelocal.hub.builds import quant_of


def quantization_of(header: Header) -> str:
    """Such as `UD-Q4_K_XL`. Names come first: they know mixtures that have no number. Empty: nobody says."""
    return quant_of(header.path.stem) or told_type(header)
