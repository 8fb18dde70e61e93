"""A chat client without a model: answers come from a script, with the events of a real engine.

Counts a word as a token and refuses what does not fit its context, so that the callers' bookkeeping is
really needed. Fails loudly if it is used after close or if two answers overlap.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from eaglelocal.conversation.session import ActiveModel
from eaglelocal.core.adapters import AdapterFile, AdapterMix
from eaglelocal.core.events import (
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    RequestEvent,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AUTO_SPEC, OFF, ChatRequest, Spec
from eaglelocal.core.stats import SpeculationCounter, SpeculationStats, Timings
from eaglelocal.core.tools import CallPart, ToolCall
from eaglelocal.errors import EagleLocalError, EngineError, RequestError

PATIENCE_S = 20.0  # a script that hangs ends here at the latest


@dataclass(frozen=True, slots=True)
class Script:
    """An answer: words, of which `drafted` came from a draft; then an end, a failure, or a wait for cancel."""

    words: tuple[str, ...] = ()
    drafted: frozenset[int] = frozenset()  # indices of words
    fails: EagleLocalError | None = None
    hangs: bool = False  # after the words, until somebody cancels
    deaf: bool = False  # cancel does nothing
    delay_s: float = 0.0  # before each word
    thought: str = ""  # emitted before the words, and separately if requested
    calls: tuple[ToolCall, ...] = ()  # of tools, after the words


def says(text: str, *drafted: int) -> Script:
    """Return a script of the words, each with the blank before it, as tokens have it."""
    first, *rest = text.split(" ")
    return Script((first, *(f" {word}" for word in rest)), frozenset(drafted))


def calls(name: str, arguments: str = "{}", *more: tuple[str, str], text: str = "") -> Script:
    """Return a script that ends with calls of tools: one, and more by name and arguments."""
    named = [(name, arguments), *more]
    made = tuple(ToolCall(f"call_{number}", *each) for number, each in enumerate(named))
    return Script((text,) if text else (), calls=made)


@dataclass(slots=True)
class ScriptedAnswer:
    request: ChatRequest
    script: Script
    n_ctx: int
    on_end: Callable[[], None]
    stopped: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        if not self.script.deaf:
            self.stopped.set()

    def __iter__(self) -> Iterator[RequestEvent]:
        try:
            yield from self._events()
        finally:
            self.on_end()

    def _events(self) -> Iterator[RequestEvent]:
        name = self.request.id
        prompt_tokens = sum(len(message.content.split()) for message in self.request.messages)
        if prompt_tokens + (self.request.params.max_tokens or 1) > self.n_ctx:
            yield Failed(name, RequestError(f"the prompt has {prompt_tokens} tokens, the context {self.n_ctx}"))
            return
        yield Started(name, prompt_tokens, 0)
        if self.script.thought:
            words = says(self.script.thought).words
            apart = (TextPiece(0, "", False, reasoning=word) for word in words)
            yield Tokens(name, tuple(apart if self.request.is_split else (TextPiece(0, word, False) for word in words)))
        said = 0
        for index, word in enumerate(self.script.words):
            if self.stopped.wait(self.script.delay_s):
                break
            said += 1
            yield Tokens(name, (TextPiece(index, word, index in self.script.drafted),))
        for index, call in enumerate(self.script.calls):
            yield Tokens(name, (TextPiece(index, "", False, calls=(CallPart(index, "", call.id, call.name),)),))
            yield Tokens(name, (TextPiece(index, "", False, calls=(CallPart(index, call.arguments),)),))
        if self.script.fails is not None:
            yield Failed(name, self.script.fails)
            return
        if self.script.hangs and not self.stopped.wait(PATIENCE_S):
            raise AssertionError("nobody cancelled a script that hangs")
        yield self._finished(prompt_tokens, said)

    def _finished(self, prompt_tokens: int, said: int) -> Finished:
        return Finished(
            request_id=self.request.id,
            reason="cancelled" if self.stopped.is_set() else "tool_calls" if self.script.calls else "stop",
            text="",
            prompt_tokens=prompt_tokens,
            completion_tokens=said,
            timings=Timings(ttft_s=0.21, decode_s=0.5, draft_s=0.1, verify_s=0.3, host_s=0.01, decode_tok_s=41.2),
            speculation=self._speculation(said),
        )

    def _speculation(self, said: int) -> SpeculationStats:
        if self.request.spec == OFF:
            return SpeculationStats(state="off", reason="switched off")
        counter = SpeculationCounter()
        accepted = len([index for index in self.script.drafted if index < said])
        counter.add(max(2, accepted), accepted, accepted + 1)
        return counter.stats(state="on", reason="", speedup_estimate=1.64)


@dataclass(slots=True)
class ScriptedClient:
    """A client that answers with its scripts in turn; the last one repeats."""

    scripts: tuple[Script, ...]
    label: str = "scripted model"
    n_ctx: int = 2048
    sees_images: bool = False
    adapters: tuple[AdapterFile, ...] = ()
    requests: list[ChatRequest] = field(default_factory=list)
    restarts: int = 0
    looked_at: list[int] = field(default_factory=list)  # questions so far, at each snapshot
    state: str = "ready"
    trouble: str = ""
    num_closed: int = 0
    busy: bool = False
    max_draft: int = 0

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            target=self.label,
            draft="scripted head",
            draft_reason="no draft is known",
            n_ctx=self.n_ctx,
            num_slots=1,
            n_vocab=100,
            chat_template=True,
            threads=1,
            model_bytes=1000,
            load_s=0.1,
            library="no llama.cpp",
            max_draft=self.max_draft,
            sees_images=self.sees_images,
            adapters=self.adapters,
        )

    def stream(self, request: ChatRequest) -> ScriptedAnswer:
        if self.num_closed:
            raise AssertionError("a closed client was asked")
        if self.busy:
            raise EngineError("two answers at once")
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(request)
        self.busy = True
        return ScriptedAnswer(request, script, self.n_ctx, self._ended)

    def _ended(self) -> None:
        self.busy = False

    def set_adapters(self, mix: AdapterMix) -> None:
        self.adapters = mix

    def set_spec(self, spec: Spec) -> None:
        self.spec = spec

    def snapshot(self) -> EngineSnapshot:
        tokens = len(self.requests)
        self.looked_at.append(tokens)
        return EngineSnapshot(0, 0, 10, tokens, tokens, SpeculationStats(), 0.01, 0.99, 3 * 2**20)

    def close(self) -> None:
        self.num_closed += 1


def scripted_plan(label: str, *, spec: Spec = AUTO_SPEC) -> Plan:
    return Plan(
        target=Path("scripted.gguf"),
        target_label=label,
        draft_kind="none" if spec == OFF else "eagle3",
        draft_label="none" if spec == OFF else "scripted head",
        spec=spec,
    )


def join_nothing(url: str) -> ActiveModel:
    """Refuse, as a `ModelLoader.join` where no server runs."""
    raise EngineError(f"no server answers at {url}")
