"""The tasks of models: text, embeddings, or ranking."""

from __future__ import annotations

from enum import StrEnum


class ModelTask(StrEnum):
    """A model's task. Other values than TEXT are also the capability that the server reports."""

    TEXT = "text"
    EMBEDDING = "embedding"  # a vector of each text
    RANK = "rerank"  # how well documents answer a query

    @property
    def description(self) -> str:
        """A clause for people about a model that generates no text."""
        return f"{'makes embeddings' if self is ModelTask.EMBEDDING else 'ranks documents'} and nothing else"

    def explain_mismatch(self, wanted: ModelTask) -> str:
        """Return a clause for people: why a model with this task cannot do another one."""
        return f"is no {NAMES[wanted]}" if self is ModelTask.TEXT else self.description


NAMES = {ModelTask.TEXT: "model that writes text", ModelTask.EMBEDDING: "embedding model", ModelTask.RANK: "reranker"}
