"""`eaglelocal plan` for another machine needs no native library, neither ours nor llama.cpp's."""

from __future__ import annotations

import subprocess
import sys

COMMAND = """
import ctypes
import sys

def refuse(*args, **kwargs):
    raise OSError("no library can be opened")

ctypes.CDLL.__init__ = refuse
from eaglelocal.cli.main import main

sys.argv = ["eaglelocal", "plan", "qwen3-8b", "--machine", "m2-max-32gb"]
sys.exit(main())
"""


def test_a_plan_for_another_machine_opens_no_library() -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "plan     qwen3-8b:" in done.stdout
