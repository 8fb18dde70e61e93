"""Models of one server: loaded on request one at a time, unloaded when idle; loads that fail or are not awaited."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from doubles.directed_server_engine import plan
from doubles.raw_server_client import connected, request
from doubles.running_server import Server, directed, served
from doubles.scripted_loader import ScriptedLoader, run_manager, until, use
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal.core.model_task import ModelTask
from eaglelocal.core.request import AnyRequest, ChatRequest, EmbedRequest, Ranking
from eaglelocal.errors import EagleLocalError, EngineError
from eaglelocal.server import loaded_models
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.metrics import Metrics
from eaglelocal.server.model_manager import ModelManager
from eaglelocal.server.server_state import AdmissionQueue, ServerState

EMBEDS = dataclasses.replace(plan(), task=ModelTask.EMBEDDING)
SEES = plan("seer")


def test_the_first_is_loaded_at_the_start_and_meant_where_none_is_named() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        assert models.state == "idle"
        await models.start()
        assert (models.state, await use(models, ""), await use(models, "default")) == ("ready", "a", "a")
        assert loader.loads == ["a"]

    run_manager(test)


def test_another_is_loaded_on_request_and_the_one_before_closed() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("b", "b", "a", "c"):
            assert await use(models, name) == name
            assert len(loader.open) == 1
        assert loader.loads == ["b", "a", "c"]

    run_manager(test)


def test_names_that_are_not_there_are_404() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        with pytest.raises(Problem) as caught:
            await use(models, "e")
        assert (caught.value.status, caught.value.code) == (404, "model_not_found")

    run_manager(test)


def test_a_model_is_loaded_by_its_path_and_called_by_its_name() -> None:
    async def test() -> None:
        models = ModelManager(["/home/me/x.gguf"], loader.load, find_plan={"/home/me/x.gguf": EMBEDS}.get)
        assert models.task("x.gguf") is ModelTask.EMBEDDING
        async with models.use("/home/me/x.gguf") as loaded:
            assert (loaded.name, loader.loads) == ("x.gguf", ["/home/me/x.gguf"])
        await models.close()

    loader = ScriptedLoader()
    asyncio.run(test())


def test_a_model_in_use_is_not_unloaded() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            other = asyncio.create_task(use(models, "b"))
            await asyncio.sleep(0.02)
            assert (loader.loads, other.done()) == (["a"], False)
        assert await other == "b"

    run_manager(test)


def test_models_come_in_the_order_in_which_they_were_asked_for() -> None:
    """Whoever comes for the loaded model does not push in before those who wait for another one; all who wait for the
    same get it at once, for a load takes long."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        order: list[str] = []

        async def ask(name: str) -> None:
            async with models.use(name):
                order.append(name)

        async with models.use("a"):
            tasks = []
            for name in ("b", "a", "b", "a"):
                tasks.append(asyncio.create_task(ask(name)))
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        assert (order, loader.loads) == (["b", "b", "a", "a"], ["a", "b", "a"])

    run_manager(test)


def test_a_load_that_fails_is_503_and_leaves_the_others() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.fails = {"b"}
        for _ in range(2):
            with pytest.raises(Problem, match="b is broken") as caught:
                await use(models, "b")
            assert caught.value.status == 503
            assert models.state == "failed"
        assert await use(models, "a") == "a"
        assert (models.state, models.failure) == ("ready", "")

    run_manager(test)


def test_a_cancelled_request_leaves_the_loading_model_to_others() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.gates["b"] = threading.Event()
        task = asyncio.create_task(use(models, "b"))
        await until(lambda: bool(loader.loads))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        next_one = asyncio.create_task(use(models, "b"))
        await asyncio.sleep(0.01)
        loader.gates["b"].set()
        assert await next_one == "b"
        await until(lambda: models.num_users == 0)
        assert loader.loads == ["b"]

    run_manager(test)


def test_a_failed_load_without_waiting_requests_raises_no_stray_error() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        stray: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: stray.append(context))
        loader.fails = {"b"}
        loader.gates["b"] = threading.Event()
        task = asyncio.create_task(use(models, "b"))
        await until(lambda: bool(loader.loads))
        task.cancel()
        loader.gates["b"].set()
        await asyncio.gather(task, return_exceptions=True)
        assert await use(models, "a") == "a"
        assert stray == []

    run_manager(test)


