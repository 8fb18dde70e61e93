"""While an engine idles, its process does what can wait, until a command comes."""

from __future__ import annotations

from io import BytesIO
from queue import SimpleQueue

import pytest
from doubles.scripted_engine import ScriptedEngine, plan

from eaglelocal.core.events import Shutdown
from eaglelocal.worker.channel import Channel
from eaglelocal.worker.process import EngineService


class DiligentEngine(ScriptedEngine):
    """An engine with work that can wait; a command arrives during one piece of it."""

    def begin(self, num_pieces: int, commands: SimpleQueue[object], command_after: int) -> None:
        self.num_left, self.num_done = num_pieces, 0
        self.commands, self.command_after = commands, command_after
        if command_after == 0:
            commands.put(Shutdown())

    def work_ahead(self) -> bool:
        if not self.num_left:
            self.commands.put(Shutdown())
            return False
        self.num_left, self.num_done = self.num_left - 1, self.num_done + 1
        if self.num_done == self.command_after:
            self.commands.put(Shutdown())
        return True


@pytest.mark.parametrize(("command_after", "num_done"), [(0, 0), (2, 2), (99, 5)])
def test_work_that_can_wait_is_done_until_a_command_comes(command_after: int, num_done: int) -> None:
    commands: SimpleQueue[object] = SimpleQueue()
    engine = DiligentEngine(plan(), lambda _: None)
    engine.begin(5, commands, command_after)
    assert EngineService(engine, commands, Channel(BytesIO(), BytesIO())).run() == 0
    assert engine.num_done == num_done
