"""Format the chat's panel: context, answers and what drafts save, then where they are accepted. Pure.

Everything in it is about this chat: its answers have their own gain, and the sentence is about all of them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eaglelocal.conversation.conversation import ContextUse
from eaglelocal.core.draft import LOOKUPS_GO_ON, SWITCHED_OFF
from eaglelocal.core.events import Finished
from eaglelocal.core.records import dataclass
from eaglelocal.tui.glyphs import Glyphs
from eaglelocal.tui.panel.feed import PanelFrame
from eaglelocal.tui.panel.panel_text import (
    format_bar,
    format_count,
    format_drafts,
    format_gain,
    format_percent,
    format_seconds,
    format_tok_s,
    format_window,
)
from eaglelocal.tui.styled_lines import EMPTY_LINE, Line, StyledSpan, fit_lines, make_line

MAX_ANSWERS = 8
MIN_SAVED_SHARE = 0.02  # of the time: less is within what the estimate of plain decoding can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFigures:
    """The figures of a chat; `answers` are of one model, the newest last."""

    context: ContextUse
    frame: PanelFrame
    answers: tuple[Finished, ...] = ()


def format_chat_panel(
    chat: ChatFigures, width: int, height: int, glyphs: Glyphs, *, has_details: bool = False
) -> list[Line]:
    """Return at most `height` lines of `width` cells; `has_details`: also where drafts are accepted."""
    context = format_context_lines(chat.context, glyphs)
    sentences = textwrap.wrap(describe_saving(chat.answers, chat.frame), max(width, 1))
    below = [make_line(sentence) for sentence in sentences]
    if chat.frame.reading is not None and chat.frame.reading.learning:
        below.append(make_line((chat.frame.reading.learning, "quiet")))
    details = format_details(chat.frame, width, height - len(context) - len(below) - 1, glyphs) if has_details else []
    room = height - len(context) - len(below) - len(details)
    answers = format_answers(chat.answers, min(room - 1, MAX_ANSWERS))
    lines = [*context, *([EMPTY_LINE, *answers] if answers else []), *below, *details]
    return fit_lines(lines, width, height)


def format_context_lines(context: ContextUse, glyphs: Glyphs) -> list[Line]:
    parts = [("system", context.system), ("history", context.history)]
    if not context.size:
        return []
    bar = (*format_bar(context.share, 16, glyphs, "accent"), StyledSpan(" ")) if context.used else ()
    head = make_line(("context  ", "quiet"), *bar, f"{format_percent(context.share)} of {format_count(context.size)}")
    named = [f"{name} {format_count(count)}" for name, count in (*parts, ("free", context.free)) if count]
    return [head, make_line((", ".join(named), "quiet"))]


def format_answers(answers: Sequence[Finished], max_rows: int) -> list[Line]:
    """Return a heading and a row for each of the newest answers, the last one below; nothing without room."""
    shown = answers[-max_rows:] if max_rows > 1 else ()
    if not shown:
        return []
    head = make_line((f"{'answer':>6} {'time':>8} {'tokens':>7} {'tok/s':>7} {'gain':>6}", "quiet"))
    first = len(answers) - len(shown) + 1
    return [head, *(format_answer_row(number, answer) for number, answer in enumerate(shown, first))]


def format_answer_row(number: int, answer: Finished) -> Line:
    timings, gain = answer.timings, answer.speculation.speedup_estimate
    tok_s, seconds = format_tok_s(timings.decode_tok_s or None), format_seconds(timings.ttft_s + timings.decode_s)
    return make_line(
        (f"{number:>6} ", "quiet"),
        f"{seconds:>8} {format_count(answer.completion_tokens):>7} {tok_s:>7}",
        (f" {format_gain(gain) if gain else 'plain':>6}", "good" if gain and gain >= 1 else "quiet"),
    )


def describe_saving(answers: Sequence[Finished], frame: PanelFrame) -> str:
    """Return in a sentence what drafts are worth here: the time that they save, or why there are none now."""
    state, reason = frame.drafting.state, frame.drafting.reason
    if state == "off":
        return "No drafts (your setting): plain speed." if reason == SWITCHED_OFF else f"No drafts: {reason}."
    saved = compute_saved_share(answers)
    over = f"{format_percent(abs(saved))} of the time"
    if state == "asleep":
        speed, time = ("", "So far") if reason.endswith(LOOKUPS_GO_ON) else (", plain speed", "Before")
        drafts = f" {time}, drafts saved {over}." if saved >= MIN_SAVED_SHARE else ""
        return f"Paused{speed}: {reason}.{drafts}"
    if not answers:
        return "No answer yet."
    if abs(saved) < MIN_SAVED_SHARE:
        return "Drafts neither save nor cost time so far."
    return f"Drafts save {over}." if saved > 0 else f"Drafts have cost {over} so far."


def compute_saved_share(answers: Sequence[Finished]) -> float:
    """Return the share of the time after first tokens that drafts saved, estimated; below 0 if they cost time."""
    took = sum(answer.timings.decode_s for answer in answers)
    plain = sum(answer.timings.decode_s * (answer.speculation.speedup_estimate or 1.0) for answer in answers)
    return 1.0 - took / plain if plain > 0 else 0.0


def format_details(frame: PanelFrame, width: int, height: int, glyphs: Glyphs) -> list[Line]:
    """Return where drafts were accepted and what the time went into, under a title with the tokens that it is about."""
    lines = format_drafts(frame, width, height - 2, glyphs)
    window = format_window(frame)
    title = f"drafts, {window}" if window else "drafts"
    return [EMPTY_LINE, make_line((title, "quiet")), *lines] if lines else []
