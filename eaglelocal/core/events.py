"""Messages between the engine process and its client: events, and commands. A small union of frozen dataclasses.

All of them cross the pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from eaglelocal.core.adapters import AdapterFile, AdapterMix
from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.records import dataclass
from eaglelocal.core.request import AnyRequest, Spec
from eaglelocal.core.sampling import Sampled
from eaglelocal.core.stats import MeasuredCosts, SpeculationStats, Timings
from eaglelocal.core.thinking import Efforts
from eaglelocal.core.tools import CallPart
from eaglelocal.errors import EagleLocalError


# ---- from the engine
@dataclass(frozen=True, slots=True)
class EngineInfo:
    """The facts about a loaded engine, sent once when it is ready."""

    target: str  # label for people; says if the model is inflated
    draft: str  # label, or "none"
    draft_reason: str  # why there is none, or ""
    n_ctx: int
    num_slots: int
    n_vocab: int
    chat_template: bool
    threads: int
    model_bytes: int  # weights of target and draft, as llama.cpp reports them
    load_s: float
    library: str  # llama.cpp build
    cache_bytes: int = 0  # KV caches, as llama.cpp reports them
    compute_bytes: int = 0  # compute and output buffers, as llama.cpp reports them
    notes: tuple[str, ...] = ()  # for people, such as that a fallback chat template is used
    task: ModelTask = ModelTask.TEXT
    embedding_size: int = 0  # of an embedding model's vectors
    trained_ctx: int = 0  # positions that the model was trained for; 0: unknown
    max_draft: int = 0  # tokens that can be drafted at most
    sampling: Mapping[str, float] = field(default_factory=dict)  # recommended by its makers, see core/sampling.py
    architecture: str = ""  # of the target, as its file calls it
    template: str = ""  # chat template in its file
    bos_text: str = ""
    eos_text: str = ""
    weights: str = ""  # fingerprint of the target's file
    flash_attn: str = ""  # on, off or auto, as the target runs; "" if a server does not report it
    sees_images: bool = False  # messages may contain images
    adapters: tuple[AdapterFile, ...] = ()  # LoRA adapters, by id, with the scales of requests that set none
    efforts: Efforts = Efforts()  # of thinking
    takes_tools: bool = True  # the chat template describes tools; True if a server does not report it

    @property
    def total_bytes(self) -> int:
        """The memory of weights, caches and buffers together."""
        return self.model_bytes + self.cache_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True)
class LoadFailed:
    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Progress of loading, for a progress bar."""

    fraction: float  # 0..1
    what: str  # constant during one phase of the load
    detail: str = ""  # changes often: shown beside the bar, and in a log each minute


@dataclass(frozen=True, slots=True)
class Begun:
    """The engine begins to read a request, or to decode for it: if the process crashes, this request may be the cause.

    Sent before that work, not with the events of a step. A request that was read rests until it has a slot.
    """

    request_id: str
    is_reading: bool = False


@dataclass(frozen=True, slots=True)
class Rested:
    """A request has been read, and rests until it has a slot. Also sent if it was cancelled meanwhile."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Started:
    """The first event of an answer: its request has a slot."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int  # of the prompt, reused from the slot's cache or copied from another slot's
    unbound: tuple[str, ...] = ()  # keywords of the request's schemas that are not enforced


class PromptProgress(NamedTuple):
    """A step has read a part of a prompt, and not its end, which comes with the first tokens."""

    request_id: str
    num_read: int  # tokens of the prompt so far, reused ones too


@dataclass(frozen=True, slots=True)
class Prompted:
    """The model's input, for requests that ask to see it."""

    request_id: str
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]  # the text of each token, control tokens too
    rendered: str = ""  # the messages as rendered by the chat template

    @property
    def text(self) -> str:
        return self.rendered or b"".join(self.pieces).decode("utf-8", "replace")


class TextPiece(NamedTuple):
    """An emitted token. Text is empty while bytes or a possible stop string are held back.

    In a request with is_split it may bring all three, in this order: reasoning, text, parts of calls.
    """

    token: int
    text: str
    drafted: bool  # accepted from a draft
    sampled: Sampled | None = None  # set when logprobs were asked for
    reasoning: str = ""  # text of the model's reasoning
    calls: tuple[CallPart, ...] = ()


