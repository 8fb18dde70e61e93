"""Format answers for /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from eaglelocal.core.sampling import Sampled
from eaglelocal.server.answer_encoder import DONE, PING, data
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.openai.chat_encoder import finish_reason, text_of
from eaglelocal.server.usage import joint_stats, speculation, stats_of, timings, usage


class CompletionEncoder:
    """A Teller for /v1/completions."""

    def __init__(self, call_id: str, model: str, *, num_prompts: int = 1, has_usage: bool = False) -> None:
        self._num_prompts, self._has_usage = num_prompts, has_usage
        self._head = {
            "id": f"cmpl-{call_id}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._offsets: dict[int, int] = {}  # characters sent of each choice, for `text_offset` of logprobs

    def whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        told = [self._choice(choice, choice.news(), finish_reason(choice)) for choice in choices]
        return {
            **self._head,
            "choices": told,
            "usage": usage(choices, num_prompts=self._num_prompts),
            "timings": timings(*choices),
            "speculation": speculation(joint_stats(choices)),
        }

    def opening(self, choices: Sequence[AnswerState]) -> str:
        return ""

    def delta(self, choice: AnswerState, new: Delta) -> str:
        return data({**self._head, "choices": [self._choice(choice, new, None)]})

    def ending(self, choice: AnswerState) -> str:
        figures = {"timings": timings(choice), "speculation": speculation(stats_of(choice))}
        return data({**self._head, "choices": [self._choice(choice, Delta(), finish_reason(choice))], **figures})

    def closing(self, choices: Sequence[AnswerState]) -> str:
        if not self._has_usage:
            return DONE
        return data({**self._head, "choices": [], "usage": usage(choices, num_prompts=self._num_prompts)}) + DONE

    def ping(self) -> str:
        return PING

    def breaking(self, problem: Problem) -> str:
        return data(problem.body()) + DONE

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return problem.body()

    def _choice(self, choice: AnswerState, new: Delta, reason: str | None) -> dict[str, object]:
        return {
            "index": choice.index,
            "text": new.text,
            "logprobs": self._logprobs(choice, new.sampled),
            "finish_reason": reason,
        }

    def _logprobs(self, choice: AnswerState, sampled: Sequence[Sampled]) -> dict[str, object] | None:
        if choice.params.logprobs is None:
            return None
        tokens, offsets = [text_of(one.piece) for one in sampled], []
        offset = self._offsets.get(choice.index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[choice.index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in sampled],
            "top_logprobs": [{text_of(top.piece): top.logprob for top in one.top} for one in sampled],
            "text_offset": offsets,
        }
