"""A loader of scripted models for a ModelManager: may be held up, fail, or have memory for some models only."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from doubles.scripted_client import Script, ScriptedClient
from doubles.timeouts import PATIENCE_S

from eaglelocal.errors import EngineError, ResourceError
from eaglelocal.server.loaded_models import LoadResult
from eaglelocal.server.model_manager import ChooseVictims, ModelManager, evict_all


class LoadedClient(ScriptedClient):
    state = "ready"
    restarts = 0


class ScriptedLoader:
    """Loads scripted clients and records them.

    gates     a model with one is loaded once it is set
    fails     models that cannot be loaded, with an `error_type`
    max_open  one more is a ResourceError, as when llama.cpp finds no memory
    """

    def __init__(self, max_open: int = 100) -> None:
        self.max_open = max_open
        self.loads: list[str] = []
        self.clients: list[LoadedClient] = []
        self.fails: set[str] = set()
        self.error_type: type[Exception] = EngineError
        self.gates: dict[str, threading.Event] = {}
        self.before_unload: Callable[[], None] = lambda: None

    def load(self, name: str) -> LoadResult:
        self.loads.append(name)
        if name in self.gates:
            assert self.gates[name].wait(PATIENCE_S)
        if name in self.fails:
            raise self.error_type(f"{name} is broken")
        if len(self.open) >= self.max_open:
            raise ResourceError(f"{name} does not fit")
        client = LoadedClient((Script(),), label=name)
        self.clients.append(client)
        return LoadResult(client, client.info)  # type: ignore[arg-type] # never asked

    @property
    def open(self) -> list[str]:
        return sorted(client.info.target for client in self.clients if not client.num_closed)


def run_manager(
    test: Callable[[ScriptedLoader, ModelManager], Coroutine[Any, Any, None]],
    *,
    names: Sequence[str] = ("a", "b", "c", "d"),
    choose_victims: ChooseVictims = evict_all,
    max_open: int = 100,
    idle_s: float = 0.0,
) -> None:
    """Run a test of a manager; nothing may be in use, open or running after it."""

    async def run() -> None:
        loader = ScriptedLoader(max_open)
        models = ModelManager(
            names,
            loader.load,
            idle_s=idle_s,
            choose_victims=choose_victims,
            before_unload=lambda: loader.before_unload(),
        )
        async with asyncio.timeout(PATIENCE_S):
            await test(loader, models)
            assert models.num_users == 0
            await models.close()
        assert (models.loaded, loader.open) == ((), [])
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


async def use(models: ModelManager, name: str) -> str:
    async with models.use(name) as model:
        return model.name


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)
