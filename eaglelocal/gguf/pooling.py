"""Does a file make embeddings: does it say how the states of a text's rows become one vector?"""

from __future__ import annotations

from eaglelocal.gguf.header import Header

POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama_pooling_type; 0 is none
RANKS = 4  # pairs of texts


def pooling_of(header: Header) -> object:
    """llama_pooling_type; None where the file says nothing, as those of chat models."""
    return header.metadata.get(f"{header.metadata.get('general.architecture')}.pooling_type")


def is_embedding_model(header: Header) -> bool:
    return pooling_of(header) in POOLINGS
