"""Parts of transcripts: Markdown as rows, blocks of growing texts, marks on drafted text, running sums."""

from __future__ import annotations

import string
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.style import Style
from textual.strip import Strip

from eaglelocal.conversation.conversation import Turn
from eaglelocal.core.events import TextPiece
from eaglelocal.tui.transcript.entries import (
    EntryKind,
    LiveAnswer,
    RenderOptions,
    TranscriptEntry,
    estimate_height,
    make_entries,
    mark_drafted,
    render_entry,
)
from eaglelocal.tui.transcript.markdown_rows import measure_blocks, render_markdown
from eaglelocal.tui.transcript.text_rows import Appearance, join_row, render_plain
from eaglelocal.tui.transcript.transcript_layout import TranscriptLayout

DOCUMENT = (
    "# Title\n\nSome **bold** `code`, a [link](http://x.y) and <b>html</b>.\n\n- one\n- two\n\n  still two\n\n"
    "1. first\n\n```python\nx = 1\n\ny = 2\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> said\n\n[x]: http://y\n\nend"
)
SCRAPS = st.lists(
    st.sampled_from(
        [*DOCUMENT.split("\n"), "", "\t", "```", "é日本", "\r", "\u2028", "* * *", "    code"]
        + ["2.", "3. ", "-", "   10)", ">", "#", "|", "$$", "\\(", "\\)", "~~", "![", "\\"]
    )
)
MARK = Style(underline=True)


def texts(text: str, width: int = 40, *, is_ascii: bool = False) -> list[str]:
    return [join_row(row).rstrip() for row in render_markdown(text, width, Appearance(is_ascii=is_ascii))]


# ---- rows
def test_what_markdown_means_is_seen() -> None:
    shown = "\n".join(texts(DOCUMENT))
    for said in ("Title", "Some bold code", "• one", "1. first", "  x = 1", "y = 2", "▌ said", "end"):
        assert said in shown


def test_no_word_of_a_model_vanishes() -> None:
    shown = " ".join(texts("a <b>c</b> <!-- d --> &amp; \n\n<div>\ne\n</div>\n\n[f]: http://g", 80))
    for said in ("<b>c</b>", "<!-- d -->", "<div>", "e", "[f]: http://g"):
        assert said in shown


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("Roses are *red*,\nviolets are blue.", ["Roses are red,", "violets are blue."]),
        ("> one\n> two", ["▌ one", "▌ two"]),
        (r"\(\vec{a_b} * c_d * e\) and *this*", [r"\(\vec{a_b} * c_d * e\) and this"]),
        ("\\[\n\\oint_0^1 x\\,dx = \\{y\\}\n\\]", ["\\[", "\\oint_0^1 x\\,dx = \\{y\\}", "\\]"]),
        (r"$$x \\ *y*$$ *z*", [r"$$x \\ *y*$$ z"]),
        (r"$a*b*c$, *d*", ["$a*b*c$, d"]),
        ("It costs $5 *or* $10 *now*.", ["It costs $5 or $10 now."]),
        (r"\(never closed *so*", ["(never closed so"]),
        ("1. one\n2.", ["1. one", "2."]),  # the next one begins
        ("2. \n\n3. x", ["2.", "3. x"]),
        ("\n".join(f"{number}. x" for number in range(9, 11)), [" 9. x", "10. x"]),
    ],
)
def test_what_is_written_stays_as_it_is_written(text: str, rows: list[str]) -> None:
    assert texts(text, 60) == rows


@settings(deadline=None)
@given(SCRAPS.map("\n".join), st.integers(4, 120))
def test_rows_are_never_wider_than_the_screen(text: str, width: int) -> None:
    for rows in (render_markdown(text, width, Appearance()), render_plain(text, width, Appearance())):
        assert rows
        assert all(sum(segment.cell_length for segment in row) <= width for row in rows)
        assert not any(char < " " or "\x7f" <= char < "\xa0" for row in rows for char in join_row(row))


def test_ascii_rows_keep_what_was_said() -> None:
    assert texts("- é\n\n> quote\n\n---", is_ascii=True)[0].strip() == "* é"
    assert all(char.isascii() for row in texts(DOCUMENT, is_ascii=True) for char in row)


def shown(kind: EntryKind, text: str, width: int) -> list[str]:
    return [
        join_row(row).rstrip()
        for row in render_entry(TranscriptEntry(kind, text, has_gap=False), width, RenderOptions())
    ]


@pytest.mark.parametrize(
    ("width", "rows"),
    [
        (60, ["41.2 tok/s · 74/118 drafted accepted · first token 0.21 s"]),
        (56, ["41.2 tok/s · 74/118 drafted accepted", "first token 0.21 s"]),
        (20, ["41.2 tok/s", "74/118 drafted", "accepted", "first token 0.21 s"]),
    ],
)
def test_figures_are_wrapped_between_each_other(width: int, rows: list[str]) -> None:
    assert shown(EntryKind.FIGURES, "41.2 tok/s · 74/118 drafted accepted · first token 0.21 s", width) == rows


