"""The check whether drafting changed the text, and if it did, whether that is a near-tie or an error.

A decode of several batch rows rounds differently from one of a single row, so greedy sampling may choose
another token where the best logits differ by less than the rounding error. Such a flip is examined: the same
prompt is asked again with logprobs, up to the first token that differs. If the tokens that both sides chose
there are closer to the best token than the bound of the weight type, it is a near-tie; the text after it is
not judged. Sampled texts (temperature > 0) are compared under one seed, but not examined, because there
rounding shifts the boundaries between all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum

from eaglelocal.bench.bench_prompts import BenchPrompt
from eaglelocal.bench.prompt_run import Side, ask
from eaglelocal.core.events import TextPiece
from eaglelocal.core.records import dataclass
from eaglelocal.core.run_options import split_kv_type
from eaglelocal.core.sampling import SamplingParams

# largest gap from the best logit at which rounding may flip a token, by weight type
BOUNDS = {"F32": 1e-3, "F16": 0.02, "BF16": 0.05, "Q8_0": 0.1}
COARSE = 0.2  # bound of all other weight types, which have fewer bits
NUM_TOP_TOKENS = 5  # best tokens requested at the first difference
KV_BOUNDS = {"f16": 0.0, "q8_0": 0.1, "q4_0": 0.2}  # a quantized KV cache amplifies rounding errors


class DifferenceVerdict(Enum):
    """The verdict on two texts that differ."""

    NEAR_TIE = "near-tie"
    DIFFERENT = "DIFFERENT"
    UNKNOWN = "not examined"  # sampled at a temperature, or the repeated answer differs from both


@dataclass(frozen=True, slots=True)
class Difference:
    """A first difference of two answers to one prompt, at token `index`; `gap` as `judge_flip` returns it."""

    side: str
    category: str
    index: int
    verdict: DifferenceVerdict
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Flip:
    """The first index at which two answers differ, and each one's token there (None: it had ended)."""

    index: int
    plain: int | None
    other: int | None


def first_difference(plain: Sequence[int], other: Sequence[int]) -> Flip | None:
    """Return the first difference of two lists of token ids; None if they are equal."""
    for index in range(max(len(plain), len(other))):
        pair = [tokens[index] if index < len(tokens) else None for tokens in (plain, other)]
        if pair[0] != pair[1]:
            return Flip(index, *pair)
    return None


def tie_bound(weights: str, kv_type: str) -> float:
    """Return the largest gap that counts as a near-tie, for a type of weights and a type of the KV cache."""
    return max(BOUNDS.get(weights, COARSE), *(KV_BOUNDS.get(name, COARSE) for name in split_kv_type(kv_type)))


class TextComparer:
    """A judge of flips: it repeats the prompt without drafting, and if that diverges, as the other side did."""

    def __init__(self, plain: Side, *, bound: float) -> None:
        self._plain, self._bound = plain, bound
        self._num_asked = 0

    def examine(
        self, prompt: BenchPrompt, params: SamplingParams, *, other: Side, flip: Flip, common: Sequence[int]
    ) -> Difference:
        verdict, gap = DifferenceVerdict.UNKNOWN, None
        if params.is_greedy:
            for side in (self._plain, other):
                piece = self._repeat_answer(side, prompt, params, common)
                if piece is not None:
                    verdict, gap = judge_flip(piece, flip, self._bound)
                if verdict is not DifferenceVerdict.UNKNOWN:  # a token that ends an answer comes without alternatives
                    break
        return Difference(other.label, prompt.category, flip.index, verdict, gap)

    def _repeat_answer(
        self, side: Side, prompt: BenchPrompt, params: SamplingParams, common: Sequence[int]
    ) -> TextPiece | None:
        """Return the piece after the common tokens, with its best tokens; None if the repeated answer differs before.

        Token ids are continued after the common ones. The client has no chat template, so a conversation is
        answered from its beginning.
        """
        repeated_prompt = replace(prompt, tokens=(*prompt.tokens, *common)) if prompt.tokens else prompt
        num_repeated = 0 if prompt.tokens else len(common)
        self._num_asked += 1
        sampling = replace(params, max_tokens=num_repeated + 1, logprobs=NUM_TOP_TOKENS)
        (answer,) = ask(side, [repeated_prompt], [sampling], name=f"again-{self._num_asked}").answers
        if answer.tokens[:num_repeated] != tuple(common)[:num_repeated] or len(answer.pieces) <= num_repeated:
            return None
        return answer.pieces[num_repeated]


def judge_flip(piece: TextPiece, flip: Flip, bound: float) -> tuple[DifferenceVerdict, float | None]:
    """Return the verdict, and the larger distance in logprob of the two chosen tokens from the best one.

    If one of them is not among the best tokens, the gap is that between the two best. A near-tie may involve
    more than two tokens: either side may have chosen any that is within the bound.
    """
    top = piece.sampled.top if piece.sampled else ()
    if len(top) < 2:
        return DifferenceVerdict.UNKNOWN, None
    from_best = {one.token: top[0].logprob - one.logprob for one in top}  # in one row logprobs differ as logits do
    gaps = [from_best.get(token) for token in (flip.plain, flip.other) if token is not None]
    known = [gap for gap in gaps if gap is not None]
    if len(known) < 2:  # one answer had ended, or its token is not among the best
        return DifferenceVerdict.DIFFERENT, top[0].logprob - top[1].logprob
    return (DifferenceVerdict.NEAR_TIE if max(known) < bound else DifferenceVerdict.DIFFERENT), max(known)
