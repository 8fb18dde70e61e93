"""Exchanges heads of an engine between its steps, as the process around it does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eaglelocal.core.events import RequestEvent
from eaglelocal.engine.engine import Engine


@dataclass
class HeadExchanges:
    """The heads that wait for their exchange; call `step` instead of the engine's."""

    engine: Engine
    waiting: deque[Callable[[], Callable[[], None] | None]] = field(default_factory=deque)

    def begin(self, path: Path, version: int) -> None:
        self.waiting.append(self.engine.prepare_head(path, version))
        self.exchange_ready()

    def step(self) -> list[RequestEvent]:
        events = self.engine.step()
        self.exchange_ready()
        return events

    def exchange_ready(self) -> None:
        while self.waiting and (close_old := self.waiting[0]()) is not None:
            close_old()
            self.waiting.popleft()
