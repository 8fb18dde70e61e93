"""Real tool servers over pipes: two published ones, and one that misbehaves in every way we could think of."""

from __future__ import annotations

import http.server
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import uvicorn
from doubles.timeouts import wait_until
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.tool_servers import pipe_transport, server_pool
from eaglelocal.tool_servers.pipe_transport import MAX_LINES, WINDOW_S, FloodGuard
from eaglelocal.tool_servers.server_list import ServerSpec
from eaglelocal.tool_servers.server_pool import ServerPool, ServerStatus
from eaglelocal.tool_servers.tool_results import MAX_DESCRIPTION_CHARS, MAX_RESULT_CHARS, ToolResult

HOSTILE = Path(__file__).parents[2] / "doubles" / "hostile_tool_server.py"
pytest.importorskip("mcp")
pytestmark = pytest.mark.full


def never() -> bool:
    return False


def module(name: str, *arguments: str) -> ServerSpec:
    return ServerSpec(name=name.removeprefix("mcp_server_"), command=sys.executable, args=("-m", name, *arguments))


def hostile(how: str, *arguments: str) -> ServerSpec:
    return ServerSpec(name=how, command=sys.executable, args=(str(HOSTILE), how, *arguments))


@contextmanager
def running(*specs: ServerSpec) -> Iterator[ServerPool]:
    pool = ServerPool(specs)
    try:
        pool.start(list(pool.specs))
        pool.wait(60.0, never)
        yield pool
    finally:
        pool.close()


def call(pool: ServerPool, is_stopped: Callable[[], bool] = never, **arguments: object) -> ToolResult:
    """Call the first tool of the first server."""
    return pool.call(pool.statuses[0].tools[0], arguments, is_stopped)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_page = self.path == "/page"
        self.send_response(200 if is_page else 404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body><h1>Eagles</h1><p>They nest on cliffs.</p></body></html>" if is_page else b"")

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def page() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/page"
        server.shutdown()


def test_two_published_servers_are_listed_and_called(page: str) -> None:
    pytest.importorskip("mcp_server_time")
    pytest.importorskip("mcp_server_fetch")
    with running(module("mcp_server_time"), module("mcp_server_fetch", "--allow-private-ips")) as pool:
        time, fetch = pool.statuses
        assert [tool.label for tool in time.tools] == ["time.get_current_time", "time.convert_time"]
        assert [tool.label for tool in fetch.tools] == ["fetch.fetch"]
        assert '"timezone":{' in time.tools[0].parameters
        now = call(pool, timezone="UTC")
        assert '"timezone": "UTC"' in now.text and not now.is_error and now.num_chars == len(now.text)
        assert call(pool, timezone="Nowhere").is_error
        text = pool.call(fetch.tools[0], {"url": page}, never)
        assert "They nest on cliffs." in text.text and not text.is_error


@pytest.fixture
def far() -> Iterator[str]:
    """The address of a server that is reached by HTTP; a text `flood` brings 40 MB."""
    from mcp.server import MCPServer

    server = MCPServer("far", log_level="ERROR")

    @server.tool()
    def shout(text: str) -> str:
        return "x" * (40 << 20) if text == "flood" else text.upper()

    listening = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error"))
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    running.should_exit = running.force_exit = True
    thread.join()


def test_a_server_behind_an_address_is_called_and_cannot_flood(far: str) -> None:
    with running(ServerSpec(name="far", url=f"{far}/mcp"), ServerSpec(name="no", url=f"{far}/other")) as pool:
        assert pool.statuses[1] == ServerStatus("no", "failed", "Not Found")
        assert call(pool, text="hello") == ToolResult("HELLO", num_chars=5)
        flood = call(pool, text="flood")
        assert flood.is_error and len(flood.text) < 1000
        pool.start(["far"])
        pool.wait(60.0, never)
        assert call(pool, text="again").text == "AGAIN"


def test_servers_that_cannot_be_started_say_why(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("echo I give up >&2; exit 4")
    specs = (
        ServerSpec(name="missing", command="no-such-program"),
        ServerSpec(name="folder", command=str(tmp_path)),
        ServerSpec(name="nowhere", command=sys.executable, folder=str(tmp_path / "no")),
        ServerSpec(name="exits", command="sh", args=(str(script),)),
        ServerSpec(name="far", url="http://127.0.0.1:1/mcp"),
    )
    with running(*specs) as pool:
        missing, folder, nowhere, exits, far = pool.statuses
    assert missing == ServerStatus("missing", "failed", "command not found: 'no-such-program'")
    assert folder.reason == f"{tmp_path}: Permission denied"
    assert nowhere.reason == f"there is no folder {tmp_path / 'no'}"
    assert (exits.reason, exits.stderr) == ("it ended with exit code 4", ("I give up",))
    assert far.state == "failed" and far.reason


def test_a_server_gets_its_own_variables_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    code = "import os, sys; print(sorted(os.environ), os.environ.get('MINE'), file=sys.stderr)"
    with running(ServerSpec(name="a", command=sys.executable, args=("-c", code), env=(("MINE", "yes"),))) as pool:
        (shown,) = pool.statuses[0].stderr
    assert "yes" in shown and "'PATH'" in shown and "MY_API_KEY" not in shown and "PYTHONPATH" not in shown


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "START_TIMEOUT_S", 15.0)
    monkeypatch.setattr(server_pool, "CALL_TIMEOUT_S", 3.0)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    ("how", "answer"),
    [
        ("garbage", "the server ended during the call: it wrote a line of more than 16 MB"),
        ("lines", f"the server ended during the call: it wrote more than {MAX_LINES} lines or 32 MB at once"),
        ("stderr", "the tool did not answer within 3 s"),
        ("hangs", "the tool did not answer within 3 s"),
        ("dies", "the server ended during the call: it ended with exit code 3"),
        ("odd_result", "it answered in another form than the protocol has"),
    ],
)
def test_a_call_that_goes_wrong_is_a_result(how: str, answer: str, capfd: pytest.CaptureFixture[str]) -> None:
    with running(hostile(how), hostile("good")) as pool:
        result = call(pool, text="hello")
        assert (result.text, result.is_error) == (answer, True)
        assert pool.call(pool.statuses[1].tools[0], {"text": "still here"}, never).text == "still here"
        stderr = pool.statuses[0].stderr
    assert stderr == (("cannot go on\N{REPLACEMENT CHARACTER}[2J",) if how == "dies" else ())
    assert capfd.readouterr() == ("", "")  # the SDK logs nothing into the terminal