def test_a_client_that_gives_up_while_waiting_delays_no_other() -> None:
    """Nothing is loaded for one who has gone, and those behind do not wait for it."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            gone = [asyncio.create_task(use(models, name)) for name in ("b", "c")]
            await asyncio.sleep(0.01)
            for task in gone:
                task.cancel()
            assert await use(models, "a") == "a"
            await asyncio.gather(*gone, return_exceptions=True)
        assert await use(models, "a") == "a"
        assert loader.loads == ["a"]

    run_manager(test)


def test_an_idle_model_is_unloaded_and_comes_back() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("b"):
            await asyncio.sleep(0.03)
            await models.unload_idle()
            assert len(loader.open) == 1  # it is in use
        await models.unload_idle()
        assert len(loader.open) == 1  # it was, a moment ago
        await asyncio.sleep(0.03)
        await models.unload_idle()
        assert (len(loader.open), models.state) == (0, "idle")
        assert await use(models, "b") == "b"

    run_manager(test, idle_s=0.02)


def test_an_engine_that_was_given_up_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        await models.start()
        loader.clients[0].state = "failed"
        assert models.state == "failed"
        assert await use(models, "a") == "a"
        assert len(loader.clients) == 1  # too early
        monkeypatch.setattr(loaded_models, "RETRY_FAILED_S", 0.0)
        assert await use(models, "a") == "a"
        assert (len(loader.clients), models.state, len(loader.open)) == (2, "ready", 1)

    run_manager(test)


def test_questions_are_refused_while_the_first_one_loads() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.gates["a"] = threading.Event()
        starting = asyncio.create_task(models.start())
        await until(lambda: bool(loader.loads))
        with pytest.raises(Problem) as caught:
            await use(models, "b")
        assert (caught.value.status, models.state) == (503, "loading")
        loader.gates["a"].set()
        await starting
        assert await use(models, "b") == "b"

    run_manager(test)


@pytest.mark.parametrize("problem", [EngineError, OSError, KeyError])
def test_whatever_a_load_fails_with_what_left_for_it_comes_back(problem: type[Exception]) -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        await models.start()
        loader.fails, loader.error_type = {"b"}, problem
        with pytest.raises(Problem, match=r"b cannot be loaded: .*b is broken") as caught:
            await use(models, "b")
        assert (caught.value.status, models.state, loader.loads) == (503, "ready", ["a", "b", "a"])
        assert await use(models, "a") == "a"

    run_manager(test)


@pytest.mark.parametrize("problem", [EngineError, OSError])
def test_a_server_whose_first_model_fails_ends_in_words(problem: type[Exception]) -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.fails, loader.error_type = {"a"}, problem
        with pytest.raises(EagleLocalError, match="a is broken"):
            await models.start()
        assert models.state == "failed"

    run_manager(test)


# ---- over HTTP
@pytest.fixture
def pool(tmp_path: Path) -> Any:
    """Two good models, one that cannot be loaded, one that waits while its gate is there."""
    gate = tmp_path / "gate"
    plans = {"one": plan("one"), "two": plan("two"), "bad": plan("broken"), "slow": plan("hesitant", gate)}
    with served(directed(plans=plans, idle_s=3600.0)) as server:
        yield server, gate


def asked(server: Server, model: str, script: str = "say x") -> Future[Any]:
    return ThreadPoolExecutor(1).submit(server.ask, script, model=model)


def test_models_are_listed_and_reported(pool: tuple[Server, Path]) -> None:
    server, _ = pool
    listed = {model.id: model.model_extra for model in server.openai().models.list()}
    assert list(listed) == ["one", "two", "bad", "slow"]
    assert [name for name, more in listed.items() if more and more["loaded"]] == ["one"]
    assert server.ask("say x", model="two").json()["model"] == "two"
    reply = server.openai().models.retrieve("two")
    assert (reply.id, reply.model_extra and reply.model_extra["max_model_len"]) == ("two", 4096)


def test_aliases_are_listed_reported_and_answered() -> None:
    with served(directed("./one.gguf", "two", aliases=("gpt-4o", "*"))) as server:
        listed = {model.id: (model.model_extra or {})["loaded"] for model in server.openai().models.list()}
        assert listed == {"one.gguf": True, "two": False, "gpt-4o": True}
        reply = {name: server.openai().models.retrieve(name).id for name in ("gpt-4o", "two", "one.gguf", "other")}
        assert reply == {"gpt-4o": "gpt-4o", "two": "two", "one.gguf": "one.gguf", "other": "one.gguf"}
        tidied = server.http.get("/v1/models/./one.gguf")  # by the client, on the way
        assert (tidied.request.url.path, tidied.json()["id"]) == ("/v1/models/one.gguf", "one.gguf")
        for name in ("gpt-4o", "one", "anything"):
            assert server.ask("say x", model=name).json()["model"] == "one.gguf"
        assert len(server.clients) == 1


def test_a_switch_waits_for_the_answer_that_runs(pool: tuple[Server, Path]) -> None:
    server, _ = pool
    first = asked(server, "one", "say so\nsleep 0.3\nsay done")
    wait_until(lambda: server.serving.models.num_users == 1, "the first one runs")
    second = asked(server, "two")
    assert first.result(PATIENCE_S).json()["choices"][0]["message"]["content"] == "sodone"
    assert second.result(PATIENCE_S).json()["model"] == "two"
    assert server.http.get("/health").json()["model"] == "two"


def test_a_model_that_cannot_be_loaded_is_503_with_its_reason(pool: tuple[Server, Path]) -> None:
    server, _ = pool
    answer = server.ask("say x", model="bad")
    assert answer.status_code == 503
    assert "not a GGUF file" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) >= 1
    assert server.http.get("/health").json()["model"] == "one"  # it is back
    num_loads = len(server.clients)
    assert "not a GGUF file" in server.ask("say x", model="bad").json()["error"]["message"]
    assert len(server.clients) == num_loads  # and not given up again for what has just failed
    assert server.ask("say x", model="one").status_code == 200
    assert server.http.get("/health").json() == {"status": "ok", "model": "one", "detail": ""}


def test_a_disconnect_during_a_load_leaks_nothing(pool: tuple[Server, Path]) -> None:
    server, gate = pool
    gate.touch()
    before = server.num_tasks()
    with connected(server.port) as sock:
        sock.sendall(request("/v1/completions", b'{"prompt": "say x", "model": "slow"}'))
        wait_until(lambda: server.http.get("/health").json()["status"] == "loading", "it is loaded")
    wait_until(lambda: server.serving.admission.num_held == 0, "its place is free")
    assert server.http.get("/health").json()["status"] == "loading"
    waiting = asked(server, "one")
    gate.unlink()
    assert waiting.result(PATIENCE_S).status_code == 200
    server.wait_until_idle()
    wait_until(lambda: server.num_tasks() <= before, "no task is left")
    assert [client.state for client in server.clients] == ["closed", "closed", "ready"]


def test_an_idle_model_is_unloaded_while_the_server_runs() -> None:
    with served(directed(idle_s=0.01)) as server:
        time.sleep(0.02)
        assert server.loop is not None
        asyncio.run_coroutine_threadsafe(server.serving.models.unload_idle(), server.loop).result(PATIENCE_S)
        assert server.http.get("/health").json() == {"status": "ok", "model": None, "detail": ""}
        assert server.snapshot()["engine"] is None
        assert server.http.get("/metrics").status_code == 200
        assert server.ask("say x").status_code == 200
        assert [client.state for client in server.clients] == ["closed", "ready"]


@pytest.mark.parametrize(
    ("request_", "name", "said"),
    [
        (ChatRequest(id="r", text="x"), "b", "b makes embeddings and nothing else"),
        (EmbedRequest(id="r", inputs=("x",), ranking=Ranking(query="y")), "b", "b makes embeddings and nothing else"),
        (EmbedRequest(id="r", inputs=("x",)), "c", "c is no embedding model"),
        (EmbedRequest(id="r", inputs=("x",), ranking=Ranking(query="y")), "c", "c is no reranker"),
    ],
)
def test_evict_none_for_a_model_that_cannot_answer(request_: AnyRequest, name: str, said: str) -> None:
    async def test() -> None:
        loader = ScriptedLoader()
        models = ModelManager(["a", "b", "c"], loader.load, find_plan={"b": EMBEDS, "c": SEES}.get)
        admission = AdmissionQueue(num_slots=1, max_waiting=1, is_shared=False)
        serving = ServerState(models=models, admission=admission, metrics=Metrics())
        await models.start()
        with pytest.raises(Problem, match=said) as caught:
            async with serving.submit(name, [request_]):
                pass
        assert (caught.value.status, caught.value.code, loader.loads) == (400, "model_not_supported", ["a"])
        await models.close()

    asyncio.run(test())


def test_what_a_model_makes_is_known_of_the_loaded_one_and_as_planned_of_others() -> None:
    async def test() -> None:
        loader = ScriptedLoader()
        models = ModelManager(["a", "b", "c", "d"], loader.load, find_plan={"a": SEES, "b": EMBEDS, "d": SEES}.get)
        assert [models.task(name) for name in "abcd"] == [ModelTask.TEXT, ModelTask.EMBEDDING, None, ModelTask.TEXT]
        assert [models.sees_images(name) for name in "abcd"] == [True, False, False, True]
        await models.start()  # without what reads images
        assert [models.task(name) for name in "abcd"] == [ModelTask.TEXT, ModelTask.EMBEDDING, None, ModelTask.TEXT]
        assert [models.sees_images(name) for name in "abcd"] == [False, False, False, True]
        await models.close()

    asyncio.run(test())
