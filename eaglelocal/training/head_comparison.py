"""Acceptance of several heads on the same texts: what each would have drafted at the same positions.

The target reads every text once, and no draft is verified by it: a draft counts as accepted where it equals what the
target sampled. The heads are of one kind and vocabulary, such as versions of one head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from eaglelocal.core.plan import Plan
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf import medusa_info
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.eagle_info import EagleInfo
from eaglelocal.gguf.reader import read_header
from eaglelocal.training.batches import Accepted, BatchBuilder, Imitation, make_unrolling
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.draft_head import HeadSource, choose_head_shape, choose_vocabulary, make_draft_head
from eaglelocal.training.precision import autocast
from eaglelocal.training.target_capture import TargetCapture


def read_source(target: Path, head: Path) -> HeadSource:
    """Return a head from which training can go on. Raises IncompatibleError for one that cannot be trained further."""
    start, header = read_header(head), read_header(target)
    if medusa_info.is_medusa(start):
        raise IncompatibleError(f"a Medusa head is not trained further: {head.name}")
    info = EagleInfo.from_header(start)
    source = HeadSource(header, read_model(header), start=start, start_info=info, num_depths=info.num_depths)
    choose_head_shape(source, max_context=1)
    return source


def compare_heads(
    plan: Plan, sources: Sequence[HeadSource], texts: Sequence[TrainingConversation], device: str
) -> Iterator[tuple[Accepted, ...]]:
    """Yield for each text the acceptance of each head, at the same positions.

    plan  loads the target; a text has at most its n_ctx tokens
    """
    vocabulary = choose_vocabulary(sources[0], None)
    heads = [
        make_draft_head(source, choose_vocabulary(source, None), max_context=plan.n_ctx).move_to(device)
        for source in sources
    ]
    unrolling = make_unrolling(sources[0])
    with TargetCapture(plan, heads[0].head.shape.taps, vocabulary.tokens) as capture:
        builder = BatchBuilder(capture.read, vocabulary, device=device)
        for seed, text in enumerate(texts):
            batch = builder.build([text], seed)
            with autocast(device):
                yield tuple(Imitation(head, unrolling).measure_acceptance(batch) for head in heads)
