"""Define the records of a search, a way to run an option and a rejected one with its reason, and score the ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from eaglelocal.core.amounts import format_memory
from eaglelocal.core.records import dataclass
from eaglelocal.memory.placement import Offload
from eaglelocal.planning.candidate_evaluation import NOT_WEIGHED, CacheSetup, CandidateMemory
from eaglelocal.planning.options import DraftOption, ModelOption
from eaglelocal.planning.quality import estimate_kv_loss
from eaglelocal.planning.speed import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A way to run an option: its draft, setup and offload, with the predicted speed and the terms of its score.

    memory  NOT_WEIGHED: its memory was not computed, and its score is a bound, as if everything fitted
    """

    option: ModelOption
    draft: DraftOption
    setup: CacheSetup
    offload: Offload
    prediction: Prediction
    terms: Mapping[Term, float]  # whose sum is the score
    memory: CandidateMemory = NOT_WEIGHED

    @property
    def score(self) -> float:
        return sum(self.terms.values())

    @property
    def is_bound(self) -> bool:
        return self.memory is NOT_WEIGHED

    @property
    def gpu_layers(self) -> int | None:
        """Return the number of layers on GPUs; None: all."""
        return self.offload.gpu_layers

    @property
    def n_cpu_moe(self) -> int:
        return self.offload.n_cpu_moe

    @property
    def prompt_factor(self) -> float:
        return prompt_factor(self.setup, self.offload)

    @property
    def drafts_nothing(self) -> bool:
        """Return whether the draft model is predicted not to pay."""
        return self.draft.shape is not None and not self.prediction.num_draft_tokens


@dataclass(frozen=True, slots=True)
class Rejected:
    """An option that was rejected, with the reason.

    draft      id of its draft; "": the option was rejected with any draft
    candidate  None: it was rejected before the search
    """

    option: ModelOption
    draft: str
    reason: str
    candidate: Candidate | None = None

    @property
    def missing_bytes(self) -> int | None:
        """Return the bytes missing on the device that lacks most; None if it was not weighed, or fits."""
        memory = NOT_WEIGHED if self.candidate is None else self.candidate.memory
        return None if memory.fits else memory.worst.missing_bytes


def offload_text(candidate: Candidate) -> str:
    """Describe the layers on the GPU and the experts in RAM; empty if nothing is split between them."""
    layers = candidate.option.shape.n_layer
    on_gpu = [] if candidate.gpu_layers is None else [f"{candidate.gpu_layers} of {layers + 1} layers on the GPU"]
    experts = [f"experts of {candidate.n_cpu_moe} of {layers} layers in main memory"] if candidate.n_cpu_moe else []
    return " and ".join(on_gpu + experts)


# ---- goals: compute the score by which plans are ranked, for the goal that a person chose. Pure
#
# score = ln(effective parameters) + ln(worth of each by its age) - slow x ln(pace / speed) if speed is below the
# goal's pace + more x ln(speed / pace) if it is above + terms for context, cache type, sliding windows and layers on
# the GPU
#
# So the score prefers the best answers at the goal's pace. Below the pace, halving the speed costs as much as a model
# of half the size for `balanced`, of a third for the other goals; below CRAWL, of a third for all, or `speed` would
# take the slower plan. Above it, more speed is worth little for `quality`, much for `speed` and something for
# `balanced`. Its pace is that of models that think: they write thousands of tokens before a person reads the first,
# 2000 of them in 50 seconds. A difference of 0.01 is about one per cent of a model's size.
CRAWL, SLOW = 7.0, 2.0  # tokens/s, just ahead of a reader, and the least weight of speed below them
INSTANT_WORTH = 0.05  # at most, of speed above an answer that comes at once: a better quantization is worth more
COMFORTABLE_CTX = 8192  # tokens
WORKING_CTX = 16384  # tokens: a few answers of a model that thinks, which writes thousands for each
LONG_CTX, LONGEST_CTX = 32768, 131_072  # tokens; above the first, more is worth hardly any other loss
# per halving below COMFORTABLE_CTX, and per doubling up to WORKING_CTX, LONG_CTX and LONGEST_CTX
TIGHT_CTX_WORTH, WORKING_CTX_WORTH, LONG_CTX_WORTH, LONGEST_CTX_WORTH = 0.25, 0.1, 0.05, 0.004
WHOLE_WINDOWS_WORTH = 0.005  # with full-size caches of window layers any prefix can be reused
UNSEEN_WORTH = -0.03  # a file whose size was computed: it may be larger, or missing in the first repository
BY_NAME_WORTH = -1.0  # a model that the catalog offers by name only: taken where nothing else fits
# Prefill is three or four times slower with layers in RAM, because their weights cross the bus for each chunk. The
# decode speed does not show it, so it costs as much as that factor in speed does for `balanced`: 0.25 x ln 3.5.
ON_HOST_WORTH = -0.3
# What reading prompts slower by a factor costs, on the same scale; and the factors of pieces smaller than the usual:
# whole models by ggml-org/llama.cpp#6646 and #12014 (RTX 3090). With a part in RAM, the weights cross the bus for each
# piece: gpt-oss-120b on an RTX 3090 read 380 tokens/s in pieces of 512, and 240 in pieces of 256 (coder543, 2026-05);
# that of 128 is extrapolated.
PROMPTS_WORTH = -0.25
WHOLE_FACTORS: Mapping[int, float] = MappingProxyType({512: 1.0, 256: 1.07, 128: 1.33})
SPLIT_FACTORS: Mapping[int, float] = MappingProxyType({512: 1.0, 256: 1.6, 128: 2.5})