def test_a_server_that_ended_is_started_again() -> None:
    with running(hostile("dies")) as pool:
        assert call(pool).is_error
        pool.start(["dies"])
        pool.wait(60.0, never)
        assert pool.statuses[0].state == "connected"


@pytest.mark.usefixtures("hasty")
def test_a_server_that_never_answers_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "START_TIMEOUT_S", 1.0)
    with running(hostile("mute")) as pool:
        assert pool.statuses == (ServerStatus("mute", "failed", "no answer in 1 s"),)


def test_a_hanging_call_can_be_stopped() -> None:
    with running(hostile("hangs")) as pool:
        assert call(pool, lambda: True).text == "the call was stopped"
        assert pool.statuses[0].state == "connected"


def test_waiting_for_a_start_can_be_stopped() -> None:
    pool = ServerPool([hostile("mute")])
    try:
        pool.start(["mute"])
        pool.wait(600.0, lambda: True)
        assert pool.statuses[0].state == "starting"
    finally:
        pool.close()


def test_nothing_that_a_server_sends_can_control_the_terminal() -> None:
    with running(hostile("escapes")) as pool:
        (tool,) = pool.statuses[0].tools
        texts = [tool.label, tool.description, tool.parameters, call(pool).text]
    assert all(char.isprintable() or char == "\n" for text in texts for char in text)
    assert "red\n" in texts[-1]


def test_images_and_files_are_named() -> None:
    with running(hostile("images")) as pool:
        assert call(pool, text="a picture").text.split("\n") == [
            "a picture",
            "[image: image/png, 9 bytes; only text is shown to the model]",
            "[file: a/b, 9 bytes; only text is shown to the model]",
        ]


def test_much_of_everything_is_cut() -> None:
    with running(hostile("many_tools"), hostile("long_description"), hostile("long_result")) as pool:
        many, long, _ = pool.statuses
        assert len(many.tools) == 1000 and {len(tool.description) for tool in many.tools} == {MAX_DESCRIPTION_CHARS}
        assert len(long.tools[0].description) == MAX_DESCRIPTION_CHARS
        result = pool.call(pool.statuses[2].tools[0], {}, never)
        assert (len(result.text), result.num_chars) == (MAX_RESULT_CHARS, 5_000_000)


@pytest.mark.parametrize("how", ["greets", "slow_pattern"])
def test_what_is_odd_but_harmless_works(how: str) -> None:
    with running(hostile(how)) as pool:
        assert call(pool, text="hello") == ToolResult("hello", num_chars=5)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_server_that_ignores_every_request_to_end_is_killed_with_its_child(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with running(hostile("stays", str(file))):
        pids = [int(pid) for pid in file.read_text().split()]
        assert not any(map(is_gone, pids)) and {os.getsid(pid) for pid in pids} == {pids[0]}
    wait_until(lambda: all(map(is_gone, pids)), "the end of both processes")


def test_servers_are_killed_even_if_their_event_loop_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_pool, "CLOSE_S", 0.2)
    file, over = tmp_path / "pids", threading.Event()
    with running(hostile("stays", str(file))) as pool:
        pids = [int(pid) for pid in file.read_text().split()]
        assert pool._loop is not None
        pool._loop.call_soon_threadsafe(over.wait, 60.0)
    wait_until(lambda: all(map(is_gone, pids)), "the end of both processes")
    over.set()


@given(st.lists(st.tuples(st.integers(1, 1 << 20), st.floats(0, 3)), max_size=60))
def test_a_flood_is_more_than_a_window_admits(lines: list[tuple[int, float]]) -> None:
    guard, now, begin, sizes = FloodGuard(), 0.0, float("-inf"), list[int]()
    for size, pause in lines:
        now += pause
        if now - begin >= WINDOW_S:
            begin, sizes = now, []
        sizes.append(size)
        assert guard.add(size, now) == (len(sizes) > MAX_LINES or sum(sizes) > pipe_transport.MAX_BYTES)


def test_a_flood_of_lines_is_noticed() -> None:
    guard = FloodGuard()
    assert [guard.add(1, 0.0) for _ in range(MAX_LINES + 1)].index(True) == MAX_LINES
    assert not guard.add(1, WINDOW_S)
