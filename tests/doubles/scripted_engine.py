"""An engine that does what its requests say, for tests of the process around it; no model, no llama.cpp.

A request's text is its script ("count 5", "forever", "kill", ...: see _ACTS), the plan's label decides how
loading goes ("steady", "refuse", ...: see build). Sends the real events, and keeps real totals.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from eaglelocal.core.adapters import AdapterMix
from eaglelocal.core.events import (
    Begun,
    EngineInfo,
    EngineSnapshot,
    Failed,
    Finished,
    LoadProgress,
    Report,
    RequestEvent,
    Started,
    TextPiece,
    Tokens,
)
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import ChatRequest, Spec
from eaglelocal.core.stats import SpeculationStats, Timings
from eaglelocal.errors import EngineError, ModelFileError, RequestError, ResourceError
from eaglelocal.worker.process import CloseHead, EngineLoop, Exchange

BUILDER = "doubles.scripted_engine:build"
PACE_S = 0.001  # of a step of a request that never ends


def plan(label: str = "steady", target: Path = Path("none")) -> Plan:
    return Plan(target=target, target_label=label)


def ask(script: str, request_id: str = "r") -> ChatRequest:
    return ChatRequest(id=request_id, text=script)


@dataclass(slots=True)
class _Running:
    request: ChatRequest
    num_steps: int
    done: int = 0

    @property
    def id(self) -> str:
        return self.request.id


class ScriptedEngine:
    """An engine that takes all requests at once, and advances each by one per step of the loop."""

    def __init__(self, plan: Plan, report: Report) -> None:
        self._plan, self._report = plan, report
        self._running: dict[str, _Running] = {}
        self._held: list[RequestEvent] = []
        self._queued: list[ChatRequest] = []  # until nothing runs
        self._steps = 0
        self._spec = str(plan.spec)
        self._generated = 0
        self._version = plan.draft_version

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            target=self._plan.target_label,
            draft="none",
            draft_reason="scripted",
            n_ctx=self._plan.n_ctx,
            num_slots=self._plan.num_slots,
            n_vocab=256,
            chat_template=False,
            threads=1,
            model_bytes=0,
            load_s=0.0,
            library="none",
        )

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._held or self._queued) or self._plan.target_label == "die when ready"

    def work_ahead(self) -> bool:
        return False

    def submit(self, request: ChatRequest) -> None:
        verb, _, rest = (request.text or "count 1").partition(" ")
        if verb == "queue" and self._running:
            self._queued.append(request)
            return
        if verb == "queue":
            request = replace(request, text=rest)
            verb, _, rest = rest.partition(" ")
        self._report(Begun(request.id))
        if verb == "reject":
            self._held.append(Failed(request.id, RequestError("rejected by the script")))
            return
        if verb == "trip":
            raise TypeError("the template tripped")
        num_steps = int(rest) if verb == "count" else sys.maxsize if verb in ("forever", "hang", "busy", "quiet") else 1
        self._running[request.id] = _Running(request, num_steps)
        self._held.append(Started(request.id, prompt_tokens=len(request.text or ""), cached_tokens=0))

    def cancel(self, request_id: str) -> None:
        running = self._running.pop(request_id, None)
        if running is not None:
            self._held.append(self._finished(running, "cancelled"))

    def step(self) -> list[RequestEvent]:
        if self._plan.target_label == "die when ready":
            os._exit(3)
        self._steps += 1
        if self._queued and not self._running:
            self.submit(self._queued.pop(0))
        events, self._held = self._held, []
        for running in tuple(self._running.values()):
            events.extend(self._advance(running))
        return events

    def set_adapters(self, mix: AdapterMix) -> None:
        self.adapters = mix

    def set_spec(self, spec: Spec) -> None:
        self._spec = str(spec)

    def prepare_head(self, path: Path, version: int) -> Exchange:
        """Open the head that the file name stands for: `damaged`, `bug`, `fatal`, `slow`, or any other one."""
        match path.name:
            case "damaged":
                raise ModelFileError("damaged is no head", hint="another one")
            case "bug":
                raise TypeError("the opener tripped")
            case "fatal":
                os._exit(3)
            case "slow":
                time.sleep(0.3)
        before = self._version

        def exchange() -> CloseHead:
            self._version = version
            return lambda: _note_closed(path, before)

        return exchange

    def snapshot(self) -> EngineSnapshot:
        return EngineSnapshot(
            running=len(self._running),
            waiting=0,
            steps=self._steps,
            prompt_tokens=0,
            generated_tokens=self._generated,
            speculation=SpeculationStats(),
            host_s=0.0,
            native_s=0.0,
            peak_rss_bytes=1,
            spec=self._spec,
            draft_version=self._version,
            engine_pid=os.getpid(),
        )

    def close(self) -> None:
        if self._plan.target_label == "leave a note":
            self._plan.target.write_text("closed in order")

    def _advance(self, running: _Running) -> list[RequestEvent]:
        verb, _, rest = (running.request.text or "count 1").partition(" ")
        text = _ACTS[verb](running, rest)
        running.done += 1
        self._generated += 1
        if verb == "quiet":
            return []
        events: list[RequestEvent] = [Tokens(running.id, (TextPiece(running.done, text, drafted=False),))]
        if running.done >= running.num_steps:
            del self._running[running.id]
            events.append(self._finished(running, "stop"))
        return events

    def _finished(self, running: _Running, reason: str) -> Finished:
        return Finished(running.id, reason, "", 0, running.done, Timings(), SpeculationStats())


def _note_closed(path: Path, version: int) -> None:
    """Append the version of a head that was closed to the file of its successor, if there is one."""
    if path.exists():
        with path.open("a") as file:
            file.write(f"{version}\n")


def _count(running: _Running, rest: str) -> str:
    return f"{running.done} "


def _forever(running: _Running, rest: str) -> str:
    time.sleep(PACE_S)
    return f"{running.done} "


def _echo(running: _Running, rest: str) -> str:
    return rest


def _pid(running: _Running, rest: str) -> str:
    return str(os.getpid())


def _kill(running: _Running, rest: str) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def _abort(running: _Running, rest: str) -> str:
    os.write(2, b"src/ggml.c:123: GGML_ASSERT(a == b) failed\n")
    os.abort()


def _segfault(running: _Running, rest: str) -> str:
    os.kill(os.getpid(), signal.SIGSEGV)
    return ""


def _exit(running: _Running, rest: str) -> str:
    os._exit(int(rest))


def _fatal(running: _Running, rest: str) -> str:
    raise EngineError("the script says that the engine is broken")


def _full(running: _Running, rest: str) -> str:
    raise ResourceError("the cache has no room for 7 rows")


def _bug(running: _Running, rest: str) -> str:
    return str(1 // 0)


def _busy(running: _Running, rest: str) -> str:
    if running.done:  # likewise; this keeps the interpreter's lock for longer than anybody waits
        re.match("(a+)+b", "a" * 64)
    return ""


def _hang(running: _Running, rest: str) -> str:
    if running.done:  # the first step gives a sign of life
        time.sleep(600)  # releases the interpreter, as a native call does
    return ""


def _spin(running: _Running, rest: str) -> str:
    while True:  # a deadlock that keeps a processor busy
        pass


def _stray(running: _Running, rest: str) -> str:
    print("stray print")
    sys.stdout.flush()
    os.write(1, b"stray native text\n")
    return sys.stdin.read()  # what reads stdin finds it empty


def _warn(running: _Running, rest: str) -> str:
    logging.getLogger("eaglelocal.core").warning("%s", rest)
    return ""


def _garbage(running: _Running, rest: str) -> str:
    for fd in range(3, 32):
        with contextlib.suppress(OSError):
            os.write(fd, b"llama_model_loader: this is no message\n")
    time.sleep(600)
    return ""


_ACTS: dict[str, Callable[[_Running, str], str]] = {
    "count": _count,
    "forever": _forever,
    "quiet": _forever,  # as the chunks of a long prompt: steps that say nothing
    "echo": _echo,
    "pid": _pid,
    "kill": _kill,
    "abort": _abort,
    "segfault": _segfault,
    "exit": _exit,
    "fatal": _fatal,
    "full": _full,
    "bug": _bug,
    "hang": _hang,
    "busy": _busy,
    "spin": _spin,
    "stray": _stray,
    "warn": _warn,
    "garbage": _garbage,
}


def build(plan: Plan, report: Report) -> EngineLoop:
    """Load as the plan's label says; with "by file" only as long as the plan's target exists."""
    report(LoadProgress(0.0, "script"))
    report(LoadProgress(1.0, "script"))
    _follow_label(plan.target_label, plan.target)
    return ScriptedEngine(plan, report)


def _follow_label(label: str, target: Path) -> None:
    if label == "refuse" or (label == "refuse by file" and target.exists()):
        raise ModelFileError("no-such.gguf is not a GGUF file", hint="eaglelocal pull demo")
    if label == "bug":
        raise KeyError("token_embd.weight")
    if label == "die":
        os.write(2, b"some chatter\nggml_backend_alloc failed: out of memory\nmore chatter\n")
        os.abort()
    if label == "hang" or (label == "hang by file" and target.exists()):
        time.sleep(600)
