"""An engine that follows the directions in the last message, for tests of the server; no model, no llama.cpp.

A line of the message is a direction, `verb rest` (see `_DIRECTIONS`; any other line is said again). All of them
together make one answer, one direction for each step. After a line `then` come the directions for the answer to the
results of its calls. Events, totals and failures are the real ones.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import signal
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import (
    Begun,
    Embeddings,
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    Prompted,
    PromptProgress,
    Report,
    RequestEvent,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest, Spec
from eaglelocal.core.sampling import Sampled, TokenLogprob
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.core.tools import CallPart
from eaglelocal.errors import EngineError, ModelFileError, RequestError, ResourceError
from eaglelocal.worker.process import EngineLoop, Exchange

BUILDER = "doubles.directed_server_engine:build"
RECITED_CHARS, FLOOD_CHARS = 7, 50_000
PACE_S = 0.002  # of a step of an answer that never ends
STATS = SpeculationStats("on", "", 2, 8, 5, (2, 2, 1), 1.5, 7)
TIMINGS = Timings(ttft_s=0.1, prefill_s=0.08, decode_s=0.5, draft_s=0.1, verify_s=0.3, host_s=0.01, decode_tok_s=20.0)
CACHED_TOKENS = 3
MAX_DRAFT = 7
TEMPLATES = {  # by the label; the others have neither
    "one": "{{ tools }}<tool_call></tool_call><think></think>",
    "tools only": "{{ tools }}<tool_call></tool_call>",
    "thinker": "{{ messages }}<think></think>",
}


def plan(label: str = "actor", target: Path = Path("none")) -> Plan:
    """Return a plan with this label; the label `seer` has a projector."""
    projector = Path("eyes") if label == "seer" else None
    return Plan(target=target, target_label=label, projector=projector, n_ctx=4096, num_slots=4)


@dataclass(slots=True)
class _Scene:
    """One answer in the making: the directions that are left."""

    request: ChatRequest
    directions: Iterator[RequestEvent]
    num_tokens: int = 0
    num_reasoning: int = 0
    num_calls: int = 0
    reason: str = "stop"
    is_loop: bool = False

    @property
    def id(self) -> str:
        return self.request.id

    def tokens(self, text: str, **more: object) -> Tokens:
        self.num_tokens += 1
        self.num_reasoning += "reasoning" in more
        return Tokens(self.id, (TextPiece(self.num_tokens, text, drafted=False, **more),))  # type: ignore[arg-type]


def embedding(request: EmbedRequest) -> list[RequestEvent]:
    """Return the events of an embedding: the vector (length, 0.5) or, to rank, the score (length,) of each input.

    The input `refuse` is refused.
    """
    if "refuse" in request.inputs:
        return [Failed(request.id, RequestError("the script refuses this", parameter="input"))]
    lengths = [len(each) for each in request.inputs]
    rows = [(length, 0.5) if request.ranking is None else (length,) for length in lengths]
    vectors = array("f", [value for row in rows for value in row]).tobytes()
    total = sum(lengths)
    return [
        Started(request.id, total, 0),
        Embeddings(request.id, vectors, len(rows[0]), total),
        Finished(request.id, "stop", "", total, 0, Timings(), SpeculationStats()),
    ]


def counted(request_id: str, num_prompt: int) -> Finished:
    return Finished(request_id, "stop", "", num_prompt, 0, Timings(), SpeculationStats())


def prompted(request_id: str, script: str) -> Prompted:
    """Return the event that reports the prompt's tokens, one for each byte."""
    raw = script.encode()
    return Prompted(request_id, tuple(raw), tuple(bytes([byte]) for byte in raw))


