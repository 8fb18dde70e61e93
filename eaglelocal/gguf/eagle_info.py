"""A typed view of an EAGLE-3 or 3.1 draft head, and a check that it fits a target.

It checks everything that llama.cpp would refuse, abort on or silently run wrong, from the two headers
alone: taps, widths, vocabularies, tensor shapes (src/models/eagle3.cpp of the pinned version).
The flags of EAGLE-3.1 are in keys of this project, because llama.cpp has none for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.arch_keys import ArchitectureKeys
from eaglelocal.gguf.hazards import check_hazards
from eaglelocal.gguf.head_info import (
    d2t_range_of,
    draft_vocabulary,
    layer_problems,
    single,
    taps_problem,
    target_layers_of,
    vocabulary_problems,
)
from eaglelocal.gguf.header import Header, TensorInfo
from eaglelocal.gguf.model_info import ModelInfo, architecture_of, vocabulary_size

FC_NORM_KEY = "eaglelocal.fc_norm"
FC_NORM_EPS_KEY = "eaglelocal.fc_norm_eps"
NORM_OUTPUT_KEY = "eaglelocal.norm_output"
WINDOW_KEY = "eaglelocal.window"
TARGET_NAME_KEY = "eaglelocal.target_name"  # general.name of the target that it was imported for
VERIFIER_KEY = "eaglelocal.verifier"  # the target that its authors name
ACCEPTANCE_LENGTH_KEY = "eaglelocal.acceptance_length"  # measured when it was imported
NUM_TAPS = 3  # llama.cpp refuses any other number
_HINT = "choose another head, or `--draft none`"


@dataclass(frozen=True, slots=True)
class EagleInfo:
    """A draft head as its header describes it. `fc_norm_eps` is `rms_eps` unless the file has its own."""

    name: str
    target_layers: tuple[int, ...]
    target_hidden_size: int
    width: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_dim: int
    value_dim: int
    n_ff: int
    n_vocab: int
    draft_vocab: int | None  # rows of d2t; None: the whole vocabulary
    d2t_range: tuple[int, int] | None  # smallest and largest target token
    has_own_embeddings: bool
    has_own_output: bool
    norm_before_fc: bool
    norm_before_residual: bool
    fc_norm: bool
    norm_output: bool
    rms_eps: float
    fc_norm_eps: float
    window: int | None  # tokens that its attention sees; None: all of them
    target_name: str  # what it was imported for; empty: unknown
    weights_bytes: int
    tensors: Mapping[str, TensorInfo]

    @classmethod
    def from_header(cls, header: Header) -> EagleInfo:
        """Read a head's header.

        Raises ModelFileError where the file is no EAGLE-3 head or lacks a key that llama.cpp needs.
        """
        keys = ArchitectureKeys(header, architecture_of(header))
        if keys.prefix != "eagle3":
            raise keys.error(f"is a {keys.prefix} model, not an eagle3 head")
        eps = _epsilon(keys)
        width, n_head = keys.count("embedding_length"), single(keys, "attention.head_count")
        head_dim = keys.optional_count("attention.key_length") or width // max(n_head, 1)
        value_dim = keys.optional_count("attention.value_length") or head_dim
        check_hazards(keys, head_dim=head_dim, value_dim=value_dim)
        return cls(
            name=keys.text("general.name") or header.path.stem,
            target_layers=target_layers_of(keys),
            target_hidden_size=keys.count("target_hidden_size"),
            width=width,
            n_layer=keys.count("block_count"),
            n_head=n_head,
            n_kv_head=single(keys, "attention.head_count_kv", default=n_head),
            head_dim=head_dim,
            value_dim=value_dim,
            n_ff=single(keys, "feed_forward_length"),
            n_vocab=vocabulary_size(keys),
            draft_vocab=draft_vocabulary(header),
            d2t_range=d2t_range_of(header),
            has_own_embeddings="token_embd.weight" in header.tensors,
            has_own_output="output.weight" in header.tensors,
            norm_before_fc=keys.flag("eagle3.norm_before_fc"),
            norm_before_residual=keys.flag("eagle3.norm_before_residual"),
            fc_norm=keys.flag(FC_NORM_KEY),
            norm_output=keys.flag(NORM_OUTPUT_KEY),
            rms_eps=eps,
            fc_norm_eps=keys.real(FC_NORM_EPS_KEY) or eps,
            window=_window(keys),
            target_name=keys.text(TARGET_NAME_KEY) or "",
            weights_bytes=header.tensor_bytes,
            tensors=header.tensors,
        )


def _epsilon(keys: ArchitectureKeys) -> float:
    eps = keys.real("eagle3.attention.layer_norm_rms_epsilon")
    if eps is None or not 0 <= eps < 1:
        raise keys.error(f"eagle3.attention.layer_norm_rms_epsilon is {eps}")
    return eps


def _window(keys: ArchitectureKeys) -> int | None:
    window = keys.whole(WINDOW_KEY)
    if window is not None and window < 1:
        raise keys.error(f"{WINDOW_KEY} is {window}")
    return window


def check_pair(head: EagleInfo, target: ModelInfo) -> None:
    """Check that `head` can draft for `target`. Raises IncompatibleError with the figures where it cannot."""
    for problem in _problems(head, target):
        raise IncompatibleError(f"the head {head.name} does not fit {target.name}: {problem}", hint=_HINT)


def _problems(head: EagleInfo, target: ModelInfo) -> Iterator[str]:
    yield from _target_problems(head, target)
    yield from vocabulary_problems(head, target)
    yield from _loan_problems(head, target)
    yield from _shape_problems(head)
    yield from _tensor_problems(head)


def _target_problems(head: EagleInfo, target: ModelInfo) -> Iterator[str]:
    if problem := taps_problem(target):
        yield problem
    if head.target_hidden_size != target.n_embd:
        yield f"it was made for hidden size {head.target_hidden_size}, the target has {target.n_embd}"
    if len(head.target_layers) != NUM_TAPS:
        yield f"it taps {len(head.target_layers)} layers, llama.cpp knows heads with {NUM_TAPS}"
    yield from layer_problems(head, target)


def _loan_problems(head: EagleInfo, target: ModelInfo) -> Iterator[str]:
    """Yield a width that differs from the target's where the head borrows the target's embeddings or output."""
    borrowed = [
        what for what, own in (("embeddings", head.has_own_embeddings), ("output", head.has_own_output)) if not own
    ]
    if borrowed and head.width != target.n_embd:
        yield f"it borrows {' and '.join(borrowed)} of width {target.n_embd}, but is {head.width} wide"


def _shape_problems(head: EagleInfo) -> Iterator[str]:
    if head.n_layer != 1:
        yield f"it has {head.n_layer} layers, llama.cpp knows heads with one"
    if not head.n_head or not head.n_kv_head or head.n_head % head.n_kv_head:
        yield f"its {head.n_head} heads do not divide among {head.n_kv_head} key heads"
    if head.head_dim != head.value_dim:
        yield f"its keys are {head.head_dim} wide and its values {head.value_dim}"


def _tensor_problems(head: EagleInfo) -> Iterator[str]:
    """Yield missing, misshapen and unknown tensors: llama.cpp loads exactly the required ones and no others."""
    required = _required_tensors(head)
    for name, shape in required.items():
        found = head.tensors.get(name)
        if found is None:
            yield f"its file lacks the tensor {name} {shape}"
        elif found.shape != shape:
            yield f"its tensor {name} is {found.shape} where {shape} is due"
        elif len(shape) == 1 and name != "d2t" and found.type.name != "F32":
            yield f"its tensor {name} is {found.type.name} where F32 is due"
    for name in head.tensors.keys() - required.keys() - {"rope_freqs.weight"}:
        yield f"its file has the tensor {name}, which llama.cpp does not know"


def _required_tensors(head: EagleInfo) -> dict[str, tuple[int, ...]]:
    """Return the required tensors by name, with shapes in ggml order."""
    width, pair, taps = head.width, 2 * head.width, len(head.target_layers) * head.target_hidden_size
    queries, keys = head.n_head * head.head_dim, head.n_kv_head * head.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (taps, width),
        "blk.0.attn_norm.weight": (width,),
        "blk.0.attn_norm_2.weight": (width,),
        "blk.0.attn_q.weight": (pair, queries),
        "blk.0.attn_k.weight": (pair, keys),
        "blk.0.attn_v.weight": (pair, keys),
        "blk.0.attn_output.weight": (queries, width),
        "blk.0.ffn_norm.weight": (width,),
        "blk.0.ffn_gate.weight": (width, head.n_ff),
        "blk.0.ffn_up.weight": (width, head.n_ff),
        "blk.0.ffn_down.weight": (head.n_ff, width),
        "output_norm.weight": (width,),
    }
    draft_vocab = head.draft_vocab or head.n_vocab
    optional = {
        "enc.output_norm.weight": (head.norm_before_fc, (taps,)),
        "token_embd.weight": (head.has_own_embeddings, (width, head.n_vocab)),
        "output.weight": (head.has_own_output, (width, draft_vocab)),
        "d2t": (head.draft_vocab is not None, (draft_vocab,)),
    }
    return shapes | {name: shape for name, (there, shape) in optional.items() if there}
