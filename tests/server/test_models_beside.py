"""Models loaded at the same time: which one is evicted for which, which requests wait, and what is reported."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from doubles.patience import PATIENCE_S, wait_until
from doubles.running_server import Server, directed, served
from doubles.scripted_client import Script, ScriptedClient

from eaglelocal.core.events import EngineSnapshot
from eaglelocal.errors import EngineError, ResourceError
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.loaded_models import Opened
from eaglelocal.server.model_manager import MakeRoom, ModelManager

NAMES = ("a", "b", "c", "d")


class Shelf:
    """A loader with room for some models; it refuses what is one too many, as llama.cpp's memory does."""

    def __init__(self, room: int = len(NAMES)) -> None:
        self.room = room
        self.loads: list[str] = []
        self.opened: list[ShelfClient] = []
        self.fails: set[str] = set()
        self.gates: dict[str, threading.Event] = {}

    def load(self, name: str) -> Opened:
        self.loads.append(name)
        if name in self.gates:
            assert self.gates[name].wait(PATIENCE_S)
        if name in self.fails:
            raise EngineError(f"{name} is broken")
        if len(self.open) >= self.room:
            raise ResourceError(f"{name} does not fit")
        client = ShelfClient((Script(),), label=name)
        self.opened.append(client)
        return Opened(client, client.info)  # type: ignore[arg-type] # never asked

    @property
    def open(self) -> list[str]:
        return sorted(client.info.target for client in self.opened if not client.num_closed)


class ShelfClient(ScriptedClient):
    state = "ready"
    restarts = 0


def nobody_leaves(name: str, others: Sequence[str]) -> Sequence[str]:
    return ()


def at_most(count: int) -> MakeRoom:
    return lambda name, others: others[: max(len(others) + 1 - count, 0)]


def run(
    test: Callable[[Shelf, ModelManager], Coroutine[Any, Any, None]],
    *,
    make_room: MakeRoom = nobody_leaves,
    room: int = len(NAMES),
    idle_s: float = 0.0,
) -> None:
    async def all_of_it() -> None:
        shelf = Shelf(room)
        models = ModelManager(NAMES, shelf.load, idle_s=idle_s, make_room=make_room)
        async with asyncio.timeout(PATIENCE_S):
            await test(shelf, models)
            assert models.num_users == 0
            await models.close()
        assert (models.residents, shelf.open) == ((), [])
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(all_of_it())


async def used(models: ModelManager, name: str) -> str:
    async with models.use(name) as loaded:
        return loaded.name


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_models_stay_beside_each_other_where_there_is_room() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b", "a", "c", "b"):
            assert await used(models, name) == name
        assert (shelf.loads, shelf.open) == (["a", "b", "c"], ["a", "b", "c"])

    run(test)


def test_what_was_not_used_for_longest_leaves_first() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b", "a", "c"):
            await used(models, name)
        assert shelf.open == ["a", "c"]

    run(test, make_room=at_most(2))


def test_what_nobody_uses_leaves_before_what_was_used_earlier() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            await used(models, "b")
            await used(models, "c")
            assert shelf.open == ["a", "c"]

    run(test, make_room=at_most(2))


def test_what_cannot_answer_leaves_before_what_can() -> None:
    """Its process is gone, it holds nothing."""

    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b"):
            await used(models, name)
        shelf.opened[1].state = "failed"
        await used(models, "c")
        assert shelf.open == ["a", "c"]

    run(test, make_room=at_most(2))


def test_a_model_that_was_given_up_leaves_the_server_well_where_another_answers() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b"):
            await used(models, name)
        shelf.opened[1].state = "failed"
        assert (models.state, models.loaded and models.loaded.name) == ("ready", "a")
        shelf.opened[0].state = "failed"
        assert (models.state, models.loaded and models.loaded.name) == ("failed", "b")

    run(test)


