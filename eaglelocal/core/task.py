"""What a model answers with."""

from __future__ import annotations

from enum import StrEnum


class Task(StrEnum):
    """The values are those that the server tells as a model's capability, where it is not text."""

    TEXT = "text"
    EMBEDDING = "embedding"  # a vector of each text
    RANK = "rerank"  # how well documents answer a query

    @property
    def said(self) -> str:
        """For people, of a model that writes no text."""
        return f"{'makes embeddings' if self is Task.EMBEDDING else 'ranks documents'} and nothing else"

    def why_not(self, wanted: Task) -> str:
        """For people, of a model that is asked for another task."""
        return f"is no {NAMES[wanted]}" if self is Task.TEXT else self.said


NAMES = {Task.TEXT: "model that writes text", Task.EMBEDDING: "embedding model", Task.RANK: "reranker"}
