"""A terminal that reads nothing delays the screen, never the answer."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

from doubles.timeouts import wait_until

PROGRAM = Path(__file__).with_name("chat_program.py")
PATIENCE_S = 60.0


def read_until(terminal: int, wanted: bytes) -> None:
    shown, deadline_s = b"", time.monotonic() + PATIENCE_S
    while wanted not in shown:
        assert time.monotonic() < deadline_s, shown[-2000:]
        if select.select([terminal], [], [], 0.1)[0]:
            shown += os.read(terminal, 65536)


def test_an_answer_ends_while_nobody_reads_the_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 200, 0, 0))
    paths = os.pathsep.join([str(PROGRAM.parents[1]), str(PROGRAM.parents[2]), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": paths}
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(tmp_path)], stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    )
    os.close(theirs)
    try:
        read_until(ours, b"context")
        os.write(ours, b"go on\r")
        file = tmp_path / "conversations" / "go on.json"
        wait_until(file.exists, "the whole answer on disk")
        answer = json.loads(file.read_text())["turns"][0]["answer"]
        assert answer.rstrip().endswith("word1999")
        read_until(ours, b"word1999")
    finally:
        program.kill()
        program.wait()
        os.close(ours)
