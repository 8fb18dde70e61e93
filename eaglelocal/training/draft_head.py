"""A draft head in training for a GGUF target: layer, vocabulary and output, and how they are read and written.

Weights that a head borrows from its target (embeddings, output) are decoded from the target's file and never trained;
an output of its own is trained with the layer. Its file is in head_file, losses and conversations are elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from eaglelocal.core.records import dataclass
from eaglelocal.errors import IncompatibleError
from eaglelocal.gguf.architectures import NO_NORMED_STATE
from eaglelocal.gguf.eagle_info import MASK_HIDDEN_KEY, EagleInfo, is_weak
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tensors import read_indices, read_rows, read_tensor
from eaglelocal.training.device import fast_dtype
from eaglelocal.training.eagle_head import HEAD_NAMES, EagleHead, HeadShape, MedusaParts

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

NEW_VOCABULARY = 32_000  # tokens that a new head predicts at most, where its target has more
LEAST_NEW_VOCABULARY = 16_384  # and at least: its first texts have few of the tokens that occur in later ones
HEAD_SIZES = (128, 64, 32)
ROWS_AT_ONCE = 2048  # rows of a matrix that are decoded at once


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix in a file, of which rows are read when needed."""

    header: Header
    name: str

    @property
    def num_rows(self) -> int:
        return self.header.tensors[self.name].shape[1]

    @property
    def width(self) -> int:
        return self.header.tensors[self.name].shape[0]

    def rows(self, rows: Sequence[int]) -> Floats:
        return read_rows(self.header, self.name, rows)


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """A head's vocabulary. `tokens` [draft vocabulary]: the target's tokens that it predicts; None: all."""

    tokens: Ints | None
    embeddings: Matrix
    output: Matrix  # its own, or the target's
    owns_output: bool
    owns_embeddings: bool
    is_new: bool  # the output is still to be copied from the target's rows

    def read_embeddings(self, tokens: Sequence[int]) -> Floats:
        """Read the embeddings [tokens, width] from the file: a text uses little of a large vocabulary."""
        unique, places = np.unique(np.asarray(tokens, np.int64), return_inverse=True)
        return self.embeddings.rows(unique.tolist())[places]

    @property
    def output_shape(self) -> tuple[int, int]:
        return (self.output.num_rows if self.tokens is None else len(self.tokens), self.output.width)

    def make_output(self) -> Tensor:
        """Return the initial output [draft vocabulary, width]: float32 if it is trained, else bfloat16."""
        subset = self.tokens if self.is_new else None
        rows = list(range(self.output.num_rows)) if subset is None else subset.tolist()
        output = torch.empty(self.output_shape, dtype=torch.float32 if self.owns_output else torch.bfloat16)
        for start in range(0, len(rows), ROWS_AT_ONCE):  # in float32 a large vocabulary takes gigabytes
            part = self.output.rows(rows[start : start + ROWS_AT_ONCE])
            output[start : start + len(part)] = torch.from_numpy(part)
        return output


class DraftHead(nn.Module):
    """A head and its output. Only what the head owns is a parameter, and is saved in checkpoints."""

    output: Tensor  # [draft vocabulary, width]

    def __init__(self, head: EagleHead | MedusaParts, output: Tensor, *, owns_output: bool) -> None:
        super().__init__()
        self.head = head
        if owns_output:
            self.output = nn.Parameter(output)
        else:
            self.register_buffer("output", output.bfloat16(), persistent=False)

    def move_to(self, device: str) -> DraftHead:
        """Move the head to a device. A borrowed output gets the type in which matrices are multiplied there."""
        if not isinstance(self.output, nn.Parameter):
            self.output = self.output.to(fast_dtype(device))
        return self.to(device)


@dataclass(frozen=True, slots=True)
class HeadSource:
    """A target, and the head with which training begins, if any.

    num_depths  tokens that the trained head is to draft in one pass; more than one make it a P-EAGLE or Medusa head
    mask        the token that stands for unknown ones there, unless the first head has one; None: not chosen yet
    taps        the layers whose inputs a new head reads; empty: the usual three
    """

    target: ModelInfo
    start: EagleInfo | None = None
    num_depths: int = 1
    mask: int | None = None
    is_medusa: bool = False
    taps: tuple[int, ...] = ()

    @property
    def is_parallel(self) -> bool:
        """True if the trained head is a P-EAGLE head."""
        return self.num_depths > 1 and not self.is_medusa

    @property
    def method(self) -> str:
        """The name of the trained head's way of drafting."""
        return "Medusa" if self.is_medusa else "P-EAGLE" if self.is_parallel else "EAGLE-3.1"

    @property
    def begins_weak(self) -> bool:
        """True if the head in the beginning was measured to have learned little."""
        return self.start is not None and is_weak(self.start.header)

    @property
    def begins_alike(self) -> bool:
        """True if training begins with a head of the same kind."""
        return self.start is not None and (self.start.mask is not None) is self.is_parallel


