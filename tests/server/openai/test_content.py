"""Texts and pictures of a message join_pieces to one content; base64 as clients write it."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglelocal.core.request import ChatRequest, Image, Message
from eaglelocal.core.sampling import SamplingParams
from eaglelocal.server.content import (
    MAX_IMAGE_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_BYTES,
    UNSEEN_IMAGE,
    Content,
    check_images,
    decode_base64,
    decode_data_url,
    describe_message_images,
    join_pieces,
)
from eaglelocal.server.http_errors import Problem
from eaglelocal.server.middleware import LARGE_BYTES, MAX_CONVERSATION_BYTES
from eaglelocal.server.request_reader import read_chat, read_content
from eaglelocal.server.schema import ChatBody, ContentPart

DATA = bytes(range(256))
PIECES = st.lists(st.one_of(st.text(max_size=4), st.binary(min_size=1, max_size=4)), max_size=12)


def part(piece: str | bytes) -> ContentPart:
    if isinstance(piece, str):
        return ContentPart(type="text", text=piece)
    return ContentPart(type="image_url", image_url=f"data:image/png;base64,{base64.b64encode(piece).decode()}")


@given(PIECES)
def test_any_split_by_images_joins_to_the_same_text_and_places(pieces: list[str | bytes]) -> None:
    content = join_pieces(pieces)
    assert content.text == "".join(piece for piece in pieces if isinstance(piece, str))
    assert [image.data for image in content.images] == [piece for piece in pieces if isinstance(piece, bytes)]
    before = [sum(len(one) for one in pieces[:i] if isinstance(one, str)) for i in range(len(pieces))]
    assert [image.at for image in content.images] == [
        at for at, piece in zip(before, pieces, strict=True) if isinstance(piece, bytes)
    ]
    assert read_content([part(piece) for piece in pieces], "messages.0.content") == content


@given(PIECES)
def test_an_omitted_image_leaves_a_note(pieces: list[str | bytes]) -> None:
    content = join_pieces(pieces)
    reply = describe_message_images(Message("tool", content.text, images=content.images))
    assert reply.content == "".join(piece if isinstance(piece, str) else UNSEEN_IMAGE for piece in pieces)
    assert reply.images == ()


def lined(text: str, end: str) -> str:
    return end.join(text[i : i + 76] for i in range(0, len(text), 76)) + end


STANDARD = base64.b64encode(DATA).decode()


@pytest.mark.parametrize(
    "text",
    [
        STANDARD,
        STANDARD.rstrip("="),
        STANDARD + "==",
        lined(STANDARD, "\n"),
        lined(STANDARD, "\r\n"),
        f" \t{STANDARD} ",
        base64.urlsafe_b64encode(DATA).decode(),
        base64.urlsafe_b64encode(DATA).decode().rstrip("="),
    ],
)
def test_base64_as_clients_write_it(text: str) -> None:
    assert decode_base64(text, "a") == DATA
    for head in ("data:image/png;base64,", "DATA:IMAGE/PNG;BASE64,", "data:image/webp; charset=utf-8;base64,"):
        assert decode_data_url(head + text, "a") == DATA


@given(st.binary(min_size=1, max_size=300))
def test_every_file_comes_out_as_it_went_in(data: bytes) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.encodebytes):
        assert decode_base64(encode(data).decode(), "a") == data


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_an_image_has_a_size(more: int, is_read: bool) -> None:
    text = base64.b64encode(bytes(MAX_IMAGE_BYTES + more)).decode()
    if is_read:
        assert len(decode_base64(text, "a")) == MAX_IMAGE_BYTES
        return
    with pytest.raises(Problem, match="larger than") as caught:
        decode_base64(text, "a")
    assert (caught.value.status, caught.value.code, caught.value.parameter) == (400, "invalid_image", "a")


@pytest.mark.parametrize("text", ["a*==", "abcde", "a=bc", "\ud800", "\u00e9"])
def test_invalid_base64_is_refused(text: str) -> None:
    with pytest.raises(Problem, match="not valid base64"):
        decode_base64(text, "a")


HALF = Image(bytes(MAX_IMAGES_BYTES // 2))
SMALL = Image(b"x")


@pytest.mark.parametrize(
    ("images", "num_answers", "words"),
    [
        ([HALF, HALF], 1, ""),
        ([HALF, HALF, SMALL], 1, "together"),
        ([HALF], 2, ""),
        ([HALF, SMALL], 2, "together"),
        ([SMALL] * MAX_IMAGES, 1, ""),
        ([SMALL] * (MAX_IMAGES + 1), 1, "at most 64"),
        ([], 16, ""),
    ],
)
def test_images_of_a_request_are_bounded(images: list[Image], num_answers: int, words: str) -> None:
    messages = [Message("user", "", images=(image,)) for image in images]
    if not words:
        check_images(messages, num_answers)
        return
    with pytest.raises(Problem, match=words) as caught:
        check_images(messages, num_answers)
    assert (caught.value.status, caught.value.parameter) == (400, "messages")


def test_a_body_has_room_for_them_in_lines_and_for_texts() -> None:
    line = 76 * 3 // 4
    assert MAX_IMAGES_BYTES // line * len("x" * 76 + r"\r\n") + LARGE_BYTES < MAX_CONVERSATION_BYTES


def test_nothing_prints_an_image() -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": [part(DATA).model_dump()]}]})
    (request,) = read_chat(body, SamplingParams(), "me").requests
    assert isinstance(request, ChatRequest) and request.messages[0].images[0].data == DATA
    for shown in (repr(body), repr(request), repr(Content("", request.messages[0].images))):
        assert STANDARD[:20] not in shown and repr(DATA)[2:20] not in shown
