"""The entries of a transcript (questions, answers, thoughts, notes, figures, errors) and their rows. Pure.

A growing answer is many entries, one for each block of Markdown, so that a finished block is rendered only once. An
answer of a conversation that is opened is one entry, which is cut into blocks when it comes into view.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable
from dataclasses import field, replace
from enum import Enum

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from eaglelocal.conversation.answer_stats import answer_line, format_ending
from eaglelocal.conversation.chat_hints import word_for_chat
from eaglelocal.conversation.code_blocks import count_code_blocks
from eaglelocal.conversation.conversation import ToolRound, Turn
from eaglelocal.conversation.tool_rounds import describe_call
from eaglelocal.core.amounts import count_noun
from eaglelocal.core.events import Finished, TextPiece
from eaglelocal.core.records import dataclass
from eaglelocal.errors import EagleLocalError
from eaglelocal.tui.transcript.text_rows import CODE_META, Appearance, Row, render_columns, render_plain

DRAFTED_STYLE = Style(color="green", underline=True)  # color is never the only sign

SEPARATOR = " · "  # between figures
ASCII_SIGNS = str.maketrans({"·": "|", "█": "#"})


class EntryKind(Enum):
    QUESTION = "question"
    ANSWER = "answer"
    THOUGHT = "thought"
    CALL = "call"
    FIGURES = "figures"
    NOTE = "note"
    ERROR = "error"
    RULE = "rule"
    SUMMARY = "summary"


FOLDED = (EntryKind.THOUGHT, EntryKind.SUMMARY, EntryKind.CALL)  # only their first line is shown, until unfolded
MAX_QUESTION_LINES = 8  # of a longer question so many are shown, until it is unfolded


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """A part of a transcript."""

    kind: EntryKind
    text: str  # of a call: a line on it, its arguments, and its result
    mask: bytes = b""  # for answers, one byte per character: 1 if it was drafted and accepted
    has_gap: bool = True  # an empty row above
    turn: int = -1  # of a question: the index of its turn
    first_code: int = 1  # of an answer: the number of its first code block
    is_whole: bool = False  # an answer of any number of blocks
    title: str = "thought"  # of a folded text


@dataclass(frozen=True, slots=True)
class RenderOptions:
    """The display settings that rendered rows depend on."""

    appearance: Appearance = field(default_factory=Appearance)
    marks_drafted: bool = False
    shows_thoughts: bool = False


def render_entry(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    rows = _RENDERERS[entry.kind](entry, width, view)
    return [[], *rows] if entry.has_gap else rows


def estimate_height(entry: TranscriptEntry, width: int, view: RenderOptions) -> int:
    """Return the approximate number of rows of an entry, much faster than `render_entry`."""
    if entry.kind in FOLDED and not view.shows_thoughts:
        return 1 + entry.has_gap
    shown, fold = _cut_question(entry.text, width, view) if entry.kind is EntryKind.QUESTION else (entry.text, "")
    lines = [*shown.split("\n"), *filter(None, [fold])]
    return entry.has_gap + sum(max(1, -(-len(line) // max(width - 2, 1))) for line in lines)


def make_entries(
    turns: Iterable[Turn], first_turn: int = 0, first_code: int = 1, *, has_figures: bool = True
) -> list[TranscriptEntry]:
    """Return the entries of turns, which begin with this index and this number of a code block."""
    entries: list[TranscriptEntry] = []
    for index, turn in enumerate(turns, first_turn):
        end = describe_end(turn.finished, has_figures=has_figures)
        entries += _make_turn_entries(turn, index, first_code)
        entries += make_figures_entries(turn, end or ("stopped" if turn.stopped else ""))
        first_code += sum(map(count_code_blocks, turn.texts))
    return entries


def describe_end(finished: Finished | None, n_ctx: int = 0, *, has_figures: bool) -> str:
    """Return the figures of an answer, or only why it ended early; "" if it did not, or if none are known."""
    if finished is None:
        return ""
    return answer_line(finished, n_ctx) if has_figures else SEPARATOR.join(format_ending(finished, n_ctx))


def make_error_entry(error: EagleLocalError) -> TranscriptEntry:
    hint = f"\nhint: {word_for_chat(error.hint)}" if error.hint else ""
    report = f"\nreport: {error.report}" if error.report else ""
    return TranscriptEntry(EntryKind.ERROR, f"error: {error.message}{hint}{report}")


def _make_turn_entries(turn: Turn, index: int, first_code: int) -> list[TranscriptEntry]:
    entries = [make_question(turn.shown_question, index)]
    for done in turn.rounds:
        entries += [*_make_answer_entries(done, first_code), *make_call_entries(done)]
        first_code += count_code_blocks(done.text)
    return [*entries, *_make_answer_entries(ToolRound((), turn.answer, turn.reasoning), first_code)]


def make_figures_entries(turn: Turn | None, figures: str) -> list[TranscriptEntry]:
    """Return the line below the answer of a turn, if there is anything to say: `version 2/2 · 87 tokens`."""
    version = f"version {turn.version + 1}/{turn.num_versions}" if turn is not None and turn.others else ""
    line = SEPARATOR.join(filter(None, [version, figures]))
    return [TranscriptEntry(EntryKind.FIGURES, line, has_gap=False)] if line else []


def _make_answer_entries(done: ToolRound, first_code: int) -> list[TranscriptEntry]:
    thought = [TranscriptEntry(EntryKind.THOUGHT, done.reasoning)] if done.reasoning.strip() else []
    answer = TranscriptEntry(EntryKind.ANSWER, done.text, first_code=first_code, is_whole=True)
    return [*thought, *([answer] if done.text else [])]


def make_call_entries(done: ToolRound) -> list[TranscriptEntry]:
    """Return an entry for each call of a round; those of one round form one block."""
    texts = ("\n".join((describe_call(one), one.call.arguments, one.result)) for one in done.calls)
    return [TranscriptEntry(EntryKind.CALL, text, has_gap=not number) for number, text in enumerate(texts)]


def make_question(text: str, turn: int) -> TranscriptEntry:
    """turn: the index of its turn."""
    return TranscriptEntry(EntryKind.QUESTION, text, turn=turn)


def split_answer(answer: TranscriptEntry) -> list[TranscriptEntry]:
    """Return an answer as one entry for each top-level block of Markdown."""
    from eaglelocal.tui.transcript.markdown_rows import measure_blocks

    entries, begin, code = list[TranscriptEntry](), 0, answer.first_code
    for length in filter(None, measure_blocks(answer.text)):
        text, mask = answer.text[begin : begin + length], answer.mask[begin : begin + length]
        entries.append(TranscriptEntry(EntryKind.ANSWER, text, mask, first_code=code))
        begin, code = begin + length, code + count_code_blocks(text)
    return entries


# ---- renderers
def _render_question(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    mark = Segment("> " if view.appearance.is_ascii else "❯ ", Style(color="cyan", bold=True))
    shown, fold = _cut_question(entry.text, width, view)
    rows = render_plain(shown, width - 2, view.appearance, "bold")
    last = _render_sign(fold, width - 2, view) if fold else []
    return [[mark if number == 0 else Segment("  "), *row] for number, row in enumerate([*rows, *last])]


def is_long_question(entry: TranscriptEntry, width: int) -> bool:
    return entry.kind is EntryKind.QUESTION and bool(_cut_question(entry.text, width, RenderOptions())[1])


def _cut_question(text: str, width: int, view: RenderOptions) -> tuple[str, str]:
    """Return the shown part of a question, and the title of the row that unfolds a long one; "" for a short one."""
    text = text.rstrip("\n")
    shown = "\n".join(text.split("\n", MAX_QUESTION_LINES)[:MAX_QUESTION_LINES])[: MAX_QUESTION_LINES * width]
    if len(shown) == len(text):
        return text, ""
    whole = text if view.shows_thoughts else text[len(shown) :]
    num_lines = whole.count("\n") + view.shows_thoughts
    size = count_noun(num_lines, "line") if num_lines else count_noun(len(whole), "character")
    return (text, size) if view.shows_thoughts else (shown, f"and {size} more")


def _render_answer(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    from eaglelocal.tui.transcript.markdown_rows import render_markdown

    if entry.is_whole:
        rows = [row for block in split_answer(entry) for row in render_entry(block, width, view)]
        return rows[1:] or [[]]  # without the gap of the first block
    formulas = not view.marks_drafted  # the mask belongs to the source
    rows = render_markdown(entry.text, width, view.appearance, formulas=formulas, first_code=entry.first_code)
    return mark_drafted(rows, entry.text, entry.mask, DRAFTED_STYLE) if view.marks_drafted else rows


def _render_thought(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    title = f"{entry.title}, {count_noun(len(entry.text.split()), 'word')}"
    return _render_folded(title, entry.text.strip(), width, view)


def _render_call(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    title, _, body = entry.text.partition("\n")
    return _render_folded(title, body, width, view)


def _render_folded(title: str, body: str, width: int, view: RenderOptions) -> list[Row]:
    """Render a title with the sign of its state, and unfolded the body below it."""
    head = _render_sign(title, width, view)
    if not view.shows_thoughts:
        return head
    rows = render_plain(body, width - 2, view.appearance, "dim italic")
    return [*head, *([Segment("  "), *row] for row in rows)]


def _render_sign(title: str, width: int, view: RenderOptions) -> list[Row]:
    """Render a title after the sign that it is folded, or unfolded."""
    closed, opened = ("+", "-") if view.appearance.is_ascii else ("▸", "▾")
    sign = opened if view.shows_thoughts else closed
    return render_plain(f"{sign} {title}", width, view.appearance, "dim italic")


def _render_note(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    """Render a message of the program, in ASCII mode without its Unicode signs."""
    text = entry.text.translate(ASCII_SIGNS) if view.appearance.is_ascii else entry.text
    return render_columns(text, width, view.appearance, "dim")


def _render_figures(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    """Render figures, with line breaks only between them."""
    first, *others = entry.text.split(SEPARATOR)
    lines = [first]
    for figure in others:
        is_fitting = cell_len(lines[-1] + SEPARATOR + figure) <= width
        lines = [*lines[:-1], lines[-1] + SEPARATOR + figure] if is_fitting else [*lines, figure]
    return _render_note(replace(entry, text="\n".join(lines)), width, view)


def _render_rule(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    """Render a text in a rule that fills the row; a longer text has rows of its own."""
    line = "-" if view.appearance.is_ascii else "─"
    text = f"{line * 2} {entry.text} "
    return _render_note(replace(entry, text=text + line * max(width - cell_len(text), 0)), width, view)


def _render_error(entry: TranscriptEntry, width: int, view: RenderOptions) -> list[Row]:
    """Render an error in red, and what follows its message, such as a hint, as code is."""
    message, *hints = re.split(r"\n(?=hint: |report: )", entry.text)
    rows = render_plain(message, width, view.appearance, "red")
    return [*rows, *(row for hint in hints for row in render_plain(hint, width, view.appearance, "cyan"))]


_RENDERERS = {
    EntryKind.QUESTION: _render_question,
    EntryKind.ANSWER: _render_answer,
    EntryKind.THOUGHT: _render_thought,
    EntryKind.CALL: _render_call,
    EntryKind.FIGURES: _render_figures,
    EntryKind.NOTE: _render_note,
    EntryKind.ERROR: _render_error,
    EntryKind.RULE: _render_rule,
    EntryKind.SUMMARY: _render_thought,
}


# ---- draft marks: mark the drafted characters of rendered rows, given a mask over the characters of the source
#
# Rendering drops markup and adds bullets and borders, but keeps letters in order. So each rendered character is
# looked for in the source after the last one found, skipping only markup. Pure.
#
# Example: source `**on** time`, mask on `time`; rendered `on time`: o, n are found after the stars, time after ` `.
MAX_SKIP = 400  # characters of markup in one piece: a link's address is the longest


def mark_drafted(rows: list[Row], source: str, mask: bytes, style: Style) -> list[Row]:
    """Return the rows with `style` added where the mask is set. mask: one byte per source character, 1: drafted."""
    if not any(mask):
        return rows
    cursor = _SourceCursor(source, mask)
    return [[part for segment in row for part in _split(segment, cursor, style)] for row in rows]


class _SourceCursor:
    """A position in the source that follows the rendered characters."""

    def __init__(self, source: str, mask: bytes) -> None:
        self._source, self._mask, self._position = source, mask, 0

    def is_drafted(self, char: str) -> bool:
        if char.isspace():
            return False
        found = self._source.find(char, self._position, self._position + MAX_SKIP)
        if found < 0 or not _is_markup(self._source[self._position : found]):
            return False  # rendering added it
        self._position = found + 1
        return bool(self._mask[found])


def _is_markup(skipped: str) -> bool:
    """Return True if this source text is not shown: punctuation, blanks, a link's address, the language of a fence."""
    return not any(char.isalnum() for char in skipped) or any(
        mark in skipped for mark in ("](", "```", "~~~", "<details", "<summary")
    )