def test_a_loaded_model_answers_while_another_is_loaded() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        await used(models, "a")
        shelf.gates["b"] = threading.Event()
        waiting = asyncio.create_task(used(models, "b"))
        await until(lambda: "b" in shelf.loads)
        assert (await used(models, "a"), models.state, waiting.done()) == ("a", "ready", False)
        shelf.gates["b"].set()
        assert await waiting == "b"

    run(test)


def test_all_who_wait_for_a_model_get_it_when_it_comes() -> None:
    """Also who asked for it when another was asked for meanwhile: it does not wait for that one's load too."""

    async def test(shelf: Shelf, models: ModelManager) -> None:
        shelf.gates = {"b": threading.Event(), "c": threading.Event()}
        waiting = []
        for name in ("b", "c", "b"):
            waiting.append(asyncio.create_task(used(models, name)))
            await asyncio.sleep(0.005)
        shelf.gates["b"].set()
        assert [await waiting[0], await waiting[2]] == ["b", "b"]
        assert not waiting[1].done()
        shelf.gates["c"].set()
        assert (await waiting[1], shelf.loads) == ("c", ["b", "c"])

    run(test)


def test_who_comes_to_those_that_wait_while_they_give_up_is_not_forgotten() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            gone = asyncio.create_task(used(models, "b"))
            await asyncio.sleep(0.01)
            gone.cancel()
            await asyncio.sleep(0)
            after = asyncio.create_task(used(models, "b"))
            await asyncio.sleep(0.01)
            assert (gone.cancelled(), after.done()) == (True, False)
        assert await after == "b"

    run(test, make_room=at_most(1))


def test_others_go_on_while_somebody_waits_for_a_place() -> None:
    """Only who asks for the model that is to leave queues behind."""

    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            await used(models, "b")
            async with models.use("b"):
                waiting = asyncio.create_task(used(models, "c"))
                await asyncio.sleep(0.01)
                behind = asyncio.create_task(used(models, "a"))
                await asyncio.sleep(0.01)
                assert await used(models, "b") == "b"
                assert (waiting.done(), behind.done()) == (False, False)
        assert (await waiting, await behind) == ("c", "a")
        assert shelf.loads == ["a", "b", "c", "a"]

    run(test, make_room=lambda name, others: [other for other in others if (name, other) in {("c", "a"), ("a", "c")}])


def test_who_gives_up_waiting_for_a_place_leaves_it_to_its_users() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            waiting = asyncio.create_task(used(models, "b"))
            await asyncio.sleep(0.01)
            behind = asyncio.create_task(used(models, "a"))
            await asyncio.sleep(0.01)
            assert not behind.done()
            waiting.cancel()
            assert await behind == "a"
            assert await used(models, "a") == "a"
        assert shelf.loads == ["a"]
        await asyncio.gather(waiting, return_exceptions=True)

    run(test, make_room=at_most(1))


def test_one_more_leaves_where_memory_is_short_after_all() -> None:
    """Other programs have taken what was free: nobody had to leave, as it was reckoned."""

    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b", "a"):
            await used(models, name)
        assert await used(models, "c") == "c"
        assert (shelf.loads, shelf.open) == (["a", "b", "c", "c"], ["a", "c"])
        shelf.room = 1
        assert await used(models, "d") == "d"
        assert (shelf.open, models.failure) == (["d"], "")

    run(test, room=2)


def test_where_memory_is_short_the_busy_one_ends_its_answer_first() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            waiting = asyncio.create_task(used(models, "b"))
            await until(lambda: "b" in shelf.loads)
            await asyncio.sleep(0.01)
            assert shelf.open == ["a"]
        assert await waiting == "b"
        assert shelf.open == ["b"]

    run(test, room=1)


