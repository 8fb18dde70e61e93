"""Write the conversation to the transcript: finished entries, and after them the answer that still grows.

Called on the screen's thread only; another thread pushes the pieces of the answer (live_answer.py).
"""

from __future__ import annotations

from collections.abc import Iterable

from eaglelocal.conversation.answer_stats import format_ending, statistics_line
from eaglelocal.conversation.ask import AskResult, left_out_line
from eaglelocal.conversation.conversation import Turn
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.transcript.entries import EntryKind, TranscriptEntry, make_entries, make_error_entry
from eaglelocal.tui.transcript.live_answer import LiveAnswer
from eaglelocal.tui.transcript.transcript import Transcript


class TranscriptWriter:
    """The only writer of the transcript."""

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self.has_figures = True  # a line of figures stands below each answer, not only why it ended early
        self._live = LiveAnswer()
        self._tail = 0  # index in the transcript from which the running answer may change

    # ---- notes, above the growing answer
    def note(self, text: str) -> None:
        self._transcript.insert_note(self._tail, text)
        self._tail += 1

    def show_error(self, error: EagleLocalError) -> None:
        self._add(make_error_entry(error))

    # ---- question and answer
    def add_question(self, question: str, live: LiveAnswer) -> None:
        """Add a question, whose answer grows in `live` from here on."""
        self._live = live
        self._tail = len(self._transcript)  # an answer that failed at once has not set it
        self._transcript.follow()
        self._add(TranscriptEntry(EntryKind.QUESTION, question))
        self._transcript.set_growing(True)

    def draw_answer(self) -> None:
        """Show what has arrived of the answer since the last call."""
        if self._live.has_pieces:
            finished, growing = self._live.advance()
            self._transcript.replace_from(self._tail, [*finished, *growing])
            self._tail += len(finished)

    def end_answer(self, result: AskResult, n_ctx: int) -> None:
        """Finish the answer, complete or not, with its figures or its error. n_ctx: tokens of the context."""
        self.draw_answer()
        self._tail = len(self._transcript)
        self._transcript.set_growing(False)
        outcome = result.outcome
        if result.num_left_out:
            self.note(left_out_line(result.num_left_out, n_ctx))
        if outcome.finished is not None:
            endings = format_ending(outcome.finished, n_ctx)
            line = statistics_line(outcome.finished, n_ctx) if self.has_figures else " · ".join(endings)
            if line:
                self._add(TranscriptEntry(EntryKind.FIGURES, line, has_gap=False))
        elif outcome.text:
            self._add(TranscriptEntry(EntryKind.FIGURES, "the answer above is incomplete", has_gap=False))
        if outcome.error is not None:
            self.show_error(outcome.error)

    # ---- the conversation
    def remove_question(self) -> None:
        """Remove the last question and everything below it."""
        self._transcript.remove_question()
        self._tail = len(self._transcript)

    def replace_conversation(self, turns: Iterable[Turn]) -> None:
        """Replace the whole transcript by another conversation."""
        self._transcript.load(make_entries(turns))
        self._tail = len(self._transcript)

    def _add(self, entry: TranscriptEntry) -> None:
        self._transcript.insert(self._tail, entry)
        self._tail += 1
