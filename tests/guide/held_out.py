"""Held-out loss and agreement per kind of task, so that a training run can be judged while it runs.

It packs rows per kind and measures target and head on them. It does not generate text: the evaluation through the
engine decides whether answers are right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import torch

from eaglelocal.core.records import dataclass
from guide.document_packing import PackedBatch, Pieces, encode_document, pack, score
from guide.head_objective import TrainingTimeTest
from guide.llama_target import LlamaTarget
from guide.next_token import answer_loss
from guide.tokenizer import GuideTokenizer

ROW_LENGTH = 512  # of most of the training: with longer rows, early figures would depend on position, not skill
MAX_ROWS = 8


@dataclass(frozen=True, slots=True)
class HeldOutEvaluation:
    """The held-out batches on which target and head are judged."""

    batches: dict[str, PackedBatch]  # kind of task -> its rows

    @classmethod
    def of(cls, documents: Iterable[tuple[str, Pieces]], tokenizer: GuideTokenizer) -> HeldOutEvaluation:
        """Pack rows from (kind, pieces); kinds without an answer that fits a row are left out."""
        by_kind: dict[str, list[Pieces]] = defaultdict(list)
        for kind, pieces in documents:
            by_kind[kind].append(pieces)
        batches = {kind: _make_batch(found, tokenizer) for kind, found in sorted(by_kind.items())}
        return cls({kind: batch for kind, batch in batches.items() if batch is not None})

    def evaluate_target(self, target: LlamaTarget) -> str:
        """Return `kind loss/agreement`: nats per answer token, share of answer tokens that are the argmax."""
        scores = {kind: answer_loss(target, batch) for kind, batch in self.batches.items()}
        return ", ".join(f"{kind} {loss:.3f}/{agreement:.3f}" for kind, (loss, agreement) in scores.items())

    @torch.no_grad()
    def evaluate_head(self, objective: TrainingTimeTest) -> str:
        """Return `kind agreement by draft step`."""
        lines = []
        for kind, batch in self.batches.items():
            with torch.autocast("cpu", torch.bfloat16):
                _, agreements = objective.loss_and_agreement(batch)
            lines.append(f"{kind} {' '.join(f'{agreement:.2f}' for agreement in agreements)}")
        return ", ".join(lines)


def _make_batch(documents: list[Pieces], tokenizer: GuideTokenizer) -> PackedBatch | None:
    encoded = (encode_document(pieces, tokenizer) for pieces in documents)
    rows = [row for row, _ in zip(pack(encoded, ROW_LENGTH, tokenizer.end_of_text), range(MAX_ROWS), strict=False)]
    if not rows:
        return None
    batch = score(np.stack([row.tokens for row in rows]), np.stack([row.flags for row in rows]), seed=0)
    return batch if batch.is_assistant.any() else None
