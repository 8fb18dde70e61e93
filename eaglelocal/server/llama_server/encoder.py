"""Format answers for llama-server's /completion and /infill, with our `speculation` beside its `timings`.

Fields without a counterpart here get a neutral value: `id_slot` is -1 (any).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob, fill_recommended
from eaglelocal.server.answer_encoder import AnswerEncoder, encode_event
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.llama_server.request_reader import NEUTRAL
from eaglelocal.server.usage import encode_statistics

ANY_SLOT = -1
RANDOM_SEED = 2**32 - 1


class LlamaServerEncoder(AnswerEncoder):
    """Formats answers for /completion and /infill."""

    def __init__(
        self,
        model: str,
        get_info: Callable[[], EngineInfo],
        *,
        fields: Sequence[str] | None = None,
        is_streamed: bool = False,
        has_tokens: bool = False,
    ) -> None:
        """`get_info` returns the model's info, once it is loaded; of a complete answer only `fields` are sent."""
        self._model, self._get_info, self._fields = model, get_info, fields
        self._is_streamed, self._has_tokens = is_streamed, has_tokens or is_streamed
        self._num_sent: Counter[int] = Counter()  # tokens sent, by choice
        self._has_new_line: set[int] = set()  # choices

    def encode_whole(self, choices: Sequence[AnswerState]) -> object:
        replies = [self._encode_choice(choice) for choice in choices]
        return replies[0] if len(replies) == 1 else replies

    def _encode_choice(self, choice: AnswerState) -> dict[str, object]:
        delta = choice.take_delta()
        self._note_new_line(choice, delta)
        return self._select_fields(self._last_fields(choice, delta.text) | probabilities(delta.sampled))

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        self._note_new_line(choice, delta)
        fields = self._first_fields(choice, delta.text) | {
            "stop": False,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
        }
        return encode_event(fields | probabilities(delta.sampled))

    def encode_choice_end(self, choice: AnswerState) -> str:
        return encode_event(self._select_fields(self._last_fields(choice, "")))

    def _note_new_line(self, choice: AnswerState, delta: Delta) -> None:
        if "\n" in delta.text:
            self._has_new_line.add(choice.index)

    def _first_fields(self, choice: AnswerState, content: str) -> dict[str, object]:
        first = self._num_sent[choice.index]
        self._num_sent[choice.index] = len(choice.tokens)
        tokens = choice.tokens[first:] if self._has_tokens else []
        return {"index": choice.index, "content": content, "tokens": tokens, "id_slot": ANY_SLOT}

    def _last_fields(self, choice: AnswerState, content: str) -> dict[str, object]:
        info, stopping_word = self._get_info(), choice.finished.stop if choice.finished else ""
        num_tokens = choice.prompt_tokens + choice.num_tokens
        return {
            **self._first_fields(choice, content),
            "stop": True,
            "model": self._model,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
            "generation_settings": sampling_settings(choice.params, info) | {"stream": self._is_streamed},
            "prompt": choice.prompted.text if choice.prompted else "",
            "has_new_line": choice.index in self._has_new_line,
            "truncated": choice.is_cut_off and num_tokens >= info.n_ctx,
            "stop_type": "limit" if choice.is_cut_off else "word" if stopping_word else "eos",
            "stopping_word": stopping_word,
            "tokens_cached": num_tokens - bool(choice.num_tokens),  # the last token was not decoded
            **encode_statistics(choice),
        }

    def _select_fields(self, reply: dict[str, object]) -> dict[str, object]:
        """Return the requested fields; a path such as `timings/prompt_n` is its own key, missing ones are left out."""
        if not self._fields:
            return reply
        found = ((path, find_value(reply, path.split("/"))) for path in self._fields)
        return {path: value for path, value in found if value is not MISSING}


MISSING = object()


def find_value(value: object, path: Sequence[str]) -> object:
    for name in path:
        value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


def sampling_settings(params: SamplingParams, info: EngineInfo) -> dict[str, object]:
    """Return the sampling settings in llama.cpp's format. Samplers that do not exist here are left out."""
    params = fill_recommended(params, info.sampling)
    limit = -1 if params.max_tokens is None else params.max_tokens
    return {
        "n_ctx": info.n_ctx,
        "seed": RANDOM_SEED if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "typical_p": params.typical_p,
        "repeat_last_n": params.repeat_last_n,
        "repeat_penalty": params.repeat_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "logit_bias": [{"token": token, "bias": bias} for token, bias in params.logit_bias],
        "n_probs": params.logprobs or 0,
        "samplers": list(NEUTRAL),
    }


def probabilities(sampled: Sequence[Sampled]) -> dict[str, object]:
    if not sampled:
        return {}
    tokens = [token_fields(one) | {"top_logprobs": [token_fields(top) for top in one.top]} for one in sampled]
    return {"completion_probabilities": tokens}


def token_fields(one: Sampled | TokenLogprob) -> dict[str, Any]:
    text = one.piece.decode("utf-8", "ignore")
    return {"id": one.token, "token": text, "bytes": list(one.piece), "logprob": one.logprob}
