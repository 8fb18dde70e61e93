"""The chat screen over a scripted client, as a program that tests run: python chat_program.py FOLDER [broken]

With `broken`, F1 raises an unexpected error.
"""

from __future__ import annotations

import sys
from pathlib import Path

from doubles.chat_screen import ChatHarness
from doubles.scripted_client import Script

from eaglelocal.cli.main import handle_end_signals, report_failure
from eaglelocal.cli.output import standard_output
from eaglelocal.tui.chat.chat_app import ChatApp, run_chat

WORDS = tuple(f"word{number}\n\n" if number % 5 == 0 else f"word{number} " for number in range(2000))

if __name__ == "__main__":
    stage = ChatHarness(Path(sys.argv[1]), scripts=(Script(WORDS, delay_s=0.001),), saves=True)
    if sys.argv[2:] == ["broken"]:
        ChatApp.action_help = lambda self: 1 // 0  # type: ignore[assignment,method-assign,return-value]
    handle_end_signals()
    try:
        code = run_chat(stage.app)
    except Exception as problem:
        code = report_failure(problem, standard_output())
    sys.exit(code)
