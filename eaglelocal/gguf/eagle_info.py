"""A typed view of an EAGLE-3, 3.1 or P-EAGLE draft head, and a check that it fits a target.

It checks everything that llama.cpp would refuse, abort on or silently run wrong, from the two headers
alone: taps, widths, vocabularies, tensor shapes (src/models/eagle3.cpp of the pinned version).
The flags of EAGLE-3.1 and the mask of P-EAGLE are in keys of this project, because llama.cpp has none for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.gguf import head_info
from eaglelocal.gguf.architectures import EAGLE, ArchitectureKeys
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tap_row import GRAPH_TAPS, LAYERS_KEY, MAX_TAPS, TapRow

FC_NORM_KEY = "eaglelocal.fc_norm"
FC_NORM_EPS_KEY = "eaglelocal.fc_norm_eps"
NORM_OUTPUT_KEY = "eaglelocal.norm_output"
WINDOW_KEY = "eaglelocal.window"
TARGET_NAME_KEY = "eaglelocal.target_name"  # general.name of the target that it was imported for
VERIFIER_KEY = "eaglelocal.verifier"  # the target that its authors name
ACCEPTANCE_LENGTH_KEY = "eaglelocal.acceptance_length"  # measured when it was imported
MASK_TOKEN_KEY = "eaglelocal.mask_token"  # the token that stands for unknown ones; only in P-EAGLE heads
MASK_HIDDEN_KEY = "eaglelocal.mask_hidden"  # [taps x target hidden size] stands for the states of such a row
NUM_DEPTHS_KEY = "eaglelocal.num_depths"  # tokens that the head was trained to draft in one pass
MAX_DEPTHS = 64
WEAK_LENGTH = 1.2  # acceptance length below which a head gains nothing, and still learns as fast as a new one


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleInfo(head_info.DraftHeadInfo):
    """An EAGLE head as its header describes it.

    input_width       numbers of a row that the graph's encoder reads
    target_name       the target it was imported for; empty: unknown
    window            tokens that its attention sees; None: all of them
    fc_norm_eps       `rms_eps` unless the file has its own
    mask              token of the rows that P-EAGLE drafts from; None: it is an EAGLE head
    mask_width        numbers of the hidden state that goes with it
    num_depths        tokens that one pass drafts; 1 for an EAGLE head
    num_first_layers  those that llama.cpp's graph for heads runs; it can run one
    """

    target_hidden_size: int
    input_width: int
    norm_before_fc: bool
    norm_before_residual: bool
    fc_norm: bool
    norm_output: bool
    rms_eps: float
    fc_norm_eps: float
    window: int | None
    target_name: str
    mask: int | None = None
    mask_width: int = 0
    num_depths: int = 1
    num_first_layers: int = 1

    @classmethod
    def from_header(cls, header: Header) -> EagleInfo:
        """Read a head's header.

        Raises ModelFileError if the file is not an EAGLE-3 head or lacks a key that llama.cpp needs.
        """
        keys = ArchitectureKeys(header, header.architecture)
        if keys.prefix != EAGLE:
            raise keys.error(f"is a {keys.prefix} model, not an {EAGLE} head")
        eps = _read_epsilon(keys)
        mask = keys.count_by_name(MASK_TOKEN_KEY)
        shared = head_info.read_shared_fields(keys)
        row = TapRow.read(keys, shared["target_layers"])
        return cls(
            **shared | {"target_layers": row.layers},
            target_hidden_size=row.width,
            input_width=GRAPH_TAPS * keys.count("target_hidden_size"),
            norm_before_fc=keys.flag("eagle3.norm_before_fc"),
            norm_before_residual=keys.flag("eagle3.norm_before_residual"),
            fc_norm=keys.flag(FC_NORM_KEY),
            norm_output=keys.flag(NORM_OUTPUT_KEY),
            rms_eps=eps,
            fc_norm_eps=keys.real(FC_NORM_EPS_KEY) or eps,
            window=_read_window(keys),
            target_name=keys.text(TARGET_NAME_KEY) or "",
            mask=mask,
            mask_width=header.array_count(MASK_HIDDEN_KEY) or 0,
            num_depths=1 if mask is None else keys.count_by_name(NUM_DEPTHS_KEY) or 0,
            num_first_layers=keys.count("block_count"),
        )

    @property
    def tap_row(self) -> TapRow:
        return TapRow(self.target_layers, self.target_hidden_size)

    @property
    def method(self) -> str:
        """The name of its way of drafting, for people."""
        if self.mask is not None:
            return "P-EAGLE"
        return "EAGLE-3.1" if self.fc_norm or self.norm_output else "EAGLE-3"

    def find_problems(self, target: ModelInfo) -> Iterator[str]:
        yield from head_info.target_problems(self, target, hidden_size=self.target_hidden_size)
        yield from _borrowing_problems(self, target)
        yield from self.find_own_problems()

    def find_own_problems(self) -> Iterator[str]:
        """Yield the reasons why the head cannot be run, whatever the target."""
        yield from _tap_problems(self)
        yield from _mask_problems(self)
        yield from _layers_problems(self)
        yield from head_info.attention_problems(self)
        required = _required_tensors(self)
        yield from head_info.tensor_problems(self, required)
        for name in self.tensors.keys() - required.keys() - {"rope_freqs.weight"}:  # llama.cpp refuses others
            yield f"its file has the tensor {name}, which llama.cpp does not know"


def is_weak(header: Header) -> bool:
    """Return whether a head drafted little when it was imported or trained; False if it was not measured."""
    length = header.metadata.get(ACCEPTANCE_LENGTH_KEY)
    return isinstance(length, float) and 1.0 <= length < WEAK_LENGTH


def _read_epsilon(keys: ArchitectureKeys) -> float:
    eps = keys.real("eagle3.attention.layer_norm_rms_epsilon")
    if eps is None or not 0 <= eps < 1:
        raise keys.error(f"eagle3.attention.layer_norm_rms_epsilon is {eps}")
    return eps


def _read_window(keys: ArchitectureKeys) -> int | None:
    window = keys.count_by_name(WINDOW_KEY)
    if window is not None and window < 1:
        raise keys.error(f"{WINDOW_KEY} is {window}")
    return window


def _borrowing_problems(head: EagleInfo, target: ModelInfo) -> Iterator[str]:
    """Yield a difference in width from the target, if the head borrows the target's embeddings or output."""
    borrowed = [
        what for what, own in (("embeddings", head.has_own_embeddings), ("output", head.has_own_output)) if not own
    ]
    if borrowed and head.width != target.n_embd:
        yield f"it borrows {' and '.join(borrowed)} of width {target.n_embd}, but is {head.width} wide"


