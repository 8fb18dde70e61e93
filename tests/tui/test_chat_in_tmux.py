"""The real `eaglelocal chat` in a terminal, with the embedded model, used by keys alone."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from doubles import tmux
from doubles.timeouts import wait_until

ROOT = Path(__file__).parents[2]
NUM_SIGNALS = 12
CHAT = [sys.executable, "-m", "eaglelocal", "chat", "--url", "none", "--temperature", "0", "--target", "demo"]

pytestmark = [pytest.mark.full, pytest.mark.skipif(not tmux.IS_THERE, reason="tmux is not installed")]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    state, config = str(tmp_path / "state"), str(tmp_path / "config")
    return {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": state, "XDG_CONFIG_HOME": config, "LC_ALL": "C.UTF-8"}


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[tmux.TmuxScreen]:
    with tmux.TmuxScreen(tmp_path) as screen:
        yield screen


def test_a_question_is_answered_on_the_screen_and_the_panel_shows_its_acceptance(
    terminal: tmux.TmuxScreen, environ: dict[str, str], tmp_path: Path
) -> None:
    terminal.start(CHAT, environ)
    terminal.sees("Ask something")
    terminal.type("What is acceptance length?")  # typed while the model loads
    terminal.press("Enter")
    terminal.sees("verification", "tok/s · ")
    terminal.press("F2")
    terminal.sees("answer     time")
    terminal.until(lambda text: "Drafts " in text or "Paused: " in text, "what drafts gain")  # little, beside others
    terminal.press("F9")
    shown = terminal.sees(" tokens a pass")
    assert float(re.search(r"%, (\d+\.\d+) tokens a pass", shown).group(1)) > 1.0  # type: ignore[union-attr]
    terminal.resize(130, 40)
    terminal.sees("What is acceptance length?", "history ")
    terminal.press("C-q")
    terminal.sees("ended with 0")
    assert list((tmp_path / "state" / "eaglelocal" / "conversations").glob("What is acceptance length.json"))


def test_ctrl_z_gives_the_shell_back_and_fg_the_whole_screen(
    terminal: tmux.TmuxScreen, environ: dict[str, str]
) -> None:
    terminal.start(CHAT, environ)
    terminal.sees("(0 %)")
    terminal.type("kept")
    terminal.sees("│ kept")
    terminal.press("C-z")
    terminal.until(lambda text: "Ask" not in text and "ended with" in text, "the shell")
    terminal.type("fg")
    terminal.press("Enter")
    terminal.sees("(0 %)", "│ kept", "^q Leave")
    terminal.press("C-q")


def test_to_be_asked_to_continue_changes_nothing(terminal: tmux.TmuxScreen, environ: dict[str, str]) -> None:
    """Each SIGCONT began to read the keys in one thread more."""
    terminal.start(CHAT, environ)
    terminal.sees("(0 %)")
    chat = next(each for each in processes(environ) if "chat" in each.cmdline())
    num_threads = chat.num_threads()
    for _ in range(NUM_SIGNALS):
        chat.send_signal(signal.SIGCONT)
        time.sleep(0.2)  # signals that come at once are one
    terminal.sees("(0 %)", "^q Leave")

    def is_read(shown: str) -> bool:
        """Types until it is seen: the terminal drops keys that come while it is set up again."""
        if "│ again" not in shown:
            terminal.type("again ")
        return "│ again" in shown

    terminal.until(is_read, "what is typed after the signals")
    terminal.type("in order, whoever reads")
    terminal.sees("again in order, whoever reads")
    assert chat.num_threads() < num_threads + NUM_SIGNALS // 2  # a pool of threads may grow by one or two meanwhile


@pytest.mark.parametrize("expected", ["", "a question"])
def test_a_closed_terminal_ends_it(tmp_path: Path, environ: dict[str, str], expected: str) -> None:
    with tmux.TmuxScreen(tmp_path) as terminal:
        terminal.start(CHAT, environ)
        terminal.sees("(0 %)")
        ours = processes(environ)
        if expected:
            terminal.type(expected)
            terminal.press("Enter")
    assert ours
    assert psutil.wait_procs(ours, timeout=30)[1] == []


def test_an_engine_that_is_killed_is_started_again_and_the_next_question_works(
    terminal: tmux.TmuxScreen, environ: dict[str, str]
) -> None:
    terminal.start(CHAT, environ)
    terminal.sees("(0 %)")
    ours = processes(environ)
    (engine,) = [each for each in ours if "chat" not in each.cmdline() and "eaglelocal" in str(each.cmdline())]
    engine.kill()
    terminal.sees("running again")
    terminal.type("What is acceptance length?")
    terminal.press("Enter")
    terminal.sees("tok/s · ")
    terminal.press("C-q")
    terminal.sees("ended with 0")
    wait_until(lambda: not any(process.is_running() for process in ours), "engine and program end")


def processes(environ: dict[str, str]) -> list[psutil.Process]:
    """The program and its engine."""
    marker = f"XDG_STATE_HOME={environ['XDG_STATE_HOME']}"
    return [process for process in psutil.process_iter() if marker in environment(process)]


def environment(process: psutil.Process) -> list[str]:
    try:
        return [f"{name}={value}" for name, value in process.environ().items()]
    except psutil.Error:
        return []


def test_a_pipe_gets_lines_and_no_screen(environ: dict[str, str]) -> None:
    import subprocess

    done = subprocess.run(
        [*CHAT, "--max-tokens", "4"],
        input="hi",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0
    assert "\x1b" not in done.stdout


def is_asked(shown: str, num_chats: int) -> bool:
    """Return whether that many chats began, and the last one reads: a key before that may be lost."""
    return shown.count("/help lists the commands") == num_chats and shown.rstrip().endswith(">")


def test_plain_and_dumb_terminals_get_line_mode(terminal: tmux.TmuxScreen, environ: dict[str, str]) -> None:
    terminal.start([*CHAT, "--plain"], environ)
    terminal.until(lambda shown: is_asked(shown, 1), "line mode")
    terminal.press("C-d")
    terminal.sees("ended with 0")
    terminal.start(CHAT, {**environ, "TERM": "dumb"})
    terminal.until(lambda shown: is_asked(shown, 2), "line mode again")
    terminal.press("C-d")
    terminal.until(lambda shown: shown.count("ended with 0") == 2, "the end")
