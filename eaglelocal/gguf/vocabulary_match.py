"""Compare two files' vocabularies by the texts of their tokens, not only by their number.

Equal lists are recognized quickly, as bytes; only lists that differ are decoded.
"""

from __future__ import annotations

from eaglelocal.core.records import dataclass
from eaglelocal.gguf.arch_keys import TOKENS_KEY
from eaglelocal.gguf.header import Header

SPECIALS = ("bos", "eos", "eot")


@dataclass(frozen=True, slots=True)
class TokenDifference:
    """A count of the differences between two vocabularies."""

    num_tokens: int
    num_differing: int
    first: int  # id of the first that differs

    @property
    def share(self) -> float:
        return self.num_differing / max(self.num_tokens, 1)


def compare_tokens(header: Header, other: Header) -> TokenDifference | None:
    """Return the differences; None where all tokens are equal, or where either file has no list to compare."""
    if header.array_bytes(TOKENS_KEY) == other.array_bytes(TOKENS_KEY):
        return None
    ours, theirs = header.string_bytes(TOKENS_KEY), other.string_bytes(TOKENS_KEY)
    if ours is None or theirs is None:
        return None
    shared = min(len(ours), len(theirs))
    differing = [token for token in range(shared) if ours[token] != theirs[token]]
    number = len(differing) + max(len(ours), len(theirs)) - shared
    return TokenDifference(max(len(ours), len(theirs)), number, differing[0] if differing else shared)


def differing_specials(header: Header, other: Header) -> list[str]:
    """Return the special tokens that are set in both files, to different ids."""
    found = []
    for name in SPECIALS:
        key = f"tokenizer.ggml.{name}_token_id"
        ours, theirs = header.metadata.get(key), other.metadata.get(key)
        if ours is not None and theirs is not None and ours != theirs:
            found.append(name)
    return found