class DirectedEngine:
    """An engine that takes all requests at once and follows one direction of each per step."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan, self._report = plan, report
        self._running: dict[str, _Scene] = {}
        self._spec = str(plan.spec)
        self._held: list[RequestEvent] = []
        self._generated = self._prompted = 0

    @property
    def info(self) -> EngineInfo:
        plan = self._plan
        return EngineInfo(
            target=plan.target_label,
            draft="none",
            draft_reason="directed",
            n_ctx=plan.n_ctx,
            num_slots=plan.num_slots,
            n_vocab=256,
            chat_template=True,
            threads=1,
            model_bytes=0,
            load_s=0.0,
            library="none",
            max_draft=MAX_DRAFT,
            sees_images=plan.projector is not None,
            adapters=plan.adapters,
            template=TEMPLATES.get(plan.target_label, "{{ messages }}"),
            takes_tools=plan.target_label != "thinker",
        )

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._held)

    def work_ahead(self) -> bool:
        return False

    def submit(self, request: AnyRequest) -> None:
        self._report(Begun(request.id))
        if isinstance(request, EmbedRequest):
            self._held += embedding(request)
            return
        script = script_of(request)
        if request.tells_prompt:
            self._held.append(prompted(request.id, script))
        if request.is_counted:
            self._held += [Started(request.id, len(script), 0), counted(request.id, len(script))]
            return
        if script.startswith("refuse"):
            _, parameter, code = script.split()
            error = RequestError("the script refuses this", parameter=parameter, code=code)
            self._held.append(Failed(request.id, error))
            return
        scene = _Scene(request, iter(()))
        scene.directions = self._directions(scene, script)
        self._running[request.id] = scene
        self._prompted += len(script)
        unbound = ("contains",) if request.constraint is not None and "contains" in request.constraint.source else ()
        self._held.append(Started(request.id, len(script), CACHED_TOKENS, unbound))

    def cancel(self, request_id: str) -> None:
        scene = self._running.pop(request_id, None)
        if scene is not None:
            scene.reason = "cancelled"
            self._held.append(self._finished(scene))

    def step(self) -> list[RequestEvent]:
        events, self._held = self._held, []
        for scene in tuple(self._running.values()):
            event = next(scene.directions, None)
            if event is None:
                del self._running[scene.id]
                event = self._finished(scene)
            self._generated += isinstance(event, Tokens)
            events.append(event)
        return events

    def set_adapters(self, mix: AdapterMix) -> None:
        self.adapters = mix

    def set_spec(self, spec: Spec) -> None:
        self._spec = str(spec)

    def prepare_head(self, path: Path, version: int) -> Exchange:
        raise ModelFileError(f"{path} is no head")

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            running=len(self._running),
            waiting=0,
            steps=1,
            prompt_tokens=self._prompted,
            generated_tokens=self._generated,
            speculation=STATS,
            host_s=0.25,
            native_s=0.75,
            peak_rss_bytes=1,
            spec=self._spec,
            draft_s=0.5,
            verify_s=1.5,
            cached_tokens=100,
            cache_cells=400,
            swapped_bytes=3 * 2**20,
            stored_bytes=5 * 2**20,
            store_problem="No space left on device",
            engine_pid=os.getpid(),
        )

    def close(self) -> None:
        pass

    def _directions(self, scene: _Scene, script: str) -> Iterator[RequestEvent]:
        for line in script.split("\n"):
            verb, _, rest = line.partition(" ")
            yield from _DIRECTIONS[verb](scene, rest) if verb in _DIRECTIONS else _say(scene, line)

    def _finished(self, scene: _Scene) -> Finished:
        script = script_of(scene.request)
        return Finished(
            scene.id,
            scene.reason,
            "",
            len(script),
            scene.num_tokens,
            TIMINGS,
            STATS,
            reasoning_tokens=scene.num_reasoning,
            is_loop=scene.is_loop,
        )


def script_of(request: ChatRequest) -> str:
    """Return the last user message, or its part for the results that follow it, or the text of the request."""
    if request.text is not None:
        return request.text
    if request.mixed is not None or request.infill is not None:
        parts = request.mixed.parts if request.mixed is not None else request.infill.before  # type: ignore[union-attr]
        return "".join(part if isinstance(part, str) else chr(part % 0x80) for part in parts)
    if request.tokens:
        return bytes(token % 256 for token in request.tokens).decode("utf-8", "replace")
    said = [number for number, message in enumerate(request.messages) if message.role == "user"]
    if not said:
        return "say nothing"
    parts = request.messages[said[-1]].content.split("\nthen\n")
    num_rounds = sum(bool(message.tool_calls) for message in request.messages[said[-1] :])
    return parts[min(num_rounds, len(parts) - 1)]


def shown(request: ChatRequest) -> str:
    """Return the request as the engine sees it, as JSON."""
    return json.dumps(dataclasses.asdict(request), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return value.hex()
    return value.value if isinstance(value, enum.Enum) else str(value)


# ---- directions
def _say(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    for i, word in enumerate(rest.split(" ")):
        yield scene.tokens(f" {word}" if i else word)


def _recite(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """A text of several lines, written as JSON, in pieces."""
    text = json.loads(rest)
    for at in range(0, len(text), RECITED_CHARS):
        yield scene.tokens(text[at : at + RECITED_CHARS])


def _flood(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """So many characters in one line."""
    for _ in range(int(rest) // FLOOD_CHARS):
        yield scene.tokens("x" * FLOOD_CHARS)


def _read(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """So many tokens of the prompt are read."""
    yield PromptProgress(scene.id, int(rest))


def _think(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    for word in rest.split(" "):
        yield scene.tokens("", reasoning=f"{word} ")


def _call(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    name, _, arguments = rest.partition(" ")
    index, scene.num_calls, scene.reason = scene.num_calls, scene.num_calls + 1, "tool_calls"
    yield scene.tokens("", calls=(CallPart(index, arguments or "{}", f"call_{index}", name),))


def _begin(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """A call whose arguments come from `argue`."""
    index, scene.num_calls, scene.reason = scene.num_calls, scene.num_calls + 1, "tool_calls"
    yield scene.tokens("", calls=(CallPart(index, "", f"call_{index}", rest),))


def _argue(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    yield scene.tokens("", calls=(CallPart(scene.num_calls - 1, rest),))


def _nothing(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """As many tokens that have nothing to tell, each after a while."""
    count, seconds = rest.split(" ")
    for _ in range(int(count)):
        time.sleep(float(seconds))
        yield scene.tokens("")


def _weigh(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """Words with log-probabilities, and half a character, which gives no text."""
    for piece in [f"{word} ".encode() for word in rest.split(" ")] + [b"\xc3"]:
        top = (TokenLogprob(1, -0.25, piece), TokenLogprob(2, -2.5, b"other"))
        sampled = Sampled(1, -0.25, piece, top)
        yield scene.tokens(piece.decode("utf-8", "ignore"), sampled=sampled)


def _show(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    yield scene.tokens(shown(scene.request))


def _length(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    scene.reason = "length"
    yield from ()


def _loop(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    """An answer that repeats itself, and is ended for that."""
    scene.is_loop = True
    yield scene.tokens(rest)


def _forever(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    while True:
        time.sleep(PACE_S)
        yield scene.tokens("x")


def _sleep(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    time.sleep(float(rest))
    yield from ()


def _hang(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    time.sleep(600)
    yield from ()


def _crash(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    os.kill(os.getpid(), signal.SIGSEGV)
    yield from ()


def _fail(scene: _Scene, rest: str) -> Iterator[RequestEvent]:
    error: Exception = {"full": ResourceError("the cache has no room"), "broken": EngineError("it broke")}[rest]
    raise error
    yield


_DIRECTIONS: dict[str, Callable[[_Scene, str], Iterator[RequestEvent]]] = {
    "say": _say,
    "recite": _recite,
    "flood": _flood,
    "read": _read,
    "think": _think,
    "call": _call,
    "begin": _begin,
    "argue": _argue,
    "nothing": _nothing,
    "weigh": _weigh,
    "show": _show,
    "length": _length,
    "loop": _loop,
    "forever": _forever,
    "sleep": _sleep,
    "hang": _hang,
    "crash": _crash,
    "fail": _fail,
}


def build(plan: Plan, report: Report) -> EngineLoop:
    """Load as the plan's label says; a target that exists makes `hesitant` wait until it is gone."""
    if plan.target_label == "broken":
        raise ModelFileError("no-such.gguf is not a GGUF file", hint="eaglelocal pull demo")
    while plan.target_label == "hesitant" and plan.target.exists():
        time.sleep(0.005)
    return DirectedEngine(plan, report)