def test_why_a_model_came_or_went_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        shelf.fails = {"b"}
        await used(models, "a")
        with pytest.raises(Problem):
            await used(models, "b")

    with caplog.at_level("INFO", "eaglelocal.server"):
        run(test, make_room=at_most(1))
    assert caplog.messages == ["a is unloaded: b takes its place", "b cannot be loaded: b is broken"]


@pytest.mark.parametrize("error", ["broken", "too large"])
def test_who_left_for_what_cannot_be_loaded_comes_back(error: str) -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b"):
            await used(models, name)
        if error == "broken":
            shelf.fails = {"c"}
        else:
            shelf.gates["c"] = threading.Event()
            shelf.room = 0
        waiting = asyncio.create_task(used(models, "c"))
        if error == "too large":
            shelf.gates["c"].set()
            await until(lambda: shelf.loads.count("c") == 2)  # with both, and with one
            await until(lambda: shelf.loads[-1] != "c")
            shelf.room = 2
        with pytest.raises(Problem, match="c cannot be loaded"):
            await waiting
        with pytest.raises(Problem, match="c cannot be loaded"):
            await used(models, "c")
        assert await used(models, "b") == "b"

    run(test, make_room=at_most(2), room=2)


def test_each_model_is_unloaded_when_it_is_idle() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        async with models.use("a"):
            await used(models, "b")
            await asyncio.sleep(0.03)
            await models.look_after()
            assert shelf.open == ["a"]
        await asyncio.sleep(0.03)
        await models.look_after()
        assert (shelf.open, models.state) == ([], "idle")

    run(test, idle_s=0.02)


def test_who_comes_while_an_idle_model_is_being_unloaded_gets_a_new_one() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        await used(models, "a")
        await asyncio.sleep(0.03)
        closing, may_close = threading.Event(), threading.Event()

        def before_close() -> None:
            closing.set()
            assert may_close.wait(PATIENCE_S)

        models.before_close = before_close
        unloading = asyncio.create_task(models.look_after())
        await until(closing.is_set)
        asked = asyncio.create_task(used(models, "a"))
        await asyncio.sleep(0.01)
        may_close.set()
        assert await asked == "a"
        await unloading
        assert (shelf.loads, shelf.open) == (["a", "a"], ["a"])

    run(test, idle_s=0.02)


def test_what_left_while_another_was_unloaded_is_not_unloaded_again() -> None:
    """Who asks for a model while idle ones are unloaded comes in between."""

    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b"):
            await used(models, name)
        await asyncio.sleep(0.03)
        closing, may_close = threading.Event(), threading.Event()

        def before_close() -> None:
            closing.set()
            assert may_close.wait(PATIENCE_S)

        models.before_close = before_close
        unloading = asyncio.create_task(models.look_after())
        await until(closing.is_set)
        asked = asyncio.create_task(used(models, "c"))
        await asyncio.sleep(0.01)
        may_close.set()
        await unloading
        assert (await asked, shelf.open) == ("c", ["c"])

    run(test, make_room=lambda name, others: others if name == "c" else (), idle_s=0.02)


def test_the_end_closes_everything_also_where_one_is_making_room() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        for name in ("a", "b"):
            await used(models, name)
        leaving, may_leave = threading.Event(), threading.Event()

        def before_close() -> None:
            leaving.set()
            assert may_leave.wait(PATIENCE_S)

        models.before_close = before_close
        asked = asyncio.create_task(used(models, "c"))
        await until(leaving.is_set)
        closing = asyncio.create_task(models.close())
        await asyncio.sleep(0.01)
        may_leave.set()
        await closing
        with pytest.raises(Problem, match="the server is being stopped"):
            await asked
        assert (shelf.open, shelf.loads) == ([], ["a", "b"])

    run(test, make_room=at_most(2))


