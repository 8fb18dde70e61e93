"""A crash report has enough to find the fault, and nothing of what was asked."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from eaglelocal import locations
from eaglelocal.errors import EngineError
from eaglelocal.worker.crash_report import (
    MAX_REPORT_BYTES,
    MAX_REPORTS,
    Crash,
    InFlight,
    format_log_line,
    keep_safe_lines,
    write_report,
)
from eaglelocal.worker.exit_reason import ExitReason

SECRET = "my secret question"


def crash(ending: ExitReason, *, in_flight: tuple[InFlight, ...] = (), error: EngineError | None = None) -> Crash:
    return Crash(
        target="demo",
        pid=4711,
        exit_reason=ending,
        error=error or ending.error(),
        uptime_s=12.34,
        was_loading=False,
        in_flight=in_flight,
    )


def in_flight(name: str, *, has_begun: bool) -> InFlight:
    return InFlight(id=name, kind="chat", age_s=1.5, has_begun=has_begun, owner="ann")


def test_one_line_says_signal_work_life_and_place() -> None:
    requests = tuple(in_flight(f"chat-{n}", has_begun=n < 4) for n in range(5))
    line = format_log_line(crash(ExitReason(-11), in_flight=requests), "started again at once", Path("/state/x.txt"))
    assert line == (
        "demo: the engine process crashed (signal 11, SIGSEGV) after 12.3 s, with 4 requests being answered "
        "(chat-0, chat-1, chat-2, ...) and 1 request not started (chat-4); started again at once; report: /state/x.txt"
    )
    assert "with no request; given up" in format_log_line(crash(ExitReason(-9)), "given up", None)


def test_stderr_is_kept_as_far_as_it_cannot_quote_a_request() -> None:
    lines = [
        "Fatal Python error: Segmentation fault",
        "Current thread 0x00007f (most recent call first):",
        '  File "/x/engine.py", line 7 in step',
        "Traceback (most recent call last):",
        '  File "/x/engine.py", line 7, in step',
        f"    raise ValueError({SECRET!r})",
        f"ValueError: {SECRET}",
        f"jinja2.exceptions.TemplateError: {SECRET}",
        "src/ggml.c:123: GGML_ASSERT(a == b) failed",
        f"thread 'main' panicked at src/lib.rs:1:2: {SECRET}"[:40],
        SECRET,
        f"{SECRET}: error",
        "",
    ]
    kept = keep_safe_lines(lines)
    assert kept[:5] == lines[:5]
    assert kept[5:] == ["ValueError", "jinja2.exceptions.TemplateError", *lines[8:10], "(3 other lines)"]
    assert SECRET not in "\n".join(kept)


@pytest.mark.parametrize(
    ("ending", "error"),
    [
        (ExitReason(1, (f"ValueError: {SECRET} failed",)), None),
        (ExitReason(1, ()), EngineError(f"the engine failed: ValueError: {SECRET}")),
        (ExitReason(-6, (f"{SECRET}: error",)), None),
    ],
    ids=["last words", "its own last message", "abort"],
)
def test_neither_log_nor_report_quotes_what_was_asked(ending: ExitReason, error: EngineError | None) -> None:
    one = crash(ending, error=error)
    path = write_report(one)
    assert path is not None
    assert SECRET not in path.read_text() + format_log_line(one, "given up", path)


def test_reports_are_private_few_and_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0)
    try:
        paths = [
            write_report(crash(ExitReason(-11, ("ggml_abort " * 400,) * 200)), at=n) for n in range(MAX_REPORTS + 5)
        ]
    finally:
        os.umask(before)
    left = sorted(locations.crash_reports_dir().iterdir())
    assert left == paths[5:]
    for path in left:
        assert path.stat().st_size <= MAX_REPORT_BYTES
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for folder in (tmp_path / "state", locations.crash_reports_dir()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_report_that_cannot_be_written_is_no_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert write_report(crash(ExitReason(-11))) is None
