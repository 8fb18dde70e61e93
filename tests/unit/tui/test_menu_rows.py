"""The rows of the menu over the prompt, and how they are drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation.slash_commands import COMMANDS
from eaglelocal.tui.chat.menu_rows import Menu, MenuRow, MenuSources, make_menu
from eaglelocal.tui.chat.prompt_menu import format_menu, scroll_to
from eaglelocal.tui.styled_lines import cell_width

WORDS = {"/think": ("off", "low", "High"), "/set": ("top_k ", "seed "), "/draft": ("auto", "ngram")}


def list_paths(name: str, partial: str) -> list[str]:
    found = {"/add": ("my file.txt", "my folder/"), "/image": ("my cat.png", "my folder/")}.get(name, ())
    return [path for path in found if path.startswith(partial)]


SOURCES = MenuSources(COMMANDS, lambda name: f"value of {name}", lambda name: WORDS.get(name, ()), list_paths)


def list_texts(typed: str) -> list[str]:
    menu = make_menu(typed, SOURCES)
    return [] if menu is None else [typed[: menu.begin] + row.text for row in menu.rows]


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("/th", ["/think ", "/theme "]),
        ("/retry", ["/retry"]),
        ("/rena", ["/rename "]),
        ("/qu", ["/exit"]),
        ("/nothing", []),
        ("/think h", ["/think High"]),
        ("/think o", ["/think off", "/think low"]),
        ("/think off", []),
        ("/set ", ["/set top_k ", "/set seed "]),
        ("/draft ngram,a", ["/draft ngram,auto", "/draft ngram,ngram"]),
        ("/image my folder/", []),
        ("/image my", ["/image my cat.png", "/image my folder/"]),
        ("/add my f", ["/add my file.txt", "/add my folder/"]),
        ("/clear now", []),
        ("/th\nink", []),
        ("text /th", []),
        ("see @my\\ f", ["see @my\\ file.txt", "see @my\\ folder/"]),
        ("me@my", []),
        ("@none", []),
    ],
)
def test_rows_continue_what_is_typed(typed: str, texts: list[str]) -> None:
    assert list_texts(typed) == texts


def test_enter_takes_a_command_but_sends_an_argument_as_typed() -> None:
    commands, arguments, files = make_menu("/t", SOURCES), make_menu("/think ", SOURCES), make_menu("@m", SOURCES)
    assert commands is not None and arguments is not None and files is not None
    assert (commands.first, arguments.first, files.first) == (0, None, 0)
    assert commands.rows[0].value == "value of /think"
    at_sign = make_menu("@", SOURCES)
    assert at_sign is not None and at_sign.first is None


ROWS = st.lists(st.builds(MenuRow, st.text(), st.text(max_size=90), st.text(max_size=90), st.text(max_size=90)))


@given(ROWS, st.integers(1, 9), st.integers(1, 200), st.integers(0, 30))
def test_lines_have_the_width_whatever_is_in_them(rows: list[MenuRow], shown: int, width: int, index: int) -> None:
    highlighted = index % len(rows) if rows else None
    top = scroll_to(highlighted or 0, 0, shown, len(rows))
    lines = format_menu(Menu(0, tuple(rows), usage="how"), highlighted, top, shown, width)
    assert {cell_width(line) for line in lines} == {width}
    assert 1 <= len(lines) <= max(shown, 1)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 10), st.integers(1, 60))
def test_the_highlighted_row_is_in_view(index: int, top: int, shown: int, number: int) -> None:
    index %= number
    first = scroll_to(index, top, shown, number)
    assert first <= index < first + shown
    assert 0 <= first <= max(number - shown, index)
