"""`eaglelocal top [URL ...]`: monitor running servers on the screen, as text or as JSON."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from eaglelocal.cli import flags
from eaglelocal.cli.chat_connection import find_api_key
from eaglelocal.cli.completion import complete_server
from eaglelocal.cli.flags import argument, flag
from eaglelocal.cli.load_model import load_settings
from eaglelocal.cli.output import Output, standard_output
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EngineError, UsageError
from eaglelocal.settings import Settings

if TYPE_CHECKING:
    from eaglelocal.client.server_reading import ServerReading
    from eaglelocal.tui.monitor.machine_text import MonitorSnapshot

BETWEEN_S = 1.0  # between the two readings of --once and --json, which give the rates


@dataclass(frozen=True, slots=True, kw_only=True)
class TopFlags:
    """The arguments and flags of `top`."""

    urls: list[str] | None = argument(
        "URL ...", "Servers to watch; unset: those on this machine.", complete_server, default=None
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
    settings = load_settings({})
    output = standard_output(colour=settings.colour)
    can_only_print = output.is_terminal and not output.can_show_screen
    prints, urls = given.once or given.as_json or can_only_print, given.urls or find_local_servers()
    if prints:
        return print_frame(urls, settings, output, as_json=given.as_json)
    if not output.is_terminal:
        raise UsageError("stdout is not a terminal", hint="--once")
    from eaglelocal.tui.monitor.run_monitor import watch_server, watch_servers

    if len(urls) > 1:
        return watch_servers(urls, find_api_key, settings)
    return watch_server(urls[0], find_api_key(urls[0]), settings)


def find_local_servers() -> list[str]:
    """Return the URLs of the eaglelocal servers on this machine, newest first. Raises EngineError if none runs."""
    from eaglelocal.client.running_servers import find_running_servers

    found = find_running_servers()
    if not found:
        raise EngineError("no eaglelocal server is running here", hint="eaglelocal serve")
    return [server.url for server in found]


# ---- one frame
def print_frame(urls: Sequence[str], settings: Settings, output: Output, *, as_json: bool) -> None:
    """Print one server as the monitor shows it, or several in a row each; or what is known of them as JSON.

    Raises EngineError if no server answers: of several, after printing why.
    """
    from eaglelocal.tui.display_options import make_display_options
    from eaglelocal.tui.monitor.monitor_text import format_snapshot
    from eaglelocal.tui.monitor.server_rows import format_servers, is_reachable

    scenes = read_scenes(urls)
    answers = any(is_reachable(scene.frame) for scene in scenes)
    if len(urls) == 1:
        if not answers and (reading := scenes[0].frame.reading):
            raise EngineError(reading.detail, hint="check the address, and that the server runs")
        if as_json:
            return output.object(scene_object(scenes[0]))
        return output.data(format_snapshot(scenes[0], output.width, make_display_options(settings).glyphs))
    if as_json:
        output.object({"servers": [scene_object(scene) for scene in scenes]})
    else:
        output.data(format_servers(scenes, output.width))
    if not answers:
        raise EngineError("none of the servers answers", hint="check the addresses, and that the servers run")
    return None


def read_scenes(urls: Sequence[str]) -> list[MonitorSnapshot]:
    """Read the servers twice, BETWEEN_S apart, and this machine if it has the only one."""
    from eaglelocal.client.servers.server_watch import ServerWatch
    from eaglelocal.probe.load_gauges import GaugeWatch
    from eaglelocal.tui.monitor.run_monitor import is_local
    from eaglelocal.tui.monitor.server_rows import WatchedServers, is_reachable

    servers = WatchedServers(urls, lambda url, on_reading: ServerWatch(url, on_reading, api_key=find_api_key(url)))
    with closing(GaugeWatch()) if len(urls) == 1 and is_local(urls[0]) else nullcontext() as gauges:
        servers.read_all()
        if any(is_reachable(each.frame) for each in servers.make_snapshots(time.monotonic())):
            time.sleep(BETWEEN_S)
            servers.read_all()
        scenes = servers.make_snapshots(time.monotonic())
        if gauges is not None:
            scenes = [replace(scene, machine=gauges.latest(), is_local=True) for scene in scenes]
    return scenes


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
