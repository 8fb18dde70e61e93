"""What the monitor costs: the share of one core that it takes while tokens come, and while none do.

    python tests/measures/screen.py [--rate 50] [--seconds 20] [--size 120x40]

The monitor runs in a pseudo-terminal that is read to its end, as a terminal does; a scripted feed gives it two
readings a second, as `top` does, and for comparison events token by token, as the chat screen gets them. Counted is
the processor time of the whole process (all threads), from /proc or the like, without its start.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import subprocess
import sys
import threading
import time
from pathlib import Path

WARM_UP_S = 3.0


def main() -> None:
    asked = arguments()
    if asked.inside:
        return inside(asked)
    rows, columns = asked.size.split("x")[::-1]
    shares = {}
    for kind in ("idle", "readings", "events"):
        shares[kind] = measured(kind, asked, rows=int(rows), columns=int(columns))
        print(
            f"{kind:<9} {shares[kind]['share']:6.2%} of a core  {shares[kind]['bytes_s']:8.0f} bytes/s to the terminal"
        )
    print(json.dumps(shares))
    return None


def measured(kind: str, asked: argparse.Namespace, *, rows: int, columns: int) -> dict[str, float]:
    """In a process of its own, on a terminal of this size."""
    master, slave = pty.openpty()
    environ = {**os.environ, "TERM": "xterm-256color", "LINES": str(rows), "COLUMNS": str(columns)}
    command = [sys.executable, __file__, "--inside", kind, "--rate", str(asked.rate), "--seconds", str(asked.seconds)]
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*command, "--fd", str(writing)], stdin=slave, stdout=slave, stderr=slave, env=environ, pass_fds=(writing,)
    )
    os.close(slave)
    os.close(writing)
    count = drained(master)
    process.wait(timeout=asked.seconds + 60)
    with os.fdopen(reading) as file:
        report = json.loads(file.read())
    return {**report, "bytes_s": count[0] / (asked.seconds + WARM_UP_S)}


def drained(master: int) -> list[int]:
    """How much was written, read on a thread as it comes."""
    count = [0]

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                count[0] += len(data)
        except OSError:  # its other end is closed
            return

    threading.Thread(target=read, daemon=True).start()
    return count


def inside(asked: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from doubles.monitor_states import EMPTY, MACHINE, ManualWatch

    from eaglelocal.tui.display_options import DisplayOptions
    from eaglelocal.tui.monitor.monitor_app import Monitor

    watches: list[ManualWatch] = []

    def open_watch(on_reading):  # type: ignore[no-untyped-def]
        watches.append(ManualWatch(on_reading))
        return watches[0]

    app = Monitor(DisplayOptions(), open_watch, read_machine=lambda: MACHINE)
    report: dict[str, float] = {}

    def drive() -> None:
        begin = time.monotonic()
        watches[0].on_reading(EMPTY)
        feeding = threading.Thread(target=feed, args=(app, watches[0], asked), daemon=True)
        feeding.start()
        time.sleep(WARM_UP_S)
        cpu_s, at_s = time.process_time(), time.monotonic()
        time.sleep(max(begin + WARM_UP_S + asked.seconds - time.monotonic(), 0.1))
        report["share"] = (time.process_time() - cpu_s) / (time.monotonic() - at_s)
        app.call_from_thread(app.exit)

    app.call_later(lambda: threading.Thread(target=drive, daemon=True).start())
    app.run()
    os.write(asked.fd, json.dumps(report).encode())


def feed(app, watch, asked: argparse.Namespace) -> None:  # type: ignore[no-untyped-def]
    """Until the process ends."""
    from doubles.monitor_states import EMPTY, busy

    from eaglelocal.core.events import TextPiece, Tokens

    steps = 0.0
    while asked.inside == "idle":
        watch.on_reading(EMPTY)
        time.sleep(0.5)
    while asked.inside == "readings":
        steps += asked.rate * 0.5 / 2.8
        watch.on_reading(busy(round(steps)))
        time.sleep(0.5)
    app.feed._by_events = True
    while True:
        app.feed.add_event(Tokens("r", (TextPiece(1, "word", drafted=False),)), time.monotonic())
        time.sleep(1.0 / asked.rate)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50.0, help="tokens a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--size", default="120x40", help="columns x lines")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    parser.add_argument("--fd", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
