"""Format answers for /v1/completions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from eaglelocal.core.sampling import Sampled
from eaglelocal.server.answer_encoder import DONE, AnswerEncoder, encode_event
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.openai.chat_encoder import decode_piece, finish_reason
from eaglelocal.server.usage import encode_statistics, encode_usage


class CompletionEncoder(AnswerEncoder):
    """Formats answers for /v1/completions."""

    stream_end = DONE

    def __init__(self, call_id: str, model: str, *, num_prompts: int = 1, has_usage: bool = False) -> None:
        self._num_prompts, self._has_usage = num_prompts, has_usage
        head = {"id": f"cmpl-{call_id}", "object": "text_completion"}
        self._head = {**head, "created": int(time.time()), "model": model}
        self._offsets: dict[int, int] = {}  # characters sent of each choice, for `text_offset` of logprobs

    def encode_whole(self, choices: Sequence[AnswerState]) -> Mapping[str, object]:
        return {
            **self._head,
            "choices": [self._choice(choice, choice.take_delta(), finish_reason(choice)) for choice in choices],
            "usage": encode_usage(choices, num_prompts=self._num_prompts),
            **encode_statistics(*choices),
        }

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        return encode_event({**self._head, "choices": [self._choice(choice, delta, None)]})

    def encode_choice_end(self, choice: AnswerState) -> str:
        chunk = {**self._head, "choices": [self._choice(choice, Delta(), finish_reason(choice))]}
        return encode_event({**chunk, **encode_statistics(choice)})

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        chunk = {**self._head, "choices": [], "usage": encode_usage(choices, num_prompts=self._num_prompts)}
        return (encode_event(chunk) if self._has_usage else "") + DONE

    def _choice(self, choice: AnswerState, delta: Delta, reason: str | None) -> dict[str, object]:
        return {
            "index": choice.index,
            "text": delta.text,
            "logprobs": self._logprobs(choice, delta.sampled),
            "finish_reason": reason,
        }

    def _logprobs(self, choice: AnswerState, sampled: Sequence[Sampled]) -> dict[str, object] | None:
        if choice.params.logprobs is None:
            return None
        tokens, offsets = [decode_piece(one.piece) for one in sampled], []
        offset = self._offsets.get(choice.index, 0)
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        self._offsets[choice.index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in sampled],
            "top_logprobs": [{decode_piece(top.piece): top.logprob for top in one.top} for one in sampled],
            "text_offset": offsets,
        }
