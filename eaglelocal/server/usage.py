"""Usage, timings, speculation and log-probabilities of an answer, in several formats. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eaglelocal.core.sampling import Sampled, TokenLogprob
from eaglelocal.core.stats import SpeculationStats, Timings, encode_stats, sum_stats
from eaglelocal.server.answer_state import (
    AnswerState,
)


def encode_usage(choices: Sequence[AnswerState], *, num_prompts: int = 1) -> dict[str, object]:
    """Return OpenAI's usage. A prompt counts once, however many answers it has."""
    each = max(len(choices) // num_prompts, 1)
    first = choices[::each]
    prompt = sum(choice.prompt_tokens for choice in first)
    completion = sum(choice.num_tokens for choice in choices)
    stats = sum_stats(list(map(answer_stats, choices)))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.num_reasoning_tokens for choice in choices),
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": stats.draft_tokens - stats.accepted_tokens,
        },
    }


def encode_timings(first: AnswerState, *more: AnswerState) -> dict[str, object]:
    """Return llama.cpp's timings: the prompt's from the first choice, the answers' summed over all choices.

    `predicted_ms`          from the first to the last token of each answer, prefill excluded
    `predicted_per_second`  (predicted_n - answers) / predicted_ms * 1000: prefill yields an answer's first token, so it
                          is not counted; llama.cpp counts it
    """
    choices = (first, *more)
    first_timings, every = answer_timings(first), list(map(answer_timings, choices))
    stats = sum_stats(list(map(answer_stats, choices)))
    prompt_n, decode_s = first.prompt_tokens - first.cached_tokens, sum(one.decode_s for one in every)
    num_after_first = sum(max(choice.num_tokens - 1, 0) for choice in choices)
    return {
        "cache_n": first.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": _ms(first_timings.prefill_s),
        "prompt_per_token_ms": _ms(first_timings.prefill_s / max(prompt_n, 1)),
        "prompt_per_second": _rate(prompt_n, first_timings.prefill_s),
        "predicted_n": sum(choice.num_tokens for choice in choices),
        "predicted_ms": _ms(decode_s),
        "predicted_per_token_ms": _ms(decode_s / max(num_after_first, 1)),
        "predicted_per_second": _rate(num_after_first, decode_s),
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "ttft_ms": _ms(first_timings.ttft_s),
        "draft_ms": _ms(sum(one.draft_s for one in every)),
        "verify_ms": _ms(sum(one.verify_s for one in every)),
        "host_ms": _ms(sum(one.host_s for one in every)),
    }


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def encode_statistics(*choices: AnswerState) -> dict[str, object]:
    """Return the fields `timings` and `speculation` of a reply with these choices."""
    stats = answer_stats(choices[0]) if len(choices) == 1 else add_stats(choices)
    return {"timings": encode_timings(*choices), "speculation": encode_stats(stats)}


def answer_timings(choice: AnswerState) -> Timings:
    return choice.finished.timings if choice.finished else Timings()


def answer_stats(choice: AnswerState) -> SpeculationStats:
    return choice.finished.speculation if choice.finished else SpeculationStats()


def add_stats(choices: Sequence[AnswerState]) -> SpeculationStats:
    """Sum the statistics of several answers. The state is that of the first answer with drafts; speedups are weighted
    by decode time.
    """
    every = list(map(answer_stats, choices))
    shown = max(every, key=lambda stats: stats.state == "on")
    gains = [
        (gain, answer_timings(one).decode_s)
        for one in choices
        if (gain := answer_stats(one).speedup_estimate) is not None
    ]
    decode_s = sum(seconds for _, seconds in gains)
    return replace(
        sum_stats(every),
        state=shown.state,
        reason=shown.reason,
        speedup_estimate=sum(gain * seconds for gain, seconds in gains) / decode_s if decode_s > 0 else None,
    )


def finish_reason(choice: AnswerState) -> str:
    return choice.finished.reason if choice.finished else "stop"


def encode_logprobs(choice: AnswerState, sampled: Sequence[Sampled]) -> dict[str, object] | None:
    """Return an entry for each token; None if logprobs were not requested."""
    if choice.params.logprobs is None:
        return None
    entries = [
        {**_entry(TokenLogprob(one.token, one.logprob or 0.0, one.piece)), "top_logprobs": [_entry(t) for t in one.top]}
        for one in sampled
    ]
    return {"content": entries, "refusal": None}


def _entry(one: TokenLogprob) -> dict[str, object]:
    return {"token": decode_piece(one.piece), "logprob": one.logprob, "bytes": list(one.piece)}


def decode_piece(piece: bytes) -> str:
    return piece.decode("utf-8", "replace")
