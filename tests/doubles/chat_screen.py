"""The chat screen over a scripted client, without a terminal: start it, type, read what it shows."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from doubles.scripted_client import Script, ScriptedClient, join_nothing, says, scripted_plan
from textual import _wait
from textual.pilot import Pilot

from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.chat_tools import ChatTools
from eaglelocal.conversation.conversation import Conversation
from eaglelocal.conversation.pictures import Pictures
from eaglelocal.conversation.session import ActiveModel, ModelLoader, Session
from eaglelocal.core.events import LoadProgress
from eaglelocal.core.plan import Plan
from eaglelocal.core.request import parse_spec
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.errors import ModelFileError
from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths
from eaglelocal.tui.chat.model_picker import NO_MODELS, ModelSource
from eaglelocal.tui.display_options import DisplayOptions

PATIENCE_S = 20.0


@dataclass
class ChatHarness:
    """The set-up of a test, and the objects that it can inspect afterwards."""

    folder: Path
    scripts: tuple[Script, ...] = (says("the first answer", 1), says("and another one"))
    size: tuple[int, int] = (80, 24)
    display_options: DisplayOptions = field(default_factory=DisplayOptions)
    saves: bool = False
    marks_drafted: bool = False
    n_ctx: int = 2048
    sees_images: bool = False
    attached: Pictures = ()
    is_held: bool = False  # loading waits until `gate` is set
    gate: threading.Event = field(default_factory=threading.Event)
    clients: list[ScriptedClient] = field(default_factory=list)
    choices: list[ModelChoice] = field(default_factory=list)
    is_broken: bool = False  # the first model cannot be loaded
    models: ModelSource = NO_MODELS
    conversation: Conversation = field(default_factory=Conversation)  # that the chat begins with
    tools: ChatTools = field(default_factory=ChatTools)
    stop_loops: bool = True

    def __post_init__(self) -> None:
        paths = ChatPaths(conversations=self.folder / "conversations", history=self.folder / "questions.jsonl")
        self.app = ChatApp(
            self._open,
            paths,
            self.display_options,
            marks_drafted=self.marks_drafted,
            models=self.models,
            saves=self.saves,
        )

    @property
    def client(self) -> ScriptedClient:
        return self.clients[-1]

    def _open(self, output: MessageOutput, choice: ModelChoice) -> Session:
        progress = output.progress()
        progress(LoadProgress(0.62, "loading the scripted model"))
        if self.is_held:
            assert self.gate.wait(PATIENCE_S)
        progress.finish()
        if self.is_broken and choice.target is None:
            raise ModelFileError("no file missing.gguf", hint="eaglelocal chat --target demo")
        loader = ModelLoader(self._plan, self._load, join_nothing)
        model = loader.load(loader.plan(choice))
        return Session(
            loader,
            model,
            SamplingParams(stop_loops=self.stop_loops),
            conversation=self.conversation,
            choice=choice,
            attached=self.attached,
            tools=self.tools,
        )

    def _plan(self, choice: ModelChoice) -> Plan:
        if choice.target in ("missing", "missing.gguf"):
            raise ModelFileError(f"no file {choice.target}", hint="eaglelocal chat --target demo")
        self.choices.append(choice)
        return scripted_plan(choice.target or "scripted model", spec=parse_spec(choice.spec or "auto"))

    def _load(self, plan: Plan) -> ActiveModel:
        self.clients.append(self._client(plan.target_label))
        return ActiveModel(self.client, plan, self.client.info)

    def _client(self, label: str) -> ScriptedClient:
        return ScriptedClient(self.scripts, label=label, n_ctx=self.n_ctx, sees_images=self.sees_images)


class ChatObserver:
    """A user who types and reads the screen."""

    def __init__(self, app: ChatApp, pilot: Pilot[int]) -> None:
        self.app, self.pilot = app, pilot

    @property
    def text(self) -> str:
        strips = self.app.screen._compositor.render_strips()
        return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, f"{what} did not come about:\n{self.text}"
            await self.pilot.pause(0.02)

    async def sees(self, *texts: str) -> None:
        for text in texts:
            await self.until(lambda text=text: text in self.text, repr(text))  # type: ignore[misc]

    async def no_longer_sees(self, text: str) -> None:
        await self.until(lambda: text not in self.text, f"the end of {text!r}")

    async def type(self, text: str) -> None:
        names = {" ": "space", "?": "question_mark", "/": "slash", "\n": "ctrl+j", ".": "full_stop", ":": "colon"}
        names |= {"-": "minus", "_": "underscore", ",": "comma"}
        with _quick_keys():
            await self.pilot.press(*(names.get(char, char) for char in text))
        await self.pilot.pause()

    async def ask(self, text: str) -> None:
        await self.type(text)
        await self.pilot.press("enter")

    async def ready(self) -> None:
        view = self.app.view
        await self.until(lambda: not self.app.controller.is_busy and view.model is not None, "a model that is ready")
        await self.until(lambda: bool(view.status.text), "a status")  # which has its width by then

    async def idle(self) -> None:
        await self.until(lambda: not self.app.controller.is_busy, "the end of all tasks")
        await self.pilot.pause()


@contextmanager
def _quick_keys() -> Iterator[None]:
    """Let Textual wait for 4 ms after a key, not for 20: typed texts were half of what these tests took."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_wait, "SLEEP_GRANULARITY", 0.004)
        yield


Scenario = Callable[[ChatObserver], Awaitable[None]]


def play(stage: ChatHarness, scenario: Scenario, *, waits: bool = True) -> int | None:
    """Run a scenario on the screen. Return the app's exit code, or None if the scenario did not leave it."""

    async def run() -> None:
        async with stage.app.run_test(size=stage.size, notifications=True) as pilot:
            spectator = ChatObserver(stage.app, pilot)
            if waits:
                await spectator.ready()
            await scenario(spectator)

    try:
        asyncio.run(run())
    finally:
        stage.gate.set()
        stage.app.controller.close()
    return stage.app.return_value
