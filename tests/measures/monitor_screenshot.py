"""The picture of the monitor in docs/serving.md: of a server that runs, and is asked something meanwhile.

eaglelocal serve --port 8555 --target demo --no-tui &
python tests/measures/monitor_screenshot.py docs/monitor.svg http://127.0.0.1:8555
"""

from __future__ import annotations

import argparse
import asyncio
import threading
from pathlib import Path

import httpx

from eaglelocal.client.servers.server_watch import ServerWatch
from eaglelocal.probe.load_gauges import GaugeWatch
from eaglelocal.tui.display_options import DisplayOptions
from eaglelocal.tui.monitor.monitor_app import Monitor

QUESTIONS = ("Count from 1 to 30.", "What is acceptance length?", "What is a draft model?")
ASKERS, SECONDS = 2, 40.0


def ask(url: str, number: int, is_over: threading.Event) -> None:
    """One question after another."""
    while not is_over.is_set():
        number += 1
        body = {"messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}], "max_tokens": 80}
        httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)


async def picture(url: str, seconds: float) -> str:
    """SVG."""
    gauges, is_over = GaugeWatch(), threading.Event()
    monitor = Monitor(DisplayOptions(), lambda on_reading: ServerWatch(url, on_reading), read_machine=gauges.latest)
    askers = [threading.Thread(target=ask, args=(url, number, is_over)) for number in range(ASKERS)]
    try:
        async with monitor.run_test(size=(120, 36)) as pilot:
            for asker in askers:
                asker.start()
            await pilot.pause(seconds)
            return monitor.export_screenshot(title="eaglelocal top")
    finally:
        is_over.set()
        gauges.close()
        for asker in askers:
            await asyncio.to_thread(asker.join)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    asked = parser.parse_args()
    asked.file.write_text(asyncio.run(picture(asked.url, asked.seconds)), encoding="utf-8")


if __name__ == "__main__":
    main()
