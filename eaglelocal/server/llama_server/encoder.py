"""Format answers for llama-server's /completion and /infill, with our `speculation` beside its `timings`.

Fields without a counterpart here get a neutral value: `id_slot` is -1 (any).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eaglelocal.core.events import EngineInfo
from eaglelocal.core.sampling import Sampled, SamplingParams, TokenLogprob, fill_recommended
from eaglelocal.server.answer_encoder import PING, data
from eaglelocal.server.answer_state import AnswerState, Delta
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.llama_server.request_reader import NEUTRAL
from eaglelocal.server.usage import speculation, stats_of, timings

ANY_SLOT = -1
RANDOM_SEED = 2**32 - 1


class LlamaServerEncoder:
    """A Teller for /completion and /infill."""

    def __init__(
        self,
        model: str,
        info: Callable[[], EngineInfo],
        *,
        fields: Sequence[str] | None = None,
        is_streamed: bool = False,
        tells_tokens: bool = False,
    ) -> None:
        """Create a teller. `info` returns the model's EngineInfo; `fields`: those wanted of a complete answer."""
        self._model, self._info, self._fields = model, info, fields
        self._is_streamed, self._tells_tokens = is_streamed, tells_tokens or is_streamed
        self._num_told: Counter[int] = Counter()  # tokens sent, by choice
        self._has_new_line: set[int] = set()  # choices

    def whole(self, choices: Sequence[AnswerState]) -> object:
        told = [self._whole(choice) for choice in choices]
        return told[0] if len(told) == 1 else told

    def _whole(self, choice: AnswerState) -> dict[str, object]:
        new = choice.news()
        self._look(choice, new)
        probabilities = {"completion_probabilities": weighed(new.sampled)} if new.sampled else {}
        return self._wanted(self._end(choice, new.text) | probabilities)

    def opening(self, choices: Sequence[AnswerState]) -> str:
        return ""

    def delta(self, choice: AnswerState, new: Delta) -> str:
        self._look(choice, new)
        told = self._begin(choice, new.text) | {
            "stop": False,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
        }
        return data(told | ({"completion_probabilities": weighed(new.sampled)} if new.sampled else {}))

    def ending(self, choice: AnswerState) -> str:
        return data(self._wanted(self._end(choice, "")))

    def closing(self, choices: Sequence[AnswerState]) -> str:
        return ""

    def ping(self) -> str:
        return PING

    def breaking(self, problem: Problem) -> str:
        return data(problem.body())

    def refusal(self, problem: Problem) -> Mapping[str, object]:
        return problem.body()

    def _look(self, choice: AnswerState, new: Delta) -> None:
        if "\n" in new.text:
            self._has_new_line.add(choice.index)

    def _begin(self, choice: AnswerState, content: str) -> dict[str, object]:
        first = self._num_told[choice.index]
        self._num_told[choice.index] = len(choice.tokens)
        tokens = choice.tokens[first:] if self._tells_tokens else []
        return {"index": choice.index, "content": content, "tokens": tokens, "id_slot": ANY_SLOT}

    def _end(self, choice: AnswerState, content: str) -> dict[str, object]:
        info, stopping_word = self._info(), choice.finished.stop if choice.finished else ""
        num_tokens = choice.prompt_tokens + choice.num_tokens
        return {
            **self._begin(choice, content),
            "stop": True,
            "model": self._model,
            "tokens_predicted": choice.num_tokens,
            "tokens_evaluated": choice.prompt_tokens,
            "generation_settings": settings_of(choice.params, info) | {"stream": self._is_streamed},
            "prompt": choice.prompted.text if choice.prompted else "",
            "has_new_line": choice.index in self._has_new_line,
            "truncated": choice.was_cut and num_tokens >= info.n_ctx,
            "stop_type": "limit" if choice.was_cut else "word" if stopping_word else "eos",
            "stopping_word": stopping_word,
            "tokens_cached": num_tokens - bool(choice.num_tokens),  # the last token was not decoded
            "timings": timings(choice),
            "speculation": speculation(stats_of(choice)),
        }

    def _wanted(self, told: dict[str, object]) -> dict[str, object]:
        """Return the wanted fields; a path such as `timings/prompt_n` is its own key, missing ones are left out."""
        if not self._fields:
            return told
        found = ((path, value_at(told, path.split("/"))) for path in self._fields)
        return {path: value for path, value in found if value is not MISSING}


MISSING = object()


def value_at(value: object, path: Sequence[str]) -> object:
    for name in path:
        value = value.get(name, MISSING) if isinstance(value, dict) else MISSING
    return value


def settings_of(params: SamplingParams, info: EngineInfo) -> dict[str, object]:
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


def weighed(sampled: Sequence[Sampled]) -> list[dict[str, Any]]:
    return [token_of(one) | {"top_logprobs": [token_of(top) for top in one.top]} for one in sampled]


def token_of(one: Sampled | TokenLogprob) -> dict[str, Any]:
    text = one.piece.decode("utf-8", "ignore")
    return {"id": one.token, "token": text, "bytes": list(one.piece), "logprob": one.logprob}
