"""What is asked of the engine: messages or raw text on the outside, token ids on the inside."""

from __future__ import annotations

from dataclasses import dataclass, field

from eaglelocal.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Message:
    role: str  # system, user, assistant, tool
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A question as a client sends it. Exactly one of messages, text, tokens is given.

    messages  rendered with the target's chat template
    text      tokenized as it stands, without a template
    tokens    used as they are (evaluation, benchmarks)
    """

    id: str
    messages: tuple[Message, ...] = ()
    text: str | None = None
    tokens: tuple[int, ...] = ()
    params: SamplingParams = field(default_factory=SamplingParams)
    max_draft: int | None = None  # None: as the policy decides; 0: do not draft; n: at most n


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request as the engine runs it."""

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams
    max_draft: int | None = None