def test_what_is_wrapped_of_a_second_column_stays_in_it() -> None:
    text = "up, down   earlier questions\nplain words that wrap"
    assert shown(EntryKind.NOTE, text, 24) == [
        "up, down   earlier",
        "           questions",
        "plain words that wrap",
    ]
    assert shown(EntryKind.NOTE, text, 16)[:2] == ["up, down", "earlier"]  # no room for two


# ---- blocks
@settings(deadline=None)
@given(SCRAPS.map("\n".join))
def test_blocks_are_the_text(text: str) -> None:
    assert sum(measure_blocks(text)) == len(text)


@settings(deadline=None)
@given(SCRAPS.map("\n".join), st.data())
def test_a_finished_block_stays_as_it_is(text: str, data: st.DataObject) -> None:
    """What stands when some lines of a text are there, stands in the whole text too."""
    ends = [index + 1 for index, char in enumerate(text) if char == "\n"]
    cut = data.draw(st.sampled_from([0, *ends]))
    standing = measure_blocks(text[:cut])[:-1]
    assert standing == measure_blocks(text)[: len(standing)]


@settings(deadline=None)
@given(SCRAPS.map("\n".join), st.data())
def test_an_answer_grows_to_what_was_said(text: str, data: st.DataObject) -> None:
    """However it is cut into pieces: all text, in order, with its marks."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)) | {0, len(text)})
    drafted = [data.draw(st.booleans()) for _ in cuts[1:]]
    live, entries, growing = LiveAnswer(), [], []
    for number, (low, high) in enumerate(pairwise(cuts)):
        live.push([TextPiece(number, text[low:high], drafted[number])])
        finished, growing = live.advance()
        entries += finished
    said = "".join(entry.text for entry in [*entries, *growing])
    mask = b"".join(entry.mask for entry in [*entries, *growing])
    assert text.startswith(said)
    assert not text[len(said) :].strip()  # blanks that nothing follows may be left out
    spans = zip(drafted, pairwise(cuts), strict=True)
    marks = [is_drafted for is_drafted, (low, high) in spans for _ in range(low, high)]
    assert [bool(byte) for byte in mask] == marks[: len(said)]


def test_thoughts_come_before_what_is_said() -> None:
    live = LiveAnswer()
    live.push([TextPiece(1, "", False, reasoning="let me "), TextPiece(2, "", False, reasoning="see")])
    assert live.advance() == ([], [TranscriptEntry(EntryKind.THOUGHT, "let me see")])
    live.push([TextPiece(3, "So.", False)])
    assert live.advance() == (
        [TranscriptEntry(EntryKind.THOUGHT, "let me see")],
        [TranscriptEntry(EntryKind.ANSWER, "So.", b"\0\0\0")],
    )
    assert not live.has_pieces


# ---- marks
def marked(source: str, drafted: str) -> str:
    """The rendered characters that are marked, where all of `drafted` in the source was."""
    begin = source.index(drafted)
    mask = bytes(begin <= index < begin + len(drafted) for index in range(len(source)))
    rows = mark_drafted(render_markdown(source, 60, Appearance()), source, mask, MARK)
    return "".join(s.text for row in rows for s in row if s.style and s.style.underline and not s.style.link)


@pytest.mark.parametrize(
    ("source", "drafted", "expected"),
    [
        ("plain words here", "words", "words"),
        ("**on** time", "time", "time"),
        ("- one\n- two\n- three", "two", "two"),
        ("```python\nx = 1\n```", "x = 1", "x=1"),
        ("| a | b |\n|---|---|\n| cc | dd |", "cc", "cc"),
        ("1. first\n2. second", "second", "second"),
        ("a `b` *c* d", "d", "d"),
    ],
)
def test_marks_stay_at_their_place_beside_markup(source: str, drafted: str, expected: str) -> None:
    assert marked(source, drafted).replace(" ", "") == expected


@given(st.text(string.ascii_letters + " ", min_size=1, max_size=80), st.data())
@settings(deadline=None)
def test_every_letter_of_plain_words_keeps_its_mark(text: str, data: st.DataObject) -> None:
    mask = bytes(data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text))))
    rows = mark_drafted(render_plain(text, 20, Appearance()), text, mask, MARK)
    shown = [(char, bool(s.style and s.style.underline)) for row in rows for s in row for char in s.text if char != " "]
    assert shown == [(char, bool(byte)) for char, byte in zip(text, mask, strict=True) if char != " "]


# ---- sums
@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=30), st.data())
def test_tops_are_sums_of_heights(changes: list[tuple[int, int]], data: st.DataObject) -> None:
    """An entry's text is its height once it is laid out; one row less is estimated."""
    layout = TranscriptLayout(lambda entry: [Strip([])] * int(entry.text), lambda entry: int(entry.text) - 1)
    heights: list[int] = []
    for height, place in changes:
        if place % 3 == 0 and heights:
            index = place % len(heights)
            heights[index] = layout.lay_out(index)
        elif place % 7 == 0:
            layout.replace_from(len(heights) // 2, ())
            del heights[len(heights) // 2 :]
        else:
            layout.replace_from(len(heights), [TranscriptEntry(EntryKind.NOTE, str(height + 1))])
            heights.append(height)
        assert layout.num_rows == sum(heights)
    if heights:
        row = data.draw(st.integers(0, sum(heights) - 1))
        item = layout.index_at(row)
        assert sum(heights[:item]) <= row < sum(heights[: item + 1])


# ---- entries
def test_a_conversation_becomes_entries() -> None:
    turns = [Turn("q", "```\na\n```\n\nb", reasoning="r"), Turn("q2", "", stopped=True), Turn("q3", "c")]
    entries = make_entries(turns, 4)
    kinds = [entry.kind.value for entry in entries]
    assert kinds == ["question", "thought", "answer", "question", "figures", "question", "answer"]
    assert [entry.turn for entry in entries if entry.kind is EntryKind.QUESTION] == [4, 5, 6]
    assert (entries[2].first_code, entries[6].first_code) == (1, 2)


def test_a_turn_with_other_versions_says_which_is_shown() -> None:
    turn = Turn("q", "a", stopped=True, others=((Turn("q", "b"),),), version=1)
    assert make_entries([turn])[-1].text == "version 2/2 · stopped"


@settings(deadline=None)
@given(SCRAPS.map("\n".join), st.integers(10, 100))
def test_a_whole_answer_looks_as_the_one_that_grew(text: str, width: int) -> None:
    live = LiveAnswer()
    live.push([TextPiece(1, text + "\n", False)])
    finished, growing = live.advance()
    grown = [row for entry in (*finished, *growing) for row in render_entry(entry, width, RenderOptions())]
    whole = render_entry(TranscriptEntry(EntryKind.ANSWER, text + "\n", is_whole=True), width, RenderOptions())
    if text.strip():
        assert [join_row(row) for row in whole] == [join_row(row) for row in grown]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("- [ ] a\n- [x] b\n- [X]c", [" • ☐ a", " • ☑ b", " • [X]c"]),
        ("[ ] a", ["[ ] a"]),
        ("***", ["─" * 60]),
        ("<details><summary>More *so*</summary>\n\nin\n\n</details>\n", ["▾ More so", "", "in"]),
        ("<details open>\n<summary>More</summary>\nin\n</details>", ["▾ More", "in"]),
        ("a <details> tag and <summary>x</summary>", ["a <details> tag and <summary>x</summary>"]),
        ("```\n<details>\n```", ["  text #1", "  <details>"]),
        ("```py\na\n```\n- b\n  ```\n  c\n  ```", ["  py #1", "  a", "", " • b", "     text #2", "     c"]),
        ("> ```py\n> a\n> ```", ["▌   py", "▌   a"]),  # quotes have no numbers
        ("```" + "x" * 50 + "\na\n```", ["  " + "x" * 20 + " #1", "  a"]),
        ("    a", ["  a"]),
    ],
)
def test_lists_of_tasks_rules_details_and_code_are_drawn(text: str, rows: list[str]) -> None:
    assert texts(text, 60) == rows


