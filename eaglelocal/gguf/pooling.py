"""The task of a model: to generate text, or to pool the states of a text's rows into a vector or a score."""

from __future__ import annotations

from eaglelocal.core.model_task import ModelTask
from eaglelocal.gguf.header import Header

POOLINGS = {1: "mean", 2: "cls", 3: "last"}  # llama_pooling_type; 0 is none
RANKS = 4  # pairs of texts, with a classifier


def read_pooling(header: Header) -> object:
    """Return the llama_pooling_type; None where the file has none, as in files of chat models."""
    return header.metadata.get(f"{header.metadata.get('general.architecture')}.pooling_type")


def read_task(header: Header) -> ModelTask:
    pooling = read_pooling(header)
    return ModelTask.RANK if pooling == RANKS else ModelTask.EMBEDDING if pooling in POOLINGS else ModelTask.TEXT
