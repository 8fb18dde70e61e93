"""Build requests for an OpenAI-compatible server and parse its streamed replies: plain data, no sockets.

tok/s counts from the first to the last token, as everywhere here. llama.cpp's `predicted_ms` begins at the first
token too, so the rate is (predicted_n - 1) / predicted_ms and not its own `predicted_per_second`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from eaglelocal.core.draft import NOT_REPORTED
from eaglelocal.core.events import Finished, TextPiece
from eaglelocal.core.image import media_type
from eaglelocal.core.json_text import read_object
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import ChatRequest, DraftPolicy, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.terminal_text import SurrogateJoiner, join_surrogates
from eaglelocal.core.thinking import CLOSING_WORDS, OFF_EFFORT, Thinking
from eaglelocal.core.tools import CallPart, ToolUse
from eaglelocal.errors import EagleLocalError, EngineAwayError, EngineError, RequestError

NO_ID = -1  # the token of a piece whose id the server does not send
DONE = "[DONE]"
NEEDS_KEY, BUSY, UNAVAILABLE = (401, 403), (408, 429), 503
CODES = {401: "invalid_api_key", 403: "permission_denied", 404: "not_found"}  # when the server sends no code of its own
TYPES = {"exceed_context_size_error": "context_length_exceeded"}  # llama-server's error type -> OpenAI's code
MAX_QUOTED_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The fields beyond OpenAI's that a server understands.

    reuses_prompts  reuse cached prompts, and report how much of a prompt has been read
    """

    extensions: bool = True  # llama.cpp's: more samplers, and `cache_prompt`
    is_ours: bool = False  # it also understands `spec`, `lora` and `tell_drafted`
    reuses_prompts: bool = False


DEFAULT_PARAMS = SamplingParams()


def build_request(request: ChatRequest, model: str, dialect: Dialect) -> tuple[str, dict[str, object]]:
    """Return (path, body). Token ids go to /completions, conversations to /chat/completions."""
    params = request.params
    body: dict[str, object] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    body |= _chosen_params(params, "temperature", "top_p")
    body |= _changed_params(params, "max_tokens", "seed", "stop", "frequency_penalty", "presence_penalty")
    if params.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    body |= _limit_thinking(params.thinking, dialect)
    if dialect.extensions:
        body |= _chosen_params(params, "top_k", "min_p", "repeat_penalty", "repeat_last_n")
        body |= _changed_params(params, "typical_p", "ignore_eos")
        body |= {"return_progress": True} if dialect.reuses_prompts else {"cache_prompt": False}
    if dialect.is_ours and request.messages:
        body["tell_drafted"] = True
    if dialect.is_ours and request.spec is not None:
        spec = request.spec
        body["spec"] = spec.num_draft_tokens if spec.drafting is DraftPolicy.FIXED else spec.drafting.value
    if dialect.is_ours and request.adapters is not None:
        body["lora"] = [{"id": number, "scale": scale} for number, scale in request.adapters]
    if request.messages:
        return "/chat/completions", {
            **body,
            **_build_tools(request),
            "messages": [_build_message(message, dialect) for message in request.messages],
        }
    return "/completions", {**body, "prompt": list(request.tokens) if request.text is None else request.text}


def _build_tools(request: ChatRequest) -> dict[str, object]:
    """Return the tools of a request, and whether they may be called: all or none (no caller of ours names one)."""
    tools = [
        {"name": tool.name, "description": tool.description, "parameters": read_object(tool.parameters)}
        for tool in request.tools
    ]
    choice = {} if request.tool_choice.use is ToolUse.AUTO else {"tool_choice": request.tool_choice.use.value}
    return {"tools": [{"type": "function", "function": tool} for tool in tools], **choice} if tools else {}


def _build_message(message: Message, dialect: Dialect) -> dict[str, object]:
    fields: dict[str, object] = {"role": message.role, "content": build_content(message)}
    if message.reasoning and dialect.extensions:
        fields["reasoning_content"] = message.reasoning
    if message.tool_calls:
        functions = [(call.id, {"name": call.name, "arguments": call.arguments}) for call in message.tool_calls]
        fields["tool_calls"] = [{"id": name, "type": "function", "function": called} for name, called in functions]
    if message.tool_call_id:
        fields["tool_call_id"] = message.tool_call_id
    return fields


