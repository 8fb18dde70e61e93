"""A real terminal by tmux, on a server of its own: type into it, and read what it shows."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote

IS_THERE = shutil.which("tmux") is not None


class TmuxScreen:
    """A terminal in tmux. A context manager that ends everything that runs in it."""

    def __init__(self, folder: Path, *, size: tuple[int, int] = (80, 24), patience_s: float = 90.0) -> None:
        self._socket = str(folder / "tmux.sock")
        self._size, self._patience_s = size, patience_s

    def __enter__(self) -> TmuxScreen:
        width, height = map(str, self._size)
        self._run("-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height, "sh")
        return self

    def __exit__(self, *exception: object) -> None:
        self._run("kill-server")

    def start(self, command: list[str], environ: Mapping[str, str]) -> None:
        settings = " ".join(f"{name}={quote(value)}" for name, value in environ.items())
        self.type(f"{settings} {' '.join(map(quote, command))}; echo ended with $?")
        self.press("Enter")

    def type(self, text: str) -> None:
        self._run("send-keys", "-l", text)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names: Enter, F2, C-q."""
        self._run("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._run("resize-window", "-x", str(width), "-y", str(height))

    @property
    def text(self) -> str:
        return self._run("capture-pane", "-p")

    def until(self, condition: Callable[[str], bool], what: str) -> str:
        """Wait until the screen meets a condition, and return its text."""
        deadline_s = time.monotonic() + self._patience_s
        while not condition(text := self.text):
            assert time.monotonic() < deadline_s, f"{what} did not come about:\n{text}"
            time.sleep(0.1)
        return text

    def sees(self, *texts: str) -> str:
        return self.until(lambda shown: all(text in shown for text in texts), repr(texts))

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", self._socket, *arguments], capture_output=True, text=True, timeout=30)
        return done.stdout
