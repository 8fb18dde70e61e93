"""A typed view of a Medusa head (arXiv 2401.10774), and a check that it fits a target.

Such a head has parts, called heads in the paper, each of which drafts one token from the same state of the target: x is
replaced by x + silu(W x + b), once for each layer, and an lm_head gives the logits. It runs on llama.cpp's `eagle3`
graph: the graph's encoder holds all W, and its decoder, whose attention and feed-forward are zero, multiplies by the
lm_head, which is the target's, or one for all parts, or one for each of them. See backend/head_context.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from eaglelocal.core.records import dataclass
from eaglelocal.gguf import head_info
from eaglelocal.gguf.architectures import EAGLE, NO_NORMED_STATE, ArchitectureKeys
from eaglelocal.gguf.eagle_info import TARGET_NAME_KEY, EagleInfo
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.model_info import ModelInfo
from eaglelocal.gguf.tap_row import GRAPH_TAPS

NUM_PARTS_KEY = "eaglelocal.medusa_heads"
NUM_LAYERS_KEY = "eaglelocal.medusa_layers"
STATE_WIDTH_KEY = "eaglelocal.medusa_width"
BIASES_KEY = "eaglelocal.medusa_biases"  # [parts x layers x width]; missing: there are none
MAX_PARTS, MAX_LAYERS = 16, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaInfo(head_info.DraftHeadInfo):
    """A Medusa head as its header describes it.

    width         of the graph: of one state, or if each part has an lm_head of one state per part
    state_width   hidden size of the target
    input_width   numbers of a row that the graph's encoder reads
    num_biases    numbers in BIASES_KEY
    target_name   the target it was imported for; empty: unknown
    """

    num_parts: int
    num_layers: int
    state_width: int
    input_width: int
    rms_eps: float
    num_biases: int
    target_name: str

    method = "Medusa"

    @classmethod
    def from_header(cls, header: Header) -> MedusaInfo:
        """Read a head's header. Raises ModelFileError if the file lacks a required key."""
        keys = ArchitectureKeys(header, header.architecture)
        shared = head_info.read_shared_fields(keys)
        eps = keys.real("eagle3.attention.layer_norm_rms_epsilon")
        if eps is None or not 0 < eps < 1:
            raise keys.error(f"eagle3.attention.layer_norm_rms_epsilon is {eps}")
        shared["target_layers"] = shared["target_layers"][:1]  # llama.cpp wants three
        return cls(
            **shared,
            num_parts=keys.count_by_name(NUM_PARTS_KEY) or 0,
            num_layers=keys.count_by_name(NUM_LAYERS_KEY) or 0,
            state_width=keys.count_by_name(STATE_WIDTH_KEY) or 0,
            input_width=GRAPH_TAPS * keys.count("target_hidden_size"),
            rms_eps=eps,
            num_biases=header.array_count(BIASES_KEY) or 0,
            target_name=keys.text(TARGET_NAME_KEY) or "",
        )

    @property
    def max_draft(self) -> int:
        """The number of tokens that a pass drafts."""
        return self.num_parts

    @property
    def has_own_outputs(self) -> bool:
        """True if each part has an lm_head."""
        return self.width != self.state_width

    @property
    def num_input_states(self) -> int:
        """States that a row of the encoder has room for: one for each matrix of a part, or of all parts."""
        return self.num_layers * (1 if self.has_own_outputs else self.num_parts)

    def find_problems(self, target: ModelInfo) -> Iterator[str]:
        yield from _size_problems(self)
        if self.state_width != target.n_embd:
            yield f"it was made for hidden size {self.state_width}, the target has {target.n_embd}"
        if self.target_layers != (target.n_layer + 1,):
            yield f"it was made for {self.target_layers[0] - 1} layers, the target has {target.n_layer}"
        if target.architecture in NO_NORMED_STATE:
            yield f"it reads the state after the output norm, which llama.cpp does not give for {target.architecture}"
        yield from head_info.vocabulary_problems(self, target)
        required = _required_tensors(self)
        yield from head_info.tensor_problems(self, required)
        for name in self.tensors.keys() - required.keys():  # llama.cpp refuses others
            yield f"its file has the tensor {name}, which no Medusa head has"


def _size_problems(head: MedusaInfo) -> Iterator[str]:
    num_parts, num_layers, width = head.num_parts, head.num_layers, head.state_width
    if not (1 <= num_parts <= MAX_PARTS and 1 <= num_layers <= MAX_LAYERS):
        yield f"it has {num_parts} heads of {num_layers} layers, expected up to {MAX_PARTS} of {MAX_LAYERS}"
    if head.width not in (width, num_parts * width):
        yield f"it is {head.width} wide, which holds neither one state of {width} nor {num_parts}"
    if head.has_own_outputs and not head.has_own_output:
        yield "each of its heads has an lm_head, but its file lacks the tensor output.weight"
    if head.input_width < head.num_input_states * width:
        yield f"its encoder reads {head.input_width} numbers, fewer than {head.num_input_states} states have"
    if head.num_biases not in (0, num_parts * num_layers * width):
        yield f"its {BIASES_KEY} has {head.num_biases} numbers"
    if head.n_layer != 1:
        yield f"it has {head.n_layer} layers in the graph, expected one"


def _required_tensors(head: MedusaInfo) -> dict[str, tuple[int, ...]]:
    """Return the required tensors by name, with shapes in ggml order: llama.cpp loads exactly these.

    The embeddings may have any number of rows: only the first is used.
    """
    width, draft_vocab = head.width, head.draft_vocab or head.n_vocab
    embeddings = head.tensors.get("token_embd.weight")
    num_embeddings = embeddings.shape[1] if embeddings and len(embeddings.shape) == 2 else 1
    shapes = head_info.graph_tensors(head, input_width=head.input_width)
    shapes["token_embd.weight"] = (width, num_embeddings)
    if head.has_own_output:
        shapes["output.weight"] = (width, draft_vocab)
    if head.draft_vocab is not None:
        shapes["d2t"] = (draft_vocab,)
    return shapes


def is_medusa(header: Header) -> bool:
    """Return whether a file holds a Medusa head; it states the architecture of EAGLE heads."""
    return header.architecture == EAGLE and NUM_PARTS_KEY in header.metadata


def read_graph_head(header: Header) -> EagleInfo | MedusaInfo:
    """Return the description of a head that runs on the `eagle3` graph. Raises ModelFileError."""
    return MedusaInfo.from_header(header) if is_medusa(header) else EagleInfo.from_header(header)
