"""Markers in a stream are found wherever the text is cut; no other text is held back or lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.text.reasoning.markers import Item, Marker, MarkerReader, make_control_char

MARKERS = ("<a>", "</a>", "[B]")
texts = st.text(
    st.sampled_from(["<", "/", "a", ">", "[", "B", "]", " ", *map(make_control_char, range(3))]), max_size=40
)


def read(pieces: list[str], *, as_text: bool = True) -> list[Item]:
    reader = MarkerReader(MARKERS, as_text=as_text)
    items = [item for piece in pieces for item in reader.push(piece)] + reader.flush()
    joined: list[Item] = []
    for item in items:
        if isinstance(item, str) and joined and isinstance(joined[-1], str):
            joined[-1] += item
        else:
            joined.append(item)
    return joined


def test_markers_spelled_and_as_tokens() -> None:
    text = f"x<a>y{make_control_char(1)}[B"
    assert read([text]) == ["x", Marker("<a>", "<a>"), "y", Marker("</a>"), "[B"]
    assert read([text], as_text=False) == ["x<a>y", Marker("</a>"), "[B"]
    assert MarkerReader((), as_text=True).push("<a>") == ["<a>"]


def test_no_more_is_held_back_than_could_begin_a_marker() -> None:
    reader = MarkerReader(MARKERS, as_text=True)
    assert reader.push("x <") == ["x "]
    assert reader.push("/b") == ["</b"]
    assert reader.push("</a") == []
    assert reader.push(">") == [Marker("</a>", "</a>")]


@given(texts, st.integers(0, 40))
def test_cuts_change_nothing(text: str, cut: int) -> None:
    whole = read([text])
    assert read([text[:cut], text[cut:]]) == read(list(text)) == whole
    shown = "".join(item if isinstance(item, str) else item.text for item in whole)
    assert shown == "".join(char for char in text if not 0xDC00 <= ord(char) <= 0xDFFF)
    assert not any(marker in item for item in whole if isinstance(item, str) for marker in MARKERS)