def test_what_is_loaded_while_the_server_ends_is_closed() -> None:
    async def test(shelf: Shelf, models: ModelManager) -> None:
        shelf.gates["a"] = threading.Event()
        asked = asyncio.create_task(used(models, "a"))
        await until(lambda: "a" in shelf.loads)
        await models.close()
        shelf.gates["a"].set()
        await asked
        assert (shelf.open, models.residents) == ([], ())

    run(test)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_people_do_nobody_has_a_model_that_is_closed(seed: int) -> None:
    """Many ask, give up, load and unload at once; who has a model has it open, and nothing is left at the end."""
    chance = random.Random(seed)

    async def person(shelf: Shelf, models: ModelManager) -> None:
        for _ in range(6):
            name = chance.choice(NAMES)
            try:
                async with asyncio.timeout(chance.choice([0.001, 0.005, 1.0])), models.use(name) as loaded:
                    for _ in range(3):
                        assert loaded.name == name
                        assert name in shelf.open
                        await asyncio.sleep(chance.random() * 0.002)
            except TimeoutError:
                pass
            except Problem as problem:
                assert "cannot be loaded" in problem.message

    async def test(shelf: Shelf, models: ModelManager) -> None:
        people = [asyncio.create_task(person(shelf, models)) for _ in range(8)]
        while not all(one.done() for one in people):
            await models.look_after()
            shelf.fails = {chance.choice(NAMES)} if chance.random() < 0.05 else set()
            await asyncio.sleep(0.002)
        await asyncio.gather(*people)
        await until(lambda: not models.num_users and not models._awaited)  # a load goes on when all have given up

    run(test, make_room=at_most(chance.choice([1, 2, 3])), room=chance.choice([1, 2, 3]), idle_s=0.004)


# ---- over HTTP
@pytest.fixture
def pair() -> Any:
    with served(directed("one", "two", make_room=nobody_leaves)) as server:
        assert server.ask("say x", model="one").status_code == 200
        assert server.ask("say x\nsay y", model="two").status_code == 200
        yield server


def test_both_are_told_as_loaded(pair: Server) -> None:
    assert [model.model_extra["loaded"] for model in pair.openai().models.list() if model.model_extra] == [True, True]
    assert [card["name"] for card in pair.http.get("/api/ps").json()["models"]] == ["one:latest", "two:latest"]
    assert [row["name"] for row in pair.snapshot()["loaded"]] == ["one", "two"]
    told = {name: pair.http.get("/props", params={"model": name}).json() for name in ("one", "two")}
    assert {name: props["model_alias"] for name, props in told.items()} == {"one": "one", "two": "two"}
    assert pair.http.get("/props", params={"model": "three"}).status_code == 404


def test_the_monitor_shows_what_was_used_last(pair: Server) -> None:
    assert pair.snapshot()["model"]["name"] == "two"
    assert pair.ask("say x", model="one").status_code == 200
    assert pair.snapshot()["model"]["name"] == "one"
    assert pair.http.get("/health").json() == {"status": "ok", "model": "one", "detail": ""}


def test_figures_are_of_all_engines_together(pair: Server) -> None:
    told = pair.snapshot()
    each = [row["engine"]["generated_tokens"] for row in told["loaded"]]
    assert len(each) == 2 and all(each)
    lines = pair.http.get("/metrics").text.splitlines()
    assert f"eaglelocal:generation_tokens_total {float(sum(each))}" in lines


def test_drafting_is_switched_for_both(pair: Server) -> None:
    assert pair.http.post("/v1/speculation", json={"spec": "off"}).status_code == 200
    assert [row["engine"]["spec"] for row in pair.snapshot()["loaded"]] == ["off", "off"]


def test_drafting_is_switched_for_what_is_loaded_meanwhile() -> None:
    with served(directed("one", "two", make_room=nobody_leaves)) as server:
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
    died = pair.ask("kill", model="one")
    assert died.status_code >= 500
    assert pair.ask("say x", model="two").status_code == 200
    wait_until(lambda: pair.ask("say x", model="one").status_code == 200, "it is back")
    assert [client.restarts for client in pair.clients] == [1, 0]
