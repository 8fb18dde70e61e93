"""Usage, timings and speculation of an answer, in the words of OpenAI, of llama.cpp and our own. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.server.choice import Choice


def usage(choices: Sequence[Choice], *, num_prompts: int = 1) -> dict[str, object]:
    """OpenAI's: a prompt counts once, however many answers it has."""
    each = max(len(choices) // num_prompts, 1)
    first = choices[::each]
    prompt = sum(choice.prompt_tokens for choice in first)
    completion = sum(choice.num_tokens for choice in choices)
    drafted, accepted = (sum(of(stats_of(c)) for c in choices) for of in (_drafted, _accepted))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.num_reasoning for choice in choices),
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def timings(choice: Choice) -> dict[str, object]:
    """llama.cpp's object; its rates are tokens a second from the first to the last token, prefill excluded."""
    told, stats = choice.finished.timings if choice.finished else Timings(), stats_of(choice)
    prompt_n = choice.prompt_tokens - choice.cached_tokens
    prompt_s = max(told.prefill_s, 0.0)
    return {
        "cache_n": choice.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_s * 1000, 3),
        "prompt_per_second": round(prompt_n / prompt_s, 3) if prompt_s else 0.0,
        "predicted_n": choice.num_tokens,
        "predicted_ms": round(told.decode_s * 1000, 3),
        "predicted_per_second": round(told.decode_tok_s, 3),
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "ttft_ms": round(told.ttft_s * 1000, 3),
        "draft_ms": round(told.draft_s * 1000, 3),
        "verify_ms": round(told.verify_s * 1000, 3),
        "host_ms": round(told.host_s * 1000, 3),
    }


def speculation(stats: SpeculationStats) -> dict[str, object]:
    """As `chat --json` tells it."""
    return {
        "state": stats.state,
        "reason": stats.reason,
        "drafts": stats.drafts,
        "draft_tokens": stats.draft_tokens,
        "accepted_tokens": stats.accepted_tokens,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_length": stats.acceptance_length,
        "accepted_per_position": list(stats.accepted_per_position),
        "speedup_estimate": stats.speedup_estimate,
    }


def stats_of(choice: Choice) -> SpeculationStats:
    return choice.finished.speculation if choice.finished else SpeculationStats()


def _drafted(stats: SpeculationStats) -> int:
    return stats.draft_tokens


def _accepted(stats: SpeculationStats) -> int:
    return stats.accepted_tokens