def _limit_thinking(thinking: Thinking, dialect: Dialect) -> dict[str, object]:
    effort = OFF_EFFORT if thinking.is_off else thinking.effort
    body: dict[str, object] = {"reasoning_effort": effort} if effort else {}
    if dialect.extensions and thinking.budget is not None:
        body["thinking_budget_tokens"] = thinking.budget
        body |= {} if thinking.message == CLOSING_WORDS else {"reasoning_budget_message": thinking.message}
    return body


def build_content(message: Message) -> str | list[dict[str, object]]:
    """Return the text, or OpenAI's content parts: images as data URLs, each at its place in the text."""
    if not message.images:
        return message.content
    parts: list[dict[str, object]] = []
    ends = [*(image.at for image in message.images[1:]), len(message.content)]
    if before := message.content[: message.images[0].at]:
        parts.append({"type": "text", "text": before})
    for image, end in zip(message.images, ends, strict=True):
        url = f"data:{media_type(image.data)};base64,{base64.b64encode(image.data).decode()}"
        parts.append({"type": "image_url", "image_url": {"url": url}})
        if after := message.content[image.at : end]:
            parts.append({"type": "text", "text": after})
    return parts


def _chosen_params(params: SamplingParams, *names: str) -> dict[str, object]:
    """Return the named parameters except those left open: the server, which knows its model, chooses those."""
    return {name: getattr(params, name) for name in names if name not in params.left_open}


def _changed_params(params: SamplingParams, *names: str) -> dict[str, object]:
    return {name: value for name in names if (value := getattr(params, name)) != getattr(DEFAULT_PARAMS, name)}