def read_head_shape(info: EagleInfo, *, max_context: int) -> HeadShape:
    """Return the shape of a head in a file. Raises IncompatibleError if its RoPE is not supported here."""
    header = info.header
    scaling = header.metadata.get("eagle3.rope.scaling.type", "linear")  # llama.cpp's default; its factor has none
    rotated = header.metadata.get("eagle3.rope.dimension_count", info.head_dim)
    if scaling not in ("none", "linear") or rotated != info.head_dim:
        raise IncompatibleError(
            f"the head {info.name} rotates {rotated} of {info.head_dim} dimensions with {scaling} scaling, "
            "which training does not support",
            hint="`--from none` trains a new one",
        )
    factors = "rope_freqs.weight"
    return HeadShape(
        width=info.width,
        tap_width=info.target_hidden_size,
        taps=info.target_layers,
        num_heads=info.n_head,
        num_kv_heads=info.n_kv_head,
        head_size=info.head_dim,
        ffn=info.n_ff,
        max_context=max_context,
        norm_eps=info.rms_eps,
        fc_norm_eps=info.fc_norm_eps,
        rope_theta=_read_float(header, "eagle3.rope.freq_base", 10_000.0),
        rope_scale=_read_float(header, "eagle3.rope.scaling.factor", 1.0) if scaling == "linear" else 1.0,
        rope_factors=tuple(read_tensor(header, factors).tolist()) if factors in header.tensors else (),
        window=info.window,
        fc_norm=info.fc_norm,
        norm_before_fc=info.norm_before_fc,
        norm_before_residual=info.norm_before_residual,
        norm_output=info.norm_output,
        mask=info.mask,
        num_depths=info.num_depths,
    )


def _read_float(header: Header, key: str, default: float) -> float:
    value = header.metadata.get(key, default)
    return float(value) if isinstance(value, int | float) else default


