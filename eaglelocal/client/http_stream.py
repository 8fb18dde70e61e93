"""What is said to an OpenAI-compatible server and what it streams back, as plain data; no sockets.

Words as everywhere here: tok/s from the first to the last token. llama.cpp's `predicted_ms` begins at the
first token too, so the rate is (predicted_n - 1) / predicted_ms and not its own `predicted_per_second`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from eaglelocal.core.events import Finished, Piece
from eaglelocal.core.request import ChatRequest
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EagleLocalError, EngineError, RequestError

NO_ID = -1  # the token of a piece whose id the server does not tell
DONE = "[DONE]"
MAX_QUOTED_CHARS = 200


def chat_body(request: ChatRequest, model: str, *, extensions: bool) -> tuple[str, dict[str, object]]:
    """(path, body). Token ids go to /completions, which takes them; conversations to /chat/completions.

    `extensions`: also what llama.cpp understands beyond OpenAI: no reuse of cached prompts, top_k, min_p.
    """
    params = request.params
    body: dict[str, object] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": params.temperature,
        "top_p": params.top_p,
    }
    body |= {name: value for name in ("max_tokens", "seed") if (value := getattr(params, name)) is not None}
    if extensions:
        body |= {"cache_prompt": False, "top_k": params.top_k, "min_p": params.min_p}
    if request.messages:
        return "/chat/completions", {
            **body,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
        }
    return "/completions", {**body, "prompt": list(request.tokens) if request.text is None else request.text}


def data_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of server-sent events, up to [DONE]; comments and other fields are skipped."""
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name == "data" and value.strip():
            if value.strip() == DONE:
                return
            yield value.strip()


@dataclass(slots=True)
class StreamedAnswer:
    """An answer in the making, from the chunks of a stream."""

    asked_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # of pieces
    finish_reason: str = ""
    usage: Mapping[str, object] = field(default_factory=dict)
    llama_timings: Mapping[str, object] = field(default_factory=dict)

    def take(self, data: str, now: float) -> tuple[Piece, ...]:
        """What one event brought. Raises EngineError for an error event and for what is no chunk."""
        chunk = _object(data)
        if "error" in chunk:
            raise EngineError(f"the server broke off: {message_of(chunk)}")
        self.usage = _mapping(chunk.get("usage")) or self.usage
        self.llama_timings = _mapping(chunk.get("timings")) or self.llama_timings
        choices = chunk.get("choices")
        text = self._text(_mapping(choices[0])) if isinstance(choices, list) and choices else ""
        if not text:
            return ()
        self.arrivals.append(now)
        return (Piece(NO_ID, text, False),)

    def _text(self, choice: Mapping[str, object]) -> str:
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        delta = _mapping(choice.get("delta"))
        said = (delta.get("reasoning_content"), delta.get("content"), choice.get("text"))
        return "".join(part for part in said if isinstance(part, str))

    @property
    def num_tokens(self) -> int:
        told = _number(self.llama_timings, "predicted_n") or _number(self.usage, "completion_tokens")
        return int(told or len(self.arrivals))

    def finished(self, request_id: str, reason: str = "") -> Finished:
        details = _mapping(self.usage.get("prompt_tokens_details"))
        cached = _number(self.llama_timings, "cache_n") or _number(details, "cached_tokens")
        return Finished(
            request_id,
            reason or self.finish_reason or "stop",
            text="",
            prompt_tokens=int(_number(self.usage, "prompt_tokens") or _number(self.llama_timings, "prompt_n") + cached),
            completion_tokens=self.num_tokens,
            timings=self._timings(),
            speculation=self._speculation(),
        )

    def _timings(self) -> Timings:
        if not self.arrivals:
            return Timings()
        decode_s = _number(self.llama_timings, "predicted_ms") / 1000 or self.arrivals[-1] - self.arrivals[0]
        return Timings(
            ttft_s=self.arrivals[0] - self.asked_at,
            decode_s=decode_s,
            decode_tok_s=(self.num_tokens - 1) / decode_s if decode_s > 0 else 0.0,
        )

    def _speculation(self) -> SpeculationStats:
        """llama.cpp does not tell how many verifications there were: every step counts as one with a draft."""
        drafted, accepted = (int(_number(self.llama_timings, name)) for name in ("draft_n", "draft_n_accepted"))
        if not drafted:
            return SpeculationStats(reason="not told by the server")
        return SpeculationStats(
            state="on",
            drafts=max(self.num_tokens - 1 - accepted, 1),
            draft_tokens=drafted,
            accepted_tokens=accepted,
            emitted_tokens=self.num_tokens - 1,
        )


def refusal(url: str, status: int, body: bytes) -> EagleLocalError:
    """What a reply that is not 200 means to a person."""
    try:
        said = message_of(_object(body.decode("utf-8", "replace")))
    except EngineError:
        said = body.decode("utf-8", "replace").strip()[:MAX_QUOTED_CHARS]
    what = f"{url} answers {status}" + (f": {said}" if said else "")
    if status in (401, 403):
        return RequestError(what, hint="this server wants a key")
    return RequestError(what) if 400 <= status < 500 else EngineError(what)


def message_of(chunk: Mapping[str, object]) -> str:
    """The text of an error: OpenAI's object, or whatever stands there."""
    error = chunk.get("error")
    return str(_mapping(error).get("message") or error or "")[:MAX_QUOTED_CHARS]


def _object(data: str) -> Mapping[str, object]:
    try:
        chunk = json.loads(data)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise EngineError(f"the server sends what is no JSON object: {data[:MAX_QUOTED_CHARS]}")
    return chunk


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _number(values: Mapping[str, object], name: str) -> float:
    """0 where there is none."""
    value = values.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
