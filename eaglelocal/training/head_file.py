"""The file of a trained head: its name, its keys of the `eagle3` or the `medusa` format, and its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from eaglelocal.core.plan import Plan
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf import medusa_info
from eaglelocal.gguf.draft_pairing import read_model
from eaglelocal.gguf.eagle_info import (
    ACCEPTANCE_LENGTH_KEY,
    FC_NORM_KEY,
    MASK_HIDDEN_KEY,
    MASK_TOKEN_KEY,
    NORM_OUTPUT_KEY,
    NUM_DEPTHS_KEY,
    TARGET_NAME_KEY,
    EagleInfo,
)
from eaglelocal.gguf.ggml_types import FILE_TYPE_IDS
from eaglelocal.gguf.header import Scalar
from eaglelocal.gguf.reader import read_header
from eaglelocal.gguf.tensors import read_span, stream_indices, stream_vector
from eaglelocal.gguf.writer import KeyValue, StreamedTensor, copy_entries, list_entries
from eaglelocal.hub.heads.convert import copy_tokenizer
from eaglelocal.hub.heads.head_store import TRAINED_HERE
from eaglelocal.hub.heads.medusa_head import make_graph_tensors, make_medusa_entries
from eaglelocal.hub.heads.tensor_names import Rows, convert_matrix
from eaglelocal.training.batches import Accepted, BatchBuilder, Imitation, make_unrolling
from eaglelocal.training.conversations import TrainingConversation
from eaglelocal.training.device import autocast
from eaglelocal.training.draft_head import (
    DraftHead,
    DraftVocabulary,
    Floats,
    HeadSource,
    choose_head_shape,
    choose_vocabulary,
    make_draft_head,
)
from eaglelocal.training.eagle_head import HEAD_NAMES, EagleHead, MedusaParts, fold_fc
from eaglelocal.training.target_capture import TargetCapture


def make_head_name(source: HeadSource) -> str:
    """Return the name of the trained head."""
    if source.start is None or not source.begins_alike:
        return f"{source.target.name} {source.method} head{TRAINED_HERE}"
    return source.start.name.removesuffix(TRAINED_HERE) + TRAINED_HERE


def make_head_entries(head: EagleHead | MedusaParts, source: HeadSource, *, name: str, kind: str) -> list[KeyValue]:
    """Return the keys of the trained head's file."""
    if isinstance(head, MedusaParts):
        biases = head.read_biases()
        return make_medusa_entries(head.medusa_shape, biases, source.target, name=name, kind=kind)
    shape, start = head.shape, source.start
    keys = {
        "general.name": name,
        "general.file_type": FILE_TYPE_IDS[kind],
        TARGET_NAME_KEY: source.target.name,
        ACCEPTANCE_LENGTH_KEY: 0.0,  # until it is measured
        **_describe_mask(head),
    }
    if start is not None:
        return [*list_entries(keys), *copy_entries(start.header, without=frozenset(keys))]
    keys |= {
        "eagle3.context_length": source.target.context_length,
        "eagle3.embedding_length": shape.width,
        "eagle3.block_count": 1,
        "eagle3.feed_forward_length": shape.ffn,
        "eagle3.attention.head_count": shape.num_heads,
        "eagle3.attention.head_count_kv": shape.num_kv_heads,
        "eagle3.attention.key_length": shape.head_size,
        "eagle3.attention.value_length": shape.head_size,
        "eagle3.rope.dimension_count": shape.head_size,
        "eagle3.vocab_size": source.target.n_vocab,
        "eagle3.norm_before_residual": shape.norm_before_residual,
        "eagle3.norm_before_fc": shape.norm_before_fc,
        FC_NORM_KEY: shape.fc_norm,
        NORM_OUTPUT_KEY: shape.norm_output,
        **shape.tap_row.keys(),
        "eagle3.attention.layer_norm_rms_epsilon": shape.norm_eps,
        "eagle3.rope.freq_base": shape.rope_theta,
    }
    return [*list_entries(keys), *copy_tokenizer(source.target)]


