"""The base of the dialects' encoders, and what they share: events, usage, timings, log-probabilities, custom inputs."""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import ClassVar

from eaglelocal.core.json_text import read_json
from eaglelocal.core.records import dataclass
from eaglelocal.core.sampling import Sampled, TokenLogprob
from eaglelocal.core.stats import SpeculationStats, encode_stats, sum_stats
from eaglelocal.core.terminal_text import join_surrogates
from eaglelocal.server.answer_state import AnswerState, Delta, DeltaPart
from eaglelocal.server.http_errors import Problem

DONE = "data: [DONE]\n\n"


class AnswerEncoder(ABC):
    """Formats the answers to one call: as a whole, or as a stream of server-sent events.

    What most APIs have in common is defined here. `stream_end`: sent after the last event, also after a failure.
    `has_progress`: the client asked how much of its prompt has been read.
    """

    stream_end: ClassVar[str] = ""
    has_progress = False

    @abstractmethod
    def encode_whole(self, choices: Sequence[AnswerState]) -> object:
        """Return the JSON of complete answers."""

    def encode_start(self, choices: Sequence[AnswerState]) -> str:
        """Return the first events of a stream."""
        return ""

    def encode_progress(self, choice: AnswerState) -> str:
        """Return the event for the part of the prompt that has been read."""
        return ""

    def encode_delta(self, choice: AnswerState, delta: Delta) -> str:
        """Return the events for the new parts of a choice."""
        return "".join(self.encode_part(choice, part) for part in delta.parts)

    def encode_part(self, choice: AnswerState, part: DeltaPart) -> str:
        """Return the events for one part of a delta, if the API has events for each kind of part."""
        return ""

    def encode_choice_end(self, choice: AnswerState) -> str:
        """Return the events for the end of a choice, after its last delta."""
        return ""

    def encode_end(self, choices: Sequence[AnswerState]) -> str:
        """Return the events for the end of the stream, after all choices."""
        return self.stream_end

    def encode_ping(self) -> str:
        """Return an event that keeps an idle stream open."""
        return ": ping\n\n"

    def encode_failure(self, problem: Problem) -> str:
        """Return the events for a failure after the first byte."""
        return encode_event(problem.openai_body()) + self.stream_end


class ReplyEncoder(AnswerEncoder):
    """Formats the answer to a single request by a function, never as a stream."""

    def __init__(self, make_reply: Callable[[AnswerState], object]) -> None:
        self._make_reply = make_reply

    def encode_whole(self, choices: Sequence[AnswerState]) -> object:
        return self._make_reply(choices[0])


def encode_event(event: Mapping[str, object]) -> str:
    """Return a server-sent event without a name."""
    return f"data: {dump_json(event)}\n\n"


def encode_named_event(event: Mapping[str, object]) -> str:
    """Return a server-sent event named by its `type`."""
    return f"event: {event['type']}\ndata: {dump_json(event)}\n\n"


def is_json_object(arguments: str) -> bool:
    """Return whether a call's arguments are a JSON object; arguments that were cut off are not."""
    try:
        return isinstance(read_json(arguments), dict)
    except ValueError:
        return False


def dump_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


# ---- usage, timings, speculation and log-probabilities of an answer
def encode_usage(choices: Sequence[AnswerState], *, num_prompts: int = 1) -> dict[str, object]:
    """Return OpenAI's usage. A prompt counts once, however many answers it has."""
    first = choices[:: max(len(choices) // num_prompts, 1)]
    prompt = sum(choice.prompt_tokens for choice in first)
    completion = sum(choice.num_tokens for choice in choices)
    stats = sum_stats([choice.stats for choice in choices])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in first)},
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for choice in choices),
            "accepted_prediction_tokens": stats.accepted_tokens,
            "rejected_prediction_tokens": stats.draft_tokens - stats.accepted_tokens,
        },
    }


def encode_statistics(*choices: AnswerState) -> dict[str, object]:
    """Return the fields `timings` and `speculation` of a reply with these choices."""
    return {"timings": encode_timings(*choices), "speculation": encode_stats(add_stats(choices))}


