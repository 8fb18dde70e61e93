"""Keys from bytes: no byte sequence ends the reader, and the keys after it are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events
from textual.message import Message
from textual.messages import InBandWindowResize

from eaglelocal.tui.terminal.key_reader import PASTE_GAP_S, REMAINDER_S, REPLACEMENT, KeyReader


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def typed(messages: list[Message]) -> str:
    return "".join(event.character or "" for event in messages if isinstance(event, events.Key))


def read(*parts: bytes) -> list[Message]:
    reader = KeyReader()
    return [event for part in parts for event in reader.feed(part)]


@pytest.mark.parametrize(
    ("sent", "read_as"),
    [
        (b"\xffa", f"{REPLACEMENT}a"),
        (b"caf\xe9 ", f"caf{REPLACEMENT} "),
        (b"\x80\x9b\xc0a", f"{REPLACEMENT * 3}a"),  # C1 bytes
        ("\u00e9\U0001f985".encode(), "\u00e9\U0001f985"),
    ],
)
def test_what_is_no_utf8_becomes_the_replacement_character(sent: bytes, read_as: str) -> None:
    assert typed(read(sent)) == read_as


def test_a_character_may_come_byte_by_byte() -> None:
    assert typed(read(*(bytes([byte]) for byte in "caf\u00e9 \U0001f985".encode()))) == "caf\u00e9 \U0001f985"


def test_a_lone_byte_is_shown_when_nothing_follows() -> None:
    clock = Clock()
    reader = KeyReader(clock)
    assert typed(list(reader.feed(b"\xe9"))) == ""
    assert typed(list(reader.tick())) == ""  # its rest may be on its way
    clock.now_s += REMAINDER_S
    assert typed(list(reader.tick())) == REPLACEMENT
    assert typed(list(reader.tick())) == ""
    assert typed(list(reader.feed("\u00e9".encode()))) == "\u00e9"


@pytest.mark.parametrize(
    "sent",
    [
        b"\x1b[99999999999;1u",  # no character has that code
        b"\x1b[97;1:3u",  # the release of a key, for programs that request it
        b"\x1b[48;0;0;0;0t",
        b"\x1b[48;99999;99999;1;1t",
        b"\x1b[?2048;2$y",
        b"\x1b[<0;99999999999999999999999;1M",
    ],
)
def test_an_invalid_sequence_swallows_no_keys(sent: bytes) -> None:
    messages = read(sent + b"then")
    assert typed(messages).endswith("then")
    assert not any(isinstance(event, (events.Resize, InBandWindowResize)) for event in messages)


def test_half_a_surrogate_pair_is_not_a_character() -> None:
    assert typed(read(b"\x1b[55357;1u", b"\x1b[57344;1;55357:97u")) == f"{REPLACEMENT}{REPLACEMENT}a"


def test_a_paste_stays_one() -> None:
    (paste, key) = read(b"\x1b[200~caf\xe9\x00\r\xf0\x9f", b"\xa6\x85\x1b[201~z")
    assert isinstance(paste, events.Paste) and paste.text == f"caf{REPLACEMENT}\r\U0001f985"
    assert isinstance(key, events.Key)


@pytest.mark.parametrize("text", ["a\x1b[31mb\rc", "\x1b", "\x1b[200~", "\x1b[201", "x" * 50])
def test_a_paste_may_come_byte_by_byte_and_hold_anything(text: str) -> None:
    sent = f"k\x1b[200~{text}\x1b[201~z".encode()
    first, paste, last = read(*(bytes([byte]) for byte in sent))
    assert isinstance(paste, events.Paste) and paste.text == text
    assert typed([first, last]) == "kz"
    assert [type(event) for event in read(sent)] == [events.Key, events.Paste, events.Key]


@pytest.mark.parametrize("cut", [b"", b"\x1b", b"\x1b[", b"\x1b[2", b"\x1b[20", b"\x1b[201"])
def test_a_paste_whose_end_is_lost_ends(cut: bytes) -> None:
    clock = Clock()
    reader = KeyReader(clock)
    assert not list(reader.feed(b"\x1b[200~two\rlines" + cut))
    clock.now_s += PASTE_GAP_S / 2
    assert not list(reader.tick())  # a slow line
    clock.now_s += PASTE_GAP_S
    (paste,) = reader.tick()
    assert isinstance(paste, events.Paste) and paste.text == "two\rlines"
    (key,) = reader.feed(b"\x03")
    assert isinstance(key, events.Key) and key.key == "ctrl+c"


@pytest.mark.parametrize("keys", [b"\x03", b"\x03\x03", b"\x04", b"\x11", b"\x1b[99;5u", b"\x1b[27;5;99~"])
@pytest.mark.parametrize("cut", [b"", b"\x1b[201"])
def test_keys_that_leave_end_a_paste_whose_end_is_lost(cut: bytes, keys: bytes) -> None:
    paste, key, *_ = read(b"\x1b[200~two\rlines" + cut, keys)
    assert isinstance(paste, events.Paste) and paste.text == "two\rlines"
    assert isinstance(key, events.Key) and key.key in ("ctrl+c", "ctrl+d", "ctrl+q")


@pytest.mark.parametrize("part", [b"a\x03b", b"\x03 ", b"\x1b", b"\r", b"c", b"\xe9", b"\x1b[99999999999;1u"])
def test_other_reads_go_on_with_a_paste(part: bytes) -> None:
    (paste,) = read(b"\x1b[200~one", part, b"\x1b[201~")
    assert isinstance(paste, events.Paste) and paste.text == "one" + part.decode(errors="replace")


def test_the_mouse_reports_cells_whatever_else_is_reported() -> None:
    (click,) = read(b"\x1b[48;24;80;384;640t", b"\x1b[<0;3;24M")
    assert isinstance(click, events.MouseDown) and (click.x, click.y) == (2, 23)


ODD = st.sampled_from(
    [b"\x1b[", b"\x1b[200~", b"\x1b", b"\x1b[<", b"200~", b"\x1b[201~", b"u", b"t", b"M", b";", b":", b"9" * 12]
)


@given(st.lists(st.one_of(st.binary(max_size=8), ODD), max_size=40))
def test_no_bytes_end_it(parts: list[bytes]) -> None:
    clock = Clock()
    reader = KeyReader(clock)
    for part in parts:
        list(reader.feed(part))
        list(reader.tick())
    clock.now_s += PASTE_GAP_S
    list(reader.tick())
    list(reader.feed(b"\x1b[201~"))  # whatever was begun
    assert typed(list(reader.feed(b" end"))).endswith(" end")
    reader.close()
