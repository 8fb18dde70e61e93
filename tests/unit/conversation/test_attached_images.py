"""Images attached to questions: how paths are read, what is refused, what is sent and saved."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from doubles.image_files import image_bytes, image_with_false_size, write_image
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.conversation import conversation_file
from eaglelocal.conversation.conversation import Conversation, TokenEstimate, Turn
from eaglelocal.conversation.conversation_file import format_markdown
from eaglelocal.conversation.pictures import (
    check_picture,
    find_dropped_pictures,
    join_pictures,
    make_message,
    parse_paths,
    read_picture,
)
from eaglelocal.core.image import MAX_PICTURE_BYTES, MAX_PICTURES, media_type
from eaglelocal.core.request import Image, Message
from eaglelocal.errors import UsageError

CAT = check_picture("cat.png", image_bytes())


@pytest.mark.parametrize(
    ("kind", "media"),
    [
        ("PNG", "image/png"),
        ("JPEG", "image/jpeg"),
        ("GIF", "image/gif"),
        ("WEBP", "image/webp"),
        ("BMP", "image/bmp"),
        ("TIFF", ""),
    ],
)
def test_kinds_are_recognized_by_their_first_bytes(kind: str, media: str) -> None:
    data = image_bytes(kind, (30, 20))
    assert media_type(data) == media
    if media:
        assert check_picture("x", data).label == "[image: x, 30x20]"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "x.png is not a PNG, JPEG"),
        (b"%PDF-1.7", "x.png is not a PNG, JPEG"),
        (image_bytes("TIFF"), "x.png is not a PNG, JPEG"),
        (b"\x89PNG\r\n\x1a\nnothing more", "x.png cannot be read: it is damaged$"),
        (b"BM", "x.png cannot be read"),
        (image_bytes()[:20], "x.png cannot be read"),
        (image_bytes(size=(90, 90))[:-30], "x.png cannot be read: image file is truncated"),
        (image_bytes("JPEG", (90, 90))[:-30], "x.png cannot be read: image file is truncated"),
        (image_bytes(size=(400, 3)), "x.png cannot be read: 400 x 3: one side is more than 100 times the other"),
        (image_with_false_size(9_000, 9_000), "x.png cannot be read: 9000 x 9000 are more than 40 million pixels"),
        (image_with_false_size(100_000, 100_000), "x.png cannot be read: it has too many pixels"),
        (b"BM" + bytes(MAX_PICTURE_BYTES), "x.png has more than 32 MiB"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",  # else 32 MiB are written out
)
def test_a_file_that_is_not_an_image_is_refused_by_name(data: bytes, expected: str, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(data)
    with pytest.raises(UsageError, match=expected):
        read_picture(tmp_path / "x.png")


@pytest.mark.parametrize("path", ["nowhere.png", ".", "a\0b.png", "x" * 5000])
def test_what_is_no_file_is_refused(path: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        read_picture(tmp_path / path)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("{0}/cat.png", ["cat.png"]),
        ("  {0}/cat.png\n", ["cat.png"]),
        ("'{0}/my dog.png'", ["my dog.png"]),
        ('"{0}/my dog.png"', ["my dog.png"]),
        ("{0}/my dog.png", ["my dog.png"]),
        ("{0}/my\\ dog.png", ["my dog.png"]),
        ("file://{0}/my%20dog.png", ["my dog.png"]),
        ("file://localhost{0}/cat.png", ["cat.png"]),
        ("file://{0}/odd%23name.png", ["odd#name.png"]),
        ("~/cat.png", ["cat.png"]),
        ("{0}/cat.png '{0}/my dog.png'", ["cat.png", "my dog.png"]),
        ("file://{0}/cat.png\nfile://{0}/my%20dog.png", ["cat.png", "my dog.png"]),
        ("{0}/my dog.png\n{0}/it's odd.png\n", ["my dog.png", "it's odd.png"]),
        ("it's {0}/cat.png", []),
        ("look at {0}/cat.png", []),
        ("{0}/notes.txt", []),
        ("{0}/cat.png {0}/notes.txt", []),
        ("{0}", []),
        ("", []),
        ("a\0b", []),
        ("{0}/cat.png " * 2000, []),
    ],
)
def test_paths_as_people_paste_and_drop_them(
    typed: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("cat.png", "my dog.png", "odd#name.png", "it's odd.png"):
        write_image(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    text = typed.replace("{0}", str(tmp_path))
    assert [path.name for path in find_dropped_pictures(text)] == names
    if names:
        assert [path.name for path in parse_paths(text)] == names


@given(st.text() | st.text().map("file://{}".format) | st.text("'\"\\ ~/[]:#?%ab\0").map("file://[{}".format))
def test_no_text_is_too_odd_to_be_looked_at(text: str) -> None:
    assert find_dropped_pictures(text) == ()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_what_is_whole_is_taken(kind: str, tmp_path: Path) -> None:
    assert read_picture(write_image(tmp_path / "x", kind, (90, 60))).label == "[image: x, 90x60]"


def test_an_image_url_is_refused_because_nothing_is_fetched() -> None:
    with pytest.raises(UsageError, match="cannot read") as raised:
        read_picture(*parse_paths("https://example.org/cat.png"))
    assert raised.value.hint == "download the picture, and give its path"


def test_a_missing_path_with_spaces_is_named_as_typed() -> None:
    assert parse_paths("my photo.png") == (Path("my photo.png"),)


def test_a_question_has_at_most_so_many() -> None:
    assert len(join_pictures((), [CAT] * MAX_PICTURES)) == MAX_PICTURES
    with pytest.raises(UsageError, match="65 pictures are too many"):
        join_pictures((CAT,), [CAT] * MAX_PICTURES)


def test_a_text_model_gets_the_names_of_images() -> None:
    assert make_message("what?", (CAT,)) == Message("user", "what?", images=(Image(CAT.data),))
    assert make_message("what?", (CAT,), sees=False) == Message("user", "[image: cat.png, 4x3]\nwhat?")
    gone = check_picture("gone.png", image_bytes())
    gone = type(gone)(gone.name, b"", digest=gone.digest)
    assert make_message("what?", (gone, CAT)).content == "[image: gone.png, gone]\nwhat?"
    assert "b'" not in repr(CAT)


def test_pictures_are_estimated_in_the_context() -> None:
    estimate = TokenEstimate()
    assert (
        estimate.count_tokens((make_message("what?", (CAT, CAT)),))
        > estimate.count_tokens((make_message("what?", ()),)) + 500
    )


def test_pictures_of_a_conversation_are_kept_once_and_go_with_the_last_that_shows_them(tmp_path: Path) -> None:
    dog = check_picture("dog.jpg", image_bytes("JPEG"))
    talk = Conversation(turns=[Turn("which?", "both", pictures=(CAT, dog)), Turn("again", "yes", pictures=(CAT,))])
    for name in ("one", "two"):
        conversation_file.save(talk, tmp_path / f"{name}.json", target="m")
    kept = sorted(path.name for path in (tmp_path / "pictures").iterdir())
    assert kept == sorted([CAT.digest, dog.digest])
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "pictures").iterdir())
    assert conversation_file.load_conversation(tmp_path, "two").turns == talk.turns
    assert conversation_file.list_names(tmp_path) in (("one", "two"), ("two", "one"))
    conversation_file.delete(tmp_path, "one")
    assert conversation_file.load_conversation(tmp_path, "two").turns == talk.turns
    conversation_file.delete(tmp_path, "two")
    assert not list((tmp_path / "pictures").iterdir())


@pytest.mark.parametrize("data", [None, b"something else", b""])
def test_a_picture_that_has_gone_keeps_no_conversation_from_being_read(data: bytes | None, tmp_path: Path) -> None:
    conversation_file.save(Conversation(turns=[Turn("a", "b", pictures=(CAT,))]), tmp_path / "t.json", target="m")
    path = tmp_path / "pictures" / CAT.digest
    path.unlink() if data is None else path.write_bytes(data)
    [turn] = conversation_file.load_conversation(tmp_path, "t").turns
    assert turn.shown_question == "[image: cat.png, gone]\na"
    conversation_file.save(Conversation(turns=[turn]), tmp_path / "t.json", target="m")
    assert conversation_file.load_conversation(tmp_path, "t").turns == [turn]


@pytest.mark.parametrize(
    "pictures", ["x", [1], [{"name": "x"}], [{"name": "x", "sha256": "../../etc/passwd"}], [{}] * (MAX_PICTURES + 1)]
)
def test_invalid_images_are_an_error_with_the_place(pictures: object, tmp_path: Path) -> None:
    turn = {"question": "a", "answer": "b", "pictures": pictures}
    (tmp_path / "t.json").write_text(json.dumps({"version": 1, "turns": [turn]}))
    with pytest.raises(UsageError, match="turn 1 has invalid pictures"):
        conversation_file.load_conversation(tmp_path, "t")


def test_files_of_before_there_were_pictures_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"version": 1, "turns": [{"question": "a", "answer": "b"}]}))
    assert conversation_file.load_conversation(tmp_path, "t").turns == [Turn("a", "b")]


def test_a_document_names_them() -> None:
    text = format_markdown(Conversation(turns=[Turn("which?", "a cat", pictures=(CAT,))]), target="m")
    assert "> [image: cat.png, 4x3]\n> which?" in text
