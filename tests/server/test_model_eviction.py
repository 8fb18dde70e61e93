"""Models loaded at the same time: which one is evicted for which, which requests wait, and what is reported."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from doubles.running_server import Server, directed, served
from doubles.scripted_loader import ScriptedLoader, run_manager, until, use
from doubles.timeouts import PATIENCE_S, wait_until

from eaglelocal.core.events import EngineSnapshot
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.model_manager import ChooseVictims, ModelManager

NAMES = ("a", "b", "c", "d")


def evict_none(name: str, others: Sequence[str]) -> Sequence[str]:
    return ()


def keep_at_most(count: int) -> ChooseVictims:
    return lambda name, others: others[: max(len(others) + 1 - count, 0)]


def test_models_stay_next_to_each_other_where_there_is_room() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b", "a", "c", "b"):
            assert await use(models, name) == name
        assert (loader.loads, loader.open) == (["a", "b", "c"], ["a", "b", "c"])

    run_manager(test, choose_victims=evict_none)


def test_what_was_not_used_for_longest_leaves_first() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b", "a", "c"):
            await use(models, name)
        assert loader.open == ["a", "c"]

    run_manager(test, choose_victims=keep_at_most(2))


def test_an_unused_model_is_evicted_before_one_that_was_used_earlier() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            await use(models, "b")
            await use(models, "c")
            assert loader.open == ["a", "c"]

    run_manager(test, choose_victims=keep_at_most(2))


def test_what_cannot_answer_leaves_before_what_can() -> None:
    """Its process is gone, it holds nothing."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b"):
            await use(models, name)
        loader.clients[1].state = "failed"
        await use(models, "c")
        assert loader.open == ["a", "c"]

    run_manager(test, choose_victims=keep_at_most(2))


def test_a_model_that_was_given_up_leaves_the_server_well_where_another_answers() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b"):
            await use(models, name)
        loader.clients[1].state = "failed"
        assert (models.state, models.current and models.current.name) == ("ready", "a")
        loader.clients[0].state = "failed"
        assert (models.state, models.current and models.current.name) == ("failed", "b")

    run_manager(test, choose_victims=evict_none)


def test_a_loaded_model_answers_while_another_is_loaded() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        await use(models, "a")
        loader.gates["b"] = threading.Event()
        waiting = asyncio.create_task(use(models, "b"))
        await until(lambda: "b" in loader.loads)
        assert (await use(models, "a"), models.state, waiting.done()) == ("a", "ready", False)
        loader.gates["b"].set()
        assert await waiting == "b"

    run_manager(test, choose_victims=evict_none)


def test_all_who_wait_for_a_model_get_it_when_it_comes() -> None:
    """Also who asked for it when another was asked for meanwhile: it does not wait for that one's load too."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.gates = {"b": threading.Event(), "c": threading.Event()}
        waiting = []
        for name in ("b", "c", "b"):
            waiting.append(asyncio.create_task(use(models, name)))
            await asyncio.sleep(0.005)
        loader.gates["b"].set()
        assert [await waiting[0], await waiting[2]] == ["b", "b"]
        assert not waiting[1].done()
        loader.gates["c"].set()
        assert (await waiting[1], loader.loads) == ("c", ["b", "c"])

    run_manager(test, choose_victims=evict_none)


def test_a_request_that_joins_waiters_who_give_up_is_not_forgotten() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            gone = asyncio.create_task(use(models, "b"))
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.sleep(0)
            after = asyncio.create_task(use(models, "b"))
            await asyncio.sleep(0.01)
            assert (gone.cancelled(), after.done()) == (True, False)
        assert await after == "b"

    run_manager(test, choose_victims=keep_at_most(1))


def test_other_requests_go_on_while_one_waits_for_a_place() -> None:
    """Only who asks for the model that is to leave queues behind."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            await use(models, "b")
            async with models.use("b"):
                waiting = asyncio.create_task(use(models, "c"))
                await asyncio.sleep(0.01)
                behind = asyncio.create_task(use(models, "a"))
                await asyncio.sleep(0.01)
                assert await use(models, "b") == "b"
                assert (waiting.done(), behind.done()) == (False, False)
        assert (await waiting, await behind) == ("c", "a")
        assert loader.loads == ["a", "b", "c", "a"]

    run_manager(
        test,
        choose_victims=lambda name, others: [other for other in others if (name, other) in {("c", "a"), ("a", "c")}],
    )


def test_a_cancelled_load_leaves_the_place_to_its_users() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            waiting = asyncio.create_task(use(models, "b"))
            await asyncio.sleep(0.01)
            behind = asyncio.create_task(use(models, "a"))
            await asyncio.sleep(0.01)
            assert not behind.done()
            waiting.cancel()
            assert await behind == "a"
            assert await use(models, "a") == "a"
        assert loader.loads == ["a"]
        await asyncio.gather(waiting, return_exceptions=True)

    run_manager(test, choose_victims=keep_at_most(1))