def make_new_shape(target: ModelInfo, taps: tuple[int, ...], *, max_context: int) -> HeadShape:
    """Return the shape of a new EAGLE-3.1 head: as wide as the target, one layer, about 5 % of a dense model's weights.

    taps  empty: the usual three

    Raises IncompatibleError where the target's layers or width do not allow one.
    """
    n = target.n_layer
    if n < 4:
        raise IncompatibleError(f"{target.name} has {n} layers; a head reads three layers other than the first")
    head_size = next((size for size in HEAD_SIZES if target.n_embd % size == 0), 0)
    if not head_size:
        raise IncompatibleError(f"{target.name} is {target.n_embd} wide, which does not divide into attention heads")
    num_heads = target.n_embd // head_size
    return HeadShape(
        width=target.n_embd,
        tap_width=target.n_embd,
        taps=taps or ((1, n // 2, n - 1) if n < 8 else (2, n // 2, n - 3)),
        num_heads=num_heads,
        num_kv_heads=num_heads // 4 if num_heads % 4 == 0 and num_heads > 4 else num_heads,
        head_size=head_size,
        ffn=-(-11 * target.n_embd // 4 // 256) * 256,
        max_context=max_context,
        norm_eps=1e-5,
    )


def choose_vocabulary_size(counts: Ints) -> int:
    """Return how many tokens a new head predicts: all of a small vocabulary, else those that occur in its first texts.

    A token that never occurs cannot be learned, but would cost time in each draft step. Of those that do not occur yet,
    the lowest are taken, which tokenizers have merged first.
    """
    if len(counts) <= NEW_VOCABULARY:
        return len(counts)
    return int(np.clip(np.count_nonzero(counts), LEAST_NEW_VOCABULARY, NEW_VOCABULARY))


def select_frequent_tokens(counts: Ints, most: int) -> Ints | None:
    """Return the `most` most frequent tokens; ties go to the lowest id. None means all tokens."""
    if len(counts) <= most:
        return None
    return np.sort(np.argsort(-counts, kind="stable")[:most]).astype(np.int64)


def choose_vocabulary(source: HeadSource, new_tokens: Ints | None) -> DraftVocabulary:
    """Return the vocabulary of the initial head, or of a new one that predicts `new_tokens`."""
    target, start = source.target.header, source.start
    borrowed = Matrix(target, "output.weight" if "output.weight" in target.tensors else "token_embd.weight")
    embeddings = Matrix(target, "token_embd.weight")
    if start is None:
        return DraftVocabulary(
            new_tokens, embeddings, borrowed, owns_output=new_tokens is not None, owns_embeddings=False, is_new=True
        )
    tokens = read_indices(start.header, "d2t") if start.draft_vocab is not None else None
    return DraftVocabulary(
        tokens,
        Matrix(start.header, "token_embd.weight") if start.has_own_embeddings else embeddings,
        Matrix(start.header, "output.weight") if start.has_own_output else borrowed,
        owns_output=start.has_own_output,
        owns_embeddings=start.has_own_embeddings,
        is_new=False,
    )


def choose_head_shape(source: HeadSource, *, max_context: int) -> HeadShape:
    """Return the shape of the initial head, or of a new one. Raises IncompatibleError if it cannot be trained here."""
    target = source.target
    if source.is_medusa:
        if target.architecture in NO_NORMED_STATE:
            raise IncompatibleError(f"llama.cpp does not give the states that a Medusa head reads of {target.name}")
        return HeadShape(
            width=target.n_embd,
            tap_width=target.n_embd,
            taps=(target.n_layer + 1,),
            max_context=max_context,
            fc_norm=False,
            norm_output=False,
            num_depths=source.num_depths,
        )
    if source.start is None:
        shape = make_new_shape(target, source.taps, max_context=max_context)
    else:
        if source.start.n_layer > 1:
            raise IncompatibleError(
                f"the head has {source.start.n_layer} layers, and those of one are trained here",
                hint="`--from none` trains a new one",
            )
        shape = read_head_shape(source.start, max_context=max_context)
    if not source.is_parallel:
        if shape.mask is not None:
            raise IncompatibleError("training begins with a P-EAGLE head", hint="--kind p-eagle")
        return shape
    mask = (source.mask or 0) if shape.mask is None else shape.mask
    return replace(shape, norm_output=False, mask=mask, num_depths=source.num_depths)


def make_draft_head(source: HeadSource, vocabulary: DraftVocabulary, *, max_context: int) -> DraftHead:
    """Return the head at the beginning of training: the file's, or a new one."""
    if source.is_medusa:
        parts = MedusaParts(choose_head_shape(source, max_context=max_context))
        return DraftHead(parts, vocabulary.make_output(), owns_output=vocabulary.owns_output)
    head = EagleHead(choose_head_shape(source, max_context=max_context))
    if head.shape.mask is not None:
        head.mask_embedding = torch.from_numpy(vocabulary.read_embeddings([head.shape.mask])[0])
    if source.start is None:
        initialize_head(head)
    else:
        fill_head(head, source.start.header)
    return DraftHead(head, vocabulary.make_output(), owns_output=vocabulary.owns_output)


@torch.no_grad()
def initialize_head(head: EagleHead) -> None:
    """Initialise a new head's matrices: std 1/sqrt(columns), half of that where they add to the residual stream."""
    for name, parameter in head.named_parameters():
        if parameter.ndim == 2:
            std = parameter.shape[1] ** -0.5
            nn.init.normal_(parameter, std=std / 2 if name in ("o.weight", "ffn.down.weight") else std)


@torch.no_grad()
def fill_head(head: EagleHead, header: Header) -> None:
    """Load the file's weights into the head. The gains of fc_norm stay folded into fc, which is the same function."""

    def weights(name: str) -> Tensor:
        return torch.from_numpy(read_tensor(header, f"{name}.weight"))

    row = head.shape.tap_row
    head.fc.weight.copy_(weights("fc")[:, : row.size])
    if head.taps_norm is not None:
        gains = row.cut_gains(weights("enc.output_norm").numpy())
        head.taps_norm.get_parameter("weight").copy_(torch.from_numpy(gains))
    for inner, outer in HEAD_NAMES.items():
        head.get_parameter(inner).copy_(weights(outer))
    hidden = header.array(MASK_HIDDEN_KEY)
    if head.mask_hidden is not None and hidden is not None:
        head.mask_hidden.copy_(torch.tensor(hidden))


def select_mask(counts: Ints) -> int:
    """Return the token for unknown ones: one that is not in the texts, or the rarest; of equals, the last.

    counts  [vocabulary] how often each occurs
    """
    return len(counts) - 1 - int(np.argmin(counts[::-1]))
