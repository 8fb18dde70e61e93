"""What the chat screen costs: a core's share while an answer streams and while nothing happens, frames of a long
conversation, and the time to the first screen.

    python tests/measures/chat_screen.py --keys --rate 200  # only from a key to its letter, while an answer streams
    python tests/measures/chat_screen.py                    # needs no model: a scripted client says 50 tokens a second

The program runs on a pseudo terminal whose other end is read at once, so what is measured is its own work.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.chat_screen import ChatHarness
from doubles.scripted_client import Script

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, Turn

BURST_S = 0.03  # of silence between two frames
TOK_S, STEP_TOKENS = 50.0, 3
PARAGRAPH = (
    "Speculative decoding drafts **several tokens** with a small model and lets the large one verify them in a "
    "single pass, so the text stays *exactly* the same. Each accepted token saves one pass over `the weights`.\n\n"
)
LIST = "- drafted tokens are guesses\n- accepted tokens are the model's own\n- wasted ones cost a little\n\n"
CODE = "```python\ndef gain(tokens: int, passes: int) -> float:\n    return tokens / passes  # per pass\n```\n\n"
TEXT = PARAGRAPH + PARAGRAPH + LIST + CODE


def tokens_of(text: str) -> list[str]:
    """About four characters each."""
    return [text[i : i + 4] for i in range(0, len(text), 4)]


def child(folder: Path, tok_s: float) -> None:
    """The screen with a client that says so many tokens a second, in steps."""
    words = tokens_of(TEXT * 400)
    steps = tuple("".join(words[i : i + STEP_TOKENS]) for i in range(0, len(words), STEP_TOKENS))
    stage = ChatHarness(
        folder, scripts=(Script(steps, delay_s=STEP_TOKENS / tok_s, drafted=frozenset(range(0, 9999, 2))),)
    )
    stage.app.run()


@dataclass
class Terminal:
    """The child on a pseudo terminal, and a thread that reads what it draws."""

    program: subprocess.Popen[bytes]
    end: int
    num_bytes: int = 0
    num_frames: int = 0  # bursts of output
    _last_at: float = 0.0

    def read(self) -> None:
        while True:
            try:
                self.num_bytes += len(os.read(self.end, 65536))
            except OSError:
                return
            now = time.monotonic()
            self.num_frames += now - self._last_at > BURST_S
            self._last_at = now

    def share(self, seconds: float) -> tuple[float, float, float]:
        """Of one core, bytes a second and frames a second, over so long."""
        process = psutil.Process(self.program.pid)
        before, began, drawn, frames = process.cpu_times(), time.monotonic(), self.num_bytes, self.num_frames
        time.sleep(seconds)
        after, took = process.cpu_times(), time.monotonic() - began
        used = after.user + after.system - before.user - before.system
        return used / took, (self.num_bytes - drawn) / took, (self.num_frames - frames) / took


def opened(command: list[str], size: tuple[int, int], environ: dict[str, str]) -> Terminal:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    settings = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environ}
    program = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=settings)
    os.close(theirs)
    return Terminal(program, ours)


def shares(size: tuple[int, int], seconds: float, *, panel: bool) -> Iterator[tuple[str, float, float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        terminal = opened([sys.executable, __file__, "--child", folder], size, {})
        threading.Thread(target=terminal.read, daemon=True).start()
        time.sleep(4.0)
        if panel:
            os.write(terminal.end, b"\x1bOQ")  # F2
        time.sleep(2.0)
        yield ("idle", *terminal.share(seconds))
        os.write(terminal.end, b"why?\r")
        time.sleep(5.0)
        yield ("streaming", *terminal.share(seconds))
        terminal.program.kill()
        terminal.program.wait()


def key_times(size: tuple[int, int], tok_s: float) -> list[float]:
    """Seconds from a key to the output that holds its letter, while an answer of `tok_s` tokens a second streams."""
    taken = []
    with tempfile.TemporaryDirectory() as folder:
        terminal = opened([sys.executable, __file__, "--child", folder, "--rate", str(tok_s)], size, {})
        drain(terminal, 6.0)
        os.write(terminal.end, b"why?\r")
        drain(terminal, 5.0)
        for code in range(0x430, 0x430 + 32):  # Cyrillic letters, which nothing else on the screen has
            key, shown = chr(code).encode(), b""
            began = time.monotonic()
            os.write(terminal.end, key)
            while key not in shown and time.monotonic() - began < 5.0:
                if select.select([terminal.end], [], [], 0.001)[0]:
                    shown += os.read(terminal.end, 65536)
            taken.append(time.monotonic() - began)
            drain(terminal, 0.23)
        terminal.program.kill()
        terminal.program.wait()
    return taken


def drain(terminal: Terminal, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if select.select([terminal.end], [], [], 0.05)[0]:
            os.read(terminal.end, 65536)


def first_screen_s() -> tuple[float, float]:
    """From the start of the program to the prompt, with the embedded model still to be loaded: passed, computed.

    On a busy machine the first is longer than the second, which is what an idle one would take.
    """
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        command = [sys.executable, "-m", "eaglelocal", "chat", "--url", "none", "--target", "demo"]
        terminal = opened(command, (80, 24), {"XDG_STATE_HOME": folder})
        shown = b""
        while b"sk something" not in shown and time.monotonic() - began < 30:
            if select.select([terminal.end], [], [], 0.01)[0]:
                shown += os.read(terminal.end, 65536)
        took, used = time.monotonic() - began, psutil.Process(terminal.program.pid).cpu_times()
        terminal.program.kill()
        terminal.program.wait()
    return took, used.user + used.system


async def frames(folder: Path, num_tokens: int) -> tuple[float, list[float]]:
    """Seconds to open a conversation of so many tokens, and processor seconds of each page through it."""
    turn = Turn("Tell me everything about speculative decoding.", TEXT * 3)
    num_turns = num_tokens * 4 // len(turn.answer)
    path = folder / "conversations" / "long.json"
    conversation_file.save(Conversation(turns=[turn] * num_turns), path, target="m")
    stage = ChatHarness(folder, size=(120, 40))
    async with stage.app.run_test(size=stage.size) as pilot:
        await until(pilot, lambda: not stage.app.controller.is_busy)
        await pilot.pause(1.0)  # what is left to do after the start
        began = time.perf_counter()
        stage.app.controller.run_command("/load long")
        await until(pilot, lambda: len(stage.app.view.transcript._layout) > num_turns)
        opened_s, took = time.perf_counter() - began, []
        for key in ["pageup"] * 60 + ["ctrl+home"] + ["pagedown"] * 60 + ["ctrl+end"]:
            before = time.thread_time()
            await pilot.press(key)
            await pilot.pause()
            took.append(time.thread_time() - before)
    stage.app.controller.close()
    return opened_s, took


async def until(pilot: object, condition) -> None:  # type: ignore[no-untyped-def]
    while not condition():
        await asyncio.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", type=Path)
    parser.add_argument("--rate", type=float, default=TOK_S)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--keys", action="store_true", help="only the time from a key to its letter, at --rate")
    arguments = parser.parse_args()
    if arguments.child is not None:
        return child(arguments.child, arguments.rate)
    if arguments.keys:
        for size in ((80, 24), (160, 45)):
            taken = sorted(key_times(size, arguments.rate))
            print(f"{size[0]}x{size[1]}: a key is shown after {statistics.median(taken) * 1000:.0f} ms, nine of ten "
                  f"within {taken[len(taken) * 9 // 10] * 1000:.0f}, all within {taken[-1] * 1000:.0f}")  # fmt: skip
        return None
    starts = [first_screen_s() for _ in range(4)]
    print("first screen:", ", ".join(f"{passed:.2f} s ({computed:.2f} s computed)" for passed, computed in starts))
    for size, panel in (((80, 24), False), ((80, 24), True), ((120, 40), False), ((200, 60), False)):
        for what, share, rate, frames_s in shares(size, arguments.seconds, panel=panel):
            beside = "with the panel" if panel or size[0] >= 100 else "without a panel"
            where = f"{size[0]}x{size[1]} {beside}"
            print(f"{where}: {what} {share:.1%} of a core, {frames_s:.1f} frames/s, {rate / 1000:.1f} kB/s")
    for num_tokens in (50_000, 5_000_000):  # the second has 10 000 turns
        with tempfile.TemporaryDirectory() as folder:
            opened_s, took = asyncio.run(frames(Path(folder), num_tokens))
        ordered = sorted(took)
        print(
            f"{num_tokens} tokens: opened in {opened_s:.2f} s; a page takes {statistics.median(took) * 1000:.0f} ms, "
            f"nine of ten at most {ordered[len(ordered) * 9 // 10] * 1000:.0f}, all at most {ordered[-1] * 1000:.0f}"
        )
    return None


if __name__ == "__main__":
    main()
