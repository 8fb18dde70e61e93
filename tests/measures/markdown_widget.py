"""What a growing answer costs below many others: in our transcript, and in a `Markdown` widget of Textual per answer.

    python tests/measures/markdown_widget.py ours|textual ANSWERS

Screens of 120x40 without a terminal. Counted is the processor time of the whole process from one piece of 24
characters until the screen is idle again, and what the answers add to the resident memory.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widgets import Markdown

from eaglelocal.conversation.conversation import Turn
from eaglelocal.core.events import TextPiece
from eaglelocal.tui.transcript.entries import LiveAnswer
from eaglelocal.tui.transcript.transcript import Transcript

ANSWER = (
    "A **short** answer with `code`, *emphasis* and a [link](http://example.com).\n\n"
    "It goes on with a second paragraph, which is long enough to be wrapped in a terminal of one hundred and twenty "
    "columns, as most paragraphs of a model are.\n\n- first item\n- second item, with **bold** words\n- third item\n\n"
    "```python\ndef add(a: int, b: int) -> int:\n    return a + b\n```\n\n"
    "| name | value |\n|---|---|\n| one | 1 |\n| two | 2 |\n\n1. step one\n2. step two\n\nThe last paragraph.\n"
)
PIECES = [ANSWER[begin : begin + 24] for begin in range(0, len(ANSWER), 24)]
Write = Callable[[str], Awaitable[None]]


class Ours(App[None]):
    def compose(self) -> ComposeResult:
        self.transcript = Transcript()
        yield self.transcript

    async def begin(self, num_answers: int) -> Write:
        live = LiveAnswer()
        self.transcript.replace_conversation([Turn("question", ANSWER)] * num_answers)
        self.transcript.add_question("question", live)

        async def write(text: str) -> None:
            live.push([TextPiece(0, text, False)])
            self.transcript.draw_answer()

        return write


class OfTextual(App[None]):
    def compose(self) -> ComposeResult:
        yield VerticalScroll()

    async def begin(self, num_answers: int) -> Write:
        scrolled = self.query_one(VerticalScroll)
        await scrolled.mount(*(Markdown(ANSWER) for _ in range(num_answers)), Markdown(id="growing"))
        scrolled.anchor()
        return Markdown.get_stream(self.query_one("#growing", Markdown)).write


async def measure(app: Ours | OfTextual, num_answers: int) -> None:
    async with app.run_test(size=(120, 40)) as pilot:
        memory, began_s = resident_mib(), time.process_time()
        write = await app.begin(num_answers)
        await pilot.pause()
        opened_s = time.process_time() - began_s
        costs = [await write_piece(write, piece, pilot) for piece in PIECES]
        print(f"opened in {opened_s:.2f} s of processor time, {resident_mib() - memory:.0f} MiB")
        print(f"a piece takes {1000 * statistics.median(costs):.0f} ms, at most {1000 * max(costs):.0f} ms")


async def write_piece(write: Write, piece: str, pilot: Pilot[None]) -> float:
    began_s = time.process_time()
    await write(piece)
    await pilot.pause()
    return time.process_time() - began_s


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


if __name__ == "__main__":
    asyncio.run(measure(OfTextual() if sys.argv[1] == "textual" else Ours(), int(sys.argv[2])))
