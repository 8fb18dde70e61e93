"""The picture of the chat screen in the README, from the program itself and a model that really answers.

python tests/measures/chat_screenshot.py docs/chat.svg --target demo@1b:bf16
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from doubles.chat_screen import ChatObserver

from eaglelocal.cli.chat import open_session
from eaglelocal.conversation.answer_stats import MessageOutput
from eaglelocal.conversation.session import Session
from eaglelocal.core.run_options import ModelChoice
from eaglelocal.settings import Settings
from eaglelocal.tui.chat.chat_app import ChatApp, ChatPaths
from eaglelocal.tui.display_options import DisplayOptions

QUESTIONS = ("What is acceptance length?", "Write a Python function that reverses a list", "What is a draft model?")


async def picture(target: str, folder: Path) -> str:
    """SVG."""
    settings = Settings(target=target, url="none", temperature=0.0)

    def opened(output: MessageOutput, choice: ModelChoice) -> Session:
        return open_session(settings, output, choice)

    paths = ChatPaths(conversations=folder / "conversations", history=folder / "questions.jsonl")
    app = ChatApp(opened, paths, DisplayOptions(), saves=False)
    try:
        async with app.run_test(size=(144, 36)) as pilot:
            person = ChatObserver(app, pilot)
            await person.ready()
            for question in QUESTIONS:
                await person.ask(question)
                await person.idle()
            await pilot.pause(2.0)
            return app.export_screenshot(title="eaglelocal chat")
    finally:
        app.controller.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="demo@1b:bf16")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments.file.write_text(asyncio.run(picture(arguments.target, Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    main()