class Term(StrEnum):
    """A term of the score."""

    QUALITY = "quality"
    AGE = "age"
    SPEED = "speed"
    CONTEXT = "context"
    CACHE = "cache"
    WINDOWS = "windows"
    HOST = "host"
    PROMPTS = "prompts"
    UNSEEN = "unseen"
    BY_NAME = "by name"


@dataclass(frozen=True, slots=True)
class Goal:
    """The speed that a person wants, and its weight against quality.

    pace     the wanted tokens/s (reading takes 4 to 6, skimming 15; programs use any speed)
    slow     weight of speed below the pace
    more     weight of speed above it
    instant  tokens/s from which on more of them are worth little
    """

    name: str
    pace: float
    slow: float
    more: float
    instant: float = 100.0

    def rate_speed(self, tok_s: float) -> float:
        """Return the speed term of the score for this speed."""
        behind = math.log(self.pace / tok_s)
        crawling = max(math.log(CRAWL / tok_s), 0.0)
        if behind > 0:
            return -self.slow * behind - (SLOW - self.slow) * crawling
        beyond = max(math.log(tok_s / self.instant), 0.0)
        return self.more * (-behind - beyond) + min(self.more, INSTANT_WORTH) * beyond


GOALS: Mapping[str, Goal] = MappingProxyType(
    {
        "quality": Goal("quality", pace=5.0, slow=SLOW, more=0.08),
        "balanced": Goal("balanced", pace=40.0, slow=1.0, more=0.2),
        "speed": Goal("speed", pace=80.0, slow=1.5, more=0.5, instant=1e6),
    }
)


def compute_terms(
    goal: Goal, option: ModelOption, setup: CacheSetup, offload: Offload, tok_s: float
) -> Mapping[Term, float]:
    """Return the terms of the score of an option with this setup, offload and speed, in natural logarithms."""
    return {
        Term.QUALITY: math.log(max(option.quality_b, 1e-3)),
        Term.AGE: math.log(option.age.worth),
        Term.SPEED: goal.rate_speed(tok_s),
        Term.CONTEXT: context_worth(setup.n_ctx),
        Term.CACHE: math.log(1.0 - estimate_kv_loss(setup.kv_type)),
        Term.WINDOWS: WHOLE_WINDOWS_WORTH if setup.swa_full else 0.0,
        Term.HOST: 0.0 if offload.is_whole else ON_HOST_WORTH,
        Term.PROMPTS: PROMPTS_WORTH * math.log(prompt_factor(setup, offload)),
        Term.UNSEEN: UNSEEN_WORTH if option.is_unseen else 0.0,
        Term.BY_NAME: BY_NAME_WORTH if option.by_name else 0.0,
    }


def prompt_factor(setup: CacheSetup, offload: Offload) -> float:
    """Return how many times as long a prompt takes in pieces of this size as in the usual ones."""
    return (WHOLE_FACTORS if offload.is_whole else SPLIT_FACTORS)[setup.n_batch]


def context_worth(n_ctx: int) -> float:
    tight = math.log2(min(n_ctx, COMFORTABLE_CTX) / COMFORTABLE_CTX)
    working = math.log2(min(max(n_ctx, COMFORTABLE_CTX), WORKING_CTX) / COMFORTABLE_CTX)
    long = math.log2(min(max(n_ctx, WORKING_CTX), LONG_CTX) / WORKING_CTX)
    longest = math.log2(min(max(n_ctx, LONG_CTX), LONGEST_CTX) / LONG_CTX)
    worth = TIGHT_CTX_WORTH * tight + WORKING_CTX_WORTH * working + LONG_CTX_WORTH * long
    return worth + LONGEST_CTX_WORTH * longest


# ---- rejections: explain why a way to run was rejected, from the terms of its score. Pure
#
# The score of a way that was never weighed is a bound, as if everything fitted; its figures are given as "at best".
TELLING = 0.005  # difference of a term of the score from which on it is mentioned
MAX_TOLD = 2  # terms, of which the second is mentioned if it is at least this share of the first
SECOND_SHARE = 0.4
FIXED_TEXTS = {Term.WINDOWS: "its cache keeps windows only", Term.UNSEEN: "the size of its file is not confirmed"}
CLEARLY = 1.05  # factor above the plan's speed or size from which on it is mentioned