def _describe_mask(head: EagleHead) -> dict[str, Scalar | tuple[Scalar, ...]]:
    """Return the keys that make the head a P-EAGLE head; none if it is another."""
    if head.mask_hidden is None or head.shape.mask is None:
        return {}
    return {
        MASK_TOKEN_KEY: head.shape.mask,
        NUM_DEPTHS_KEY: head.shape.num_depths,
        MASK_HIDDEN_KEY: tuple(head.mask_hidden.tolist()),
        NORM_OUTPUT_KEY: False,
    }


@torch.no_grad()
def make_head_tensors(draft_head: DraftHead, vocabulary: DraftVocabulary, kind: str) -> list[StreamedTensor]:
    head = draft_head.head
    if isinstance(head, MedusaParts):
        written = make_graph_tensors(
            head.medusa_shape, [[make_reader(matrix)] for matrix in head.read_matrices()], kind
        )
    else:
        fc = fold_fc(head) if head.shape.fc_norm else head.fc.weight
        weights = {outer: head.get_parameter(inner) for inner, outer in HEAD_NAMES.items()}
        written = [_tensor(f"{name}.weight", weight, kind) for name, weight in weights.items()]
        row, values = head.shape.tap_row, read_floats(fc)
        written.append(
            convert_matrix(
                "fc.weight", lambda first, end: row.pad(values[first:end]), (len(values), row.graph_size), kind
            )
        )
        if head.taps_norm is not None:
            gains = row.pad_gains(read_floats(head.taps_norm.get_parameter("weight")))
            written.append(stream_vector("enc.output_norm.weight", gains))
    if vocabulary.owns_output:
        written.append(_tensor("output.weight", draft_head.output, kind))
    if vocabulary.owns_embeddings:
        source = vocabulary.embeddings
        shape = (source.num_rows, head.shape.width)
        written.append(
            convert_matrix(
                source.name, lambda first, end: read_span(source.header, source.name, first, end), shape, kind
            )
        )
    if vocabulary.tokens is not None:
        written.append(stream_indices("d2t", vocabulary.tokens))
    if head.shape.rope_factors:
        written.append(stream_vector("rope_freqs.weight", np.array(head.shape.rope_factors, np.float32)))
    return written


def _tensor(name: str, weight: Tensor, kind: str) -> StreamedTensor:
    values = read_floats(weight)
    if values.ndim == 1:
        return stream_vector(name, values)
    rows, columns = values.shape
    return convert_matrix(name, make_reader(values), (rows, columns), kind)


def read_floats(weight: Tensor) -> Floats:
    values: Floats = weight.detach().float().cpu().numpy()
    return values


def make_reader(values: Floats) -> Rows:
    """Return a reader of the rows of a matrix in memory."""
    return lambda first, end: values[first:end]


# ---- head comparison: acceptance of several heads on the same texts, drafting at the same positions
#
# The target reads every text once, and no draft is verified by it: a draft counts as accepted where it equals what
# the target sampled. The heads are of one kind and vocabulary, such as versions of one head.
def read_source(target: Path, head: Path) -> HeadSource:
    """Return a head to continue training from. Raises IncompatibleError for one that cannot be trained further."""
    start = read_header(head)
    if medusa_info.is_medusa(start):
        raise IncompatibleError(f"a Medusa head is not trained further: {head.name}")
    info = EagleInfo.from_header(start)
    source = HeadSource(read_model(read_header(target)), start=info, num_depths=info.num_depths)
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
    with TargetCapture(plan, heads[0].head.shape.taps) as capture:
        builder = BatchBuilder(capture.read_conversation, vocabulary, device=device)
        for seed, text in enumerate(texts):
            batch = builder.build([text], seed)
            with autocast(device):
                yield tuple(Imitation(head, unrolling).measure_acceptance(batch) for head in heads)
