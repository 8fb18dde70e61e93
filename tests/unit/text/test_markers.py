"""Markers in a stream: found wherever the text is cut, and nothing else is held back or lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.reasoning.markers import Item, Mark, MarkReader, control_char

MARKERS = ("<a>", "</a>", "[B]")
texts = st.text(st.sampled_from(["<", "/", "a", ">", "[", "B", "]", " ", *map(control_char, range(3))]), max_size=40)


def read(pieces: list[str], *, spelled: bool = True) -> list[Item]:
    reader = MarkReader(MARKERS, spelled=spelled)
    items = [item for piece in pieces for item in reader.push(piece)] + reader.flush()
    joined: list[Item] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def test_markers_spelled_and_as_tokens() -> None:
    text = f"x<a>y{control_char(1)}[B"
    assert read([text]) == ["x", Mark("<a>", "<a>"), "y", Mark("</a>"), "[B"]
    assert read([text], spelled=False) == ["x<a>y", Mark("</a>"), "[B"]
    assert MarkReader((), spelled=True).push("<a>") == ["<a>"]


def test_no_more_is_held_back_than_could_begin_a_marker() -> None:
    reader = MarkReader(MARKERS, spelled=True)
    assert reader.push("x <") == ["x "]
    assert reader.push("/b") == ["</b"]
    assert reader.push("</a") == []
    assert reader.push(">") == [Mark("</a>", "</a>")]


@given(texts, st.integers(0, 40))
def test_cuts_change_nothing(text: str, cut: int) -> None:
    whole = read([text])
    assert read([text[:cut], text[cut:]]) == read(list(text)) == whole
    shown = "".join(item if isinstance(item, str) else item.shown for item in whole)
    assert shown == "".join(char for char in text if not 0xDC00 <= ord(char) <= 0xDFFF)
    assert not any(marker in item for item in whole if isinstance(item, str) for marker in MARKERS)
