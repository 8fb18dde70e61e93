"""The whole server in a thread, on a port of its own, over engines in their own processes: for tests over HTTP.

with served(directed()) as server:
    server.openai().chat.completions.create(...)
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import openai
import uvicorn

from eaglelocal.client.engine_client import EngineClient
from eaglelocal.core.plan import Plan
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.server.access import Access
from eaglelocal.server.app import create_app
from eaglelocal.server.listening_socket import bind_socket
from eaglelocal.server.loaded_models import LoadResult
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ChooseVictims, ModelManager, evict_all
from eaglelocal.server.run_server import HttpServer
from eaglelocal.server.server_state import AdmissionQueue, ServerLimits, ServerState
from eaglelocal.worker.supervisor import DEFAULT_POLICY, RestartPolicy

from . import directed_server_engine, server_engine
from .timeouts import PATIENCE_S, wait_until

DEFAULTS = SamplingParams(temperature=0.7, max_tokens=64, left_open=frozenset({"temperature", "top_p"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The settings of a server. plans: by name, with the builder of their engines."""

    plans: Mapping[str, Plan]
    builder: str
    access: Access = field(default_factory=Access)
    limits: ServerLimits = field(default_factory=ServerLimits)
    defaults: SamplingParams = DEFAULTS
    idle_s: float = 0.0
    choose_victims: ChooseVictims = evict_all
    aliases: tuple[str, ...] = ()
    restart: RestartPolicy = DEFAULT_POLICY
    num_slots: int = 4
    is_shared: bool = False
    loads: bool = True  # the first model, at the start
    waits: bool = True  # for it, before anything is asked


def directed(*names: str, **changes: Any) -> Setup:
    """Return a set-up with directed engines; a name is also the label that decides how loading goes."""
    plans = {name: directed_server_engine.plan(name) for name in names or ("actor",)}
    return Setup(**{"plans": plans, "builder": directed_server_engine.BUILDER} | changes)


def typing(**changes: Any) -> Setup:
    """Return a set-up with the real engine over a scripted model."""
    return Setup(**{"plans": {"typist": server_engine.plan()}, "builder": server_engine.BUILDER} | changes)


class Server:
    """A running server and clients for it."""

    def __init__(self, setup: Setup, serving: ServerState, port: int) -> None:
        self.setup, self.serving, self.port = setup, serving, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=PATIENCE_S)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.clients: list[EngineClient] = []  # of all models that were loaded

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)

    def anthropic(self, key: str = "none") -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, api_key=key, max_retries=0, timeout=PATIENCE_S)

    def ask(self, script: str, **more: object) -> httpx.Response:
        """Post a chat completion, whole or streamed, without a client library."""
        body = {"messages": [{"role": "user", "content": script}], **more}
        return self.http.post("/v1/chat/completions", json=body)

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = self.http.get("/v1/snapshot").json()
        return found

    def wait_until_idle(self) -> None:
        """Wait until nothing runs in the engine and nothing is held in the server."""
        wait_until(self._is_idle, "no request is left")

    def _is_idle(self) -> bool:
        server, engine = self.snapshot(), self.clients[-1].snapshot()
        held = (self.serving.admission.num_held, self.serving.models.num_users, len(self.serving.active))
        return (server["running"], server["waiting"], engine.running, engine.waiting, *held) == (0,) * 7

    def num_tasks(self) -> int:
        """Return the number of the server's asyncio tasks, counted in its loop."""
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(_count_tasks(), self.loop).result(PATIENCE_S)


async def _count_tasks() -> int:
    return len(asyncio.all_tasks()) - 1  # this one


@contextmanager
def served(setup: Setup) -> Iterator[Server]:
    clients: list[EngineClient] = []
    serving = serving_of(setup, loader_of(setup, clients))
    listening = bind_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    running = Server(setup, serving, port)
    running.clients = clients
    uvicorn_server = HttpServer(create_app(serving, setup.access), 2.0, setup.limits.num_connections)
    thread = threading.Thread(target=_run, args=(uvicorn_server, listening, running), name="server")
    thread.start()
    try:
        wait_until(lambda: uvicorn_server.started, "the server listens")
        if setup.loads:  # else the first question does
            assert running.loop is not None
            loading = asyncio.run_coroutine_threadsafe(serving.models.start(), running.loop)
            if setup.waits:
                loading.result(PATIENCE_S)
        yield running
    finally:
        serving.is_draining = uvicorn_server.should_exit = True
        thread.join(PATIENCE_S)
        running.http.close()
    assert not thread.is_alive(), "the server does not end"
    assert all(client.state == "closed" for client in clients), "an engine was left behind"


def serving_of(setup: Setup, load: Callable[[str], LoadResult]) -> ServerState:
    metrics = Metrics()
    return ServerState(
        models=ModelManager(
            list(setup.plans),
            load,
            idle_s=setup.idle_s,
            aliases=setup.aliases,
            choose_victims=setup.choose_victims,
            before_unload=metrics.read_totals,
        ),
        admission=AdmissionQueue(
            num_slots=setup.num_slots, max_waiting=setup.limits.max_waiting, is_shared=setup.is_shared
        ),
        metrics=metrics,
        defaults=setup.defaults,
        limits=setup.limits,
    )


def loader_of(setup: Setup, clients: list[EngineClient]) -> Callable[[str], LoadResult]:
    def load(name: str) -> LoadResult:
        client = EngineClient(setup.plans[name], builder=setup.builder, restart=setup.restart)
        clients.append(client)
        try:
            return LoadResult(client, client.start())
        except BaseException:
            client.close()
            raise

    return load


def _run(server: uvicorn.Server, listening: socket.socket, running: Server) -> None:
    async def run() -> None:
        running.loop = asyncio.get_running_loop()
        await server.serve(sockets=[listening])

    asyncio.run(run())