def encode_timings(*choices: AnswerState) -> dict[str, object]:
    """Return llama.cpp's timings: the prompt's from the first choice, the answers' summed over all choices.

    `predicted_ms`          from the first to the last token of each answer, prefill excluded
    `predicted_per_second`  (predicted_n - answers) / predicted_ms * 1000: prefill yields an answer's first token, so it
                          is not counted; llama.cpp counts it
    """
    first, timings = choices[0], [choice.timings for choice in choices]
    stats = sum_stats([choice.stats for choice in choices])
    prompt_n, prefill_s = first.prompt_tokens - first.cached_tokens, timings[0].prefill_s
    decode_s = sum(one.decode_s for one in timings)
    num_after_first = sum(max(choice.num_tokens - 1, 0) for choice in choices)
    return {
        "cache_n": first.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": _ms(prefill_s),
        "prompt_per_token_ms": _ms(prefill_s / max(prompt_n, 1)),
        "prompt_per_second": _rate(prompt_n, prefill_s),
        "predicted_n": sum(choice.num_tokens for choice in choices),
        "predicted_ms": _ms(decode_s),
        "predicted_per_token_ms": _ms(decode_s / max(num_after_first, 1)),
        "predicted_per_second": _rate(num_after_first, decode_s),
        "draft_n": stats.draft_tokens,
        "draft_n_accepted": stats.accepted_tokens,
        "ttft_ms": _ms(timings[0].ttft_s),
        "draft_ms": _ms(sum(one.draft_s for one in timings)),
        "verify_ms": _ms(sum(one.verify_s for one in timings)),
        "host_ms": _ms(sum(one.host_s for one in timings)),
    }


def encode_prompt_progress(choice: AnswerState) -> dict[str, object]:
    """Return llama.cpp's `prompt_progress`, in tokens; `processed` includes those of the cache."""
    progress = {
        "total": choice.prompt_tokens,
        "cache": choice.cached_tokens,
        "processed": choice.num_read,
        "time_ms": round((time.perf_counter() - choice.started_at) * 1000),
    }
    return {"prompt_progress": progress}


def _ms(seconds: float) -> float:
    return round(max(seconds, 0.0) * 1000, 3)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 3) if seconds > 0 else 0.0


def add_stats(choices: Sequence[AnswerState]) -> SpeculationStats:
    """Sum statistics. The state is that of the first answer with drafts; decode time weighs the speedups."""
    every = [choice.stats for choice in choices]
    if len(every) == 1:
        return every[0]
    shown = max(every, key=lambda stats: stats.state == "on")
    gains = [
        (gain, choice.timings.decode_s) for choice in choices if (gain := choice.stats.speedup_estimate) is not None
    ]
    decode_s = sum(seconds for _, seconds in gains)
    return replace(
        sum_stats(every),
        state=shown.state,
        reason=shown.reason,
        speedup_estimate=sum(gain * seconds for gain, seconds in gains) / decode_s if decode_s > 0 else None,
    )


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


# ---- inputs of custom tools
INPUT = "input"
_CONTROL = re.compile(r"[\x00-\x1f]")
_BEGIN = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_WHOLE = re.compile(
    r'(?:[^"\\]|\\(?:["\\/bfnrt]|u(?![dD][89abAB])[0-9a-fA-F]{4}|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))*'
)


@dataclass(slots=True)
class CustomInput:
    """The text in a custom tool's call, from pieces of its arguments: `{"input": "a\\nb"}` becomes two lines."""

    arguments: list[str] = field(default_factory=list)
    text: str = ""  # so far
    _left: str = ""  # of the arguments, not read yet
    _is_open: bool = False  # within the text
    _is_closed: bool = False

    def add(self, arguments: str) -> str:
        """Append a piece of the arguments. Return the text that it adds."""
        self.arguments.append(arguments)
        if self._is_closed:
            return ""
        self._left += arguments
        if not self._is_open:
            begin = _BEGIN.match(self._left)
            if begin is None:
                return ""
            self._is_open, self._left = True, self._left[begin.end() :]
        whole = _WHOLE.match(self._left)
        assert whole is not None
        self._left = self._left[whole.end() :]
        self._is_closed = self._left.startswith('"')
        escaped = _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", whole.group())  # a model may forget to
        return self._gain(str(read_json(f'"{escaped}"')))

    def end(self) -> str:
        """End the call, and return the remaining text; for arguments in another form than expected, all of them."""
        arguments = "".join(self.arguments)
        try:
            value = read_json(arguments)
        except ValueError:  # it was cut off
            return self._gain("" if self._is_open else arguments)
        found = value.get(INPUT) if isinstance(value, dict) else None
        text = join_surrogates(found) if isinstance(found, str) else arguments
        return self._gain(text.removeprefix(self.text)) if text.startswith(self.text) else ""

    def _gain(self, text: str) -> str:
        gained = join_surrogates(text)  # JSON can escape half a pair, which cannot be sent
        self.text += gained
        return gained


def read_input(arguments: str) -> str:
    given = CustomInput()
    given.add(arguments)
    given.end()
    return given.text
