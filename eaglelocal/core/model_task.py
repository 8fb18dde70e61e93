"""The tasks of models: text, embeddings, or ranking."""

from __future__ import annotations

from enum import StrEnum


class Task(StrEnum):
    """A model's task. Other values than TEXT are also the capability that the server reports."""

    TEXT = "text"
    EMBEDDING = "embedding"  # a vector of each text
    RANK = "rerank"  # how well documents answer a query

    @property
    def said(self) -> str:
        """A clause for people about a model that generates no text."""
        return f"{'makes embeddings' if self is Task.EMBEDDING else 'ranks documents'} and nothing else"

    def why_not(self, wanted: Task) -> str:
        """Return a clause for people: why a model of this task cannot do the wanted one."""
        return f"is no {NAMES[wanted]}" if self is Task.TEXT else self.said


NAMES = {Task.TEXT: "model that writes text", Task.EMBEDDING: "embedding model", Task.RANK: "reranker"}