def _tap_problems(head: EagleInfo) -> Iterator[str]:
    num_taps, row = len(head.target_layers), head.tap_row
    if head.header.array_count("eagle3.target_layers") != GRAPH_TAPS:
        yield f"it taps {num_taps} layers without {LAYERS_KEY}, and llama.cpp reads {GRAPH_TAPS}: import it anew"
    elif not 1 <= num_taps <= MAX_TAPS:
        yield f"it taps {num_taps} layers, and heads of up to {MAX_TAPS} are run"
    elif head.input_width != row.graph_size:
        yield f"its encoder reads {head.input_width} numbers, and {num_taps} taps of {row.width} have {row.graph_size}"


def _mask_problems(head: EagleInfo) -> Iterator[str]:
    if head.mask is None:
        return
    width = head.tap_row.size
    if head.mask >= head.n_vocab:
        yield f"its mask is the token {head.mask} of {head.n_vocab}"
    if head.mask_width != width:
        yield f"its {MASK_HIDDEN_KEY} has {head.mask_width} numbers, expected {width}"
    if not 2 <= head.num_depths <= MAX_DEPTHS:
        yield f"it drafts {head.num_depths} tokens in one pass, expected 2 to {MAX_DEPTHS}"
    if head.norm_output:
        yield f"it says {NORM_OUTPUT_KEY}, but no row of a P-EAGLE head reads the state of another"


def _layers_problems(head: EagleInfo) -> Iterator[str]:
    """Yield why a head's layers cannot be run: one on llama.cpp's graph for heads, and more above it."""
    if head.num_first_layers != 1:
        yield f"it has {head.num_first_layers} layers, llama.cpp runs heads with one"
    if head.n_layer == 1:
        return
    if head.mask is None:
        yield f"it has {head.n_layer} layers, and only P-EAGLE heads of several layers are run"
    if not head.has_own_output:
        yield f"it has {head.n_layer} layers and no output of its own, which such heads need"
    if (head.draft_vocab or 0) > head.n_vocab:
        yield f"it drafts over {head.draft_vocab} tokens of {head.n_vocab}"


def _required_tensors(head: EagleInfo) -> dict[str, tuple[int, ...]]:
    """Return the required tensors by name, with shapes in ggml order: llama.cpp loads exactly these."""
    width = head.width
    shapes = head_info.graph_tensors(head, input_width=head.input_width)
    for layer in range(1, head.n_layer):
        values = {f"blk.{layer}.attn_v.weight": (width, head.n_kv_head * head.head_dim)}
        shapes |= head_info.layer_tensors(head, layer, input_width=width) | values
    draft_vocab = head.draft_vocab or head.n_vocab
    optional = {
        "enc.output_norm.weight": (head.norm_before_fc, (head.input_width,)),
        "token_embd.weight": (head.has_own_embeddings, (width, head.n_vocab)),
        "output.weight": (head.has_own_output, (width, draft_vocab)),
        "d2t": (head.draft_vocab is not None and head.n_layer == 1, (draft_vocab,)),
    }
    return shapes | {name: shape for name, (is_required, shape) in optional.items() if is_required}