def _split(segment: Segment, cursor: _SourceCursor, style: Style) -> Row:
    if segment.style is not None and CODE_META in segment.style.meta:
        language = segment.text.partition(" #")[0]  # of a label, whose number is not in the source
        for char in language:
            cursor.is_drafted(char)
        return [segment]
    parts: list[tuple[str, bool]] = []
    for char in segment.text:
        is_drafted = cursor.is_drafted(char)
        if parts and parts[-1][1] == is_drafted:
            parts[-1] = (parts[-1][0] + char, is_drafted)
        else:
            parts.append((char, is_drafted))
    base = segment.style or Style()
    return [Segment(text, base + style if is_drafted else segment.style) for text, is_drafted in parts]


# ---- live answer: an answer while it grows: pieces in from any thread, entries out on the screen's thread, finished
# ones only once
#
# Does not know widgets. Only the last block of Markdown is returned repeatedly, so a long answer costs no more than a
# short one.
class LiveAnswer:
    """A growing answer. `push` is quick and safe from any thread; everything else is for one thread."""

    def __init__(self, first_code: int = 1) -> None:
        """first_code: the number of its first code block."""
        self._next_code = first_code
        self._lock = threading.Lock()
        self._pieces: list[TextPiece] = []
        self.has_begun = False
        self._text, self._mask = "", b""  # text of the blocks that may still change
        self._num_whole_chars = 0  # characters of whole lines, when it was last cut into blocks
        self._thought = ""

    def push(self, pieces: Iterable[TextPiece]) -> None:
        with self._lock:
            self._pieces.extend(pieces)
            self.has_begun = True

    @property
    def has_pieces(self) -> bool:
        return bool(self._pieces)

    def advance(self) -> tuple[list[TranscriptEntry], list[TranscriptEntry]]:
        """Return the entries finished since the last call, and those that may still change."""
        with self._lock:
            pieces, self._pieces = self._pieces, []
        self._thought += "".join(piece.reasoning for piece in pieces)
        self._text += "".join(piece.text for piece in pieces)
        self._mask += b"".join((b"\1" if piece.drafted else b"\0") * len(piece.text) for piece in pieces)
        if not self._text.strip():
            return [], self._thought_entries()
        thoughts, self._thought = self._thought_entries(), ""
        return thoughts + self._finished_blocks(), self._block(len(self._text))

    def _thought_entries(self) -> list[TranscriptEntry]:
        """Return the thoughts so far, which may change until the answer's text begins."""
        return [TranscriptEntry(EntryKind.THOUGHT, self._thought)] if self._thought.strip() else []

    def _finished_blocks(self) -> list[TranscriptEntry]:
        """Return an entry for each finished block, so that it looks the same however much came at once.

        Only whole lines are cut: `#` begins a heading, `#tag` continues the paragraph.
        """
        num_whole = self._text.rfind("\n") + 1
        if num_whole == self._num_whole_chars:  # no line has been completed
            return []
        whole = self._text[:num_whole]
        from eaglelocal.tui.transcript.markdown_rows import measure_blocks

        finished = [entry for length in measure_blocks(whole)[:-1] for entry in self._take_block(length)]
        self._num_whole_chars = self._text.rfind("\n") + 1
        return finished

    def _take_block(self, length: int) -> list[TranscriptEntry]:
        block = self._block(length)
        self._next_code += count_code_blocks(self._text[:length])
        self._text, self._mask = self._text[length:], self._mask[length:]
        return block

    def _block(self, length: int) -> list[TranscriptEntry]:
        if not length:
            return []
        text, mask = self._text[:length], self._mask[:length]
        return [TranscriptEntry(EntryKind.ANSWER, text, mask, first_code=self._next_code)]
