"""Did drafting change the text? And where it did: is it a near-tie, or wrong?

A decode of several rows rounds otherwise than one of a single row, so a greedy choice may flip where the
best tokens lie closer than rounding reaches. A flip is examined: the same prompt is asked once more with
logprobs, up to the first token that differs. If what both sides chose there lies less than the bound of the
weight type behind the best token, it is a near-tie; behind it the texts go their own ways, and nothing is
claimed. Drawn texts (temperature > 0) are compared under one seed, but not examined: there
rounding moves the borders between all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from eaglelocal.bench.asking import Side, ask
from eaglelocal.bench.prompts import Prompt
from eaglelocal.core.events import Piece
from eaglelocal.core.plan import Plan
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.gguf.header import Header
from eaglelocal.gguf.reader import read_header

# largest gap of the two best logits at which a choice may flip
BOUNDS = {"F32": 1e-3, "F16": 0.02, "BF16": 0.05, "Q8_0": 0.1}
COARSE = 0.2  # of all other weights, which have fewer bits
NUM_RIVALS = 5  # tokens that are looked at where two texts part
KV_BOUNDS = {"f16": 0.0, "q8_0": 0.1, "q4_0": 0.2}  # a quantized cache magnifies what rounding put into it


class Finding(Enum):
    """What became of two texts that differ."""

    NEAR_TIE = "near-tie"
    DIFFERENT = "DIFFERENT"
    UNKNOWN = "not examined"  # drawn, or asked again it went a third way


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers to one prompt part at token `index`; `gap` is that of the two best logits there."""

    side: str
    category: str
    index: int
    finding: Finding
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """Where two answers part, and what each said there (None: it had ended)."""

    index: int
    plain: int | None
    other: int | None


def first_difference(plain: Sequence[int], other: Sequence[int]) -> Flip | None:
    for index in range(max(len(plain), len(other))):
        said = [tokens[index] if index < len(tokens) else None for tokens in (plain, other)]
        if said[0] != said[1]:
            return Flip(index, *said)
    return None


def weight_type(header: Header) -> str:
    """The type that most bytes of the weights have."""
    num_bytes: dict[str, int] = {}
    for tensor in header.tensors.values():
        num_bytes[tensor.type.name] = num_bytes.get(tensor.type.name, 0) + tensor.nbytes
    return max(num_bytes, key=lambda name: num_bytes[name], default="F32")


def tie_bound(weights: str, kv_type: str) -> float:
    return max(BOUNDS.get(weights, COARSE), KV_BOUNDS.get(kv_type, COARSE))


def tie_bound_of(plan: Plan) -> float:
    """Of the target that a plan names. Reads its header."""
    return tie_bound(weight_type(read_header(plan.target)), plan.kv_type)


class Examiner:
    """Asks again where texts differ: plainly, and if that goes elsewhere, as the other side did."""

    def __init__(self, plain: Side, *, bound: float) -> None:
        self._plain, self._bound = plain, bound
        self._num_asked = 0

    def examine(
        self, prompt: Prompt, params: SamplingParams, *, other: Side, flip: Flip, common: Sequence[int]
    ) -> Difference:
        finding, gap = Finding.UNKNOWN, None
        if params.is_greedy:
            for side in (self._plain, other):
                piece = self._again(side, prompt, params, common)
                if piece is not None:
                    finding, gap = judge(piece, flip, self._bound)
                if finding is not Finding.UNKNOWN:  # of a token that ends an answer no rivals are told
                    break
        return Difference(other.label, prompt.category, flip.index, finding, gap)

    def _again(self, side: Side, prompt: Prompt, params: SamplingParams, common: Sequence[int]) -> Piece | None:
        """What stands behind the common tokens, with the two best; None where the answer went elsewhere.

        The client knows no template, so a conversation is answered from its beginning.
        """
        asked = replace(prompt, tokens=(*prompt.tokens, *common)) if prompt.tokens else prompt
        repeated = 0 if prompt.tokens else len(common)
        self._num_asked += 1
        how = replace(params, max_tokens=repeated + 1, logprobs=NUM_RIVALS)
        (answer,) = ask(side, [asked], [how], name=f"again-{self._num_asked}").answers
        if answer.tokens[:repeated] != tuple(common)[:repeated] or len(answer.pieces) <= repeated:
            return None
        return answer.pieces[repeated]


def judge(piece: Piece, flip: Flip, bound: float) -> tuple[Finding, float | None]:
    """Return the finding, and how far what was said lies behind the best token, from the best tokens at the place.

    Where rounding reaches several tokens, either side may have chosen any of them.
    """
    top = piece.sampled.top if piece.sampled else ()
    if len(top) < 2:
        return Finding.UNKNOWN, None
    behind = {rival.token: top[0].logprob - rival.logprob for rival in top}  # of one row: they differ as logits do
    gaps = [behind.get(token) for token in (flip.plain, flip.other) if token is not None]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < 2:  # one of them had ended, or is far behind
        return Finding.DIFFERENT, top[0].logprob - top[1].logprob
    return (Finding.NEAR_TIE if max(known) < bound else Finding.DIFFERENT), max(known)