def test_one_more_leaves_where_memory_is_short_after_all() -> None:
    """Other programs have taken the free memory, although by the estimate no model had to be evicted."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b", "a"):
            await use(models, name)
        assert await use(models, "c") == "c"
        assert (loader.loads, loader.open) == (["a", "b", "c", "c"], ["a", "c"])
        loader.max_open = 1
        assert await use(models, "d") == "d"
        assert (loader.open, models.failure) == (["d"], "")

    run_manager(test, choose_victims=evict_none, max_open=2)


def test_where_memory_is_short_the_busy_one_ends_its_answer_first() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            waiting = asyncio.create_task(use(models, "b"))
            await until(lambda: "b" in loader.loads)
            await asyncio.sleep(0.01)
            assert loader.open == ["a"]
        assert await waiting == "b"
        assert loader.open == ["b"]

    run_manager(test, choose_victims=evict_none, max_open=1)


def test_why_a_model_came_or_went_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.fails = {"b"}
        await use(models, "a")
        with pytest.raises(Problem):
            await use(models, "b")

    with caplog.at_level("INFO", "eaglelocal.server"):
        run_manager(test, choose_victims=keep_at_most(1))
    assert caplog.messages == ["a is unloaded: b takes its place", "b cannot be loaded: b is broken"]


@pytest.mark.parametrize("error", ["broken", "too large"])
def test_a_model_unloaded_for_a_failed_load_is_loaded_again(error: str) -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b"):
            await use(models, name)
        if error == "broken":
            loader.fails = {"c"}
        else:
            loader.gates["c"] = threading.Event()
            loader.max_open = 0
        waiting = asyncio.create_task(use(models, "c"))
        if error == "too large":
            loader.gates["c"].set()
            await until(lambda: loader.loads.count("c") == 2)  # with both, and with one
            await until(lambda: loader.loads[-1] != "c")
            loader.max_open = 2
        with pytest.raises(Problem, match="c cannot be loaded"):
            await waiting
        with pytest.raises(Problem, match="c cannot be loaded"):
            await use(models, "c")
        assert await use(models, "b") == "b"

    run_manager(test, choose_victims=keep_at_most(2), max_open=2)


def test_each_model_is_unloaded_when_it_is_idle() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        async with models.use("a"):
            await use(models, "b")
            await asyncio.sleep(0.03)
            await models.unload_idle()
            assert loader.open == ["a"]
        await asyncio.sleep(0.03)
        await models.unload_idle()
        assert (loader.open, models.state) == ([], "idle")

    run_manager(test, choose_victims=evict_none, idle_s=0.02)


def test_a_request_during_an_idle_unload_gets_a_new_model() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        await use(models, "a")
        await asyncio.sleep(0.03)
        closing, may_close = threading.Event(), threading.Event()

        def before_close() -> None:
            closing.set()
            assert may_close.wait(PATIENCE_S)

        loader.before_unload = before_close
        unloading = asyncio.create_task(models.unload_idle())
        await until(closing.is_set)
        asked = asyncio.create_task(use(models, "a"))
        await asyncio.sleep(0.01)
        may_close.set()
        assert await asked == "a"
        await unloading
        assert (loader.loads, loader.open) == (["a", "a"], ["a"])

    run_manager(test, choose_victims=evict_none, idle_s=0.02)


def test_what_left_while_another_was_unloaded_is_not_unloaded_again() -> None:
    """Who asks for a model while idle ones are unloaded comes in between."""

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b"):
            await use(models, name)
        await asyncio.sleep(0.03)
        closing, may_close = threading.Event(), threading.Event()

        def before_close() -> None:
            closing.set()
            assert may_close.wait(PATIENCE_S)

        loader.before_unload = before_close
        unloading = asyncio.create_task(models.unload_idle())
        await until(closing.is_set)
        asked = asyncio.create_task(use(models, "c"))
        await asyncio.sleep(0.01)
        may_close.set()
        await unloading
        assert (await asked, loader.open) == ("c", ["c"])

    run_manager(test, choose_victims=lambda name, others: others if name == "c" else (), idle_s=0.02)


def test_the_end_closes_everything_also_where_one_is_making_room() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        for name in ("a", "b"):
            await use(models, name)
        leaving, may_leave = threading.Event(), threading.Event()

        def before_close() -> None:
            leaving.set()
            assert may_leave.wait(PATIENCE_S)

        loader.before_unload = before_close
        asked = asyncio.create_task(use(models, "c"))
        await until(leaving.is_set)
        closing = asyncio.create_task(models.close())
        await asyncio.sleep(0.01)
        may_leave.set()
        await closing
        with pytest.raises(Problem, match="the server is being stopped"):
            await asked
        assert (loader.open, loader.loads) == ([], ["a", "b"])

    run_manager(test, choose_victims=keep_at_most(2))


def test_what_is_loaded_while_the_server_ends_is_closed() -> None:
    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        loader.gates["a"] = threading.Event()
        asked = asyncio.create_task(use(models, "a"))
        await until(lambda: "a" in loader.loads)
        await models.close()
        loader.gates["a"].set()
        await asked
        assert (loader.open, models.loaded) == ([], ())

    run_manager(test, choose_victims=evict_none)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_clients_do_no_request_uses_a_closed_model(seed: int) -> None:
    """Many ask, give up, load and unload at once; who has a model has it open, and nothing is left at the end."""
    chance = random.Random(seed)

    async def person(loader: ScriptedLoader, models: ModelManager) -> None:
        for _ in range(6):
            name = chance.choice(NAMES)
            try:
                async with asyncio.timeout(chance.choice([0.001, 0.005, 1.0])), models.use(name) as loaded:
                    for _ in range(3):
                        assert loaded.name == name
                        assert name in loader.open
                        await asyncio.sleep(chance.random() * 0.002)
            except TimeoutError:
                pass
            except Problem as problem:
                assert "cannot be loaded" in problem.message

    async def test(loader: ScriptedLoader, models: ModelManager) -> None:
        people = [asyncio.create_task(person(loader, models)) for _ in range(8)]
        while not all(one.done() for one in people):
            await models.unload_idle()
            loader.fails = {chance.choice(NAMES)} if chance.random() < 0.05 else set()
            await asyncio.sleep(0.002)
        await asyncio.gather(*people)
        await until(lambda: not models.num_users and not models._pending)  # a load goes on when all have given up

    run_manager(
        test, choose_victims=keep_at_most(chance.choice([1, 2, 3])), max_open=chance.choice([1, 2, 3]), idle_s=0.004
    )


# ---- over HTTP
@pytest.fixture
def pair() -> Any:
    with served(directed("one", "two", choose_victims=evict_none)) as server:
        assert server.ask("say x", model="one").status_code == 200
        assert server.ask("say x\nsay y", model="two").status_code == 200
        yield server


def test_both_are_reported_as_loaded(pair: Server) -> None:
    assert [model.model_extra["loaded"] for model in pair.openai().models.list() if model.model_extra] == [True, True]
    assert [card["name"] for card in pair.http.get("/api/ps").json()["models"]] == ["one:latest", "two:latest"]
    assert [row["name"] for row in pair.snapshot()["loaded"]] == ["one", "two"]
    reply = {name: pair.http.get("/props", params={"model": name}).json() for name in ("one", "two")}
    assert {name: props["model_alias"] for name, props in reply.items()} == {"one": "one", "two": "two"}
    assert pair.http.get("/props", params={"model": "three"}).status_code == 404


def test_the_monitor_shows_what_was_used_last(pair: Server) -> None:
    assert pair.snapshot()["model"]["name"] == "two"
    assert pair.ask("say x", model="one").status_code == 200
    assert pair.snapshot()["model"]["name"] == "one"
    assert pair.http.get("/health").json() == {"status": "ok", "model": "one", "detail": ""}


def test_figures_are_of_all_engines_together(pair: Server) -> None:
    reply = pair.snapshot()
    each = [row["engine"]["generated_tokens"] for row in reply["loaded"]]
    assert len(each) == 2 and all(each)
    lines = pair.http.get("/metrics").text.splitlines()
    assert f"eaglelocal:generation_tokens_total {float(sum(each))}" in lines


def test_drafting_is_switched_for_both(pair: Server) -> None:
    assert pair.http.post("/v1/speculation", json={"spec": "off"}).status_code == 200
    assert [row["engine"]["spec"] for row in pair.snapshot()["loaded"]] == ["off", "off"]


def test_drafting_is_switched_for_what_is_loaded_meanwhile() -> None:
    with served(directed("one", "two", choose_victims=evict_none)) as server:
        client, loads = server.clients[0], []
        snapshot = client.snapshot

        def with_another_loaded(*, timeout_s: float = 1.0) -> EngineSnapshot:
            if not loads:
                loads.append("two")
                assert server.ask("say x", model="two").status_code == 200
            return snapshot(timeout_s=timeout_s)

        client.snapshot = with_another_loaded  # type: ignore[method-assign]
        assert server.http.post("/v1/speculation", json={"spec": "off"}).status_code == 200
        assert [row["engine"]["spec"] for row in server.snapshot()["loaded"]] == ["off", "off"]


def test_an_engine_that_dies_takes_no_other_with_it(pair: Server) -> None:
    died = pair.ask("crash", model="one")
    assert died.status_code >= 500
    assert pair.ask("say x", model="two").status_code == 200
    wait_until(lambda: pair.ask("say x", model="one").status_code == 200, "it is back")
    assert [client.restarts for client in pair.clients] == [1, 0]
