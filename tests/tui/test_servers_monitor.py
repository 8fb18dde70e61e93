"""The list of several servers: rows in every state, every key, the mouse, small screens; and real connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from doubles.monitor_states import EMPTY, GONE, RESTARTING, ManualWatch, busy
from doubles.pages_server import llama_pages, serving
from textual.pilot import Pilot
from tui.test_monitor import text_of, until

from eaglelocal.client.server_reading import ServerReading
from eaglelocal.client.servers.server_watch import ServerWatch
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.lines_widget import LinesWidget
from eaglelocal.tui.modal_screens import HelpScreen
from eaglelocal.tui.monitor.monitor_app import ServerDetails
from eaglelocal.tui.monitor.request_table import RequestTable
from eaglelocal.tui.monitor.server_rows import WatchedServers
from eaglelocal.tui.monitor.servers_app import ServersMonitor

URLS = ["http://one:8421", "http://two:8080", "http://three:8000"]
OLLAMA = ServerReading(kind="Ollama", state="idle")


@dataclass(slots=True)
class ManualPoll:
    """The part of a ServerWatch that WatchedServers uses, fed by hand."""

    url: str
    on_reading: Callable[[ServerReading], None]
    is_open: bool = False

    def start(self) -> None:
        self.is_open = True

    def read(self) -> ServerReading:
        return EMPTY

    def close(self) -> None:
        self.is_open = False


def watched(urls: list[str]) -> tuple[WatchedServers, list[ManualPoll]]:
    polls: list[ManualPoll] = []

    def open_poll(url: str, on_reading: Callable[[ServerReading], None]) -> ManualPoll:
        polls.append(ManualPoll(url, on_reading))
        return polls[-1]

    return WatchedServers(urls, open_poll), polls


def rows(pilot: Pilot[str]) -> list[str]:
    return pilot.app.screen_stack[0].query_one("#servers", LinesWidget).text.split("\n")[1:]


def selected(app: ServersMonitor) -> str:
    return app.selected.url


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (40, 12)])
def test_states_and_figures_of_each_server(size: tuple[int, int]) -> None:
    async def run() -> None:
        servers, polls = watched(URLS)
        app = ServersMonitor(DisplayOptions(), servers)
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: "connecting" in text_of(pilot), "it connects")
            for poll, reading in zip(polls, (busy(), RESTARTING, GONE), strict=True):
                poll.on_reading(reading)
            await until(pilot, lambda: "unreachable" in text_of(pilot), "one is away")
            assert "2 of 3 servers answer" in text_of(pilot)
            ready, restarting, gone = rows(pilot)
            assert "ready" in ready and "restarting" in restarting and "%" not in gone
            if size[0] >= 80:
                assert "60 %" in ready  # 1.8 of 3 drafted tokens are accepted
                assert "2/4" in ready and "6.0 GiB" in ready
            shown = pilot.app.query(LinesWidget)
            assert all(len(line) <= size[0] for each in shown for line in each.text.split("\n"))
            await pilot.press("end")
            assert "cannot reach" in text_of(pilot)
            polls[2].on_reading(replace(OLLAMA, model="qwen3:8b", state="ready"))
            await until(pilot, lambda: "3 of 3 servers answer" in text_of(pilot), "it is back")
            assert "Ollama, qwen3:8b" in text_of(pilot)

    asyncio.run(run())


def test_choosing_by_key_and_opening() -> None:
    async def run() -> None:
        servers, _ = watched(URLS)
        app = ServersMonitor(DisplayOptions(), servers, selected_url=URLS[1])
        async with app.run_test(size=(80, 24)) as pilot:
            seen = [selected(app)]
            for key in ("down", "j", "up", "k", "end", "down", "home", "G", "g"):
                await pilot.press(key)
                seen.append(selected(app))
            one, two, three = URLS
            assert seen == [two, three, three, two, one, three, three, one, three, one]
            await pilot.press("enter")
        assert app.return_value == one

    asyncio.run(run())


@pytest.mark.parametrize("key", ["escape", "q"])
def test_leaving_the_details_of_a_server(key: str) -> None:
    async def run() -> None:
        app = ServerDetails(DisplayOptions(), ManualWatch)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.active_bindings["q"].binding.description == "Back", "what q does")
            await pilot.press("slash", "b", "enter", "escape")
            assert not app.query_one(RequestTable).view.filter
            assert app.is_running
            await pilot.press(key)
            await until(pilot, lambda: app.return_value == "quit", "it is left")

    asyncio.run(run())


def test_choosing_by_mouse() -> None:
    async def run() -> None:
        servers, _ = watched(URLS)
        app = ServersMonitor(DisplayOptions(), servers)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.click("#servers", offset=(5, 4))  # border, titles, two rows
            assert selected(app) == URLS[2]
            await pilot.click("#servers", offset=(5, 12))  # below the rows
            assert selected(app) == URLS[2]
            await pilot.click("#servers", offset=(5, 4))
        assert app.return_value == URLS[2]

    asyncio.run(run())


def test_pausing_and_help() -> None:
    async def run() -> None:
        servers, polls = watched(URLS)
        app = ServersMonitor(DisplayOptions(), servers)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("space")
            polls[0].on_reading(busy())
            await pilot.pause(0.5)
            assert "paused" in text_of(pilot) and "ready" not in text_of(pilot)
            await pilot.press("space")
            await until(pilot, lambda: "ready" in text_of(pilot), "it goes on")
            await pilot.press("f1")
            assert isinstance(app.screen, HelpScreen)

    asyncio.run(run())


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
def test_leaving(key: str) -> None:
    async def run() -> None:
        servers, _ = watched(URLS)
        app = ServersMonitor(DisplayOptions(), servers)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press(key)
        assert app.return_value is None and app.return_code == 0

    asyncio.run(run())


def test_more_servers_than_rows() -> None:
    async def run() -> None:
        servers, _ = watched([f"http://box{i}:1" for i in range(40)])
        app = ServersMonitor(DisplayOptions(), servers)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("end")
            await until(pilot, lambda: "box39" in text_of(pilot), "the last one is shown")
            assert "box0:" not in text_of(pilot)

    asyncio.run(run())


def test_servers_that_come_go_and_come_back() -> None:
    async def run() -> None:
        with serving(llama_pages()) as first, serving(llama_pages()) as second:
            servers = WatchedServers(
                [first.url, f"{first.url}/v1", second.url],  # the same one twice
                lambda url, on_reading: ServerWatch(url, on_reading, gap_s=0.05),
            )
            servers.start()
            app = ServersMonitor(DisplayOptions(), servers)
            async with app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: "2 of 2 servers answer" in text_of(pilot), "both answer")
        async with ServersMonitor(DisplayOptions(), servers).run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: "0 of 2 servers answer" in text_of(pilot), "both are away")
            with serving(second):
                await until(pilot, lambda: "1 of 2 servers answer" in text_of(pilot), "one is back")
        servers.close()

    asyncio.run(run())
