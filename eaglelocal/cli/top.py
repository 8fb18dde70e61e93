"""`eaglelocal top [URL ...]`: monitor running servers on the screen, as text or as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.completion import complete_server
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError, UsageError
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.client.server_reading import ServerReading
    from eaglelocal.client.servers.server_watch import ServerWatch
    from eaglelocal.tui.monitor.machine_text import MonitorSnapshot
    from eaglelocal.tui.panel.feed import Feed

BETWEEN_S = 1.0  # between the two readings of --once and --json, which give the rates


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFlags:
    """The arguments and flags of `top`."""

    urls: list[str] | None = argument(
        "URL ...", "Servers to watch; unset: the one on this machine.", complete_server, default=None
    )
    once: bool = flag(False, "", "Print one frame as text and exit.")
    as_json: flags.AsJson = False


@flags.takes()
def top(given: TopFlags) -> None:
    """Watch running servers: eaglelocal, llama-server, vLLM or Ollama.

    \b
    eaglelocal top
    eaglelocal top 8080
    eaglelocal top http://127.0.0.1:8421 http://192.168.1.20:8421
    eaglelocal top --once | head -3
    """
    from eaglelocal.cli.chat_connection import find_api_key

    settings = load_settings({})
    output = standard_output(colour=settings.colour)
    can_only_print = output.is_terminal and not output.can_show_screen
    prints, urls = given.once or given.as_json or can_only_print, given.urls or [find_local_server()]
    if len(urls) > 1:
        return watch_several(urls, settings, output, given, prints=prints)
    where, api_key = urls[0], find_api_key(urls[0])
    if prints:
        return print_once(where, api_key, settings, output, as_json=given.as_json)
    check_terminal(output)
    from eaglelocal.tui.monitor.run_monitor import watch_server

    return watch_server(where, api_key, settings)


def check_terminal(output: Output) -> None:
    if not output.is_terminal:
        raise UsageError("stdout is not a terminal", hint="--once")


def find_local_server() -> str:
    """Return the URL of the newest eaglelocal server on this machine. Raises EngineError if none runs."""
    from eaglelocal.client.running_servers import find_running_servers

    found = find_running_servers()
    if not found:
        raise EngineError("no eaglelocal server is running here", hint="eaglelocal serve")
    return found[0].url


def watch_several(urls: Sequence[str], settings: Settings, output: Output, given: TopFlags, *, prints: bool) -> None:
    """Show several servers on the screen, or print them once. Raises UsageError without a terminal."""
    from eaglelocal.cli.chat_connection import find_api_key

    if prints:
        return print_several(urls, output, as_json=given.as_json)
    check_terminal(output)
    from eaglelocal.tui.monitor.run_monitor import watch_servers

    return watch_servers(urls, find_api_key, settings)


# ---- one frame
def print_several(urls: Sequence[str], output: Output, *, as_json: bool) -> None:
    """Print a row per server, or all of them as JSON. One that does not answer is a row too.

    Raises EngineError, after printing, if none of them answers.
    """
    from eaglelocal.cli.chat_connection import find_api_key
    from eaglelocal.client.servers.server_watch import ServerWatch
    from eaglelocal.tui.monitor.machine_text import MonitorSnapshot
    from eaglelocal.tui.monitor.server_rows import WatchedServers, format_servers, is_reachable

    servers = WatchedServers(urls, lambda url, on_reading: ServerWatch(url, on_reading, api_key=find_api_key(url)))
    servers.read_all()
    time.sleep(BETWEEN_S)
    servers.read_all()
    frames = servers.make_frames(time.monotonic())
    if as_json:
        scenes = [MonitorSnapshot(url=each.url, frame=each.frame, machine=None, is_local=False) for each in frames]
        output.object({"servers": [scene_object(scene) for scene in scenes]})
    else:
        output.data(format_servers(frames, output.width))
    if not any(is_reachable(each.frame) for each in frames):
        raise EngineError("none of the servers answers", hint="check the addresses, and that the servers run")


def print_once(url: str, api_key: str, settings: Settings, output: Output, *, as_json: bool) -> None:
    from eaglelocal.client.servers.server_watch import ServerWatch
    from eaglelocal.tui.display_options import make_display_options
    from eaglelocal.tui.monitor.monitor_text import format_snapshot

    watch = ServerWatch(url, lambda reading: None, api_key=api_key)
    scene = read_scene(watch)
    if as_json:
        output.object(scene_object(scene))
    else:
        output.data(format_snapshot(scene, output.width, make_display_options(settings).glyphs))


def read_scene(watch: ServerWatch) -> MonitorSnapshot:
    """Read the server twice, BETWEEN_S apart, and return the monitor's contents.

    Raises EngineError if it does not answer.
    """
    from eaglelocal.probe.load_gauges import GaugeWatch
    from eaglelocal.tui.monitor.machine_text import MonitorSnapshot
    from eaglelocal.tui.monitor.run_monitor import is_local
    from eaglelocal.tui.panel.feed import Feed

    gauges = GaugeWatch() if is_local(watch.url) else None
    feed = Feed()
    read_into(feed, watch)
    time.sleep(BETWEEN_S)
    read_into(feed, watch)
    frame, machine = feed.make_frame(time.monotonic(), seconds=0), gauges.latest() if gauges is not None else None
    if gauges is not None:
        gauges.close()
    return MonitorSnapshot(url=watch.url, frame=frame, machine=machine, is_local=gauges is not None)


def read_into(feed: Feed, watch: ServerWatch) -> None:
    from eaglelocal.client.server_reading import DISCONNECTED

    reading = watch.read()
    if reading.state == DISCONNECTED:
        raise EngineError(reading.detail, hint="check the address, and that the server runs")
    feed.add_reading(reading, time.monotonic())


def scene_object(scene: MonitorSnapshot) -> dict[str, object]:
    """Return the JSON object of --json; absent figures are null."""
    frame, reading = scene.frame, scene.frame.reading
    return {
        "url": scene.url,
        "kind": reading.kind if reading is not None else None,
        "state": frame.connection,
        "tok_s": frame.tok_s,
        "speculation": {**asdict(frame.drafting), **asdict(frame.figures)},
        "drafted_tokens": frame.drafted,
        "accepted_tokens": frame.accepted,
        "server": reading_object(reading) if reading is not None else None,
        "machine": asdict(scene.machine) if scene.machine is not None else None,
    }


def reading_object(reading: ServerReading) -> dict[str, object]:
    """Return the server's state under the keys of --json, where other loaded models are called `beside`."""
    return {"beside" if name == "other_models" else name: value for name, value in asdict(reading).items()}
