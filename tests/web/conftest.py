"""A Chromium for the tests of the chat page, and a tab for each test, which must leave it without a problem."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doubles.chromium import MISSING, PROGRAM, Browser, Tab, running_browser
from doubles.running_server import Server, directed, served

OpenPage = Callable[..., Tab]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip(MISSING)
    with running_browser(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """Two models that do what the last message says; the first reads images."""
    with served(directed("seer", "actor")) as server:
        yield server


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[OpenPage]:
    """Return a function that opens the chat page of a server in a new tab.

    After the test, the page must have asked nobody but its server, and nothing may have gone wrong in it.
    """
    tabs: list[tuple[Tab, str]] = []

    def open_tab(other: Server | None = None, path: str = "/") -> Tab:
        url, tab = (other or server).url, browser.new_tab()
        tabs.append((tab, url))
        tab.show(1280, 800)
        tab.open(url + path)
        return tab

    yield open_tab
    for tab, url in tabs:
        tab.evaluate("1")  # events that came meanwhile
        assert [each for each in tab.requested if not each.startswith((f"{url}/", "data:", "blob:"))] == []
        assert tab.problems == []
        tab.close()


@pytest.fixture
def tab(open_page: OpenPage) -> Tab:
    """The page of `server`, ready for a question to its first model."""
    tab = open_page()
    tab.wait_for("document.querySelector('#model').options.length === 2")
    tab.choose_model("seer")
    return tab


@pytest.fixture
def shots(tmp_path: Path) -> Path:
    """A folder for screenshots, to be looked at after a failure."""
    return tmp_path