def data_lines(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield the data of server-sent events up to [DONE]; comments and other fields are skipped."""
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name == "data" and value.strip():
            if value.strip() == DONE:
                return
            yield value.strip()


@dataclass(slots=True)
class StreamedAnswer:
    """Assembles an answer from the chunks of a stream.

    Reasoning that a server sends separately is put in front of the text, unless `is_split` keeps it separate.
    """

    is_split: bool = False
    requested_at: float = 0.0
    arrivals: list[float] = field(default_factory=list)  # arrival time of each piece
    finish_reason: str = ""
    usage: Mapping[str, object] = field(default_factory=dict)
    llama_timings: Mapping[str, object] = field(default_factory=dict)
    speculation: Mapping[str, object] = field(default_factory=dict)  # sent by a server of ours
    progress: Mapping[str, object] = field(default_factory=dict)  # llama.cpp's `prompt_progress` in the last event
    num_flagged_tokens: int = 0  # tokens that a server of ours flagged as drafted or not
    is_thinking: bool = False  # the last text was reasoning
    num_calls: int = 0  # of tools, begun so far
    _reasoning: SurrogateJoiner = field(default_factory=SurrogateJoiner)
    _text: SurrogateJoiner = field(default_factory=SurrogateJoiner)

    def take(self, data: str, now: float) -> tuple[TextPiece, ...]:
        """Return the pieces of one event. Raises EngineError for an error event and for data that is no JSON object."""
        chunk = _object(data)
        if chunk.get("error"):
            raise EngineError(f"the server failed: {read_error_message(chunk)}")
        self.usage = mapping(chunk.get("usage")) or self.usage
        self.llama_timings = mapping(chunk.get("timings")) or self.llama_timings
        self.speculation = mapping(chunk.get("speculation")) or self.speculation
        self.progress = mapping(chunk.get("prompt_progress"))
        choice = next(iter(objects(chunk.get("choices"))), {})
        self.finish_reason = str(choice.get("finish_reason") or self.finish_reason)
        flags = chunk.get("drafted")
        drafted = [flag is True for flag in flags] if isinstance(flags, list) else []
        self.num_flagged_tokens += len(drafted)
        calls = self._read_calls(mapping(choice.get("delta")))
        reasoning, text = _read_delta(choice)  # surrogate halves may come in two chunks; text releases held reasoning
        reasoning = self._reasoning.feed(reasoning) + (self._reasoning.finish() if text else "")
        text = self._text.feed(text)
        if not (reasoning or text or calls):
            return ()
        self.arrivals.append(now)
        more = (TextPiece(NO_ID, "", flag) for flag in drafted[1:])  # a piece for each token that the event brings
        piece = self._piece(reasoning, text, drafted=bool(drafted) and all(drafted))
        return (piece._replace(calls=calls), *more)

    def _read_calls(self, delta: Mapping[str, object]) -> tuple[CallPart, ...]:
        """Return the parts of calls in a delta. Some servers send no index, and a whole call at once."""
        parts = list[CallPart]()
        for given in objects(delta.get("tool_calls")):
            function = mapping(given.get("function"))
            name, arguments = (join_surrogates(text(function, key)) for key in ("name", "arguments"))
            index = count(given, "index") if "index" in given else self.num_calls - (not name)
            is_new = not 0 <= index < self.num_calls
            if is_new and not name:
                continue
            index = self.num_calls if is_new else index
            self.num_calls += is_new
            call_id = join_surrogates(text(given, "id")) or f"call_{index}"
            parts.append(CallPart(index, arguments, call_id, name) if is_new else CallPart(index, arguments))
        return tuple(parts)

    def flush(self, now: float) -> tuple[TextPiece, ...]:
        """Return text held back for a second surrogate half when the stream ended, for whatever reason it ended."""
        reasoning, text = self._reasoning.finish(), self._text.finish()
        if not (reasoning or text):
            return ()
        self.arrivals.append(now)
        return (self._piece(reasoning, text, drafted=False),)

    def _piece(self, reasoning: str, text: str, *, drafted: bool) -> TextPiece:
        if self.is_split:
            return TextPiece(NO_ID, text, drafted, reasoning=reasoning)
        ends_thinking = bool(text) and (self.is_thinking or bool(reasoning))
        self.is_thinking = not text
        return TextPiece(NO_ID, reasoning + ("\n\n" if ends_thinking else "") + text, drafted)

    @property
    def num_tokens(self) -> int:
        """The tokens of the answer; the pieces, if the server counts none."""
        return self._num_counted or len(self.arrivals)

    @property
    def _num_counted(self) -> int:
        reported = amount(self.llama_timings, "predicted_n") or amount(self.usage, "completion_tokens")
        return int(reported or self.num_flagged_tokens)

    def make_finished(self, request_id: str, reason: str = "") -> Finished:
        details = mapping(self.usage.get("prompt_tokens_details"))
        spent = mapping(self.usage.get("completion_tokens_details"))
        cached = amount(self.llama_timings, "cache_n") or amount(details, "cached_tokens")
        return Finished(
            request_id,
            join_surrogates(reason or self.finish_reason or "stop"),
            text="",
            prompt_tokens=int(amount(self.usage, "prompt_tokens") or amount(self.llama_timings, "prompt_n") + cached),
            completion_tokens=self.num_tokens,
            reasoning_tokens=count(spent, "reasoning_tokens"),
            timings=self._timings(),
            speculation=self._speculation(),
        )

    def _timings(self) -> Timings:
        if not self.arrivals:
            return Timings()
        reported_s = amount(self.llama_timings, "predicted_ms") / 1000
        decode_s = reported_s or self.arrivals[-1] - self.arrivals[0]
        num_first = 1.0 if reported_s else self.num_tokens / len(self.arrivals)  # tokens in the first piece
        return Timings(
            ttft_s=self.arrivals[0] - self.requested_at,
            prefill_s=amount(self.llama_timings, "prompt_ms") / 1000,
            decode_s=decode_s,
            draft_s=amount(self.llama_timings, "draft_ms") / 1000,
            verify_s=amount(self.llama_timings, "verify_ms") / 1000,
            host_s=amount(self.llama_timings, "host_ms") / 1000,
            decode_tok_s=(self.num_tokens - num_first) / decode_s if decode_s > 0 and self._num_counted else 0.0,
        )

    def _speculation(self) -> SpeculationStats:
        """Return the figures. llama.cpp does not report the number of verifications: assume a draft at every step."""
        if self.speculation:
            return read_speculation(self.speculation)
        drafted, accepted = (count(self.llama_timings, name) for name in ("draft_n", "draft_n_accepted"))
        if not drafted:
            return SpeculationStats(reason=NOT_REPORTED)
        return SpeculationStats(
            state="on",
            drafts=max(self.num_tokens - 1 - accepted, 1),
            draft_tokens=drafted,
            accepted_tokens=accepted,
            emitted_tokens=self.num_tokens - 1,
        )


def _read_delta(choice: Mapping[str, object]) -> tuple[str, str]:
    delta = mapping(choice.get("delta"))
    reasoning = delta.get("reasoning_content") or delta.get("reasoning")  # llama.cpp and DeepSeek; vLLM
    texts = (delta.get("content"), choice.get("text"))
    return reasoning if isinstance(reasoning, str) else "", "".join(part for part in texts if isinstance(part, str))


def read_speculation(figures: Mapping[str, object]) -> SpeculationStats:
    """Return the figures from the JSON object that `chat --json` prints and servers of ours send."""
    drafts, positions = count(figures, "drafts"), figures.get("accepted_per_position")
    estimate = amount(figures, "speedup_estimate")
    return SpeculationStats(
        state=join_surrogates(str(figures.get("state") or "off")),
        reason=join_surrogates(str(figures.get("reason") or "")),
        drafts=drafts,
        draft_tokens=count(figures, "draft_tokens"),
        accepted_tokens=count(figures, "accepted_tokens"),
        accepted_per_position=tuple(n for n in positions if isinstance(n, int)) if isinstance(positions, list) else (),
        speedup_estimate=(estimate or None) if drafts else None,
        emitted_tokens=round(amount(figures, "acceptance_length") * drafts),
    )


def refusal(url: str, status: int, body: bytes) -> EagleLocalError:
    """Return the error for a reply whose status is not 200. RequestError: repeating the same request is useless."""
    reply: Mapping[str, object] = {}
    try:
        reply = _object(body.decode("utf-8", "replace"))
        message = read_error_message(reply)
    except EngineError:
        message = body.decode("utf-8", "replace").strip()[:MAX_QUOTED_CHARS]
    what = f"{url} answers {status}" + (f": {message}" if message else "")
    if status in BUSY:
        return EngineError(what, hint="the server is busy: try again in a moment")
    if not 400 <= status < 500:
        return EngineAwayError(what) if status == UNAVAILABLE else EngineError(what)
    error = mapping(reply.get("error"))
    hint = "this server needs a key: set EAGLELOCAL_API_KEY" if status in NEEDS_KEY else ""
    code = text(error, "code") or TYPES.get(str(error.get("type")), CODES.get(status, ""))
    return RequestError(what, hint=hint, parameter=text(error, "param"), code=code)


def read_error_message(chunk: Mapping[str, object]) -> str:
    """Return the text of an error: `error.message` of OpenAI's object, or whatever `error` holds."""
    error = chunk.get("error")
    return join_surrogates(str(mapping(error).get("message") or error or ""))[:MAX_QUOTED_CHARS]


def _object(data: str) -> Mapping[str, object]:
    try:
        return read_object(data)
    except ValueError:
        what = f"the server sent something other than a JSON object: {data[:MAX_QUOTED_CHARS]}"
        raise EngineError(what) from None


# ---- values in the JSON of a server: of the expected type, or unknown
MAX_NUMBER = 1e18  # JSON as Python reads it allows NaN, Infinity and integers of any size


def mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def objects(value: object) -> list[Mapping[str, object]]:
    """Return the objects in a list; empty if the value is no list, other items are skipped."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def text(values: Mapping[str, object], name: str) -> str:
    """Return a string; "" if the value is missing or none."""
    value = values.get(name)
    return value if isinstance(value, str) else ""


def to_number(value: object) -> float | None:
    """Return a value as float; None if it is no number, or too large."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MAX_NUMBER
    return float(value) if is_number else None  # type: ignore[arg-type]


def to_int(value: float | None) -> int | None:
    return None if value is None else int(value)


def number(values: Mapping[str, object], name: str) -> float | None:
    return to_number(values.get(name))


def whole(values: Mapping[str, object], name: str) -> int | None:
    return to_int(number(values, name))


def amount(values: Mapping[str, object], name: str) -> float:
    """Return a number; 0.0 if it is unknown."""
    return number(values, name) or 0.0


def count(values: Mapping[str, object], name: str) -> int:
    """Return a whole number; 0 if it is unknown."""
    return int(amount(values, name))


def numbers(values: Mapping[str, object], name: str) -> tuple[float, ...] | None:
    """Return a list of numbers; None if the value is anything else."""
    given = values.get(name)
    found = list(map(to_number, given)) if isinstance(given, list) else [None]
    return None if None in found else tuple(value or 0.0 for value in found)