class Tokens(NamedTuple):
    """Tokens that one step emitted for a request."""

    request_id: str
    pieces: tuple[TextPiece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The result of an EmbedRequest, followed by Finished: vectors of length 1, or with size 1 a score per document."""

    request_id: str
    vectors: bytes  # float32 in this machine's order: [inputs, size]
    size: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an answer, with its statistics."""

    request_id: str
    reason: str  # stop, length, tool_calls, cancelled
    text: str  # rest of the text that was held back
    prompt_tokens: int
    completion_tokens: int
    timings: Timings
    speculation: SpeculationStats
    reasoning: str = ""  # rest of the reasoning that was held back
    reasoning_tokens: int = 0  # of completion_tokens; 0 if the answer is not split
    stop: str = ""  # the stop string that ended it
    is_loop: bool = False  # it repeated itself, and was ended
    tokens: tuple[int, ...] = ()  # prompt and answer, if the request asked for them
    unread_calls: tuple[str, ...] = ()  # forms of texts that only began like a call, each with the reason; no content


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that was not answered."""

    request_id: str
    error: EagleLocalError


@dataclass(frozen=True, slots=True)
class SpeculationChanged:
    """A change of a request's drafting state: it fell asleep because it did not pay off, woke because it does, or was
    switched. Directly follows Started if the answer begins without drafting.
    """

    request_id: str
    state: str  # on, asleep, off
    reason: str  # for people: "it would be slower (0.94x)"


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Totals since the engine started; gauges of this moment."""

    running: int = 0
    waiting: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    speculation: SpeculationStats = SpeculationStats()
    host_s: float = 0.0  # seconds of all steps outside llama.cpp
    native_s: float = 0.0  # seconds of all steps inside llama.cpp
    peak_rss_bytes: int = 0
    costs: MeasuredCosts = field(default_factory=MeasuredCosts)  # of decodes and draft steps, as measured so far
    draft_s: float = 0.0  # seconds of all steps spent drafting
    verify_s: float = 0.0  # seconds of all steps spent decoding and verifying
    cached_tokens: int = 0  # in the slots' caches, running or kept for reuse
    cache_cells: int = 0  # cells in all caches
    miscounted_slots: tuple[int, ...] = ()  # slots whose caches disagree with the scheduler's count: a bug
    engine_pid: int = 0  # of the process that counted these totals
    plain_s: float = 0.0  # estimate: seconds of all answers without drafts, first tokens excluded
    answer_s: float = 0.0  # seconds that these tokens took
    reused_tokens: int = 0  # prompt tokens found in a cache
    swapped_bytes: int = 0  # of evicted conversations kept in RAM
    stored_bytes: int = 0  # of conversations kept on disk
    store_problem: str = ""  # why none are written anymore
    spec: str = ""  # of requests that have none of their own; "": nothing can draft
    draft_version: int = 0  # the learned version of the head that drafts; 0: the base head, or none


NOTHING_YET = EngineSnapshot()


@dataclass(frozen=True, slots=True)
class HeadSwapped:
    """The outcome of the SwapHead with this number."""

    number: int
    error: EagleLocalError | None = None  # why the old head stays in use


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning of the process for the log of its parent, such as that a file is skipped."""

    text: str


WorkEvent = Begun | Rested
Report = Callable[[LoadProgress | WorkEvent], None]  # sends at once; from any thread
ReportWork = Callable[[WorkEvent], None]
RequestEvent = Prompted | Started | PromptProgress | Tokens | SpeculationChanged | Embeddings | Finished | Failed
EmitEvents = Callable[[list[RequestEvent]], None]


# ---- to the engine
@dataclass(frozen=True, slots=True)
class Submit:
    request: AnyRequest


@dataclass(frozen=True, slots=True)
class Cancel:
    request_id: str


@dataclass(frozen=True, slots=True)
class SetSpec:
    """A command that sets the spec of requests that have none of their own, running ones included."""

    spec: Spec


@dataclass(frozen=True, slots=True)
class SetAdapters:
    """A command that sets the LoRA adapters of later requests that choose none."""

    mix: AdapterMix


@dataclass(frozen=True, slots=True)
class SwapHead:
    """A command to draft with the head of another file from now on; HeadSwapped follows once it does.

    number   of this command
    version  of the head; 0: the base head
    """

    number: int
    path: Path
    version: int


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    pass


@dataclass(frozen=True, slots=True)
class Shutdown:
    """A command to free everything and end, without finishing any answer."""


Command = Submit | Cancel | SetSpec | SetAdapters | SwapHead | TakeSnapshot | Shutdown
