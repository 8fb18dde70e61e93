"""The chat screen over a scripted client, as a program: what test_slow_terminal.py runs on a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

from doubles.chat_screen import Stage
from doubles.scripted_client import Script

WORDS = tuple(f"word{number}\n\n" if number % 5 == 0 else f"word{number} " for number in range(2000))

if __name__ == "__main__":
    stage = Stage(Path(sys.argv[1]), scripts=(Script(WORDS, delay_s=0.001),), keeps=True)
    stage.app.run()
    stage.app.partner.close()