def test_details_and_tasks_are_drawn_in_ascii() -> None:
    assert texts("- [x] a", is_ascii=True) == [" * [x] a"]
    assert texts("<details><summary>b</summary>", is_ascii=True) == ["- b"]


def test_a_closing_tag_is_no_block_of_its_own() -> None:
    assert measure_blocks("<details>\n\na\n\n</details>\n\nb") == [11, 15, 1]
    assert measure_blocks("a\n\n    </details>\n") == [3, 15]  # code


def test_marks_go_on_after_a_label_and_after_details() -> None:
    assert marked("```2py\n2 py\n```", "\n2 py") == "2py"
    assert marked("<details><summary>ab</summary>", "b") == "b"


def test_an_error_and_its_hint_have_two_colors() -> None:
    rows = render_entry(TranscriptEntry(EntryKind.ERROR, "error: a\nb\nhint: c\nd"), 40, RenderOptions())
    colors = {join_row(row).strip(): row[0].style.color.name for row in rows if row and row[0].style}
    assert colors == {"error: a": "red", "b": "red", "hint: c": "cyan", "d": "cyan"}


@settings(deadline=None)
@given(SCRAPS.map("\n".join), st.sampled_from(EntryKind), st.integers(10, 100))
def test_an_estimate_is_of_the_right_size(text: str, kind: EntryKind, width: int) -> None:
    entry, view = TranscriptEntry(kind, text), RenderOptions(shows_thoughts=True)
    assert estimate_height(entry, width, view) >= 1
    assert len(render_entry(entry, width, view)) <= 4 * estimate_height(entry, width, view) + 8
