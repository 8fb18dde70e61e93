"""The quality that each quantization loses, from profiles/quants.toml: measured on Llama-3-8B.

`kld` is the mean Kullback-Leibler divergence of the next token's distribution from that of f16.
"""

from __future__ import annotations

from eaglelocal.catalog.toml_table import TomlTable
from eaglelocal.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantLoss:
    """The measured loss of a quantization."""

    name: str
    bits_per_weight: float
    kld: float | None  # with an importance matrix if that figure exists
    delta_ppl_8b: float | None
    delta_ppl_70b_percent: float | None
    source: str
    confidence: str


def read_quant(name: str, table: TomlTable) -> QuantLoss:
    """Read an entry. Raises UsageError that names file and key."""
    plain, with_matrix = table.optional_number("kld"), table.optional_number("kld_imatrix")
    loss = QuantLoss(
        name=name,
        bits_per_weight=table.number("bits_per_weight"),
        kld=with_matrix if with_matrix is not None else plain,
        delta_ppl_8b=table.optional_number("delta_ppl_8b"),
        delta_ppl_70b_percent=table.optional_number("delta_ppl_70b_percent"),
        source=table.text("source"),
        confidence=table.text("confidence"),
    )
    table.close()
    return loss