def explain_missing_memory(candidate: Candidate) -> str:
    """Name the device that lacks most memory, the bytes it would hold, and its free bytes."""
    load = candidate.memory.worst
    setup = f"{candidate.setup.n_ctx} tokens in {candidate.setup.kv_type}"
    return (
        f"{format_memory(load.total)} on {load.device} even with {setup}"
        f"{lies_text(candidate, 'and')}, {format_memory(load.free_bytes or 0)} to use"
    )


def lies_text(candidate: Candidate, joint: str) -> str:
    """Return `offload_text` after `joint`, to append to a sentence; empty if nothing is split."""
    text = offload_text(candidate)
    return f" {joint} {text}" if text else ""


def explain_lower_score(candidate: Candidate, chosen: Candidate, goal: Goal) -> str:
    """Name the terms in which a way scores below the chosen one, the largest first."""
    lost = {term: chosen.terms[term] - candidate.terms[term] for term in Term}
    least = max(TELLING, SECOND_SHARE * max(lost.values()))
    telling = sorted((term for term in Term if lost[term] > least), key=lambda term: -lost[term])[:MAX_TOLD]
    if Term.SPEED in telling:  # whose clause says how many layers are on the GPU
        telling = [term for term in telling if term is not Term.HOST]
    if not telling:
        other = f" with {chosen.draft.id}" if candidate.option is chosen.option else ""
        return f"as good as the plan{other}, which comes first"
    text = ", ".join(term_text(term, candidate, chosen) for term in telling)
    misses = candidate.prediction.spec_tok_s < goal.pace <= chosen.prediction.spec_tok_s
    pace = f"; --goal {goal.name} wants {goal.pace:.0f}" if Term.SPEED in telling and misses else ""
    return f"{text}{pace}{advantage_text(telling, candidate, chosen)}"


def term_text(term: Term, candidate: Candidate, chosen: Candidate) -> str:
    """Describe one term of the score: this way's figure (or its bound) and the plan's."""
    best = "at best " if candidate.is_bound else ""
    option, setup = candidate.option, candidate.setup
    match term:
        case Term.QUALITY:
            what = "lower quality" if option.answers_b < chosen.option.answers_b else "smaller"
            return f"{what}: {quality_text(candidate, chosen)}"
        case Term.AGE:
            released, newer = (each.age.released or "no known date" for each in (option, chosen.option))
            return f"older: {released}, the plan {newer}"
        case Term.SPEED:
            slow, plan = format_distinct(candidate.prediction.spec_tok_s, chosen.prediction.spec_tok_s)
            return f"slower: {best}{slow} tokens/s{lies_text(candidate, 'with')}, the plan {plan}"
        case Term.CONTEXT:
            return f"less context: {best}{setup.n_ctx} tokens, the plan {chosen.setup.n_ctx}"
        case Term.CACHE:
            return f"a cache of {setup.kv_type}, the plan's is {chosen.setup.kv_type}"
        case Term.HOST:
            return f"does not fit the GPU whole: {best}{offload_text(candidate)}"
        case Term.PROMPTS:
            return f"it reads prompts {setup.n_batch} tokens at a time, the plan {chosen.setup.n_batch}"
        case Term.BY_NAME:
            return f"offered by name only, {option.by_name}"
        case Term.WINDOWS | Term.UNSEEN:
            return FIXED_TEXTS[term]


def quality_text(candidate: Candidate, chosen: Candidate) -> str:
    return f"rated {candidate.option.quality_b:.1f} B, the plan {chosen.option.quality_b:.1f} B"


def advantage_text(telling: list[Term], candidate: Candidate, chosen: Candidate) -> str:
    """Describe how the way beats the plan; empty if it does not."""
    speed, best = candidate.prediction.spec_tok_s, chosen.prediction.spec_tok_s
    more = []
    if Term.AGE in telling and candidate.option.quality_b > CLEARLY * chosen.option.quality_b:
        more.append(quality_text(candidate, chosen))
    if Term.SPEED not in telling and speed > CLEARLY * best:
        more.append(f"{'at best ' if candidate.is_bound else ''}{speed:.1f} tokens/s, the plan {best:.1f}")
    return f" (though {', '.join(more)})" if more else ""


def format_distinct(left: float, right: float) -> tuple[str, str]:
    """Format two numbers with the fewest digits, up to three, that show that they differ.

    >>> format_distinct(2.42, 2.44)
    ('2.42', '2.44')
    """
    for digits in (1, 2, 3):
        texts = f"{left:.{digits}f}", f"{right:.{digits}f}"
        if texts[0] != texts[1]:
            break
    return texts
